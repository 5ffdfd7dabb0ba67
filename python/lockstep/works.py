"""Operations under way, and waits that a signal can interrupt."""

import numbers
import threading
import weakref

from lockstep import at_exit
from lockstep._native import ffi, lib
from lockstep.errors import DeadlineExceeded, InvalidArgument, check, to_exception

SLICE_MS = 100  # between looks at signals
_FOREVER_MS = 2**40

_lent = set()  # a _Loan for each operation that may be under way, and for each Work
_dropped = []  # those of works that nobody has
_sweep = threading.Lock()  # held by the one thread that ends them


class _Loan(weakref.ref):
    """What an operation borrows: `borrowed`, and its lockstep_work** `out`. A reference to its Work, whose end moves it to _dropped.

    That runs no Python. In a __del__ a signal's handler could raise, and the memory would be free while the operation uses it.
    """

    __slots__ = ('borrowed', 'out')


class Message:
    """What a receive got: how many bytes, from which rank (source), with which tag."""

    __slots__ = ('bytes', 'source', 'tag')

    def __init__(self, c):
        self.bytes, self.source, self.tag = c.bytes, c.source, c.tag

    def __repr__(self):
        return f'<lockstep.Message of {self.bytes} bytes from rank {self.source} with tag {self.tag}>'


class Work:
    """An operation under way: a collective, a message or a group of calls.

    It holds the memory that the operation uses. If the work is dropped, the operation goes on, and its memory stays held until it is done.
    Any thread may use a work, several at once.
    """

    __slots__ = ('_out', '_loan', '__weakref__')

    def __init__(self, c, borrowed):
        """c: a lockstep_work*, which now belongs to this; or NULL, and the call that starts the operation writes it to _out."""
        self._out = ffi.new('lockstep_work**', c)
        self._loan = loan = _Loan(self, _dropped.append)
        loan.borrowed, loan.out = borrowed, self._out
        _lent.add(loan)

    def wait(self, timeout=None):
        """Returns when the operation is done.

        timeout: seconds; None waits until the operation's own timeout.
        ERRORS  DeadlineExceeded if it is not done by then: it goes on. Else the operation's own error, in each call.
        SIGNALS In the main thread a signal's handler runs within 0.1 seconds. If it raises (KeyboardInterrupt), the operation goes on.
        """
        if timeout is not None:
            check_timeout(timeout)
        wait(self._out[0], _FOREVER_MS if timeout is None else round(1000 * timeout))
        self._loan.borrowed = None

    def done(self):
        """Whether the operation has ended, in success or failure. Does not wait."""
        return lib.lockstep_work_done(self._out[0]) != 0

    def on_complete(self, callback):
        """Calls callback(None), or callback(error) with a lockstep.Error, once, when the operation ends.

        THREADS If it has ended already, this thread. Else a thread of the library's, which calls one callback at a time: keep it short.
                It may start operations, and must not wait for one. What it raises is printed.
        """
        handle = ffi.new_handle(callback)
        at_exit.expect_callback(handle, self)
        try:
            check(lib.lockstep_work_on_complete(self._out[0], lib.lockstep_py_work_done, handle))
        except Exception:
            at_exit.callback_came(handle)
            raise

    def message(self):
        """The Message of a receive that is done. FailedPrecondition if it is not, or is no receive."""
        message = ffi.new('lockstep_message*')
        check(lib.lockstep_work_message(self._out[0], message))
        return Message(message)


@at_exit.called_by_library
def lockstep_py_work_done(context, error):
    callback = ffi.from_handle(context)
    at_exit.callback_came(context)
    callback(to_exception(error) if error else None)


def start(call, *arguments, borrowed):
    """The Work of an operation that call(*arguments, out_work) starts."""
    if _dropped:
        _end_dropped()
    # It is there before the operation starts: so no signal comes between the start and its note.
    work = Work(ffi.NULL, borrowed)
    check(call(*arguments, work._out))
    return work


def _end_dropped():
    if _sweep.acquire(blocking=False):
        try:
            for loan in _dropped[:]:
                if lib.lockstep_work_done(loan.out[0]):
                    _lent.discard(loan)
                    _dropped.remove(loan)
                    lib.lockstep_work_destroy(loan.out[0])
        finally:
            _sweep.release()


def check_timeout(seconds):
    """InvalidArgument unless it is a number of seconds from 0."""
    if not isinstance(seconds, numbers.Real) or not 0 <= seconds < 2**50:
        raise InvalidArgument(f'timeout is {seconds!r}; it is a number of seconds, not negative, or None')


def wait(c, timeout_ms=_FOREVER_MS):
    """lockstep_work_wait. In the main thread it looks at signals meanwhile."""
    if threading.get_ident() != threading.main_thread().ident:
        return check(lib.lockstep_work_wait(c, timeout_ms))
    while True:
        part = min(timeout_ms, SLICE_MS)
        timeout_ms -= part
        # DeadlineExceeded of what had ended before is the operation's own.
        ended = lib.lockstep_work_done(c)
        error = lib.lockstep_work_wait(c, part)
        if not error:
            return None
        if ended or timeout_ms <= 0 or lib.lockstep_error_code(error) != DeadlineExceeded.code:
            return check(error)
        lib.lockstep_error_free(error)


class Call:
    """A C call that waits and is not a work: Call(call, *arguments).wait().

    From the main thread it is made on another thread, so that a signal can end the wait. Then the call goes on, and the destructors of its
    outputs free what it writes. on_device: it is made here, since another thread's CUDA device is device 0, which would get a context.
    """

    def __init__(self, call, *arguments, on_device=False):
        self._call, self._arguments, self._here = call, arguments, on_device
        self._raised = []
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name='lockstep-call', daemon=True)

    def wait(self):
        """Returns when the call has, or raises its error."""
        if self._here or threading.get_ident() != threading.main_thread().ident:
            self._run()
        else:
            try:
                self._thread.start()
            except RuntimeError:  # when the interpreter ends it starts none
                self._run()
            self._finished.wait()
        if self._raised:
            raise self._raised.pop()

    def done(self):
        """Whether the call has returned."""
        return self._finished.is_set()

    def finish(self):
        """Returns when the call has, whatever came of it, after a wait that a signal ended."""
        # A forked child does not have the thread.
        while not self._finished.wait(0.1) and self._thread.is_alive():
            pass

    def _run(self):
        try:
            check(self._call(*self._arguments))
        except BaseException as error:  # for the thread that waits
            self._raised.append(error)
        finally:
            self._finished.set()
