"""What Lockstep takes as an array: whatever has the buffer protocol (NumPy, array, memoryview), __cuda_array_interface__ (CuPy), DLPack
(JAX), or is a torch.Tensor. Nothing is copied.

Elements lie as in C (row-major), without gaps, in this machine's byte order. Memory that Lockstep would write must be writable. An array
that says nothing of it (DLPack before 1.0, as of JAX) is read-only.

Calls without arithmetic (messages, broadcast, all-gather, all-to-all, gather, scatter) take any dtype of a fixed size, and its
elements travel as bytes.
"""

import ctypes
import sys

from lockstep._native import ffi, lib
from lockstep.errors import InvalidArgument, check
from lockstep.memory import Memory

NAMES = {
    'bool': lib.LOCKSTEP_BOOL, 'uint8': lib.LOCKSTEP_U8, 'int8': lib.LOCKSTEP_I8, 'int32': lib.LOCKSTEP_I32, 'uint32': lib.LOCKSTEP_U32,
    'int64': lib.LOCKSTEP_I64, 'uint64': lib.LOCKSTEP_U64, 'float16': lib.LOCKSTEP_F16, 'bfloat16': lib.LOCKSTEP_BF16,
    'float32': lib.LOCKSTEP_F32, 'float64': lib.LOCKSTEP_F64, 'float8_e4m3fn': lib.LOCKSTEP_F8E4M3, 'float8_e5m2': lib.LOCKSTEP_F8E5M2,
    'complex64': lib.LOCKSTEP_COMPLEX64, 'complex128': lib.LOCKSTEP_COMPLEX128,
}
_KINDS = {  # of a format of the buffer protocol, and the bytes of an element
    **{(code, 1): lib.LOCKSTEP_BOOL for code in '?'}, **{(code, 1): lib.LOCKSTEP_I8 for code in 'b'},
    **{(code, 1): lib.LOCKSTEP_U8 for code in 'Bc'}, **{(code, 4): lib.LOCKSTEP_I32 for code in 'il'},
    **{(code, 4): lib.LOCKSTEP_U32 for code in 'IL'}, **{(code, 8): lib.LOCKSTEP_I64 for code in 'lqn'},
    **{(code, 8): lib.LOCKSTEP_U64 for code in 'LQN'}, ('e', 2): lib.LOCKSTEP_F16, ('f', 4): lib.LOCKSTEP_F32, ('d', 8): lib.LOCKSTEP_F64,
    ('Zf', 8): lib.LOCKSTEP_COMPLEX64, ('Zd', 16): lib.LOCKSTEP_COMPLEX128,
}
_OF_TYPESTR = {'b1': 'bool', 'i1': 'int8', 'u1': 'uint8', 'i4': 'int32', 'u4': 'uint32', 'i8': 'int64', 'u8': 'uint64', 'f2': 'float16',
               'f4': 'float32', 'f8': 'float64', 'c8': 'complex64', 'c16': 'complex128'}
_NATIVE, _FOREIGN = ('<', '>!') if sys.byteorder == 'little' else ('>!', '<')
_of_torch_dtype = {}
_SHAPE, _TENSOR, _ADDRESS = ffi.typeof('int64_t[]'), ffi.typeof('lockstep_tensor*'), ffi.typeof('void*')


class _Bytes:
    """Stands for a dtype that Lockstep does not have, by its size."""

    def __init__(self, size):
        self.size = size


class Tensor:
    """A lockstep_tensor (`c`), and what keeps its memory (`owner`): the array, or what the array lent. `elements` of it are one of the
    array's: more than 1 if those travel as bytes."""

    __slots__ = ('c', 'shape', 'owner', 'elements')

    def __init__(self, address, dtype, shape, owner, device_kind=lib.LOCKSTEP_HOST, device_index=0):
        self.elements = 1
        if isinstance(dtype, _Bytes):
            self.elements, shape, dtype = dtype.size, (*shape, dtype.size), lib.LOCKSTEP_U8
        self.shape = ffi.new(_SHAPE, shape or (1,))
        self.owner = owner
        self.c = c = ffi.new(_TENSOR)
        c.data, c.shape, c.dimensions, c.dtype = ffi.cast(_ADDRESS, address), self.shape, len(shape), dtype
        c.device_kind, c.device_index = device_kind, device_index


