"""Python objects between ranks. mpi4py has them in lower case: bcast, gather, allgather, scatter, send, recv.

Bytes, and what JSON has (None, bool, int, float, str, and lists and dictionaries with str keys of these), go as they are. Anything else
goes as a pickle, if both sides say allow_pickle=True. To unpickle is to run code that the sender chose: allow it where you trust every
rank.

These calls are for set-up: they copy, and take tens of microseconds. Arrays belong in the collectives.
"""

import json
import pickle

from lockstep import tensors
from lockstep._native import ffi, lib
from lockstep.errors import FailedPrecondition, InvalidArgument, utf8

ANY_SOURCE, ANY_TAG, EVERY_RANK = lib.LOCKSTEP_ANY_SOURCE, lib.LOCKSTEP_ANY_TAG, lib.LOCKSTEP_EVERY_RANK

# An encoded object is a byte that says what follows, and that. A message begins with the size of the object: the rest follows in a second
# message if it does not fit in the first.
_BYTES, _JSON, _PICKLE, _ERROR = b'b', b'j', b'p', b'e'
_SIZE_BYTES, _FIRST_BYTES = 8, 32768


def _is_json(value):
    """Whether the value comes back from JSON as it is: a tuple does not, nor a key that is an int."""
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is dict:
        return all(type(key) is str and _is_json(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def encode(value, allow_pickle):
    """Never raises: what cannot be sent is told to the receivers, who would wait else."""
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return _BYTES + bytes(value)
        if _is_json(value):
            return _JSON + json.dumps(value).encode('ascii')
        if allow_pickle:
            return _PICKLE + pickle.dumps(value)
        return _ERROR + (f'an object of type {type(value).__name__} is neither bytes nor exactly JSON; '
                         'allow_pickle=True on sender and receivers sends it as a pickle').encode()
    except Exception as error:
        return _ERROR + utf8(f'an object of type {type(value).__name__} cannot be sent: {type(error).__name__}: {error}')


def decode(data, source, allow_pickle):
    """The object that rank `source` encoded; its error raises FailedPrecondition."""
    kind, data = bytes(data[:1]), data[1:]
    if kind == _BYTES:
        return bytes(data)
    if kind == _JSON:
        return json.loads(bytes(data))
    if kind == _PICKLE and allow_pickle:
        return pickle.loads(data)
    text = bytes(data).decode(errors='replace')
    if kind == _PICKLE:
        text = 'it sent a pickle; allow_pickle=True unpickles it, which runs code that the sender chose'
    raise FailedPrecondition(f'rank {source}: {text}')


def _check_encoded(data):
    if data[:1] == _ERROR:
        raise InvalidArgument(data[1:].decode())


def _borrowing(call, read):
    """The call, which holds `read` until it returns: a signal may end the wait for it earlier."""
    return lambda *arguments, _read=read: call(*arguments)


class ObjectCalls:
    """The calls of a Communicator for bytes and objects.

    ERRORS  InvalidArgument     this rank's object cannot be sent
            FailedPrecondition  another rank's could not, or it is a pickle and allow_pickle is not set here
    """

    def broadcast_bytes(self, data=b'', root=0):
        """The root's bytes, on every rank, from anything with the buffer protocol. At most 1 GiB."""
        read = tensors.read_bytes(data, 'data')
        out, size = _bytes_out(), ffi.new('size_t*')
        self._wait_for(_borrowing(lib.lockstep_broadcast_bytes, read), read.c.data, read.shape[0], root, out, size)
        return ffi.buffer(out[0], size[0])[:] if size[0] else b''

    def gather_bytes(self, data, root=EVERY_RANK):
        """A list of every rank's bytes, in rank order, on the root or on every rank; None elsewhere. At most 1 GiB in all."""
        read = tensors.read_bytes(data, 'data')
        out, sizes = _bytes_out(), ffi.new('size_t[]', self.size)
        self._wait_for(_borrowing(lib.lockstep_gather_bytes, read), read.c.data, read.shape[0], root, out, sizes)
        if root not in (EVERY_RANK, self.rank):
            return None
        found, at = [], ffi.cast('char*', out[0])
        for size in sizes:
            found.append(ffi.buffer(at, size)[:] if size else b'')
            at += size
        return found

    def broadcast_object(self, value=None, root=0, allow_pickle=False):
        """The root's object, on every rank."""
        mine = encode(value, allow_pickle) if self.rank == root else b''
        data = self.broadcast_bytes(mine, root)
        _check_encoded(mine)
        return value if self.rank == root else decode(data, root, allow_pickle)

    def all_gather_object(self, value, allow_pickle=False):
        """A list of every rank's object, in rank order."""
        return self.gather_object(value, EVERY_RANK, allow_pickle)

    def gather_object(self, value, root=0, allow_pickle=False):
        """A list of every rank's object, in rank order, on the root; None elsewhere."""
        mine = encode(value, allow_pickle)
        data = self.gather_bytes(mine, root)
        _check_encoded(mine)
        return None if data is None else [decode(each, rank, allow_pickle) for rank, each in enumerate(data)]

    def scatter_object(self, values=None, root=0, allow_pickle=False):
        """The element of the root's list that belongs to this rank. The list has an element for each rank; elsewhere it is ignored."""
        encoded = []
        if self.rank == root:
            if values is None or len(values) != self.size:
                encoded = [_ERROR + f'values: {self.size} objects are to be scattered, one for each rank'.encode()] * self.size
            else:
                encoded = [encode(value, allow_pickle) for value in values]
        sizes = json.loads(self.broadcast_bytes(json.dumps([len(each) for each in encoded]).encode(), root))
        mine = bytearray(sizes[self.rank])
        self.scatter(b''.join(encoded) if encoded else None, mine, counts=sizes, root=root)
        for each in encoded:
            _check_encoded(each)
        return decode(mine, root, allow_pickle)

    def send_object(self, value, target, tag=0, allow_pickle=False, timeout=None):
        """Sends an object to the rank `target`, for its receive_object. Returns when it is received, or, if it is small, copied.

        timeout: seconds; default the communicator's.
        """
        data = encode(value, allow_pickle)
        first = self.send(len(data).to_bytes(_SIZE_BYTES, 'little') + data[:_FIRST_BYTES], target, tag, timeout, asynchronous=True)
        if len(data) > _FIRST_BYTES:
            self.send(memoryview(data)[_FIRST_BYTES:], target, tag, timeout)
        first.wait()
        _check_encoded(data)

    def receive_object(self, source=ANY_SOURCE, tag=ANY_TAG, allow_pickle=False, timeout=None):
        """The object that rank `source` sent with this tag.

        timeout: seconds; default the communicator's.
        THREADS  One at a time receives objects from a rank with a tag.
        """
        first = bytearray(_SIZE_BYTES + _FIRST_BYTES)
        message = self.receive(first, source, tag, timeout)
        size = int.from_bytes(first[:_SIZE_BYTES], 'little')
        if message.bytes != _SIZE_BYTES + min(size, _FIRST_BYTES):
            raise FailedPrecondition(f'a message of {message.bytes} bytes from rank {message.source} with tag {message.tag} is not of '
                                     'send_object')
        data = first[_SIZE_BYTES:message.bytes]
        if size > _FIRST_BYTES:
            rest = bytearray(size - _FIRST_BYTES)
            self.receive(rest, message.source, message.tag, timeout)
            data += rest
        return decode(data, message.source, allow_pickle)


def _bytes_out():
    """A void** that frees what is written to it."""
    return ffi.gc(ffi.new('void**'), lambda out: lib.lockstep_bytes_free(out[0]))
