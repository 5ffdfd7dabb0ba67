"""Hugging Face Accelerate over Lockstep: two processes of the CPU, started by `accelerate launch` and by torchrun.

The test starts this file again as a script; train() is what a user's script has to have.
"""

import hashlib
import os
import sys
import unittest

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import programs

WORLD = 2


def network():
    torch.manual_seed(17)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.ReLU(), torch.nn.Linear(30, 4))


def train(how):
    """how: 'gloo' and 'backend': Accelerate's own wrapper, over Gloo and Lockstep; 'wrapper': Lockstep's."""
    if how != 'gloo':
        # Before the Accelerator, which takes the process group that it finds.
        dist.init_process_group('lockstep')
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert dist.get_backend() == ('gloo' if how == 'gloo' else 'lockstep')
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(512, 20, generator=generator), torch.randint(4, (512,), generator=generator))
    if how == 'wrapper':
        import lockstep.torch
        # evaluation_mode: Accelerate does everything to the model but wrap it.
        model = accelerator.prepare_model(lockstep.torch.DistributedDataParallel(model), evaluation_mode=True)
    else:
        model = accelerator.prepare_model(model)
    optimizer, loader = accelerator.prepare(optimizer, DataLoader(data, batch_size=16))
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(functional.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    check_collectives(accelerator)
    digest = hashlib.sha256()
    for tensor in model.module.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    accelerator.wait_for_everyone()
    accelerator.print('weights', digest.hexdigest())
    accelerator.end_training()


def check_collectives(accelerator):
    rank = accelerator.process_index
    assert accelerator.gather(torch.tensor([rank])).tolist() == [0, 1]
    assert accelerator.reduce(torch.tensor([1. + rank]), 'mean').item() == 1.5
    assert accelerator.pad_across_processes(torch.ones(1 + rank), pad_index=7).tolist() == ([1., 7.] if rank == 0 else [1., 1.])
    assert broadcast_object_list([{'from': rank}], from_process=1) == [{'from': 1}]


class AccelerateTest(unittest.TestCase):
    def weights(self, launcher, how):
        command = [sys.executable, '-m', *launcher, os.path.abspath(__file__), how]
        status, output = programs.run(command, 200)
        self.assertEqual(status, 0, output)
        found = [line for line in output.splitlines() if line.startswith('weights ')]
        self.assertEqual(len(found), 1, output)
        return found[0]

    def test_training_equals_that_over_gloo(self):
        torchrun = ('torch.distributed.run', '--standalone', '--nproc-per-node', str(WORLD))
        # --multi_gpu for processes by torchrun: with --cpu they are mpirun's, and without a host file there is one.
        accelerate = ('accelerate.commands.launch', '--multi_gpu', '--num_machines', '1', '--num_processes', str(WORLD),
                      '--main_process_port', '0')
        expected = self.weights(torchrun, 'gloo')
        for launcher, how in ((torchrun, 'backend'), (accelerate, 'backend'), (accelerate, 'wrapper')):
            with self.subTest(launcher[0], how=how):
                self.assertEqual(self.weights(launcher, how), expected)


if __name__ == '__main__':
    if len(sys.argv) == 2 and sys.argv[1] in ('gloo', 'backend', 'wrapper'):
        train(sys.argv[1])
    else:
        unittest.main()
