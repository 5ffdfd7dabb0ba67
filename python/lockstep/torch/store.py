"""How the ranks of a process group find each other: by c10d's store."""

import concurrent.futures
import os
import threading

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


_ANSWER_S = 20  # within which a store answers


def ask(call, *arguments):
    """Returns call(*arguments) of a store. DistStoreError: there is no answer. If the server of a TCPStore is stopped, its clients wait for
    ever, whatever timeout they have."""
    answer = concurrent.futures.Future()

    def run():
        try:
            answer.set_result(call(*arguments))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    concurrent.futures.wait([answer], _ANSWER_S)
    if not answer.done():
        raise dist.DistStoreError(f'the store of the process group has not answered for {_ANSWER_S} s: rank 0, or whoever else serves it, '
                                  'may be stopped')
    return answer.result()


_contexts = set()  # of stores of which the library may still make a call


class Store:
    """A lockstep_store, `c`, of a torch.distributed.Store, whose calls may last longer than they are given: the library leaves them alone
    then."""

    def __init__(self, store):
        context = ffi.new_handle(store)
        _contexts.add(context)
        callbacks = ffi.new('lockstep_store_callbacks*')
        callbacks.struct_size = ffi.sizeof('lockstep_store_callbacks')
        callbacks.context, callbacks.release = context, lib.lockstep_py_store_release
        callbacks.set, callbacks.get = lib.lockstep_py_store_set, lib.lockstep_py_store_get
        callbacks.remove = lib.lockstep_py_store_remove
        out = ffi.new('lockstep_store**')
        check(lib.lockstep_store_create(callbacks, out))
        self.c = ffi.gc(out[0], lib.lockstep_store_destroy)


def _code_of(context, call):
    try:
        return call(ffi.from_handle(context))
    except dist.DistStoreError:
        return lib.LOCKSTEP_DEADLINE_EXCEEDED
    except Exception:
        return lib.LOCKSTEP_UNAVAILABLE


def _name(key):
    return ffi.string(key).decode()


@ffi.def_extern()
def lockstep_py_store_release(context):
    _contexts.discard(context)


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
