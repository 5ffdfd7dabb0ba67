"""Ray Train over Lockstep: two workers of the CPU on one machine.

TorchConfig(backend='lockstep') is all that a TorchTrainer needs, and the training function wraps its model by Ray's prepare_model or by
lockstep.torch. The variables that Ray sets are torchrun's: lockstep.init() finds the workers by them, with torch.distributed or without.

Starting Ray's workers is slow, so one run does everything, and ends with an exception in one of them.
"""

import json
import os
import tempfile
import unittest

import ray
import ray.train.torch
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep.torch

WORLD = 2
VARIABLES = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'NODE_RANK', 'MASTER_ADDR', 'MASTER_PORT')


def weights_after_an_epoch(wrap):
    torch.manual_seed(17)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.ReLU(), torch.nn.Linear(30, 4)))
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(512, 20, generator=generator), torch.randint(4, (512,), generator=generator))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=16)):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: tensor.tolist() for name, tensor in model.module.state_dict().items()}


def found_by_init():
    """(rank, size) of this worker, and the ranks of all, without torch.distributed."""
    with lockstep.init() as communicator:
        ranks = communicator.gather_bytes(bytes([communicator.rank]))
        return communicator.rank, communicator.size, [rank[0] for rank in ranks]


def work(config):
    """Runs in each worker. Rank 0 writes what it found; rank 1 raises."""
    torch.set_num_threads(1)
    gloo = dist.new_group(backend='gloo')
    found = {
        'backend': dist.get_backend(),
        'weights': {'gloo': weights_after_an_epoch(lambda model: prepare_model(model, parallel_strategy_kwargs={'process_group': gloo})),
                    'prepare_model': weights_after_an_epoch(prepare_model),
                    'lockstep.torch': weights_after_an_epoch(lockstep.torch.DistributedDataParallel)},
        'variables': {name: os.environ.get(name) for name in VARIABLES},
        'init': found_by_init(),
    }
    if ray.train.get_context().get_world_rank() == 1:
        raise ValueError('a bad batch')
    with open(config['path'], 'w') as file:
        json.dump(found, file)
    dist.barrier()


class RayTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = os.path.join(folder.name, 'found.json')
        ray.init(num_cpus=WORLD + 1, include_dashboard=False, log_to_driver=False)
        cls.addClassCleanup(ray.shutdown)
        trainer = TorchTrainer(work, train_loop_config={'path': path}, torch_config=TorchConfig(backend='lockstep'),
                               scaling_config=ScalingConfig(num_workers=WORLD), run_config=RunConfig(storage_path=folder.name))
        try:
            trainer.fit()
        except Exception as error:
            cls.error = str(error)
        with open(path) as file:
            cls.found = json.load(file)

    def test_training_equals_that_over_gloo(self):
        self.assertEqual(self.found['backend'], 'lockstep')
        weights = self.found['weights']
        self.assertEqual(weights['prepare_model'], weights['gloo'])
        self.assertEqual(weights['lockstep.torch'], weights['gloo'])

    def test_workers_find_each_other_by_rays_variables(self):
        self.assertNotIn(None, self.found['variables'].values(), self.found['variables'])
        self.assertEqual(self.found['init'], [0, WORLD, list(range(WORLD))])

    def test_a_worker_that_raises_ends_the_run(self):
        self.assertRegex(self.error, r'Rank 1 Error(.|\n)*ValueError: a bad batch')


if __name__ == '__main__':
    unittest.main()
