"""Wires parameters to the reducer: their gradients are averaged in each backward pass that goes through watched outputs.

A backward pass begins at the first watched output that it reaches (a pre-hook of the node behind it), or else at the first gradient. It is
told of each gradient by a hook of the node that accumulates it, behind the user's hooks of the parameter. It ends in a callback of the
engine's, behind the outermost pass. Which parameters it will reach is asked of the engine, not searched for.

THREADS  One backward at a time; any thread may run it, and several threads parts of it.
MEMORY   A gradient is the reducer's from its mark to the end of the backward; a write to it then is an error. Writes that torch does not
         count (through .data or NumPy) and writes to gradients that are parts of one buffer are not noticed. The gradient of a parameter
         that several averagers have is copied: each averages its own copy, and writes .grad at the end.
"""

import contextlib
import functools
import sys
import threading
import weakref

import torch
from torch.utils.weak import WeakIdKeyDictionary

import lockstep
from lockstep import tensors
from lockstep._native import ffi, lib
from lockstep.errors import check
from lockstep.reducer import Parameter, Reducer
from lockstep.torch import hooks, memory
from lockstep.torch.records import Records

_will_execute = torch._C._will_engine_execute_node
_current_task = torch._C._current_graph_task_id
_users = torch._C._storage_Use_Count
_function_codes = {getattr(torch.autograd.function.BackwardCFunction, name).__code__ for name in ('apply', 'apply_boxed')
                   if hasattr(torch.autograd.function.BackwardCFunction, name)}

_averagers = WeakIdKeyDictionary()  # of each parameter: a weakref.WeakSet
_under_way = {}  # the averagers whose backward has begun and not ended, in the order in which they began, which is that of all ranks


def _dtype_name(dtype):
    return str(dtype).removeprefix('torch.')


def accumulators_of(parameters):
    """The engine's nodes behind the parameters, None for those that are frozen. Keep them, so that a pass finds the same ones."""
    return [torch.autograd.graph.get_gradient_edge(parameter).node if parameter.requires_grad else None for parameter in parameters]


def reaches(accumulators, following):
    """Whether the pass under way is for gradients of parameters, perhaps of none of them: not torch.autograd.grad."""
    try:
        if any(map(_will_execute, filter(None, accumulators))):
            return True
    except RuntimeError:  # the answer about a parameter that torch.autograd.grad was asked for
        return False
    if following is None:  # other tensors have taken the place of parameters
        return False
    # Either the graph has no parameter (none is used, or all are behind checkpoints), or they are not what the pass is for.
    ours, seen, queue = set(accumulators), set(), [node for node, _ in following]
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        if node in ours:
            return False
        seen.add(node)
        queue += [next_node for next_node, _ in node.next_functions]
    return True


def _is_in_function():
    """Whether the pass under way was started by the backward of a Function, such as a reentrant checkpoint's, in another pass."""
    frame = sys._getframe()
    while frame is not None and frame.f_code not in _function_codes:
        frame = frame.f_back
    return frame is not None


class _Pass:
    """The engine calls this at the end of a pass. If it drops this without the call, an exception has stopped the pass."""

    _called = True  # of what torch.compile makes without __init__

    def __init__(self, averager):
        self._averager, self._step, self._called = averager, averager.steps, False

    def __call__(self):
        self._called = True
        self._averager.pass_ended()

    def __del__(self):
        if not self._called and self._averager.steps == self._step:
            self._averager.pass_stopped()


def _abandon_stopped():
    """Ends the backward passes that exceptions have stopped, in the order in which the other ranks end them."""
    for averager in list(_under_way):
        if not averager.marking:
            averager.abandon()


