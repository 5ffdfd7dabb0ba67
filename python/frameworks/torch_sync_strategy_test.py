"""Composer's synchronisation strategies on two ranks: what each micro-batch leaves, and that all three end with the same gradients."""

import os
import unittest

import torch
import torch.distributed as dist

import lockstep
import ranks
from lockstep.torch import DistributedDataParallel
from lockstep.torch.sync_strategy import SyncStrategy, sync_context

MICRO_BATCHES = 3


class Branches(torch.nn.Module):
    """Uses `shared` always, and one of two others."""

    def __init__(self):
        super().__init__()
        self.shared, self.left, self.right = (torch.nn.Linear(2, 2, bias=False) for _ in range(3))

    def forward(self, x, left):
        x = self.shared(x)
        return self.left(x) if left else self.right(x)


class Strategies(unittest.TestCase):

    def run_step(self, strategy, find_unused=True, left=lambda micro: True):
        """After each micro-batch: whether the ranks' gradients of `shared` are equal, and how often averaging has begun."""
        torch.manual_seed(3)
        model = DistributedDataParallel(Branches(), find_unused_parameters=find_unused)
        seen = []
        for micro in range(MICRO_BATCHES):
            with sync_context(model, micro + 1 == MICRO_BATCHES, strategy):
                # Multiples of a power of two, which all strategies add without rounding.
                model(torch.full((1, 2), float(1 + micro + 4 * RANK)), left(micro)).sum().backward()
            seen.append((self.is_equal(model.module.shared.weight.grad), model._averager.steps))
        return model, seen

    def is_equal(self, tensor):
        found = [torch.empty_like(tensor) for _ in range(2)]
        dist.all_gather(found, tensor)
        return torch.equal(*found)

    def test_what_each_micro_batch_leaves(self):
        for strategy, expected in (('single_auto_sync', [(False, 0), (False, 0), (True, 1)]),
                                   ('multi_auto_sync', [(True, 1), (True, 2), (True, 3)]),
                                   ('forced_sync', [(False, 0), (False, 0), (True, 1)]),
                                   (None, [(True, 1), (True, 2), (True, 3)])):
            with self.subTest(strategy=strategy):
                self.assertEqual(self.run_step(strategy)[1], expected)

    def test_the_default_without_unused_parameters(self):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        for last in (False, True):
            with sync_context(model, last):
                model(torch.ones(1, 2)).sum().backward()
            self.assertEqual(model._averager.steps, int(last))

    def test_all_end_with_the_same_gradients(self):
        # Ranks take different branches in different micro-batches; nobody takes `right` on rank 0.
        def left(micro):
            return RANK == 0 or micro == 1
        found = {strategy: self.run_step(strategy, left=left)[0].module for strategy in SyncStrategy}
        reference = found[SyncStrategy.SINGLE_AUTO_SYNC]
        for strategy, module in found.items():
            for (name, parameter), other in zip(module.named_parameters(), reference.parameters()):
                torch.testing.assert_close(parameter.grad, other.grad, msg=lambda text: f'{strategy} {name}: {text}')
                self.assertTrue(self.is_equal(parameter.grad))

    def test_forced_sync_names_parameters_that_only_some_ranks_used(self):
        with self.assertRaisesRegex(lockstep.FailedPrecondition, r"'right\.weight'"):
            self.run_step('forced_sync', find_unused=False)

    def test_an_exception_is_passed_on_and_nothing_is_averaged(self):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        with self.assertRaises(ZeroDivisionError), sync_context(model, True, 'forced_sync'):
            model(torch.ones(1, 2)).sum().backward()
            raise ZeroDivisionError()
        self.assertEqual(model._averager.steps, 0)
        self.assertTrue(model.require_backward_grad_sync)

    def test_an_unknown_strategy(self):
        with self.assertRaisesRegex(ValueError, 'never'), sync_context(DistributedDataParallel(torch.nn.Linear(2, 2)), True, 'never'):
            pass


def setUpModule():
    global RANK
    RANK = int(os.environ['RANK'])
    dist.init_process_group('lockstep')


if __name__ == '__main__':
    ranks.main(2)
