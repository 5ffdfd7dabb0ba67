"""One owner of each gradient and each parameter: what is refused, and programs that torch_random_test.py does not draw. Two ranks."""

import contextlib
import copy
import gc
import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel.distributed import _MixedPrecision
from torch.utils.checkpoint import checkpoint

import lockstep
import ranks
import torch_ddp_test as two
from lockstep.torch import DistributedDataParallel

LOW = _MixedPrecision(param_dtype=torch.bfloat16)


def all_reduce(group, bucket):
    """A hook whose collective others of the same shape could be taken for."""
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0] / two.WORLD)


class Ownership(two.Case):

    def setUp(self):
        super().setUp()
        self.x = torch.full((1, 2), 1.0 + two.RANK)

    def wrapped(self, module=None, hook=None, **options):
        ours = DistributedDataParallel(module or nn.Linear(2, 2, bias=False), **options)
        if hook is not None:
            ours.register_comm_hook(None, hook)
        return ours

    def assert_averaged(self, module):
        """For a linear module, whose inputs are self.x."""
        self.assertEqual(module.weight.grad.tolist(), [[1.5, 1.5]] * 2)


class Checkpointed(nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


class Branches(nn.Module):
    def __init__(self, output=lambda y: y):
        super().__init__()
        self.first, self.parts = nn.Linear(2, 2), nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(two.WORLD))
        self.output = output

    def forward(self, x):
        return self.output(self.parts[two.RANK](self.first(x)))


class SeveralHooks(Ownership):
    """Python hooks of several wrappers on one process group, in one pass."""

    def test_another_order_on_another_rank_is_an_error(self):
        models = [self.wrapped(hook=all_reduce) for _ in range(2)]
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
                self.assert_averaged(model.module)

    def test_inside_a_reentrant_checkpoint_they_are_refused(self):
        inner = self.wrapped(hook=all_reduce)
        outer = self.wrapped(nn.Sequential(nn.Linear(2, 2), Checkpointed(inner)), hook=all_reduce, static_graph=True)
        with self.assertRaisesRegex(lockstep.Error, 'use_reentrant=False'):
            outer(self.x).sum().backward()
        outer.close(), inner.close()  # else the next forward pass of any wrapper ends the pass, on the ranks that still have the wrapper

    def test_passes_that_are_finalized_by_hand(self):
        first, second = self.wrapped(hook=all_reduce), self.wrapped(hook=all_reduce)
        with self.assertRaises(lockstep.FailedPrecondition):
            first.finalize_backward()
        first.require_manual_backward_finalization = second.require_manual_backward_finalization = True
        second(self.x).sum().backward()
        with self.assertRaisesRegex(lockstep.FailedPrecondition, r'finalize_backward\(\) was not called'):
            second(self.x)
        self.assert_averaged(second.module)
        (first(self.x).sum() + second(self.x).sum()).backward()
        second.finalize_backward()
        first.finalize_backward()
        self.assert_averaged(first.module)