class Averager:
    """See the module. Owns its reducer; the communicator stays the caller's."""

    def __init__(self, group, communicator, named_parameters, sparse=(), hook=None, turn=None, optimizer_step=None, consumed=(),
                 precision=None, explain=None, replicas=None, **options):
        """Collective. group: the process group of the communicator. named_parameters: (name, parameter) of each; sparse: the parameters
        whose gradients are sparse. hook: see Reducer; turn: its hooks.Turn, if it has one.
        optimizer_step(parameters) is called for each bucket, with averages in .grad, on a thread of the library's. consumed: parameters
        whose .grad is None after a step. precision: a Precision, whose parameters may be lowered now, or None. explain() may return more
        about a step that failed. replicas: a Replicas, or None. options: those of the reducer."""
        self.names = [name for name, _ in named_parameters]
        self.parameters = [parameter for _, parameter in named_parameters]
        self._check_sharing(optimizer_step)
        self._strides = [_strides(parameter) for parameter in self.parameters]
        self._precision = precision
        full = precision.full() if precision else {}
        self._dtypes = [full.get(id(parameter), parameter).dtype for parameter in self.parameters]
        sparse = {id(parameter) for parameter in sparse}
        self._sparse = [index for index, parameter in enumerate(self.parameters) if id(parameter) in sparse]
        rows = [self._row(index, name) for index, name in enumerate(self.names)]
        self._find_unused = bool(options.get('find_unused_parameters')) and not options.get('static_graph')
        self._static = bool(options.get('static_graph'))
        options['find_unused_parameters'] = self._find_unused
        self._on_device = self.parameters[0].is_cuda
        if optimizer_step and self._on_device:
            raise lockstep.Unimplemented('optimizers in backward on a GPU: take the step after the backward')
        self._step = optimizer_step
        self._replicas = replicas
        if replicas is not None:
            options.update(replicas=replicas.rows, on_drift=replicas.drifted)
        self.reducer = Reducer(communicator, rows, hook=hook, optimizer_step=optimizer_step and self._optimize, **options)
        self._backend = communicator.of_backend
        self.records = Records(group, self.reducer, self.parameters)
        self._recording = None  # the records of the backward under way; None outside a backward
        self._views = self._new_views() if options.get('gradient_as_bucket_view') else None
        self._consumed = list(consumed)
        self._upcast, self._explain, self._turn = precision is not None, explain, turn
        self.scale = 1.0  # of this rank's gradients, for averages over fewer ranks
        self.ends_itself = True  # else end() is called behind the pass
        self.steps = 0  # that have begun
        self.skipped = []  # with find_unused_parameters, the indices of the parameters that the last backward did not use
        self.varied = False  # whether that has differed from backward to backward
        # Whether the buckets stay as they are.
        self.planned = any(options.get(name) for name in ('gradient_as_bucket_view', 'no_replan', 'plan'))
        self.awaited = []  # futures for which the end of a backward waits
        self._armed = False  # whether a gradient may begin a backward
        self._task = None  # the engine's number of the backward under way
        self._thread = None  # which has begun it
        self.marking = False  # whether one is under way that no exception has stopped
        self._local = {}  # of each pass under way through an output without sync: its number, and the thread
        self._kept = self.reducer.borrowed
        self._marks = {}  # of the backward under way, by index: the gradient and its version
        self._counting = self._static
        self._counts = [0] * len(rows)  # of marks in the first backward of a static graph
        self._used_elsewhere = []  # the indices of the parameters of a static graph that only other ranks use
        self._delayed, self._trigger = set(options.get('delayed') or ()), options.get('delayed_trigger')
        self._delayed_gradients = {}  # marked and not reduced yet, by index: the reducer keeps their addresses
        self._triggered = False
        self._shared = set()  # the indices of parameters that another averager has, too
        self._copies = []  # of their gradients: (parameter, copy)
        self._overwritten = set()  # id() of those whose .grad has been an average since the last step began
        self._accumulators, self._handles = [None] * len(rows), [None] * len(rows)
        self.attach()
        self._share()

    def _row(self, index, name):
        parameter, strides = self.parameters[index], self._strides[index]
        device = parameter.device
        if device.type not in ('cpu', 'cuda'):
            raise lockstep.InvalidArgument(f"parameter '{name}' is on {device}; Lockstep has the CPU and CUDA")
        if _dtype_name(self._dtypes[index]) not in tensors.NAMES:
            raise lockstep.InvalidArgument(f"parameter '{name}': Lockstep has no dtype '{_dtype_name(parameter.dtype)}'; change it, or "
                                           'leave the parameter out by _set_params_and_buffers_to_ignore_for_model')
        return Parameter(name, parameter.shape, _dtype_name(self._dtypes[index]),
                         None if strides == memory.row_major(parameter.shape) else strides, sparse=index in self._sparse,
                         device_kind=lib.LOCKSTEP_CUDA if device.type == 'cuda' else lib.LOCKSTEP_HOST, device_index=device.index or 0)

    def _new_views(self):
        sparse = set(self._sparse)
        return [None if index in sparse else
                memory.over(self.reducer.gradient_view_address(index), parameter.shape, self._strides[index], self._dtypes[index],
                            parameter.device, self.reducer.lend())
                for index, parameter in enumerate(self.parameters)]

    def attach(self, indices=None):
        """Puts the hooks on the nodes of the parameters, which a change of dtype changes, also one that was taken back. Returns whether
        there was any."""
        changed = False
        for index in range(len(self.parameters)) if indices is None else indices:
            node, = accumulators_of([self.parameters[index]])
            # A parameter that is frozen for a while has the same node afterwards.
            if node is not None and node is not self._accumulators[index]:
                self._accumulators[index], self._handles[index] = node, node.register_hook(self._hook(index))
                changed = True
        return changed

    def _check_sharing(self, optimizer_step):
        for name, parameter in zip(self.names, self.parameters):
            owners = _averagers.get(parameter, ())
            if owners and (optimizer_step is not None or any(owner._step is not None for owner in owners)):
                raise lockstep.Unimplemented(f"parameter '{name}' is also in another wrapper: wrappers with optimizer_step, or with an "
                                             'optimizer in backward, cannot share parameters')

    def _share(self):
        """Tells the averagers of a parameter of each other."""
        for parameter in self.parameters:
            owners = _averagers.setdefault(parameter, weakref.WeakSet())
            owners.add(self)
            for owner in owners if len(owners) > 1 else ():
                index = owner._index_of(parameter)
                owner._shared.add(index)
                if owner._views is not None and parameter.grad is not None and parameter.grad is owner._views[index]:
                    parameter.grad = parameter.grad.clone()  # in a bucket it changes while another averager reads it

    def _index_of(self, parameter):
        return next(i for i, each in enumerate(self.parameters) if each is parameter)

    def close(self):
        """Takes the hooks off the parameters. Waits for launched buckets if a step is under way. Twice is once."""
        for parameter, handle in zip(self.parameters, self._handles):
            handle.remove()
            owners = _averagers.get(parameter, ())
            if self in owners:
                owners.remove(self)
                if not owners:
                    del _averagers[parameter]  # whose reference would keep torch from swapping the parameter
                elif len(owners) == 1:
                    owner, = owners
                    owner._shared.discard(owner._index_of(parameter))
        self._over()
        if self._turn is not None:
            self._turn.end()
        self.reducer.close()

    # ---- Where a backward begins

    def end_stopped(self):
        """A forward pass begins or has ended: ends the backward passes that exceptions have stopped, which hold the communicator."""
        if _current_task() != -1:
            return
        self._local.clear()
        if _under_way:
            _abandon_stopped()
            if self.marking and self._task == -1 and not self.ends_itself:
                self.end()
                raise lockstep.FailedPrecondition('require_manual_backward_finalization is set, and finalize_backward() was not called '
                                                  'between the last backward pass and this forward pass: call it before .grad is used')
            self.abandon()

    def watch(self, outputs, sync=True, keep=None, substituted=False):
        """A backward through one of these tensors averages the gradients; it does not if none of its forward passes had `sync`. Their graph
        holds `keep`. substituted: other tensors took the place of parameters; a backward that reaches only those averages nothing."""
        self.end_stopped()
        if self._upcast:
            self.attach()
        nodes = [output.grad_fn for output in outputs if output.grad_fn is not None and not _is_grad_tracking(output)]
        # Of a pass that reaches a gradient first, perhaps through what was not returned, the last forward pass decides; but not one
        # without sync whose own passes can be told.
        if sync or not nodes:
            self._armed = sync
        for node in nodes:
            following = None if substituted else node.next_functions
            node.register_prehook(functools.partial(self.reached, following, keep=keep) if sync else self._reached_locally)

    def _reached_locally(self, _gradients):
        self._local[_current_task()] = threading.get_ident()
        torch.autograd.Variable._execution_engine.queue_callback(functools.partial(self._local.pop, _current_task(), None))
        if self._upcast:
            self.attach()  # as in _begin

    def reached(self, following, _gradients, keep=None):
        """The pass under way is at an output of a forward pass, behind which are the nodes `following`."""
        task = _current_task()
        if task == self._task:
            return
        if reaches(self._accumulators, following):
            self._begin(task)

    def _begin(self, task, late=False):
        _abandon_stopped()
        self.abandon()
        if self._upcast and not self._find_unused:
            self.attach()  # to what reentrant checkpoints are about to reach, if the parameters had full precision meanwhile
        try:
            if late and (self._find_unused or self._static) and _is_in_function():
                raise lockstep.Unimplemented('a reentrant checkpoint has the first gradient of a backward pass that has reached no output '
                                             'of the wrapper, so what is unused is unknown: use use_reentrant=False, or return tensors '
                                             'that torch finds (in tuples, lists, dicts, dataclasses), and do not change them in place')
            for index, parameter in enumerate(() if self._upcast else self.parameters):
                if parameter.dtype is not self._dtypes[index]:  # then its gradient comes to another node, without our hook
                    self._check_dtype(index, parameter)
            for index in self._used_elsewhere:
                self._drop_left(index)
        except lockstep.Error as error:  # the other ranks begin this step, which fails
            self._begin_step(task, [], joined=True)
            self.abandon(str(error))
            raise
        skipped = self._skipped() if self._find_unused else []
        if skipped and self.attach(skipped):
            skipped = self._skipped()
        self.varied |= self.steps > 0 and skipped != self.skipped
        self.skipped = skipped
        # DDP also averages what earlier passes left. It is read now: once the step has begun, an optimizer's thread may set .grad.
        left = dict.fromkeys(i for i in skipped if self.parameters[i].grad is not None)
        self._begin_step(task, [i for i in skipped if i not in left])
        queue = torch.autograd.Variable._execution_engine.queue_callback
        if self._trigger in left:  # it is marked last, behind the gradients that are delayed
            del left[self._trigger]
            # Until then, the average of another wrapper may come to it.
            own = self.parameters[self._trigger].grad.clone() if self._trigger in self._shared else None
            queue(lambda: self._mark(self._trigger, own))
        queue(_Pass(self))
        for index in left:
            self._mark(index)

    def _skipped(self):
        return [i for i, node in enumerate(self._accumulators) if not (node and _will_execute(node))]

    def _begin_step(self, task, unused, joined=False):
        # The new plan is in use since an earlier step. begin_backward may launch buckets, whose hooks read this.
        self.planned = self.planned or self.reducer.plan_version > 1
        compared = None if self._replicas is None or joined else self._replicas.addresses(self._precision and self._precision.full())
        if self._counting:
            self._counts = [0] * len(self.parameters)
        self._thread = threading.get_ident()
        if self._turn is not None:
            self.end_interrupted()
            self._check_turn(task)
            self._turn.begin()
        self._task, self.marking = task, True
        _under_way[self] = None
        try:
            self.reducer.begin_backward(unused=unused if self._find_unused else None, stream=self._stream(), replicas=compared)
        except lockstep.Error:
            self._over()
            raise
        except BaseException:  # of a signal, whose step may have begun
            self.abandon('an exception has stopped its beginning')
            raise
        self._recording = self.records.begin()
        self._triggered = False
        self._copies.clear()
        self._overwritten.clear()
        self._marks.clear()
        self.steps += 1

    def _is_around(self, task):
        """Whether the pass of this backward is the pass `task`, or has started that pass."""
        return self.marking and self._task != -1 and (self._task == task or self._thread == threading.get_ident())

    def _check_turn(self, task):
        """Refuses a backward inside another one whose hooks come first: neither could end."""
        if any(each._turn is not None and each._turn.line is self._turn.line and each._task != task and each._is_around(task)
               for each in _under_way):
            raise lockstep.Unimplemented('a wrapper with a communication hook in a reentrant checkpoint of another one: use '
                                         'use_reentrant=False, or give each wrapper, and its hook, a process group of its own')

    def _may_be_in_local(self, task):
        """Whether the pass `task` may have been started, by a reentrant checkpoint, in a pass through an output without sync."""
        return task not in self._local and threading.get_ident() in self._local.values()

    def _begin_late(self, index):
        task = _current_task()
        # A pass through another wrapper's output reaches what both have, also from inside a reentrant checkpoint.
        if not self._armed or task in self._local or any(owner._may_be_in_local(task) or owner._is_around(task)
                                                         for owner in _averagers[self.parameters[index]]):
            return False
        self._begin(task, late=True)
        return True

    def _stream(self):
        if not self._on_device:
            return None
        device = self.parameters[0].device
        stream = ffi.new('lockstep_stream*')
        stream.handle = ffi.cast('void*', torch.cuda.current_stream(device).cuda_stream)
        stream.device_kind, stream.device_index = lib.LOCKSTEP_CUDA, device.index or 0
        return stream

    # ---- A gradient is final

    def _hook(self, index):
        if (self._on_device or self._static or self._find_unused or self._views is not None or self._upcast or self._delayed
                or index in self._sparse):
            return lambda _inputs, given: self._ready(index, given[0])
        # The usual case is short.
        mark, reducer, gradient_of = lib.lockstep_py_mark_ready, self.reducer, self.reducer._gradients[index]
        dtype, strides, parameter = self._dtypes[index], self._strides[index], self.parameters[index]
        kept, marks, shared = self._kept, self._marks, self._shared

        def ready(_inputs, given):
            gradient = parameter.grad
            if (not self.marking or gradient is None or gradient.is_sparse or gradient.dtype is not dtype or gradient.stride() != strides
                    or gradient.requires_grad or gradient.is_conj() or gradient.is_neg() or self.scale != 1.0 or index in shared
                    or _is_used_elsewhere(gradient, given[0])):
                return self._ready(index, given[0])
            if self._recording is not None:
                self._recording.mark(index)
            kept.append(gradient)
            marks[index] = gradient, gradient._version
            error = mark(reducer._c, index, gradient_of, gradient.data_ptr())
            if error:
                check(error)

        return ready

    def _ready(self, index, given):
        """given: what the engine has accumulated into the gradient, or None."""
        parameter = self.parameters[index]
        goes_to_view = self._views is not None and index not in self._shared
        if parameter.grad is not None and not goes_to_view and _is_used_elsewhere(parameter.grad, given):
            _set_gradient(parameter, parameter.grad.clone())
        averaged = self.marking or self._begin_late(index)
        if averaged and parameter.grad is None:  # autograd reached it without a gradient
            if self._find_unused:
                return self.reducer.mark_unused(index, self._stream())
            if self._static and self._counts[index] == 0:
                return None  # in a static graph it is unused, then
            parameter.grad = torch.zeros_like(parameter)
        if self._upcast and parameter.grad is not None and parameter.grad.dtype != self._dtypes[index]:
            parameter.grad.data = parameter.grad.to(self._dtypes[index])
        if averaged:
            self._mark(index)

    def _mark(self, index, own=None):
        """own: a copy of the gradient of a shared parameter."""
        parameter = self.parameters[index]
        gradient = parameter.grad if own is None else own
        if self._counting:
            self._counts[index] += 1
        if self._recording is not None:
            self._recording.mark(index)
        if gradient.is_sparse or index in self._sparse:
            return self._mark_sparse(index, gradient)
        if index in self._shared:
            gradient = self._copy(index, gradient)
        else:
            gradient = self._prepared(index, gradient)
            if gradient is not parameter.grad:
                _set_gradient(parameter, gradient)
        if self.scale != 1.0:
            gradient.mul_(self.scale)
        if index == self._trigger:
            self._triggered = True
        elif index in self._delayed:
            self._delay(index, gradient)
        self._kept.append(gradient)
        if index not in self._shared:  # each averages a copy
            self._marks[index] = gradient, gradient._version
        self.reducer.mark_ready_at(index, gradient.data_ptr(), self._stream())

    def _check_dtype(self, index, gradient):
        if gradient.dtype != self._dtypes[index]:
            raise lockstep.InvalidArgument(f"the gradient of parameter '{self.names[index]}' is {gradient.dtype}, and was "
                                           f'{self._dtypes[index]} when the module was wrapped: wrap it again after a change of dtype')

    def _prepared(self, index, gradient):
        """A gradient as the table describes it: the same one where that is so."""
        self._check_dtype(index, gradient)
        if gradient.requires_grad:
            _warn_of_graph()
            gradient = gradient.detach().clone()
        gradient = gradient.resolve_conj().resolve_neg()
        if self._views is not None:
            view = self._views[index]
            if gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient)
                return view
        if gradient.stride() != self._strides[index] and gradient.numel():
            given = gradient
            gradient = torch.empty_strided(given.shape, self._strides[index], dtype=given.dtype, device=given.device).copy_(given)
        return gradient

    def _copy(self, index, gradient):
        """Copies a gradient that another averager also averages."""
        self._check_dtype(index, gradient)
        copy = torch.empty_strided(gradient.shape, self._strides[index], dtype=gradient.dtype, device=gradient.device)
        self._copies.append((self.parameters[index], copy))
        return copy.copy_(gradient.detach())

    def _delay(self, index, gradient):
        if self._triggered:
            raise lockstep.FailedPrecondition(f"the gradient of parameter '{self.names[index]}' of delay_all_reduce_named_params comes "
                                              f"after that of '{self.names[self._trigger]}', param_to_hook_all_reduce: choose a parameter "
                                              'whose gradient is the last')
        self._delayed_gradients[index] = gradient

    def _mark_sparse(self, index, gradient):
        name = self.names[index]
        if index not in self._sparse:
            raise lockstep.InvalidArgument(f"the gradient of parameter '{name}' is sparse: give it to torch.nn.Embedding or EmbeddingBag "
                                           'with sparse=True, or use a dense gradient')
        if not gradient.is_sparse:
            raise lockstep.InvalidArgument(f"the gradient of parameter '{name}' is dense, but its module has sparse=True")
        gradient = gradient.coalesce()
        values = gradient.values().contiguous()
        self.reducer.mark_ready_sparse(index, gradient.indices()[0].contiguous(), values if self.scale == 1.0 else values * self.scale,
                                       self._stream())

    # ---- Where it ends

    def pass_ended(self):
        """The engine has executed the pass."""
        if self.ends_itself:
            self.end()
        elif self._task is not None:
            self._task = -1

    def pass_stopped(self):
        """An exception has stopped the pass. Later gradients are local until the next forward pass."""
        self.marking = self._armed = False

    def end(self):
        """Waits for the averages, which are in .grad then. The engine calls it; without ends_itself, the user."""
        if self._task is None:
            return
        try:
            self._end_step()
        except lockstep.FailedPrecondition as error:
            self._told_more(error)
            raise
        finally:
            self._armed = False
        if self._triggered:
            self._delayed_gradients.clear()
        if self._precision is not None:
            self._precision.restore()  # also if no output of the forward pass was reached
        for parameter, average in self._copies:
            if parameter.grad is None:  # the program has removed it meanwhile
                parameter.grad = average
            parameter.grad.copy_(average)
            self._tell_overwritten(parameter)
        self._copies.clear()
        if self._step is None:
            self._check_marks()
        self._marks.clear()
        self._take()
        for parameter in self._consumed:
            parameter.grad = None
        while self.awaited:
            self.awaited.pop().wait()

    def _end_step(self, why_missing=None):
        succeeded = False
        try:
            if why_missing is not None:
                self.reducer.explain_missing(why_missing)
            self.reducer.end_backward(self._stream())
            succeeded = True
        except lockstep.Error:
            if self._turn is not None:
                self._turn.failed()
            # If the process group has failed too, it runs the abort hooks (which write torch's flight records).
            with contextlib.suppress(RuntimeError):  # other back ends have no errors to ask for
                self._backend.get_error()
            raise
        finally:
            self._over(succeeded)

    def end_interrupted(self):
        """Waits for the end of a step, if a signal interrupted that wait."""
        if self.reducer.end_interrupted:
            with contextlib.suppress(lockstep.Error):
                self._end_step()

    def _check_marks(self):
        """Refuses gradients that others wrote to. As in DDP, the average takes the place of one that was removed or replaced."""
        for index, (gradient, version) in self._marks.items():
            # If there is more in its memory, perhaps another part was written to.
            if gradient._version != version and 0 < gradient.nbytes == gradient.untyped_storage().nbytes():
                raise lockstep.FailedPrecondition(f"the gradient of parameter '{self.names[index]}' was written to in the backward pass "
                                                  'when it was being averaged: write to it in a hook of the parameter '
                                                  '(register_post_accumulate_grad_hook), or after the backward pass')
            if self.parameters[index].grad is not gradient:
                _set_gradient(self.parameters[index], gradient)

    def _told_more(self, error):
        more = self._explain and self._explain()
        if self.attach() and more is None:
            more = 'Parameters have had another dtype since the last step: the next step may be tried.'
        if more is None and 'no gradient came' in str(error) and not self._find_unused:
            more = 'If not every forward pass uses every parameter, pass find_unused_parameters=True.'
        if more:
            error.args = (f'{error} {more}',)

    def _take(self):
        """Averages that are not where the gradients are."""
        for index in self._sparse:
            found = self.reducer.averaged_rows(index)
            if found is not None:
                self.parameters[index].grad = hooks.sparse_copy(found, self.parameters[index], self._dtypes[index])
        if not (self._find_unused or self._static):
            return
        if self._counting:
            self._counting = False
            self._used_elsewhere = [index for index, count in enumerate(self._counts)
                                    if count == 0 and index not in self._sparse and self.reducer.averaged_gradient(index)[1]]
            for index in self._used_elsewhere:
                if self._step is None and id(self.parameters[index]) not in self._overwritten:
                    self._drop_left(index)
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None and index not in self._sparse:
                self._take_unused(index, parameter)

    def _drop_left(self, index):
        """Removes the gradient that an earlier pass left of a parameter that this rank does not use: in a static graph it has no mark."""
        gradient = self.parameters[index].grad
        if gradient is not None and gradient.count_nonzero():
            raise lockstep.FailedPrecondition(f"parameter '{self.names[index]}' has a gradient of an earlier pass, and only other ranks "
                                              'use it: with static_graph set gradients to None or zero before each pass, or pass '
                                              'find_unused_parameters=True without static_graph')
        self.parameters[index].grad = None

    def _take_unused(self, index, parameter):
        """The average of a parameter that only other ranks used."""
        address, used = self.reducer.averaged_gradient(index)
        if not used:
            return
        if self._views is not None and index not in self._shared:
            parameter.grad = self._views[index]
        else:
            parameter.grad = memory.copy_at(address, parameter.shape, self._strides[index], self._dtypes[index], parameter.device)
            self._tell_overwritten(parameter)

    @staticmethod
    def _tell_overwritten(parameter):
        for owner in _averagers.get(parameter, ()):
            owner._overwritten.add(id(parameter))

    def _over(self, succeeded=False):
        self._task, self.marking = None, False
        _under_way.pop(self, None)
        if self._turn is not None and not self.reducer.end_interrupted:  # by a signal: its hooks run
            self._turn.end()
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.end(succeeded)

    def gradient_states(self):
        """What .grad of each parameter holds after a step that failed, by name."""
        states = self.reducer.gradient_states()
        shared = {index: 'averaged' if id(self.parameters[index]) in self._overwritten else 'unchanged' for index in self._shared}
        return {name: shared.get(index, states[index]) for index, name in enumerate(self.names)}

    def abandon(self, why='an exception has stopped its backward pass'):
        """Ends a backward that an exception stopped half way. The other ranks' steps fail and say so; the next step may be tried."""
        if self._task is not None:
            with contextlib.suppress(lockstep.Error):  # the step has failed here already
                self._end_step(why)

    # ---- Steps without a backward

    def average(self):
        """A step of its own: averages the gradients that there are."""
        self.abandon()
        left = dict.fromkeys(i for i, parameter in enumerate(self.parameters) if parameter.grad is not None)
        self._begin_step(-1, [i for i in range(len(self.parameters)) if i not in left])
        for index in reversed(left):
            self._mark(index)
        self.end()

    def shadow(self):
        """A step of the other ranks, with zeros of this one."""
        self.abandon()
        self._begin_step(-1, list(range(len(self.parameters))), joined=True)
        try:
            if not self._find_unused:
                # The trigger comes last: a delayed parameter that is marked after it waits for the next step, and the zeros do not.
                for index in sorted(range(len(self.parameters)), key=lambda index: index == self._trigger):
                    for _ in range(self._counts[index] if self._static and not self._counting else 1):
                        self._mark_zeros(index, self.parameters[index])
            self._end_step()
        except BaseException:
            self.abandon()
            raise
        for parameter in self._consumed:
            parameter.grad = None

    def _mark_zeros(self, index, parameter):
        if index in self._sparse:
            rows = torch.empty(0, dtype=torch.int64, device=parameter.device)
            return self.reducer.mark_ready_sparse(index, rows, parameter.new_empty((0, *parameter.shape[1:]), dtype=self._dtypes[index]))
        zeros = torch.empty_strided(parameter.shape, self._strides[index], dtype=self._dtypes[index], device=parameter.device).zero_()
        self._kept.append(zeros)
        return self.reducer.mark_ready_at(index, zeros.data_ptr(), self._stream())

    # ---- Around steps

    def change_communicator(self, communicator, group):
        """Moves to another communicator, that of the process group, with the gradients. Collective there."""
        self.abandon()
        if self._turn is not None:
            self._turn.join(group, communicator)
        old = self._views
        self.reducer.change_communicator(communicator)
        self._backend = communicator.of_backend
        if self._replicas is not None:
            self._replicas.rank = communicator.rank
        self.planned = True
        if old is None:
            return
        self._views = self._new_views()
        for parameter, before, now in zip(self.parameters, old, self._views):
            if parameter.grad is before:
                parameter.grad = now

    # ---- On threads of the library's

    @torch.no_grad()  # as in a backward pass
    def _optimize(self, bucket):
        for index, address in bucket.gradients:
            parameter = self.parameters[index]
            if bucket.rows is not None:
                parameter.grad = hooks.sparse_copy(bucket.rows, parameter, parameter.dtype)
            elif parameter.grad is None or parameter.grad.data_ptr() != address:  # in .grad is what this rank has not marked
                parameter.grad = memory.copy_at(address, parameter.shape, self._strides[index], parameter.dtype, parameter.device)
        self._step([self.parameters[index] for index, _ in bucket.gradients])


