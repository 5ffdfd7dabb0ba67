"""The c10d back end in C++: built once, however many processes want it; equal to the one in Python; with works that tell all.

It builds in a cache folder of its own, and then runs itself as two ranks: those of the tests, one that dies, and two that leave early.
"""

import contextlib
import datetime
import os
import signal
import sys
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import lockstep.run
import programs
from lockstep.torch import cpp

CPU = torch.device('cpu')
RANK = int(os.environ.get('RANK', 0))


def python_group(ranks=(0, 1)):
    """A group of the back end in Python on these ranks. On the others it is of the one in C++: they understand each other."""
    real = cpp.over
    if RANK in ranks:
        cpp.over = lambda backend: backend
    try:
        return dist.new_group(backend='lockstep')
    finally:
        cpp.over = real


def numbers(*shape, dtype=torch.float32):
    """Small integers, another set on each rank, so that every sum is exact."""
    generator = torch.Generator().manual_seed(7 * RANK + len(shape))
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


# ---- What is compared: name -> call(group), which returns the tensors that were written.

def all_reduce(op=dist.ReduceOp.SUM, dtype=torch.float32, transposed=False):
    def call(group):
        tensor = numbers(3, 4, dtype=dtype)
        tensor = tensor.t() if transposed else tensor
        dist.all_reduce(tensor, op, group)
        return [tensor]
    return call


def all_reduce_coalesced(group):
    tensors = [numbers(5), numbers(2, 3).t(), numbers(0)]
    with dist._coalescing_manager(group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    return tensors


def all_reduce_sparse(group):
    tensor = torch.sparse_coo_tensor([[RANK, 3, 3]], numbers(3, 2), (5, 2))
    dist.all_reduce(tensor, group=group)
    return [tensor.to_dense(), torch.tensor(tensor.is_coalesced())]


def all_reduce_sparse_empty(group):
    tensor = torch.sparse_coo_tensor(torch.zeros(2, RANK, dtype=torch.int64), numbers(RANK), (5, 2))
    dist.all_reduce(tensor, group=group)
    return [tensor.to_dense()]


def broadcast(group):
    tensor = numbers(4, 4).t()
    dist.broadcast(tensor, 1, group)
    return [tensor]


def reduce(group):
    tensor = numbers(6)
    dist.reduce(tensor, 1, group=group)
    return [tensor] if RANK == 1 else []


def all_gather(group):
    outputs = [torch.empty(4, 3).t() for _ in range(2)]
    dist.all_gather(outputs, numbers(3, 4), group)
    return outputs


def all_gather_coalesced(group):
    outputs = [[torch.empty(3), torch.empty(2, 2)] for _ in range(2)]
    dist.all_gather_coalesced(outputs, [numbers(3), numbers(2, 2)], group)
    return [tensor for each in outputs for tensor in each]


def all_gather_into_tensor(group):
    output = torch.empty(6, 2)
    dist.all_gather_into_tensor(output, numbers(3, 2), group)
    return [output]


def all_gather_into_tensor_coalesced(group):
    outputs = [torch.empty(4), torch.empty(6)]
    with dist._coalescing_manager(group):
        for output, size in zip(outputs, (2, 3)):
            dist.all_gather_into_tensor(output, numbers(size), group)
    return outputs


def one_tensor_twice_in_a_list(group):
    tensor, outputs = numbers(2), [torch.empty(4), torch.empty(4)]
    with dist._coalescing_manager(group):
        for output in outputs:
            dist.all_gather_into_tensor(output, tensor, group)
    return outputs


def gather(group):
    outputs = [torch.empty(3) for _ in range(2)] if RANK == 1 else None
    dist.gather(numbers(3), outputs, 1, group)
    return outputs or []


def scatter(group):
    output = torch.empty(2, 3).t()
    dist.scatter(output, [numbers(3, 2), numbers(3, 2) + 1] if RANK == 0 else None, 0, group)
    return [output]


def reduce_scatter(group):
    output = torch.empty(3)
    dist.reduce_scatter(output, [numbers(3), numbers(3) + 1], group=group)
    return [output]


def reduce_scatter_tensor(group):
    output = torch.empty(2, 3)
    dist.reduce_scatter_tensor(output, numbers(4, 3), dist.ReduceOp.MAX, group)
    return [output]


def reduce_scatter_tensor_coalesced(group):
    outputs = [torch.empty(2), torch.empty(3)]
    with dist._coalescing_manager(group):
        for output in outputs:
            dist.reduce_scatter_tensor(output, numbers(2 * output.numel()), group=group)
    return outputs


def all_to_all_single(group):
    output = torch.empty(4, 3)
    dist.all_to_all_single(output, numbers(4, 3), group=group)
    return [output]


def all_to_all_single_split(group):
    output = torch.empty(2 * (RANK + 1), 3)
    dist.all_to_all_single(output, numbers(3, 3), [RANK + 1, RANK + 1], [1, 2], group)
    return [output]


def all_to_all(group):
    outputs = [torch.empty(RANK + 1, 2), torch.empty(RANK + 1)]
    dist.all_to_all(outputs, [numbers(1, 2) if RANK == 0 else numbers(1), numbers(2, 2) if RANK == 0 else numbers(2)], group)
    return outputs


def messages(group):
    tensor = numbers(3, 2).t()
    if RANK == 0:
        dist.send(tensor, 1, group, tag=3)
        dist.recv(tensor, 1, group)
    else:
        received = torch.empty(3, 2).t()
        dist.recv(received, 0, group, tag=3)
        dist.send(received + 1, 0, group)
    return [tensor]


def batch_of_messages(group):
    outputs = [torch.empty(2, 2).t(), torch.empty(3)]
    calls = [dist.P2POp(dist.irecv, output, 1 - RANK, group) for output in outputs]
    calls += [dist.P2POp(dist.isend, tensor, 1 - RANK, group) for tensor in (numbers(2, 2).t(), numbers(3))]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return outputs


def objects(group):
    found = [None, None]
    dist.all_gather_object(found, {'rank': RANK}, group)
    return [torch.tensor([each['rank'] for each in found])]


def functional(group):
    import torch.distributed._functional_collectives as functional
    tensor = functional.all_reduce(numbers(4), 'sum', group)
    gathered = functional.all_gather_tensor(numbers(2), 0, group)
    return [tensor + 0, gathered + 0]


def ddp(group):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    model = DistributedDataParallel(model, process_group=group)
    model(numbers(6, 4)).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def ddp_sparse(group):
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Embedding(6, 3, sparse=True), process_group=group)
    model(torch.tensor([RANK, 4])).sum().backward()
    return [model.module.weight.grad.to_dense()]


