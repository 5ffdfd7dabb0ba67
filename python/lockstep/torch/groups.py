"""Process groups, and communicators of their ranks."""

import os
import weakref

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

import lockstep
from lockstep import works
from lockstep._native import ffi, lib
from lockstep.communicator import _communicators_out, _take_communicators
from lockstep.torch.store import connect

_made = weakref.WeakKeyDictionary()  # for each process group of another back end the number of communicators made for it


def communicator_of(group, device):
    """A communicator of its own for the ranks of a process group, which takes tensors of the device. Collective.

    For the back end "lockstep" it is a duplicate of the group's. For another one the ranks meet over the group's store, with its timeout.
    """
    backend = _backend_of(group, device)
    communicator = _duplicate(group, device) if backend.name() == 'lockstep' else None
    if communicator is None:
        number = _made[group] = _made.get(group, 0) + 1
        of_device = {'device_kind': lib.LOCKSTEP_CUDA, 'device_index': device.index or 0} if device.type == 'cuda' else {}
        communicator = connect(dist.PrefixStore(f'lockstep/{number}', group.get_group_store()), group.size(), group.rank(),
                               _timeout_ms(backend), **of_device)
    communicator.of_backend, communicator.backend_timeout_ms = backend, None
    follow_timeout(communicator)
    return communicator


def follow_timeout(communicator):
    """Gives a communicator of communicator_of() the timeout of its process group, if torch.distributed.set_timeout has changed that.
    Takes a microsecond."""
    timeout_ms = _timeout_ms(communicator.of_backend)
    if timeout_ms != communicator.backend_timeout_ms:
        communicator.set_timeout(timeout_ms / 1000)
        communicator.backend_timeout_ms = timeout_ms


def _duplicate(group, device):
    """A duplicate of the communicator of the group's back end; None if that is not "lockstep"."""
    def call():
        out[0] = ffi.cast('lockstep_communicator*', torch.ops.lockstep.duplicate(group.boxed(), device))
    out, on_device = _communicators_out(1), device.type == 'cuda'
    works.Call(call, on_device=on_device).wait()
    return _take_communicators(out, device.index or 0 if on_device else None)[0]


def default_group():
    """The process group of all ranks."""
    if not dist.is_initialized():
        raise lockstep.FailedPrecondition('there is no process group: call torch.distributed.init_process_group("lockstep") first')
    return dist.group.WORLD


def _backend_of(group, device):
    try:
        # For the host one for GPUs alone will do, of which only the timeout is needed.
        return group._get_backend(group._device_types[0] if device.type == 'cpu' and device not in group._device_types else device)
    except RuntimeError as error:
        raise lockstep.InvalidArgument(f'the process group has no back end for {device.type}: {error}') from error


def _timeout_ms(backend):
    """The group's timeout. LOCKSTEP_TIMEOUT_MS is stronger than torch's default."""
    timeout = getattr(getattr(backend, 'options', None), '_timeout', default_pg_timeout)
    if timeout == default_pg_timeout and os.environ.get('LOCKSTEP_TIMEOUT_MS', '').isdigit():
        return max(1, int(os.environ['LOCKSTEP_TIMEOUT_MS']))
    return max(1, round(1000 * timeout.total_seconds()))
