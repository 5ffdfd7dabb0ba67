"""The reducer: averages the gradients of a replicated model over the ranks, bucket by bucket, while the backward pass still computes.

    reducer = lockstep.Reducer(communicator, [('weight', (1000, 100), 'float32'), ('bias', (100,), 'float32')])
    for batch in batches:
        reducer.begin_backward()
        reducer.mark_ready(1, bias_gradient)        # as each gradient appears, on any thread
        reducer.mark_ready(0, weight_gradient)
        reducer.end_backward()                      # the gradients are averages now

lockstep.torch wires it to autograd, lockstep.jax to a tree of arrays.

THREADS  One at a time, but that several may mark gradients at once. The interpreter goes on while a call waits.
MEMORY   A marked gradient is held as long as the library owns it (lockstep.h), and overwritten with the average.
SIGNALS  In the main thread a signal ends a wait for gradients of the host if its handler raises (KeyboardInterrupt). The step goes on;
         end_backward again, or else the next call on the reducer, waits for its end.
"""

import weakref

from lockstep import at_exit, options, tensors, works
from lockstep._native import ffi, lib
from lockstep.communicator import own, read_list
from lockstep.errors import Error, FailedPrecondition, InvalidArgument, check, take_text, to_error, to_exception, utf8

_AVERAGING = {'before': lib.LOCKSTEP_AVERAGING_BEFORE, 'after': lib.LOCKSTEP_AVERAGING_AFTER, 'none': lib.LOCKSTEP_AVERAGING_NONE,
              'in_collective': lib.LOCKSTEP_AVERAGING_IN_COLLECTIVE, 'predivide': lib.LOCKSTEP_AVERAGING_PREDIVIDE}
_COMPRESSION = {None: lib.LOCKSTEP_COMPRESSION_NONE, 'float16': lib.LOCKSTEP_COMPRESSION_F16, 'bfloat16': lib.LOCKSTEP_COMPRESSION_BF16}
_HOOKS = {None: lib.LOCKSTEP_HOOK_NONE, 'all_reduce': lib.LOCKSTEP_HOOK_ALL_REDUCE, 'fp16_compress': lib.LOCKSTEP_HOOK_FP16_COMPRESS,
          'bf16_compress': lib.LOCKSTEP_HOOK_BF16_COMPRESS, 'noop': lib.LOCKSTEP_HOOK_NOOP}
_GRADIENT_STATES = {lib.LOCKSTEP_GRADIENT_UNCHANGED: 'unchanged', lib.LOCKSTEP_GRADIENT_AVERAGED: 'averaged',
                    lib.LOCKSTEP_GRADIENT_UNDEFINED: 'undefined'}
_DTYPE_NAMES = {value: name for name, value in tensors.NAMES.items()}
_LISTS = {'bucket_caps_bytes': ('bucket_cap_count', 'int64_t[]'), 'delayed': ('delayed_count', 'size_t[]')}  # options, their count and type
# Fields that are no options.
_NOT_GIVEN = {'hook', 'hook_name', 'hook_issue', 'hook_start', 'hook_context', 'hook_release', 'optimizer_context', 'optimizer_release',
              'bucket_cap_count', 'delayed_count', 'replicas', 'replica_count', 'on_drift', 'drift_context', 'drift_release'}


class Parameter:
    """A row of the parameter table, which is equal on all ranks. dtype: 'float32', ...; strides in elements, None: row-major."""

    __slots__ = ('name', 'shape', 'dtype', 'strides', 'ignored', 'sparse', 'device_kind', 'device_index')

    def __init__(self, name, shape, dtype='float32', strides=None, ignored=False, sparse=False, device_kind=lib.LOCKSTEP_HOST,
                 device_index=0):
        self.name, self.shape, self.dtype, self.strides = name, tuple(shape), dtype, strides
        self.ignored, self.sparse, self.device_kind, self.device_index = ignored, sparse, device_kind, device_index

    def _describe(self, c, kept):
        def keep(made):
            kept.append(made)
            return made
        c.struct_size = ffi.sizeof('lockstep_parameter')
        c.name = keep(ffi.new('char[]', (self.name or '').encode()))
        c.shape = keep(ffi.new('int64_t[]', list(self.shape) or 1))
        c.dimensions = len(self.shape)
        if self.strides is not None:
            c.strides = keep(ffi.new('int64_t[]', list(self.strides) or 1))
        dtype = tensors.NAMES.get(self.dtype)
        if dtype is None:
            raise InvalidArgument(f"parameter {self.name}: Lockstep has no dtype '{self.dtype}'")
        c.dtype, c.device_kind, c.device_index = dtype, self.device_kind, self.device_index
        c.ignored, c.sparse = self.ignored, self.sparse


