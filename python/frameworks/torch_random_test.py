"""Random modules, wrappers, hooks and passes with lockstep.torch.DistributedDataParallel, beside plain copies of the module.

Every process has a plain copy for each rank, computes all ranks' gradients with them, and averages them itself. So what is compared is
right also where torch's wrapper is not. All ranks have the same bits. What may differ does, without an alarm. At the end of a case a bit
of a parameter is flipped on one rank, which has to be found. LOCKSTEP_TEST_SEEDS=FIRST-LAST: other seeds. A failure names its seed.
"""

import concurrent.futures
import contextlib
import copy
import functools
import itertools
import os
import random
import types
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, post_localSGD_hook
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel.distributed import _MixedPrecision
from torch.utils.checkpoint import checkpoint

import lockstep
import ranks
from lockstep.torch import DistributedDataParallel, check_replicas

FIRST, LAST = map(int, os.environ.get('LOCKSTEP_TEST_SEEDS', '0-299').split('-'))
WIDTH = 6
RATE = 0.01  # of optimizers
THREAD = concurrent.futures.ThreadPoolExecutor(1)


class NoGradient(torch.autograd.Function):
    """The engine reaches `scale`, and there is no gradient for it."""

    @staticmethod
    def forward(ctx, x, scale):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


class Detaches(torch.autograd.Function):
    """Both gradients are in one piece of memory, of which only one tensor says so."""

    @staticmethod
    def forward(ctx, one, other):
        return one + other

    @staticmethod
    def backward(ctx, gradient):
        return gradient.view_as(gradient), gradient.detach()


# Kinds of blocks with further parameters: their shapes, and what the block computes of them.
MORE = {
    'scalar': ([()], lambda x, scale: x * scale),
    'empty': ([(0, 2)], lambda x, empty: x + empty.sum()),
    'no_gradient': ([(3,)], NoGradient.apply),
}
# Here the engine makes gradients of memory that it also reads later, or of which it makes other gradients.
SHARED_MEMORY = {
    'added': ([(WIDTH,)] * 2, lambda x, a, b: x + a[None] + b[None]),
    'reshaped': ([(WIDTH,)] * 2, lambda x, a, b: x + (a.view(WIDTH, 1) + b.view(WIDTH, 1)).view(1, WIDTH)),
    'joined': ([(WIDTH,), (2,), (WIDTH - 2,)], lambda x, a, b, c: x + (a + torch.cat([b, c]))[None] + a.view(1, WIDTH)),
    'stacked': ([(WIDTH,)] * 2, lambda x, a, b: x + sum(torch.stack([a, b]).unbind(0))),
    'detached': ([(WIDTH,)] * 2, lambda x, a, b: x + Detaches.apply(a, b)),
}
MORE.update(SHARED_MEMORY)
DTYPES = {'double': torch.float64, 'bfloat16': torch.bfloat16, 'complex': torch.complex64}
KINDS = ['linear', 'tied', 'strided', 'normalized', 'sparse', 'wide', 'checkpointed', *['reentrant'] * 3, *MORE, *DTYPES]


def layer(kind):
    if kind == 'wide':
        return nn.Sequential(nn.Linear(WIDTH, 300), nn.Tanh(), nn.Linear(300, WIDTH))
    made = nn.Embedding(WIDTH, WIDTH, sparse=True) if kind == 'sparse' else nn.Linear(WIDTH, WIDTH, dtype=DTYPES.get(kind))
    if kind == 'strided':
        made.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).t())
    if kind == 'normalized':
        nn.utils.parametrizations.weight_norm(made)
    return made


