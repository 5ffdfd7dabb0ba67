"""A module's buffers, copied from one rank to the others."""

from lockstep import tensors
from lockstep.torch import memory


class Buffers:
    """The buffers of a module but for those of ignored names: whatever tensors the names hold at the time. Modules are not added later."""

    def __init__(self, module, ignored):
        self._slots, seen = [], set()
        for prefix, part in module.named_modules():
            for name, buffer in part._buffers.items():
                full = f'{prefix}.{name}' if prefix else name
                if full not in ignored and (buffer is None or id(buffer) not in seen):  # it may get a tensor later
                    seen.add(id(buffer))
                    self._slots.append((part._buffers, name, full))
        self._read = {}  # what broadcast passed on of a buffer, by its place

    def __len__(self):
        return len(self.named())

    def now(self):
        """The tensors."""
        return list(self.named().values())

    def named(self):
        """The same by their names in the module."""
        return {full: owner[name] for owner, name, full in self._slots if owner.get(name) is not None}

    def broadcast(self, communicator, root=0):
        """Collective. Overwrites the buffers of the other ranks. As in DDP a graph that has saved them does not notice."""
        broadcast(communicator, self.now(), root, self._read)


def broadcast(communicator, tensor_list, root=0, read=None):
    """Collective: copies the root's tensors, of any dtype, to the other ranks. Those of one device are one collective. read: a dictionary
    that keeps what is the same from call to call."""
    by_device, copies = {}, []
    for place, tensor in enumerate(tensor_list):
        if tensor.numel() == 0:
            continue
        tensor = tensor.detach()
        if not memory.is_dense(tensor):
            copies.append((tensor, tensor.contiguous()))
            tensor = copies[-1][1]
        by_device.setdefault(tensor.device, []).append(_described(place, tensor, {} if read is None else read))
    for described in by_device.values():
        communicator.broadcast_coalesced(described, root=root)
    for tensor, copy in copies:
        tensor.copy_(copy)


def _described(place, tensor, read):
    key = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    if read.get(place, (None,))[0] != key:
        read[place] = key, tensors.read(memory.flat_bytes(tensor), 'buffer', True)
    return read[place][1]
