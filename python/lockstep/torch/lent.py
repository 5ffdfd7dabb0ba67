"""Tensors as calls of lockstep.h borrow them, and their way there and back."""

import torch

import lockstep
from lockstep import tensors
from lockstep._native import ffi, lib

_DTYPES = {getattr(torch, name): code for name, code in tensors.NAMES.items() if hasattr(torch, name)}
_EXTENT, _TENSOR, _ADDRESS = ffi.typeof('int64_t[1]'), ffi.typeof('lockstep_tensor*'), ffi.typeof('void*')


class Lent:
    """A tensor: `c` is its lockstep_tensor*, in one dimension.

    tensors  a tuple of it
    device   its torch.device; None: the host

    ERRORS   InvalidArgument, a ValueError: its elements have gaps or another order, its dtype or device is not Lockstep's
    """

    __slots__ = ('c', 'shape', 'tensors', 'device')

    def __init__(self, tensor):
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            raise lockstep.InvalidArgument(f'lockstep: no {tensor.dtype}; convert the tensor, or pass tensor.view(torch.uint8) if it is '
                                           'only moved')
        if not tensor.is_contiguous():
            raise lockstep.InvalidArgument(f'lockstep: a tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} is not '
                                           'contiguous; pass tensor.contiguous(), and copy it back if it is an output')
        self.tensors = (tensor,)
        self.shape = ffi.new(_EXTENT)
        self.shape[0] = tensor.numel()
        self.c = c = ffi.new(_TENSOR)
        c.data = ffi.cast(_ADDRESS, tensor.data_ptr())
        c.shape, c.dimensions, c.dtype = self.shape, 1, dtype
        self.device = None
        if not tensor.is_cpu:
            if not tensor.is_cuda:
                raise lockstep.InvalidArgument(f'lockstep: a tensor on {tensor.device}; Lockstep has the CPU and CUDA')
            self.device = tensor.device
            c.device_kind, c.device_index = lib.LOCKSTEP_CUDA, tensor.device.index


class LentList:
    """A list of tensors: `c` is an array of lockstep_tensor. Else like Lent."""

    __slots__ = ('c', 'each', 'tensors', 'device')

    def __init__(self, tensors):
        self.tensors = tensors
        self.each = [Lent(tensor) for tensor in tensors]
        self.c = ffi.new('lockstep_tensor[]', len(self.each))
        for i, lent in enumerate(self.each):
            self.c[i] = lent.c[0]
        self.device = self.each[0].device if self.each else None


# Copies are nobody's for autograd: collectives write to leaves that require gradients.

def contiguous(tensor):
    """The tensor, or a copy of it without gaps."""
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


def distinct(tensors):
    """Contiguous tensors of a list of inputs. One that is there twice is copied: Lockstep takes no list whose tensors overlap."""
    found, seen = [], set()
    for tensor in map(contiguous, tensors):
        found.append(tensor.detach().clone() if tensor.data_ptr() in seen else tensor)
        seen.add(tensor.data_ptr())
    return found


def back(tensor, used):
    """What copies a result from `used` to the tensor that it was made of; None if that is the tensor itself."""
    return None if used is tensor else lambda: tensor.detach().copy_(used)


def flatten(tensors):
    """Their elements, one tensor behind the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def room(tensor, count):
    """Flat memory for `count` times the elements of the tensor."""
    return tensor.new_empty(count * tensor.numel())


def split_into(outputs, flat):
    """The contrary of flatten()."""
    for output, part in zip(outputs, flat.split([output.numel() for output in outputs])):
        output.detach().copy_(part.view(output.shape))
