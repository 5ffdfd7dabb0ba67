"""What happens when replicas differ while they train, what is compared, and check_replicas. That every difference is found, and that there
is no false alarm: torch_random_test.py."""

import contextlib
import os
import unittest
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import parallel as tensor_parallel

import lockstep
import ranks
from lockstep.torch import DistributedDataParallel, DriftWarning, check_replicas


def small(**options):
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(2, 2), **options)


def differ(model, value=None):
    with torch.no_grad():
        model.module.bias[1] = RANK if value is None else value


def run(model, steps=3):
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()


class Reactions(unittest.TestCase):

    def test_warns_once_with_names(self):
        """On rank 0 of the process group in use; and every rank, of a parameter whose memory format changes."""
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False)))
        for layer, members in enumerate(([0, 1, 2], [1, 2])):
            weight = model.module[layer].weight
            weight.data = weight.t().contiguous().t()
            group = dist.new_group(members)
            if RANK in members:
                model._update_process_group(group)
                with torch.no_grad():
                    model.module[0].bias[1] = RANK
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter('always')
                    run(model, 8)
                ours = [str(each.message) for each in caught if issubclass(each.category, DriftWarning)]
                self.assertEqual(len(ours), int(RANK == members[0]))
                changed = [str(each.message) for each in caught if 'are not compared' in str(each.message)]
                self.assertEqual([f"parameter '{layer}.weight' are" in text for text in changed], [True])
                for text in ours:
                    self.assertIn(f"parameter 1 '0.bias' (f32[2]), at [1]: rank 0 has {RANK} (0x", text)

    def test_raises_on_every_rank_and_goes_on_when_repaired(self):
        model = small(on_drift='raise')
        run(model)
        differ(model, value=float(RANK == 2))
        with self.assertRaisesRegex(lockstep.DataLoss, 'rank 2 differs from the majority') as raised:
            run(model)
        self.assertEqual((raised.exception.parameter, raised.exception.failed_rank), (1, 2))
        differ(model, value=0)
        run(model)

    def test_an_error_of_the_callback_on_any_rank_ends_the_step_on_all(self):
        def complain(error):
            if RANK < complaining:
                raise ValueError('stop: ' + str(error)[:15])
        for complaining in (1, 3):
            model = small(on_drift=complain)
            differ(model)
            with self.assertRaisesRegex(lockstep.Error, 'ValueError: stop: replicas differ') as raised:
                run(model)
            self.assertEqual('rank 0' in str(raised.exception), RANK >= complaining)

    def test_says_what_is_wrong_with_arguments(self):
        self.assertIsNone(small(on_drift=None)._averager._replicas)
        with self.assertRaisesRegex(lockstep.InvalidArgument, "on_drift is 'no'"):
            small(on_drift='no')
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'may_drift names nobody'):
            small(may_drift=['nobody'])


