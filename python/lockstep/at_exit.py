"""The end of the interpreter: what is still open is closed, so that peers learn at once.

Python ends a thread that asks for the interpreter after its end, and would do so in the middle of the library's C++. So after the closing,
callbacks that the library still owes are waited for. And it ends the program by SIGABRT if a thread is writing to stderr at that time. So
what the closing makes threads raise is not printed.
"""

import atexit
import functools
import os
import sys
import threading
import time
import traceback
import weakref

from lockstep._native import ffi
from lockstep.errors import Error

_CALLBACKS_SECONDS = 10

communicators = weakref.WeakSet()
# Reducers and the like, which have close(), too. It does not wait once their communicator is closed.
made_from_communicators = weakref.WeakSet()

_expected = {}  # handles of callbacks that are to come, and what they keep alive
_under_way = set()  # threads that are in a callback


def expect_callback(handle, kept):
    """Keeps `kept` until callback_came(handle)."""
    _expected[handle] = kept


def callback_came(handle):
    """Takes any cdata of the handle's address: such are equal."""
    _expected.pop(handle, None)


def called_by_library(function):
    """Makes a function the extern "Python" of its name, which the library calls on its own threads."""
    @functools.wraps(function)
    def run(*arguments):
        me = threading.get_ident()
        try:
            _under_way.add(me)
            return function(*arguments)
        finally:
            _under_way.discard(me)
    return ffi.def_extern(function.__name__)(run)


def in_callback():
    """Whether this thread is in such a function."""
    return threading.get_ident() in _under_way


# Those of the parent never come in a child.
os.register_at_fork(after_in_child=_expected.clear)
os.register_at_fork(after_in_child=_under_way.clear)


def _quieten_threads():
    usual = threading.excepthook

    def print_others(raised):
        if not issubclass(raised.exc_type, Error):
            usual(raised)
    threading.excepthook = print_others


def _tell_why():
    """If an exception ends the program, aborts what is open with that reason: peers learn it, and threads that wait here end."""
    # In an interactive session it may be an old one.
    raised = None if hasattr(sys, 'ps1') else getattr(sys, 'last_value', None)
    if raised is None:
        return
    _quieten_threads()
    reason, *more = traceback.format_exception_only(raised)[-1].strip().splitlines()
    if more:
        reason += ' ...'  # each peer prints it
    for communicator in list(communicators):
        if communicator.size > 1 and communicator.status() is None:
            try:
                communicator.abort(f'its program ended with {reason}')
            except Error:  # it has failed meanwhile
                pass


@atexit.register
def close_all():
    """Closes what is open. Frameworks that wait for their own programs at exit register it again, behind theirs."""
    _quieten_threads()
    for communicator in list(communicators):
        communicator.close()
    for made in list(made_from_communicators):
        made.close()
    deadline = time.monotonic() + _CALLBACKS_SECONDS
    while (_expected or _under_way - {threading.get_ident()}) and time.monotonic() < deadline:
        time.sleep(0.001)


# Before Python waits for its threads, where it can: that is not in its documentation.
getattr(threading, '_register_atexit', atexit.register)(_tell_why)
