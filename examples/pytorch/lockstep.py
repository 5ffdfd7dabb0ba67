"""liblockstep through ctypes: as much of capi/lockstep.h as averaging gradients takes. Any framework's, or none's.

Structures and functions have the header's names and fields, and the header is the reference. A call that fails
raises Error.
"""

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_void_p

HOST = 0
CUDA = 1

REPORT_SUMMARY = 0

# lockstep_dtype
DTYPES = {
    "bool": 1, "uint8": 2, "int8": 3, "int32": 4, "uint32": 5, "int64": 6, "uint64": 7, "float16": 8, "bfloat16": 9,
    "float32": 10, "float64": 11, "float8_e4m3fn": 12, "float8_e5m2": 13, "complex64": 14, "complex128": 15,
}

# lockstep_code, without LOCKSTEP_
CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
)


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("dimensions", c_int32),
        ("dtype", c_int32), ("device_kind", c_int32), ("device_index", c_int32),
    ]


class Stream(ctypes.Structure):
    _fields_ = [("handle", c_void_p), ("device_kind", c_int32), ("device_index", c_int32)]


class _Options(ctypes.Structure):
    """A structure that says its own size. Fields that are not given are zero, which is their default; a Parameter needs its dtype."""

    def __init__(self, **fields):
        super().__init__(ctypes.sizeof(type(self)))
        known = {name for name, _ in self._fields_}
        for name, value in fields.items():
            if name not in known:
                raise TypeError(f"{type(self).__name__} has no field '{name}'")
            setattr(self, name, value.encode() if isinstance(value, str) else value)


class CommunicatorOptions(_Options):
    _fields_ = [
        ("struct_size", c_size_t), ("world_size", c_int32), ("rank", c_int32), ("local_world_size", c_int32),
        ("local_rank", c_int32), ("store_url", c_char_p), ("store", c_void_p), ("job_id", c_char_p),
        ("network_interface", c_char_p), ("host_id", c_char_p), ("setup_timeout_ms", c_int64), ("timeout_ms", c_int64),
        ("peer_timeout_ms", c_int64), ("transport", c_char_p), ("algorithm", c_char_p), ("chunk_bytes", c_int64),
        ("deterministic", c_int32), ("checked", c_int32), ("device_kind", c_int32), ("device_index", c_int32),
        ("device_backend", c_char_p), ("tcp_congestion_control", c_char_p), ("tcp_send_buffer_bytes", c_int32),
        ("tcp_receive_buffer_bytes", c_int32), ("tcp_sockets", c_int32), ("tcp_zero_copy", c_int32),
        ("nccl_ctas_min", c_int32), ("nccl_ctas_max", c_int32), ("nccl_split_share", c_int32),
        ("ofi_provider", c_char_p),
    ]


class Parameter(_Options):
    _fields_ = [
        ("struct_size", c_size_t), ("name", c_char_p), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
        ("dimensions", c_int32), ("dtype", c_int32), ("device_kind", c_int32), ("device_index", c_int32),
        ("ignored", c_int32), ("sparse", c_int32),
    ]


class ReducerOptions(_Options):
    _fields_ = [
        ("struct_size", c_size_t), ("bucket_cap_bytes", c_int64), ("first_bucket_cap_bytes", c_int64),
        ("find_unused_parameters", c_int32), ("static_graph", c_int32), ("gradient_as_bucket_view", c_int32),
        ("averaging", c_int32), ("predivide_factor", c_double), ("compression", c_int32), ("hook", c_int32),
        ("hook_name", c_char_p), ("hook_issue", c_void_p), ("hook_start", c_void_p), ("hook_context", c_void_p),
        ("hook_release", c_void_p), ("hook_timeout_ms", c_int64), ("optimizer_step", c_void_p),
        ("optimizer_context", c_void_p), ("optimizer_release", c_void_p), ("bucket_caps_bytes", POINTER(c_int64)),
        ("bucket_cap_count", c_size_t), ("caps_from_last", c_int32), ("buckets_in_memory_max", c_int32),
        ("no_overlap", c_int32), ("no_replan", c_int32), ("plan", c_char_p), ("delayed", POINTER(c_size_t)),
        ("delayed_count", c_size_t), ("delayed_trigger", c_size_t), ("uneven_inputs", c_int32),
        ("divide_by_live_ranks", c_int32), ("throw_on_early_termination", c_int32), ("trace_path", c_char_p),
    ]


class BackwardOptions(_Options):
    _fields_ = [
        ("struct_size", c_size_t), ("no_sync", c_int32), ("unused_given", c_int32), ("unused", POINTER(c_size_t)),
        ("unused_count", c_size_t), ("stream", POINTER(Stream)),
    ]


class ReducerStatistics(_Options):
    _fields_ = [
        ("struct_size", c_size_t), ("steps", c_int64), ("backward_ms", c_double), ("communication_ms", c_double),
        ("exposed_ms", c_double), ("hidden_ms", c_double), ("bytes_reduced", c_int64), ("buckets", c_int32),
        ("buckets_launched_in_backward", c_int32),
    ]


