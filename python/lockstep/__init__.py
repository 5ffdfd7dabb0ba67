"""Lockstep: keeps the replicas of a training job in step.

    import lockstep
    communicator = lockstep.init()
    communicator.all_reduce(array)

lockstep.communicator has collectives, messages and groups of ranks; lockstep.tensors says which arrays they take. lockstep.objects sends
Python objects. lockstep.reducer averages gradients while the backward pass still computes. lockstep.errors has the exceptions.
lockstep.torch, .lightning and .jax are for those frameworks.

    python -m lockstep.run -n 4 script.py    starts 4 ranks on this host
    python -m lockstep.check                 tells whether Lockstep works on this machine
"""

try:
    from lockstep._native import ffi as _ffi
except ModuleNotFoundError as _error:
    import sysconfig as _sysconfig
    if _sysconfig.get_config_var('Py_GIL_DISABLED'):
        raise ImportError('lockstep does not support free-threaded Python: its extension uses the stable ABI (abi3), which free-threaded '
                          'builds of CPython do not load; use a build with the GIL (python3.13, not python3.13t)') from _error
    raise
from lockstep._native import lib as _lib
from lockstep import last_words as _last_words
from lockstep.communicator import (AND, ANY_SOURCE, ANY_TAG, AVG, CUDA, EVERY_RANK, HOST, MAX, MIN, OR, PREMUL_SUM, PROD, SUM, XOR,
                                   Communicator, Memory, Message, Work, init)
from lockstep.errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error, FailedPrecondition, Internal,
                             InvalidArgument, NotFound, OutOfRange, PermissionDenied, ResourceExhausted, Unavailable, Unimplemented)
from lockstep.reducer import Parameter, Reducer, check_replicas

_last_words.install()
__version__ = '.'.join(str(_lib.lockstep_version() // part % 100) for part in (10000, 100, 1))


def version_text():
    """The version and the commit of the library."""
    return _ffi.string(_lib.lockstep_version_text()).decode()