class MixedPrecision(Ownership):

    def test_what_follows_a_forward_without_a_backward(self):
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

    def test_gradients_in_full_precision(self):
        hidden = self.wrapped(Branches(lambda y: lambda: y), mixed_precision=LOW, find_unused_parameters=True)
        hidden(self.x)().float().sum().backward()
        self.assert_equal_on_ranks(hidden, lambda parameter: parameter.grad)
        ours = self.wrapped(nn.Linear(2, 99, bias=False), mixed_precision=LOW)
        with ours.join():
            with ours.no_sync():
                ours(self.x)
            if two.RANK == 0:
                ours(self.x).float().sum().backward()
                self.assertEqual(ours.module.weight.grad.tolist(), [[0.5, 0.5]] * 99)

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

    def stop(self, layer, loss, **options):
        """A pass that a hook of the layer's weight ends on rank 1 alone."""
        handle = layer.weight.register_hook(lambda _: 1 // 0) if two.RANK == 1 else None
        expected = (ZeroDivisionError, '') if handle else (lockstep.FailedPrecondition, 'rank 1: an exception has stopped')
        with self.assertRaisesRegex(*expected):
            loss.backward(**options)
        if handle:
            handle.remove()

    def test_gradients_after_it_without_the_wrapper_are_local(self):
        module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
        ours = self.wrapped(module)
        self.stop(module[0], ours(self.x).sum())
        if two.RANK == 1:
            for _ in range(2):
                module.zero_grad()
                module(self.x).sum().backward()
        module.zero_grad()
        ours(self.x).sum().backward()
        self.assert_equal_on_ranks(ours, lambda parameter: parameter.grad)

    def test_a_graph_that_is_left_of_it_is_averaged(self):
        ours = self.wrapped()
        loss = ours(self.x).sum()
        self.stop(ours.module, loss, retain_graph=True)
        ours.zero_grad()
        loss.backward()
        self.assert_averaged(ours.module)


class InThePass(Ownership):
    """Programs that do something in a backward pass, when gradients are already being averaged."""

    def layers(self):
        return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))

    def test_writing_to_a_gradient_is_an_error(self):
        for options in ({}, {'find_unused_parameters': True}, {'gradient_as_bucket_view': True}, {'static_graph': True}):
            ours = self.wrapped(self.layers(), **options)
            handle = ours.module[2].register_full_backward_hook(lambda module, *_: [module.weight.grad.clamp_(-1, 1)][1:] or None)
            with self.assertRaisesRegex(lockstep.FailedPrecondition, "gradient of parameter '2.weight' was written to"):
                ours(self.x).sum().backward()
            handle.remove()
            ours.zero_grad()
            ours(self.x).sum().backward()
            self.assert_equal_on_ranks(ours, lambda parameter: parameter.grad)

    def test_a_gradient_that_is_removed_or_replaced_is_the_average(self):
        for replacement, shared in itertools.product((lambda gradient: None, torch.clone, torch.zeros_like), (False, True)):
            ours, theirs = self.pair(self.layers)
            other = self.wrapped(ours.module) if shared else None  # noqa: F841
            for model in (ours, theirs):
                last = model.module[2].weight

                def replace(_, last=last):
                    last.grad = replacement(last.grad)
                model.module[0].weight.register_hook(replace)
                for _ in range(2):
                    model(self.x).sum().backward()
            for one, other in zip(ours.parameters(), theirs.parameters()):
                torch.testing.assert_close(one.grad, other.grad)

    def test_a_gradient_in_memory_that_the_program_keeps(self):
        kept = torch.full((2, 2), 1.0 + two.RANK)
        module = nn.Linear(2, 2)
        module.weight.register_hook(lambda _: kept)
        module.bias.register_hook(lambda _: kept[:, 0])
        ours = self.wrapped(module)
        for _ in range(3):
            ours.zero_grad()
            ours(self.x).sum().backward()
            self.assert_averaged(module)
            self.assertEqual(module.bias.grad.tolist(), [1.5, 1.5])
        self.assertEqual(kept.tolist(), [[1.0 + two.RANK] * 2] * 2)

    def test_a_reentrant_checkpoint_in_no_sync_after_a_forward_without_a_backward(self):
        for count in (1, 2):
            module = nn.Sequential(nn.Linear(2, 2), Checkpointed(nn.Linear(2, 2)))
            wrappers = [self.wrapped(module) for _ in range(count)]
            for ours in wrappers:
                ours(self.x)
            with contextlib.ExitStack() as stack:
                for ours in wrappers:
                    stack.enter_context(ours.no_sync())
                sum(ours(self.x).sum() for ours in wrappers).backward()
            self.assertEqual([ours._averager.steps for ours in wrappers], [0] * count)

    def test_a_pass_of_another_wrapper(self):
        class Inside(torch.autograd.Function):
            @staticmethod
            def forward(ctx, y, other, x):
                ctx.other, ctx.x = other, x
                return y * 1

            @staticmethod
            def backward(ctx, gradient):
                with torch.enable_grad():
                    ctx.other(ctx.x).sum().backward()
                return gradient, None, None

        outer, inner = self.wrapped(), self.wrapped()
        for _ in range(3):
            outer.zero_grad(), inner.zero_grad()
            Inside.apply(outer(self.x), inner, self.x).sum().backward()
            self.assert_averaged(outer.module)
            self.assert_averaged(inner.module)


class Leftovers(Ownership):

    def test_gradients_of_unused_parameters_are_refused_in_a_static_graph(self):
        for before in (False, True):
            ours = self.wrapped(Branches(), static_graph=True)
            if before:
                ours.module.parts[1 - two.RANK].weight.grad = torch.ones(2, 2)
            else:
                ours(self.x).sum().backward()
                if two.RANK == 0:
                    ours.zero_grad()  # the step fails here, too
            with self.assertRaisesRegex(lockstep.FailedPrecondition, r"'parts.\d.weight' has a gradient of an earlier pass.*find_unused"):
                ours(self.x).sum().backward()
            ours.zero_grad()
            ours(self.x).sum().backward()
            self.assert_equal_on_ranks(ours, lambda parameter: parameter.grad)

    def test_optimizers_step_with_averages_only(self):
        """Not with zeros that were there, nor, on a rank without inputs, with the average of an earlier step."""
        ours = self.wrapped(Branches(), static_graph=True, optimizer_step=lambda those: [each.sub_(each.grad) for each in those])
        for parameter in ours.parameters():
            parameter.grad = torch.zeros_like(parameter)
        ours(self.x).sum().backward()
        self.assert_equal_on_ranks(ours)
        module = nn.Linear(2, 2, bias=False)
        _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {'lr': 0.1, 'momentum': 0.9})
        ours = self.wrapped(module)
        if two.RANK == 0:
            with torch.no_grad():
                ours(self.x)  # does not wait for the other rank
        dist.barrier()
        with ours.join():
            for _ in range(0 if two.RANK == 1 else 3):
                ours(self.x).sum().backward()
        ours.check_replicas(module.weight._in_backward_optimizers[0])

    def test_a_graph_of_a_wrapper_that_is_dropped(self):
        ours = self.wrapped()
        module, loss = ours.module, ours(self.x).sum()
        del ours
        gc.collect()
        loss.backward()
        self.assert_averaged(module)
        del loss
        module(self.x).sum().backward()
        self.assertEqual(module.weight.grad.tolist(), [[2.5 + two.RANK] * 2] * 2)


setUpModule = two.setUpModule

if __name__ == '__main__':
    ranks.main(2)
