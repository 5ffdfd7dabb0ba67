"""The back end "lockstep" when something goes wrong: ranks that die, raise, are interrupted or leave without a word, and a torch that is
missing or too old. Each test starts the ranks of a scenario: this file again, with the scenario's name."""

import datetime
import os
import signal
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import programs

TIMEOUT_S = 60
FILE = os.path.abspath(__file__)


# ---- Scenarios: what each rank does

_stores = []


def begin():
    import torch.distributed as dist
    rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    if not _stores:
        _stores.append(dist.FileStore(os.environ['STORE'], size))
    dist.init_process_group('lockstep', store=_stores[0], rank=rank, world_size=size, timeout=datetime.timedelta(seconds=30))
    return dist, rank


def expect(action, *words):
    """Does it, and exits with 3 unless it raises a DistBackendError with these words, which no deadline caused."""
    import torch.distributed as dist
    try:
        action()
    except dist.DistBackendError as error:
        if all(word in str(error) for word in words) and 'imed out' not in str(error):
            return error
        print(error, file=sys.stderr)
    else:
        print('no error', file=sys.stderr)
    sys.exit(3)


def dies():
    import torch
    dist, rank = begin()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = expect(lambda: dist.all_reduce(torch.zeros(4)), 'rank 1', 'died')
    assert error.failed_rank == 1, error.failed_rank
    expect(lambda: dist.all_reduce(torch.zeros(4)), 'rank 1', 'died')
    for call in (lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
                 lambda: dist.all_reduce(torch.ones(2), async_op=True).get_future().wait(),
                 lambda: dist.recv(torch.ones(2), 1)):
        assert expect(call, 'rank 1').failed_rank == 1


def dies_in_a_subgroup():
    import torch
    dist, rank = begin()
    group = dist.new_group([1, 2])
    if rank == 2:
        os._exit(1)
    if rank == 1:
        expect(lambda: dist.all_reduce(torch.zeros(4), group=group), 'rank 1', 'died')
    expect(lambda: dist.all_reduce(torch.zeros(4)), 'rank 2', 'died')


def dies_in_data_parallel():
    import torch
    dist, rank = begin()
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(3):
        if rank == 1 and step == 2:
            os._exit(1)
        if rank == 0 and step == 2:
            try:
                net(torch.zeros(4)).sum().backward()
            except RuntimeError as error:
                sys.exit(0 if 'rank 1' in str(error) and 'died' in str(error) else 3)
            sys.exit(4)
        net(torch.zeros(4)).sum().backward()


def dies_in_lockstep_data_parallel():
    import torch
    import lockstep.torch
    dist, rank = begin()
    called = threading.Event()
    dist.group.WORLD._get_backend(torch.device('cpu')).register_abort_hook(1, called.set)
    net = lockstep.torch.DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = net(torch.zeros(4)).sum()
    if rank == 1:
        os._exit(1)
    try:
        loss.backward()
    except lockstep.Aborted as error:
        assert error.failed_rank == 1
    else:
        sys.exit(4)
    assert called.wait(60), 'no abort hook was called'


def raises():
    import torch
    dist, rank = begin()
    dist.barrier()
    if rank == 1:
        raise RuntimeError('a worker raised')
    expect(lambda: dist.all_reduce(torch.zeros(4)), 'rank 1', 'a worker raised')


