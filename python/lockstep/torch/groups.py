"""Process groups, and communicators of their ranks."""

import weakref

import torch.distributed as dist

import lockstep
from lockstep.torch.store import Store

_made = weakref.WeakKeyDictionary()  # for each process group of another back end the number of communicators made for it


def communicator_of(group, device):
    """A communicator of its own for the ranks of a process group. Collective.

    Of the back end "lockstep" it is a duplicate of the group's. For another one the ranks meet over the group's store, and get its timeout.
    """
    own = getattr(_backend_of(group, device), '_communicator', None)
    if own is not None:
        return own.duplicate()
    number = _made[group] = _made.get(group, 0) + 1
    store = Store(dist.PrefixStore(f'lockstep/{number}', group.get_group_store()))
    return lockstep.init(world_size=group.size(), rank=group.rank(), store=store, **_timeouts(group, device))


def default_group():
    """The process group of all ranks."""
    if not dist.is_initialized():
        raise lockstep.FailedPrecondition('there is no process group: call torch.distributed.init_process_group("lockstep") first')
    return dist.group.WORLD


def _backend_of(group, device):
    try:
        return group._get_backend(device)
    except RuntimeError as error:
        raise lockstep.InvalidArgument(f'the process group has no back end for {device.type}: {error}') from error


def _timeouts(group, device):
    options = getattr(_backend_of(group, device), 'options', None)
    timeout = getattr(options, '_timeout', None)
    if timeout is None:
        return {}
    milliseconds = max(1, round(1000 * timeout.total_seconds()))
    return {'setup_timeout_ms': milliseconds, 'timeout_ms': milliseconds}
