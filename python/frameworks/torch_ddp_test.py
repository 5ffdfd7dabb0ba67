"""lockstep.torch.DistributedDataParallel beside torch's over Gloo, on two ranks."""

import collections
import contextlib
import copy
import datetime
import gc
import io
import itertools
import json
import os
import pickle
import signal
import threading
import time
import unittest
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, debugging_hooks, default_hooks, powerSGD_hook, quantization_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer, _apply_optimizer_in_backward
from torch.distributed.optim.zero_redundancy_optimizer import _OverlapStatus
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.nn.parallel.distributed import _MixedPrecision
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint

import lockstep
import ranks
from lockstep.torch import DistributedDataParallel, SyncBatchNorm, groups

STEPS = 20


class Convolutional(nn.Module):
    """A convolution (channels_last), batch normalisation, and an unused parameter where asked for."""

    def __init__(self, unused=False):
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.first = nn.Linear(4 * 36, 10)
        self.second = nn.Linear(10, 10)
        self.last = nn.Linear(10, 3)
        self.unused = nn.Linear(5, 5) if unused else None

    def forward(self, x):
        x = torch.relu(self.norm(self.convolution(x))).flatten(1)
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


def inputs(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(4, 1, 8, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def train(model, steps=STEPS, micro=1, set_to_none=True):
    """SGD; returns the losses. micro: backwards a step, all but the last in no_sync()."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        for part in range(micro):
            x, y = inputs(step * micro + part, RANK)
            with model.no_sync() if part + 1 < micro else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        losses.append(loss.item())
    return losses


def done(value):
    """The result of a hook that has its average already."""
    future = torch.futures.Future()
    future.set_result(value)
    return future


def copies(model):
    """A deep copy, and one from a pickle."""
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return copy.deepcopy(model), torch.load(stream, weights_only=False)


class Case(unittest.TestCase):

    def setUp(self):
        torch.manual_seed(7)
        warnings.simplefilter('ignore')  # DDP warns of what these tests do on purpose

    def pair(self, make=Convolutional, **options):
        """Two modules with the same parameters: ours, and torch's over Gloo."""
        torch.manual_seed(11)
        module = make()
        other = copy.deepcopy(module)
        return DistributedDataParallel(module, **options), TorchDDP(other, process_group=GLOO, **options)

    def assert_same_after_steps(self, ours, theirs, inputs, lr):
        for model in (ours, theirs):
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            for step in range(STEPS):
                optimizer.zero_grad()
                model(inputs(step)).square().sum().backward()
                optimizer.step()
        self.assert_same(ours, theirs)

    def assert_same(self, ours, theirs):
        theirs = theirs.state_dict()
        for name, value in ours.state_dict().items():
            self.assertTrue(torch.equal(value, theirs[name]), f'{name}: {(value - theirs[name]).abs().max()}')

    def assert_equal_on_ranks(self, model, of=torch.Tensor.detach):
        flat = torch.cat([of(parameter).reshape(-1).double() for parameter in model.parameters()])
        all_of_them = [torch.empty_like(flat) for _ in range(WORLD)]
        dist.all_gather(all_of_them, flat)
        for other in all_of_them:
            self.assertTrue(torch.equal(flat, other))


class EqualsTorch(Case):
    """20 steps, bit for bit."""

    def test_every_combination_of_options(self):
        options = itertools.product((False, True), (False, True), (False, True), (1, 3), (None, default_hooks.allreduce_hook))
        for static, find_unused, views, micro, hook in options:
            with self.subTest(static_graph=static, find_unused=find_unused, views=views, micro=micro, hook=hook):
                unused = static or find_unused
                ours, theirs = self.pair(lambda: Convolutional(unused), static_graph=static, find_unused_parameters=find_unused,
                                         gradient_as_bucket_view=views)
                if hook is not None:
                    ours.register_comm_hook(None, hook)
                    theirs.register_comm_hook(GLOO, hook)
                if static:  # torch's first backward of a static graph cannot be in no_sync()
                    train(ours, steps=1), train(theirs, steps=1)
                self.assertEqual(train(ours, micro=micro), train(theirs, micro=micro))
                self.assert_same(ours, theirs)
                if unused:
                    self.assertIsNone(ours.module.unused.weight.grad)

    def test_a_block_checkpointed_twice(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem, self.block = nn.Linear(8, 8), nn.Linear(8, 8)

            def forward(self, x):
                x = self.stem(x)
                return checkpoint(self.block, checkpoint(self.block, x, use_reentrant=True), use_reentrant=True)

        for views in (False, True):
            ours, theirs = self.pair(Twice, static_graph=True, gradient_as_bucket_view=views)
            self.assert_same_after_steps(ours, theirs, lambda step: torch.full((2, 8), 0.1 * step + RANK), lr=0.05)
        # Without static_graph torch refuses it, too.
        ours = DistributedDataParallel(Twice())
        with self.assertRaisesRegex(lockstep.FailedPrecondition, 'block'):
            ours(torch.ones(2, 8)).sum().backward()

    def test_sparse_embeddings(self):
        class Words(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.bag = nn.Embedding(50, 4, sparse=True), nn.EmbeddingBag(20, 4, sparse=True)
                self.out = nn.Linear(4, 2)

            def forward(self, indices):
                return self.out(self.words(indices).sum(1) + self.bag(indices % 20))

        def indices(step):
            return torch.randint(0, 50, (3, 5), generator=torch.Generator().manual_seed(100 * step + RANK))

        for options in ({}, {'gradient_as_bucket_view': True}, {'find_unused_parameters': True}):
            with self.subTest(**options):
                ours, theirs = self.pair(Words, **options)
                self.assert_same_after_steps(ours, theirs, indices, lr=0.001)
                self.assertTrue(ours.module.words.weight.grad.is_sparse)

    def test_a_sparse_embedding_in_two_wrappers(self):
        module = nn.Embedding(4, 2, sparse=True)
        ours = [DistributedDataParallel(module, gradient_as_bucket_view=True) for _ in range(2)]
        sum(each(torch.tensor([RANK])).sum() for each in ours).backward()
        self.assertEqual(module.weight.grad.to_dense()[:, 0].tolist(), [1, 1, 0, 0])

    def test_join_of_several_and_steps_after_it(self):
        for initial in (True, False):
            ours, theirs = self.pair()
            for models in ([ours, DistributedDataParallel(nn.Linear(2, 2))], [theirs]):
                with Join(models, divide_by_initial_world_size=initial):
                    for _ in range(4 + 3 * RANK):
                        train(models[0], steps=1)
                        for other in models[1:]:
                            other(torch.ones(1, 2)).sum().backward()
            self.assert_same(ours, theirs)
            self.assert_equal_on_ranks(ours)
            train(ours), train(theirs)
            self.assert_same(ours, theirs)

    def test_join_leaves_gradients_that_a_hook_does_not_average(self):
        for model in self.pair(lambda: nn.Linear(1, 1)):
            model.register_comm_hook(None, debugging_hooks.noop_hook)
            with model.join(divide_by_initial_world_size=False):
                for _ in range(1 + RANK):
                    model.zero_grad()
                    model(torch.ones(1, 1)).sum().backward()
                    self.assertEqual(model.module.bias.grad.item(), 1)

    def test_a_first_pass_of_a_static_graph_that_stops(self):
        def stop(_):
            raise ZeroDivisionError

        ours = self.pair(lambda: nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), static_graph=True)[0]
        hook = ours.module[0].weight.register_hook(stop) if RANK == 1 else None
        with self.assertRaisesRegex(*(ZeroDivisionError, '') if hook else (lockstep.FailedPrecondition, 'rank 1: an exception')):
            ours(torch.ones(1, 1)).sum().backward()
        if hook:
            hook.remove()
        for _ in range(2):
            ours.zero_grad()
            ours(torch.full((1, 1), 2. * RANK)).sum().backward()
            self.assertEqual(ours.module[0].weight.grad.item(), ours.module[1].weight.item())

    def test_what_a_static_graph_leaves_of_a_shared_parameter(self):
        """The first pass of the second wrapper finds what the first wrapper left, on a rank that does not use the parameter."""
        weight = nn.Parameter(torch.ones(1, 1))
        models = [DistributedDataParallel(nn.Sequential(Holder(weight, lambda x: x @ weight if RANK == 0 else x), nn.Linear(1, 1)),
                                          static_graph=True) for _ in range(2)]
        models[0](torch.ones(1, 1)).sum().backward()
        with contextlib.nullcontext() if RANK == 0 else self.assertRaisesRegex(lockstep.FailedPrecondition, 'gradient of an earlier pass'):
            models[1](torch.ones(1, 1)).sum().backward()

    def test_a_delayed_gradient_behind_the_trigger(self):
        module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        ours = DistributedDataParallel(module, delay_all_reduce_named_params=[('0.weight', module[0].weight)],
                                       param_to_hook_all_reduce=module[1].weight)
        for _ in range(2):
            with self.assertRaisesRegex(lockstep.FailedPrecondition, "'0.weight' of delay_all_reduce_named_params.*'1.weight'"):
                ours(torch.ones(1, 2)).sum().backward()

    def test_a_trigger_of_two_wrappers_that_a_rank_does_not_use(self):
        module = Holder(torch.ones(1, 1), lambda x: (x @ module.weight if RANK == 0 else x) @ module.delayed)
        module.delayed = nn.Parameter(torch.ones(1, 1))
        ours = [DistributedDataParallel(module, find_unused_parameters=True, param_to_hook_all_reduce=module.weight,
                                        delay_all_reduce_named_params=[('delayed', module.delayed)]) for _ in range(2)]
        module.weight.grad = torch.ones(1, 1)
        sum(each(torch.ones(1, 1)) for each in ours).backward()
        self.assertEqual((module.weight.grad.item(), module.delayed.grad.item()), (2, 2))

    def test_over_a_group_of_gloo(self):
        for _ in range(2):
            ours, theirs = self.pair()
            ours = DistributedDataParallel(copy.deepcopy(theirs.module), process_group=GLOO)
            train(ours), train(theirs)
            self.assert_same(ours, theirs)


def hooked(hook, module, state=None, **options):
    ours = DistributedDataParallel(module, **options)
    ours.register_comm_hook(state, hook)
    return ours


class Hooks(Case):

    def test_built_in_ones(self):
        ours, theirs = self.pair()
        ours._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        self.assertEqual(train(ours), train(theirs))

    def test_quantised_buckets_have_no_garbage_between_gradients(self):
        ours = hooked(quantization_hooks.quantization_pertensor_hook, Convolutional(), dist.new_group())
        self.assertTrue(all(map(torch.isfinite, map(torch.tensor, train(ours, steps=5)))))

    def test_zero_redundancy_in_the_hook(self):
        """The optimizer steps once the buckets have been planned again."""
        for options in ({}, {'gradient_as_bucket_view': True}):
            ours, theirs = self.pair(lambda: nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 4)), bucket_cap_mb=0.001, **options)
            zero = ZeroRedundancyOptimizer(ours.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.05)
            ours.register_comm_hook(None, ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, ours, zero))
            self.assertEqual(len(ours._comm_hooks), 1)
            optimizer, taken = torch.optim.SGD(theirs.parameters(), lr=0.05), 0
            for step in range(100):
                for model in (ours, theirs):
                    model.zero_grad()
                    model(torch.full((2, 8), 0.1 * step + RANK)).square().sum().backward()
                if zero._overlap_info.status == _OverlapStatus.INITIALIZED:
                    optimizer.step()
                    taken += 1
                if taken == 5:
                    break
            self.assertEqual(taken, 5)
            self.assert_same(ours, theirs)

    def test_hooks_may_write_parameters(self):
        def hook(_, bucket):
            for parameter in bucket.parameters():
                parameter.mul_(2)
            return done(bucket.buffer())
        ours = hooked(hook, Holder(torch.ones(3), lambda x: (ours.module.weight * x).sum()))
        ours(torch.ones(3)).backward()
        self.assertEqual(ours.module.weight.tolist(), [2, 2, 2])
        step = lambda parameters: [parameter.sub_(parameter.grad) for parameter in parameters]
        ours = DistributedDataParallel(Holder(torch.ones(3), lambda x: (ours.module.weight * x).sum()), optimizer_step=step)
        ours(torch.ones(3)).backward()
        self.assertEqual(ours.module.weight.tolist(), [0, 0, 0])

    def test_what_a_bucket_says(self):
        seen = []

        def hook(state, bucket):
            seen.append((state, bucket.index(), bucket.is_last()))
            self.assertEqual({id(each) for each in bucket.parameters()}, {id(each) for each in state.parameters()})
            self.assertEqual([each.shape for each in bucket.parameters()], [each.shape for each in bucket.gradients()])
            for gradient in bucket.gradients():
                gradient.fill_(3)
            return done(bucket.buffer() * 2)

        module = nn.Linear(3, 2)
        ours = hooked(hook, module, module)
        ours(torch.ones(1, 3)).sum().backward()
        self.assertEqual(seen, [(module, 0, True)])
        self.assertTrue(ours._has_rebuilt_buckets)  # PowerSGD's state is that of a bucket
        self.assertEqual(module.weight.grad[1, 2].item(), 6)
        self.assertIn('hook', ours._get_ddp_logging_data()['comm_hook'])
        with self.assertRaisesRegex(lockstep.FailedPrecondition, 'registered already'):
            ours.register_comm_hook(None, hook)

    def test_sparse_gradients_in_a_hook(self):
        def hook(_, bucket):
            self.assertTrue(bucket.buffer().is_sparse)
            return done(bucket.buffer() * 5)
        ours = hooked(hook, nn.Embedding(6, 2, sparse=True))
        ours(torch.tensor([1, 1, 4])).sum().backward()
        self.assertEqual(ours.module.weight.grad.to_dense()[:, 0].tolist(), [0, 10, 0, 0, 5, 0])

    def test_hooks_see_complex_gradients_as_real_ones(self):
        def hook(state, bucket):
            self.assertEqual([gradient.shape for gradient in bucket.gradients()], [(3, 2)])
            bucket.gradients()[0].mul_(2)
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])

        def hook_of_complex(state, bucket):
            return done(torch.view_as_complex(bucket.buffer().view(-1, 2)))

        power = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=10)  # the first steps are exact
        for given, state, expected in ((hook, None, 6 + 8j), (hook_of_complex, None, (1 + RANK) + 4j / 2),
                                       (powerSGD_hook.powerSGD_hook, power, 1.5 + 2j)):
            module = Holder(torch.ones(3, dtype=torch.complex64), lambda x: (module.weight.conj() * x).real.sum())
            hooked(given, module, state)(torch.full((3,), 1 + RANK + 2j)).backward()
            self.assertEqual(module.weight.grad.tolist(), [expected] * 3)

    def test_hooks_that_fail_and_that_are_none(self):
        def fail(_, bucket):
            if RANK == 1 and ours._averager.steps == 1:
                raise ZeroDivisionError('by zero')
            return done(bucket.buffer())
        ours = hooked(fail, nn.Linear(2, 2))
        with self.assertRaisesRegex(lockstep.Error, 'ZeroDivisionError: by zero'):
            ours(torch.ones(1, 2)).sum().backward()
        ours.zero_grad()
        ours(torch.ones(1, 2)).sum().backward()
        self.assertEqual(ours.module.weight.grad[0, 0].item(), 1)
        ours = DistributedDataParallel(nn.Linear(2, 2))
        with self.assertRaises(TypeError):
            ours.register_comm_hook(None, 3)

        def wrong(_, bucket: int):
            pass
        with self.assertRaisesRegex(ValueError, 'annotation'):
            ours.register_comm_hook(None, wrong)
        ours.register_comm_hook(None, lambda state, bucket: bucket.buffer())
        with self.assertRaisesRegex(lockstep.Error, 'not a torch.futures.Future'):
            ours(torch.ones(1, 2)).sum().backward()

    def test_a_hook_that_fails_before_its_collective(self):
        group = dist.new_group()

        def fail(_, bucket):
            if RANK == 1 and ours._averager.steps == 1:
                raise ZeroDivisionError('by zero')
            return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
        ours = hooked(fail, nn.Linear(2, 2), process_group=group)
        for error in 'rank 1: hook .*ZeroDivisionError: by zero', 'rank 0: hook .*may be out of step':
            with self.assertRaisesRegex(lockstep.Error, error):
                ours(torch.ones(1, 2)).sum().backward()

    def test_the_hooks_of_a_backward_that_was_interrupted_run(self):
        group, interrupted = dist.new_group(), threading.Event()

        def wait(_, bucket):
            if RANK == 0 and bucket.index() == 0 and not interrupted.is_set():
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                interrupted.wait(60)
            return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future().then(lambda future: future.value()[0] / 2)
        ours = hooked(wait, nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(3)]), process_group=group, bucket_cap_mb=2**-20)
        layers = [nn.init.constant_(layer.weight, 2) for layer in ours.module]
        with self.assertRaises(KeyboardInterrupt) if RANK == 0 else contextlib.nullcontext():
            ours(torch.ones(1, 1)).backward()
        interrupted.set()
        ours.zero_grad()
        ours(torch.full((1, 1), 1.0 + RANK)).backward()
        self.assertEqual([layer.grad.item() for layer in layers], [6, 6, 6])


