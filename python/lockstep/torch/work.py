"""Works of c10d: a collective or message in flight, on the CPU and on a GPU.

The trampoline of PyTorch asks a work in Python only for wait() and get_future(). What else a work can tell is there for who calls the back
end itself.
"""

import threading

import torch
import torch.distributed as dist

import lockstep


def as_c10d(error):
    """A lockstep.Error as c10d raises it: a DistBackendError, with failed_rank, the rank that died, stopped answering or differed, or None.

    InvalidArgument stays as it is: a ValueError.
    """
    if isinstance(error, lockstep.InvalidArgument):
        return error
    # In words that people look for.
    late = 'Timed out waiting: ' if isinstance(error, lockstep.DeadlineExceeded) else ''
    raised = dist.DistBackendError(f'lockstep: {late}{error}')
    raised.failed_rank, raised.__cause__ = error.failed_rank, error
    return raised


_thread = threading.local()


class Work(dist._Work):
    """Of the host. `finish`, unless None, puts the results where they belong; it is called once, when the operation is done.

    THREADS  any
    """

    def __init__(self, work, results, finish=None):
        super().__init__()
        self._work, self.results, self._finish = work, results, finish
        self._lock = threading.Lock()

    def wait(self, timeout=None):
        """Returns True when the operation is done. timeout: a timedelta; None or 0: until its own deadline.

        DistBackendError: it failed, or it is not done yet, and goes on.
        """
        seconds = timeout.total_seconds() if timeout else 0
        try:
            self._work.wait(seconds if seconds > 0 else None)
        except lockstep.Error as error:
            raise as_c10d(error)
        self._end()
        return True

    def _end(self):
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()

    def is_completed(self):
        return self._work.done()

    def result(self):
        self.wait()
        return self.results

    def source_rank(self):
        return self._work.message().source

    def get_future(self):
        """A torch.futures.Future of the list of results.

        Continuations run on the library's thread lockstep-done, one at a time, in the order in which operations end. A future that one of
        them asks for is done: waiting for a later continuation there would never end.
        """
        outcome = []

        def then(_):
            # DDP survives what a continuation raises, and not an exception that is set.
            if outcome[0] is not None:
                raise as_c10d(outcome[0])
            self._end()
            return self.results

        def done(error):
            outcome.append(error)
            outer, _thread.in_continuation = getattr(_thread, 'in_continuation', False), True
            try:
                future.set_result([])
            finally:
                _thread.in_continuation = outer

        future = torch.futures.Future()
        results = future.then(then)
        if not getattr(_thread, 'in_continuation', False):
            self._work.on_complete(done)
            return results
        try:
            self._work.wait()
        except lockstep.Error as error:
            done(error)
        else:
            done(None)
        return results


class Receive(Work):
    """Of a message, which fills its tensor."""

    def _end(self):
        message, (tensor,) = self._work.message(), self.results
        if message.bytes != tensor.nbytes:
            raise lockstep.InvalidArgument(f'lockstep: {message.bytes} bytes came from rank {message.source}, with tag {message.tag}, for '
                                           f'a tensor of {tensor.nbytes} bytes')
        super()._end()


class DeviceWork(dist._Work):
    """Of a GPU: enqueued on a stream, on which the event comes behind it. Waiting is the current stream's."""

    def __init__(self, communicator, stream, results):
        super().__init__()
        self._communicator, self._stream, self._results = communicator, stream, results
        self._event = stream.record_event()

    def wait(self, timeout=None):
        """Makes the current stream wait. DistBackendError: the communicator has failed."""
        error = self._communicator.status()
        if error is not None:
            raise as_c10d(error)
        torch.cuda.current_stream(self._stream.device).wait_event(self._event)
        return True

    def is_completed(self):
        return self._event.query()

    def result(self):
        self.wait()
        return self._results

    def get_future(self):
        future = torch.futures.Future(devices=[self._stream.device])
        with torch.cuda.stream(self._stream):
            future.set_result(self._results)
        return future
