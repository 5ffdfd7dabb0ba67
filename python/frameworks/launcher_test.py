"""lockstep-run and PyTorch: the port of TCPStore, and a job inside a worker of torchrun."""

import sys
import unittest

import lockstep.run
import programs

STORE = '''
import errno, os, socket, sys
import torch.distributed as dist
rank, port = int(os.environ['RANK']), int(os.environ['MASTER_PORT'])
with socket.socket() as taker:
    try:
        taker.bind(('', port))
        sys.exit('a process that does not set SO_REUSEADDR could take MASTER_PORT')
    except OSError as error:
        assert error.errno == errno.EADDRINUSE, error
store = dist.TCPStore(os.environ['MASTER_ADDR'], port, 2, rank == 0, use_libuv=sys.argv[1] == 'libuv')
store.set(f'key {rank}', 'x')
store.wait([f'key {1 - rank}'])
store.add('done', 1)
while rank == 0 and store.add('done', 0) < 2:
    pass
'''
INNER = '''
import datetime, os
import torch.distributed as dist
dist.init_process_group('lockstep', timeout=datetime.timedelta(seconds=60))
dist.barrier()
print('rank', dist.get_rank(), 'of', dist.get_world_size(), 'launched by torchrun:', dist.is_torchelastic_launched(), flush=True)
dist.destroy_process_group()
'''


class Launcher(unittest.TestCase):

    def test_tcp_store_listens_on_the_port_that_is_held(self):
        for backend in ('libuv', 'sockets'):
            with self.subTest(backend):
                status, text = programs.run([lockstep.run.launcher(), '-n', '2', sys.executable, '-c', STORE, backend], 120)
                self.assertEqual(status, 0, text)

    def test_inside_a_worker_of_torchrun(self):
        status, text = programs.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '1', '--no-python',
                                     lockstep.run.launcher(), '-n', '2', sys.executable, '-c', INNER], 180)
        self.assertEqual(status, 0, text)
        for rank in range(2):
            self.assertIn(f'[{rank}] rank {rank} of 2 launched by torchrun: False', text)


if __name__ == '__main__':
    unittest.main()