class Block(nn.Module):

    def __init__(self, kind, unused_by):
        super().__init__()
        self.kind, self.unused_by = kind, unused_by
        self.inner = layer(kind)
        if kind == 'tied':
            self.other = nn.Linear(WIDTH, WIDTH)
            self.other.weight = self.inner.weight
        shapes, _ = MORE.get(kind, ([], None))
        self.more = nn.ParameterList(map(torch.ones, shapes))

    def forward(self, x, place):
        if place in self.unused_by:
            return x
        dtype, x = x.dtype, x.to(next(self.inner.parameters()).dtype)
        if self.kind == 'checkpointed':
            y = checkpoint(self.inner, x, use_reentrant=False)
        elif self.kind == 'reentrant':
            y = checkpoint(self.inner, x.requires_grad_(), use_reentrant=True)
        elif self.kind == 'sparse':
            y = x + self.inner((torch.arange(len(x)) + place) % WIDTH)
        else:
            y = self.inner(x)
        if self.kind == 'tied':
            y = self.other(torch.tanh(y))
        if self.kind in MORE:
            _, compute = MORE[self.kind]
            y = compute(y, *self.more)
        if y.is_complex():
            y = torch.view_as_real(y).sum(-1)
        return torch.tanh(y.to(dtype))


class Net(nn.Module):

    def __init__(self, blocks, own=()):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.own = nn.ParameterDict({name: nn.Parameter(torch.ones(3), requires_grad=name != 'frozen') for name in own})
        self.register_buffer('buffer', torch.ones(3))
        self._ddp_params_and_buffers_to_ignore = ['own.ignored']

    def forward(self, x, place):
        for block in self.blocks:
            x = block(x, place)
        return x + sum(0 * each.sum() for each in (self.buffer, *self.own.values()))

    def differ(self):
        """Fills the tensors that may differ between ranks with the rank's number."""
        for name, each in [('buffer', self.buffer), *self.own.items()]:
            each.data.fill_(RANK)
            each.requires_grad_(each.requires_grad and name != 'frozen_later')


def clamp(parameter):
    if parameter.grad is not None:
        parameter.grad.clamp_(-0.01, 0.01)


def replace(parameter):
    if parameter.grad is not None:
        parameter.grad = parameter.grad * 0.5


def drop(parameter):
    parameter.grad = None


def own(parameter):
    """The engine may give two gradients the same memory, and later add to both."""
    if parameter.grad is not None:
        parameter.grad.data = parameter.grad.clone()


def stop(gradient):
    raise ZeroDivisionError('on purpose')


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
LOCAL = {'local_noop': debugging_hooks.noop_hook, 'local': post_localSGD_hook.post_localSGD_hook,
         'local_fp16': default_hooks.fp16_compress_wrapper(post_localSGD_hook.post_localSGD_hook)}  # average nothing
COMM_HOOKS.update(LOCAL)


def set_gradients(parameters, how):
    """Gives the parameters what they have in .grad when a backward pass begins."""
    for dtype in {parameter.dtype for parameter in parameters} if how == 'flat' else ():
        # Zeros that are parts of one buffer.
        those = [parameter for parameter in parameters if parameter.dtype is dtype]
        sizes = [parameter.numel() for parameter in those]
        for parameter, part in zip(those, torch.zeros(sum(sizes), dtype=dtype).split(sizes)):
            parameter.grad = part.view_as(parameter)
    for parameter in parameters:
        if how == 'ones':
            parameter.grad = torch.ones_like(parameter)
        elif how == 'none':
            parameter.grad = None
        elif how == 'zero' and parameter.grad is not None:
            parameter.grad.zero_()


# Options of the wrapper: how often, and their values.
OPTIONS = {
    'find_unused_parameters': (0.4, [True]), 'static_graph': (0.2, [True]), 'gradient_as_bucket_view': (0.3, [True]),
    'bucket_cap_mb': (0.5, [1e-5, 1e-4, 1e-3]), 'bucket_cap_mb_list': (0.1, [[1e-5, 1e-3]]), 'preserve_gradients': (0.1, [True]),
    'broadcast_buffers': (0.5, [False]), 'buckets_in_memory_max': (0.1, [1]), 'gradient_memory': (0.15, ['copied', 'in_place']),
    'no_replan': (0.1, [True]), 'averaging': (0.1, ['after', 'in_collective', 'predivide']),
    'compression': (0.1, ['bfloat16', 'float16']), 'caps_from_last': (0.1, [True]), 'no_overlap': (0.1, [True]),
    'init_sync': (0.1, [False]),
}


