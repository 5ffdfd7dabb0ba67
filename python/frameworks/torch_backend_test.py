"""The back end "lockstep" under torch.distributed and what is built on it, on two ranks. Faults are in torch_backend_faults_test.py."""

import datetime
import gc
import os
import shutil
import threading
import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _abort_process_group, _coalescing_manager
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import ranks

TIMEOUT = datetime.timedelta(seconds=60)
SIZE = 2


def setUpModule():
    dist.init_process_group('lockstep', timeout=TIMEOUT)


def tearDownModule():
    dist.destroy_process_group()


def seconds(count):
    return datetime.timedelta(seconds=count)


class Case(unittest.TestCase):
    def setUp(self):
        self.rank, self.peer = dist.get_rank(), 1 - dist.get_rank()

    def assertTensor(self, tensor, expected):
        torch.testing.assert_close(tensor, torch.as_tensor(expected, dtype=tensor.dtype).expand_as(tensor), rtol=0, atol=0)


class Collectives(Case):
    def test_all_reduce_of_every_dtype(self):
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8,
                      torch.complex64):
            tensor = torch.full((3, 5), self.rank + 1, dtype=dtype)
            dist.all_reduce(tensor)
            self.assertTensor(tensor, 3)

    def test_subnormals_where_a_rank_flushes_them(self):
        torch.set_flush_denormal(self.rank == 1)
        for elements in (4, 1000, 300_000):
            tensor = torch.full((elements,), 1 << 22, dtype=torch.int32).view(torch.float32)
            dist.all_reduce(tensor)
            self.assertTensor(tensor.view(torch.int32), 1 << 23)
        torch.set_flush_denormal(False)

    def test_every_reduction(self):
        for op, inputs, expected in ((dist.ReduceOp.AVG, (1., 2.), 1.5), (dist.ReduceOp.PRODUCT, (3, 5), 15),
                                     (dist.ReduceOp.MIN, (3, 5), 3),
                                     (dist.ReduceOp.MAX, (3, 5), 5), (dist.ReduceOp.BAND, (6, 3), 2), (dist.ReduceOp.BOR, (6, 3), 7),
                                     (dist.ReduceOp.BXOR, (6, 3), 5), (dist._make_nccl_premul_sum(.5), (1., 2.), 1.5)):
            tensor = torch.tensor([inputs[self.rank]])
            dist.all_reduce(tensor, op=op)
            self.assertTensor(tensor, expected)

    def test_tensors_with_gaps_and_without_elements(self):
        whole = torch.zeros(4, 6)
        dist.all_reduce(whole.fill_(1)[:, ::2])
        self.assertTensor(whole[:, ::2], 2)
        self.assertTensor(whole[:, 1::2], 1)
        transposed = torch.full((2, 3), float(self.rank)).t()
        dist.broadcast(transposed, 1)
        self.assertTensor(transposed, 1)
        leaf = torch.nn.Parameter(torch.full((3, 2), float(self.rank)).t())
        dist.broadcast(leaf, 1)
        dist.all_gather([leaf, torch.zeros(2, 3)], torch.ones(2, 3))
        self.assertTensor(leaf.detach(), 1)
        dist.all_reduce(torch.empty(0))
        scalar = torch.tensor(1.)
        dist.all_reduce(scalar)
        self.assertTensor(scalar, 2)

    def test_gather_scatter_and_their_like(self):
        mine, both = torch.full((2,), float(self.rank)), [torch.zeros(2), torch.zeros(2)]
        dist.all_gather(both, mine)
        self.assertTensor(torch.stack(both), torch.tensor([[0.], [1.]]))
        into = torch.zeros(4)
        dist.all_gather_into_tensor(into, mine)
        self.assertTensor(into, torch.tensor([0., 0, 1, 1]))
        both = [torch.zeros(2), torch.zeros(2)] if self.rank == 1 else None
        dist.gather(mine, both, dst=1)
        if self.rank == 1:
            self.assertTensor(torch.stack(both), torch.tensor([[0.], [1.]]))
        dist.scatter(mine, [torch.full((2,), 5.), torch.full((2,), 6.)] if self.rank == 1 else None, src=1)
        self.assertTensor(mine, 5 + self.rank)
        dist.reduce_scatter(mine, [torch.full((2,), 1. + self.rank), torch.full((2,), 10. + self.rank)])
        self.assertTensor(mine, 21 if self.rank else 3)
        dist.reduce_scatter_tensor(mine, torch.arange(4.))
        self.assertTensor(mine, torch.tensor([4., 6.] if self.rank else [0., 2.]))
        total = torch.ones(2)
        dist.reduce(total, dst=1)
        self.assertTensor(total[:1], 2 if self.rank == 1 else 1)

    def test_all_to_all(self):
        output = torch.zeros(2)
        dist.all_to_all_single(output, torch.tensor([10. * self.rank, 10. * self.rank + 1]))
        self.assertTensor(output, torch.tensor([self.rank, 10. + self.rank]))
        # Rank 0 keeps one row and sends two, rank 1 sends three and keeps none.
        sent, kept = ([1, 2], [1, 3]) if self.rank == 0 else ([3, 0], [2, 0])
        output = torch.zeros(sum(kept), 2)
        dist.all_to_all_single(output, torch.full((3, 2), float(self.rank)), kept, sent)
        self.assertTensor(output, torch.tensor([[0.]] + 3 * [[1.]]) if self.rank == 0 else torch.zeros(2, 2))
        outputs = [torch.zeros(1 + self.rank), torch.zeros(3 + self.rank)]
        dist.all_to_all(outputs, [torch.full((1 + 2 * self.rank,), 1.), torch.full((2 + 2 * self.rank,), 1.)])
        for output in outputs:
            self.assertTensor(output, 1)

    def test_lists_of_uneven_sizes(self):
        outputs = [torch.zeros(2), torch.zeros(3, 2).t()]
        dist.all_gather(outputs, [torch.ones(2), torch.full((2, 3), 2.)][self.rank])
        self.assertTensor(outputs[0], 1)
        self.assertTensor(outputs[1], 2)
        output = torch.zeros(3 - self.rank)
        dist.reduce_scatter(output, [torch.arange(3.) + self.rank, torch.full((2,), 5.)])
        self.assertTensor(output, torch.tensor([1., 3., 5.]) if self.rank == 0 else 10)

    def test_copies_of_dtypes_without_arithmetic(self):
        for dtype in (torch.int16, torch.uint16, torch.complex32, torch.float8_e4m3fnuz, torch.float8_e8m0fnu, torch.bool):
            with self.subTest(dtype=dtype):
                def numbers(*values):
                    return torch.tensor(values).to(torch.float32).to(dtype)

                def check(tensor, *values):
                    self.assertEqual(tensor.to(torch.float32).flatten().tolist(), numbers(*values).to(torch.float32).tolist())
                tensor = numbers(1, 2, 4) if self.rank == 0 else numbers(0, 0, 0)
                dist.broadcast(tensor, 0)
                check(tensor, 1, 2, 4)
                (dist.send if self.rank == 0 else dist.recv)(tensor if self.rank == 0 else tensor.zero_(), self.peer)
                check(tensor, 1, 2, 4)
                mine, both = numbers(1 + self.rank, 4), [numbers(0, 0), numbers(0, 0)]
                dist.all_gather(both, mine)
                check(both[1], 2, 4)
                dist.all_gather_into_tensor(into := numbers(0, 0, 0, 0), mine)
                check(into, 1, 4, 2, 4)
                dist.all_gather(uneven := [numbers(0), numbers(0, 0)], mine[:1 + self.rank])
                check(uneven[1], 2, 4)
                dist.all_to_all_single(swapped := numbers(0, 0), mine)
                check(swapped, *((1, 2) if self.rank == 0 else (4, 4)))
                dist.all_to_all_single(split := numbers(0, 0), mine, [1, 1], [1, 1])
                check(split, *((1, 2) if self.rank == 0 else (4, 4)))
                dist.gather(mine, both if self.rank == 1 else None, 1)
                dist.scatter(tensor[:2], [mine, mine] if self.rank == 1 else None, 1)
                check(tensor[:2], 2, 4)

    def test_asynchronous_works_and_futures(self):
        tensor = torch.ones(1000)
        work = dist.all_reduce(tensor, async_op=True)
        self.assertTrue(work.wait())
        self.assertTensor(tensor, 2)
        gaps = torch.ones(4, 2)[:, :1]
        seen = dist.all_reduce(gaps, async_op=True).get_future().then(lambda future: future.value()[0].sum().item()).wait()
        self.assertEqual(seen, 8)

    def test_a_continuation_may_wait_for_another_collective(self):
        def again(future):
            (tensor,) = future.value()
            dist.all_reduce(tensor)
            return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

        for i in range(20):
            self.assertTensor(dist.all_reduce(torch.ones(3) * i, async_op=True).get_future().then(again).wait(), 8 * i)

    def test_a_wait_has_a_timeout_and_the_collective_goes_on(self):
        tensor = torch.ones(3)
        if self.rank == 0:
            work = dist.all_reduce(tensor, async_op=True)
            with self.assertRaisesRegex(dist.DistBackendError, 'Timed out'):
                work.wait(seconds(.2))
            dist.send(torch.zeros(1), 1)
            work.wait()
        else:
            dist.recv(torch.zeros(1), 0)
            dist.all_reduce(tensor)
        self.assertTensor(tensor, 2)

    def test_what_an_asynchronous_call_borrows_outlives_an_exception(self):
        if self.rank == 0:
            with self.assertRaises(KeyError):
                dist.all_reduce(torch.ones(1 << 20), async_op=True)
                raise KeyError('in the middle')
            gc.collect()
            junk = [torch.zeros(1 << 20) for _ in range(8)]
            dist.send(torch.zeros(1), 1)
            dist.barrier()
            for tensor in junk:
                self.assertTensor(tensor[:100], 0)
        else:
            dist.recv(torch.zeros(1), 0)
            tensor = torch.ones(1 << 20)
            dist.all_reduce(tensor)
            self.assertTensor(tensor, 2)
            dist.barrier()

    def test_sparse_all_reduce(self):
        for asynchronous in (False, True):
            indices, values = [[0, 2 + self.rank, 0]], torch.tensor([[1., 2.], [3., 4.], [1., 1.]])
            tensor = torch.sparse_coo_tensor(indices, values, (4, 2))
            work = dist.all_reduce(tensor, async_op=asynchronous)
            if asynchronous:
                work.wait()
            self.assertTensor(tensor.to_dense(), torch.tensor([[4., 6.], [0., 0.], [3., 4.], [3., 4.]]))

    def test_the_results_of_a_work_that_is_done_when_it_is_dropped(self):
        for rank in range(SIZE):
            alone = dist.new_group([rank])
            if rank == self.rank:
                outputs = [torch.zeros(2), torch.zeros(2, 2).t()]
                for output in outputs:
                    dist.all_gather([output], torch.ones(output.shape), group=alone, async_op=True)
                    self.assertTensor(output, 1)

    def test_sparse_tensors_of_a_dtype_without_arithmetic(self):
        tensor = torch.eye(3, dtype=torch.int16).to_sparse()
        dist.all_reduce(tensor)
        self.assertTensor(tensor.to_dense(), 2 * torch.eye(3, dtype=torch.int16))

    def test_lists_where_autocast_has_another_dtype(self):
        outputs = [torch.zeros(2, dtype=torch.float16) for _ in range(2)]
        with torch.autocast('cpu', dtype=torch.bfloat16):
            dist.all_to_all(outputs, [torch.full((2,), self.rank, dtype=torch.float16) for _ in range(2)])
        self.assertEqual([output.tolist() for output in outputs], [[0, 0], [1, 1]])

    def test_sparse_tensors_are_not_coalesced(self):
        group = dist.new_group()
        sparse, dense = torch.eye(3).to_sparse(), torch.ones(3)
        group._start_coalescing(torch.device('cpu'))
        with self.assertRaisesRegex(ValueError, 'sparse tensors cannot be coalesced'):
            group.allreduce([sparse])
        group.allreduce([dense])
        group._end_coalescing(torch.device('cpu')).wait()
        self.assertTensor(dense, 2)
        dist.destroy_process_group(group)

    def test_lists_of_objects(self):
        objects = ['a', (1, 2)] if self.rank == 1 else [None, None]
        dist.broadcast_object_list(objects, src=1)
        self.assertEqual(objects, ['a', (1, 2)])
        if self.rank == 0:
            dist.send_object_list(['x', 7], 1)
        else:
            dist.recv_object_list(objects, 0)
            self.assertEqual(objects, ['x', 7])

    def test_messages(self):
        if self.rank == 0:
            dist.send(torch.ones(3), 1, tag=5)
            dist.send(torch.full((3,), 2.), 1, tag=4)
        else:
            tensor = torch.zeros(3, 2)[:, 0]
            dist.recv(tensor, 0, tag=4)
            self.assertTensor(tensor, 2)
            dist.recv(tensor, 0, tag=5)
            self.assertTensor(tensor, 1)

    def test_a_message_of_another_size_is_an_error(self):
        if self.rank == 0:
            dist.send(torch.ones(2), 1)
        else:
            with self.assertRaisesRegex(ValueError, '8 bytes came from rank 0, with tag 0, for a tensor of 12 bytes'):
                dist.recv(torch.zeros(3), 0)

    def test_batches_of_messages(self):
        received = torch.zeros(3, 2)[:, 0]
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, self.peer),
                                        dist.P2POp(dist.isend, torch.full((3,), float(self.rank)), self.peer)])
        for work in works:
            work.wait()
        self.assertTensor(received, self.peer)

    def test_coalescing(self):
        for device in (None, torch.device('cpu')):
            tensors = [torch.ones(3), torch.ones(4, 2)[:, 0]]
            with _coalescing_manager(device=device):
                for tensor in tensors:
                    dist.all_reduce(tensor)
            for tensor in tensors:
                self.assertTensor(tensor, 2)
            outputs = [torch.zeros(2), torch.zeros(4)]
            with _coalescing_manager(device=device, async_ops=True) as manager:
                for output in outputs:
                    dist.all_gather_into_tensor(output, torch.full((output.numel() // 2,), float(self.rank)))
            manager.wait()
            self.assertTensor(outputs[1], torch.tensor([0., 0, 1, 1]))
            output = torch.zeros(2)
            with _coalescing_manager(device=device):
                dist.reduce_scatter_tensor(output, torch.arange(4.))
            self.assertTensor(output, torch.tensor([4., 6.] if self.rank else [0., 2.]))

    def test_coalescing_of_calls_that_have_no_list(self):
        tensors = [torch.full((3,), float(self.rank + i)) for i in range(3)]
        with _coalescing_manager(device=torch.device('cpu')):
            for tensor in tensors:
                dist.broadcast(tensor, 1)
        for i, tensor in enumerate(tensors):
            self.assertTensor(tensor, 1 + i)

    def test_a_coalescing_block_that_raises_leaves_the_group_usable(self):
        group = dist.new_group()
        with self.assertRaises(KeyError):
            with _coalescing_manager(group=group, device=torch.device('cpu')):
                dist.broadcast(torch.zeros(3), 0, group=group)
                raise KeyError('in the middle')
        dist.distributed_c10d._world.pg_coalesce_state.clear()  # c10d's own part is left as it was
        tensor = torch.ones(3)
        with _coalescing_manager(group=group, device=torch.device('cpu')):
            dist.all_reduce(tensor, group=group)
        self.assertTensor(tensor, 2)
        dist.destroy_process_group(group)

    def test_barriers(self):
        dist.barrier()
        dist.monitored_barrier(timeout=seconds(30), wait_all_ranks=True)
        if self.rank == 0:
            with self.assertRaisesRegex(dist.DistBackendError, 'Rank 1 failed to pass monitoredBarrier') as raised:
                dist.monitored_barrier(timeout=seconds(.2), wait_all_ranks=True)
            self.assertEqual(raised.exception.failed_rank, 1)
        dist.barrier()
        if self.rank == 1:  # the barrier that rank 0 has left
            with self.assertRaisesRegex(dist.DistBackendError, 'came when it was over'):
                dist.monitored_barrier(timeout=seconds(30))
        dist.monitored_barrier(timeout=seconds(30))


class Groups(Case):
    def sum_in(self, group):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        return tensor[0].item()

    def test_new_groups(self):
        both, alone = dist.new_group([1, 0]), [dist.new_group([rank]) for rank in range(SIZE)]
        self.assertEqual(self.sum_in(both), 2)
        self.assertEqual(self.sum_in(alone[self.rank]), 1)
        for group in (both, alone[self.rank]):
            dist.destroy_process_group(group)

    def test_split_group(self):
        both = dist.split_group(split_ranks=[[1, 0]], timeout=seconds(30))
        self.assertEqual(dist.get_rank(both), self.peer)
        self.assertEqual(self.sum_in(both), 2)
        within = dist.split_group(both, split_ranks=[[0], [1]])
        self.assertEqual(self.sum_in(within), 1)
        self.assertEqual(dist.get_process_group_ranks(within), [self.rank])
        if self.rank == 1:
            self.assertEqual(self.sum_in(dist.split_group(split_ranks=[[1]])), 1)
        else:
            self.assertIs(dist.split_group(split_ranks=[[1]]), dist.GroupMember.NON_GROUP_MEMBER)
        self.assertEqual(self.sum_in(None), 2)

    def test_groups_are_split_from_a_world_with_a_device(self):
        world = dist.group.WORLD
        world.bound_device_id = torch.device('cpu', 0)
        try:
            both, alone = dist.new_group([0, 1]), [dist.new_group([rank]) for rank in range(SIZE)]
            self.assertEqual(self.sum_in(both), 2)
            self.assertEqual(self.sum_in(alone[self.rank]), 1)
        finally:
            world.bound_device_id = None

    def test_a_group_may_be_made_again_under_one_name(self):
        for i in range(3):
            group = dist.new_group(use_local_synchronization=True)
            self.assertEqual(self.sum_in(group), 2)
            dist.destroy_process_group(group)

    def test_one_back_end_for_each_device(self):
        group = dist.new_group(backend='cpu:lockstep')
        self.assertEqual(self.sum_in(group), 2)

    def test_debug_level_detail(self):
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        try:
            group = dist.new_group()
            gc.collect()
            self.assertEqual(self.sum_in(group), 2)
            with _coalescing_manager(group=group, device=torch.device('cpu')):
                dist.all_reduce(torch.ones(3), group=group)
        finally:
            dist.set_debug_level(dist.DebugLevel.OFF)

    def test_groups_in_threads(self):
        groups = [dist.new_group() for _ in range(2)]
        sums = [0, 0]

        def use(i):
            for _ in range(50):
                sums[i] += self.sum_in(groups[i])
        threads = [threading.Thread(target=use, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sums, [100, 100])


class Errors(Case):
    def test_dtypes_that_lockstep_has_not(self):
        with self.assertRaisesRegex(ValueError, r'torch.int16.*convert'):
            dist.all_reduce(torch.zeros(2, dtype=torch.int16))

    def test_outputs_with_gaps(self):
        with self.assertRaisesRegex(ValueError, r'shape \(4,\) with strides \(2,\) is not contiguous.*contiguous\(\)'):
            dist.all_gather_into_tensor(torch.zeros(8)[::2], torch.zeros(2))

    def test_other_devices(self):
        backend = dist.group.WORLD._get_backend(torch.device('cpu'))
        with self.assertRaisesRegex(ValueError, 'a tensor on meta'):
            backend.broadcast([torch.zeros(2, device='meta')], dist.BroadcastOptions())

    def test_lists_that_do_not_fit(self):
        with self.assertRaisesRegex(ValueError, 'a list of 1 tensors for 2 ranks'):
            dist.all_gather([torch.zeros(2)], torch.zeros(2))
        with self.assertRaisesRegex(ValueError, r'shape \(3,\) in the list, beside a torch.float32 of shape \(2,\)'):
            dist.all_gather([torch.zeros(3), torch.zeros(3)], torch.zeros(2))
        with self.assertRaisesRegex(ValueError, 'is 3 elements|elements'):
            dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(2))
        with self.assertRaisesRegex(ValueError, 'does not divide equally across group size: 3 rows for 2 ranks'):
            dist.all_to_all_single(torch.zeros(3, 2), torch.zeros(3, 2))
        with self.assertRaisesRegex(ValueError, "doesn't match total dim 0 size"):
            dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [1, 1], [2, 2])

    def test_reductions_that_do_not_fit(self):
        with self.assertRaisesRegex(ValueError, 'the operation and is not defined for f32'):
            dist.all_reduce(torch.zeros(2), op=dist.ReduceOp.BAND)

    def test_ranks_that_differ_are_told_who_called_what(self):
        group = dist.new_group()
        with self.assertRaisesRegex(dist.DistBackendError, 'rank 1'):
            dist.all_reduce(torch.zeros(2 + self.rank), group=group)
            dist.all_reduce(torch.zeros(2), group=group)
        dist.destroy_process_group(group)

    def test_a_collective_that_a_rank_does_not_call_ends_at_the_deadline(self):
        group = dist.new_group(timeout=seconds(.5))
        if self.rank == 0:
            with self.assertRaisesRegex(dist.DistBackendError, 'Timed out.*rank 1 .* has not called it') as raised:
                dist.all_reduce(torch.zeros(2), group=group)
            self.assertEqual(raised.exception.failed_rank, 1)
        dist.barrier()
        dist.destroy_process_group(group)

    def test_a_timeout_may_be_changed(self):
        group = dist.new_group()
        dist.set_timeout(seconds(.3), group)
        if self.rank == 0:
            with self.assertRaisesRegex(dist.DistBackendError, 'Timed out'):
                dist.recv(torch.zeros(2), 1, group=group)
        dist.barrier()
        dist.destroy_process_group(group)

    def test_abort_fails_what_is_in_flight_on_every_rank(self):
        group = dist.new_group()
        if self.rank == 0:
            work = dist.all_reduce(torch.zeros(2), group=group, async_op=True)
            dist.send(torch.zeros(1), 1)
            with self.assertRaisesRegex(dist.DistBackendError, 'the process group was aborted') as raised:
                work.wait()
            self.assertEqual(raised.exception.failed_rank, 1)
            with self.assertRaisesRegex(dist.DistBackendError, 'the process group was aborted'):
                dist.all_reduce(torch.zeros(2), group=group)
        else:
            dist.recv(torch.zeros(1), 0)
            _abort_process_group(group)
        dist.barrier()

    def test_a_future_fails_with_its_work(self):
        group = dist.new_group(timeout=seconds(.5))
        if self.rank == 0:
            future = dist.all_reduce(torch.zeros(2), group=group, async_op=True).get_future()
            with self.assertRaisesRegex(RuntimeError, 'rank 1 .* has not called it'):
                future.wait()
        dist.barrier()

    def test_a_destroyed_group(self):
        group = dist.new_group()
        backend = group._get_backend(torch.device('cpu'))
        dist.destroy_process_group(group)
        with self.assertRaisesRegex(dist.DistBackendError, 'closed'):
            backend.barrier(dist.BarrierOptions())


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def batch(rank):
    torch.manual_seed(100 + rank)
    return torch.randn(6, 8)


def gradients_alone(net):
    """What two ranks average, computed by one."""
    (sum(net(batch(rank)).square().mean() for rank in range(SIZE)) / SIZE).backward()
    return [parameter.grad for parameter in net.parameters()]


class Frameworks(Case):
    def check(self, net, expected):
        for parameter, gradient in zip(net.parameters(), expected):
            torch.testing.assert_close(parameter.grad, gradient)

    def test_sparse_gradients(self):
        embedding = torch.nn.Embedding(10, 3, sparse=True)
        net = torch.nn.parallel.DistributedDataParallel(embedding)
        net(torch.tensor([self.rank, 5])).sum().backward()
        self.assertTensor(embedding.weight.grad.to_dense()[[0, 1, 5, 7]], torch.tensor([[.5], [.5], [1.], [0.]]))

    def test_replicate(self):
        net = replicate(model())
        net(batch(self.rank)).square().mean().backward()
        self.check(net, gradients_alone(model()))

    def test_fsdp2(self):
        net = model()
        for layer in net:
            fully_shard(layer)
        fully_shard(net)
        optimizer = torch.optim.SGD(net.parameters(), .1)
        net(batch(self.rank)).square().mean().backward()
        optimizer.step()
        alone = model()
        gradients_alone(alone)
        torch.optim.SGD(alone.parameters(), .1).step()
        for parameter, expected in zip(net.parameters(), alone.parameters()):
            torch.testing.assert_close(parameter.full_tensor(), expected)

    def test_dtensor(self):
        mesh = init_device_mesh('cpu', (SIZE,))
        whole = torch.arange(12.).reshape(6, 2)
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        self.assertTensor(rows.to_local(), whole[3 * self.rank:3 * self.rank + 3])
        self.assertTensor(rows.redistribute(mesh, [Shard(1)]).to_local(), whole[:, self.rank:self.rank + 1])
        self.assertTensor(rows.redistribute(mesh, [Replicate()]).to_local(), whole)
        self.assertTensor((rows @ distribute_tensor(torch.eye(2), mesh, [Replicate()])).full_tensor(), whole)
        total = rows.sum()
        self.assertEqual(total.placements, (Partial(),))
        self.assertTensor(total.full_tensor(), whole.sum())
        uneven = distribute_tensor(torch.arange(3.), mesh, [Shard(0)])
        self.assertTensor(uneven.full_tensor(), torch.arange(3.))

    def test_a_mesh_of_two_dimensions(self):
        mesh = init_device_mesh('cpu', (1, SIZE), mesh_dim_names=('dp', 'tp'))
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=mesh.get_group('tp'))
        dist.all_reduce(tensor, group=mesh.get_group('dp'))
        self.assertTensor(tensor, 2)

    def test_functional_collectives(self):
        group, mine = dist.group.WORLD, torch.full((2,), 1. + self.rank)
        self.assertTensor(funcol.all_reduce(mine, 'sum', group) + 0, 3)
        self.assertTensor(funcol.all_gather_single(mine, 0, group) + 0, torch.tensor([1., 1, 2, 2]))
        self.assertTensor(funcol.reduce_scatter_single(mine, 'avg', 0, group) + 0, 1.5)
        self.assertTensor(funcol.broadcast(mine, 1, group) + 0, 2)
        self.assertTensor(funcol.all_to_all_single(mine, None, None, group) + 0, torch.tensor([1., 2.]))
        for tensor in funcol.all_reduce_coalesced([mine, mine], 'sum', group):
            self.assertTensor(tensor + 0, 3)
        for tensor in funcol.all_gather_single_coalesced([mine, mine], group):
            self.assertTensor(tensor + 0, torch.tensor([1., 1, 2, 2]))
        for tensor in funcol.reduce_scatter_single_coalesced([mine, mine], 'sum', [0, 0], group):
            self.assertTensor(tensor + 0, 3)

    def test_compiled_steps(self):
        for backend in ('aot_eager', *(('inductor',) if shutil.which('g++') else ())):
            net, alone = model(), model()

            @torch.compile(backend=backend, fullgraph=True)
            def step(parameters):
                averages = [funcol.all_reduce(parameter.grad, 'avg', dist.group.WORLD) for parameter in parameters]
                return [parameter - .1 * average for parameter, average in zip(parameters, averages)]

            net(batch(self.rank)).square().mean().backward()
            gradients = gradients_alone(alone)
            with torch.no_grad():
                for parameter, stepped, gradient in zip(alone.parameters(), step(list(net.parameters())), gradients):
                    torch.testing.assert_close(stepped, parameter - .1 * gradient)

    def test_compiled_module_in_distributed_data_parallel(self):
        net = torch.compile(torch.nn.parallel.DistributedDataParallel(model()), backend='aot_eager')
        for _ in range(3):
            net.zero_grad()
            net(batch(self.rank)).square().mean().backward()
            self.check(net, gradients_alone(model()))

    def test_compiled_collectives(self):
        def call(x):
            gathered, summed, world = x.new_empty(SIZE * len(x)), x.clone(), dist.group.WORLD
            dist.all_gather_into_tensor(gathered, x)
            dist.all_reduce(summed)
            return (gathered, summed, funcol.all_gather_tensor(x, 0, world), funcol.broadcast(x, 0, world),
                    funcol.reduce_scatter_tensor(x, 'sum', 0, world), funcol.all_to_all_single(x, None, None, world))

        x = torch.arange(2. * SIZE) + 10 * self.rank
        found = [each.tolist() for each in torch.compile(call, backend='aot_eager', fullgraph=True)(x)]
        all_of_0, all_of_1 = [0, 1, 2, 3], [10, 11, 12, 13]
        self.assertEqual(found, [all_of_0 + all_of_1, [10, 12, 14, 16], all_of_0 + all_of_1, all_of_0,
                                 [[10, 12], [14, 16]][self.rank], [[0, 1, 10, 11], [2, 3, 12, 13]][self.rank]])

    def test_processes_of_a_data_loader(self):
        loader = torch.utils.data.DataLoader(list(range(20)), batch_size=5, num_workers=2, multiprocessing_context='fork')
        for numbers in loader:
            total = numbers.sum()
            dist.all_reduce(total)
            self.assertTensor(total, 2 * numbers.sum())

    def test_the_child_of_a_fork_is_told_that_the_group_is_not_its_own(self):
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(torch.zeros(2))
            except dist.DistBackendError as error:
                os._exit(0 if 'fork' in str(error) else 2)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        dist.barrier()


if __name__ == '__main__':
    os.environ['TORCH_FR_BUFFER_SIZE'] = '0'  # the flight recorder's hook would complete works that are dropped
    ranks.main(SIZE)
