"""liblockstep through ctypes: what capi/lockstep.h declares, read from the header itself. Any framework's, or none's.

lockstep_reducer_options is the class ReducerOptions, LOCKSTEP_F32 is F32, and the function lockstep_reducer_create is
Library().reducer_create. A call that fails raises Error.
"""

import ctypes
import os
import re
import sys
from ctypes import c_char_p, c_int32, c_int64, c_size_t, c_void_p


def _find_header():
    """Beside this file, as the tree has it, or installed."""
    here = os.path.dirname(os.path.abspath(__file__))
    folders = here, os.path.join(here, "../../capi"), os.path.join(sys.prefix, "include"), "/usr/local/include", "/usr/include"
    paths = (os.path.join(folder, "lockstep.h") for folder in folders)
    return next((path for path in paths if os.path.exists(path)), "lockstep.h")


class _Options(ctypes.Structure):
    """A structure that says its own size. Fields that are not given are zero, which is their default; a Parameter needs its dtype."""

    def __init__(self, **fields):
        super().__init__(ctypes.sizeof(type(self)))
        known = {name for name, _ in self._fields_}
        for name, value in fields.items():
            if name not in known:
                raise TypeError(f"{type(self).__name__} has no field '{name}'")
            setattr(self, name, value.encode() if isinstance(value, str) else value)


def _read_header(text):
    """Constants, structures, and of each function its parameters and its result."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    types = {"float": ctypes.c_float, "double": ctypes.c_double, "size_t": c_size_t, "int32_t": c_int32, "int64_t": c_int64}
    types |= {name: c_int32 for name in re.findall(r"typedef int32_t (\w+);", text)}
    constants = {name: int(value) for name, value in re.findall(r"LOCKSTEP_(\w+) = (-?\d+)", text)}

    def type_of(declaration):
        name, stars = re.match(r"(?:const )?(\w+)((?: const|\*)*)", declaration).groups()
        if declaration.startswith("const char*") and stars == "*":
            return c_char_p
        if stars.count("*") == 1 and name in types:
            return ctypes.POINTER(types[name])
        # An array or output of pointers; else a handle, a callback, or memory of any kind.
        return ctypes.POINTER(c_void_p) if stars.count("*") == 2 else c_void_p if stars else types.get(name, c_void_p)

    structures = {}
    for name, body in re.findall(r"typedef struct (\w+) {(.*?)} \1;", text, re.S):
        fields = [" ".join(field.split()) for field in body.split(";") if field.strip()]
        # The name is the last word, or that of a pointer to a function.
        named = [(re.search(r"\(\*(\w+)\)|(\w+)$", field), field) for field in fields]
        base = _Options if fields[0] == "size_t struct_size" else ctypes.Structure
        title = "".join(word.capitalize() for word in name.split("_")[1:])
        types[name] = structures[name] = type(title, (base,), {
            "_fields_": [(at[1] or at[2], c_void_p if at[1] else type_of(field)) for at, field in named]})
    functions = {}
    for result, name, parameters in re.findall(r"LOCKSTEP_EXPORT ([\w *]+?)\s*(lockstep_\w+)\(([^)]*)\);", text):
        functions[name] = ([type_of(" ".join(parameter.split())) for parameter in parameters.split(",") if parameter != "void"],
                           None if result == "void" else type_of(result), result == "lockstep_error*")
    return constants, structures, functions


with open(_find_header(), encoding="utf-8") as _header:
    _CONSTANTS, STRUCTURES, _FUNCTIONS = _read_header(_header.read())
globals().update(_CONSTANTS)
globals().update({structure.__name__: structure for structure in STRUCTURES.values()})

# The frameworks' names of lockstep_dtype.
DTYPES = {name: _CONSTANTS[ours] for name, ours in {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int32": "I32", "uint32": "U32", "int64": "I64", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8E4M3",
    "float8_e5m2": "F8E5M2", "complex64": "COMPLEX64", "complex128": "COMPLEX128"}.items()}


class Error(RuntimeError):
    """A lockstep_error. `code` is its lockstep_code, without LOCKSTEP_."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code


class Library:
    """The loaded library, whose functions are attributes without their lockstep_. By default on the loader's path."""

    def __init__(self, path="liblockstep.so"):
        self._library = ctypes.CDLL(path)
        for name, (parameters, result, can_fail) in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = parameters, result
            if can_fail and name != "lockstep_error_create":
                function.errcheck = self._check
            setattr(self, name.removeprefix("lockstep_"), function)

    def _check(self, error, _function, _arguments):
        if error is None:
            return
        code, message = self.error_code(error), self.error_message(error).decode()
        self.error_free(error)
        # The codes are the header's first constants. A newer library may have others.
        raise Error(next((name for name, value in _CONSTANTS.items() if value == code), f'code {code}'), message)

    def text(self, function, *arguments):
        """Of a function that gives out a string."""
        out = c_void_p()
        function(*arguments, ctypes.byref(out))
        text = ctypes.string_at(out).decode()
        self.string_free(out)
        return text


class _Handle:
    """Owns `handle`, which `_destroy` ends."""

    def close(self):
        self._destroy(self.handle)
        self.handle = c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Communicator(_Handle):
    """The ranks, as `options` (fields of CommunicatorOptions) or the environment name them. Made when all have met."""

    def __init__(self, library, **options):
        self.library, self._destroy = library, library.communicator_destroy
        self.handle = c_void_p()
        library.communicator_create(CommunicatorOptions(**options), ctypes.byref(self.handle))
        self.rank = library.communicator_rank(self.handle)
        self.size = library.communicator_size(self.handle)

    def describe(self):
        return self.library.text(self.library.communicator_describe, self.handle)


class Reducer(_Handle):
    """Averages the gradients of `parameters`, a list of Parameter in the order of definition.

    `options` are fields of ReducerOptions.
    """

    def __init__(self, communicator, parameters, **options):
        self._library, self._destroy = communicator.library, communicator.library.reducer_destroy
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
        return self._library.text(self._library.reducer_report, self.handle, _CONSTANTS["REPORT_SUMMARY"])

    def bucket_count(self):
        return self._library.reducer_bucket_count(self.handle)


def int64s(values):
    """An array for shapes and strides."""
    return (c_int64 * len(values))(*values)
