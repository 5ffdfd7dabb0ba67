"""One owner of each gradient and each parameter: several wrappers, passes that stop, and users' programs. Two ranks."""

import copy
import gc
import itertools
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel.distributed import _MixedPrecision
from torch.utils.checkpoint import checkpoint

import lockstep
import ranks
import torch_ddp_test as two
from lockstep.torch import DistributedDataParallel

LOW = _MixedPrecision(param_dtype=torch.bfloat16)


def all_reduce(group, bucket):
    """A hook whose collective others of the same shape could be taken for."""
    group = group or dist.group.WORLD
    return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future().then(lambda future: future.value()[0] / two.WORLD)


class Ownership(two.Case):

    def setUp(self):
        super().setUp()
        self.x = torch.full((1, 2), 1.0 + two.RANK)

    def wrapped(self, module=None, **options):
        return DistributedDataParallel(module or nn.Linear(2, 2, bias=False), **options)


class SeveralHooks(Ownership):
    """Python hooks of several wrappers on one process group, in one pass."""

    def hooked(self, *sizes, **options):
        module = nn.Sequential(*(nn.Linear(size, size, bias=False) for size in sizes or (2,)))
        ours = self.wrapped(module, bucket_cap_mb=1e-5, no_replan=True, **options)
        ours.register_comm_hook(None, all_reduce)
        return ours

    def test_their_collectives_are_in_one_order(self):
        models = [self.hooked(2, 2, 2, 2) for _ in range(3)]
        for step in range(100):
            outputs = [model(self.x * (index + 1)) for index, model in enumerate(models)]
            if step % 2:
                outputs.reverse()
            for model in models:
                model.zero_grad()
            sum(output.sum() for output in outputs).backward()
            for index, model in enumerate(models):
                expected = copy.deepcopy(model.module)
                for other in range(two.WORLD):
                    expected(torch.full((1, 2), (1.0 + other) * (index + 1)) / two.WORLD).sum().backward()
                self.same(model.module, expected, step)

    def same(self, module, expected, where=None):
        for parameter, other in zip(module.parameters(), expected.parameters()):
            torch.testing.assert_close(parameter.grad, other.grad, msg=lambda text: f'{where}: {text}')

    def test_another_order_on_another_rank_is_an_error(self):
        models = [self.hooked(), self.hooked()]
        for step in range(12):
            for model in models:
                model.zero_grad()
            outputs = [model(self.x) for model in (models[::-1] if two.RANK == 1 and step % 3 == 1 else models)]
            if step % 3 == 1:
                with self.assertRaisesRegex(lockstep.Error, 'another order on another rank.*process group of its own'):
                    sum(output.sum() for output in outputs).backward()
                continue
            sum(output.sum() for output in outputs).backward()
            for model in models:
                self.assertEqual(model.module[0].weight.grad.tolist(), [[1.5, 1.5]] * 2)

    def test_one_inside_another(self):
        inner = self.hooked()
        outer = self.wrapped(nn.Sequential(nn.Linear(2, 2, bias=False), inner))
        outer.register_comm_hook(None, all_reduce)
        plain = nn.Sequential(copy.deepcopy(outer.module[0]), copy.deepcopy(inner.module[0]))
        for _ in range(20):
            outer.zero_grad()
            plain.zero_grad()
            outer(self.x).sum().backward()
            for rank in range(two.WORLD):
                plain(torch.full((1, 2), 1.0 + rank)).sum().div(two.WORLD).backward()
            self.same(outer.module, plain)

    def test_inside_a_reentrant_checkpoint_they_are_refused(self):
        inner = self.hooked()
        outer = self.wrapped(nn.Sequential(nn.Linear(2, 2), Checkpointed(inner)), static_graph=True)
        outer.register_comm_hook(None, all_reduce)
        with self.assertRaisesRegex(lockstep.Error, 'use_reentrant=False'):
            outer(self.x).sum().backward()
        outer.close(), inner.close()  # else the next forward pass of any wrapper ends the pass, on the ranks that still have the wrapper

    def test_one_is_closed_before_its_turn(self):
        first, second = self.hooked(), self.hooked()
        first.require_manual_backward_finalization = second.require_manual_backward_finalization = True
        second(self.x).sum().backward()
        (first(self.x).sum() + second(self.x).sum()).backward()
        second.finalize_backward()
        first.finalize_backward()
        self.assertEqual(first.module[0].weight.grad.tolist(), [[1.5, 1.5]] * 2)


