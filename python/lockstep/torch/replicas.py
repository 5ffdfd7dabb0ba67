"""Whether the ranks' replicas are equal: check_replicas compares a module's now, Replicas is what a wrapper compares in each step."""

import warnings

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import lockstep
from lockstep import tensors
from lockstep._native import lib
from lockstep.reducer import Parameter, check_replicas_at
from lockstep.torch import memory
from lockstep.torch.groups import communicator_of, default_group


class DriftWarning(UserWarning):
    """The ranks' replicas differ."""


class Replicas:
    """The parameters that a reducer compares in each step, and what happens if they differ."""

    def __init__(self, named_parameters, on_drift, may_drift, rank):
        """on_drift: 'warn' (once, on rank 0), 'raise', or a function that gets the lockstep.DataLoss. may_drift: names of parameters to
        leave out."""
        if on_drift not in ('warn', 'raise') and not callable(on_drift):
            raise lockstep.InvalidArgument(f"on_drift is {on_drift!r}; it is 'warn', 'raise', a function of the error, or None")
        unknown = set(may_drift) - {name for name, _ in named_parameters}
        if unknown:
            raise lockstep.InvalidArgument(f'may_drift names {", ".join(sorted(unknown))}, which is no averaged parameter')
        self._on_drift, self._warned, self._changed, self.rank = on_drift, False, set(), rank  # in the communicator in use
        self._parameters = [(name, parameter) for name, parameter in named_parameters
                            if name not in may_drift and _can_be_compared(parameter)]
        self.rows = [_row(name, parameter) for name, parameter in self._parameters]
        self._then = [(parameter, parameter.dtype, parameter.shape, parameter.stride()) for _, parameter in self._parameters]

    def addresses(self, full=None):
        """Where they are now, 0 for one that is frozen or of another form than it was. full: {id(parameter): tensor}, where the values of
        some are while these parameters have others."""
        found = [parameter.data_ptr() if parameter.requires_grad and parameter.dtype is dtype and parameter.shape == shape
                 and parameter.stride() == strides else 0 for parameter, dtype, shape, strides in self._then]
        for index, (parameter, dtype, shape, strides) in enumerate(self._then if full else ()):
            tensor = full.get(id(parameter)) if parameter.requires_grad else None
            if tensor is not None and tensor.dtype is dtype and tensor.shape == shape and tensor.stride() == strides:
                found[index] = tensor.data_ptr()
        if not all(found):
            changed = [name for (name, parameter), address in zip(self._parameters, found)
                       if not address and name not in self._changed and parameter.requires_grad and parameter.numel()]
            if changed:
                self._changed.update(changed)
                names = ', '.join(map(repr, changed))
                warnings.warn(f'the replicas of parameter {names} are not compared any more: its dtype, shape or memory format has changed '
                              'since the module was wrapped. Wrap the module again after such a change', stacklevel=2)
        return found

    def drifted(self, error):
        """The reducer calls this if replicas differ."""
        if callable(self._on_drift):
            self._on_drift(error)
        elif self._on_drift == 'raise':
            raise error
        elif not self._warned and self.rank == 0:
            self._warned = True
            warnings.warn(f'{error}. Later steps that find a difference do not repeat this. on_drift="raise" makes it an error; '
                          'parameters that may differ are named by may_drift', DriftWarning, stacklevel=2)


def check_replicas(module, optimizer=None, group=None):
    """Compares what should be equal on all ranks, byte by byte: the parameters that require gradients, and the tensors that are the
    optimizer's state of them. (Numbers may be a rank's own, as the loss that LBFGS keeps.) Collective; blocks.

    module: any, also wrapped in a DistributedDataParallel, torch's or Lockstep's; what that ignores, or lets drift, is left out. Of a
    DTensor (FSDP2) each rank's part is compared along the dimensions of its mesh in which it is replicated. What is only sharded has no
    replica and is left out, as are FSDP1's parameters, the state of a ZeroRedundancyOptimizer, and buffers.
    group: the process group of the replicas; default: the wrapper's, or all ranks. Of another back end than lockstep, too.

    ERRORS  lockstep.DataLoss            they differ: the same text on every rank of the group. It names the first tensor that does, its
                                         first element, the values and the ranks
            lockstep.FailedPrecondition  the ranks have different tensors, for example no state of an optimizer yet
    """
    errors = []  # ranks that differ in one group take part in the next one
    for of_group, named in _by_group(module, optimizer, group):
        on_gpu = next((tensor for _, tensor in named if tensor.is_cuda), None)
        communicator = communicator_of(of_group, torch.device('cpu') if on_gpu is None else on_gpu.device)
        try:
            compare(communicator, named)
        except (lockstep.DataLoss, lockstep.FailedPrecondition) as error:
            errors.append(error)
        finally:
            communicator.close()
    if errors:
        raise errors[0]


