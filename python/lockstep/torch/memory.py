"""Tensors over memory of the library's, and flat tensors over memory of torch's."""

import torch

from lockstep._native import ffi


class _OnDevice:
    """Memory of a GPU, as torch.as_tensor takes it."""

    def __init__(self, address, size, owner):
        self.__cuda_array_interface__ = {'shape': (size,), 'typestr': '|u1', 'data': (address, False), 'version': 3}
        self.owner = owner


def over(address, shape, strides, dtype, device, owner):
    """A tensor over dense memory of the library's, which lives as long as `owner`; the tensor keeps that. It is not another one's view."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    if size == 0:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)
    if device.type == 'cuda':
        raw = torch.as_tensor(_OnDevice(address, size, owner), device=device)
    else:
        raw = torch.frombuffer(ffi.buffer(ffi.gc(ffi.cast('void*', address), lambda _, owner=owner: None), size), dtype=torch.uint8)
    return torch.empty(0, dtype=dtype, device=device).set_(raw.untyped_storage(), 0, shape, strides)


def copy_at(address, shape, strides, dtype, device):
    """A copy of the tensor at an address. strides are those of dense memory."""
    return over(address, shape, strides, dtype, device, None).clone()


def row_major(shape):
    """The strides of contiguous memory."""
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= max(extent, 1)
    return tuple(reversed(strides))


def is_dense(tensor):
    """Whether its elements fill their memory, in any order of dimensions."""
    expected = 1
    for stride, extent in sorted((stride, extent) for stride, extent in zip(tensor.stride(), tensor.shape) if extent != 1):
        if stride != expected:
            return tensor.numel() == 0
        expected *= extent
    return True


def flat_bytes(tensor):
    """The memory of a dense tensor as a vector of bytes: for what only moves data, whatever its dtype and order of dimensions."""
    flat = torch.as_strided(tensor.detach(), (tensor.numel(),), (1,))
    return flat.view(torch.uint8)
