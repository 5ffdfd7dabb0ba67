"""Random modules, wrappers, hooks and passes with lockstep.torch.DistributedDataParallel, beside plain copies of the module.

Every process has a plain copy for each rank, computes all ranks' gradients with them, and averages them itself. So what is compared is
right also where torch's wrapper is not. LOCKSTEP_TEST_SEEDS=FIRST-LAST: other seeds. A failure names its seed and the case.
"""

import contextlib
import copy
import os
import random
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel.distributed import _MixedPrecision
from torch.utils.checkpoint import checkpoint

import ranks
from lockstep.torch import DistributedDataParallel

FIRST, LAST = map(int, os.environ.get('LOCKSTEP_TEST_SEEDS', '0-299').split('-'))
WIDTH = 6
RATE = 0.05  # of optimizers


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

    KINDS = ('linear', 'tied', 'strided', 'scalar', 'empty', 'wide', 'no_gradient', 'checkpointed', 'reentrant')

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
        if self.kind in ('checkpointed', 'reentrant'):
            reentrant = self.kind == 'reentrant'
            y = checkpoint(self.inner, x.requires_grad_() if reentrant else x, use_reentrant=reentrant)
        else:
            y = self.inner(x)
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


def all_reduce(_, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / WORLD)


def gather_and_reduce(_, bucket):
    """Several collectives in turn, as PowerSGD has: half of the bucket is gathered, and half is reduced."""
    half = bucket.buffer().numel() // 2
    gathered = [torch.empty_like(bucket.buffer()[:half]) for _ in range(WORLD)]
    dist.all_gather(gathered, bucket.buffer()[:half].contiguous())
    rest = bucket.buffer()[half:].clone()
    return dist.all_reduce(rest, async_op=True).get_future().then(lambda _: torch.cat([sum(gathered), rest]) / WORLD)