class Checkpointed(nn.Module):

    def __init__(self, inner, reentrant=True):
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, *inputs):
        return checkpoint(self.inner, *inputs, use_reentrant=self.reentrant)


class SharedMemory(Ownership):
    """The engine makes gradients of memory that it also reads later, or of which it makes other gradients."""

    def test_gradients_are_torchs(self):
        class Views(nn.Module):
            def __init__(self, kind):
                super().__init__()
                self.kind, self.first = kind, nn.Linear(6, 6)
                self.vectors = nn.ParameterList(map(torch.ones, (6, 6, 3, 3) if kind == 'joined' else (6, 6)))

            def forward(self, x):
                a, b, *more = self.vectors
                x = self.first(x)
                if self.kind == 'added':
                    x = x + a[None] + b[None]
                elif self.kind == 'reshaped':
                    x = torch.tanh(x) + (a.view(6, 1) + b.view(6, 1)).view(1, 6)
                elif self.kind == 'joined':
                    x = x + (torch.cat(more) + a)[None] + b.view(1, 6)
                elif self.kind == 'stacked':
                    x = x + sum(torch.stack([a, b]).unbind(0))
                else:
                    x = x + Detaches.apply(a, b)
                return x.square() * torch.arange(6.0)

        class Detaches(torch.autograd.Function):
            @staticmethod
            def forward(ctx, one, other):
                return one + other

            @staticmethod
            def backward(ctx, gradient):
                return gradient.view_as(gradient), gradient.detach()

        for kind, options in itertools.product(('added', 'reshaped', 'joined', 'stacked', 'detached'),
                                               ({}, {'find_unused_parameters': True}, {'gradient_as_bucket_view': True})):
            with self.subTest(kind=kind, **options):
                ours, theirs = self.pair(lambda: Views(kind), bucket_cap_mb=1e-5, **options)
                for step in range(10):
                    for model in (ours, theirs):
                        model.zero_grad()
                        model(torch.full((1, 6), 0.1 * step + two.RANK)).sum().backward()
                    for one, other in zip(ours.parameters(), theirs.parameters()):
                        torch.testing.assert_close(one.grad, other.grad)


class MixedPrecision(Ownership):

    def close(self, actual, expected):
        torch.testing.assert_close(actual.detach(), torch.as_tensor(expected, dtype=torch.float32).expand_as(actual), rtol=0.02, atol=0.02)

    def test_a_wrapper_inside_another_keeps_full_precision(self):
        inner = self.wrapped(mixed_precision=LOW)
        outer = self.wrapped(nn.Sequential(nn.Linear(2, 2), inner, nn.Linear(2, 2)), mixed_precision=LOW)
        before = [parameter.detach().clone() for parameter in outer.parameters()]
        for model in (outer, outer, inner):
            model(self.x).float().sum().backward()
            for parameter, value in zip(outer.parameters(), before):
                self.assertTrue(torch.equal(parameter, value))
        self.assert_equal_on_ranks(inner, lambda parameter: parameter.grad)

    def test_two_forwards_before_one_backward_and_before_two(self):
        ours = self.wrapped(mixed_precision=LOW)
        (ours(self.x) + ours(self.x)).sum().backward()
        self.close(ours.module.weight.grad, 3)
        losses = [ours(self.x).sum() for _ in range(2)]
        for number, loss in enumerate(losses):
            ours.zero_grad()
            with torch.no_grad():
                ours(self.x)  # an evaluation in between
            loss.backward()
            self.close(ours.module.weight.grad, 1.5)
            self.assertEqual((ours.module.weight.dtype, ours.module.weight.grad.dtype), (torch.float32, torch.float32))

    def test_steps_after_a_forward_without_a_backward(self):
        ours = self.wrapped(mixed_precision=LOW)
        optimizer = torch.optim.SGD(ours.parameters(), lr=2.0 ** -12)
        ours(self.x).sum().backward()
        expected = ours.module.weight.detach() - 1.5 * 2.0 ** -12  # is lost when it is rounded
        ours(self.x)
        optimizer.step()
        self.assertTrue(torch.equal(ours.module.weight, expected))
        ours(self.x)
        self.assertTrue(torch.equal(ours.state_dict()['module.weight'], expected))
        ours(self.x)
        self.assertTrue(torch.equal(copy.deepcopy(ours).module.weight, expected))
        ours(self.x)
        ours.load_state_dict({'module.weight': expected + 1})
        with torch.no_grad():
            ours(self.x)
        self.assertTrue(torch.equal(ours.module.weight, expected + 1))

    def test_writing_a_parameter_in_lower_precision_is_an_error(self):
        ours = self.wrapped(mixed_precision=LOW)
        for act in (lambda: ours(self.x), lambda: outputs.sum().backward(), lambda: ours.state_dict()):
            outputs = ours(self.x)
            with torch.no_grad():
                ours.module.weight.mul_(2)
            with self.assertRaisesRegex((lockstep.FailedPrecondition, RuntimeError), "'weight' was written.*lower precision|inplace"):
                act()
        ours(self.x).sum().backward()


