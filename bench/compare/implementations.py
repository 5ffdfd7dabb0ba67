"""What is compared: Lockstep, the limits of the machine, and other libraries where they are installed, as the words and settings that
start them.

Ranks are runners (runner.h): processes whose arguments begin with FOLDER BYTES_MAX. Nothing of a peer is needed to build or to run
without it: it is found, and its runner compiled, when a comparison begins.
"""

import dataclasses
import os
import re
import subprocess

PEERS = ('gloo', 'openmpi', 'mpich', 'pytorch')
INSTALL = {
    'gloo': 'g++ libgloo-dev',
    'openmpi': 'gcc openmpi-bin libopenmpi-dev',
    'mpich': 'gcc mpich libmpich-dev',
    'pytorch': 'gcc python3-torch',
}
LIST_TENSORS = 64  # of lockstep_runner.c and runner.cc
ONE_WAY_BYTES_MAX = 64 << 10  # above this a ping-pong tells nothing that the exchange does not
# MPI allocates a temporary in every call. Above glibc's 32 MiB it is mapped, faulted in and unmapped each time, unless malloc is told
# to keep it.
MALLOC = {'MALLOC_MMAP_THRESHOLD_': '4000000000', 'MALLOC_TRIM_THRESHOLD_': '8000000000'}


@dataclasses.dataclass
class Implementation:
    name: str  # heads its column
    kind: str  # lockstep, which the others are held against; limit: a prototype or bare sockets; peer: another library
    about: str  # version and settings, for people
    command: list  # the program, and what comes before FOLDER
    options: list = dataclasses.field(default_factory=list)  # what comes after BYTES_MAX
    environment: dict = dataclasses.field(default_factory=dict)
    starts_ranks: bool = False  # the command starts all ranks by itself; else lockstep-run does
    moves_only: bool = False  # moves bytes and sums nothing: there is no result to check
    bytes_max: float = float('inf')  # larger vectors are not asked of it


class NotInstalled(Exception):
    pass


class DoesNotWork(Exception):
    pass


def how_to_install(name):
    return f'apt-get install --no-install-recommends {INSTALL[name]}'


def lockstep(runner, transport):
    """One for each kind of memory that vectors can lie in, and each way to call it."""
    def made(name, about, kind):
        return Implementation(name, 'lockstep', f'LOCKSTEP_TRANSPORT={transport}, {about}', [runner], [kind],
                              {'LOCKSTEP_TRANSPORT': transport})
    ordinary = made('lockstep', 'ordinary memory', 'call')
    if transport != 'shm':
        return [ordinary]
    return [ordinary, made('lockstep symm', "memory of the communicator's allocator", 'symmetric'),
            made('lockstep prep', 'ordinary memory, prepared', 'prepared'),
            made('lockstep list', f'ordinary memory, prepared, {LIST_TENSORS} tensors that lie apart', 'list')]


def limits(runner, transport, ranks):
    """What nothing can beat over that transport, of two ranks."""
    def made(name, kind, about, **settings):
        return Implementation(name, 'limit', about, [runner], kind, **settings)
    if ranks != 2:
        return []
    if transport == 'shm':
        return [made('direct', ['direct'], 'every rank sums its block in the memory of all, one pass'),
                made('bounce', ['bounce'], 'private memory, 128 KiB chunks through a mailbox'),
                made('bounce list', ['bounce_list'], f'the same of {LIST_TENSORS} pieces that lie apart')]
    # Lockstep's congestion control inside a host. Sockets are what providers of libfabric run over here, too.
    control = 'congestion control reno'
    return [made('both ways', ['both_ways', 'reno'], f'bare sockets, vectors both ways at once, {control}', moves_only=True),
            made('one way', ['one_way', 'reno'], f'bare sockets, half a ping-pong, {control}', moves_only=True,
                 bytes_max=ONE_WAY_BYTES_MAX)]


def output_of(words, timeout=60):
    """What a program prints to stdout and stderr."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout,
                              text=True, errors='replace', check=False)
    except FileNotFoundError:
        raise NotInstalled(f'no {words[0]}') from None
    except subprocess.TimeoutExpired:
        raise DoesNotWork(f'{" ".join(words)} did not end in time') from None
    if done.returncode != 0:
        raise DoesNotWork(f'{" ".join(words)} exited with status {done.returncode}: {done.stdout[:600]}')
    return done.stdout


def asked(words):
    """The same, None where it fails."""
    try:
        return output_of(words)
    except (NotInstalled, DoesNotWork):
        return None


def compile_runner(words):
    output_of([*words, '-O3', '-D_GNU_SOURCE'], timeout=120)


def mpi_version(text):
    """(openmpi or mpich, its version) from what `mpirun --version` prints, None for another MPI."""
    if 'OpenRTE' in text or 'Open MPI' in text:
        # "mpirun.openmpi (OpenRTE) 4.1.4", and then other lines.
        words = text.splitlines()[0].split()
        return ('openmpi', words[-1]) if len(words) > 1 else None
    version = re.search(r'^\s*Version:\s*(\S+)', text, re.MULTILINE)
    return ('mpich', version[1]) if 'HYDRA' in text and version else None


@dataclasses.dataclass
class Peer:
    """An installed one, ready to be started."""
    name: str
    version: str  # "Open MPI 4.1.4"
    command: list  # what starts a rank; of MPI, the launcher
    runner: str = ''  # of MPI, the program
    library: str = ''  # of PyTorch's runner


def find_peer(name, sources, folder):
    """Compiles its runner from `sources` into `folder`. Takes seconds. NotInstalled; DoesNotWork with the compiler's words."""
    return {'gloo': find_gloo, 'pytorch': find_pytorch}.get(name, find_mpi)(name, sources, folder)