class Passes(Case):
    """Which backward passes average, and when."""

    def setUp(self):
        super().setUp()
        self.module = nn.Linear(2, 2, bias=False)
        self.ours = DistributedDataParallel(self.module)
        self.x = torch.full((1, 2), 1.0 + RANK)

    def grad(self):
        return self.module.weight.grad[0, 0].item()

    def test_no_sync_is_about_the_forward_pass(self):
        with self.ours.no_sync():
            inside = self.ours(self.x).sum()
        inside.backward()
        self.assertEqual(self.grad(), 1 + RANK)
        outside = self.ours(self.x).sum()
        with self.ours.no_sync():
            outside.backward()
        self.assertEqual(self.grad(), 3)

    def test_one_backward_of_two_forwards_one_of_them_in_no_sync(self):
        with self.ours.no_sync():
            loss = self.ours(self.x).sum()
        (loss + self.ours(self.x).sum()).backward()
        self.assertEqual(self.grad(), 3)

    def test_two_forwards_before_two_backwards_with_batch_norm(self):
        ours = DistributedDataParallel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
        for mode in (True, False):
            ours.train(mode)
            losses = [ours(torch.randn(4, 2)).sum() for _ in range(2)]
            for loss in losses:
                loss.backward()

    def test_gradients_of_inputs(self):
        x = self.x.clone().requires_grad_()
        outputs = self.ours(x).square().sum()
        gradient, = torch.autograd.grad(outputs, x, create_graph=True)
        self.assertIsNone(self.module.weight.grad)
        gradient.square().sum().backward()
        self.assert_equal_on_ranks(self.ours, lambda parameter: parameter.grad)
        outputs = self.ours(x).square().sum()
        before = self.grad()
        torch.autograd.grad(outputs, list(self.ours.parameters()))
        self.assertEqual(self.grad(), before)

    def test_gradients_with_a_graph(self):
        with self.assertWarnsRegex(UserWarning, 'higher-order'):
            self.ours(self.x).square().sum().backward(create_graph=True)
        self.assert_equal_on_ranks(self.ours, lambda parameter: parameter.grad)

    def test_a_frozen_module_passes_gradients_through(self):
        # As a discriminator does while its generator trains.
        x = self.x.clone().requires_grad_()
        self.module.requires_grad_(False)
        self.ours(x).sum().backward()
        self.assertIsNotNone(x.grad)
        self.module.requires_grad_(True)
        self.ours(x).sum().backward()
        self.assertEqual(self.grad(), 1.5)

    def test_a_rank_that_uses_nothing(self):
        ours = DistributedDataParallel(Gate(), find_unused_parameters=True)
        x = torch.ones(1, 2, requires_grad=True)
        ours(x, RANK == 0).sum().backward()
        self.assertEqual(ours.module.inner.weight.grad[0, 0].item(), 0.5)
        ours(x, RANK != 0).sum().backward()  # what the first pass left in .grad is still there
        self.assertFalse(ours._get_ddp_logging_data()['can_set_static_graph'])

    def test_parameters_used_outside_of_forward(self):
        loss = self.ours(self.x).sum() + self.module.weight.sum()
        loss.backward()
        self.assertEqual(self.grad(), 2.5)

    def test_a_forward_in_no_sync_after_one_whose_outputs_cannot_be_seen(self):
        class Hidden:
            def __init__(self, tensor):
                self.tensor = tensor

        class Hides(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(2, 2, bias=False)

            def forward(self, x, hidden):
                return Hidden(self.inner(x)) if hidden else self.inner(x)

        ours = DistributedDataParallel(Hides())
        first = ours(self.x, True)
        with ours.no_sync():
            second = ours(self.x, False)
        second.sum().backward()
        self.assertEqual(ours.module.inner.weight.grad[0, 0].item(), 1 + RANK)
        first.tensor.sum().backward()
        self.assertEqual(ours.module.inner.weight.grad[0, 0].item(), 3)

    def test_transforms_of_torch_func_average_nothing(self):
        for options in ({}, {'find_unused_parameters': True}, {'static_graph': True}, {'gradient_as_bucket_view': True}):
            with self.subTest(options):
                self.module = nn.Linear(2, 2, bias=False)
                self.ours = DistributedDataParallel(self.module, **options)
                self.transform()

    def transform(self):
        func, x = torch.func, torch.ones(2)
        call = lambda weight, x: func.functional_call(self.ours, {'module.weight': weight}, (x,))
        for transform in (lambda: func.jacrev(self.ours)(x), lambda: func.hessian(self.ours)(x),
                          lambda: func.vmap(func.jacrev(self.ours))(x.expand(3, 2)), lambda: func.vjp(self.ours, x)[1](x),
                          lambda: func.grad(lambda x: self.ours(x).sum())(x),
                          lambda: func.grad(lambda weight: call(weight, x).sum())(torch.ones(2, 2)),
                          lambda: call(torch.ones(2, 2, requires_grad=True), x).sum().backward()):
            for ranks_that_do in ({0}, set(range(WORLD))):
                if RANK in ranks_that_do:
                    transform()
                self.module.weight.grad = None
                self.ours(self.x).sum().backward()
                self.assertEqual(self.grad(), 1.5)
        self.module.weight.grad = None
        torch.func.vmap(self.ours)(self.x).sum().backward()
        self.assertEqual(self.grad(), 1.5)
        self.module.weight.grad = None
        call(self.module.weight * 1.0, self.x).sum().backward()
        self.assertEqual(self.grad(), 1.5)
        self.module.weight.grad = None
        torch.func.grad(lambda x: self.ours(x).square().sum())(self.x).sum().backward()
        self.assert_equal_on_ranks(self.ours, lambda parameter: parameter.grad)

    def test_what_a_failed_backward_leaves(self):
        for preserve in (False, True):
            module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
            ours = DistributedDataParallel(module, bucket_cap_mb=2**-20, no_replan=True, preserve_gradients=preserve)
            if RANK == 1:
                module[0].weight.register_hook(lambda _: 1 // 0)
            x = torch.full((1, 2), RANK + 1.0)
            with self.assertRaises(ZeroDivisionError if RANK == 1 else lockstep.FailedPrecondition):
                ours(x).sum().backward()
            ours(x)  # ends what the exception has stopped
            self.assertEqual(ours.gradient_states(), {'0.weight': 'unchanged', '1.weight': 'unchanged' if preserve else 'averaged'})
            own = module[0](x).detach().expand(2, 2)
            torch.testing.assert_close(module[1].weight.grad, own if preserve else own * 1.5 / (RANK + 1))

    def test_a_change_of_dtype_that_is_taken_back(self):
        for find in (False, True):
            ours = DistributedDataParallel(nn.Linear(2, 2, bias=False), find_unused_parameters=find)
            for step in range(3):
                ours.zero_grad()
                if step == 1:
                    ours.double(), ours.float()
                if step == 1 and not find:
                    with self.assertRaisesRegex(lockstep.FailedPrecondition, 'have had another dtype since the last step'):
                        ours(self.x).sum().backward()
                else:
                    ours(self.x).sum().backward()
                    self.assertEqual(ours.module.weight.grad[0, 0].item(), 1.5)

    def test_a_forward_of_one_wrapper_and_a_backward_of_another(self):
        for ranks_that_do in ({0}, set(range(WORLD))):
            other = DistributedDataParallel(nn.Sequential(self.module, nn.Linear(2, 2)))
            if RANK in ranks_that_do:
                other(self.x)
            self.module.zero_grad()
            self.ours(self.x).sum().backward()
            self.assertEqual(self.grad(), 1.5)
            self.assertEqual(self.ours.gradient_states(), {'weight': 'averaged'})
            other.close()
        with self.assertRaisesRegex(lockstep.Unimplemented, "parameter 'weight' is also in another wrapper"):
            DistributedDataParallel(self.module, optimizer_step=lambda parameters: None)

    def test_collectives_inside_backward(self):
        def collective(gradient):
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            return gradient
        hidden = self.ours(self.x)
        hidden.register_hook(collective)
        hidden.sum().backward()
        self.assertEqual(self.grad(), 3)

    def test_an_interrupted_backward(self):
        # Rank 1 comes when rank 0 has been interrupted.
        if RANK == 0:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with self.assertRaises(KeyboardInterrupt):
                self.ours(self.x).sum().backward()
        dist.barrier()
        if RANK == 1:
            self.ours(self.x).sum().backward()
        self.ours.zero_grad()
        self.ours(self.x).sum().backward()
        self.assertEqual(self.grad(), 1.5)

    def test_a_signal_at_the_beginning_of_a_backward(self):
        begin = self.ours._averager.reducer.begin_backward

        def interrupted(**options):
            begin(**options)
            raise KeyboardInterrupt
        with mock.patch.object(self.ours._averager.reducer, 'begin_backward', interrupted if RANK == 0 else begin):
            with self.assertRaises(KeyboardInterrupt if RANK == 0 else lockstep.Error) as caught:
                self.ours(self.x).sum().backward()
        if RANK == 1:
            self.assertIn('an exception has stopped its beginning', str(caught.exception))
        self.ours.zero_grad()
        self.ours(self.x).sum().backward()
        self.assertEqual(self.grad(), 1.5)

    def test_an_output_that_is_an_input_belongs_to_another_wrapper(self):
        class Both(nn.Linear):
            def forward(self, x):
                return super().forward(x), x
        behind = DistributedDataParallel(Both(2, 2))
        _, h = behind(self.ours(self.x))
        h.sum().backward()
        self.assertEqual((self.grad(), behind.module.weight.grad), (1.5, None))

    def test_averaging_without_a_backward(self):
        with self.ours.no_sync():
            self.ours(self.x).sum().backward()
        self.ours.average_gradients()
        self.assertEqual(self.grad(), 1.5)
        ours = DistributedDataParallel(Holder(torch.ones(1, dtype=torch.complex64)))
        ours.module.weight.grad = torch.tensor([2j]).conj() if RANK == 0 else torch.tensor([2j])  # the same memory
        ours.average_gradients()
        self.assertEqual(ours.module.weight.grad.item(), 0)

    def test_gradients_that_the_engine_conjugates_or_negates_lazily(self):
        for of, weight, expected in ((lambda w: (w.conj() * 2j).real, torch.ones(1, dtype=torch.complex64), 2j),
                                     (lambda w: (torch.complex(w, w).conj() * 2j).real, torch.ones(1), 2)):
            ours = DistributedDataParallel(Holder(weight, lambda _: of(ours.module.weight)))
            if RANK == 1:  # adds to it in place
                ours.module.weight.grad = torch.zeros_like(weight)
            ours(0).backward()
            self.assertEqual(ours.module.weight.grad.item(), expected)

    def test_reentrant_checkpoints_behind_outputs_that_are_not_found(self):
        def through(x):
            for layer in layers:
                x = checkpoint(layer, x.requires_grad_(), use_reentrant=True)
            return mock.NonCallableMock(y=x)
        for option in 'static_graph', 'find_unused_parameters':
            layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
            ours = DistributedDataParallel(Holder(layers, through), **{option: True})
            with self.assertRaisesRegex(lockstep.Error, 'a reentrant checkpoint has the first gradient'):
                ours(self.x.clone()).y.sum().backward()

    def test_an_optimizer_step_that_fails(self):
        def fail(parameters):
            raise ZeroDivisionError('by zero')
        ours = DistributedDataParallel(nn.Linear(2, 2), optimizer_step=fail)
        with self.assertRaisesRegex(lockstep.Error, 'ZeroDivisionError: by zero'):
            ours(self.x).sum().backward()


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x, used):
        return self.inner(x) if used else x * 2


class Modules(Case):
    """What becomes of the module, its buffers and its state."""

    def test_state_dicts(self):
        ours, theirs = self.pair()
        self.assertEqual(list(ours.state_dict()), list(theirs.state_dict()))
        plain = Convolutional()
        nn.modules.utils.consume_prefix_in_state_dict_if_present(state := ours.state_dict(), 'module.')
        plain.load_state_dict(state)
        theirs.load_state_dict(ours.state_dict())
        ours.load_state_dict(theirs.state_dict())
        train(ours)
        theirs.load_state_dict(ours.state_dict())
        self.assert_same(ours, theirs)
        self.assertIsInstance(ours, TorchDDP)

    def test_copies_and_pickles(self):
        ours, theirs = self.pair(find_unused_parameters=True)
        train(ours, steps=3), train(theirs, steps=3)
        for copied in copies(ours):
            self.assertTrue(copied.find_unused_parameters)
            before = {name: value.clone() for name, value in ours.state_dict().items()}
            train(copied, steps=3)
            self.assert_equal_on_ranks(copied)
            for name, value in ours.state_dict().items():
                self.assertTrue(torch.equal(value, before[name]))
        with self.assertRaisesRegex(RuntimeError, 'default process'):
            pickle.dumps(DistributedDataParallel(nn.Linear(2, 2), process_group=GLOO))

    def test_one_rank_evaluates_a_copy(self):
        ours = DistributedDataParallel(Convolutional())
        train(ours, steps=2)
        for alone in copies(ours) if RANK == 0 else ():
            x, y = inputs(9, RANK)
            alone.eval()
            with torch.no_grad():
                found = alone(x)
            self.assertTrue(torch.equal(found, alone.module(x)))
            # A backward pass through the copy alone, to its input.
            pixels = x.clone().requires_grad_()
            torch.autograd.grad(nn.functional.cross_entropy(alone(pixels), y), pixels)
            alone.requires_grad_(False)
            nn.functional.cross_entropy(alone.train()(pixels), y).backward()
            alone._get_ddp_logging_data(), alone._set_ddp_runtime_logging_sample_rate(3)
            alone.register_comm_hook(None, 'all_reduce')
            alone.require_manual_backward_finalization = True
            alone.abort('it averages nothing'), alone.close()
        train(ours, steps=2)
        self.assert_equal_on_ranks(ours)

    def test_copies_average_in_evaluation_mode_too(self):
        for options in ({}, {'find_unused_parameters': True}, {'gradient_as_bucket_view': True},
                        {'mixed_precision': _MixedPrecision(torch.bfloat16)}):
            copied = copy.deepcopy(DistributedDataParallel(nn.Linear(2, 1, bias=False), **options)).eval()
            for _ in range(2):
                copied.zero_grad()
                copied(torch.full((1, 2), 1.0 + RANK)).sum().backward()
                torch.testing.assert_close(copied.module.weight.grad, torch.full((1, 2), 1.5))

    def test_the_start_is_rank_0s(self):
        torch.manual_seed(RANK)
        module = Convolutional()
        module.norm.running_mean.fill_(RANK)
        module.frozen = nn.Parameter(torch.full((3, 4), float(RANK)).t(), requires_grad=False)
        module.register_buffer('halved', torch.full((3,), float(RANK)).half()[::2])
        module.register_buffer('kind', torch.full((3,), RANK, dtype=torch.int16))
        ours = DistributedDataParallel(module)
        self.assert_equal_on_ranks(ours)
        for tensor in (module.norm.running_mean, module.frozen, module.halved, module.kind):
            self.assertEqual(tensor.abs().sum().item(), 0)
        torch.manual_seed(RANK)
        module = Convolutional()
        DistributedDataParallel(module, init_sync=False)
        self.assertEqual(bool(torch.equal(module.last.weight, ours.module.last.weight)), RANK == 0)
        module.norm.running_mean.fill_(RANK)
        with self.assertWarnsRegex(FutureWarning, 'broadcast_buffers'):
            DistributedDataParallel(module, broadcast_buffers=False)
        self.assertEqual(module.norm.running_mean[0].item(), RANK)

    def test_buffers(self):
        module = nn.Sequential(nn.Linear(2, 2))
        module.register_buffer('kept', torch.zeros(3))
        module.register_buffer('late', None)
        ours = DistributedDataParallel(module)
        x = torch.ones(1, 2)

        def after(action, forward=lambda: ours(x)):
            module.kept = torch.full((3,), 5.0 + RANK)  # another tensor
            action()
            forward()
            return module.kept[0].item()

        module.late = torch.tensor(float(RANK))
        self.assertEqual(after(lambda: ours(x).sum().backward()), 5)
        self.assertEqual(module.late.item(), 0)
        with torch.no_grad():
            # Like DDP's: the first evaluation still gets them, the ones behind it do not.
            self.assertEqual(after(lambda: None), 5)
            self.assertEqual(after(lambda: None), 5 + RANK)
        self.assertEqual(after(lambda: None), 5 + RANK)
        self.assertEqual(after(lambda: None), 5)
        with ours.no_sync():
            ours(x)
        self.assertEqual(after(lambda: None), 5 + RANK)
        ours.forward_sync_buffers = False
        self.assertEqual(after(lambda: ours(x)), 5 + RANK)

    def test_gradients_are_views_of_buckets(self):
        ours = DistributedDataParallel(Convolutional(), gradient_as_bucket_view=True)
        train(ours, steps=2, set_to_none=False)
        addresses = [parameter.grad.data_ptr() for parameter in ours.parameters()]
        train(ours, steps=2)
        self.assertEqual(addresses, [view.data_ptr() for view in ours._averager._views])
        x, y = inputs(0, RANK)
        nn.functional.cross_entropy(ours(x), y).backward()
        parameters = list(ours.parameters())
        self.assertEqual(addresses, [parameter.grad.data_ptr() for parameter in parameters])
        self.assertIn('gradient_as_bucket_view', ours._get_ddp_logging_data())
        gradients = [parameter.grad for parameter in parameters]
        before = [gradient.clone() for gradient in gradients]
        del ours, parameters
        gc.collect()
        for gradient, value in zip(gradients, before):
            self.assertTrue(torch.equal(gradient, value))
            gradient.detach_().zero_()

    def test_dtypes_of_mixed_precision(self):
        for dtypes in ({'param_dtype': torch.bfloat16}, {'param_dtype': torch.bfloat16, 'reduce_dtype': torch.float32},
                       {'reduce_dtype': torch.float16}, {'param_dtype': torch.bfloat16, 'buffer_dtype': torch.bfloat16}):
            with self.subTest(**dtypes):
                seen = []
                module = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
                module.register_buffer('scale', torch.ones(3))
                module.register_buffer('count', torch.ones(3, dtype=torch.int64))
                module[0].register_forward_hook(lambda _, given, made: seen.append((given[0].dtype, made.dtype)))
                ours = DistributedDataParallel(module, mixed_precision=_MixedPrecision(**dtypes))
                for step in range(4):
                    with ours.no_sync() if step % 2 else contextlib.nullcontext():
                        ours(torch.randn(8, 6)).float().square().mean().backward()
                low = dtypes.get('param_dtype', torch.float32)
                self.assertEqual(set(seen), {(low, low)})
                self.assertEqual((module.scale.dtype, module.count.dtype), (dtypes.get('buffer_dtype', torch.float32), torch.int64))
                self.assertEqual({parameter.dtype for parameter in module.parameters()}, {torch.float32})
                with torch.no_grad():
                    self.assertEqual(ours(torch.ones(8, 6)).dtype, low)
                self.assertEqual(module[0].weight.dtype, torch.float32)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'reduce_dtype torch.float64'):
            DistributedDataParallel(nn.Linear(2, 2), mixed_precision=_MixedPrecision(reduce_dtype=torch.float64))

    def test_logging_data(self):
        ours, theirs = self.pair(find_unused_parameters=True)
        train(ours, steps=4), train(theirs, steps=4)
        mine, others = ours._get_ddp_logging_data(), theirs._get_ddp_logging_data()
        # Gloo's own, and what is only there now and then.
        missing = {key for key in others if key not in mine and 'gloo' not in key}
        self.assertEqual(missing, set())
        for key in ('module_name', 'world_size', 'rank', 'num_parameter_tensors', 'total_parameter_size_bytes', 'find_unused_parameters',
                    'broadcast_buffers', 'output_device', 'bucket_cap_bytes', 'has_sync_bn', 'is_multi_device_module'):
            self.assertEqual(int(mine[key]) if isinstance(others[key], int) else mine[key], others[key], key)
        ours._set_ddp_runtime_logging_sample_rate(1)
        self.assertEqual(mine['backend_name'], 'lockstep')

    def test_what_torchs_wrapper_has(self):
        ours, theirs = self.pair(bucket_cap_mb_list=[1, 2])
        mesh = dist.device_mesh.init_device_mesh('cpu', (WORLD,))
        for name in ('bucket_bytes_cap', 'bucket_bytes_cap_list', 'bucket_bytes_cap_default', 'broadcast_bucket_size'):
            self.assertEqual(getattr(ours, name), getattr(theirs, name))
        for wrapper in (ours, theirs):
            self.assertEqual([*map(id, wrapper._module_parameters)], [*map(id, wrapper.module.parameters())])
            self.assertEqual([*wrapper.named_module_buffers], [name for name, _ in wrapper.module.named_buffers()])
            self.assertEqual([*map(id, wrapper.modules_buffers)], [*map(id, wrapper.module.buffers())])
            self.assertEqual((wrapper._delay_all_reduce_params, wrapper._comm_hooks, wrapper._has_rebuilt_buckets), ([], [], False))
        self.assertIs(DistributedDataParallel(nn.Linear(2, 2), device_mesh=mesh).device_mesh, mesh)

    def test_inputs_move_to_the_device_of_device_ids(self):
        ours = DistributedDataParallel(nn.Linear(2, 2))
        ours.device_ids = [0]  # which the constructor takes on a GPU only
        self.assertEqual(ours(torch.ones(1, 2)).shape, (1, 2))

    def test_a_default_device_and_dtype_that_are_not_the_modules(self):
        class Sparse(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.linear, self.unused = nn.Embedding(4, 3, sparse=True), nn.Linear(3, 2), nn.Linear(2, 2)

            def forward(self, x):
                return self.linear(self.embedding(x))

        def power_sgd(ours):
            ours.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)

        def joined(ours):
            with ours.join():
                for _ in range(1 + RANK):
                    ours(x).sum().backward()

        rows, values = torch.tensor([0, RANK + 1]), torch.full((4, 3), 1.0 + RANK)
        for module, x, options, change in (
                (nn.Linear(3, 2), values, {}, joined), (nn.Linear(3, 2), values, {'gradient_as_bucket_view': True}, joined),
                (nn.Embedding(4, 3, sparse=True), rows, {}, joined), (Sparse(), rows, {'find_unused_parameters': True}, None),
                (nn.Linear(3, 2), values, {}, power_sgd), (SyncBatchNorm(3), values[:4 * RANK], {}, None),
                (nn.Linear(3, 2), values, {'mixed_precision': _MixedPrecision(param_dtype=torch.bfloat16)}, None)):
            expected = copy.deepcopy(module)
            before = torch.get_default_dtype()
            try:
                torch.set_default_dtype(torch.float64)
                with torch.device('meta'):  # a tensor that is made there is of no use
                    ours = DistributedDataParallel(module, **options)
                    if change is not None:
                        change(ours)
                    for _ in range(3):
                        ours.zero_grad()
                        ours(x).sum().backward()
            finally:
                torch.set_default_dtype(before)
            for parameter, like in zip(module.parameters(), expected.parameters()):
                self.assertEqual((parameter.device, parameter.dtype), (like.device, like.dtype))
                if parameter.grad is not None:
                    self.assertEqual((parameter.grad.device, parameter.grad.dtype), (like.device, like.dtype))

    def test_flight_records_and_profiler_events(self):
        module = nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100), nn.Linear(100, 1))
        self.assertIsNone(DistributedDataParallel(copy.deepcopy(module))._averager.records.begin())  # costs nothing
        with mock.patch.dict(os.environ, TORCH_FR_BUFFER_SIZE='2000'):
            ours = DistributedDataParallel(module, bucket_cap_mb=0.001, no_replan=True, process_group=dist.new_group())
        x = torch.ones(3, 100)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiled:
            for _ in range(3):
                ours(x).sum().backward()
        buckets = ours._averager.reducer.bucket_count
        self.assertGreater(buckets, 1)
        reduced = [event for event in profiled.events() if event.name == 'lockstep:all_reduce']
        self.assertEqual([event.is_async for event in reduced], 3 * buckets * [True])
        elements = 3 * sum(parameter.numel() for parameter in module.parameters())
        self.assertEqual(sum(event.input_shapes[0][0] for event in reduced), elements)
        self.assertEqual(sum(event.name == 'lockstep:broadcast' for event in profiled.events()), 3)
        self.assertEqual(sum(event.name == 'record_param_comms' for event in profiled.events()), 3 * (buckets + 1))
        name = f'{ours.process_group.group_name}/ddp'

        def flight_records():
            return [entry for entry in json.loads(_dump_fr_trace_json(backend='lockstep'))['entries'] if entry['process_group'][0] == name]
        entries = flight_records()
        self.assertEqual([entry['collective_seq_id'] for entry in entries], list(range(1, len(entries) + 1)))
        by_name = collections.Counter(entry['profiling_name'] for entry in entries)
        self.assertEqual(by_name, {'lockstep:all_reduce': 3 * buckets, 'lockstep:broadcast': 4})
        self.assertEqual(sum(entry['input_sizes'][0][0] for entry in entries if entry['profiling_name'] == 'lockstep:all_reduce'), elements)
        self.assertEqual({(entry['state'], entry['retired'], entry['duration_ms'] >= 0) for entry in entries}, {('completed', True, True)})
        if RANK == 1:
            module[0].register_full_backward_hook(lambda *_: 1 / 0)
        with self.assertRaises((lockstep.Error, ZeroDivisionError)):
            ours(x).sum().backward()
        ours._averager.abandon()
        self.assertEqual(flight_records()[-1]['state'], 'scheduled')

    def test_another_process_group(self):
        ours, theirs = self.pair(gradient_as_bucket_view=True)
        train(ours), train(theirs)
        ours._update_process_group(GLOO)
        train(ours), train(theirs)
        self.assert_same(ours, theirs)

    def test_wrapping_again(self):
        module = Convolutional()
        first = DistributedDataParallel(module)
        train(first, steps=2)
        first.close()
        first.close()
        with self.assertRaisesRegex(lockstep.FailedPrecondition, 'is closed: wrap the module again'):
            first(inputs(0, RANK)[0])
        second = DistributedDataParallel(module)
        train(second, steps=2)
        self.assert_equal_on_ranks(second)

    def test_wrappers_come_and_go(self):
        for _ in range(20):
            ours = DistributedDataParallel(nn.Linear(100, 100))
            ours(torch.ones(1, 100)).sum().backward()
            if RANK == 1:
                time.sleep(0.005)
        del ours
        gc.collect()
        self.assertFalse([each for each in gc.get_objects() if isinstance(each, DistributedDataParallel)])