def _table(rows, kept):
    """A lockstep_parameter[] of the rows; `kept` gets what it points to."""
    table = ffi.new('lockstep_parameter[]', len(rows))
    for row, c in zip(rows, table):
        row._describe(c, kept)
    return table


def _addresses(addresses):
    return ffi.new('uintptr_t[]', addresses)


def check_replicas(communicator, arrays):
    """Compares arrays that should be equal on all ranks, byte by byte: {name: array}, with the same names and order on all ranks. Every
    rank calls it. Blocks.

    ERRORS  DataLoss            arrays differ: the same text on every rank, with the ranks that differ from the majority, and of the first
                                such array the first element that differs and its values. `parameter` is the array's index
            FailedPrecondition  names, shapes or dtypes differ
    """
    read = [(name, tensors.read(array, name, False)) for name, array in arrays.items()]
    rows = [Parameter(name, list(one.c.shape[0:one.c.dimensions]), _DTYPE_NAMES[one.c.dtype], None, False, False, one.c.device_kind,
                      one.c.device_index) for name, one in read]
    check_replicas_at(communicator, rows, [_address(one.c.data) for _, one in read], read)


def check_replicas_at(communicator, rows, addresses, owners):
    """check_replicas of memory that Parameters describe, at addresses, of which 0 is that of a tensor that this rank does not have. For
    frameworks."""
    kept = [owners]
    table, data = _table(rows, kept), _addresses(addresses)

    def compare(c, _kept=kept):
        return lib.lockstep_check_replicas(c, table, ffi.cast('void**', data), len(rows))
    communicator._wait_for(compare)


class HookBucket:
    """What a hook gets: a bucket whose gradients are in it, without averaging. Valid until the backward has ended."""

    def __init__(self, c, communicator, parameters):
        self._c, self._communicator, self._parameters = c, communicator, parameters
        self.index, self.count = lib.lockstep_hook_bucket_index(c), lib.lockstep_hook_bucket_count(c)
        self._tensor = ffi.new('lockstep_tensor*')
        check(lib.lockstep_hook_bucket_tensor(c, self._tensor))

    @property
    def address(self):
        """Where it is."""
        return _address(self._tensor.data)

    @property
    def elements(self):
        """How many of the dtype that is sent, gaps between gradients included."""
        return self._tensor.shape[0]

    @property
    def buffer(self):
        """All of it, writable, in bytes of the dtype that is sent. The gaps between gradients have no meaning."""
        size = self._tensor.shape[0] * lib.lockstep_dtype_size(self._tensor.dtype)
        return ffi.buffer(ffi.cast('char*', self._tensor.data), size) if size else memoryview(b'')

    @property
    def dtype(self):
        """The name of the dtype that is sent: 'float32', ..."""
        return _DTYPE_NAMES[self._tensor.dtype]

    def gradients(self):
        """(index of the parameter, first byte in the buffer, elements) of each."""
        found = []
        parameter, tensor = ffi.new('size_t*'), ffi.new('lockstep_tensor*')
        begin = _address(self._tensor.data)
        for slot in range(lib.lockstep_hook_bucket_gradient_count(self._c)):
            check(lib.lockstep_hook_bucket_gradient(self._c, slot, parameter, tensor))
            found.append((parameter[0], _address(tensor.data) - begin, tensor.shape[0]))
        return found

    def rows(self):
        """Of a sparse parameter, which has its own bucket, this rank's (address of int64 rows, address of values, number of rows); None for
        other buckets."""
        rows, values, count, sparse = ffi.new('int64_t**'), ffi.new('void**'), ffi.new('size_t*'), ffi.new('int32_t*')
        check(lib.lockstep_hook_bucket_rows(self._c, rows, values, count, sparse))
        return (_address(rows[0]), _address(values[0]), count[0]) if sparse[0] else None

    def set_rows(self, rows, values):
        """The average of a sparse bucket: values[i] belongs to row rows[i] (int64, in any order), and has the parameter's dtype. Both are
        copied."""
        row, value = tensors.read(rows, 'rows', False), tensors.read(values, 'values', False)
        index = ffi.new('size_t*')
        check(lib.lockstep_hook_bucket_gradient(self._c, 0, index, ffi.NULL))
        parameter = self._parameters[index[0]]
        if row.c.dtype != lib.LOCKSTEP_I64 or row.c.dimensions != 1:
            raise InvalidArgument('rows: a vector of int64 belongs here')
        if value.c.dtype != tensors.NAMES[parameter.dtype]:
            raise InvalidArgument(f'values: {_DTYPE_NAMES[value.c.dtype]} for the {parameter.dtype} of parameter {parameter.name}')
        shape, expected = value.c.shape[0:value.c.dimensions], [row.c.shape[0], *parameter.shape[1:]]
        if list(shape) != expected:
            raise InvalidArgument(f'values: shape {list(shape)}, not {expected}, for {row.c.shape[0]} rows of parameter {parameter.name}')
        check(lib.lockstep_hook_bucket_set_rows(self._c, ffi.cast('int64_t*', row.c.data), value.c.data, row.c.shape[0]))

    def all_reduce(self, op=lib.LOCKSTEP_SUM):
        """Reduces the bucket over the ranks, in place, on the hook's own communicator. Waits."""
        self._reduce(self._tensor, op)

    def is_same_on_all_ranks(self, number):
        """Collective on the hook's own communicator: whether each rank calls it with the same number. Waits."""
        numbers, shape = ffi.new('int64_t[]', [number, -number]), ffi.new('int64_t[]', [2])
        tensor = ffi.new('lockstep_tensor*', {'data': numbers, 'shape': shape, 'dimensions': 1, 'dtype': lib.LOCKSTEP_I64})
        self._reduce(tensor, lib.LOCKSTEP_MAX)
        return numbers[0] == -numbers[1]

    def _reduce(self, tensor, op):
        check(lib.lockstep_all_reduce(self._communicator, tensor, tensor, op, ffi.NULL, ffi.NULL, ffi.NULL))