def find_gloo(name, sources, folder):
    if asked(['g++', '-E', '-x', 'c++', '-include', 'gloo/allreduce.h', os.devnull]) is None:
        raise NotInstalled('no gloo/allreduce.h')
    # Gloo has no version of its own.
    package = asked(['dpkg-query', '-W', '-f', '${Version}', 'libgloo-dev'])
    runner = f'{folder}/gloo_runner'
    compile_runner(['g++', '-std=c++17', f'{sources}/gloo_runner.cc', '-o', runner, '-lgloo', '-pthread'])
    return Peer(name, f'Gloo {package or "of unknown version"}', [runner])


def find_mpi(name, sources, folder):
    # Debian gives both their own names; elsewhere plain ones are whichever is installed.
    for suffix in (f'.{name}', ''):
        kind, version = mpi_version(asked([f'mpirun{suffix}', '--version']) or '') or (None, None)
        if kind == name:
            runner = f'{folder}/{name}_runner'
            compile_runner([f'mpicc{suffix}', '-std=gnu99', f'{sources}/mpi_runner.c', '-o', runner])
            return Peer(name, f'{"Open MPI" if name == "openmpi" else "MPICH"} {version}', [f'mpirun{suffix}'], runner)
    raise NotInstalled(f'neither mpirun.{name} nor an mpirun of it')


def find_pytorch(name, sources, folder):
    question = 'import torch, torch.distributed as d; assert d.is_available() and d.is_gloo_available(); print(torch.__version__)'
    # The user's own Python first, then the one that the system's packages are for.
    for python in ('python3', '/usr/bin/python3'):
        version = asked([python, '-c', question])
        if version is not None:
            library = f'{folder}/runner_library.so'
            compile_runner(['cc', '-std=gnu99', '-shared', '-fPIC', f'{sources}/runner_library.c', '-o', library])
            return Peer(name, f'PyTorch {version.strip()} over Gloo', [python, f'{sources}/torch_runner.py'], library=library)
    raise NotInstalled('no python3 can import torch.distributed with Gloo')


def peers(peer, transport, ranks):
    """One implementation for each setting of a peer that is worth a column. Gloo and PyTorch know TCP alone, and are what their users have
    on one host too, so they take part over shared memory as well."""
    def made(name, how, command, options=(), environment=None):
        # The launchers of MPI start all ranks.
        return Implementation(name, 'peer', f'{peer.version}, {how}', command, list(options), environment or {},
                              starts_ranks=bool(peer.runner))

    def open_mpi(name, how, *parameters):
        # Open MPI refuses root unless it is told otherwise. Ranks pin themselves, as everybody's do.
        root = ['--allow-run-as-root'] * (os.geteuid() == 0)
        words = [*root, '--oversubscribe', '--bind-to', 'none', '-n', str(ranks), '--mca', 'pml', 'ob1']
        for parameter in parameters:
            words += ['--mca', *parameter.split('=')]
        return made(name, how, [*peer.command, *words, peer.runner])

    def mpich(name, how, **environment):
        return made(name, how, [*peer.command, '-bind-to', 'none', '-n', str(ranks), peer.runner], environment=environment)

    shared = transport == 'shm'
    if peer.name == 'gloo':
        return [made('gloo ring', 'ring', peer.command, ['ring']), made('gloo hd', 'halving-doubling', peer.command, ['hd']),
                made('gloo hd busy', 'halving-doubling, synchronous and busy-polling', peer.command, ['hd_busy'])]
    if peer.name == 'pytorch':
        return [made('pytorch', 'torch.distributed.all_reduce, one thread', peer.command, [peer.library])]
    if peer.name == 'openmpi' and shared:
        found = [open_mpi(f'openmpi {copy}', f'btl vader, single-copy {mechanism}', 'btl=self,vader',
                          f'btl_vader_single_copy_mechanism={mechanism}') for copy, mechanism in (('copy', 'none'), ('cma', 'cma'))]
    elif peer.name == 'openmpi':
        found = [open_mpi('openmpi', 'btl tcp on lo', 'btl=self,tcp', 'btl_tcp_if_include=lo')]
    elif shared:
        # Its own shared memory carries a host's ranks, unless it is told that nobody is near.
        found = [mpich('mpich', "ch4's own shared memory"),
                 mpich('mpich ucx', "everything through UCX's shared memory", MPIR_CVAR_NOLOCAL='1', UCX_TLS='posix,sysv,cma,self')]
    else:
        found = [mpich('mpich', 'through UCX tcp on lo', MPIR_CVAR_NOLOCAL='1', UCX_TLS='tcp,self', UCX_NET_DEVICES='lo')]
    settings = ' '.join(f'{name}={value}' for name, value in MALLOC.items())
    return found + [dataclasses.replace(plain, name=f'{plain.name} m', about=f'{plain.about}, {settings}',
                                        environment={**plain.environment, **MALLOC}) for plain in found]
