"""Memory for collectives."""

from lockstep._native import ffi, lib
from lockstep.errors import FailedPrecondition, InvalidArgument

HOST, CUDA = lib.LOCKSTEP_HOST, lib.LOCKSTEP_CUDA


class Memory:
    """Memory for collectives, which ranks of one host read and write directly. Made by Communicator.allocate().

    It lives as long as this or anything made from it, and may outlive the communicator. bytes: its size; address: an int; is_shared:
    whether the other ranks have mapped it.
    """

    def __init__(self, c, device_kind=HOST, device_index=0):
        self._c = ffi.gc(c, lib.lockstep_memory_destroy)
        self._device_kind, self._device_index = device_kind, device_index
        self.bytes = lib.lockstep_memory_bytes(c)
        self.is_shared = lib.lockstep_memory_is_shared(c) != 0
        self.address = int(ffi.cast('uintptr_t', lib.lockstep_memory_data(c)))

    @property
    def buffer(self):
        """All of it, as a writable buffer of bytes: numpy.frombuffer(memory.buffer, numpy.float32). On the host only."""
        if self._device_kind != HOST:
            raise InvalidArgument('memory of a device has no buffer; it has __cuda_array_interface__')
        data = lib.lockstep_memory_data(self._c)
        if not data:
            raise FailedPrecondition('a forked child does not have this memory')
        return ffi.buffer(ffi.gc(data, lambda _, kept=self: None), self.bytes)

    @property
    def __cuda_array_interface__(self):
        """All of it, as bytes, on a device: torch.as_tensor(memory, device='cuda'), cupy.asarray(memory)."""
        if self._device_kind != CUDA:
            raise AttributeError('memory of the host has no __cuda_array_interface__; it has a buffer')
        return {'shape': (self.bytes,), 'typestr': '|u1', 'data': (self.address, False), 'strides': None, 'version': 3}