class ReducedBucket:
    """What an optimizer gets: a bucket whose gradients are averages, of those parameters that some rank used. Borrowed until the step
    returns.

    gradients  (index of the parameter, address of its average) of each
    rows       of a sparse parameter, whose average is not in `gradients`: (address of int64 rows, address of values, number of rows)
    """

    __slots__ = ('gradients', 'rows')

    def __init__(self, c):
        parameters = [c.parameters[i] for i in range(c.parameter_count)]
        dense = c.gradients != ffi.NULL
        self.gradients = [(index, _address(c.gradients[i].data) if dense else None) for i, index in enumerate(parameters)]
        self.rows = None if dense else (_address(c.rows), _address(c.row_values), c.row_count)


class Completion:
    """Told once, from any thread, when a hook is done with its bucket."""

    def __init__(self, c):
        self._c = c

    def done(self, error=None):
        """error: an exception; the hook has failed then, and its communicator ends on all ranks."""
        c, self._c = self._c, None
        if c is not None:
            lib.lockstep_hook_complete(c, ffi.NULL if error is None else to_error(error))


class Reducer:
    """See the module."""

    def __init__(self, communicator, parameters, optimizer_step=None, hook=None, replicas=(), on_drift=None, **options):
        """Makes a reducer. Every rank calls it, with equal tables and options: FailedPrecondition names rank, parameter and difference.

        parameters: Parameters, or tuples of their arguments. options: the fields of lockstep_reducer_options in lockstep.h
        (bucket_cap_bytes, find_unused_parameters, static_graph, gradient_as_bucket_view, ...), with averaging 'before', 'after', 'none',
        'in_collective' or 'predivide', compression 'float16' or 'bfloat16'. hook: a name ('fp16_compress', ...), or hook(bucket,
        completion), which averages each HookBucket and tells the Completion. optimizer_step(bucket) is called with a ReducedBucket as soon
        as that is averaged. Both are called on threads of the library's.
        replicas: Parameters that describe tensors which stay equal on all ranks, such as the model's parameters. Each step compares some of
        them (begin_backward). If they differ, on_drift(error) gets the DataLoss that check_replicas raises, in begin_backward, on every
        rank; an exception ends the step before it begins. None: rank 0 logs the first difference.
        """
        rows = [row if isinstance(row, Parameter) else Parameter(*row) for row in parameters]
        self.parameters = rows
        self._kept = []
        table = _table(rows, self._kept)
        replicas = list(replicas)
        self._replica_count = len(replicas)
        self._optimizer_step = optimizer_step
        self._hook = hook if callable(hook) else None
        self._on_drift = on_drift
        self._weak = _Weak(self)
        self._context = ffi.new_handle(self._weak)
        out = ffi.new('lockstep_reducer**')
        read = self._read(options, hook, replicas)
        check(communicator._call(lib.lockstep_reducer_create, table, len(rows), read, out))
        self.borrowed = []  # what the step uses: kept until it is over
        # And what later steps may use, by parameter: the last mark without sync, until the next synchronised step has ended, and the last
        # mark of a delayed parameter.
        self._window, self._no_sync = {}, False
        self._delayed = frozenset(read.delayed[i] for i in range(read.delayed_count))
        self._c, self._before_destroy = own(out[0], lib.lockstep_reducer_destroy,
                                            (self.borrowed, self._window, self._context, self._weak))
        self.communicator = communicator
        at_exit.made_from_communicators.add(self)
        # For each parameter the description of its gradient, which stays but for the address.
        self._gradients = [self._gradient(row, c) for row, c in zip(rows, table)]
        self._backward = ffi.new('lockstep_backward_options*')
        self._on_device = any(row.device_kind != lib.LOCKSTEP_HOST for row in rows)
        self._interrupted = None  # a works.Call whose wait a signal ended
        self.end_interrupted = False  # whether end_backward was called, and the step has not ended

    def _keep(self, made):
        self._kept.append(made)
        return made

    @staticmethod
    def _gradient(row, c):
        tensor = ffi.new('lockstep_tensor*')
        tensor.shape, tensor.strides, tensor.dimensions, tensor.dtype = c.shape, c.strides, c.dimensions, c.dtype
        tensor.device_kind, tensor.device_index = c.device_kind, c.device_index
        return tensor

    def _read(self, given, hook, replicas):
        options.check_names('lockstep_reducer_options', given, _NOT_GIVEN)
        made = {name: value for name, value in given.items() if name not in _LISTS}
        made['averaging'] = _one_of('averaging', _AVERAGING, 'before' if given.get('averaging') is None else given['averaging'])
        made['compression'] = _one_of('compression', _COMPRESSION, given.get('compression'))
        if self._hook is None:
            made['hook'] = _one_of('hook', _HOOKS, hook)
        else:
            made.update(hook=lib.LOCKSTEP_HOOK_CALLBACK, hook_name=getattr(hook, '__name__', 'callback'),
                        hook_start=lib.lockstep_py_hook_start, hook_context=self._context)
        for name, (count, elements) in _LISTS.items():
            if given.get(name):
                try:
                    made[name] = ffi.new(elements, list(given[name]))
                except (TypeError, OverflowError) as error:
                    raise type(error)(f'option {name}: {error}') from None
                made[count] = len(made[name])
        if self._optimizer_step is not None:
            made.update(optimizer_step=lib.lockstep_py_optimizer_step, optimizer_context=self._context)
        if replicas:
            made.update(replicas=_table(replicas, self._kept), replica_count=len(replicas))
        if self._on_drift is not None:
            made.update(on_drift=lib.lockstep_py_on_drift, drift_context=self._context)
        return self._keep(options.fill('lockstep_reducer_options', made))

    def close(self):
        """Waits for launched buckets if a step is under way. Before end_backward the step fails on the other ranks; waits for them 30 s.
        Twice is once. Bucket views stay valid: the last of them frees the memory.

        THREADS  If another thread is in a call on it, that goes on, and the last such call ends the reducer as it returns.
        """
        self._c = ffi.NULL  # whoever is in a call, or has a view, has a reference to the handle, too

    def _handle(self):
        """Once what a signal interrupted is over."""
        if self._interrupted is not None:
            self._interrupted.finish()
            self._interrupted = None
        if self.end_interrupted:
            try:
                self.end_backward()
            except Error:  # of the step that was interrupted
                pass
        return self._open()

    def _open(self):
        if not self._c:
            raise FailedPrecondition('the reducer is closed: make another one')
        return self._c

    def _wait_for(self, borrowed, call, *arguments):
        """A call that waits, and what it uses meanwhile."""
        made = works.Call(self._call, borrowed, call, self._handle(), *arguments, on_device=self._on_device)
        try:
            made.wait()
        except BaseException:
            if not made.done():
                self._interrupted = made
            raise

    def _call(self, _borrowed, call, *arguments):
        # A method, so that whoever is to call it keeps the reducer.
        return call(*arguments)

    # ---- A step

    def begin_backward(self, no_sync=False, unused=None, stream=None, replicas=None):
        """Begins a step. no_sync: nothing is sent, gradients accumulate. unused: these parameters are, with find_unused_parameters;
        None: those without a mark at the end. stream: a lockstep_stream*, for gradients on a device. replicas: the addresses of the tensors
        of that argument of the reducer's, 0 for one that is left out of this step; None: all of them are. Also raises, once, an error of
        another rank that came too late for its own step's end."""
        c_options = ffi.NULL
        if no_sync or unused is not None or stream is not None or replicas is not None:
            c_options = self._backward
            c_options.struct_size = ffi.sizeof('lockstep_backward_options')
            c_options.no_sync, c_options.stream = no_sync, stream or ffi.NULL
            given = ffi.new('size_t[]', list(unused)) if unused else ffi.NULL
            c_options.unused_given, c_options.unused, c_options.unused_count = unused is not None, given, len(unused or ())
            if replicas is not None and len(replicas) != self._replica_count:
                raise InvalidArgument(f'{len(replicas)} addresses for the {self._replica_count} replicas of the reducer')
            data = _addresses(replicas) if replicas else ffi.NULL
            c_options.replicas = ffi.cast('void**', data)
        check(lib.lockstep_reducer_begin_backward(self._handle(), c_options))
        # Not before: if it is refused, a step that is under way goes on with them.
        self.borrowed.clear()
        self._no_sync = no_sync

    def mark_ready(self, index, gradient):
        """Tells that the gradient of a parameter is final. It has the table's shape, strides, dtype and device, and is overwritten with the
        average by end_backward."""
        read = tensors.read(gradient, 'gradient', True)
        self._mark(lib.lockstep_reducer_mark_ready, index, (read,), read.c, ffi.NULL)

    def _mark(self, call, index, read, *arguments):
        self.borrowed.append(read)
        keeps = self._no_sync or index in self._delayed
        if keeps:  # both, since a signal's exception may hide whether this mark was accepted
            self._window[index] = read, self._window.get(index)
        error = call(self._c, index, *arguments)
        if error:
            check(error)
        if keeps:
            self._window[index] = read

    def mark_ready_at(self, index, address, stream=None):
        """mark_ready of a gradient at an address, which the caller keeps alive, with the table's shape and strides: for frameworks."""
        if stream is None:
            error = lib.lockstep_py_mark_ready(self._c, index, self._gradients[index], address)
        else:
            self._gradients[index].data = ffi.cast('void*', address)
            error = lib.lockstep_reducer_mark_ready(self._c, index, self._gradients[index], stream)
        if error:
            check(error)

    def mark_ready_into(self, index, gradient, target):
        """mark_ready, but the average goes to `target`, of any float dtype, and the gradient is only read."""
        source, into = tensors.read(gradient, 'gradient', False), tensors.read(target, 'target', True)
        self._mark(lib.lockstep_reducer_mark_ready_into, index, (source, into), source.c, into.c, ffi.NULL)

    def mark_ready_sparse(self, index, rows, values, stream=None):
        """Marks the gradient of a sparse parameter: values[i] is the gradient of row rows[i] (int64, in any order)."""
        row, value = tensors.read(rows, 'rows', False), tensors.read(values, 'values', False)
        if row.c.dtype != lib.LOCKSTEP_I64:
            raise InvalidArgument('rows are int64')
        count = row.shape[0] if row.c.dimensions else 1
        self._mark(lib.lockstep_reducer_mark_ready_sparse, index, (row, value), ffi.cast('int64_t*', row.c.data), count, value.c,
                   stream or ffi.NULL)

    def mark_unused(self, index, stream=None):
        """Tells that this backward has no gradient for a parameter, as if `unused` of begin_backward had named it."""
        check(lib.lockstep_reducer_mark_unused(self._c, index, stream or ffi.NULL))

    def explain_missing(self, reason):
        """Tells why gradients of this backward will be missing: the error of end_backward has this then, on all ranks."""
        check(lib.lockstep_reducer_explain_missing(self._c, utf8(reason)))

    def end_backward(self, stream=None):
        """Ends a step: waits for the averages; with a stream, makes it wait. FailedPrecondition names rank and parameters if a gradient is
        missing somewhere; then gradient_states() tells which gradients are averages, and the next step may be tried."""
        handle, ended = self._open(), ffi.new('int32_t*')
        self.end_interrupted = True
        while not ended[0]:
            error = lib.lockstep_reducer_try_end_backward(handle, stream or ffi.NULL, works.SLICE_MS, ended)
            if error:
                break
        self.end_interrupted = False
        self.borrowed.clear()
        if not self._no_sync:
            for index in self._window.keys() - self._delayed:
                del self._window[index]
        check(error)

    def averaged_gradient(self, index):
        """After a synchronised backward: the average's (address, used by some rank). It may be in the reducer's memory if only other ranks
        used the parameter; (None, False) if no rank did."""
        out, used = ffi.new('lockstep_tensor*'), ffi.new('int32_t*')
        check(lib.lockstep_reducer_averaged_gradient(self._handle(), index, out, used))
        return (_address(out.data), True) if used[0] else (None, False)

    def gradient_states(self):
        """After a synchronised backward, above all one that failed: what each parameter's gradient holds (the target, if one was marked):
        'unchanged', as it was when it was marked, 'averaged', or 'undefined', perhaps parts of sums. 'unchanged' for ignored parameters.
        With the option preserve_gradients, which costs a copy of the gradients, all are unchanged after a failure."""
        out = ffi.new('lockstep_gradient_state*')
        states = []
        for index, row in enumerate(self.parameters):
            if not row.ignored:
                check(lib.lockstep_reducer_gradient_state(self._handle(), index, out))
            states.append('unchanged' if row.ignored else _GRADIENT_STATES[out[0]])
        return states

    def averaged_rows(self, index):
        """After a synchronised backward, of a sparse parameter: (address of int64 rows, address of values, number of rows), or None."""
        rows, values, count = ffi.new('int64_t**'), ffi.new('void**'), ffi.new('size_t*')
        used = ffi.new('int32_t*')
        check(lib.lockstep_reducer_averaged_rows(self._handle(), index, rows, values, count, used))
        if not used[0]:
            return None
        return _address(rows[0]), _address(values[0]), count[0]

    def gradient_view_address(self, index):
        """Where the gradient of a parameter lives in its bucket, with gradient_as_bucket_view; until plan_version grows."""
        out = ffi.new('lockstep_tensor*')
        check(lib.lockstep_reducer_gradient_view(self._handle(), index, out))
        return _address(out.data)

    def lend(self):
        """What keeps the memory of bucket views, also after close()."""
        return self._c

    def gradient_view(self, index):
        """A writable buffer of bytes over that gradient, on the host. The memory lives as long as anything made from the buffer."""
        memory = ffi.gc(ffi.cast('void*', self.gradient_view_address(index)), lambda _, owner=self.lend(): None)
        return ffi.buffer(memory, self._bytes(index))

    def _bytes(self, index):
        row = self._gradients[index]
        elements = 1
        for extent in self.parameters[index].shape:
            elements *= extent
        return elements * lib.lockstep_dtype_size(row.dtype)

    # ---- Around steps

    def begin_forward(self):
        """Optional: a forward pass begins, for the times of the logging data."""
        check(lib.lockstep_reducer_begin_forward(self._handle(), ffi.NULL, ffi.NULL))

    def broadcast(self, arrays, root=0):
        """Copies the root's arrays (parameters, buffers) to every rank."""
        array, kept = read_list(arrays, 'tensors', True)
        self._wait_for(kept, lib.lockstep_reducer_broadcast, array, len(kept), root)

    def join(self, model, buffers=()):
        """Takes part with zeros in the steps of the ranks that still have inputs; returns when all have joined, with the `model`
        (parameters and buffers) of the last. With the option uneven_inputs."""
        models, of_model = read_list(model, 'model', True)
        buffer, of_buffers = read_list(buffers, 'buffers', True)
        self._wait_for((of_model, of_buffers), lib.lockstep_reducer_join, models, len(of_model), buffer, len(of_buffers))

    def request_replan(self):
        """Plans buckets again, in the order of rank 0's gradients in the next synchronised backward. Every rank calls it."""
        check(lib.lockstep_reducer_request_replan(self._handle()))

    @property
    def plan_version(self):
        """The number of the plan in use, from 1."""
        return lib.lockstep_reducer_plan_version(self._handle())

    @property
    def bucket_count(self):
        """Of the plan in use."""
        return lib.lockstep_reducer_bucket_count(self._handle())

    def export_plan(self):
        """The plan in use, for the option `plan` of a later run."""
        out = ffi.new('char**')
        check(lib.lockstep_reducer_export_plan(self._handle(), out))
        return take_text(out[0])

    def report(self):
        """The last synchronised backward, for people, on one screen."""
        return self._report(lib.LOCKSTEP_REPORT_SUMMARY)

    def logging_data(self):
        """DDP's logging data: a dictionary, times in nanoseconds."""
        import json
        return json.loads(self._report(lib.LOCKSTEP_REPORT_LOGGING_DATA))

    def set_logging_sample_rate(self, sample_rate):
        """Every sample_rate-th step updates the logging data, after the first ten."""
        check(lib.lockstep_reducer_set_logging_sample_rate(self._handle(), sample_rate))

    def _report(self, kind):
        out = ffi.new('char**')
        check(lib.lockstep_reducer_report(self._handle(), kind, out))
        return take_text(out[0])

    def statistics(self):
        """The last synchronised backward's times in milliseconds, bytes and buckets: a dictionary with the fields of
        lockstep_reducer_statistics."""
        out = ffi.new('lockstep_reducer_statistics*')
        out.struct_size = ffi.sizeof('lockstep_reducer_statistics')
        check(lib.lockstep_reducer_get_statistics(self._handle(), out))
        found = {name: getattr(out, name) for name, _ in ffi.typeof(out[0]).fields if name != 'struct_size'}
        found['copied_because'] = ffi.string(out.copied_because).decode() if out.copied_because else None
        return found

    def change_communicator(self, communicator):
        """Moves the reducer to another communicator, after a failure or when ranks come and go. Every rank of the new one calls it."""
        check(communicator._call(lambda c: lib.lockstep_reducer_change_communicator(self._handle(), c)))
        self.communicator = communicator