class Everything(unittest.TestCase):
    """check_replicas of any module."""

    def setUp(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def train(self, model):
        model(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()

    def test_any_wrapper_and_the_state_of_an_optimizer(self):
        for wrap in (lambda net: net, torch.nn.parallel.DistributedDataParallel, DistributedDataParallel):
            with self.subTest(wrap=wrap):
                self.setUp()
                model = wrap(self.net)
                self.train(model)
                check_replicas(model, self.optimizer)
                state = self.optimizer.state[self.net[1].bias]['exp_avg_sq']
                state[1] += float(RANK == 1)
                check_replicas(model)
                with self.assertRaisesRegex(lockstep.DataLoss, r"'1.bias, exp_avg_sq of the optimizer' \(f32\[2\]\), at \[1\]: rank 1 has"):
                    check_replicas(model, self.optimizer)

    def test_state_that_a_rank_lacks(self):
        if RANK:
            self.train(self.net)
        with self.assertRaisesRegex(lockstep.FailedPrecondition, 'rank'):
            check_replicas(self.net, self.optimizer)

    def test_numbers_of_a_state_may_differ(self):
        self.optimizer = torch.optim.LBFGS(self.net.parameters())
        model = DistributedDataParallel(self.net)

        def closure():
            self.optimizer.zero_grad()
            loss = model(torch.ones(1, 3)).sum() + RANK
            loss.backward()
            return loss
        self.optimizer.step(closure)
        check_replicas(model, self.optimizer)

    def test_a_group_of_some_ranks(self):
        with torch.no_grad():
            self.net[0].bias += float(RANK == 1)
        for group in (dist.new_group([0, 2]), dist.new_group([0, 2], backend='cuda:gloo')):  # which has no back end for the CPU
            if RANK in (0, 2):
                check_replicas(self.net, group=group)
        with self.assertRaisesRegex(lockstep.DataLoss, "rank 1 differs from the majority. The first is parameter 1 '0.bias'"):
            check_replicas(self.net)

    def test_ranks_that_differ_in_one_group_compare_in_the_next(self):
        parts = [(dist.new_group(pair), [('part', torch.full((2,), float(RANK == 0)))], pair) for pair in ([0, 1], [1, 2])]
        with mock.patch('lockstep.torch.replicas._by_group', return_value=[part[:2] for part in parts if RANK in part[2]]):
            with self.assertRaisesRegex(lockstep.DataLoss, "'part'") if RANK < 2 else contextlib.nullcontext():
                check_replicas(self.net)

    def test_the_replicated_dimension_of_fsdp2(self):
        """Ranks 0 and 2 have one part, ranks 1 and 3 the other."""
        mesh = dist.device_mesh.init_device_mesh('cpu', (2, 2), mesh_dim_names=('replicate', 'shard'))
        fully_shard(self.net, mesh=mesh)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.train(self.net)
        check_replicas(self.net, self.optimizer)
        self.net[0].weight.to_local().detach()[1, 2] += float(RANK == 1)
        differs = self.assertRaisesRegex(lockstep.DataLoss, r"'0.weight' \(f32\[2, 3\]\), at \[1, 2\]: rank 0 has")
        with differs if RANK % 2 else contextlib.nullcontext():
            check_replicas(self.net, self.optimizer)

    def test_the_parts_of_tensor_parallelism_are_compared_between_their_replicas(self):
        mesh = dist.device_mesh.init_device_mesh('cpu', (WORLD, 1), mesh_dim_names=('replicate', 'tensor'))
        parallel = tensor_parallel.parallelize_module(self.net, mesh['tensor'], {'0': tensor_parallel.ColwiseParallel()})
        model = DistributedDataParallel(parallel, device_mesh=mesh['replicate'], on_drift='raise')
        for drifts in (False, True):
            model._averager.parameters[0].data[0, 0] += RANK * drifts
            with self.assertRaisesRegex(lockstep.DataLoss, "parameter 0 '0.weight'") if drifts else contextlib.nullcontext():
                for _ in range(4):
                    model(torch.ones(1, 3)).sum().backward()

    def test_leaves_out_the_parameters_of_fsdp1(self):
        for original in (False, True):
            self.setUp()
            self.net[0] = FullyShardedDataParallel(self.net[0], device_id=torch.device('cpu'), use_orig_params=original)
            self.net[1].bias.data += RANK
            with self.assertRaisesRegex(lockstep.DataLoss, "in 1 of 2 tensors. The first is parameter 1 '1.bias'"):
                check_replicas(self.net)

    def test_arrays_without_torch(self):
        import array
        with lockstep.init() as communicator:
            lockstep.check_replicas(communicator, {'a': array.array('d', [1, 2]), 'b': array.array('f', [3])})
            with self.assertRaisesRegex(lockstep.DataLoss, r"parameter 1 'b' \(f32\[1\]\), at \[0\]") as raised:
                lockstep.check_replicas(communicator, {'a': array.array('d', [1, 2]), 'b': array.array('f', [3 + (RANK == 1)])})
            self.assertEqual((raised.exception.parameter, raised.exception.failed_rank), (1, 1))
            with self.assertRaisesRegex(lockstep.FailedPrecondition, 'rank 2'):
                lockstep.check_replicas(communicator, {'a': array.array('d', [1] * (2 + (RANK == 2)))})


def setUpModule():
    global RANK, WORLD
    RANK, WORLD = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    torch.set_num_threads(1)
    dist.init_process_group('lockstep')


if __name__ == '__main__':
    ranks.main(4)