def read(array, name, writable, any_dtype=False):
    """The Tensor of an array, which it keeps alive and, where arrays can be resized, from that.

    any_dtype: elements of a dtype that Lockstep does not have are bytes.
    ERRORS  InvalidArgument says what is wrong with `name`, an argument of the caller's.
    """
    if isinstance(array, Tensor):
        return array
    if hasattr(array, 'data_ptr'):
        return _of_torch(array, name, any_dtype)
    view = _view(array)
    if view is not None:
        return _of_buffer(view, array, name, writable, any_dtype)
    if hasattr(array, '__cuda_array_interface__'):
        return _of_cuda(array, name, writable)
    if hasattr(array, '__array_interface__'):
        return _of_extended_numpy(array, name, writable, any_dtype)
    if hasattr(array, '__dlpack__'):
        return _of_dlpack(array, name, writable)
    raise InvalidArgument(f'{name}: a {type(array).__name__} has no buffer, __cuda_array_interface__ or __dlpack__')


def read_two(input, output):
    """The Tensors of the input and the output of a call without arithmetic.

    ERRORS  as of read; InvalidArgument if elements of only one of them travel as bytes, or if their sizes differ.
    """
    source, target = read(input, 'input', False, True), read(output, 'output', True, True)
    if source.elements != target.elements:
        raise InvalidArgument(f'input is {_dtype_name(input)} and output is {_dtype_name(output)}')
    return source, target


def _dtype_name(array):
    return getattr(array, 'dtype', None) or f"of format '{getattr(_view(array), 'format', type(array).__name__)}'"


def read_bytes(data, name):
    """The Tensor of bytes of anything that has the buffer protocol, whatever its elements."""
    view = _view(data)
    if view is None:
        raise InvalidArgument(f'{name}: a {type(data).__name__} is not bytes')
    if not view.c_contiguous:
        raise _not_contiguous(name, view.shape, view.strides)
    return Tensor(_address(view), lib.LOCKSTEP_U8, (view.nbytes,), view)


def _view(array):
    """A memoryview of our own, or None.

    Only such views are kept. Before Python 3.13 the garbage collector crashes when it clears a memoryview that is lent (CPython's issue
    77894). Ours are lent to nobody, and hold what is below the caller's.
    """
    try:
        return memoryview(array)
    except (TypeError, ValueError, BufferError):
        return None


def _address(view):
    # No variable: it is lent only here.
    return int(ffi.cast('uintptr_t', ffi.from_buffer(view))) if view.nbytes else 0


def _not_contiguous(name, shape, strides):
    return InvalidArgument(f'{name}: an array of shape {tuple(shape)} with strides {tuple(strides)} is not contiguous; '
                           'pass a contiguous copy, and copy it back if it is an output')


def _read_only(name, array):
    return InvalidArgument(f'{name}: this {type(array).__name__} is read-only; pass memory that may be written, or a separate output')


def _no_dtype(name, what):
    return InvalidArgument(f'{name}: Lockstep has no dtype {what}; it has {", ".join(NAMES)}')


def _of_buffer(view, array, name, writable, any_dtype):
    dtype = _KINDS.get((view.format.lstrip('@=' + _NATIVE), view.itemsize))
    if dtype is None:
        if view.format[0] in _FOREIGN:
            raise InvalidArgument(f"{name}: elements of format '{view.format}' have the other byte order; "
                                  "convert them: array.astype(array.dtype.newbyteorder('='))")
        if view.format.startswith('T{'):
            raise InvalidArgument(f"{name}: elements are structures, '{view.format}'; pass their fields, or a view of bytes")
        if any_dtype and 'O' not in view.format:  # a pointer to an object
            return _of_view(view, _Bytes(view.itemsize), array, name, writable)
        raise _no_dtype(name, f"for the buffer format '{view.format}' of {view.itemsize} bytes")
    return _of_view(view, dtype, array, name, writable)


def _of_view(view, dtype, array, name, writable):
    if not view.c_contiguous:
        raise _not_contiguous(name, view.shape, view.strides)
    if view.readonly and writable:
        raise _read_only(name, array)
    return Tensor(_address(view), dtype, view.shape, view)


def _of_extended_numpy(array, name, writable, any_dtype):
    """Of a NumPy array whose dtype the buffer protocol cannot tell: bfloat16 and float8 of ml_dtypes."""
    dtype = NAMES.get(array.dtype.name) or (any_dtype and _Bytes(array.dtype.itemsize))
    if not dtype:
        raise _no_dtype(name, array.dtype)
    return _of_view(memoryview(array.view(f'u{array.dtype.itemsize}')), dtype, array, name, writable)


