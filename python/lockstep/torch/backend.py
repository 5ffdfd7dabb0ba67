"""The c10d back end: torch.distributed.init_process_group("lockstep"), which finds it by its entry point.

Its library is C++ (csrc/backend.cc); here it is found, loaded and registered. Ranks find each other over c10d's own store.

ERRORS   DistBackendError, whose failed_rank is the rank that died, stopped answering or differed, or None; the process group is over then.
         ValueError: fix the call.
TIMEOUTS of the process group, or of the call, are deadlines: a collective that is not done by then fails on every rank. If the process
         group has torch's default of 30 minutes, LOCKSTEP_TIMEOUT_MS applies.
MEMORY   Tensors are used where they lie. Those with gaps or in another order are copied, except outputs of the calls that c10d names
         _single, which are refused.
THREADS  any; every rank calls collectives in one order.
"""

import contextlib
import datetime
import os
import threading
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend

from lockstep import at_exit, works
from lockstep.errors import Unavailable, utf8
from lockstep.torch.store import ask, hosts

NAME = 'lockstep'
_BY_NVML = 'PYTORCH_NVML_BASED_CUDA_CHECK'

_CPU = torch.device('cpu')
_loaded = []


class _AllBackEnds:
    """The communicators of all back ends, as lockstep.at_exit closes them."""

    size = 2  # perhaps

    def status(self):
        return None

    def abort(self, reason):
        torch.ops.lockstep.abort_all(utf8(reason).decode())  # torch takes no half of a character either

    def close(self):
        # torch's abort hook takes up to twice 15 s to write its trace, and needs the interpreter.
        torch.ops.lockstep.close_all(45_000)


def load(path):
    """Loads the library, once."""
    if _loaded:
        return
    torch.ops.load_library(path)
    # Python handles signals when it begins to run a function.
    implementation = torch.library.Library('lockstep', 'IMPL')
    implementation.impl('check_signals', lambda: None, 'CompositeExplicitAutograd')
    dist.DistBackendError.failed_rank = property(_failed_rank)
    if not hasattr(C10dBackend, 'perform_nocolor_split'):
        C10dBackend.perform_nocolor_split = _leave_split
    back_ends = _AllBackEnds()
    at_exit.communicators.add(back_ends)
    _loaded.extend((implementation, back_ends))


def load_if_there():
    """Loads the library unless it would have to be compiled. Returns whether it is loaded."""
    from lockstep.torch import library
    if not _loaded and (path := library.find()) is not None:
        load(path)
    return bool(_loaded)


def _failed_rank(error):
    rank = torch.ops.lockstep.failed_rank(str(error))
    return None if rank < 0 else rank


def _leave_split(backend, _device):
    """What c10d calls on ranks that are no members of a new group, while its members split theirs from this back end."""
    if hasattr(C10dBackend, 'split'):
        group = dist.ProcessGroup(backend.rank(), backend.size())
        group._register_backend(_CPU, dist.ProcessGroup.BackendType.CUSTOM, backend)
        torch.ops.lockstep.leave_split(group.boxed())


def _count_up(store, pause_s, over):
    with contextlib.suppress(RuntimeError):  # of a store whose server has ended
        while True:
            store.add('compiling', 1)
            if over.wait(pause_s):
                return


def _load_on_all(store, rank, size, timeout):
    """Loads the library, and returns how long the setup may take from now on. Ranks that have to compile it count up meanwhile, and the
    others wait as long as the number grows: compiling has a limit of its own."""
    from lockstep.torch import library  # a program, too
    try:
        path = library.find()
        if path is None:
            over = threading.Event()
            threading.Thread(target=_count_up, args=(store, min(0.5, timeout.total_seconds() / 4), over), daemon=True).start()
            try:
                path = library.build()
            finally:
                over.set()
        load(path)
    except Exception as error:
        with contextlib.suppress(RuntimeError):
            ask(store.set, 'all have the library', f'rank {rank}: {error}')  # ends the waits of the others, which raise it
        raise
    if ask(store.add, 'have the library', 1) == size:
        ask(store.set, 'all have the library', '')
    began, pause_s, counted = time.monotonic(), 0.001, 0
    look = began + timeout.total_seconds()
    while not ask(store.check, ['all have the library']):
        now = time.monotonic()
        if now >= look:
            look = now + timeout.total_seconds()
            before, counted = counted, ask(store.add, 'compiling', 0)
            if counted == before or now - began > library.LIMIT_S:
                return min(timeout, datetime.timedelta(seconds=10))  # in which the library names the missing ranks
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)
    failure = ask(store.get, 'all have the library').decode()
    if failure:
        raise Unavailable(failure)
    return timeout


def _milliseconds(timeout):
    return round(1000 * timeout.total_seconds())


def _connect(group, opts):
    setup_timeout = _load_on_all(dist.PrefixStore('library', opts.store), opts.group_rank, opts.group_size, opts.timeout)
    torch.ops.lockstep.create(group.boxed(), opts.group_id, list(opts.global_ranks_in_group), _milliseconds(opts.timeout),
                              _milliseconds(setup_timeout), hosts(opts.group_size))


def create(opts, _backend_options):
    """What c10d calls for each process group, on its members: the group's back end."""
    if opts.timeout <= datetime.timedelta():
        raise ValueError(f'lockstep: a timeout of {opts.timeout.total_seconds()} s; it must be positive')
    split_from = getattr(opts, 'split_from', None)  # PyTorch 2.8 does not have it
    if split_from is not None and hasattr(split_from, 'split'):
        options = C10dBackend.Options(NAME, timeout=opts.timeout)
        options.group_name = opts.group_id
        return split_from.split(opts.store, opts.global_ranks_in_group, options)
    group = dist.ProcessGroup(opts.store, opts.group_rank, opts.group_size)
    works.Call(_connect, group, opts).wait()
    return group._get_backend(_CPU)


def _has_gpu():
    """torch.cuda.is_available(), by NVML if possible: after a look by CUDA itself, forked children could not use CUDA."""
    given = os.environ.get(_BY_NVML)
    os.environ[_BY_NVML] = given or '1'
    try:
        return torch.cuda.is_available()
    finally:
        if given is None:
            del os.environ[_BY_NVML]


def register():
    """The entry point torch.distributed.backends: makes "lockstep" known to c10d."""
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=['cpu', 'cuda'] if _has_gpu() else ['cpu'])