class Error(RuntimeError):
    """A lockstep_error. `code` is one of CODES."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code


# Those whose result is a lockstep_error*.
_CALLS = {
    "lockstep_communicator_create": [POINTER(CommunicatorOptions), POINTER(c_void_p)],
    "lockstep_communicator_describe": [c_void_p, POINTER(c_void_p)],
    "lockstep_reducer_create": [c_void_p, POINTER(Parameter), c_size_t, POINTER(ReducerOptions), POINTER(c_void_p)],
    "lockstep_reducer_broadcast": [c_void_p, POINTER(Tensor), c_size_t, c_int32],
    "lockstep_reducer_begin_backward": [c_void_p, POINTER(BackwardOptions)],
    "lockstep_reducer_mark_ready": [c_void_p, c_size_t, POINTER(Tensor), POINTER(Stream)],
    "lockstep_reducer_end_backward": [c_void_p, POINTER(Stream)],
    "lockstep_reducer_check_replays": [c_void_p],
    "lockstep_reducer_get_statistics": [c_void_p, POINTER(ReducerStatistics)],
    "lockstep_reducer_report": [c_void_p, c_int32, POINTER(c_void_p)],
}

_OTHERS = {
    "lockstep_version": ([], c_int32),
    "lockstep_error_code": ([c_void_p], c_int32),
    "lockstep_error_message": ([c_void_p], c_char_p),
    "lockstep_error_free": ([c_void_p], None),
    "lockstep_string_free": ([c_void_p], None),
    "lockstep_communicator_destroy": ([c_void_p], None),
    "lockstep_communicator_rank": ([c_void_p], c_int32),
    "lockstep_communicator_size": ([c_void_p], c_int32),
    "lockstep_reducer_destroy": ([c_void_p], None),
    "lockstep_reducer_bucket_count": ([c_void_p], c_size_t),
}


class Library:
    """The loaded library, whose functions are attributes without their lockstep_. By default on the loader's path."""

    def __init__(self, path="liblockstep.so"):
        self._library = ctypes.CDLL(path)
        for name, (arguments, result) in _OTHERS.items():
            self._declare(name, arguments, result)
        for name, arguments in _CALLS.items():
            self._declare(name, arguments, c_void_p).errcheck = self._check

    def _declare(self, name, arguments, result):
        function = getattr(self._library, name)
        function.argtypes = arguments
        function.restype = result
        setattr(self, name[len("lockstep_"):], function)
        return function

    def _check(self, error, _function, _arguments):
        if error is None:
            return
        code, message = CODES[self.error_code(error)], self.error_message(error).decode()
        self.error_free(error)
        raise Error(code, message)

    def text(self, function, *arguments):
        """Of a function that gives out a string."""
        out = c_void_p()
        function(*arguments, ctypes.byref(out))
        text = ctypes.string_at(out).decode()
        self.string_free(out)
        return text


class Communicator:
    """The ranks, as `options` (fields of CommunicatorOptions) or the environment name them. Made when all have met."""

    def __init__(self, library, **options):
        self.library = library
        self.handle = c_void_p()
        library.communicator_create(CommunicatorOptions(**options), ctypes.byref(self.handle))
        self.rank = library.communicator_rank(self.handle)
        self.size = library.communicator_size(self.handle)

    def describe(self):
        return self.library.text(self.library.communicator_describe, self.handle)

    def close(self):
        self.library.communicator_destroy(self.handle)
        self.handle = c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Reducer:
    """Averages the gradients of `parameters`, a list of Parameter in the order of definition.

    `options` are fields of ReducerOptions.
    """

    def __init__(self, communicator, parameters, **options):
        self._library = communicator.library
        self.handle = c_void_p()
        table = (Parameter * len(parameters))(*parameters)
        self._library.reducer_create(communicator.handle, table, len(parameters), ReducerOptions(**options),
                                     ctypes.byref(self.handle))

    def broadcast(self, tensors, root=0):
        self._library.reducer_broadcast(self.handle, (Tensor * len(tensors))(*tensors), len(tensors), root)

    # While the stream is being captured into a graph, so is the step.
    def begin_backward(self, sync=True, stream=None):
        options = BackwardOptions(no_sync=0 if sync else 1)
        if stream is not None:
            options.stream = ctypes.pointer(stream)
        self._library.reducer_begin_backward(self.handle, options)

    # From autograd's thread, for each gradient: nothing but the call.
    def mark_ready(self, index, tensor, stream=None):
        self._library.reducer_mark_ready(self.handle, index, tensor, stream)

    def end_backward(self, stream=None):
        self._library.reducer_end_backward(self.handle, stream)

    def check_replays(self):
        self._library.reducer_check_replays(self.handle)

    def statistics(self):
        statistics = ReducerStatistics()
        self._library.reducer_get_statistics(self.handle, statistics)
        return statistics

    def summary(self):
        return self._library.text(self._library.reducer_report, self.handle, REPORT_SUMMARY)

    def bucket_count(self):
        return self._library.reducer_bucket_count(self.handle)

    def close(self):
        self._library.reducer_destroy(self.handle)
        self.handle = c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def int64s(values):
    """An array for shapes and strides."""
    return (c_int64 * len(values))(*values)
