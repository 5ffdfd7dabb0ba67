"""How the ranks of a process group find each other: by c10d's store."""

import os

import torch.distributed as dist

import lockstep
from lockstep._native import ffi, lib
from lockstep.errors import check


def connect(store, size, rank, timeout_ms, **options):
    """A new communicator of `size` ranks, each of which calls it with the same store. timeout_ms is its own, and its set-up's;
    None: the defaults."""
    return lockstep.init(world_size=size, rank=rank, store=Store(store), setup_timeout_ms=timeout_ms, timeout_ms=timeout_ms,
                         **_local(size, rank), **options)


def hosts(size):
    """1 if a group's ranks are known to be on one host, 2 if the world is known to have several, 0 if that is unknown. The launcher's
    variables give it for the world."""
    world = dist.get_world_size() if dist.is_initialized() else size
    for family in ('LOCKSTEP_', ''):
        total, here = (os.environ.get(family + name) for name in ('WORLD_SIZE', 'LOCAL_WORLD_SIZE'))
        if total == str(world) and here is not None:
            return 1 if here == total else 2
    return 0


def _local(size, rank):
    return {1: {'local_world_size': size, 'local_rank': rank}, 2: {'local_world_size': 1, 'local_rank': 0}}.get(hosts(size), {})


class Store:
    """A lockstep_store, `c`, of a torch.distributed.Store. The library uses it on the thread that creates a communicator, only until that
    returns."""

    def __init__(self, store):
        self.store = store
        self._context = ffi.new_handle(self)
        callbacks = ffi.new('lockstep_store_callbacks*')
        callbacks.struct_size = ffi.sizeof('lockstep_store_callbacks')
        callbacks.context = self._context
        callbacks.set, callbacks.get = lib.lockstep_py_store_set, lib.lockstep_py_store_get
        callbacks.remove = lib.lockstep_py_store_remove
        out = ffi.new('lockstep_store**')
        check(lib.lockstep_store_create(callbacks, out))
        self.c = ffi.gc(out[0], lib.lockstep_store_destroy)


def _code_of(context, call):
    try:
        return call(ffi.from_handle(context).store)
    except dist.DistStoreError:
        return lib.LOCKSTEP_DEADLINE_EXCEEDED
    except Exception:
        return lib.LOCKSTEP_UNAVAILABLE


def _name(key):
    return ffi.string(key).decode()


@ffi.def_extern()
def lockstep_py_store_set(context, key, value, size, _timeout_ms):
    def call(store):
        store.set(_name(key), bytes(ffi.buffer(value, size)))
        return lib.LOCKSTEP_OK
    return _code_of(context, call)


@ffi.def_extern()
def lockstep_py_store_get(context, key, buffer, capacity, out_size, _timeout_ms):
    def call(store):
        # get() would wait for the key.
        if not store.check([_name(key)]):
            return lib.LOCKSTEP_NOT_FOUND
        value = store.get(_name(key))
        ffi.memmove(buffer, value, min(len(value), capacity))
        out_size[0] = len(value)
        return lib.LOCKSTEP_OK
    return _code_of(context, call)


@ffi.def_extern()
def lockstep_py_store_remove(context, key, _timeout_ms):
    def call(store):
        store.delete_key(_name(key))
        return lib.LOCKSTEP_OK
    return _code_of(context, call)
