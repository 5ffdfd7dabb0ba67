"""Works of the back end "lockstep", what observes them, and its ends, on two ranks.

It runs itself as two ranks: those of the tests, and two that leave early.
"""

import contextlib
import datetime
import json
import os
import signal
import sys
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import lockstep.run
import programs

CPU = torch.device('cpu')
RANK = int(os.environ.get('RANK', 0))


class ResultsTest(unittest.TestCase):
    def test_a_negated_view_is_sent_as_its_values(self):
        tensor = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
        self.assertTrue(tensor.is_neg())
        output = torch.empty(4)
        dist.all_gather_into_tensor(output, tensor)
        self.assertEqual(output.tolist(), 2 * [-2, 4])

    def test_results_in_tensors_of_inference_mode(self):
        with torch.inference_mode():
            outputs, sparse = [torch.zeros(2) for _ in range(2)], torch.eye(2).to_sparse()
        dist.all_gather(outputs, torch.ones(2))
        dist.all_reduce(sparse)
        self.assertEqual([*(output.tolist() for output in outputs), *sparse.to_dense().tolist()], [[1, 1], [1, 1], [2, 0], [0, 2]])


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

    def test_a_message_does_not_wait_for_a_barrier(self):
        tensor, sender = torch.ones(1), threading.Thread(target=lambda: dist.send(tensor, 1))
        if RANK == 0:
            threading.Timer(0.3, sender.start).start()
        else:
            dist.recv(tensor, 0)
        dist.monitored_barrier()
        if RANK == 0:
            sender.join()

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


class ObserversTest(unittest.TestCase):
    """Hooks, flight records and profiles."""

    @staticmethod
    def entries(group):
        name = group.group_name
        records = json.loads(c10d._dump_fr_trace_json(backend='lockstep'))['entries']
        return [entry for entry in records if entry['process_group'][0] == name]

    def test_flight_records_tell_what_is_done(self):
        group = dist.new_group()
        dist.all_reduce(torch.ones(2), group=group)
        dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()
        dist.all_gather([torch.empty(2)] * 2, torch.ones(2), group=group)
        with dist._coalescing_manager(group, CPU):
            dist.broadcast(torch.ones(2), 0, group)
        if RANK == 0:
            late = dist.all_reduce(torch.ones(2), group=group, async_op=True)
            *done, waiting = self.entries(group)
            self.assertEqual({entry['state'] for entry in done}, {'completed'}, done)
            self.assertTrue(all(entry['retired'] and entry['duration_ms'] >= 0 for entry in done), done)
            self.assertEqual((waiting['state'], waiting['retired']), ('scheduled', False))
            dist.send(torch.zeros(1), 1)
            late.wait()
        else:
            dist.recv(torch.zeros(1), 0)
            dist.all_reduce(torch.ones(2), group=group)
        self.assertEqual({entry['state'] for entry in self.entries(group)}, {'completed'})
        dist.destroy_process_group(group)

    def test_a_work_that_nobody_waits_for_is_completed(self):
        group = dist.new_group()
        dist.all_reduce(torch.ones(2), group=group, async_op=True)
        while self.entries(group)[0]['state'] != 'completed':
            time.sleep(0.001)
        dist.destroy_process_group(group)

    def test_a_failure_runs_the_abort_hooks(self):
        group = dist.new_group()
        backend, called = group._get_backend(CPU), threading.Event()
        self.assertTrue(backend.supports_abort_hooks)
        self.assertEqual(backend.get_error(), c10d.ErrorType.SUCCESS)
        backend.register_abort_hook(1, called.set)
        backend.register_abort_hook(2, lambda: self.fail('unregistered'))
        backend.unregister_abort_hook(2)
        if RANK == 0:
            with self.assertRaisesRegex(dist.DistBackendError, 'Timed out'):
                opts = dist.AllreduceOptions()
                opts.timeout = datetime.timedelta(milliseconds=200)
                group.allreduce([torch.ones(2)], opts).wait()
            called.wait()
        self.assertEqual(self.error_of(backend), c10d.ErrorType.TIMEOUT)
        dist.barrier()

    def test_a_failure_between_two_operations_runs_the_abort_hooks(self):
        for told_by_get_error in False, True:
            group = dist.new_group()
            backend, called = group._get_backend(CPU), threading.Event()
            backend.register_abort_hook(1, called.set)
            if RANK == 1:
                backend.abort()
            else:
                with self.assertRaisesRegex(RuntimeError, 'aborted'):  # waits for rank 1, and is no operation
                    torch.ops.lockstep.duplicate(group.boxed(), CPU)
                self.assertFalse(called.is_set())
                if told_by_get_error:
                    self.assertEqual(backend.get_error(), c10d.ErrorType.REMOTE_ERROR)
                else:
                    with self.assertRaisesRegex(dist.DistBackendError, 'aborted'):
                        group.allreduce([torch.ones(2)])
                called.wait()
            dist.barrier()

    @staticmethod
    def error_of(backend):
        while backend.get_error() == c10d.ErrorType.SUCCESS:
            time.sleep(0.001)
        return backend.get_error()

    def test_a_rank_that_aborts_is_an_error_of_another_rank(self):
        backend = dist.new_group()._get_backend(CPU)
        if RANK == 1:
            backend.abort()
        self.assertEqual(self.error_of(backend), [c10d.ErrorType.REMOTE_ERROR, c10d.ErrorType.COMM_ERROR][RANK])
        dist.barrier()

    def test_profiles_have_events_with_metadata(self):
        sent, received = [([2, 1], [2, 0]), ([0, 1], [1, 1])][RANK]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            dist.all_reduce(torch.ones(3, 2))
            dist.broadcast(torch.ones(5), 1, async_op=True).wait()
            for _ in range(2):
                dist.send(torch.ones(3), 1) if RANK == 0 else dist.recv(torch.ones(3), 0)
            dist.all_to_all_single(torch.empty(sum(received)), torch.ones(sum(sent)), received, sent)
        events = {event.name: event for event in profile.events()}
        for name, shape in (('lockstep:all_reduce', [3, 2]), ('lockstep:broadcast', [5])):
            self.assertTrue(events[name].is_async)
            self.assertEqual(events[name].input_shapes, [shape])
        with tempfile.NamedTemporaryFile(suffix='.json') as file:
            profile.export_chrome_trace(file.name)
            with open(file.name) as trace:
                found = [event['args'] for event in json.load(trace)['traceEvents'] if event.get('name') == 'record_param_comms']
        name, peer = [('send', {'Dst Rank': 1}), ('recv', {'Src Rank': 0})][RANK]
        self.assertEqual([args['Collective name'] for args in found], ['all_reduce', 'broadcast', name, name, 'all_to_allv'])
        self.assertEqual((found[0]['In msg nelems'], found[0]['Group size'], found[0]['dtype']), (6, 2, 'Float'))
        self.assertEqual([{key: value for key, value in args.items() if key in ('Dst Rank', 'Src Rank')} for args in found],
                         [{}, {}, peer, peer, {}])
        self.assertEqual([json.loads(found[-1][key]) for key in ('In split size', 'Out split size')], [sent, received])
        if 'Seq' in found[0]:  # and whether it is asynchronous: not in earlier releases of PyTorch
            self.assertEqual(found[3]['Seq'], found[2]['Seq'] + 1)
            self.assertEqual([args['Is asynchronized op'] for args in found], [False, True, True, True, False])