class Plan:
    """The case of a seed, which is the same on all ranks."""

    def __init__(self, seed):
        self.seed = seed
        draw = self.draw = random.Random(seed)
        self.options = {name: draw.choice(values) for name, (probability, values) in OPTIONS.items() if draw.random() < probability}
        self.static = 'static_graph' in self.options
        self.shape = draw.choice(['one', 'one', 'two', 'nested', 'apart'])
        self.comm_hook = draw.choice([*COMM_HOOKS]) if draw.random() < 0.3 else None
        # The wrapper refuses mixed precision with optimizers. By the seed, joining and delaying also go with the other ways.
        self.way = draw.choice(['plain'] * 6 + ['mixed', 'mixed', 'join', 'join', 'delay', 'optimizer', 'optimizer_step'])
        self.steps_in_backward = self.way in ('optimizer', 'optimizer_step')
        self.compiled = draw.choice(['wrapper', 'module']) if seed % 60 == 59 else None
        self.initial = draw.random() < 0.5  # join divides by the initial world size
        self.throws = draw.random() < 0.2  # once a rank has no inputs, join raises on all ranks
        self.reduce_dtype = draw.choice([torch.float32, None])  # of mixed precision
        self.batch = draw.choice([1, 3])
        self.kinds = [draw.choice(KINDS) for _ in range(draw.randint(1, 4))]
        self.own = [name for name in ('ignored', 'may_drift', 'frozen', 'frozen_later') if draw.random() < 0.2]  # by each rank
        self.passes = [self._pass(draw) for _ in range(draw.randint(2, 5))]
        self.hooks = [(draw.choice([clamp, replace, drop]), draw.random() < 0.5, draw.random())
                      for _ in range(draw.choice([0, 0, 1, 2]))]
        self._reconcile()
        self.local = self.comm_hook in LOCAL
        self.may_skip = self.static or 'find_unused_parameters' in self.options
        self.unused_by = [{place for place in range(WORLD) if self.may_skip and draw.random() < 0.3} for _ in self.kinds]
        self.unused_by[-1] = set()  # a pass reaches something
        if self.delays and self.static:
            self.unused_by[0] = set()  # and the trigger
        rounds = self.comm_hook is not None and '16' in self.comm_hook or 'compression' in self.options
        # Compiled code may round elsewhere.
        rounds |= self.compiled is not None and (self.way == 'mixed' or any(step.amp for step in self.passes))
        # Between two passes behind reentrant checkpoints the plain copy keeps the lower precision.
        self.rounds = rounds or self.way == 'mixed' and (self.reduce_dtype is None or 'reentrant' in self.kinds)

    @staticmethod
    def _pass(draw):
        """again: two backward passes through one graph. apart: a backward pass for each forward pass. late: gradients are set after the
        forward pass. stopped_by: before, an exception has stopped a pass on that rank, or on all (WORLD). steps: an optimizer follows."""
        return types.SimpleNamespace(
            no_sync=draw.random() < 0.3, forwards=draw.choice([1, 1, 1, 2]), again=draw.random() < 0.15, apart=draw.random() < 0.5,
            amp=draw.random() < 0.15, gradients=draw.choice(['none', 'none', 'zero', 'keep', 'ones', 'flat']), late=draw.random() < 0.3,
            stopped_by=draw.randrange(WORLD + 1) if draw.random() < 0.15 else None, unfinished=draw.random() < 0.1,
            freezes=draw.random() < 0.3, evaluated=draw.random() < 0.1, reversed=draw.random() < 0.3, threaded=draw.random() < 0.1,
            steps=draw.random() < 0.5)

    def _reconcile(self):
        """Takes out what torch or the wrapper refuses, and what has no defined result to compare."""
        if 'gradient_as_bucket_view' in self.options:
            self.options.pop('buckets_in_memory_max', None)
            self.options.pop('gradient_memory', None)
        if 'bucket_cap_mb_list' in self.options:
            self.options.pop('bucket_cap_mb', None)
        if self.comm_hook in ('fp16', 'bf16'):  # these set the option
            self.options.pop('compression', None)
        elif self.comm_hook not in (None, 'built_in'):  # the hook averages
            self.options.pop('averaging', None)
        if self.compiled and self.way == 'delay':  # compiled code gives its gradients in any order, and the trigger's must be the last
            self.way = 'plain'
        self.delays = self.way == 'delay' or self.seed % 5 == 3 and self.way != 'plain' and not self.compiled
        self.joins = self.way == 'join' or self.seed % 2 == 1 and self.way != 'plain'
        self.throws &= self.joins
        # A rank without inputs handles the wrappers one after the other. The wrapper refuses shared parameters with optimizers.
        if self.shape == 'nested' and self.joins or self.shape in ('nested', 'two') and self.steps_in_backward:
            self.shape = 'one'
        if self.shape == 'two' and self.joins and self.static:  # the first wrapper leaves gradients that a static graph refuses
            self.shape = 'apart'
        if self.delays:
            self.kinds, self.hooks = ['linear', *self.kinds], []
        if self.way == 'mixed':
            self.options['mixed_precision'] = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=self.reduce_dtype)
            self.hooks = [hook for hook in self.hooks if hook[0] is clamp]
        if self.static:
            self.passes[0].no_sync = False
        if {'complex', *SHARED_MEMORY} & {*self.kinds}:
            # In place, also without a wrapper, these change other gradients in the shared memory. Complex numbers cannot be clamped.
            self.hooks = [hook for hook in self.hooks if hook[0] is not clamp]
        # Sparse gradients cannot be delayed, compiled, clamped or dropped, nor go through hooks that read a dense bucket.
        if self.compiled or self.delays or self.comm_hook not in (None, 'built_in', 'fp16', 'bf16', 'local_noop'):
            self._instead_of('sparse', 'linear')
        if 'sparse' in self.kinds:
            self.hooks = [hook for hook in self.hooks if hook[0] is replace]
        self.may_freeze = 'find_unused_parameters' in self.options and not self.static
        self.own = [name for name in self.own if self.may_freeze or name != 'frozen_later']
        for step in self.passes:
            self._reconcile_pass(step)
        # The engine accumulates behind a reentrant checkpoint more than once if it is passed more than once.
        once = self.static or (self.shape != 'two' and all(step.forwards == 1 for step in self.passes))
        if not once or self.compiled or ('find_unused_parameters' in self.options and not self.static):
            self._instead_of('reentrant', 'checkpointed')

    def _reconcile_pass(self, step):
        dropped = 'no_gradient' in self.kinds or any(hook is drop for hook, _, _ in self.hooks)
        if self.static and step.gradients not in (['zero'] if dropped else ['zero', 'flat']):
            step.gradients = 'none'  # what is left of an unused parameter is refused, and zeros stay where no rank has a gradient
        step.freezes &= self.may_freeze and len(self.kinds) > 1 and (self.way != 'optimizer' or step is not self.passes[0])
        if self.delays and self.may_freeze:
            step.gradients = 'ones'  # so that the trigger always has a gradient
        step.again &= not self.compiled  # compiled code frees its tensors in the first backward pass
        if self.static or self.joins or self.steps_in_backward:
            step.again = step.apart = False
        if self.static or self.joins:
            step.forwards, step.reversed = 1, False
        if self.way == 'mixed':
            step.late = False  # the parameters have another dtype then
        if self.joins:  # a rank without inputs makes a backward pass for each forward pass of the others, before their next one
            step.unfinished = step.evaluated = False
        # In these, the other ranks may already have used a part of a pass that stops, do not need what is missing, or have begun the pass
        # of another wrapper (the engine goes behind a reentrant checkpoint before it reaches all outputs).
        drops = self.static and any(hook is drop for hook, _, _ in self.hooks)
        early = self.static and self.shape == 'two' and 'reentrant' in self.kinds
        if step.no_sync or self.joins or self.delays or self.steps_in_backward or drops or early:
            step.stopped_by = None
        if step.stopped_by is not None or 'sparse' in self.kinds and step.gradients in ('ones', 'flat'):  # a sum with those is dense
            step.gradients = 'none'
        if SHARED_MEMORY.keys() & {*self.kinds} and 'gradient_as_bucket_view' in self.options:
            step.no_sync = False  # without a copy in the view they share memory, also without a wrapper
        step.steps &= not step.no_sync and not self.steps_in_backward

    def _instead_of(self, kind, other):
        self.kinds = [other if each == kind else each for each in self.kinds]

    def inputs(self, rank):
        """How many passes a rank makes: with join, ranks differ."""
        return max(1, len(self.passes) - (rank if self.joins else 0))

    def place(self, rank, number):
        """Which blocks a rank uses in a pass. If the graph is not static, ranks take turns."""
        return rank if self.static else (rank + number) % WORLD

    def pairs(self):
        """Each two of its options, ways, hooks and what its passes do."""
        passes = [name for step in self.passes for name, value in vars(step).items() if value not in (False, None)]
        names = {*self.options, *passes, *self.own, f'{self.shape} module', self.way, self.comm_hook, self.compiled,
                 self.joins and 'join', self.delays and 'delay', self.throws and 'throws'} - {None, False}
        return {*itertools.combinations(sorted(names), 2)}

    def __str__(self):
        hooks = [(hook.__name__, 'before' if before else 'after', round(which, 2)) for hook, before, which in self.hooks]
        return (f'{self.shape} {self.way} {self.kinds} unused by {self.unused_by} {self.options} {self.comm_hook} '
                f'own: {self.own} compiled: {self.compiled} delays: {self.delays} initial: {self.initial} '
                f'throws: {self.throws} batch: {self.batch} {hooks} {self.passes}')

    def net(self):
        return Net([Block(kind, unused) for kind, unused in zip(self.kinds, self.unused_by)], self.own)

    def parts(self):
        """The modules to wrap, without wrappers. Two tasks have the first one's blocks in common."""
        if self.shape == 'apart':
            return [self.net() for _ in range(3)]
        first = self.net()
        return [first, Net([*first.blocks, Block('linear', set())], self.own)] if self.shape == 'two' else [first]

    def hook(self, parameters, before):
        for hook, when, which in self.hooks:
            if when == before:
                parameters[int(which * len(parameters))].register_post_accumulate_grad_hook(hook)