class _Weak:
    """What C has of a reducer: no reference."""

    def __init__(self, reducer):
        self.reducer = weakref.ref(reducer)


@at_exit.called_by_library
def lockstep_py_hook_start(context, bucket, communicator, completion):
    told = Completion(completion)
    try:
        reducer = ffi.from_handle(context).reducer()
        if reducer is None:
            raise RuntimeError('the reducer is gone')
        reducer._hook(HookBucket(bucket, communicator, reducer.parameters), told)
    except BaseException as error:  # all of it is the hook's error
        told.done(error)


@at_exit.called_by_library
def lockstep_py_optimizer_step(context, bucket):
    reducer = ffi.from_handle(context).reducer()
    if reducer is None:
        return ffi.NULL
    try:
        reducer._optimizer_step(ReducedBucket(bucket))
    except BaseException as error:  # all of it is the step's error
        return to_error(error)
    return ffi.NULL


@at_exit.called_by_library
def lockstep_py_on_drift(context, drift):
    error, reducer = to_exception(drift), ffi.from_handle(context).reducer()
    try:
        if reducer is not None:
            reducer._on_drift(error)
    except BaseException as raised:  # all of it is begin_backward's error
        if raised is error:
            return drift  # with its data
        lib.lockstep_error_free(drift)
        return to_error(raised)
    lib.lockstep_error_free(drift)
    return ffi.NULL


def _address(pointer):
    return int(ffi.cast('uintptr_t', pointer))


def _one_of(name, known, value):
    if value not in known:
        raise InvalidArgument(f'{name} {value!r}; there are {", ".join(str(key) for key in known)}')
    return known[value]