def _of_torch(tensor, name, any_dtype):
    dtype = _of_torch_dtype.get(tensor.dtype)
    if dtype is None:
        dtype = NAMES.get(str(tensor.dtype).removeprefix('torch.')) or (any_dtype and _Bytes(tensor.element_size()))
        if not dtype:
            raise _no_dtype(name, tensor.dtype)
        if not isinstance(dtype, _Bytes):
            _of_torch_dtype[tensor.dtype] = dtype
    device = tensor.device
    if device.type not in ('cpu', 'cuda'):
        raise InvalidArgument(f'{name}: a tensor on {device}; Lockstep has the CPU and CUDA')
    if tensor.layout is not sys.modules['torch'].strided:
        raise InvalidArgument(f'{name}: a tensor of layout {tensor.layout}; pass its indices and values, or tensor.to_dense()')
    if not tensor.is_contiguous():
        raise InvalidArgument(f'{name}: a tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} is not contiguous; '
                              'pass tensor.contiguous(), and copy it back if it is an output')
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgument(f'{name}: a lazily conjugated or negated tensor; pass tensor.resolve_conj().resolve_neg()')
    kind = lib.LOCKSTEP_CUDA if device.type == 'cuda' else lib.LOCKSTEP_HOST
    return Tensor(tensor.data_ptr(), dtype, tuple(tensor.shape), tensor, kind, device.index or 0)


def _of_cuda(array, name, writable):
    interface = array.__cuda_array_interface__
    typestr = interface['typestr']
    # '<V2' is bfloat16, say: the dtype has the name.
    dtype = NAMES.get(_OF_TYPESTR.get(typestr.lstrip('|=' + _NATIVE)) or getattr(getattr(array, 'dtype', None), 'name', None))
    if dtype is None or typestr[0] in _FOREIGN:
        raise _no_dtype(name, typestr)
    if interface.get('mask') is not None:
        raise InvalidArgument(f'{name}: a masked array; pass its data')
    address, read_only = interface['data']
    if read_only and writable:
        raise _read_only(name, array)
    shape = interface['shape']
    strides, row = interface.get('strides'), lib.lockstep_dtype_size(dtype)
    for extent, stride in zip(reversed(shape), reversed(strides or ())):
        if extent > 1 and stride != row:
            raise _not_contiguous(name, shape, strides)
        row *= extent
    device = array._device_index if isinstance(array, Memory) else getattr(getattr(array, 'device', None), 'id', 0)
    return Tensor(address, dtype, shape, array, lib.LOCKSTEP_CUDA, device)


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype, _capsule_is.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_DLPACK_VERSION = (1, 0)
_DLPACK_READ_ONLY, _DLPACK_COPIED = 1, 2


def _of_dlpack(array, name, writable):
    """The capsule is not consumed: its memory is lent as long as it lives."""
    jax = sys.modules.get('jax')
    if jax is not None and isinstance(array, jax.core.Tracer):
        raise InvalidArgument(f'{name}: an array that JAX traces has no memory yet; inside of jax.jit use the collectives of lockstep.jax')
    try:
        capsule = array.__dlpack__(max_version=_DLPACK_VERSION, copy=False)
    except TypeError:  # a protocol before 2023.12
        capsule = array.__dlpack__()
    may_write = False
    if _capsule_is(capsule, b'dltensor_versioned'):
        managed = ffi.cast('lockstep_py_dlpack*', _capsule_pointer(capsule, b'dltensor_versioned'))
        if managed.major > _DLPACK_VERSION[0]:
            raise InvalidArgument(f'{name}: DLPack {managed.major}.{managed.minor}; Lockstep has {_DLPACK_VERSION[0]}')
        may_write = not managed.flags & (_DLPACK_READ_ONLY | _DLPACK_COPIED)
        tensor = ffi.addressof(managed, 'tensor')
    else:
        tensor = ffi.cast('void*', _capsule_pointer(capsule, b'dltensor'))
    if writable and not may_write:
        raise _read_only(name, array)
    found = ffi.new('lockstep_tensor*')
    try:
        check(lib.lockstep_tensor_from_dlpack(tensor, found))
    except InvalidArgument as error:
        raise InvalidArgument(f'{name}: {error}') from None
    # Shape and strides are the capsule's.
    shape = [found.shape[i] for i in range(found.dimensions)]
    made = Tensor(int(ffi.cast('uintptr_t', found.data)), found.dtype, shape, (array, capsule), found.device_kind, found.device_index)
    made.c.strides = found.strides
    return made
