"""Random modules, wrappers, hooks and passes with lockstep.torch.DistributedDataParallel, beside plain copies of the module.

Every process has a plain copy for each rank, computes all ranks' gradients with them, and averages them itself. So what is compared is
right also where torch's wrapper is not. LOCKSTEP_TEST_SEEDS=FIRST-LAST: other seeds. A failure names its seed and the case.
"""

import copy
import os
import random
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import ranks
from lockstep.torch import DistributedDataParallel

FIRST, LAST = map(int, os.environ.get('LOCKSTEP_TEST_SEEDS', '0-299').split('-'))
WIDTH = 6


class NoGradient(torch.autograd.Function):
    """The engine reaches `scale`, and there is no gradient for it."""

    @staticmethod
    def forward(ctx, x, scale):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


class Block(nn.Module):
    """One of many kinds of layers with parameters."""

    KINDS = ('linear', 'tied', 'strided', 'scalar', 'empty', 'wide', 'no_gradient', 'checkpointed')

    def __init__(self, kind, unused_by):
        super().__init__()
        self.kind, self.unused_by = kind, unused_by
        self.inner = nn.Linear(WIDTH, WIDTH)
        if kind == 'tied':
            self.other = nn.Linear(WIDTH, WIDTH)
            self.other.weight = self.inner.weight
        if kind == 'strided':
            self.inner.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).t())
        if kind == 'wide':
            self.inner = nn.Sequential(nn.Linear(WIDTH, 300), nn.Tanh(), nn.Linear(300, WIDTH))
        shape = {'scalar': (), 'empty': (0, 2), 'no_gradient': (3,)}.get(kind)
        self.more = None if shape is None else nn.Parameter(torch.ones(shape))

    def forward(self, x, rank):
        if rank in self.unused_by:
            return x
        y = checkpoint(self.inner, x, use_reentrant=False) if self.kind == 'checkpointed' else self.inner(x)
        if self.kind == 'tied':
            y = self.other(torch.tanh(y))
        if self.kind == 'scalar':
            y = y * self.more
        if self.kind == 'empty':
            y = y + self.more.sum()
        if self.kind == 'no_gradient':
            y = NoGradient.apply(y, self.more)
        return torch.tanh(y)


class Net(nn.Module):

    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x, rank):
        for block in self.blocks:
            x = block(x, rank)
        return x


def clamp(parameter):
    if parameter.grad is not None:
        parameter.grad.clamp_(-0.01, 0.01)


def replace(parameter):
    if parameter.grad is not None:
        parameter.grad = parameter.grad * 0.5


def drop(parameter):
    parameter.grad = None


class Plan:
    """The case of a seed, which is the same on all ranks."""

    def __init__(self, seed):
        draw = self.draw = random.Random(seed)
        self.options = {}
        if draw.random() < 0.4:
            self.options['find_unused_parameters'] = True
        if draw.random() < 0.3:
            self.options['gradient_as_bucket_view'] = True
        if draw.random() < 0.5:
            self.options['bucket_cap_mb'] = draw.choice([1e-5, 1e-4, 1e-3])
        self.shape = draw.choice(['one', 'one', 'two', 'nested'])
        self.kinds = [draw.choice(Block.KINDS) for _ in range(draw.randint(1, 4))]
        find = 'find_unused_parameters' in self.options
        self.unused_by = [{rank for rank in range(WORLD) if find and draw.random() < 0.3} for _ in self.kinds]
        self.unused_by[-1] = set()  # a pass reaches something
        self.hooks = [(draw.choice([clamp, replace, drop]), draw.random() < 0.5, draw.random())
                      for _ in range(draw.choice([0, 0, 1, 2]))]
        self.passes = [self._pass(draw) for _ in range(draw.randint(2, 5))]

    @staticmethod
    def _pass(draw):
        return {'no_sync': draw.random() < 0.3, 'forwards': draw.choice([1, 1, 1, 2]), 'again': draw.random() < 0.15,
                'amp': draw.random() < 0.15, 'zero': draw.choice(['none', 'zero', 'keep'])}

    def __str__(self):
        hooks = [(hook.__name__, 'before' if before else 'after', round(which, 2)) for hook, before, which in self.hooks]
        return f'{self.shape} {self.kinds} unused by {self.unused_by} {self.options} {hooks} {self.passes}'

    def net(self):
        return Net([Block(kind, unused) for kind, unused in zip(self.kinds, self.unused_by)])

    def parts(self):
        """The modules to wrap, without wrappers. Two tasks have the first one's blocks in common."""
        first = self.net()
        if self.shape == 'one' or self.shape == 'nested':
            return [first]
        return [first, Net([*first.blocks, Block('linear', set())])]

    def hook(self, parameters, before):
        for hook, when, which in self.hooks:
            if when == before:
                parameters[int(which * len(parameters))].register_post_accumulate_grad_hook(hook)


