"""The back end "lockstep" and DistributedDataParallel with tensors on a GPU, which two ranks share.

Exit status 77, and why, where there is no GPU or no PyTorch that lockstep.torch takes. DEVICE_UNDER_TEST=cpu runs the same tests with
tensors of the CPU.
"""

import copy
import datetime
import os
import sys
import unittest

NOTHING_HERE = 77
KIND = os.environ.get('DEVICE_UNDER_TEST', 'cuda')

try:
    import ranks

    import lockstep.torch
except ImportError as error:
    print(error)
    sys.exit(NOTHING_HERE)

import torch  # noqa: E402

if KIND == 'cuda' and not torch.cuda.is_available():
    print('PyTorch sees no GPU here')
    sys.exit(NOTHING_HERE)

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.distributed_c10d import _coalescing_manager  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as TorchDDP  # noqa: E402
from torch.nn.parallel.distributed import _MixedPrecision  # noqa: E402

from lockstep.torch import DistributedDataParallel  # noqa: E402

STEPS = 20
DEVICE = torch.device(KIND, 0) if KIND == 'cuda' else torch.device(KIND)


def setUpModule():
    global RANK, OTHER, GLOO
    torch.set_num_threads(1)
    # Both models of a comparison are to compute the same bits.
    os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'
    torch.use_deterministic_algorithms(True)
    if KIND == 'cuda':
        torch.cuda.set_device(DEVICE)
    dist.init_process_group('lockstep', timeout=datetime.timedelta(seconds=60))
    RANK = dist.get_rank()
    OTHER = 1 - RANK
    GLOO = dist.new_group(backend='gloo')


def tearDownModule():
    dist.destroy_process_group()


def full(value, *shape, **options):
    return torch.full(shape or (3,), value, device=DEVICE, **options)


class Case(unittest.TestCase):

    def assert_tensor(self, tensor, expected):
        self.assertEqual(tensor.device.type, KIND)
        torch.testing.assert_close(tensor.cpu(), torch.as_tensor(expected, dtype=tensor.dtype).expand_as(tensor), rtol=0, atol=0)


