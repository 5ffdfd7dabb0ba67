"""The back end with tensors of a device: what it asks of streams and events, on two ranks, over a CUDA in memory and a fake device of
PyTorch (fake_device.cc).

LIBRARY_ON_FAKE_CUDA is //tests:liblockstep_on_fake_cuda.so.
"""

import contextlib
import datetime
import os
import pathlib
import subprocess
import tempfile
import threading
import time
import unittest

import torch
import torch.distributed as dist

import lockstep
import ranks
from lockstep.torch import library

RANK = int(os.environ.get('RANK', 0))
fake = torch.ops.fake_device


def setUpModule():
    global BACKEND
    torch.ops.load_library(os.environ['FAKE_DEVICE'])
    dist.init_process_group('lockstep')
    BACKEND = dist.group.WORLD._get_backend(torch.device('cpu'))
    BACKEND.eager_connect_single_device(torch.device('cuda', 0))


def tearDownModule():
    dist.destroy_process_group()


def options(asynchronous):
    made = dist.AllreduceOptions()
    made.asyncOp, made.reduceOp = asynchronous, dist.ReduceOp.AVG
    return made


class Device(unittest.TestCase):
    def setUp(self):
        dist.barrier()
        fake.take_calls()
        self.gradient = torch.tensor([1., 2. + RANK])  # what the device's tensor holds
        self.tensor = fake.on_device(self.gradient)

    def test_an_asynchronous_collective_has_a_stream_of_its_own(self):
        work = BACKEND.allreduce([self.tensor], options(True))
        before, *memory, after = fake.take_calls()[1:]
        self.assertEqual(before, '1 waits for 0')  # on which the gradient is computed
        self.assertEqual(set(memory), {'used on 1'})
        self.assertEqual(after, 'record 1')
        self.assertTrue(work.wait())
        self.assertEqual(fake.take_calls(), ['0 waits for 1'])  # and the host does not wait
        while not work.is_completed():
            pass
        self.assertEqual(self.gradient.tolist(), [1, 2.5])
        self.assertEqual(work.get_future().wait()[0].data_ptr(), self.tensor.data_ptr())

    def test_a_synchronous_collective_is_on_the_current_stream(self):
        BACKEND.allreduce([self.tensor], options(False))
        self.assertEqual(fake.take_calls(), ['record 0'])
        dist.barrier()
        self.assertEqual(fake.take_calls(), ['synchronize 0'])
        self.assertEqual(self.gradient.tolist(), [1, 2.5])

    def test_a_failure_is_reported_and_runs_the_abort_hooks(self):
        for ask in (lambda work: work.is_completed(), lambda work: work.wait(),
                    lambda work: backend.allreduce([self.tensor], options(True))):
            group, aborted = dist.new_group(backend='lockstep'), threading.Event()
            backend = group._get_backend(torch.device('cpu'))
            backend.eager_connect_single_device(torch.device('cuda', 0))
            backend.register_abort_hook(1, aborted.set)
            if RANK == 0:
                late = options(True)
                late.timeout = datetime.timedelta(milliseconds=200)
                work = backend.allreduce([self.tensor], late)
                self.assertFalse(work.is_completed())
                while 'SUCCESS' in str(backend.get_error()):
                    time.sleep(0.01)
                with contextlib.suppress(dist.DistBackendError):
                    self.assertTrue(ask(work))
                aborted.wait()
                self.assertEqual((work.is_completed(), work.is_success()), (True, False))
                self.assertIn('rank 1', str(work.exception()))
            dist.barrier()


if __name__ == '__main__':
    if 'FAKE_DEVICE' not in os.environ:
        out = pathlib.Path(os.environ.get('XDG_CACHE_HOME', tempfile.gettempdir()), 'fake_device.so')
        command = library.command(pathlib.Path(torch.__file__).parent, pathlib.Path(lockstep.__file__).parent, out)
        source = str(pathlib.Path(__file__).with_name('fake_device.cc'))
        subprocess.run([source if word.endswith('backend.cc') else word for word in command], check=True)
        os.environ.update(FAKE_DEVICE=str(out), LD_PRELOAD=os.environ['LIBRARY_ON_FAKE_CUDA'])
    ranks.main(2)
