"""lockstep.torch.init() under launchers that set no variables of torch.distributed's, and PyTorch under lockstep-run: the port of TCPStore,
a job inside a worker of torchrun, worlds of some of a job's processes. A launcher that is not installed is skipped. Each test starts the
ranks of a scenario: this file again, with the scenario's name."""

import datetime
import errno
import os
import shutil
import socket
import sys
import tempfile
import unittest
from unittest import mock

import lockstep.run
import programs

TIMEOUT_S = 120
FILE = os.path.abspath(__file__)
RANKS = 3
# As root in a container, and with more ranks than cores.
OPEN_MPI = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'OMPI_MCA_rmaps_base_oversubscribe': '1'}


# ---- Scenarios: what each rank does

def say(line):
    os.write(1, f'{line}\n'.encode())  # in one piece, so that the lines of two ranks do not mix


def group():
    import lockstep.torch
    lockstep.torch.init()
    import torch
    import torch.distributed as dist
    assert dist.get_backend() == 'lockstep', dist.get_backend()
    x = torch.ones(4) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    part = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        dist.barrier(part)
    variables = ' '.join(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR'))
    say(f'rank {dist.get_rank()} of {dist.get_world_size()} sum {x[0].item()} variables {variables}')
    dist.destroy_process_group()


def smaller_worlds():
    import torch
    import torch.distributed as dist

    import lockstep
    rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    half, place = divmod(rank, size // 2)
    store = dist.FileStore(f'{os.environ["FOLDER"]}/{half}', size // 2)
    dist.init_process_group('lockstep', store=store, rank=place, world_size=size // 2)
    x = torch.ones(1) * (rank + 1)
    dist.all_reduce(x)
    with lockstep.init(rank=0, world_size=1) as alone:
        say(f'rank {rank} sum {x.item()} alone {alone.size}')
    dist.destroy_process_group()


def tcp_store(libuv):
    import torch.distributed as dist
    rank, port = int(os.environ['RANK']), int(os.environ['MASTER_PORT'])
    with socket.socket() as taker:
        try:
            taker.bind(('', port))
            sys.exit('a process that does not set SO_REUSEADDR could take MASTER_PORT')
        except OSError as error:
            assert error.errno == errno.EADDRINUSE, error
    store = dist.TCPStore(os.environ['MASTER_ADDR'], port, 2, rank == 0, use_libuv=libuv == 'libuv')
    store.set(f'key {rank}', 'x')
    store.wait([f'key {1 - rank}'])
    store.add('done', 1)
    while rank == 0 and store.add('done', 0) < 2:
        pass


def in_torchrun():
    import torch.distributed as dist
    dist.init_process_group('lockstep', timeout=datetime.timedelta(seconds=60))
    dist.barrier()
    say(f'rank {dist.get_rank()} of {dist.get_world_size()} launched by torchrun: {dist.is_torchelastic_launched()}')
    dist.destroy_process_group()


# ---- Tests

def free_port():
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


class Launchers(unittest.TestCase):

    def expect_group(self, status_and_output):
        status, output = status_and_output
        self.assertEqual(status, 0, output)
        for rank in range(RANKS):
            self.assertIn(f'rank {rank} of {RANKS} sum 6.0 variables {rank} {RANKS} {rank} {RANKS} 127.0.0.1\n', output)

    def launch(self, launcher, *arguments, **environment):
        if shutil.which(launcher) is None:
            self.skipTest(f'there is no {launcher}')
        command = [launcher, '-n', str(RANKS), *arguments, sys.executable, FILE, 'group']
        self.expect_group(programs.run(command, TIMEOUT_S, **environment))

    def test_open_mpi(self):
        self.launch('mpirun.openmpi', **OPEN_MPI)

    def test_mpich(self):
        self.launch('mpirun.mpich')

    def test_mpich_at_the_ports_of_a_range(self):
        first = free_port()
        self.launch('mpirun.mpich', LOCKSTEP_PORTS=f'{first}-{min(first + 30, 65535)}')

    def test_a_range_without_a_free_port_for_the_store_of_torch(self):
        from lockstep.torch import launched
        with socket.create_server(('', 0)) as taken:
            port = taken.getsockname()[1]
            with mock.patch.dict(os.environ, LOCKSTEP_PORTS=f'{port}-{port}'):
                with self.assertRaisesRegex(lockstep.ResourceExhausted, f'no port of LOCKSTEP_PORTS={port}-{port} is free .*needs 1 port'):
                    launched._serve('127.0.0.1', 2, {})

    def test_our_own_launcher(self):
        self.expect_group(programs.run([sys.executable, '-m', 'lockstep.run', '-n', str(RANKS), FILE, 'group'], TIMEOUT_S))

    def test_variables_of_slurm(self):
        # What `srun --mpi=none -n 3` sets. The ranks meet at a port that follows from the job's number.
        step = {'SLURM_NTASKS': str(RANKS), 'SLURM_JOB_ID': str(os.getpid()), 'SLURM_STEP_ID': '0', 'SLURM_NODEID': '0',
                'SLURM_STEP_NODELIST': 'localhost', 'SLURM_STEP_TASKS_PER_NODE': str(RANKS)}
        ranks = [([sys.executable, FILE, 'group'], {**step, 'SLURM_PROCID': str(rank), 'SLURM_LOCALID': str(rank)})
                 for rank in range(RANKS)]
        results = programs.run_together(ranks, TIMEOUT_S)
        self.expect_group((max(status for status, _ in results), ''.join(output for _, output in results)))

    def test_a_process_on_its_own(self):
        status, output = programs.run([sys.executable, '-c', 'import lockstep.torch, torch.distributed as dist; lockstep.torch.init(); '
                                       'print(dist.get_world_size())'], TIMEOUT_S)
        self.assertEqual((status, output), (0, '1\n'))

    def test_half_of_the_variables_is_no_world_of_one(self):
        for half in ({'RANK': '0'}, {'WORLD_SIZE': '2'}):
            status, output = programs.run([sys.executable, '-c', 'import lockstep.torch; lockstep.torch.init()'], TIMEOUT_S, **half)
            self.assertIn('ValueError: one of RANK and WORLD_SIZE is set', output)
            self.assertEqual(status, 1)

    def test_worlds_of_some_of_the_jobs_processes(self):
        with tempfile.TemporaryDirectory() as folder:
            status, output = programs.run([sys.executable, '-m', 'lockstep.run', '-n', '4', FILE, 'smaller_worlds'], TIMEOUT_S,
                                          FOLDER=folder)
        self.assertEqual(status, 0, output)
        for rank, total in enumerate((3.0, 3.0, 7.0, 7.0)):
            self.assertIn(f'rank {rank} sum {total} alone 1\n', output)

    def test_tcp_store_listens_on_the_port_that_is_held(self):
        for backend in ('libuv', 'sockets'):
            with self.subTest(backend):
                status, output = programs.run([sys.executable, '-m', 'lockstep.run', '-n', '2', FILE, 'tcp_store', backend], TIMEOUT_S)
                self.assertEqual(status, 0, output)

    def test_inside_a_worker_of_torchrun(self):
        torchrun = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '1', '--no-python']
        status, output = programs.run([*torchrun, lockstep.run.launcher(), '-n', '2', sys.executable, FILE, 'in_torchrun'], 180)
        self.assertEqual(status, 0, output)
        for rank in range(2):
            self.assertIn(f'[{rank}] rank {rank} of 2 launched by torchrun: False', output)


if __name__ == '__main__':
    if len(sys.argv) > 1 and sys.argv[1] in globals():
        globals()[sys.argv[1]](*sys.argv[2:])
    else:
        unittest.main()
