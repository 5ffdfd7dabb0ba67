"""Replicas that are checked while they train: no false alarm, whatever the options, and every flipped bit found where it is.

Each case is a model with parts that may differ between ranks (an ignored, a frozen and an excluded parameter, buffers), trained with some
of the wrapper's options. Then a bit of a parameter is flipped on one rank. The pairs of options are all tried; random sets of them by
LOCKSTEP_TEST_SEEDS=FIRST-LAST. A failure names its case.
"""

import contextlib
import itertools
import os
import random
import unittest
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, post_localSGD_hook
from torch.nn.parallel.distributed import _MixedPrecision

import lockstep
import ranks
from lockstep.torch import DistributedDataParallel, DriftWarning, check_replicas

FIRST, LAST = map(int, os.environ.get('LOCKSTEP_TEST_SEEDS', '0-199').split('-'))
WIDTH = 8
STEPS = 8  # a cycle of the largest model's slices, and until a difference is known


def averaging_hook(group, bucket):
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


class Net(nn.Module):
    _ddp_params_and_buffers_to_ignore = ['ignored']

    def __init__(self, wide):
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 1000), nn.Linear(1000, WIDTH)) if wide else nn.Identity()
        self.gate, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last.weight = nn.Parameter(self.last.weight.detach().t().clone().t())  # transposed in memory
        self.scale = nn.Parameter(torch.ones(()))
        self.ignored, self.own = nn.Parameter(torch.full((3,), float(RANK))), nn.Parameter(torch.ones(WIDTH))
        self.frozen = nn.Parameter(torch.full((3,), float(RANK)), requires_grad=False)

    def forward(self, x, gated):
        x = self.wide(self.norm(self.first(x)))
        return self.last(self.gate(x) if gated else x) * self.scale * self.own + self.ignored.sum() * 0


# Each option of a case: what it sets.
OPTIONS = {
    'find_unused': {'find_unused_parameters': True},
    'static_graph': {'static_graph': True},
    'views': {'gradient_as_bucket_view': True},
    'small_buckets': {'bucket_cap_mb': 1e-4},
    'bf16': {'compression': 'bfloat16'},
    'after': {'averaging': 'after'},
    'copied': {'gradient_memory': 'copied'},
    'in_turns': {'buckets_in_memory_max': 1},
    'no_replan': {'no_replan': True},
    'no_buffers': {'broadcast_buffers': False},
    'mixed_precision': {'mixed_precision': _MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)},
    # These are no arguments of the wrapper: Training reads them.
    'hook': {}, 'in_backward': {}, 'no_sync': {}, 'join': {}, 'delayed': {}, 'wide': {}, 'adam': {}, 'autocast': {}, 'twice': {},
    'failure': {},
}


class Refused(Exception):
    """The options exclude each other."""


class Training:
    """A case."""

    def __init__(self, options, seed):
        self.options, self.draw = options, random.Random(seed)
        # A rank that has joined takes part in one backward for each forward pass of the others, as in torch.
        if 'join' in options and {'twice', 'failure'} & {*options}:
            raise Refused
        torch.manual_seed(seed)
        net = self.net = Net('wide' in options)
        given = {name: value for option in options for name, value in OPTIONS[option].items()}
        if 'delayed' in options:
            given.update(delay_all_reduce_named_params=[('last.bias', net.last.bias)], param_to_hook_all_reduce=net.first.weight)
        if 'in_backward' in options:
            given['optimizer_step'] = self.step_in_backward
        self.drifts = []
        try:
            self.model = DistributedDataParallel(net, on_drift=self.drifts.append, may_drift=['own'], **given)
            if 'hook' in options:
                self.model.register_comm_hook(None, averaging_hook)
        except (lockstep.InvalidArgument, lockstep.Unimplemented) as error:
            raise Refused(error) from error
        kind = torch.optim.Adam if 'adam' in options else torch.optim.SGD
        self.optimizer = kind([parameter for parameter in net.parameters() if parameter.requires_grad], lr=0.01)

    def step_in_backward(self, parameters):
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.01 * parameter.grad

    def backward(self, step):
        place = RANK if 'static_graph' in self.options else step + RANK
        gated = 'find_unused' not in self.options or place % 2 == 0
        with torch.autocast('cpu', torch.bfloat16, enabled='autocast' in self.options):
            losses = [self.model(torch.randn(4, WIDTH), gated).float().square().mean()
                      for _ in range(2 if 'twice' in self.options else 1)]
        sum(losses).backward()

    def step(self, step):
        self.optimizer.zero_grad()
        if 'no_sync' in self.options and step % 2:
            with self.model.no_sync():
                self.backward(step)
        if 'failure' in self.options and step == 2:
            with contextlib.suppress(RuntimeError):
                self.fail()
            self.optimizer.zero_grad()
        self.backward(step)
        if 'in_backward' not in self.options:
            self.optimizer.step()
        with torch.no_grad():
            self.net.own.add_(0.1 * RANK)

    def fail(self):
        """A backward that a hook of the user's ends, on every rank."""
        def raise_error(_):
            raise RuntimeError('on purpose')
        handle = self.net.scale.register_hook(raise_error)
        try:
            self.backward(0)
        finally:
            handle.remove()

    def train(self, steps):
        # With join, ranks end one after the other.
        joined = 'join' in self.options
        with self.model.join() if joined else contextlib.nullcontext():
            for step in range(steps + RANK if joined else steps):
                self.step(step)

    def flip(self):
        """A bit of a parameter on one rank: (its name, the rank)."""
        checked = [(name, parameter) for name, parameter in self.net.named_parameters() if name not in ('ignored', 'own', 'frozen')]
        name, parameter = self.draw.choice(checked)
        rank, element, bit = self.draw.randrange(WORLD), self.draw.randrange(parameter.numel()), self.draw.choice([*range(23), 31])
        if rank == RANK:
            bits = torch.as_strided(parameter.data, (parameter.numel(),), (1,)).view(torch.int32)
            bits[element] ^= -2**31 if bit == 31 else 1 << bit
        return name, rank