class BackEnd(Case):

    def test_all_reduce_of_every_dtype(self):
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8,
                      torch.complex64):
            tensor = full(RANK + 1, 3, 5, dtype=dtype)
            dist.all_reduce(tensor)
            self.assert_tensor(tensor, 3)

    def test_every_reduction(self):
        for op, inputs, expected in ((dist.ReduceOp.AVG, (1., 2.), 1.5), (dist.ReduceOp.PRODUCT, (3, 5), 15),
                                     (dist.ReduceOp.MIN, (3, 5), 3), (dist.ReduceOp.MAX, (3, 5), 5), (dist.ReduceOp.BOR, (6, 3), 7),
                                     (dist._make_nccl_premul_sum(.5), (1., 2.), 1.5)):
            tensor = full(inputs[RANK], 1)
            dist.all_reduce(tensor, op=op)
            self.assert_tensor(tensor, expected)

    def test_the_other_collectives(self):
        mine, both = full(float(RANK), 2), [full(0., 2), full(0., 2)]
        dist.broadcast(tensor := full(float(RANK)), 1)
        self.assert_tensor(tensor, 1)
        dist.all_gather(both, mine)
        self.assert_tensor(torch.stack(both), torch.tensor([[0.], [1.]]))
        dist.all_gather_into_tensor(into := full(0., 4), mine)
        self.assert_tensor(into, torch.tensor([0., 0, 1, 1]))
        dist.reduce_scatter_tensor(mine, torch.arange(4., device=DEVICE))
        self.assert_tensor(mine, torch.tensor([4., 6.] if RANK else [0., 2.]))
        dist.scatter(mine, [full(5., 2), full(6., 2)] if RANK == 1 else None, src=1)
        self.assert_tensor(mine, 5 + RANK)
        dist.gather(mine, both if RANK == 0 else None, dst=0)
        if RANK == 0:
            self.assert_tensor(torch.stack(both), torch.tensor([[5.], [6.]]))
        dist.all_to_all_single(into, torch.arange(4., device=DEVICE) + 10 * RANK)
        self.assert_tensor(into, torch.tensor([0., 1, 10, 11]) + 2 * RANK)
        dist.reduce(total := full(1.), dst=1)
        self.assert_tensor(total[:1], 2 if RANK == 1 else 1)
        dist.barrier()

    def test_tensors_with_gaps(self):
        whole = full(1., 4, 6)
        dist.all_reduce(whole[:, ::2])
        self.assert_tensor(whole[:, ::2], 2)
        self.assert_tensor(whole[:, 1::2], 1)

    def test_asynchronous_works_and_futures(self):
        tensor = full(1., 1000)
        work = dist.all_reduce(tensor, async_op=True)
        self.assertTrue(work.wait())
        self.assert_tensor(tensor * 2, 4)
        summed = dist.all_reduce(full(1., 4, 2)[:, :1], async_op=True).get_future().then(lambda future: future.value()[0] + 1).wait()
        self.assert_tensor(summed, 3)

    def test_works_that_nobody_keeps(self):
        for _ in range(20):
            dist.all_reduce(full(1., 100_000), async_op=True)
            self.assert_tensor(full(7., 100_000), 7)
        dist.barrier()

    @unittest.skipIf(KIND == 'cpu', 'the CPU has no streams')
    def test_a_collective_comes_behind_what_its_stream_computes(self):
        side = torch.cuda.Stream()
        for asynchronous in (False, True):
            with torch.cuda.stream(side):
                factor = torch.eye(2000, device=DEVICE)
                tensor = torch.ones(2000, 2000, device=DEVICE)
                for _ in range(20):
                    tensor = tensor @ factor
                work = dist.all_reduce(tensor, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                tensor = tensor @ factor
            torch.cuda.current_stream().wait_stream(side)
            self.assert_tensor(tensor, 2)

    def test_objects(self):
        objects = [None, None]
        dist.all_gather_object(objects, {'rank': RANK})
        self.assertEqual(objects, [{'rank': 0}, {'rank': 1}])
        objects = ['a', full(7.)] if RANK == 1 else [None, None]
        dist.broadcast_object_list(objects, src=1, device=DEVICE)
        self.assertEqual(objects[0], 'a')
        self.assert_tensor(objects[1], 7)

    def test_messages(self):
        if RANK == 0:
            dist.send(full(1.), 1, tag=5)
            dist.send(full(2.), 1, tag=4)
        else:
            tensor = full(0., 3, 2)[:, 0]
            dist.recv(tensor, 0, tag=4)
            self.assert_tensor(tensor, 2)
            dist.recv(tensor, 0, tag=5)
            self.assert_tensor(tensor, 1)
        received = full(0.)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, OTHER), dist.P2POp(dist.isend, full(float(RANK)), OTHER)]):
            work.wait()
        self.assert_tensor(received, OTHER)

    def test_coalescing(self):
        tensors = [full(1.), full(1., 4)]
        with _coalescing_manager(device=DEVICE):
            for tensor in tensors:
                dist.all_reduce(tensor)
        for tensor in tensors:
            self.assert_tensor(tensor, 2)
        outputs = [full(0., 2), full(0., 4)]
        with _coalescing_manager(device=DEVICE, async_ops=True) as manager:
            for output in outputs:
                dist.all_gather_into_tensor(output, full(float(RANK), output.numel() // 2))
        manager.wait()
        self.assert_tensor(outputs[1], torch.tensor([0., 0, 1, 1]))

    def test_groups(self):
        for group in (dist.new_group([1, 0]), dist.split_group(split_ranks=[[1, 0]])):
            tensor = full(1.)
            dist.all_reduce(tensor, group=group)
            self.assert_tensor(tensor, 2)
            dist.destroy_process_group(group)

    def test_tensors_of_the_cpu_beside_those_of_the_gpu(self):
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        torch.testing.assert_close(tensor, torch.full((3,), 2.))


class Model(nn.Module):

    def __init__(self, unused=False):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 3)
        self.unused = nn.Linear(2, 2) if unused else None

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 8, generator=generator).to(DEVICE)