def powersgd(group):
    """A hook that waits for a future in the callback of another."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(64, 64), process_group=group)
    model.register_comm_hook(PowerSGDState(group, 1, start_powerSGD_iter=2, min_compression_rate=1), powerSGD_hook)
    for _ in range(4):
        model.zero_grad()
        model(numbers(6, 64)).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


OPS = dist.ReduceOp
CALLS = {
    **{f'all_reduce {op}': all_reduce(op) for op in (OPS.SUM, OPS.PRODUCT, OPS.MIN, OPS.MAX, OPS.AVG)},
    **{f'all_reduce {op}': all_reduce(op, torch.int64) for op in (OPS.BAND, OPS.BOR, OPS.BXOR)},
    **{f'all_reduce {dtype}': all_reduce(dtype=dtype) for dtype in (
        torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int8, torch.int32, torch.int64, torch.complex64, torch.bool)},
    'all_reduce by a factor': all_reduce(dist._make_nccl_premul_sum(0.5)), 'all_reduce transposed': all_reduce(transposed=True),
    **{call.__name__: call for call in (
        all_reduce_coalesced, all_reduce_sparse, all_reduce_sparse_empty, broadcast, reduce, all_gather, all_gather_coalesced,
        all_gather_into_tensor, all_gather_into_tensor_coalesced, one_tensor_twice_in_a_list,
        gather, scatter, reduce_scatter, reduce_scatter_tensor,
        reduce_scatter_tensor_coalesced, all_to_all_single, all_to_all_single_split, all_to_all, messages, batch_of_messages, objects,
        functional, ddp, ddp_sparse)},
}


class ResultsTest(unittest.TestCase):
    def test_equal_those_of_the_back_end_in_python(self):
        for other, group in (('in Python', python_group()), ('in Python on rank 0 alone', python_group([0]))):
            for name, call in CALLS.items():
                with self.subTest(name, other=other):
                    ours, expected = call(dist.group.WORLD), call(group)
                    self.assertEqual(len(ours), len(expected))
                    for one, two in zip(ours, expected):
                        self.assertTrue(torch.equal(one, two), f'{one} and {two}')
            dist.destroy_process_group(group)

    def test_a_negated_view_is_sent_as_what_it_says(self):
        tensor = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
        self.assertTrue(tensor.is_neg())
        output = torch.empty(4)
        dist.all_gather_into_tensor(output, tensor)
        self.assertEqual(output.tolist(), 2 * [-2, 4])

    def test_hook_that_waits_in_a_callback(self):
        for gradient in powersgd(dist.group.WORLD):
            rows = [torch.empty_like(gradient) for _ in range(2)]
            dist.all_gather(rows, gradient)
            self.assertTrue(torch.equal(*rows))

    def test_split(self):
        group = dist.split_group(split_ranks=[[1, 0]], timeout=datetime.timedelta(seconds=50))
        self.assertEqual(type(group._get_backend(CPU)).__module__, cpp.NAME)
        self.assertEqual(group.rank(), 1 - RANK)
        tensor = torch.tensor([RANK + 1.])
        dist.broadcast(tensor, 1, group)
        self.assertEqual(tensor.item(), 2)
        alone = dist.split_group(split_ranks=[[1]])
        self.assertEqual(alone is not dist.GroupMember.NON_GROUP_MEMBER, RANK == 1)
        for each in (group, alone):
            dist.destroy_process_group(each)


class WorkTest(unittest.TestCase):
    """The other rank starts its part when it gets a message, so that works are seen before they are done."""

    def start_alone(self, start):
        """The work of rank 0, which waits for rank 1, and on rank 1 none."""
        if RANK == 0:
            return start()
        dist.recv(torch.empty(1), 0)
        start().wait()
        return None

    def let_other(self):
        dist.send(torch.zeros(1), 1)

    def test_tells_what_became_of_it(self):
        tensor = torch.tensor([1., 2.])
        work = self.start_alone(lambda: dist.all_reduce(tensor, async_op=True))
        if work:
            self.assertFalse(work.is_completed())
            self.assertIsNone(work.exception())
            self.let_other()
            while not work.is_completed():
                time.sleep(0.001)
            self.assertTrue(work.is_success())
            self.assertIsNone(work.exception())
            self.assertIs(work.result()[0], tensor)
            self.assertEqual(tensor.tolist(), [2, 4])
            self.assertTrue(work.wait())

    def test_completed_means_that_the_results_are_there(self):
        outputs = [torch.zeros(2) for _ in range(2)]
        work = self.start_alone(lambda: dist.all_gather(outputs, torch.ones(2), async_op=True))
        if work:
            self.let_other()
            while not work.is_completed():
                time.sleep(0.001)
            self.assertEqual([output.tolist() for output in outputs], [[1, 1], [1, 1]])

    def test_wait_has_a_timeout_of_its_own(self):
        tensor = torch.ones(1)
        work = self.start_alone(lambda: dist.all_reduce(tensor, async_op=True))
        if work:
            with self.assertRaisesRegex(dist.DistBackendError, 'Timed out waiting: .*not done'):
                work.wait(datetime.timedelta(milliseconds=150))
            self.assertFalse(work.is_completed())
            self.let_other()
            work.wait()
            self.assertEqual(tensor.item(), 2)

    def test_interrupt(self):
        tensor = torch.ones(1)
        work = self.start_alone(lambda: dist.all_reduce(tensor, async_op=True))
        if work:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with self.assertRaises(KeyboardInterrupt):
                work.wait()
            self.let_other()
            work.wait()
            self.assertEqual(tensor.item(), 2)

    def test_interrupt_of_a_synchronous_call(self):
        tensor = torch.ones(1)
        if RANK == 0:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with self.assertRaises(KeyboardInterrupt):
                dist.all_reduce(tensor)
            self.let_other()
        else:
            dist.recv(torch.empty(1), 0)
            dist.all_reduce(tensor)
        dist.barrier()
        self.assertEqual(tensor.item(), 2)

    def test_calls_come_behind_one_that_was_interrupted(self):
        backend, store = dist.group.WORLD._get_backend(CPU), dist.distributed_c10d._get_default_store()
        options = type(backend.options)('lockstep', timeout=datetime.timedelta(seconds=60))
        for name, call in (('monitored_barrier', dist.monitored_barrier), ('split', lambda: backend.split(store, [0, 1], options))):
            with self.subTest(name):
                dist.barrier()
                if RANK == 0:
                    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                    with self.assertRaises(KeyboardInterrupt):
                        call()
                    threading.Timer(0.3, store.set, (name, 'interrupted')).start()
                else:
                    store.wait([name])
                    call()
                tensor = torch.ones(1)
                dist.all_reduce(tensor)
                self.assertEqual(tensor.item(), 2)

    def test_source_rank(self):
        if RANK == 1:
            dist.send(torch.ones(1), 0)
        else:
            work = dist.irecv(torch.empty(1))
            work.wait()
            self.assertEqual(work.source_rank(), 1)
        work = dist.barrier(async_op=True)
        work.wait()
        with self.assertRaisesRegex(ValueError, 'only a receive'):
            work.source_rank()

    def test_future(self):
        tensor = torch.ones(1)
        threads = []
        work = self.start_alone(lambda: dist.all_reduce(tensor, async_op=True))
        if work:
            future = work.get_future()
            doubled = future.then(lambda done: threads.append(threading.get_ident()) or 2 * done.value()[0])
            self.assertFalse(future.done())
            self.let_other()
            self.assertEqual(doubled.wait().item(), 4)
            self.assertTrue(work.is_completed())
            self.assertEqual(len(threads), 1)

    def test_dropped_before_it_is_done(self):
        """The memory stays until it is done."""
        if RANK == 0:
            for size in (4, 100_000):
                dist.all_reduce(torch.ones(size), async_op=True)
                torch.zeros(size)
            self.let_other()
        else:
            dist.recv(torch.empty(1), 0)
            for size in (4, 100_000):
                tensor = torch.ones(size)
                dist.all_reduce(tensor)
                self.assertEqual(tensor.tolist(), size * [2])
        dist.barrier()

    def test_groups_of_two_threads(self):
        groups = [dist.new_group(backend='lockstep') for _ in range(2)]
        failures = []

        def run(group, add):
            try:
                for i in range(200):
                    tensor = torch.full((50,), float(i + add))
                    dist.all_reduce(tensor, group=group)
                    assert tensor[0].item() == 2 * (i + add), tensor
            except Exception as error:
                failures.append(error)
        threads = [threading.Thread(target=run, args=(group, 10 * i)) for i, group in enumerate(groups)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(failures, [])
        for group in groups:
            dist.destroy_process_group(group)


class BackendTest(unittest.TestCase):
    def test_bad_calls(self):
        for call, message in (
                (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16)), 'no torch.int16; convert'),
                (lambda: dist.all_gather([torch.empty(3)] * 2, torch.ones(2)), r'shape \(3,\) in the list, beside a .* of shape \(2,\)'),
                (lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3)), 'equal multiples'),
                (lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 1], [1, 2]), 'Split sizes'),
                (lambda: dist.reduce_scatter_tensor(torch.empty(2), torch.empty(3)), 'lockstep'),
                (lambda: dist.all_gather_into_tensor(torch.empty(2, 3).t(), torch.empty(3)), 'not contiguous'),
                (lambda: dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX), 'can only be summed')):
            with self.assertRaisesRegex(ValueError, message):
                call()
        dist.barrier()

    def test_monitored_barrier(self):
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))
        if RANK == 0:
            with self.assertRaisesRegex(dist.DistBackendError, 'Rank 1 failed to pass monitoredBarrier'):
                dist.monitored_barrier(timeout=datetime.timedelta(milliseconds=200))
            dist.send(torch.zeros(1), 1)
        else:
            dist.recv(torch.zeros(1), 0)
            with self.assertRaisesRegex(dist.DistBackendError, 'Rank 1 failed to pass monitoredBarrier'):
                dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))
        dist.barrier()

    def test_timeout_of_the_group(self):
        group = dist.new_group(backend='lockstep')
        backend = group._get_backend(CPU)
        backend.set_timeout(datetime.timedelta(milliseconds=300))
        if RANK == 0:
            with self.assertRaisesRegex(dist.DistBackendError, 'rank 1|deadline|timeout'):
                dist.all_reduce(torch.ones(1), group=group)
            self.assertNotEqual(str(backend.get_error()), 'ErrorType.SUCCESS')
        dist.barrier()
        dist.destroy_process_group(group)

    def test_abort(self):
        group = dist.new_group(backend='lockstep')
        if RANK == 0:
            work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
            threading.Timer(0.2, dist.distributed_c10d._abort_process_group, (group,)).start()
            with self.assertRaisesRegex(dist.DistBackendError, 'aborted'):
                work.wait()
            self.assertIsNotNone(work.exception())
            self.assertTrue(work.is_completed())
            self.assertFalse(work.is_success())
        else:
            with self.assertRaisesRegex(dist.DistBackendError, 'the process group was aborted'):
                dist.recv(torch.zeros(1), 0, group)
            dist.destroy_process_group(group)
        dist.barrier()

    def test_calls_after_the_end(self):
        group = dist.new_group(backend='lockstep')
        backend = group._get_backend(CPU)
        dist.destroy_process_group(group)
        with self.assertRaisesRegex(dist.DistBackendError, 'communicator is closed'):
            backend.allreduce([torch.ones(1)], dist.AllreduceOptions())

    def test_the_wrapper_gets_the_communicator(self):
        model = lockstep.torch.DistributedDataParallel(torch.nn.Linear(3, 2))
        model(numbers(5, 3)).sum().backward()
        rows = [torch.empty_like(model.module.weight) for _ in range(2)]
        dist.all_gather(rows, model.module.weight.grad)
        self.assertTrue(torch.equal(*rows))


def run_ranks():
    dist.init_process_group('lockstep', timeout=datetime.timedelta(seconds=60))
    assert type(dist.group.WORLD._get_backend(CPU)).__module__ == cpp.NAME
    program = unittest.main(defaultTest=['ResultsTest', 'WorkTest', 'BackendTest'], exit=False)
    dist.destroy_process_group()
    sys.exit(not program.result.wasSuccessful())


def run_survivor():
    """One rank dies."""
    dist.init_process_group('lockstep', timeout=datetime.timedelta(seconds=60))
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    dist.barrier()
    if RANK == 1:
        os._exit(0)

    def failure(call):
        try:
            call()
        except dist.DistBackendError as error:
            assert 'rank 1' in str(error), error
            return error
        raise AssertionError('the dead rank was not noticed')

    failure(lambda: model(torch.ones(2, 3)).sum().backward())
    for call in (lambda: dist.all_reduce(torch.ones(2)),
                 lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
                 lambda: dist.all_reduce(torch.ones(2), async_op=True).get_future().wait(),
                 lambda: dist.recv(torch.ones(2), 1)):
        assert failure(call).failed_rank == 1


def run_leavers():
    """Both ranks end while works are under way, with continuations in Python."""
    dist.init_process_group('lockstep', timeout=datetime.timedelta(seconds=60))
    if RANK == 0:
        for _ in range(20):
            dist.all_reduce(torch.ones(5), async_op=True)
            dist.all_reduce(torch.ones(5), async_op=True).get_future().then(lambda future: future.value()[0] + 1).add_done_callback(str)
        dist.send(torch.ones(1), 1)
    else:
        with contextlib.suppress(dist.DistBackendError):  # rank 0 may be gone
            dist.recv(torch.ones(1), 0)


# ---- Before there are ranks

class BuildTest(unittest.TestCase):
    def test_once(self):
        """Four processes at once."""
        began = time.monotonic()
        ends = programs.run_together(4 * [([sys.executable, '-m', 'lockstep.torch.cpp'], {})], 600)
        self.assertEqual(ends, 4 * [(0, f'{cpp.built_path()}\n')])
        folder = cpp.built_path().parent
        self.assertEqual(sorted(os.listdir(folder)), sorted([cpp.built_path().name, cpp.built_path().with_suffix('.lock').name]))
        print(f'built once in {time.monotonic() - began:.0f} s')

    def log_of_python_serving(self, **environment):
        """Of a process that can neither build nor find the back end in C++."""
        script = ('import logging; logging.basicConfig(level=logging.INFO); from lockstep.torch import cpp; assert not cpp.build(); '
                  'import torch.distributed as dist; '
                  'dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=1); dist.barrier()')
        status, output = programs.run([sys.executable, '-c', script], 100, **environment)
        self.assertEqual(status, 0, output)
        self.assertIn('using the back end in Python', output)
        return output.replace(sys.executable, 'python')

    def test_without_a_compiler(self):
        for compiler, message in (('no-such-compiler', 'no C++ compiler'), ('false', 'false -std=c++20')):
            with tempfile.TemporaryDirectory() as cache:
                log = self.log_of_python_serving(CXX=compiler, XDG_CACHE_HOME=cache)
            self.assertIn(message, log)
            self.assertIn('python -m lockstep.torch.cpp', log)

    def test_without_a_cache(self):
        """The home folder is not known, or what the name of the cache leads to cannot be read."""
        self.assertIn('home directory', self.log_of_python_serving(XDG_CACHE_HOME='', HOME='~'))
        self.assertIn('too long', self.log_of_python_serving(XDG_CACHE_HOME='/' + 300 * 'x'))


def main():
    if 'LOCKSTEP_RANK' in os.environ:
        return globals()[os.environ.get('PROGRAM', 'run_ranks')]()
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(XDG_CACHE_HOME=cache, OMP_NUM_THREADS='1')
        if not unittest.main(argv=sys.argv[:1], defaultTest='BuildTest', exit=False).result.wasSuccessful():
            sys.exit(1)
        for program in ('run_ranks', 'run_survivor', *3 * ['run_leavers']):
            command = [lockstep.run.launcher(), '-n', '2', '--foreground', '0', sys.executable, *sys.argv]
            status, output = programs.run(command, 300, PROGRAM=program)
            print(output)
            if status != 0:
                sys.exit(f'{program} ended with status {status}')


if __name__ == '__main__':
    main()
