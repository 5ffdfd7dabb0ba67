"""torch's communication hooks on the reducer's buckets.

A hook runs on a thread of the library's, one bucket after the other, in the same order on all ranks. Its collectives go through its own
process group; a module whose passes use that group too (a synchronised batch normalisation) gives the hook another one. If several wrappers
of one process group have hooks, those of a backward run after those of the backwards that began before it, and an error says if ranks begin
them in different orders. Between wrappers of different process groups there is no order: their hooks use different groups, too.
"""

import functools
import inspect
import threading
import time
import weakref

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, post_localSGD_hook

import lockstep
from lockstep.torch import memory

_BUILTIN = {default_hooks.allreduce_hook: 'all_reduce', default_hooks.fp16_compress_hook: 'fp16_compress',
            default_hooks.bf16_compress_hook: 'bf16_compress', debugging_hooks.noop_hook: 'noop'}
_BUILTIN_TYPES = {dist.BuiltinCommHookType.ALLREDUCE: 'all_reduce', dist.BuiltinCommHookType.FP16_COMPRESS: 'fp16_compress'}


_POLL_SECONDS = 0.1  # of what does not notify the waiting threads
_lines = weakref.WeakKeyDictionary()  # of each process group: a _Line


class _Line:
    """The wrappers of a process group that have hooks."""

    def __init__(self):
        self.turns = self.begun = 0  # made; backward passes
        self.failed = False  # whether a step did, on all ranks, since they began to count
        self.out_of_step = False  # whether a hook of this rank may wait in a collective that another rank's failed hook did not start
        self.changed = threading.Condition()
        self.waiting = []  # the Turns whose hooks are not done, in the order in which their backward passes began


class Turn:
    """When the hooks of a wrapper may run. THREADS: any."""

    def __init__(self, group, communicator):
        """Collective. communicator: the wrapper's, whose end ends the waits."""
        self.join(group, communicator)

    def join(self, group, communicator):
        """Moves to a process group, outside of a backward. Collective."""
        self.line, self._communicator, self._number = _lines.setdefault(group, _Line()), communicator, None
        self.under_way = False  # whether the hook has returned a future that is not complete
        self.line.turns += 1

    def begin(self):
        """A backward begins."""
        self.end()
        with self.line.changed:
            if self.line.failed and not self.line.waiting:  # its pass may not have begun them all on every rank
                self.line.begun, self.line.failed = 0, False
            self.line.begun += 1
            self._number = self.line.begun
            self.line.waiting.append(self)

    def end(self):
        """The hooks of the backward are done, or are not to run any more."""
        with self.line.changed:
            if self in self.line.waiting:
                self.line.waiting.remove(self)
                self.line.changed.notify_all()

    def failed(self):
        """The step of the backward has failed, on all ranks."""
        self.line.failed = True
        self.line.out_of_step |= self.under_way

    def wait(self, bucket):
        """Before the hook runs for a bucket."""
        if self.line.turns > 1 and bucket.index == 0 and not bucket.is_same_on_all_ranks(self._number):
            raise lockstep.FailedPrecondition("the hooks of this process group's wrappers would run in another order on another rank, "
                                              'because backward passes have begun in another order there: give each wrapper, and its '
                                              'hook, a process group of its own')
        if self.line.out_of_step:
            raise lockstep.FailedPrecondition('a communication hook failed on one rank while the hook of another rank waited: their '
                                              'process group may be out of step. Wrap the module again, with another process group')
        deadline = time.monotonic() + self._communicator.backend_timeout_ms / 1000
        with self.line.changed:
            while self.line.waiting[:1] != [self]:
                ended = self._communicator.status()
                if ended is not None or self not in self.line.waiting:
                    raise ended or lockstep.Cancelled('the wrapper was closed before its hook ran')
                if time.monotonic() > deadline:
                    raise lockstep.DeadlineExceeded('the hooks of a backward pass that began earlier on this rank are not done: did it '
                                                    'end?')
                self.line.changed.wait(_POLL_SECONDS)