def train(model, micro=1):
    """micro: backwards a step, all but the last without averaging."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        for part in range(micro):
            model.require_backward_grad_sync = part + 1 == micro
            model(batch(step * micro + part, RANK)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class DataParallel(Case):

    def modules(self, **options):
        torch.manual_seed(11)
        module = Model(**options).to(DEVICE)
        return module, copy.deepcopy(module)

    def assert_same(self, ours, theirs):
        theirs = theirs.state_dict()
        for name, value in ours.state_dict().items():
            self.assertEqual(value.device.type, KIND)
            self.assertTrue(torch.equal(value, theirs[name]), f'{name}: {(value - theirs[name]).abs().max()}')

    def test_torchs_over_the_back_end(self):
        for options in ({}, {'gradient_as_bucket_view': True}, {'static_graph': True}):
            with self.subTest(**options):
                one, other = self.modules()
                over_ours, over_gloo = TorchDDP(one, **options), TorchDDP(other, process_group=GLOO, **options)
                train(over_ours), train(over_gloo)
                self.assert_same(over_ours, over_gloo)

    def test_ours_takes_torchs_steps(self):
        for options in ({}, {'gradient_as_bucket_view': True}, {'static_graph': True}, {'bucket_cap_mb': 0.0001},
                        {'find_unused_parameters': True}, {'find_unused_parameters': True, 'gradient_as_bucket_view': True}):
            for micro in (1, 3):
                if micro > 1 and options.get('static_graph'):  # torch's first backward of a static graph cannot be without averaging
                    continue
                with self.subTest(micro=micro, **options):
                    one, other = self.modules(unused='find_unused_parameters' in options)
                    ours, theirs = DistributedDataParallel(one, **options), TorchDDP(other, process_group=GLOO, **options)
                    train(ours, micro), train(theirs, micro)
                    self.assert_same(ours, theirs)
                    ours.close()

    def test_with_device_ids(self):
        if KIND == 'cpu':
            with self.assertRaisesRegex(lockstep.InvalidArgument, 'for a module on one GPU'):
                DistributedDataParallel(self.modules()[0], device_ids=[0])
            return
        one, other = self.modules()
        ours, theirs = DistributedDataParallel(one, device_ids=[0]), TorchDDP(other, device_ids=[0], process_group=GLOO)
        for model in (ours, theirs):
            model(batch(0, RANK).cpu()).square().mean().backward()
        for mine, its in zip(ours.parameters(), theirs.parameters()):
            self.assertTrue(torch.equal(mine.grad, its.grad))

    def test_over_a_group_of_gloo(self):
        one, other = self.modules()
        ours, theirs = DistributedDataParallel(one, process_group=GLOO), TorchDDP(other, process_group=GLOO)
        train(ours), train(theirs)
        self.assert_same(ours, theirs)

    def test_a_hook(self):
        one, other = self.modules()
        ours, theirs = DistributedDataParallel(one), TorchDDP(other, process_group=GLOO)
        ours.register_comm_hook(None, 'bf16_compress')
        train(ours), train(theirs)
        for mine, its in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(mine, its, rtol=0.05, atol=0.02)

    def test_mixed_precision(self):
        one, other = self.modules()
        seen = []
        one.first.register_forward_hook(lambda _, given, made: seen.append(made.dtype))
        low = torch.bfloat16
        ours = DistributedDataParallel(one, mixed_precision=_MixedPrecision(param_dtype=low, reduce_dtype=low, buffer_dtype=low))
        theirs = TorchDDP(other, process_group=GLOO)
        train(ours), train(theirs)
        self.assertEqual(set(seen), {low})
        for mine, its in zip(ours.parameters(), theirs.parameters()):
            self.assertEqual(mine.dtype, torch.float32)
            torch.testing.assert_close(mine, its, rtol=0.1, atol=0.05)

    def test_a_missing_gradient_is_named(self):
        ours = DistributedDataParallel(self.modules(unused=True)[0])
        with self.assertRaisesRegex(lockstep.FailedPrecondition, 'unused'):
            ours(batch(0, RANK)).sum().backward()
            if KIND == 'cuda':  # errors of a step on a stream come with a later one
                for step in range(3):
                    ours(batch(step, RANK)).sum().backward()

    def test_optimizers_in_the_backward_are_refused_on_a_gpu(self):
        module = self.modules()[0]
        if KIND == 'cuda':
            with self.assertRaisesRegex(lockstep.Unimplemented, 'optimizers in backward on a GPU'):
                DistributedDataParallel(module, optimizer_step=lambda parameters: None)
        else:
            DistributedDataParallel(module, optimizer_step=lambda parameters: None).close()

    def test_fully_sharded(self):
        torch.manual_seed(11)
        whole = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(DEVICE)
        alone = copy.deepcopy(whole)
        mesh = init_device_mesh(KIND, (2,))
        fully_shard(whole[0], mesh=mesh), fully_shard(whole, mesh=mesh)
        for step in range(3):
            whole(batch(step, RANK)).square().mean().backward()
            sum(alone(batch(step, rank)).square().mean() for rank in range(2)).div(2).backward()
            for model in (whole, alone):
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad
                        parameter.grad = None
        for sharded, parameter in zip(whole.parameters(), alone.parameters()):
            torch.testing.assert_close(sharded.full_tensor(), parameter)


if __name__ == '__main__':
    ranks.main(2)