class Replicas(unittest.TestCase):

    def run_case(self, options, seed):
        training = Training(options, seed)
        try:
            training.train(STEPS)
            self.assertEqual(training.drifts, [], 'a false alarm')
            # join() gives all ranks the last one's parameters, and leaves the optimizers' states.
            training.model.check_replicas(None if {'in_backward', 'join'} & {*options} else training.optimizer)
            name, rank = training.flip()
            with self.assertRaises(lockstep.DataLoss) as raised:
                training.model.check_replicas()
            training.train(STEPS)
            self.assertGreater(len(training.drifts), 0, f'a bit of {name} on rank {rank}')
            # With one joined of two ranks that are left, there is no majority.
            for error in (raised.exception, *([] if 'join' in options else training.drifts)):
                self.assertIn(f"'{name}'", str(error))
                self.assertEqual(error.failed_rank, rank, str(error))
                self.assertIn('1 of ', str(error))
        finally:
            training.model.close()

    def test_pairs_of_options(self):
        refused = 0
        for number, options in enumerate(itertools.chain([()], itertools.combinations(OPTIONS, 1), itertools.combinations(OPTIONS, 2))):
            try:
                self.run_case(options, number)
            except Refused:
                refused += 1
            except Exception as error:
                raise AssertionError(f'{options}') from error
        self.assertLess(refused, 30)

    def test_random_sets_of_options(self):
        for seed in range(FIRST, LAST + 1):
            draw = random.Random(seed)
            while True:
                options = tuple(draw.sample(list(OPTIONS), draw.randint(0, 6)))
                try:
                    self.run_case(options, seed)
                    break
                except Refused:
                    continue
                except Exception as error:
                    raise AssertionError(f'seed {seed}: {options}') from error


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
        model = small()
        differ(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            run(model, 8)
        ours = [str(each.message) for each in caught if issubclass(each.category, DriftWarning)]
        self.assertEqual(len(ours), int(RANK == 0))
        for text in ours:
            self.assertIn("parameter 1 'bias' (f32[2]), at [1]: rank 0 has 0 (0x00000000), rank 1 has 1 (0x3f800000), rank 2 has 2", text)

    def test_raises_on_every_rank_and_goes_on_when_repaired(self):
        model = small(on_drift='raise')
        run(model)
        differ(model, value=float(RANK == 2))
        with self.assertRaisesRegex(lockstep.DataLoss, 'rank 2 differs from the majority') as raised:
            run(model)
        self.assertEqual((raised.exception.parameter, raised.exception.failed_rank), (1, 2))
        differ(model, value=0)
        run(model)

    def test_an_error_of_the_callback_ends_the_step(self):
        def complain(error):
            raise ValueError('stop: ' + str(error)[:15])
        model = small(on_drift=complain)
        differ(model)
        with self.assertRaisesRegex(lockstep.Error, 'ValueError: stop: replicas differ'):
            run(model)

    def test_is_off_for_what_does_not_average_and_on_request(self):
        for options, hook in (({'on_drift': None}, None), ({}, debugging_hooks.noop_hook), ({}, post_localSGD_hook.post_localSGD_hook)):
            model = small(**options)
            if hook is not None:
                alone = dist.new_subgroups(group_size=1)[0]
                state = None if hook is debugging_hooks.noop_hook else post_localSGD_hook.PostLocalSGDState(None, alone, 0)
                model.register_comm_hook(state, hook)
            differ(model)
            with warnings.catch_warnings():
                warnings.simplefilter('error')
                run(model)

    def test_says_what_is_wrong_with_arguments(self):
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

    def test_a_group_of_some_ranks(self):
        group = dist.new_group([0, 2])
        with torch.no_grad():
            self.net[0].bias += float(RANK == 1)
        if RANK != 1:
            check_replicas(self.net, group=group)
        with self.assertRaisesRegex(lockstep.DataLoss, "rank 1 differs from the majority. The first is parameter 1 '0.bias'"):
            check_replicas(self.net)

    def test_the_replicated_dimension_of_fsdp2(self):
        from torch.distributed.fsdp import fully_shard
        mesh = dist.device_mesh.init_device_mesh('cpu', (WORLD, 1), mesh_dim_names=('replicate', 'shard'))
        fully_shard(self.net, mesh=mesh)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.train(self.net)
        check_replicas(self.net, self.optimizer)
        self.net[0].weight.to_local().detach()[1, 2] += float(RANK == 1)
        with self.assertRaisesRegex(lockstep.DataLoss, r"'0.weight' \(f32\[4, 3\]\), at \[1, 2\]: rank 1 has"):
            check_replicas(self.net, self.optimizer)

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
    ranks.main(3)