class StoppedPasses(Ownership):

    def setUp(self):
        super().setUp()
        self.stop = True

    def fail(self, gradient):
        if self.stop and two.RANK == 1:
            raise ZeroDivisionError('in a hook')

    def stopped(self, loss):
        """A pass that an exception stops on rank 1 alone."""
        if two.RANK == 1:
            with self.assertRaisesRegex(ZeroDivisionError, 'in a hook'):
                loss.backward()
        else:
            with self.assertRaisesRegex(lockstep.FailedPrecondition, 'rank 1'):
                loss.backward()
        self.stop = False

    def test_wrappers_that_share_a_parameter(self):
        shared = nn.Linear(2, 2, bias=False)
        for order in ((0, 1), (1, 0), (1, 1)):
            self.stop = True
            models = [self.wrapped(nn.Sequential(shared, nn.Linear(2, 2, bias=False))) for _ in range(2)]
            models[0].module[1].weight.register_hook(lambda gradient: gradient)
            handle = shared.weight.register_hook(self.fail)
            self.stopped(sum(model(self.x).sum() for model in models))
            for index in order:
                for model in models:
                    model.zero_grad()
                models[index](self.x).sum().backward()
                self.assert_equal_on_ranks(models[index], lambda parameter: parameter.grad)
            handle.remove()
            for model in models:
                model.close()

    def test_wrappers_with_hooks(self):
        models = [self.wrapped(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))) for _ in range(2)]
        for model in models:
            model.register_comm_hook(None, all_reduce)
        models[0].module[0].weight.register_hook(self.fail)  # the second that the pass reaches, so that it has begun both
        self.stopped(models[0](self.x).sum() + models[1](self.x).sum())
        for model in (models[1], models[0], models[1]):
            model.zero_grad()
            model(self.x).sum().backward()
            self.assertEqual(model.module[1].bias.grad.tolist(), [1, 1])
            self.assert_equal_on_ranks(model, lambda parameter: parameter.grad)

    def test_gradients_after_it_without_the_wrapper_are_local(self):
        module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
        ours = self.wrapped(module)
        module[0].weight.register_hook(self.fail)
        self.stopped(ours(self.x).sum())
        if two.RANK == 1:
            for _ in range(2):
                module.zero_grad()
                module(self.x).sum().backward()
        module.zero_grad()
        ours(self.x).sum().backward()
        self.assert_equal_on_ranks(ours, lambda parameter: parameter.grad)

    def test_a_graph_that_is_left_of_it_is_averaged(self):
        module = nn.Linear(2, 2, bias=False)
        ours = self.wrapped(module)
        module.weight.register_hook(self.fail)
        loss = ours(self.x).sum()
        if two.RANK == 1:
            with self.assertRaises(ZeroDivisionError):
                loss.backward(retain_graph=True)
        self.stop = False
        if two.RANK == 0:
            with self.assertRaisesRegex(lockstep.FailedPrecondition, 'rank 1'):
                loss.backward(retain_graph=True)
        module.zero_grad()
        loss.backward()
        self.assertEqual(module.weight.grad.tolist(), [[1.5, 1.5]] * 2)