def unique(parts):
    return list(dict.fromkeys(parameter for part in parts for parameter in part.blocks.parameters()))


def wrappers_in(model):
    return [part for part in model.modules() if isinstance(part, DistributedDataParallel)]


def take_step(parameters):
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter -= RATE * parameter.grad


def bits(tensor):
    return None if tensor is None else tensor.detach().to_dense().to(torch.complex128).numpy().tobytes()


class Random(unittest.TestCase):

    def test_gradients_are_those_of_the_plain_copies(self):
        for seed in range(FIRST, LAST + 1):
            self.run_seed(Plan(seed))

    @unittest.skipIf('LOCKSTEP_TEST_SEEDS' in os.environ, 'other seeds')
    def test_every_pair_of_options(self):
        """Those pairs that the seeds above do not have."""
        seen = set().union(*(Plan(seed).pairs() for seed in range(FIRST, LAST + 1)))
        for plan in map(Plan, range(LAST + 1, LAST + 20_000)):
            if plan.pairs() - seen:
                seen |= plan.pairs()
                self.run_seed(plan)
        self.assertEqual(len(seen), 1436, 'of 56 names: all pairs but the 104 that Plan leaves out')

    def run_seed(self, plan):
        self.plan, self.bits = plan, []
        try:
            self.run_plan(plan)
        except Exception as error:
            raise AssertionError(f'seed {plan.seed}: {plan}') from error

    def wrap(self, plan, part):
        drifts = []
        options = dict(plan.options, on_drift=drifts.append, may_drift=filter('own.may_drift'.__eq__, dict(part.named_parameters())))
        if options.get('averaging') == 'predivide':
            options['predivide_factor'] = 2.0
        if plan.delays and part in self.parts:
            last = part.blocks[-1]
            options.update(delay_all_reduce_named_params=[*last.named_parameters()], param_to_hook_all_reduce=part.blocks[0].inner.weight)
        if plan.way == 'optimizer':
            _apply_optimizer_in_backward(torch.optim.SGD, part.blocks.parameters(), {'lr': RATE})
        if plan.way == 'optimizer_step':
            options['optimizer_step'] = take_step
        # Dynamo splits a graph into buckets, but refuses caps below 1 MiB.
        torch._dynamo.config.optimize_ddp = not {'bucket_cap_mb', 'bucket_cap_mb_list'} & options.keys()
        if plan.compiled == 'module':
            part.compile(backend='aot_eager')
        model = DistributedDataParallel(part, **options)
        model.drifts = drifts
        if plan.comm_hook:
            model.register_comm_hook(ALONE if plan.local else None, COMM_HOOKS[plan.comm_hook])
        if plan.compiled == 'wrapper':
            model.compile(backend='aot_eager')
        return model

    def run_plan(self, plan):
        torch.manual_seed(plan.seed)
        self.parts = parts = plan.parts()
        self.copies = [copy.deepcopy(nn.ModuleList(parts)) for _ in range(WORLD)]
        self.plain = [unique(copied) for copied in self.copies]
        for parameters in self.plain:
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(own)
            plan.hook(parameters, before=True), plan.hook(parameters, before=False)
        self.ours, self.blocks = unique(parts), [[*part.blocks] for part in parts]
        self.nets = [*parts, *itertools.chain(*self.copies)]
        plan.hook(self.ours, before=True)
        if plan.shape == 'nested':
            parts[0].blocks[-1] = self.wrap(plan, parts[0].blocks[-1])
        self.models = [self.wrap(plan, part) for part in parts]
        plan.hook(self.ours, before=False)
        for net in self.nets:
            net.differ()
        join = functools.partial(Join, self.models, throw_on_early_termination=plan.throws, divide_by_initial_world_size=plan.initial)
        with (self.assertRaisesRegex(RuntimeError, 'exhausted') if plan.throws else contextlib.nullcontext(),
              join() if plan.joins else contextlib.nullcontext()):
            for number, step in enumerate(plan.passes[:plan.inputs(RANK)]):
                self.run_pass(plan, number, step)
        wrappers = [wrapper for model in self.models for wrapper in wrappers_in(model)]
        self.assertEqual([wrapper.drifts for wrapper in wrappers], [[]] * len(wrappers), 'a false alarm')
        if not plan.local:
            self.compare_ranks()
            self.find_flipped_bit(plan, wrappers)
        for wrapper in wrappers:
            wrapper.close()
        if plan.compiled:
            torch._dynamo.reset()

    def run_pass(self, plan, number, step):
        if step.stopped_by is not None:
            self.run_stopped_pass(plan, number, step)
        for net in self.nets:
            net.blocks[0].requires_grad_(not step.freezes)
        for parameters in self.plain:
            set_gradients(parameters, step.gradients)
        if not step.late:
            set_gradients(self.ours, step.gradients)
        if step.unfinished:
            self.losses(self.models, number, types.SimpleNamespace(**{**vars(step), 'no_sync': False}), RANK)
        # With join, each wrapper's backward pass comes before the next wrapper's forward pass, as in a rank without inputs.
        for turn in [slice(i, i + 1) for i in range(len(self.models))] if plan.joins else [slice(None)]:
            self.run_turn(plan, number, step, turn)
        if step.steps:
            take_step(self.ours)
        for parameters in self.plain:
            for parameter, other in zip(parameters, self.ours):
                parameter.data.copy_(other)  # so that differences by rounding do not add up

    def run_turn(self, plan, number, step, turn):
        losses = self.losses(self.models[turn], number, step, RANK)
        if step.evaluated:
            with torch.no_grad():
                self.losses(self.models, number, step, RANK)
        if step.late and not turn.start:
            set_gradients(self.ours, step.gradients)
        for backward in range(len(losses) * (2 if step.again else 1)):
            which = backward % len(losses)
            run = functools.partial(losses[which].backward, retain_graph=step.again and backward == which)
            THREAD.submit(run).result() if step.threaded else run()
            live = [rank for rank in range(WORLD) if plan.inputs(rank) > number]
            present = range(WORLD) if plan.static else live  # in a static graph a rank without inputs has zeros for what it used
            for rank in present:
                with lowered(self.plain[rank], plan.way == 'mixed'):
                    loss = self.losses(self.copies[rank][turn], number, step, rank)[which]
                    (loss * (rank in live)).backward()
            if not step.no_sync:
                # As in torch's, only the first of several wrappers divides by the number of ranks with inputs.
                ranks = WORLD if plan.initial or turn.start else len(live)
                self.average(plan, [unique(self.copies[rank][turn]) for rank in present], ranks)
                plan.local or self.bits.append([(bits(parameter), bits(parameter.grad)) for parameter in unique(self.parts[turn])])
            self.compare(plan, f'pass {number}.{backward}')

    def run_stopped_pass(self, plan, number, step):
        """Where a hook of the user's raises, all wrappers' passes have begun. Ranks without that hook get an error."""
        for net in self.nets:
            net.blocks[0].requires_grad_()  # the hook may be there
        if plan.static:  # what is left of an unused parameter is refused
            set_gradients(self.ours, 'none')
        place = plan.place(step.stopped_by % WORLD, number)
        used = [block for block in self.blocks[-1 if step.reversed else 0] if place not in block.unused_by or step.stopped_by == WORLD]
        parameter = next(used[-1 if step.stopped_by == WORLD else number % len(used)].inner.parameters())
        handle = parameter.register_hook(stop) if step.stopped_by in (RANK, WORLD) else None
        expected = (ZeroDivisionError, 'on purpose') if handle else (lockstep.FailedPrecondition, f'rank {step.stopped_by}')
        with self.assertRaisesRegex(*expected):
            sum(self.losses(self.models, number, step, RANK)).backward()
        if handle:
            handle.remove()

    def losses(self, models, number, step, rank):
        """One for each backward pass."""
        found = []
        for forward in range(step.forwards):
            generator = torch.Generator().manual_seed(1000 * self.plan.seed + 100 * number + 10 * forward + rank)
            x = torch.randn(self.plan.batch, WIDTH, generator=generator)
            for model in reversed(models) if step.reversed else models:
                wrappers = wrappers_in(model)
                if not wrappers and self.plan.way == 'mixed':  # a wrapper does so itself
                    x = x.to(torch.bfloat16)
                for wrapper in wrappers:
                    wrapper.require_backward_grad_sync = not step.no_sync
                with torch.autocast('cpu', torch.bfloat16, enabled=step.amp):
                    found.append(model(x, self.plan.place(rank, number)).float().square().sum())
                for wrapper in wrappers:
                    wrapper.require_backward_grad_sync = True
        size = len(models) if step.apart else len(found)
        return [sum(found[begin:begin + size]) for begin in range(0, len(found), size)]

    @staticmethod
    def average(plan, copies, ranks):
        for same in zip(*copies):
            if not all(parameter.grad is None for parameter in same) or not plan.may_skip:
                zeros = torch.zeros_like(same[0])
                gradients = [zeros if parameter.grad is None else parameter.grad.to_dense() for parameter in same]
                for parameter, gradient in zip(same, gradients):
                    parameter.grad = gradient.clone() if plan.local else sum(gradients) / ranks
            if plan.steps_in_backward:
                take_step(same)
            if plan.way == 'optimizer':
                for parameter in same:
                    parameter.grad = None

    def compare(self, plan, where):
        for index, (parameter, other) in enumerate(zip(self.ours, self.plain[RANK])):
            rtol, atol = (0.02, 0.02) if plan.rounds or parameter.dtype is torch.bfloat16 else (1e-4, 1e-5)
            self.assertEqual(parameter.grad is None, other.grad is None, f'{where}, parameter {index}')
            for one, two in ((parameter.grad, other.grad), (parameter, other)):
                if two is not None:
                    torch.testing.assert_close(one.to_dense(), two.to_dense(), rtol=rtol, atol=atol,
                                               msg=lambda text: f'{where}, parameter {index}: {text}')

    def compare_ranks(self):
        """Rank 0 makes the most passes."""
        found = [None] * WORLD
        dist.all_gather_object(found, (self.bits, [bits(parameter) for parameter in self.ours]))
        for rank, (steps, parameters) in enumerate(found):
            self.assertEqual(steps, found[0][0][:len(steps)], f'rank {rank}')
            self.assertEqual(parameters, found[0][1], f'rank {rank}')

    def find_flipped_bit(self, plan, wrappers):
        """Replicas are compared while they train. There is no false alarm, and a flipped bit is found where it is."""
        draw, step = plan.draw, types.SimpleNamespace(forwards=1, reversed=False, amp=False, no_sync=False, apart=False)
        parameter, rank = draw.choice([parameter for parameter in self.ours if parameter.numel()]), draw.randrange(WORLD)
        size = parameter.dtype.itemsize
        # None that an optimizer's rounding loses.
        element, bit = draw.randrange(parameter.numel()), draw.choice([5, 6, 8 * size - 1] if plan.steps_in_backward else range(8 * size))
        for net in self.nets:
            net.blocks[0].requires_grad_(True)
        for wrapper in wrappers:
            check_replicas(wrapper)
        if rank == RANK:
            memory = torch.as_strided(parameter.data, (parameter.numel(),), (1,)).view(torch.uint8)
            memory[element * size + bit // 8] ^= 1 << bit % 8
        names = [{each: name for name, each in wrapper.module.named_parameters()}.get(parameter) for wrapper in wrappers]
        errors = []
        self.losses(self.models, 0, step, RANK)  # lowers the precision
        for wrapper, name in zip(wrappers, names):
            with self.assertRaises(lockstep.DataLoss) if name else contextlib.nullcontext() as raised:
                check_replicas(wrapper)
            errors += [(name, raised.exception)] if name else []
        # A cycle of slices (61, or one of at most 16 KiB), and until a difference is known.
        for number in range(70 if sum(each.numel() * 8 for each in self.ours) > 16 << 10 else 8):
            set_gradients(self.ours, 'none')
            self.losses(self.models, number, step, RANK)[0].backward()
        for wrapper, name in zip(wrappers, names):
            self.assertEqual(bool(wrapper.drifts), name is not None, f'{name}: {wrapper.drifts}')
            errors += [(name, error) for error in wrapper.drifts]
        for name, error in errors:
            self.assertIn(f"'{name}'", str(error))
            self.assertIn('1 of ', str(error))
            self.assertEqual(error.failed_rank, rank, str(error))


@contextlib.contextmanager
def lowered(parameters, lower):
    """Mixed precision for a plain module."""
    parameters = [parameter for parameter in parameters if parameter.is_floating_point()]
    full = [parameter.data for parameter in parameters]
    for parameter in parameters if lower else ():
        parameter.data = parameter.to(torch.bfloat16)
    yield
    for parameter, data in zip(parameters if lower else (), full):
        if parameter.grad is not None:
            parameter.grad.data = parameter.grad.to(data.dtype)
        parameter.data = data


def setUpModule():
    global RANK, WORLD, ALONE
    RANK, WORLD = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    torch.set_num_threads(1)
    dist.init_process_group('lockstep')
    ALONE = post_localSGD_hook.PostLocalSGDState(None, dist.new_subgroups(group_size=1)[0], 0)


if __name__ == '__main__':
    ranks.main(3)
