"""Random training runs through lockstep.h, compared with NumPy.

A seed determines a case: the parameter table, the options, what each rank does in each backward, and its mistakes. Every rank draws the
whole case, so it knows the other ranks' gradients. `Contract` is what lockstep.h promises for the calls of a case, `Run` makes one rank's
calls and compares. LOCKSTEP_TEST_SEEDS=7-9 runs the seeds 7 to 9.

Every tensor has pages of its own. Around its elements and in its gaps they hold a pattern, which must stay. A page is writable only while
the header says that the library may write it: a write at another time ends the process, and the last line of the output names the seed.
"""

import collections
import ctypes
import itertools
import math
import mmap
import os
import random
import sys
import threading
import traceback
import types
import zlib

import numpy

import lockstep
from lockstep import options as structs
from lockstep._native import ffi, lib
from lockstep.errors import check, take_text
from lockstep.reducer import _DTYPE_NAMES as DTYPE_NAMES

OK, INVALID, WRONG_STATE = lib.LOCKSTEP_OK, lib.LOCKSTEP_INVALID_ARGUMENT, lib.LOCKSTEP_FAILED_PRECONDITION


# ---- Numbers

def small_floats(bits, mantissa_bits, bias):
    """The values that a float of `bits` bits has for the codes 0, 1, 2, ... (The codes of infinities and NaNs do not occur.)"""
    code = numpy.arange(1 << bits - 1)
    exponent, mantissa = code >> mantissa_bits, (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    value = numpy.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    return numpy.concatenate([value, -value])


class DType:
    """How NumPy stores a dtype, and the relative error of one rounding to it. table: the values of its codes, if NumPy lacks the dtype."""

    def __init__(self, name, storage, error_bits, table=None):
        self.name, self.c, self.storage, self.error = name, getattr(lib, 'LOCKSTEP_' + name), numpy.dtype(storage), 2.0**-error_bits
        self.table, self.is_complex = table, storage[0] == 'c'

    def __repr__(self):
        return self.name

    def decode(self, stored):
        return stored.astype('c16' if self.is_complex else 'f8') if self.table is None else self.table[stored]

    def encode(self, values):
        if self.table is None:
            return numpy.asarray(values).astype(self.storage)
        magnitudes = self.table[:len(self.table) // 2]
        code = numpy.searchsorted((magnitudes[1:] + magnitudes[:-1]) / 2, numpy.abs(values))
        return (code + numpy.where(numpy.less(values, 0), len(magnitudes), 0)).astype(self.storage)


F8 = [DType('F8E4M3', 'u1', 4, small_floats(8, 3, 7)), DType('F8E5M2', 'u1', 3, small_floats(8, 2, 15))]
REAL = [DType('F32', 'f4', 24), DType('F64', 'f8', 53), DType('F16', 'f2', 11), DType('BF16', 'u2', 8, small_floats(16, 7, 127)), *F8]
COMPLEX = [DType('COMPLEX64', 'c8', 24), DType('COMPLEX128', 'c16', 53)]
BY_CODE, BY_NAME = {dtype.c: dtype for dtype in REAL + COMPLEX}, {dtype.name: dtype for dtype in REAL + COMPLEX}


# ---- Memory

def row_major(shape):
    return [math.prod(shape[i + 1:]) for i in range(len(shape))]


def describe(address, dtype, shape, strides=None):
    """A lockstep_tensor*, which keeps its arrays."""
    tensor = ffi.new('lockstep_tensor*')
    kept = ffi.new('int64_t[]', list(shape) or 1), ffi.new('int64_t[]', list(strides or ()) or 1)
    tensor.data, tensor.shape, tensor.dimensions, tensor.dtype = ffi.cast('void*', address), kept[0], len(shape), dtype
    tensor.strides = kept[1] if strides else ffi.NULL
    return ffi.gc(tensor, lambda _, kept=kept: None)


def at(tensor):
    """The NumPy array over a lockstep_tensor, as it is stored."""
    storage, shape = BY_CODE[tensor.dtype].storage, [tensor.shape[i] for i in range(tensor.dimensions)]
    strides = [tensor.strides[i] for i in range(len(shape))] if tensor.strides else row_major(shape)
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
    if 0 in shape:
        return numpy.zeros(shape, storage)
    return numpy.ndarray(shape, storage, ffi.buffer(ffi.cast('char*', tensor.data), span * storage.itemsize),
                         strides=[stride * storage.itemsize for stride in strides])


class Arena:
    """Pages for the tensors of one case after the other, in a buffer that begins with a page."""

    def __init__(self, buffer):
        self.buffer, self.used = buffer, 0
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self.mprotect = ctypes.CDLL(None).mprotect
        self.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

    def clear(self):
        self.protect(0, self.used, mmap.PROT_READ | mmap.PROT_WRITE)
        self.used = 0

    def take(self, size):
        begin = self.used
        self.used += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        taken = numpy.frombuffer(self.buffer, 'u1', self.used - begin, begin)
        taken[:] = 0xa5
        return begin, taken

    def protect(self, begin, size, protection):
        assert self.mprotect(self.address + begin, size, protection) == 0


class Memory:
    """A tensor: the `array` that the library may write between lend() and take_back(), and the elements that are `expected`."""

    def write(self, values):
        self.lend()
        self.array[...] = self.dtype.encode(values)
        self.take_back()
        self.adopt()

    def adopt(self):
        """Expects the present elements from now on."""
        self.expected[...] = self.array


class Block(Memory):
    """In its own pages of the arena."""

    def __init__(self, arena, dtype, shape, strides, lead=3):
        self.arena, self.dtype = arena, dtype
        size, span = dtype.storage.itemsize, sum((extent - 1) * stride for extent, stride in zip(shape, strides or row_major(shape))) + 1
        self.begin, self.bytes = arena.take((lead + max(span, 0)) * size + 64)
        self.tensor = describe(arena.address + self.begin + lead * size, dtype.c, shape, strides)
        self.array, self.expected_bytes = at(self.tensor), self.bytes.copy()
        self.expected = numpy.ndarray(shape, dtype.storage, self.expected_bytes, lead * size, self.array.strides)
        self.take_back()

    def lend(self):
        self.arena.protect(self.begin, len(self.bytes), mmap.PROT_READ | mmap.PROT_WRITE)

    def take_back(self):
        self.arena.protect(self.begin, len(self.bytes), mmap.PROT_READ)

    def is_as_expected(self):
        return numpy.array_equal(self.bytes, self.expected_bytes)


class View(Memory):
    """A gradient in its bucket. This memory is always the library's, and moves with a new plan."""

    def __init__(self, reducer, index):
        self.reducer, self.index, self.tensor = reducer, index, ffi.new('lockstep_tensor*')
        self.find()
        self.dtype, self.expected = BY_CODE[self.tensor.dtype], self.array.copy()

    def find(self):
        check(lib.lockstep_reducer_gradient_view(self.reducer, self.index, self.tensor))
        self.array = at(self.tensor)

    def lend(self):
        pass

    take_back = lend

    def is_as_expected(self):
        return self.array.tobytes() == self.expected.tobytes()


# ---- Cases

Parameter = collections.namedtuple('Parameter', 'index name dtype shape strides ignored sparse')
# The gradient is in memory `source`: 'own', 'other' or 'view'. Its average goes to `target`: 'own', 'other', 'view', or the name of a dtype
# for memory of that dtype. None stands for the source. `salt` chooses the numbers, which are written before the mark or, if `early`, before
# begin_backward. A sparse parameter has `rows`.
Mark = collections.namedtuple('Mark', 'index salt source target rows early')
# One call in a backward, and the code that it returns.
Action = collections.namedtuple('Action', 'call index mark code')


class Case:
    """Drawn from the seed alone, so the same on every rank."""

    def __init__(self, seed, size):
        self.seed, self.size, self.rng = seed, size, random.Random(seed * 8 + size)
        self.pick, self.chance = self.rng.choice, lambda probability: self.rng.random() < probability
        self.use = self.pick(['all', 'all', 'find', 'find', 'find', 'static', 'static', 'static and find'])
        self.finds, self.static = self.use == 'find', self.use.startswith('static')
        self.parameters = [self.draw_parameter(i) for i in range(self.rng.randrange(1, 9))]
        if all(p.ignored for p in self.parameters):
            self.parameters[0] = self.parameters[0]._replace(ignored=False)
        self.active = [p for p in self.parameters if not p.ignored]
        self.dense = [p for p in self.active if not p.sparse]
        self.draw_options()
        self.counts = {r: {p.index: self.pick([0, 1, 1, 1, 2]) for p in self.active} for r in range(size)}  # of a static graph
        uneven = self.options['uneven_inputs']
        self.steps = [self.rng.randrange(5) for _ in range(size)] if uneven else [self.rng.randrange(1, 5)] * size
        self.throws = self.options['throw_on_early_termination'] and len(set(self.steps)) > 1
        self.backwards, contracts = [], [Contract(self) for _ in range(size)]
        for step in range(max(self.steps)):
            self.draw_step([r for r in range(size) if step < self.steps[r]], contracts)
            if self.is_thrown(self.backwards[-1]):
                break
        self.syncs = [backward for backward in self.backwards if backward.sync]
        self.interruption = self.draw_interruption(random.Random(f'{seed} of {size} ranks'))

    def __str__(self):
        options = {name: list(value) if isinstance(value, ffi.CData) else value for name, value in self.options.items() if value}
        return f'{self.use}, hook {self.hook}, {self.transport}, {options}, {self.interruption}, {self.parameters}'

    def is_thrown(self, backward):
        """Whether throw_on_early_termination ends the run there."""
        return self.throws and len(backward.live) < self.size

    def draw_interruption(self, rng):
        """In some cases a rank does not finish the last backward. None, or its rank, what it does instead, and after how many actions."""
        if not self.backwards or self.throws or rng.random() > 0.15:
            return None
        last, kind = self.backwards[-1], rng.choice(['abort', 'abort', 'destroy', 'destroy', 'silence'])
        rank = rng.choice(last.live)
        turn = last.turns[rank]
        after = rng.randrange(len(turn.actions) + 1)
        left = {action.index for action in turn.actions[after:] if action.call == 'mark' and action.code == OK} - self.delayed
        # A bucket waits for these. One whose hook calls no collective does not.
        fails = self.hook != 'noop' and any(p.index in left and math.prod(p.shape) for p in self.dense)
        if kind == 'silence' and len(last.live) == 1:
            fails = False  # nobody waits who has a deadline
        return types.SimpleNamespace(rank=rank, kind=kind, after=after, fails=fails)

    def draw_parameter(self, index):
        ignored, sparse, strides = self.chance(0.08), self.chance(0.12), None
        shape = list(self.pick([(), (0,), (3, 0), (1,), (5,), (7, 3), (2, 3, 4), (4, 2, 3, 3), (17,), (64,), (40, 50), (4001,)]))
        if sparse:
            shape = [self.pick([0, 1, 9]), *self.pick([(), (2,), (3, 2), (0,)])]
        elif self.chance(0.6):
            order, gaps, strides = list(range(len(shape))), self.chance(0.4), [0] * len(shape)
            if self.chance(0.6):
                self.rng.shuffle(order)
            stride = self.pick([1, 2, 3]) if gaps else 1
            for dimension in order:
                strides[dimension] = stride
                stride *= max(shape[dimension], 1) + (self.rng.randrange(3) if gaps else 0)
        name = self.pick([f'p{index}', f'layer{index}.weight', None])
        return Parameter(index, name, self.pick(REAL[:1] * 6 + REAL + COMPLEX), shape, strides, ignored, sparse)

    def draw_options(self):
        pick, chance = self.pick, self.chance
        self.hook = pick([None] * 6 + ['named', 'noop', 'issue', 'start'])
        self.calls_back = self.hook in ('issue', 'start')
        self.hook_sums, self.hook_elsewhere, self.optimizer, self.plan_again = chance(0.3), chance(0.3), chance(0.25), chance(0.1)
        self.transport, self.shares_memory, self.views = pick(['auto', 'tcp', 'deterministic']), chance(0.15), chance(0.3)
        self.real = chance(0.3)  # the numbers are such that sums round
        self.wire = pick([None, None, None, 'F16', 'BF16'])
        averaging = pick([0, 0, 1, 2, 3, 4]) if self.hook in (None, 'named') else lib.LOCKSTEP_AVERAGING_BEFORE
        sums = self.hook_sums if self.calls_back else averaging == lib.LOCKSTEP_AVERAGING_NONE or self.hook == 'noop'
        self.scale = 1 if sums else 1 / self.size
        hook = {None: 'NONE', 'noop': 'NOOP', 'issue': 'CALLBACK', 'start': 'CALLBACK', 'named': 'ALL_REDUCE'}[self.hook]
        if self.hook == 'named' and self.wire:
            hook = {'F16': 'FP16_COMPRESS', 'BF16': 'BF16_COMPRESS'}[self.wire]
        delayed = self.rng.sample(self.dense, self.rng.randrange(1, len(self.dense))) if len(self.dense) > 1 and chance(0.2) else []
        self.delayed = {p.index for p in delayed}
        self.trigger = pick([p.index for p in self.active if p not in delayed]) if delayed else None
        caps = [pick([0, 1, 100, 10000]) for _ in range(self.rng.randrange(1, 4))] if chance(0.1) else []
        uneven = chance(0.25)
        self.options = {
            'find_unused_parameters': 'find' in self.use, 'static_graph': self.static, 'gradient_as_bucket_view': self.views,
            'bucket_cap_bytes': 0 if caps else pick([0, 1, 64, 512, 20000]), 'bucket_cap_count': len(caps),
            'bucket_caps_bytes': ffi.new('int64_t[]', caps) if caps else None, 'caps_from_last': chance(0.2),
            'no_overlap': chance(0.1), 'no_replan': chance(0.2), 'buckets_in_memory_max': 0 if self.views else pick([0, 0, 1, 2]),
            'gradient_memory': None if self.views else pick([None, None, 'in_place', 'copied', 'copied']), 'averaging': averaging,
            'predivide_factor': pick([0.5, 1, 2, 4]) if averaging == lib.LOCKSTEP_AVERAGING_PREDIVIDE else None,
            'compression': getattr(lib, 'LOCKSTEP_COMPRESSION_' + (self.wire or 'NONE')), 'hook': getattr(lib, 'LOCKSTEP_HOOK_' + hook),
            'delayed': ffi.new('size_t[]', list(self.delayed)) if delayed else None, 'delayed_count': len(delayed),
            'delayed_trigger': self.trigger, 'preserve_gradients': chance(0.3), 'uneven_inputs': uneven,
            'throw_on_early_termination': uneven and chance(0.2),
            'divide_by_live_ranks': uneven and self.hook in (None, 'named') and not sums and chance(0.5)}

    def draw_step(self, live, contracts):
        """Backwards without sync, and one with, in which some ranks may make mistakes."""
        for left in reversed(range(self.pick([1, 1, 2, 3]))):
            backward = types.SimpleNamespace(sync=left == 0, live=live, turns={}, outcome=None)
            backward.replan = self.chance(0.1) and not self.options['uneven_inputs']
            self.backwards.append(backward)
            mistakes = {}
            if self.chance(0.3) and not self.is_thrown(backward):
                kinds = ['missing', 'refused', 'corrected', 'again', 'late', 'memory', 'named']
                mistakes = {r: self.pick(kinds) for r in self.rng.sample(live, self.pick([1, 1, min(2, len(live))]))}
                callbacks = ['hook'] * self.calls_back + ['optimizer'] * self.optimizer
                if backward.sync and callbacks and self.chance(0.5):
                    mistakes = {self.pick(live): self.pick(callbacks)}
            for rank in live:
                backward.turns[rank] = self.draw_turn(backward.sync, rank, mistakes.get(rank), contracts[rank])
            complaints = {turn.complaint for turn in backward.turns.values()}
            # 'all' ranks fail; 'some': those do that have a complaint or whose optimizer fails, and others may.
            backward.outcome = 'all' if 'all' in complaints or 'hook' in mistakes.values() or self.is_thrown(backward) else \
                'some' if 'alone' in complaints or 'optimizer' in mistakes.values() else 'ok'

    def draw_turn(self, sync, rank, mistake, contract):
        """Draws the calls of a rank in a backward, and asks the contract about each."""
        turn = types.SimpleNamespace(unused=None, actions=[], fails_in={}, given={}, pending={}, complaint=None)
        draws, unmarked = [], []
        for p in self.active:
            often = 0.7 if self.finds or p.index in self.delayed else 1 if sync else 0.8
            times = self.counts[rank][p.index] if self.static and p.index not in self.delayed else int(self.chance(often))
            draws += [('mark', p.index, self.draw_mark(p, times)) for _ in range(times)]
            if not times and p.index not in self.delayed:
                unmarked.append(p.index)
        if self.finds:
            turn.unused = [i for i in unmarked if self.chance(0.8)] if self.chance(0.5) else None
            draws += [('unused', i, None) for i in unmarked if turn.unused is not None or self.chance(0.2)]
            draws = [draw for draw in draws if draw[0] == 'mark' or draw[1] not in (turn.unused or ())]
        self.rng.shuffle(draws)
        if mistake in ('hook', 'optimizer'):
            turn.fails_in[mistake] = self.rng.randrange(8)  # the bucket, modulo their number
        elif mistake:
            self.make_mistake(mistake, draws, turn)
        if self.chance(0.1):
            draws.insert(self.rng.randrange(len(draws) + 1), ('wrong call', self.rng.randrange(8), None))
        contract.begin(turn, sync)
        for draw in draws:
            action = contract.call(*draw)
            turn.actions += [action] if action else []
        contract.end()
        return turn

    def draw_mark(self, p, times):
        source, target, rows = self.pick(['own', 'own', 'other'] + ['view'] * 6 * self.views), None, None
        if p.sparse:
            source, rows = 'own', tuple(self.rng.randrange(p.shape[0]) for _ in range(self.rng.randrange(5))) if p.shape[0] else ()
        elif self.chance(0.25):
            target = self.pick(['own', 'other'] + ['view'] * self.views + ([] if p.dtype.is_complex else [d.name for d in REAL]))
        early = times < 2 and p.index not in self.delayed and self.chance(0.3)
        return Mark(p.index, self.rng.randrange(1 << 16), source, target, rows, early)

    def make_mistake(self, mistake, draws, turn):
        marks = [i for i, draw in enumerate(draws) if draw[0] == 'mark']
        if not marks:
            return
        i = self.pick(marks)
        _, index, mark = draws[i]
        wrong = 'wrong ' + self.pick(['dtype', 'shape', 'kind'])
        before, after = self.rng.randrange(i + 1), self.rng.randrange(i, len(draws)) + 1
        if mistake == 'missing':
            del draws[i]
        elif mistake == 'refused':
            draws[i] = wrong, index, None
        elif mistake == 'corrected':
            draws.insert(before, (wrong, index, None))
        elif mistake == 'late':
            draws.insert(after, (wrong, index, None))
        elif mistake == 'again':
            draws.insert(after, ('mark', index, mark._replace(early=False)))
        elif mistake == 'memory':
            draws[i] = 'wrong memory', index, None
        elif self.finds and index not in self.delayed:
            turn.unused = (turn.unused or []) + [index]

    # The numbers.

    def numbers(self, mark):
        """A rank's gradient, or its rows' values, as NumPy computes with them."""
        p = self.parameters[mark.index]
        shape = p.shape if mark.rows is None else [len(mark.rows)] + p.shape[1:]
        count, spread = math.prod(shape) * (2 if p.dtype.is_complex else 1), 3 if p.dtype in F8 else 9
        # Whole multiples of the number of ranks, so that their averages are exact; or sevenths.
        values = ((numpy.arange(count) * 40503 + mark.salt * 9973 >> 5) % spread - spread // 2) * float(self.size)
        if self.real and p.dtype not in F8:
            values = values / 7
        return p.dtype.decode(p.dtype.encode(values.view('c16' if p.dtype.is_complex else 'f8').reshape(shape)))

    def average(self, backward, p, rank):
        """What a synchronised backward leaves on the rank: (the average, the scaled sum of magnitudes), of a sparse parameter for each row.
        None if no rank used the parameter."""
        given = {r: turn.given[p.index] for r, turn in backward.turns.items() if p.index in turn.given}
        if not given:
            return None
        marks = [mark for r, mark in given.items() if r == rank or self.hook != 'noop']
        scale = 1 / len(backward.live) if self.options['divide_by_live_ranks'] else self.scale
        if not p.sparse:
            values = [self.numbers(mark) for mark in marks] or [numpy.zeros(p.shape)]
            return sum(values) * scale, sum(map(abs, values)) * scale
        rows = {}
        for mark in marks:
            for row, value in zip(mark.rows, self.numbers(mark)):
                sums, magnitudes = rows.get(row, (0, 0))
                rows[row] = sums + value * scale, magnitudes + abs(value) * scale
        return rows

    def is_average(self, p, dtype, stored, average):
        """Whether what is stored in a dtype is the average: exactly, if all arithmetic is exact, else with an error for each rounding."""
        values, magnitudes = average
        wire = BY_NAME[self.wire].error if self.wire and not p.dtype.is_complex else 0
        exact = not self.real and p.dtype not in F8 and dtype not in F8
        bound = 0 if exact else (2 * self.size + 4) * max(p.dtype.error, dtype.error, wire) * magnitudes
        return bool(numpy.all(numpy.abs(dtype.decode(stored) - values) <= bound))


# ---- What the header promises

def place_of(mark):
    """Where the average of a marked gradient goes: as of a Mark, or 'reducer'. None if the parameter is sparse or not marked."""
    return None if mark is None or mark.rows is not None else mark.target or mark.source


class Contract:
    """One rank's reducer as lockstep.h describes it: which marks are refused, which gradients a backward averages, and how it ends."""

    def __init__(self, case):
        self.case, self.expected = case, [p.index for p in case.active if p.index not in case.delayed]
        self.window = {}  # parameter -> Mark since the last synchronised backward, or since its delayed average
        self.counted = None  # of a static graph: the marks of its first backward

    def begin(self, turn, sync):
        self.turn, self.sync, self.marks = turn, sync, collections.Counter()
        self.unused = set(turn.unused or ()) - self.case.delayed
        if self.counted:
            self.unused = {i for i, count in self.counted.items() if count == 0}
        self.refused = {}  # parameter -> whether everything had been sent
        self.taken = False  # the delayed gradients
        turn.pending = dict(self.window)

    def is_ready(self, index):
        counting = self.case.static and self.counted is None
        return not counting and self.marks[index] >= (self.counted[index] if self.counted else 1)

    def call(self, call, index, mark):
        """RETURNS  the Action of a call; None if a program that knows the header does not make it now"""
        if call == 'mark':
            code = self.mark(index, mark)
        elif call == 'unused':
            code = OK if self.case.finds and not self.marks[index] and index not in self.refused else WRONG_STATE
            self.unused |= {index} if code == OK else set()
        elif call == 'wrong call':
            code = OK  # see Run.wrong_calls
        else:
            mark = self.lender(index) if call == 'wrong memory' and self.sync else None
            code = None if call == 'wrong memory' and not mark else self.refuse(index, INVALID)
        return None if code is None else Action(call, index, mark, code)

    def refuse(self, index, code):
        self.refused.setdefault(index, all(self.is_ready(i) or i in self.unused for i in self.expected))
        return code

    def mark(self, index, mark):
        if index in self.case.delayed:
            if index in self.turn.given:
                return self.refuse(index, WRONG_STATE)
            if self.taken and mark.source == 'view':
                return None  # the memory is borrowed until the end of the backward
        elif index in self.unused or self.is_ready(index):
            return self.refuse(index, WRONG_STATE)
        self.refused.pop(index, None)
        self.marks[index] += 1
        # Without sync a target is ignored.
        self.window[index] = mark if self.sync or mark.target in (None, mark.source) else mark._replace(target='reducer')
        if index == self.case.trigger and self.is_ready(index):
            self.take_delayed()
        return OK

    def take_delayed(self):
        if self.sync and not self.taken:
            self.turn.given.update({i: self.window.pop(i) for i in self.case.delayed if i in self.window})
            self.taken = True

    def lender(self, index):
        """RETURNS  a Mark of this backward whose average goes to memory of the program's, in which `index` may not be marked; or None"""
        # An optimizer's call gives memory back, and of a parameter that takes no mark another error comes first.
        if self.case.optimizer or index in self.turn.given or (index in self.expected and self.is_ready(index)):
            return None
        elements = [math.prod(p.shape) for p in self.case.parameters]
        marks = [self.window[i] for i in sorted(self.marks) if i != index and elements[i] and i in self.window]
        marks = [mark for mark in marks if place_of(mark) not in (None, 'view', 'reducer')]
        return marks[0] if marks and elements[index] and not self.case.parameters[index].sparse and not self.marks[index] else None

    def end(self):
        turn, counting = self.turn, self.case.static and self.counted is None
        missing = [i for i in self.expected if not self.is_ready(i) and i not in self.unused]
        if counting or (self.case.finds and turn.unused is None):
            missing = [i for i in missing if i in self.refused]
        if counting and not self.refused:
            self.counted = {i: self.marks[i] for i in self.expected}
        if self.sync:
            turn.complaint = 'all' if missing or not all(self.refused.values()) else 'alone' if self.refused else None
            self.take_delayed()
            turn.given.update({i: self.window.pop(i) for i in self.expected if i in self.window})
        elif self.refused or (self.case.static and missing):
            turn.complaint = 'alone'


# ---- One rank's run of a case

class Run:
    def __init__(self, case, side, communicator, arena):
        """side: a communicator of the test's, which outlives the case."""
        self.case, self.side, self.rank, self.communicator, self.arena = case, side, side.rank, communicator, arena
        self.tensors, self.kept, self.problems, self.records = {}, [], [], []
        self.number, self.version, self.joining, self.leads = 0, 1, False, random.Random(case.seed)
        self.reducer = self.create()
        if case.plan_again:
            text = ffi.new('char**')
            check(lib.lockstep_reducer_export_plan(self.reducer, text))
            lib.lockstep_reducer_destroy(self.reducer)
            self.reducer = self.create(plan=take_text(text[0]))
        for p in case.dense if case.views else ():
            self.tensor(p.index, 'view')

    def create(self, **more):
        case, out = self.case, ffi.new('lockstep_reducer**')
        table = ffi.new('lockstep_parameter[]', len(case.parameters))
        for p, row in zip(case.parameters, table):
            dtype = lib.LOCKSTEP_BOOL if p.ignored else p.dtype.c  # an ignored parameter may have any
            lockstep.Parameter(p.name, p.shape, DTYPE_NAMES[dtype], p.strides or None, p.ignored, p.sparse)._describe(row, self.kept)
        for name in [f'hook_{case.hook}'] * case.calls_back + ['optimizer_step'] * case.optimizer:
            more[name] = ffi.callback('lockstep_' + name, getattr(self, name))
        self.kept.append(structs.fill('lockstep_reducer_options', {**case.options, **more}))
        check(lib.lockstep_reducer_create(self.communicator._c, table, len(table), self.kept[-1], out))
        return out[0]

    def tensor(self, index, kind):
        """A parameter's memory of a kind, made when it is needed."""
        if (index, kind) not in self.tensors:
            p = self.case.parameters[index]
            self.tensors[index, kind] = View(self.reducer, index) if kind == 'view' else \
                Block(self.arena, BY_NAME.get(kind, p.dtype), p.shape, p.strides, self.leads.randrange(1, 20))
        return self.tensors[index, kind]

    def place(self, index, mark):
        """The tensor to which the average goes, or None if that is the reducer's memory, or the parameter is sparse."""
        kind = place_of(mark) or ('reducer' if mark is None and not self.case.parameters[index].sparse else None)
        if kind == 'reducer':
            kind = 'view' if self.case.views else None
        return kind and self.tensor(index, kind)

    def require(self, condition, what):
        if not condition:
            where = f'seed {self.case.seed}, rank {self.rank} of {self.case.size}, backward {self.number}'
            raise AssertionError(f'{where}: {what}\n{self.case}')

    def expect(self, error, code, what):
        got, text = lib.lockstep_error_code(error), ffi.string(lib.lockstep_error_message(error)).decode()
        lib.lockstep_error_free(error)
        self.require(got == code, f'{what}: code {got}, not {code}: {text}')

    def run(self):
        for self.number, backward in enumerate(self.case.backwards):
            if self.rank in backward.live:
                if self.number % 7 == 3:
                    for code, call in self.wrong_calls(None):
                        self.expect(call(), code, 'between backwards')
                self.backward(backward, backward.turns[self.rank])
        ended = (self.case.throws or self.case.interruption) and self.rank in self.case.backwards[-1].live
        if self.case.options['uneven_inputs'] and not ended:
            self.join()
        lib.lockstep_reducer_destroy(self.reducer)
        self.require(not self.problems, self.problems)
        return self.records

    def wrong_calls(self, sync):
        """Calls that are refused and change nothing: (the code, the call). sync: of the present backward. If there is no backward, None."""
        case, reducer, null, p = self.case, self.reducer, ffi.NULL, self.case.active[0]
        tensor, scalar, count = ffi.new('lockstep_tensor*'), describe(self.arena.address, p.dtype.c, []), len(case.parameters)
        if sync is None:
            begin = self.backward_options([count], False)
            yield WRONG_STATE, lambda: lib.lockstep_reducer_end_backward(reducer, null)
            yield WRONG_STATE, lambda: lib.lockstep_reducer_mark_unused(reducer, p.index, null)
            yield INVALID if case.finds else WRONG_STATE, lambda: lib.lockstep_reducer_begin_backward(reducer, begin)
            if not case.options['uneven_inputs']:
                yield WRONG_STATE, lambda: lib.lockstep_reducer_join(reducer, null, 0, null, 0)
        else:
            yield WRONG_STATE, lambda: lib.lockstep_reducer_begin_backward(reducer, null)
            for index in [count, *(p.index for p in case.parameters if p.ignored)]:
                yield INVALID, lambda index=index: lib.lockstep_reducer_mark_ready(reducer, index, scalar, null)
        if sync:
            yield WRONG_STATE, lambda: lib.lockstep_barrier(self.communicator._c, null, null, null)
        if sync and not p.sparse:
            yield WRONG_STATE, lambda: lib.lockstep_reducer_averaged_gradient(reducer, p.index, tensor, null)
        if not case.views and not p.sparse:
            yield WRONG_STATE, lambda: lib.lockstep_reducer_gradient_view(reducer, p.index, tensor)

    def backward_options(self, unused, no_sync):
        return structs.fill('lockstep_backward_options', {
            'no_sync': no_sync, 'unused_given': unused is not None, 'unused': ffi.new('size_t[]', unused) if unused else None,
            'unused_count': len(unused or ())})

    # A backward.

    def backward(self, backward, turn):
        self.sync, self.turn, self.failed_here, self.optimized = backward, turn, False, set()
        marks = [action.mark for action in turn.actions if action.call == 'mark' and action.code == OK]
        for mark in marks:
            if mark.early:
                self.write(mark)
        # Views that have no gradient may be written, at the latest before the call that says so.
        idle = {p.index for p in self.case.dense if self.case.views} - set(turn.pending) - {mark.index for mark in marks}
        self.write_views(idle, 1)
        for index, mark in turn.pending.items() if backward.sync else ():
            self.lend(self.place(index, mark))
        if backward.replan:
            check(lib.lockstep_reducer_request_replan(self.reducer))
        end = self.case.interruption
        ends_early = end and backward is self.case.backwards[-1]
        if ends_early:
            self.side.barrier()
            self.communicator.set_timeout(1 if end.kind == 'silence' else 60)
        begin = self.backward_options(turn.unused, not backward.sync)
        self.expect(lib.lockstep_reducer_begin_backward(self.reducer, begin), OK, 'begin_backward')
        if self.version != lib.lockstep_reducer_plan_version(self.reducer):
            self.version = lib.lockstep_reducer_plan_version(self.reducer)
            for view in self.tensors.values():
                if isinstance(view, View):
                    view.find()
        idle -= set(turn.unused or ()) | self.case.delayed
        if ends_early:
            self.side.barrier()  # an abort before begin_backward is another case
            return self.end_early(end)
        for action in turn.actions:
            if action.call == 'unused':
                self.write_views(idle & {action.index}, 2)
                idle -= {action.index}
            self.act(action)
        self.write_views(idle, 3)
        error = lib.lockstep_reducer_end_backward(self.reducer, ffi.NULL)
        for tensor in self.tensors.values():
            tensor.take_back()
        self.require(not self.problems, self.problems)
        if backward.sync:
            self.check_end(backward, turn, error)
        else:
            self.expect(error, WRONG_STATE if turn.complaint else OK, 'end_backward without sync')
        for key, tensor in self.tensors.items():
            self.require(tensor.is_as_expected(), f'memory {key} has changed')

    def write(self, mark):
        if mark.rows is None:
            self.tensor(mark.index, mark.source).write(self.case.numbers(mark))

    def write_views(self, indexes, salt):
        for index in indexes:
            self.write(Mark(index, salt, 'view', None, None, False))

    def lend(self, place):
        if place and self.sync.sync:
            place.lend()

    def act(self, action):
        case, index, mark = self.case, action.index, action.mark
        code, error = action.code, None
        if action.call == 'wrong call':
            calls = list(self.wrong_calls(self.sync.sync))
            code, call = calls[index % len(calls)]
            error = call()
        elif action.call == 'unused':
            error = lib.lockstep_reducer_mark_unused(self.reducer, index, ffi.NULL)
        elif action.call == 'mark':
            if not mark.early and code == OK:
                self.write(mark)
            error = self.mark(index, mark, code)
        elif action.call == 'wrong memory':
            p, memory = case.parameters[index], self.place(mark.index, mark).tensor.data
            error = lib.lockstep_reducer_mark_ready(self.reducer, index, describe(memory, p.dtype.c, p.shape, p.strides), ffi.NULL)
        else:
            error = self.mark_wrongly(action.call, case.parameters[index])
        self.expect(error, code, action)

    def mark(self, index, mark, code):
        if mark.rows is not None:
            return self.mark_sparse(index, mark)
        source = self.tensor(index, mark.source).tensor
        if code == OK:
            self.lend(self.place(index, mark))
        if mark.target is None:
            return lib.lockstep_reducer_mark_ready(self.reducer, index, source, ffi.NULL)
        return lib.lockstep_reducer_mark_ready_into(self.reducer, index, source, self.tensor(index, mark.target).tensor, ffi.NULL)

    def mark_sparse(self, index, mark):
        """Its rows and values are only read."""
        values, count = self.case.numbers(mark), len(mark.rows)
        dtypes_and_shapes = (BY_NAME['F64'], [count]), (self.case.parameters[index].dtype, values.shape)
        blocks = [Block(self.arena, dtype, shape, None) for dtype, shape in dtypes_and_shapes]
        blocks[0].write(numpy.array(mark.rows, 'i8').view('f8'))
        blocks[1].write(values)
        self.tensors.update({(index, len(self.tensors) + i): block for i, block in enumerate(blocks)})
        rows, values = blocks[0].tensor.data, blocks[1].tensor
        return lib.lockstep_reducer_mark_ready_sparse(self.reducer, index, ffi.cast('int64_t*', rows), count, values, ffi.NULL)

    def mark_wrongly(self, call, p):
        dtype = lib.LOCKSTEP_U8 if call == 'wrong dtype' else p.dtype.c
        if p.sparse != (call == 'wrong kind'):
            values, rows = describe(self.arena.address, dtype, [1] + p.shape[1:]), ffi.new('int64_t*')
            rows[0] = p.shape[0] if call == 'wrong shape' else 0
            return lib.lockstep_reducer_mark_ready_sparse(self.reducer, p.index, rows, 1, values, ffi.NULL)
        shape, strides = (p.shape + [1], None) if call == 'wrong shape' else (p.shape, p.strides)
        return lib.lockstep_reducer_mark_ready(self.reducer, p.index, describe(self.arena.address, dtype, shape, strides), ffi.NULL)

    # Its end.

    def check_end(self, backward, turn, error):
        failed, text = error != ffi.NULL, ffi.string(lib.lockstep_error_message(error)).decode()
        code, failed_rank = lib.lockstep_error_code(error), lib.lockstep_error_failed_rank(error)
        lib.lockstep_error_free(error)
        must_fail = backward.outcome == 'all' or turn.complaint or self.failed_here
        self.require(failed or not must_fail, f'end_backward has not failed ({backward.outcome})')
        self.require(not failed or backward.outcome != 'ok', f'end_backward: {text}')
        guilty = [rank for rank, other in backward.turns.items() if other.complaint == 'all' or 'hook' in other.fails_in]
        self.require(all(f'rank {rank}: ' in text for rank in guilty), f'not all of the ranks {guilty} in: {text}')
        wrong = [rank for rank, other in backward.turns.items() if other.complaint or other.fails_in]
        self.require(not guilty or (code == WRONG_STATE and failed_rank in wrong), f'code {code}, failed rank {failed_rank}: {text}')
        bits = self.check_gradients(backward, failed)
        used = set().union(*[other.given for other in backward.turns.values()])
        self.require(failed or not self.case.optimizer or self.optimized == used, f'the optimizer had {self.optimized}, not {used}')
        self.records.append((text, bits))

    def check_gradients(self, backward, failed):
        bits = {}
        for p in self.case.active:
            average = self.case.average(backward, p, self.rank)
            self.check_state(p, self.place(p.index, self.turn.given.get(p.index)), average, failed)
            if not failed:
                bits[p.index] = self.check_average(p, average)
        return bits

    def end_early(self, end):
        """A backward that one rank does not finish. It ends on all ranks, which then have their memory."""
        backward, turn, ours, bits = self.sync, self.turn, end.rank == self.rank, {}
        for action in turn.actions[:end.after if ours else None]:
            if action.call != 'wrong call':
                self.act(action)
        if ours and end.kind != 'silence':
            marks = [action.mark for action in turn.actions[:end.after] if action.call == 'mark' and action.code == OK]
            self.turn = types.SimpleNamespace(fails_in=turn.fails_in, given={**turn.pending, **{mark.index: mark for mark in marks}})
        if ours and end.kind == 'abort':
            self.communicator.abort('the end of the case')
        if ours and end.kind == 'destroy':
            lib.lockstep_reducer_destroy(self.reducer)
            self.reducer = ffi.NULL
            self.tensors = {key: tensor for key, tensor in self.tensors.items() if not isinstance(tensor, View)}
        else:
            if ours and end.kind == 'silence':
                self.side.barrier()  # the other ranks have given it up; it goes on
                for action in turn.actions[end.after:]:
                    if action.call != 'wrong call':
                        self.act(action)
            error = lib.lockstep_reducer_end_backward(self.reducer, ffi.NULL)
            failed, named = error != ffi.NULL, lib.lockstep_error_failed_rank(error)
            text = ffi.string(lib.lockstep_error_message(error)).decode()
            lib.lockstep_error_free(error)
            self.require(failed or not end.fails, f'a backward that rank {end.rank} has not finished has not failed')
            alone = backward.outcome == 'ok' and not ours
            self.require(not failed or not alone or named == end.rank, f'the error names rank {named}, not {end.rank}: {text}')
            bits = self.check_gradients(backward, failed)
        if not (ours and end.kind == 'silence'):
            self.side.barrier()
        if ours:
            self.communicator.abort('the end of the case')
        for key, tensor in self.tensors.items():
            tensor.take_back()
            if not self.reducer:
                tensor.adopt()  # nobody says what it holds; what is around its elements must stay
            self.require(tensor.is_as_expected(), f'memory {key} has changed')
        self.require(not self.problems, self.problems)
        self.records.append(('', bits))

    def check_state(self, p, place, average, failed):
        """What the reducer says of a gradient holds. After a failure it is as it was or an average, unless it lives in a bucket or went
        through a hook, or the communicator failed; with preserve_gradients it is as it was."""
        out = ffi.new('lockstep_gradient_state*')
        check(lib.lockstep_reducer_gradient_state(self.reducer, p.index, out))
        state, averaged = out[0], place and place.array.size and average is not None
        allowed = [lib.LOCKSTEP_GRADIENT_UNCHANGED if failed or not averaged else lib.LOCKSTEP_GRADIENT_AVERAGED]
        if failed and not self.case.options['preserve_gradients']:
            allowed += [lib.LOCKSTEP_GRADIENT_AVERAGED] * bool(averaged)
            communicator_failed = self.communicator.status() is not None
            allowed += [lib.LOCKSTEP_GRADIENT_UNDEFINED] * bool(isinstance(place, View) or self.case.hook or communicator_failed)
        self.require(state in allowed, f'the state of {p} is {state}, not in {allowed}')
        if place and state == lib.LOCKSTEP_GRADIENT_UNCHANGED:
            self.require(place.array.tobytes() == place.expected.tobytes(), f'{p} is not as it was')
        elif place and failed and state == lib.LOCKSTEP_GRADIENT_AVERAGED:
            self.require(self.case.is_average(p, place.dtype, place.array, average), f'{p} is no average')
        if place and failed:
            place.adopt()

    def check_average(self, p, average):
        """RETURNS  for comparison between ranks: the dtype and the bits"""
        used, dtype = ffi.new('int32_t*'), p.dtype.c
        if p.sparse:
            rows, values, count = ffi.new('int64_t**'), ffi.new('void**'), ffi.new('size_t*')
            check(lib.lockstep_reducer_averaged_rows(self.reducer, p.index, rows, values, count, used))
            found = self.check_rows(p, average or {}, rows[0], values[0], count[0])
        else:
            tensor = ffi.new('lockstep_tensor*')
            check(lib.lockstep_reducer_averaged_gradient(self.reducer, p.index, tensor, used))
            unused = tensor.data == ffi.NULL and tensor.dtype == 0
            self.require(unused or average is not None, f'averaged_gradient of {p}: no zero tensor')
            found, dtype = None if average is None else self.check_tensor(p, tensor, average), tensor.dtype
        self.require(used[0] == (average is not None), f'the average of {p}: used is {used[0]}')
        return None if average is None else (dtype, zlib.crc32(found.tobytes()))

    def check_tensor(self, p, tensor, average, ended=True):
        mark, found, dtype = self.turn.given.get(p.index), at(tensor), BY_CODE[tensor.dtype]
        place = self.place(p.index, mark)
        self.require(list(found.shape) == p.shape and (not found.size or dtype == (place or p).dtype), f'{p}: {dtype} {found.shape}')
        self.require(not place or not found.size or tensor.data == place.tensor.data, f'the average of {p}, {mark}, is elsewhere')
        if not self.case.is_average(p, dtype, found, average):
            self.require(False, f'{p}, {mark}:\n{dtype.decode(found)}, not\n{average[0]}')
        if place and (ended or not self.case.options['preserve_gradients']):
            place.take_back()  # the program's again
            place.adopt()
        return found

    def check_rows(self, p, average, rows, values, count):
        self.require([rows[i] for i in range(count)] == sorted(average), f'rows of {p}: not {sorted(average)}')
        found = at(describe(values, p.dtype.c, [count] + p.shape[1:]))
        for values, row in zip(found, sorted(average)):
            if not self.case.is_average(p, p.dtype, values, average[row]):
                self.require(False, f'row {row} of {p}: {values}, not {average[row][0]}')
        return found

    def join(self):
        """The model is that of the last rank to join."""
        self.joining, model, steps = True, Block(self.arena, BY_NAME['F32'], [5], None), self.case.steps
        model.write([self.rank] * 5)
        model.lend()
        if self.case.interruption:
            return self.join_early(model)
        error = lib.lockstep_reducer_join(self.reducer, model.tensor, 1, ffi.NULL, 0)
        self.expect(error, WRONG_STATE if self.case.throws else OK, 'join')
        last = max(rank for rank in range(self.case.size) if steps[rank] == max(steps))
        self.require(self.case.throws or list(model.array) == [last] * 5, f'the model is {model.array}, not of rank {last}')

    def join_early(self, model):
        """Joins ranks of which one does not finish the last backward."""
        meet = threading.Thread(target=lambda: [self.side.barrier() for _ in range(3)])
        meet.start()
        error = lib.lockstep_reducer_join(self.reducer, model.tensor, 1, ffi.NULL, 0)
        self.require(error != ffi.NULL, 'join has not failed')
        lib.lockstep_error_free(error)
        meet.join()

    # Callbacks.

    def guard(self, work, *arguments):
        try:
            return work(*arguments)
        except BaseException as error:  # raised again in the main thread
            traceback.print_exc()
            self.problems.append(error)
            return lib.lockstep_error_create(lib.LOCKSTEP_INTERNAL, b'the test has failed')

    def failure(self, what, index, count):
        if self.joining or what not in self.turn.fails_in or index != self.turn.fails_in[what] % count:
            return None
        self.failed_here = True
        return lib.lockstep_error_create(lib.LOCKSTEP_OUT_OF_RANGE, f'the {what} of rank {self.rank} failed'.encode())

    def hook_issue(self, _, bucket, communicator, stream):
        return self.guard(self.average_bucket, bucket, communicator, stream)

    def hook_start(self, _, bucket, communicator, completion):
        lib.lockstep_hook_complete(completion, self.guard(self.average_bucket, bucket, communicator, ffi.NULL))

    def average_bucket(self, bucket, communicator, stream):
        """A hook: an all-reduce; of a sparse bucket it sets the rows that the case says."""
        error = self.failure('hook', lib.lockstep_hook_bucket_index(bucket), lib.lockstep_hook_bucket_count(bucket))
        if error:
            return error
        whole, index, step = ffi.new('lockstep_tensor*'), ffi.new('size_t*'), lib.lockstep_hook_bucket_step(bucket)
        check(lib.lockstep_hook_bucket_tensor(bucket, whole))
        check(lib.lockstep_hook_bucket_gradient(bucket, 0, index, ffi.NULL))
        p, result = self.case.parameters[index[0]], whole
        if p.sparse:
            average = self.case.average(self.case.syncs[step - 1], p, self.rank) if step <= len(self.case.syncs) else {}
            rows = list(average or ())  # in any order
            values = p.dtype.encode(numpy.array([average[row][0] for row in rows]).reshape([len(rows)] + p.shape[1:])).tobytes()
            return lib.lockstep_hook_bucket_set_rows(bucket, ffi.new('int64_t[]', rows or 1), ffi.from_buffer(values or b' '), len(rows))
        if self.case.hook_elsewhere:
            memory = numpy.empty(whole.shape[0], BY_CODE[whole.dtype].storage)
            result = describe(ffi.cast('void*', memory.ctypes.data), whole.dtype, memory.shape)
            self.kept.append((memory, result))
            check(lib.lockstep_hook_bucket_set_result(bucket, result))
        op = lib.LOCKSTEP_SUM if self.case.hook_sums else lib.LOCKSTEP_AVG
        return lib.lockstep_all_reduce(communicator, whole, result, op, ffi.NULL, stream, ffi.NULL)

    def optimizer_step(self, _, bucket):
        return self.guard(self.optimize, bucket)

    def optimize(self, bucket):
        """Checks averages; their memory is the program's again."""
        error = self.failure('optimizer', bucket.index, bucket.count)
        if error or self.joining:
            return error or ffi.NULL
        for i in range(bucket.parameter_count):
            p = self.case.parameters[bucket.parameters[i]]
            average = self.case.average(self.sync, p, self.rank)
            self.optimized.add(p.index)
            if p.sparse:
                self.check_rows(p, average, bucket.rows, bucket.row_values, bucket.row_count)
            else:
                self.check_tensor(p, bucket.gradients + i, average, ended=False)
        return ffi.NULL


def compare_ranks(case, records):
    """Ranks that fail have one text, and averages the same bits."""
    for number, backward in enumerate(case.syncs):
        of_step = [records[rank][number] for rank in backward.live]
        texts = {text for text, _ in of_step if text and not text.startswith('a mark')}  # of a mark that came too late to be told
        assert len(texts) < 2, f'seed {case.seed}, synchronised backward {number}: {texts}'
        for index in set(itertools.chain(*[bits for _, bits in of_step])):
            bits = {bits[index] for _, bits in of_step if bits.get(index)}
            same = len(bits) == len({dtype for dtype, _ in bits})
            assert same or case.hook == 'noop', f'seed {case.seed}, synchronised backward {number}: averages of {index} differ\n{case}'


def main():
    first, last = map(int, os.environ.pop('LOCKSTEP_TEST_SEEDS', '1-500').split('-'))
    communicators = {name: lockstep.init(timeout_ms=60_000, job_id=name, transport='auto' if name == 'deterministic' else name,
                                         deterministic=name == 'deterministic') for name in ('auto', 'tcp', 'deterministic')}
    size = 8 << 20
    own, shared = Arena(mmap.mmap(-1, size)), {name: Arena(c.allocate(size).buffer) for name, c in communicators.items()}
    side = communicators['auto'].duplicate()
    for seed in range(first, last + 1):
        if side.rank == 0:
            print('seed', seed, flush=True)
        case = Case(seed, side.size)
        arena = shared[case.transport] if case.shares_memory else own
        communicator = communicators[case.transport]
        if case.interruption:
            communicator = communicator.duplicate()
        records = Run(case, side, communicator, arena).run()
        compare_ranks(case, side.all_gather_object(records, allow_pickle=True))
        arena.clear()


if __name__ == '__main__':
    sys.exit(main())
