"""Errors of Lockstep, a class for each code of lockstep.h, with the facts of the message as attributes.

    try:
        communicator.all_reduce(gradients)
    except lockstep.Aborted as error:
        print(error.failed_rank, error.collective)

Those that Python has a class for are of that class, too: InvalidArgument is a ValueError, DeadlineExceeded a TimeoutError.
"""

from lockstep._native import ffi, lib


class Error(RuntimeError):
    """What went wrong, for people. What it says of ranks and calls is also here, None where it does not:

    failed_rank  the rank of the world that died, stopped answering, aborted or differed
    collective   the operation that returned the error, as its method is called
    sequence     the operation's number in the flight records
    bucket       the reducer's bucket
    parameter    the index of the parameter in the reducer's table
    """

    failed_rank = collective = sequence = bucket = parameter = None
    code = lib.LOCKSTEP_UNKNOWN


class Cancelled(Error):
    """The handle or its communicator was closed meanwhile."""


class InvalidArgument(Error, ValueError):
    """Fix the call."""


class DeadlineExceeded(Error, TimeoutError):
    """Of a wait: the operation goes on. Of a collective or message: the communicator is over. Of a creation: ranks did not appear."""


class NotFound(Error, LookupError):
    """No such host, key or interface."""


class AlreadyExists(Error):
    """A rank was claimed twice, or a port is taken."""


class PermissionDenied(Error, PermissionError):
    """Fix the set-up."""


class ResourceExhausted(Error):
    """Memory, descriptors, threads, or a full queue."""


class FailedPrecondition(Error):
    """A wrong order of calls, or ranks that disagree."""


class Aborted(Error, ConnectionError):
    """A peer failed; the communicator is over."""


class OutOfRange(Error, IndexError):
    """Fix the call."""


class Unimplemented(Error, NotImplementedError):
    """This back end or this version cannot do it."""


class Internal(Error):
    """Report a bug."""


class Unavailable(Error, ConnectionError):
    """Not reachable, or not installed."""


class DataLoss(Error):
    """Data was lost."""


_CLASSES = {
    lib.LOCKSTEP_CANCELLED: Cancelled,
    lib.LOCKSTEP_UNKNOWN: Error,
    lib.LOCKSTEP_INVALID_ARGUMENT: InvalidArgument,
    lib.LOCKSTEP_DEADLINE_EXCEEDED: DeadlineExceeded,
    lib.LOCKSTEP_NOT_FOUND: NotFound,
    lib.LOCKSTEP_ALREADY_EXISTS: AlreadyExists,
    lib.LOCKSTEP_PERMISSION_DENIED: PermissionDenied,
    lib.LOCKSTEP_RESOURCE_EXHAUSTED: ResourceExhausted,
    lib.LOCKSTEP_FAILED_PRECONDITION: FailedPrecondition,
    lib.LOCKSTEP_ABORTED: Aborted,
    lib.LOCKSTEP_OUT_OF_RANGE: OutOfRange,
    lib.LOCKSTEP_UNIMPLEMENTED: Unimplemented,
    lib.LOCKSTEP_INTERNAL: Internal,
    lib.LOCKSTEP_UNAVAILABLE: Unavailable,
    lib.LOCKSTEP_DATA_LOSS: DataLoss,
}
for _code, _class in _CLASSES.items():
    _class.code = _code


def to_exception(error):
    """The exception for a lockstep_error*, which it does not free."""
    made = _CLASSES.get(lib.lockstep_error_code(error), Error)(ffi.string(lib.lockstep_error_message(error)).decode(errors='replace'))
    made.collective = ffi.string(lib.lockstep_error_collective(error)).decode() or None
    for name in ('failed_rank', 'sequence', 'bucket', 'parameter'):
        fact = getattr(lib, 'lockstep_error_' + name)(error)
        if fact >= 0:
            setattr(made, name, fact)
    return made


def check(error):
    """Raises what a call returned, if that is an error."""
    if error:
        made = to_exception(error)
        lib.lockstep_error_free(error)
        raise made


def utf8(text):
    """The UTF-8 of a text that a C function reads. An exception's may have what it cannot: NUL, and parts of a file name."""
    return text.replace('\0', r'\0').encode(errors='backslashreplace')


def to_error(exception):
    """A lockstep_error* with what a callback raised, for the library to free."""
    code = exception.code if isinstance(exception, Error) else lib.LOCKSTEP_UNKNOWN
    text = str(exception) if isinstance(exception, Error) else f'{type(exception).__name__}: {exception}'
    return lib.lockstep_error_create(code, utf8(text))


def take_text(text):
    """A char* of the library's, which it frees."""
    try:
        return ffi.string(text).decode(errors='replace')
    finally:
        lib.lockstep_string_free(text)