def is_interrupted():
    import torch
    dist, rank = begin()
    tensors = [torch.ones(1 << 20) for _ in range(2)]
    if rank == 0:
        for tensor, asynchronous in zip(tensors, (False, True)):
            threading.Timer(.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                work = dist.all_reduce(tensor, async_op=asynchronous)
                work.wait()
            except KeyboardInterrupt as error:
                # An interrupt that arrives after the wait's own deadline has that error as its context.
                if error.__context__ is not None:
                    sys.exit(3)
            else:
                sys.exit(4)
        dist.send(torch.zeros(1), 1)
    else:
        dist.recv(torch.zeros(1), 0)
        for tensor in tensors:
            dist.all_reduce(tensor)
    dist.barrier()
    for tensor in tensors:
        assert tensor.sum() == 2 * tensor.numel()


def leaves_without_destroy():
    import torch
    dist, rank = begin()
    dist.all_reduce(torch.zeros(4))
    dist.new_group()
    dist.barrier()


def leaves_with_calls_in_flight():
    import torch
    dist, rank = begin()
    dist.barrier()
    if rank == 1:
        _stores[0].set('through the barrier', '')
    else:
        _stores[0].wait(['through the barrier'])
        futures = [dist.all_reduce(torch.zeros(4), async_op=True).get_future().then(lambda future: future.value()) for _ in range(4)]
        assert len(futures) == 4


def begins_again():
    """Over one store, whose keys of before may be there."""
    for _ in range(3):
        dist, rank = begin()
        dist.barrier()
        dist.destroy_process_group()


def is_stopped():
    """Rank 0, which serves the store, is stopped before rank 1 looks for the library, or while both set up a world that lacks rank 2."""
    import torch.distributed as dist
    from lockstep.torch import backend, library, store as stores
    rank, first = int(os.environ['RANK']), os.environ['STAGE'] == 'library'
    if rank == 0:
        store = dist.TCPStore('127.0.0.1', 0, 2, True, wait_for_workers=False)
        file = dist.FileStore(os.environ['STORE'], 2)
        file.set('port and pid', f'{store.port} {os.getpid()}')
    else:
        file = dist.FileStore(os.environ['STORE'], 2)
        port, pid = map(int, file.get('port and pid').split())
        store = dist.TCPStore('127.0.0.1', port, 2, False)
        store.set('rank 1 is here', '')
    stores._ANSWER_S = 2
    stop = threading.Timer(3, os.kill, (os.getpid(), signal.SIGSTOP))
    if rank == 0:
        store.get('rank 1 is here')
        stop.start()
        if first:
            stop.join()
    elif first:
        while open(f'/proc/{pid}/stat').read().split()[2] != 'T':
            time.sleep(0.01)
    if not first:
        backend._load_on_all = lambda _store, _rank, _size, timeout: backend.load(library.find() or library.build()) or timeout
    try:
        dist.init_process_group('lockstep', store=store, rank=rank, world_size=3, timeout=datetime.timedelta(minutes=5))
    except dist.DistError as error:
        print(error, flush=True)
    os.kill(pid, signal.SIGKILL)
    os._exit(0)  # else a call of the store may return to an interpreter that is ending


def says_what_it_does():
    os.environ['LOCKSTEP_LOG'] = 'info'
    dist, rank = begin()
    dist.barrier()
    dist.destroy_process_group()


# ---- Tests

class Faults(unittest.TestCase):
    def check(self, scenario, codes, dump='0'):
        """Runs it on len(codes) ranks and compares their exit codes. dump: whether torch's flight recorder writes its trace."""
        with tempfile.TemporaryDirectory() as folder:
            common = {'WORLD_SIZE': str(len(codes)), 'STORE': os.path.join(folder, 'store'), 'TORCH_FR_DUMP_ON_TIMEOUT': dump,
                      'TORCH_FR_DUMP_TEMP_FILE': os.path.join(folder, 'trace_')}
            found, texts = zip(*programs.run_together([([sys.executable, FILE, scenario.__name__], {**common, 'RANK': str(rank)})
                                                       for rank in range(len(codes))], TIMEOUT_S))
        self.assertEqual(list(found), codes, '\n'.join(texts))
        return texts

    def test_a_rank_that_is_killed_is_named(self):
        texts = self.check(dies, [0, -signal.SIGKILL], dump='1')
        self.assertIn('dumping trace on collective failure', texts[0])

    def test_a_rank_that_dies_ends_its_subgroup_and_the_world(self):
        self.check(dies_in_a_subgroup, [0, 0, 1])

    def test_distributed_data_parallel_names_the_rank_that_died(self):
        self.check(dies_in_data_parallel, [0, 1])
        self.check(dies_in_lockstep_data_parallel, [0, 1])

    def test_the_others_of_a_worker_that_raises_learn_it(self):
        self.assertIn('a worker raised', self.check(raises, [0, 1])[1])

    def test_keyboard_interrupt_ends_a_wait_and_not_the_collective(self):
        self.check(is_interrupted, [0, 0])

    def test_leaving_without_destroy(self):
        self.check(leaves_without_destroy, [0, 0])

    def test_leaving_with_calls_in_flight(self):
        self.check(leaves_with_calls_in_flight, [0, 0])

    def test_beginning_again_over_one_store(self):
        self.check(begins_again, [0, 0])

    def test_a_rank_0_that_is_stopped_during_the_setup_is_named(self):
        for stage, error in (('library', 'the store of the process group has not answered for 2 s: rank 0'),
                             ('world', r'rank 0 \(.*\) is unresponsive: no heartbeat for 2 s')):
            with self.subTest(stage), unittest.mock.patch.dict(os.environ, STAGE=stage, LOCKSTEP_PEER_TIMEOUT_MS='2000'):
                self.assertRegex(self.check(is_stopped, [-signal.SIGKILL, 0])[1], error)

    def test_that_torchs_store_has_the_secret_is_said_once(self):
        said = [text.count("the job's secret stands in store ") for text in self.check(says_what_it_does, [0, 0])]
        self.assertEqual(said, [int(os.environ.get('LOCKSTEP_SECURITY') != 'none'), 0])


class Versions(unittest.TestCase):
    def error(self, code):
        status, output = programs.run([sys.executable, '-c', code + '; import lockstep.torch'], TIMEOUT_S)
        self.assertEqual(status, 1, output)
        return output.splitlines()[-1]

    def test_no_torch(self):
        self.assertEqual(self.error('import sys; sys.modules["torch"] = None'), 'ImportError: lockstep.torch needs PyTorch 2.8 or later, '
                         "which cannot be imported: pip install 'torch>=2.8'")

    def test_an_old_torch(self):
        self.assertEqual(self.error('import sys, types; sys.modules["torch"] = types.SimpleNamespace(__version__="2.7.1+cpu")'),
                         "ImportError: lockstep.torch needs PyTorch 2.8 or later, and this is 2.7.1+cpu: pip install 'torch>=2.8'")


if __name__ == '__main__':
    if 'STORE' in os.environ:
        globals()[sys.argv[1]]()
    else:
        unittest.main()