COMM_HOOKS = {'all_reduce': all_reduce, 'gather_and_reduce': gather_and_reduce, 'built_in': 'all_reduce',
              'fp16': default_hooks.fp16_compress_hook, 'bf16': 'bf16_compress',
              'fp16_wrapper': default_hooks.fp16_compress_wrapper(all_reduce)}


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
        self.static = draw.random() < 0.2
        if self.static:
            self.options['static_graph'] = True
        self.comm_hook = draw.choice([*COMM_HOOKS]) if draw.random() < 0.3 else None
        # One of these at most: they exclude each other.
        self.way = draw.choice(['plain'] * 6 + ['mixed', 'mixed', 'join', 'join', 'optimizer', 'delay'])
        self.compiled = draw.choice(['wrapper', 'module']) if seed % 60 == 59 else None
        self.initial = draw.random() < 0.5  # join divides by the initial world size
        kinds = [kind for kind in Block.KINDS if not (kind == 'no_gradient' and self.static)]
        self.kinds = [draw.choice(kinds) for _ in range(draw.randint(1, 4))]
        self.passes = [self._pass(draw) for _ in range(draw.randint(2, 5))]
        self.hooks = [(draw.choice([clamp, replace, drop]), draw.random() < 0.5, draw.random())
                      for _ in range(draw.choice([0, 0, 1, 2]))]
        self._reconcile()
        self.may_skip = self.static or 'find_unused_parameters' in self.options
        self.unused_by = [{rank for rank in range(WORLD) if self.may_skip and draw.random() < 0.3} for _ in self.kinds]
        self.unused_by[-1] = set()  # a pass reaches something

    def _reconcile(self):
        """Takes out what the wrapper, as torch's, is not for."""
        if self.compiled:
            self._not_static()
            self.way, self.comm_hook = 'plain', None
            self.options.pop('bucket_cap_mb', None)  # dynamo refuses small first buckets
        if self.way in ('join', 'optimizer', 'delay'):
            self.shape = 'one'
        if self.way == 'delay':
            self.options.pop('find_unused_parameters', None)
            self._not_static()
            self.kinds, self.hooks = ['linear', *self.kinds], []
        if self.way == 'optimizer':
            self.comm_hook = None
        if self.way == 'mixed':
            self.options['mixed_precision'] = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            self.hooks = [hook for hook in self.hooks if hook[0] is clamp]
        if self.static:
            self.hooks = [hook for hook in self.hooks if hook[0] is not drop]
            self.passes[0]['no_sync'] = False
            for step in self.passes:  # what is left of an unused parameter is refused
                step['zero'] = 'none' if step['zero'] == 'keep' else step['zero']
        for step in self.passes:
            if self.static or self.compiled or self.way in ('join', 'optimizer'):
                step['again'] = False
            if self.static or self.way == 'join':
                step['forwards'] = 1
            if self.way in ('mixed', 'delay'):
                step['amp'] = False
        # The engine accumulates behind a reentrant checkpoint more than once if it is passed more than once.
        once = self.static or (self.shape != 'two' and all(step['forwards'] == 1 for step in self.passes))
        if not once or self.compiled or ('find_unused_parameters' in self.options and not self.static):
            self.kinds = ['checkpointed' if kind == 'reentrant' else kind for kind in self.kinds]

    def _not_static(self):
        self.static = False
        self.options.pop('static_graph', None)

    @staticmethod
    def _pass(draw):
        return {'no_sync': draw.random() < 0.3, 'forwards': draw.choice([1, 1, 1, 2]), 'again': draw.random() < 0.15,
                'amp': draw.random() < 0.15, 'zero': draw.choice(['none', 'zero', 'keep'])}

    def inputs(self, rank):
        """How many passes a rank makes: with join, ranks differ."""
        return max(1, len(self.passes) - (rank if self.way == 'join' else 0))

    def __str__(self):
        hooks = [(hook.__name__, 'before' if before else 'after', round(which, 2)) for hook, before, which in self.hooks]
        return (f'{self.shape} {self.way} {self.kinds} unused by {self.unused_by} {self.options} {self.comm_hook} '
                f'compiled: {self.compiled} initial: {self.initial} {hooks} {self.passes}')

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

    def wrap(self, plan, part):
        options = dict(plan.options)
        if plan.way == 'delay':
            last = part.blocks[-1]
            options.update(delay_all_reduce_named_params=[*last.named_parameters()], param_to_hook_all_reduce=part.blocks[0].inner.weight)
        if plan.way == 'optimizer':
            _apply_optimizer_in_backward(torch.optim.SGD, part.parameters(), {'lr': RATE})
        if plan.compiled == 'module':
            part.compile(backend='aot_eager')
        model = DistributedDataParallel(part, **options)
        if plan.comm_hook:
            model.register_comm_hook(None, COMM_HOOKS[plan.comm_hook])
        if plan.compiled == 'wrapper':
            model.compile(backend='aot_eager')
        return model

    def run_plan(self, seed, plan):
        torch.manual_seed(seed)
        parts = plan.parts()
        copies = [copy.deepcopy(nn.ModuleList(parts)) for _ in range(WORLD)]
        ours = unique(parts)
        plan.hook(ours, before=True)
        if plan.shape == 'nested':
            parts[0].blocks[-1] = self.wrap(plan, parts[0].blocks[-1])
        models = [self.wrap(plan, part) for part in parts]
        plan.hook(ours, before=False)
        for each in copies:
            plan.hook(unique(each), before=True), plan.hook(unique(each), before=False)
        join = Join(models, divide_by_initial_world_size=plan.initial) if plan.way == 'join' else contextlib.nullcontext()
        with join:
            for number, step in enumerate(plan.passes[:plan.inputs(RANK)]):
                self.run_pass(seed, plan, number, step, models, ours, copies)
        for model in models:
            model.close()
        if plan.shape == 'nested':
            parts[0].blocks[-1].close()
        if plan.compiled:
            torch._dynamo.reset()

    def run_pass(self, seed, plan, number, step, models, ours, copies):
        live = [rank for rank in range(WORLD) if plan.inputs(rank) > number]
        for parameters in (ours, *map(unique, copies)):
            for parameter in parameters:
                if step['zero'] == 'none' or parameter.grad is None:
                    parameter.grad = None
                elif step['zero'] == 'zero':
                    parameter.grad.zero_()
        for repeat in range(2 if step['again'] else 1):
            if repeat == 0:
                loss = self.loss(models, seed, number, step, RANK)
            loss.backward(retain_graph=step['again'] and repeat == 0)
            for rank in live:
                with lowered(unique(copies[rank]), plan.way == 'mixed'):
                    self.loss(copies[rank], seed, number, step, rank).backward()
            if not step['no_sync']:
                self.average(plan, [unique(copies[rank]) for rank in live])
            self.compare(plan, ours, unique(copies[RANK]), f'pass {number}.{repeat}')

    @staticmethod
    def loss(models, seed, number, step, rank):
        total = 0
        for forward in range(step['forwards']):
            x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1000 * seed + 100 * number + 10 * forward + rank))
            for model in models:
                parameter = next(model.parameters())
                inner = [part for part in model.modules() if isinstance(part, DistributedDataParallel)]
                for part in inner if step['no_sync'] else ():
                    part.require_backward_grad_sync = False
                with torch.autocast('cpu', torch.bfloat16, enabled=step['amp']):
                    # A wrapper casts its inputs itself.
                    total = total + model(x if inner else x.to(parameter.dtype), rank).float().square().sum()
                for part in inner:
                    part.require_backward_grad_sync = True
        return total

    @staticmethod
    def average(plan, copies):
        for same in zip(*copies):
            if not all(parameter.grad is None for parameter in same) or not plan.may_skip:
                zeros = torch.zeros_like(same[0])
                by = WORLD if plan.initial or plan.way != 'join' else len(same)
                average = sum(zeros if parameter.grad is None else parameter.grad for parameter in same) / by
                for parameter in same:
                    parameter.grad = average.clone()
            if plan.way == 'optimizer':
                for parameter in same:
                    if parameter.grad is not None:
                        parameter.data -= RATE * parameter.grad
                    parameter.grad = None

    def compare(self, plan, ours, plain, where):
        # Between two passes behind reentrant checkpoints the plain copy keeps the lower precision.
        rounded = plan.comm_hook and '16' in plan.comm_hook or plan.way == 'mixed' and 'reentrant' in plan.kinds
        rtol, atol = (0.02, 0.02) if rounded else (1e-4, 1e-5)
        for index, (parameter, other) in enumerate(zip(ours, plain)):
            self.assertEqual(parameter.grad is None, other.grad is None, f'{where}, parameter {index}')
            for one, two in ((parameter.grad, other.grad), (parameter, other)):
                if two is not None:
                    torch.testing.assert_close(one, two, rtol=rtol, atol=atol, msg=lambda text: f'{where}, parameter {index}: {text}')


@contextlib.contextmanager
def lowered(parameters, lower):
    """Mixed precision for a plain module."""
    full = [parameter.data for parameter in parameters]
    for parameter in parameters if lower else ():
        parameter.data = parameter.to(torch.bfloat16)
    yield
    for parameter, data in zip(parameters if lower else (), full):
        if parameter.grad is not None:
            parameter.grad.data = parameter.grad.float()
        parameter.data = data


def setUpModule():
    global RANK, WORLD
    RANK, WORLD = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    torch.set_num_threads(1)
    dist.init_process_group('lockstep')


if __name__ == '__main__':
    ranks.main(3)