class Mistakes(Case):

    def refused(self, kind, text, *arguments, **options):
        with self.assertRaisesRegex(kind, text):
            DistributedDataParallel(*arguments, **options)

    def test_arguments(self):
        bad = lockstep.InvalidArgument
        self.refused(bad, 'no parameter that requires a gradient', nn.ReLU())
        self.refused(bad, 'no parameter that requires a gradient', nn.Linear(2, 2).requires_grad_(False))
        self.refused(bad, 'no option colour', nn.Linear(2, 2), colour=1)
        self.refused(bad, 'leave them out', nn.Linear(2, 2), device_ids=[0])
        self.refused(bad, 'leave them out', nn.Linear(2, 2), output_device=0)
        self.refused(bad, 'one device', nn.Linear(2, 2), device_ids=[0, 1])
        self.refused(bad, 'SyncBatchNorm only works on GPUs', nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))
        self.refused(bad, 'run a forward pass before', nn.LazyLinear(2))
        self.refused(bad, "no dtype 'complex32'.*ignore", Holder(torch.ones(2, dtype=torch.complex32)))
        self.refused(bad, 'both, or none', nn.Linear(2, 2), param_to_hook_all_reduce=nn.Parameter(torch.ones(1)))
        self.refused(bad, 'parameters of the module', nn.Linear(2, 2), param_to_hook_all_reduce=nn.Parameter(torch.ones(1)),
                     delay_all_reduce_named_params=[])

    def test_ranks_that_differ(self):
        self.refused(lockstep.FailedPrecondition, "weight.*differ|differ.*weight|rank 1", nn.Linear(2 + RANK, 2))
        self.refused(lockstep.FailedPrecondition, 'static_graph', nn.Linear(2, 2), static_graph=RANK == 1)

    def test_an_unused_parameter_is_named_with_the_remedy(self):
        ours = DistributedDataParallel(Convolutional(unused=True))
        with self.assertRaisesRegex(lockstep.FailedPrecondition, r"unused\.weight.*find_unused_parameters=True"):
            train(ours, steps=1)

    def test_a_changed_module(self):
        new = nn.Parameter(torch.zeros(3, 10))
        for change, text in ((lambda module: setattr(module, 'extra', nn.Linear(2, 2)), r"'extra.weight' is new.*wrap it again"),
                             (lambda module: setattr(module.last, 'weight', new), "'last.weight' is another one"),
                             (lambda module: setattr(module.last, 'bias', None), "'last.bias' is gone"),
                             (lambda module: setattr(module, 'last', nn.Linear(10, 3)), "'last.weight' is another one"),
                             (lambda module: module.second.requires_grad_(True), "'second.weight' requires a gradient now"),
                             (lambda module: module.first.requires_grad_(False), "'first.weight' is frozen now.*wrap it again"),
                             (lambda module: module.double(), 'wrap it again after a change of dtype')):
            module = Convolutional()
            module.second.requires_grad_(False)
            ours = DistributedDataParallel(module)
            train(ours, steps=1)
            change(module)
            x, _ = inputs(0, RANK)
            with self.assertRaisesRegex(lockstep.Error, text):
                ours(x.to(module.norm.weight.dtype)).sum().backward()
            if 'frozen' in text:
                module.first.requires_grad_(True)
                train(ours, steps=1)
            ours.close()
        ours = DistributedDataParallel(nn.Linear(2, 2))
        ours.module.bias.requires_grad_(False)
        ours.register_comm_hook(None, 'all_reduce')
        ours.module.bias.requires_grad_(True)
        ours(torch.ones(1, 2) + RANK).square().sum().backward()
        self.assert_equal_on_ranks(ours, lambda parameter: parameter.grad)
        ours.module = nn.Linear(2, 2)
        with self.assertRaisesRegex(lockstep.FailedPrecondition, "'weight' is another one"):
            ours(torch.ones(1, 2))

    def test_parameters_may_get_other_names(self):
        class Doubled(nn.Module):
            def forward(self, weight):
                return 2 * weight

        def pruned(layer):
            prune.l1_unstructured(layer, 'weight', 0.5)
        for change in (pruned, lambda layer: parametrize.register_parametrization(layer, 'weight', Doubled())):
            ours, theirs = self.pair(lambda: nn.Linear(2, 2))
            for model in (ours, theirs) if change is pruned else (ours,):
                for change_now in (True, False, False):
                    model.zero_grad()
                    model(torch.ones(1, 2) + RANK).square().sum().backward()
                    if change_now:
                        change(model.module)
            self.assert_equal_on_ranks(ours, lambda parameter: parameter.grad)
            for one, other in zip(ours.parameters(), theirs.parameters() if change is pruned else ()):
                self.assertTrue(torch.equal(one.grad, other.grad))

    def test_parts_without_parameters_may_change(self):
        module = Convolutional()
        ours = DistributedDataParallel(module)
        module.dropout = nn.Dropout()
        module.register_buffer('more', torch.full((2,), float(RANK)))
        train(ours, steps=2)
        self.assertEqual(module.more.sum().item(), 0)

    def test_gradients_of_the_wrong_kind(self):
        weight = nn.Parameter(torch.ones(5, 2))
        ours = DistributedDataParallel(Holder(weight, lambda x: nn.functional.embedding(x, weight, sparse=True)))
        with self.assertRaisesRegex(lockstep.InvalidArgument, "'weight' is sparse.*sparse=True"):
            ours(torch.tensor([1, 2])).sum().backward()

    def test_communicators_for_a_gpu(self):
        # As far as that goes without one.
        device, given = torch.device('cuda', 1), []
        with mock.patch.object(groups, '_backend_of', return_value=mock.Mock(options=None)), \
                mock.patch.object(groups, 'connect', lambda *_, **options: given.append(options) or mock.Mock()):
            groups.communicator_of(GLOO, device)
        self.assertEqual(given, [{'device_kind': lockstep.CUDA, 'device_index': 1}])

    def test_no_refusals_in_silence(self):
        ours = DistributedDataParallel(nn.Linear(2, 2))
        with self.assertRaises(lockstep.Unimplemented):
            ours._set_sparse_metadata({})
        ours(torch.ones(1, 2)).sum().backward()
        for call in (lambda: ours.register_comm_hook(None, 'all_reduce'), ours._set_static_graph) * 2:  # a refusal changes nothing
            with self.assertRaisesRegex(lockstep.FailedPrecondition, 'right after wrapping'):
                call()
        self.assertFalse(ours.static_graph)
        module = nn.Linear(2, 2)
        _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {'lr': 0.05})
        ours = DistributedDataParallel(module, mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))
        for _ in range(2):
            with self.assertRaisesRegex(lockstep.Unimplemented, 'mixed_precision with optimizers'):
                ours(torch.ones(1, 2))