class GradBucket:
    """torch.distributed.GradBucket, for hooks. Its buffer also has gaps between gradients, which are zero. As in DDP, hooks get complex
    gradients as real ones: they have another dimension, of 2, at the end."""

    def __init__(self, bucket, parameters):
        self._bucket, self._parameters = bucket, parameters
        rows = bucket.rows()
        if rows is None:
            self._places = bucket.gradients()
            self._buffer = self._average = self._dense()
        else:
            (index, _, _), = self._places = bucket.gradients()
            self._buffer = sparse_copy(rows, parameters[index], getattr(torch, bucket.dtype))

    def _dense(self):
        dtype, device = getattr(torch, self._bucket.dtype), self._parameters[self._places[0][0]].device
        flat = memory.over(self._bucket.address, (self._bucket.elements,), (1,), dtype, device, self._bucket)
        # In elements.
        self._places = [(index, begin // dtype.itemsize, count) for index, begin, count in self._places]
        end = 0
        for _, begin, count in sorted(self._places, key=lambda place: place[1]):
            flat[end:begin] = 0
            end = begin + count
        flat[end:] = 0
        if not flat.is_complex():
            return flat
        self._places = [(index, 2 * begin, 2 * count) for index, begin, count in self._places]
        return torch.view_as_real(flat).view(-1)

    def index(self):
        """The bucket's number, in the order of launch."""
        return self._bucket.index

    def is_last(self):
        """Whether no bucket of the step comes after it."""
        return self._bucket.index == self._bucket.count - 1

    def buffer(self):
        """The gradients, without averaging: a vector; of a sparse parameter its sparse gradient."""
        return self._buffer

    def set_buffer(self, buffer):
        """From now on buffer() is this, which may have another dtype. The average is still what the hook's future holds."""
        self._buffer = buffer

    def parameters(self):
        """The parameters of the gradients, in their order."""
        return [self._parameters[index] for index, _, _ in self._places]

    def gradients(self):
        """Each gradient in the buffer, in its parameter's shape."""
        if self._buffer.is_sparse:
            return [self._buffer]
        found = []
        for index, begin, count in self._places:
            parameter, flat = self._parameters[index], self._buffer.view(-1)[begin:begin + count]
            like = torch.view_as_real(parameter) if parameter.is_complex() else parameter
            strides = like.stride() if memory.is_dense(like) else memory.row_major(like.shape)
            found.append(flat.as_strided(like.shape, strides, flat.storage_offset()))
        return found

    def take(self, averages):
        """What the hook's future holds becomes the average."""
        if isinstance(averages, (list, tuple)):
            averages = averages[0]
        rows = self._bucket.rows()
        if rows is not None:
            averages = averages.coalesce()
            self._bucket.set_rows(averages.indices()[0].contiguous(), averages.values().contiguous())
            return
        target = self._average
        if averages.is_complex():
            averages = torch.view_as_real(averages)
        if averages.numel() != target.numel():
            raise lockstep.InvalidArgument(f'the hook returned {averages.numel()} elements for a bucket of {target.numel()}')
        if averages.data_ptr() != target.data_ptr():
            target.copy_(averages.view(-1))
        if target.is_cuda:
            torch.cuda.current_stream(target.device).synchronize()  # the library goes on when the hook is complete


def sparse_copy(rows, parameter, dtype):
    """A sparse gradient of a parameter: a copy of (address of int64 rows, address of values, number of rows)."""
    rows_at, values_at, count = rows
    shape = (count, *parameter.shape[1:])
    indices = memory.copy_at(rows_at, (1, count), (count, 1), torch.int64, parameter.device)
    values = memory.copy_at(values_at, shape, memory.row_major(shape), dtype, parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, device=parameter.device, check_invariants=False)


def named(hook, state, group):
    """The reducer's own hook for one of torch's, by name, or None. hook may be the name."""
    if isinstance(hook, str):
        return hook
    if isinstance(hook, dist.BuiltinCommHookType):
        return _BUILTIN_TYPES[hook]
    # With another group torch's hook is not the reducer's.
    return _BUILTIN.get(hook) if state is None or state is group else None


def averages(hook):
    """Whether all ranks have the same gradients after a hook, as far as that is known: also after one that torch's functions wrap."""
    if isinstance(hook, functools.partial):
        return averages(hook.func)
    if getattr(hook, '__module__', None) == default_hooks.__name__ and hook.__closure__:
        return averages(hook.__closure__[0].cell_contents)
    return hook not in ('noop', debugging_hooks.noop_hook, post_localSGD_hook.post_localSGD_hook)


def adapt(hook, state, parameters, turn):
    """A hook of the reducer's that calls one of torch's: hook(state, bucket) returns a torch.futures.Future of the bucket's averages."""
    check(hook)

    @torch.no_grad()  # as torch's engine calls hooks
    def run(bucket, completion):
        turn.wait(bucket)
        seen = GradBucket(bucket, parameters)

        def take(future):
            turn.under_way, error = False, None
            try:
                seen.take(future.value())
            except Exception as raised:
                error = raised
            if seen.is_last():
                turn.end()  # before the completion, behind which the next backward may begin
            completion.done(error)

        future = hook(state, seen)
        if not isinstance(future, torch._C.Future):  # the base of torch.futures.Future, which a work's future is
            raise lockstep.InvalidArgument(f'hook {run.__name__} returned a {type(future).__name__}, not a torch.futures.Future')
        turn.under_way = True
        future.add_done_callback(take)

    run.__name__ = getattr(hook, '__qualname__', type(hook).__name__)
    return run


def check(hook):
    """DDP's checks: a callable, whose annotations, if it has any, are those of a hook."""
    if not callable(hook):
        raise TypeError('Communication hook must be callable.')
    signature = inspect.signature(hook)
    bucket = signature.parameters.get('bucket')
    if bucket is not None and bucket.annotation not in (inspect.Parameter.empty, dist.GradBucket, GradBucket):
        raise ValueError('Communication hook: bucket annotation should be dist.GradBucket.')
    if signature.return_annotation not in (inspect.Signature.empty, torch.futures.Future[torch.Tensor]):
        raise ValueError('Communication hook: return annotation should be torch.futures.Future[torch.Tensor].')