def _is_grad_tracking(output):
    """Whether it belongs to a transform of torch.func, whose backward pass is for what the transform asks for."""
    return torch._C._functorch.is_functorch_wrapped_tensor(output) and torch._C._functorch.is_gradtrackingtensor(output)


def _is_used_elsewhere(gradient, given):
    """Whether the engine, which has made a gradient of the memory of `given`, may read that memory later or make another gradient of it.
    It has checked that the tensor has no other user. But the memory may have one, if the tensor is a view."""
    if given is None or gradient.is_sparse or given.data_ptr() != gradient.data_ptr():
        return False
    base = given._base
    # Known users of the memory are the gradient, `given`, the storage object here, and the base; those of the base are `given` and the
    # object here.
    return _users(gradient.untyped_storage()._cdata) > (3 if base is None else 4) or (base is not None and base._use_count() > 2)


def _strides(parameter):
    return parameter.stride() if memory.is_dense(parameter) else memory.row_major(parameter.shape)


def _set_gradient(parameter, gradient):
    if gradient.dtype == parameter.dtype:
        parameter.grad = gradient
    else:
        parameter.grad.data = gradient  # a parameter that is in lower precision now


@functools.lru_cache(maxsize=None)
def _warn_of_graph():
    import warnings
    warnings.warn('gradients with a graph (create_graph=True) are averaged without it: higher-order gradients stay those of this rank',
                  stacklevel=2)
