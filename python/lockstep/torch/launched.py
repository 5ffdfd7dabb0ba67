"""lockstep.torch.init(): torch.distributed's process group in one line, under any launcher."""

import os
import re
import socket

import torch.distributed as dist

import lockstep

# How torch.distributed finds its ranks and their store (init_method='env://').
_VARIABLES = 'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'


def init(**options):
    """Calls torch.distributed.init_process_group('lockstep', **options). Unlike that function, it needs no variables.

    torchrun and python -m lockstep.run set the variables that torch.distributed reads: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
    mpirun, srun and others do not. Under these, ranks find each other as those of lockstep.init() do (docs/environment.md). Rank 0 then
    serves a TCPStore, and every rank sets these variables, LOCAL_RANK and LOCAL_WORLD_SIZE for whatever reads them later.

    REQUIRES  every process of the launcher's job calls it
    ERRORS    those of lockstep.init() and init_process_group(); ValueError if one of RANK and WORLD_SIZE is set, and nothing tells the rest
    """
    if all(name in os.environ for name in _VARIABLES) or options.keys() & {'init_method', 'store', 'rank', 'world_size'}:
        return dist.init_process_group('lockstep', **options)
    timeout = {'timeout': options['timeout']} if options.get('timeout') else {}
    with lockstep.init() as communicator:
        rank, size = communicator.rank, communicator.size
        if size == 1 and ('RANK' in os.environ) != ('WORLD_SIZE' in os.environ):
            raise ValueError('one of RANK and WORLD_SIZE is set: set both, with MASTER_ADDR and MASTER_PORT, or none for a world of one')
        hosts = communicator.all_gather_object(_this_host())
        store = where = None
        if rank == 0:
            host = os.environ.get('MASTER_ADDR') or _address(communicator, one_host=len(set(hosts)) == 1)
            store = _serve(host, size, timeout)
            where = [host, store.port]
        where = communicator.broadcast_object(where)
        if rank != 0:
            store = dist.TCPStore(*where, size, False, **timeout)
    os.environ.update(zip(_VARIABLES, map(str, (rank, size, *where))))
    os.environ['LOCAL_RANK'] = str(hosts[:rank].count(hosts[rank]))
    os.environ['LOCAL_WORLD_SIZE'] = str(hosts.count(hosts[rank]))
    return dist.init_process_group('lockstep', store=store, rank=rank, world_size=size, **options)


def _this_host():
    with open('/proc/sys/kernel/random/boot_id') as boot_id:
        return f'{socket.gethostname()} {boot_id.read().strip()}'


def _address(communicator, one_host):
    """By which the others reach rank 0: where they have met, unless that is a file."""
    if one_host:
        return '127.0.0.1'
    met_at = re.search(r' met at store tcp://(?:\[(.*?)\]|([^:\s]+)):\d', communicator.describe())
    return met_at[1] or met_at[2] if met_at else socket.gethostname()


def _serve(host, size, timeout):
    """A TCPStore at a port of LOCKSTEP_PORTS, or else at one of the system's choice."""
    ports, error = [0], None
    if os.environ.get('LOCKSTEP_PORTS'):
        first, last = map(int, os.environ['LOCKSTEP_PORTS'].split('-'))
        ports = range(first, last + 1)
    for port in ports:
        try:
            return dist.TCPStore(host, port, size, True, wait_for_workers=False, **timeout)
        except dist.DistNetworkError as taken:
            error = taken
    if ports == [0]:
        raise error
    raise lockstep.ResourceExhausted(
        f'no port of LOCKSTEP_PORTS={first}-{last} is free for the store of torch.distributed: {error}. A job needs 1 port for each rank '
        "of the host, and on rank 0's host 1 for the coordinator, 1 for Lockstep's store unless LOCKSTEP_STORE names its port, and 1 for "
        'this store') from error