class CompileTest(unittest.TestCase):
    """torch.compile traces the program around the back end, and not into it."""

    def test_a_barrier(self):
        @torch.compile(backend='aot_eager')
        def with_barrier(x):
            y = x + 1
            dist.barrier()
            return y * 2
        self.assertEqual(with_barrier(torch.ones(2)).tolist(), [4, 4])

    def test_a_train_step(self):
        net = torch.nn.Linear(3, 2)
        model, optimizer = DistributedDataParallel(net), torch.optim.SGD(net.parameters(), lr=.1)

        @torch.compile(backend='aot_eager')
        def step(x):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
        for _ in range(3):
            step(torch.ones(1, 3) * (RANK + 1))
        weights = [torch.empty_like(net.weight) for _ in range(2)]
        dist.all_gather(weights, net.weight)
        self.assertTrue(torch.equal(*weights))

    def test_fully_sharded(self):
        from torch.distributed.fsdp import fully_shard
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        alone = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        alone.load_state_dict(net.state_dict())
        for layer in (net[0], net[2], net):
            fully_shard(layer)
        compiled, inputs = torch.compile(net, backend='aot_eager'), [torch.ones(2, 4) * (rank + 1) for rank in range(2)]
        for _ in range(2):
            net.zero_grad()
            compiled(inputs[RANK]).square().sum().backward()
        (sum(alone(each).square().sum() for each in inputs) / 2).backward()
        for sharded, parameter in zip(net.parameters(), alone.parameters()):
            torch.testing.assert_close(sharded.grad.full_tensor(), parameter.grad)


class BackendTest(unittest.TestCase):
    def test_bad_calls(self):
        for call, message in (
                (lambda: dist.reduce_scatter_tensor(torch.empty(2), torch.empty(3)), 'lockstep'),
                (lambda: dist.all_gather_into_tensor(torch.empty(2, 3).t(), torch.empty(3)), 'not contiguous'),
                (lambda: dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX), 'can only be summed')):
            with self.assertRaisesRegex(ValueError, message):
                call()
        dist.barrier()

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


def run_ranks():
    dist.init_process_group('lockstep', timeout=datetime.timedelta(seconds=60))
    program = unittest.main(defaultTest=['ResultsTest', 'WorkTest', 'ObserversTest', 'CompileTest', 'BackendTest'], exit=False)
    dist.destroy_process_group()
    sys.exit(not program.result.wasSuccessful())


def run_leavers():
    """Both ranks end while works are under way, with continuations in Python."""
    dist.init_process_group('lockstep', timeout=datetime.timedelta(seconds=60))
    if RANK == 0:
        dist.barrier()  # rank 1 is connected
        for _ in range(20):
            dist.all_reduce(torch.ones(5), async_op=True)
            dist.all_reduce(torch.ones(5), async_op=True).get_future().then(lambda future: future.value()[0] + 1).add_done_callback(str)
        dist.send(torch.ones(1), 1)
    else:
        with contextlib.suppress(dist.DistBackendError):  # rank 0 may be gone
            dist.barrier()
            dist.recv(torch.ones(1), 0)


def main():
    if 'LOCKSTEP_RANK' in os.environ:
        return globals()[os.environ.get('PROGRAM', 'run_ranks')]()
    os.environ.update(OMP_NUM_THREADS='1')
    for program in ('run_ranks', *3 * ['run_leavers']):
        command = [lockstep.run.launcher(), '-n', '2', '--foreground', '0', sys.executable, *sys.argv]
        status, output = programs.run(command, 300, PROGRAM=program)
        print(output)
        if status != 0:
            sys.exit(f'{program} ended with status {status}')


if __name__ == '__main__':
    main()
