"""What programs call: the handlers of lockstep/_jax_ffi.so (python/jax_ffi.cc), and the numbers by which these know communicators."""

import atexit
import ctypes
import os
import weakref

import lockstep
from lockstep import at_exit, tensors
from lockstep._native import ffi

_OLDEST = '0.5.0'
_REMEDY = f'pip install "jax>={_OLDEST}"'

try:
    import jax
    import jax.ffi
except ImportError as error:
    raise ImportError(f'lockstep.jax needs JAX {_OLDEST} or newer with its FFI ({error}): {_REMEDY}') from error

import numpy

_TARGETS = ('all_reduce', 'reduce_scatter', 'all_gather', 'broadcast', 'reduce', 'all_to_all', 'mark_ready', 'end_backward')


def _load():
    path = os.path.join(os.path.dirname(os.path.abspath(lockstep.__file__)), '_jax_ffi.so')
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f'lockstep.jax: {error}; the wheel of lockstep-runtime has it') from error
    library.lockstep_jax_open.argtypes, library.lockstep_jax_open.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int64
    library.lockstep_jax_close.argtypes, library.lockstep_jax_close.restype = (ctypes.c_int64,), None
    for target in _TARGETS:
        try:
            jax.ffi.register_ffi_target(f'lockstep_{target}', jax.ffi.pycapsule(getattr(library, f'lockstep_jax_{target}')), platform='cpu')
        except Exception as error:  # of a class that XLA does not tell
            raise ImportError(f'lockstep.jax: JAX {jax.__version__} refuses the handlers ({error}): {_REMEDY}') from error
    return library


_library = _load()
_handles = weakref.WeakKeyDictionary()  # of Communicators and Reducers: their numbers

# Before what JAX has registered, which waits for programs, which may wait for other ranks.
atexit.register(at_exit.close_all)


def _handle(owner):
    if not owner._c:
        raise lockstep.FailedPrecondition(f'the {type(owner).__name__.lower()} is closed')
    handle = _handles.get(owner)
    if handle is None:
        address = int(ffi.cast('uintptr_t', owner._c))
        is_reducer = isinstance(owner, lockstep.Reducer)
        handle = _library.lockstep_jax_open(None if is_reducer else address, address if is_reducer else None)
        owner._before_destroy.append(_closing(handle))
        _handles[owner] = handle
    return handle


def _closing(handle):
    """What is called before the handle's owner is destroyed, perhaps when this module is gone."""
    close, process, process_now = _library.lockstep_jax_close, os.getpid(), os.getpid

    def call():
        # After fork() there is neither a call to wait for nor a thread that could return from it.
        if process_now() == process:
            close(handle)
    return call


def as_token(token):
    """What a call takes for its token."""
    token = jax.numpy.float32(0) if token is None else jax.numpy.asarray(token)
    if token.shape != () or token.dtype != numpy.float32:
        raise lockstep.InvalidArgument(f'token: {token.dtype.name}{list(token.shape)} is none; pass what a call of lockstep.jax returned, '
                                       'or None')
    return token


def has_dtype(array):
    return array.dtype.name in tensors.NAMES


def dtype_of(array, name):
    """Lockstep's number of an array's dtype."""
    dtype = tensors.NAMES.get(array.dtype.name)
    if dtype is None:
        raise lockstep.InvalidArgument(f'{name}: Lockstep has no dtype {array.dtype.name}')
    return dtype


def call(target, owner, operands, results, dtype=0, option=0, aliases=None):
    """The results of a handler's call: arrays like `results`. aliases: {operand: result} that are in the same memory."""
    attributes = {'handle': _handle(owner), 'dtype': dtype, 'option': option}
    like = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in results]
    return jax.ffi.ffi_call(f'lockstep_{target}', like, input_output_aliases=aliases)(
        *operands, **{name: numpy.int64(value) for name, value in attributes.items()})