class Holder(nn.Module):
    def __init__(self, weight, call=None):
        super().__init__()
        self.weight = weight if isinstance(weight, (nn.Parameter, nn.Module)) else nn.Parameter(weight)
        self.call = call

    def forward(self, x):
        return self.call(x)


class TheEnd(Case):
    """What ends the communicators, or the process."""

    def test_1_an_abort_is_told_to_all(self):
        ours = DistributedDataParallel(nn.Linear(2, 2))
        ours(torch.ones(1, 2)).sum().backward()
        dist.barrier()  # the step has ended on every rank
        if RANK == 1:
            ours.abort('the loss is not a number')
        with self.assertRaisesRegex(lockstep.Aborted, 'the loss is not a number'):
            while True:
                ours(torch.ones(1, 2)).sum().backward()

    def test_1_the_process_groups_timeout_counts_as_it_is_now(self):
        for change_first in (True, False):
            group = dist.new_group(timeout=datetime.timedelta(seconds=600))

            def change():
                dist.set_timeout(datetime.timedelta(seconds=5), group)
            if change_first:
                change()
            ours = DistributedDataParallel(nn.Linear(2, 2), process_group=group)
            ours(torch.ones(1, 2)).sum().backward()
            if not change_first:
                change()
            if RANK == 0:
                with self.assertRaisesRegex(lockstep.DeadlineExceeded, 'did not finish in time|rank 1 has not called it'):
                    ours(torch.ones(1, 2)).sum().backward()
            dist.barrier()

    def test_2_a_rank_that_dies_in_the_middle_of_backward(self):
        module = nn.Sequential(*(nn.Linear(300, 300) for _ in range(4)))
        ours = DistributedDataParallel(module, bucket_cap_mb=0.1)
        x = torch.ones(1, 300)
        ours(x).sum().backward()
        ours.zero_grad()
        if RANK == WORLD - 1:
            module[1].weight.register_hook(lambda gradient: os._exit(0))
            ours(x).sum().backward()
        with self.assertRaisesRegex(lockstep.Error, f'rank {WORLD - 1}') as raised:
            ours(x).sum().backward()
        self.assertEqual(raised.exception.failed_rank, WORLD - 1)
        self.assertNotIsInstance(raised.exception, lockstep.DeadlineExceeded)


def setUpModule():
    global RANK, WORLD, GLOO
    RANK, WORLD = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    torch.set_num_threads(1)
    dist.init_process_group('lockstep', timeout=datetime.timedelta(seconds=30))
    GLOO = dist.new_group(backend='gloo')


if __name__ == '__main__':
    ranks.main(2)