class WritesInThePass(Ownership):
    """A pass that writes to gradients when they are already being averaged."""

    def layers(self):
        return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))

    def test_they_are_an_error(self):
        for options in ({}, {'find_unused_parameters': True}, {'gradient_as_bucket_view': True}):
            ours = self.wrapped(self.layers(), **options)
            handle = ours.module[2].register_full_backward_hook(lambda module, *_: [module.weight.grad.clamp_(-1, 1)][1:] or None)
            with self.assertRaisesRegex(lockstep.FailedPrecondition, "gradient of parameter '2.weight' was written to"):
                ours(self.x).sum().backward()
            handle.remove()
            ours.zero_grad()
            ours(self.x).sum().backward()
            self.assert_equal_on_ranks(ours, lambda parameter: parameter.grad)

    def test_a_gradient_that_is_removed_or_replaced_is_the_average(self):
        for replacement in (lambda gradient: None, torch.clone, torch.zeros_like):
            ours, theirs = self.pair(self.layers)
            for model in (ours, theirs):
                last = model.module[2].weight

                def replace(_, last=last):
                    last.grad = replacement(last.grad)
                model.module[0].weight.register_hook(replace)
                for _ in range(2):
                    model(self.x).sum().backward()
            for one, other in zip(ours.parameters(), theirs.parameters()):
                torch.testing.assert_close(one.grad, other.grad)

    def test_parts_of_one_buffer(self):
        ours, theirs = self.pair(self.layers, bucket_cap_mb=1e-5)
        for model in (ours, theirs):
            parameters = list(model.parameters())
            flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
            for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
                parameter.grad = part.view_as(parameter)
            for _ in range(3):
                model(self.x).sum().backward()
            model.flat = flat
        torch.testing.assert_close(ours.flat, theirs.flat)