def unique(parts):
    return list(dict.fromkeys(parameter for part in parts for parameter in part.parameters()))


class Random(unittest.TestCase):

    def test_gradients_are_those_of_the_plain_copies(self):
        for seed in range(FIRST, LAST + 1):
            plan = Plan(seed)
            try:
                self.run_plan(seed, plan)
            except Exception as error:
                raise AssertionError(f'seed {seed}: {plan}') from error

    def run_plan(self, seed, plan):
        torch.manual_seed(seed)
        parts = plan.parts()
        copies = [copy.deepcopy(nn.ModuleList(parts)) for _ in range(WORLD)]
        ours = unique(parts)
        plan.hook(ours, before=True)
        if plan.shape == 'nested':
            block = parts[0].blocks[-1]
            parts[0].blocks[-1] = DistributedDataParallel(block, **plan.options)
        models = [DistributedDataParallel(part, **plan.options) for part in parts]
        plan.hook(ours, before=False)
        for each in copies:
            plan.hook(unique(each), before=True), plan.hook(unique(each), before=False)
        for number, step in enumerate(plan.passes):
            for parameters in (ours, *map(unique, copies)):
                for parameter in parameters:
                    if step['zero'] == 'none' or parameter.grad is None:
                        parameter.grad = None
                    elif step['zero'] == 'zero':
                        parameter.grad.zero_()
            for repeat in range(2 if step['again'] else 1):
                if repeat == 0:
                    loss = self.loss(models, seed, number, step, RANK)
                    losses = [self.loss(each, seed, number, step, rank) for rank, each in enumerate(copies)]
                keeps = step['again'] and repeat == 0
                loss.backward(retain_graph=keeps)
                for each in losses:
                    each.backward(retain_graph=keeps)
                self.average(plan, step, [unique(each) for each in copies])
                self.compare(ours, unique(copies[RANK]), f'pass {number}.{repeat}')
        for model in models:
            model.close()
        if plan.shape == 'nested':
            parts[0].blocks[-1].close()

    @staticmethod
    def loss(models, seed, number, step, rank):
        total = 0
        for forward in range(step['forwards']):
            x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1000 * seed + 100 * number + 10 * forward + rank))
            for model in models:
                inner = [part for part in model.modules() if isinstance(part, DistributedDataParallel)]
                for part in inner if step['no_sync'] else ():
                    part.require_backward_grad_sync = False
                with torch.autocast('cpu', torch.bfloat16, enabled=step['amp']):
                    total = total + model(x, rank).float().square().sum()
                for part in inner:
                    part.require_backward_grad_sync = True
        return total

    @staticmethod
    def average(plan, step, copies):
        if step['no_sync']:
            return
        for same in zip(*copies):
            if all(parameter.grad is None for parameter in same) and 'find_unused_parameters' in plan.options:
                continue
            zeros = torch.zeros_like(same[0])
            average = sum(zeros if parameter.grad is None else parameter.grad for parameter in same) / len(same)
            for parameter in same:
                parameter.grad = average.clone()

    def compare(self, ours, plain, where):
        for index, (parameter, other) in enumerate(zip(ours, plain)):
            self.assertEqual(parameter.grad is None, other.grad is None, f'{where}, parameter {index}')
            if other.grad is not None:
                torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-5,
                                           msg=lambda text: f'{where}, parameter {index}: {text}')


def setUpModule():
    global RANK, WORLD
    RANK, WORLD = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    torch.set_num_threads(1)
    dist.init_process_group('lockstep')


if __name__ == '__main__':
    ranks.main(3)