def compare(communicator, named):
    """Compares tensors, (name, tensor) of each, on a communicator of their ranks."""
    for device in {tensor.device for _, tensor in named if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    rows = [_row(name, tensor) for name, tensor in named]
    check_replicas_at(communicator, rows, [tensor.data_ptr() for _, tensor in named], named)


def tensors_of(module, optimizer):
    """(name, tensor) of all that check_replicas compares, in an order that is the same on all ranks. DTensors as they are."""
    if not isinstance(module, torch.nn.Module):
        raise lockstep.InvalidArgument(f'check_replicas compares a torch.nn.Module, and lockstep.check_replicas any tensors; this is a '
                                       f'{type(module).__name__}')
    from torch.distributed.fsdp import FullyShardedDataParallel  # slow
    ignored = ()
    if isinstance(module, DistributedDataParallel):
        ignored = {*module.parameters_to_ignore}
        if hasattr(module, '_may_drift'):  # it is Lockstep's
            ignored.update(module._may_drift)
            module._restore_precision()
        module = module.module
    sharded = {parameter for part in module.modules() if isinstance(part, FullyShardedDataParallel) for parameter in part.parameters()}
    found = [(name, parameter) for name, parameter in module.named_parameters()
             if parameter.requires_grad and name not in ignored and parameter not in sharded]
    if optimizer is not None and 'ZeroRedundancyOptimizer' not in (each.__name__ for each in type(optimizer).__mro__):
        for name, parameter in list(found):
            found += [(f'{name}, {key} of the optimizer', value) for key, value in sorted(optimizer.state.get(parameter, {}).items())
                      if torch.is_tensor(value)]
    return found


def local_parts(named):
    """(name, tensor) of what can be compared: tensors with gaps are copied."""
    found = []
    for name, tensor in named:
        tensor = tensor.detach()
        tensor = tensor if memory.is_dense(tensor) else tensor.contiguous()
        if _can_be_compared(tensor):
            found.append((name, tensor))
    return found


def _by_group(module, optimizer, group):
    if isinstance(module, DistributedDataParallel):
        group = group or module.process_group
    groups = {}  # by the names of their ranks: the group, and its tensors
    for name, tensor in tensors_of(module, optimizer):
        if isinstance(tensor, DTensor):
            mesh, local = tensor.device_mesh, tensor.to_local()
            replicated = [mesh.get_group(d) for d, placement in enumerate(tensor.placements) if placement.is_replicate()]
        else:
            local, replicated = tensor, [group or default_group()]
        for of_group in replicated:
            groups.setdefault(of_group.group_name, (of_group, []))[1].append((name, local))
    return [(of_group, local_parts(named)) for of_group, named in groups.values()]


def _can_be_compared(tensor):
    """Whether it has plain memory and a dtype of Lockstep's, on the CPU, or dense on a GPU."""
    return (not isinstance(tensor, DTensor) and tensor.layout is torch.strided and tensor.device.type in ('cpu', 'cuda')
            and str(tensor.dtype).removeprefix('torch.') in tensors.NAMES
            and (memory.is_dense(tensor) or tensor.device.type == 'cpu' and _is_apart(tensor)))


def _is_apart(tensor):
    """Whether no two elements have the same memory."""
    room = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape)):
        if extent > 1 and stride < room:
            return False
        room = max(room, stride * extent)
    return True


def _row(name, tensor):
    return Parameter(name, tensor.shape, str(tensor.dtype).removeprefix('torch.'), tensor.stride(),
                     device_kind=lib.LOCKSTEP_CUDA if tensor.is_cuda else lib.LOCKSTEP_HOST, device_index=tensor.device.index or 0)