class Programs(Ownership):
    """Users' programs in and around a pass, compared with torch's wrapper."""

    def same(self, act, make=lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), **options):
        ours, theirs = self.pair(make, **options)
        for model in (ours, theirs):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
            for _ in range(4):
                optimizer.zero_grad()
                act(model)
                optimizer.step()
        for one, other in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(one, other)
            self.assertEqual(one.grad is None, other.grad is None)

    def test_around_the_pass(self):
        def retains(model):
            hidden = model(self.x)
            hidden.retain_grad()
            for parameter in model.parameters():
                parameter.retain_grad()
            hidden.sum().backward()

        def zeroes(model):
            loss = model(self.x).sum()
            model.zero_grad(set_to_none=False)
            loss.backward()

        def presets(model):
            loss = model(self.x).sum()
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            loss.backward()

        def penalizes(model):
            x = self.x.clone().requires_grad_()
            gradient, = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            (gradient.square().sum() + model(self.x).sum()).backward()

        def copies(model):
            loss = model(self.x).sum()
            ema = copy.deepcopy(model.module)
            for average, parameter in zip(ema.parameters(), model.parameters()):
                average.data.lerp_(parameter.data, 0.5)
            loss.backward()

        def in_a_thread(model):
            loss = model(self.x).sum()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()

        for act in (retains, zeroes, presets, penalizes, copies, in_a_thread):
            for views in (False, True):
                with self.subTest(act=act.__name__, views=views):
                    self.same(act, gradient_as_bucket_view=views)

    def test_hooks_that_return_other_tensors(self):
        kept = torch.full((3, 2), 0.25 + two.RANK)

        def make():
            module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
            module[0].weight.register_hook(lambda gradient: kept)
            module[0].bias.register_hook(lambda gradient: kept[:, 0])
            module[2].weight.register_hook(lambda gradient: gradient.expand(2, 3) * 2)
            return module
        torch.manual_seed(11)
        ours, theirs = DistributedDataParallel(make()), None
        torch.manual_seed(11)
        theirs = two.quiet(two.TorchDDP, make(), process_group=two.GLOO)
        for model in (ours, theirs):
            for _ in range(3):
                model.zero_grad()
                model(self.x).sum().backward()
        for one, other in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(one.grad, other.grad)
        self.assertEqual(kept.tolist(), [[0.25 + two.RANK] * 2] * 3)

    def test_parametrizations(self):
        def make():
            module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            nn.utils.parametrizations.weight_norm(module[0])
            nn.utils.parametrizations.spectral_norm(module[1])
            return module
        self.same(lambda model: model(self.x).sum().backward(), make)

    def test_a_pass_inside_a_pass(self):
        class Inside(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, other):
                ctx.other = other
                return x * 1

            @staticmethod
            def backward(ctx, gradient):
                with torch.enable_grad():
                    ctx.other(torch.full((1, 2), 2.0 + two.RANK)).sum().backward()
                return gradient, None

        inner = self.pair(lambda: nn.Linear(2, 2))
        outer = self.pair(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
        for one, other in zip(outer, inner):
            for _ in range(3):
                one.zero_grad(), other.zero_grad()
                Inside.apply(one(self.x), other).sum().backward()
        for pair in (inner, outer):
            for one, other in zip(*(model.parameters() for model in pair)):
                torch.testing.assert_close(one.grad, other.grad)


class LeftOver(Ownership):
    """Gradients that earlier passes left of parameters that this rank does not use."""

    def test_zeros_take_the_average_in_a_static_graph(self):
        for views in (False, True):
            ours, theirs = self.pair(Branches, static_graph=True, gradient_as_bucket_view=views)
            for _ in range(4):
                for model in (ours, theirs):
                    model.zero_grad(set_to_none=False)
                    model(self.x).sum().backward()
                for one, other in zip(ours.parameters(), theirs.parameters()):
                    self.assertTrue(torch.equal(one.grad, other.grad))

    def test_others_are_refused_in_a_static_graph(self):
        for before in (False, True):
            ours = self.wrapped(Branches(), static_graph=True)
            if before:
                ours.module.parts[1 - two.RANK].weight.grad = torch.ones(2, 2)
            else:
                ours(self.x).sum().backward()
            with self.assertRaisesRegex(lockstep.FailedPrecondition, r"'parts.\d.weight' has a gradient of an earlier pass.*find_unused"):
                ours(self.x).sum().backward()
            ours.zero_grad()
            ours(self.x).sum().backward()
            self.assert_equal_on_ranks(ours, lambda parameter: parameter.grad)

    def test_a_rank_without_inputs_has_unused_parameters_too(self):
        ours, theirs = self.pair(Branches, static_graph=True)
        for model in (ours, theirs):
            with model.join():
                for _ in range(1 + 2 * two.RANK):
                    model.zero_grad()
                    model(self.x).sum().backward()
        if two.RANK == 1:
            for one, other in zip(ours.parameters(), theirs.parameters()):
                self.assertEqual((one.grad is None), (other.grad is None))
                if other.grad is not None:
                    torch.testing.assert_close(one.grad, other.grad)

    def test_they_are_averaged_with_unused_parameters(self):
        ours, theirs = self.pair(Branches, find_unused_parameters=True)
        for _ in range(4):
            for model in (ours, theirs):
                model(self.x).sum().backward()
            for one, other in zip(ours.parameters(), theirs.parameters()):
                self.assertTrue(torch.equal(one.grad, other.grad))


class Branches(nn.Module):

    def __init__(self):
        super().__init__()
        self.first, self.parts = nn.Linear(2, 2), nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(two.WORLD))

    def forward(self, x):
        return self.parts[two.RANK](self.first(x))


class Lifetimes(Ownership):

    def test_a_wrapper_that_is_dropped_before_the_backward(self):
        module = nn.Linear(2, 2, bias=False)
        ours = self.wrapped(module)
        loss = ours(self.x).sum()
        del ours
        gc.collect()
        loss.backward()
        self.assertEqual(module.weight.grad.tolist(), [[1.5, 1.5]] * 2)
        del loss
        module(self.x).sum().backward()
        self.assertEqual(module.weight.grad.tolist(), [[2.5 + two.RANK] * 2] * 2)


setUpModule = two.setUpModule

if __name__ == '__main__':
    ranks.main(2)
