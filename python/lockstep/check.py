"""python -m lockstep.check: whether Lockstep works on this machine, on a page for bug reports.

Prints versions, then starts two ranks on this host. They connect over each transport, and an all-reduce is measured. Where PyTorch is
installed, its process group is made too. Names of variables are printed, but of their values only those that say nothing of secrets,
hosts and users. Exit status 0: everything that is needed works; 1: something does not, and a line says what.
"""

import array
import os
import platform
import re
import subprocess
import sys
import threading
import time

import lockstep
from lockstep import run

_RANKS = 2
_TIMEOUT_S = 720  # PyTorch's back end may have to be compiled first
_SETUP_MS = 20_000
# Optional: what is not installed is reported and is no fault.
_OPTIONAL = ('ofi',)
_TRANSPORTS = ('auto', 'tcp', *_OPTIONAL)
# Variables whose values are printed.
_HARMLESS = re.compile('(LOCKSTEP_(ALGORITHM|CHECKED|CHUNK_BYTES|CPU|DETERMINISTIC|DEVICE_BACKEND|LOG|OFI_PROVIDER|PORTS|'
                       'SECURITY.*|TCP_.*|.*TIMEOUT_MS|TRANSPORT|(LOCAL_)?(RANK|WORLD_SIZE))|OMP_NUM_THREADS)')
_FAULT = 'FAULT'


def _say(what, text):
    """One line, without control characters of error texts."""
    print(f'{what + ":":12}{" ".join(str(text).split())}', flush=True)


def _explain(error):
    return f'{type(error).__name__}: {error}'


# ---- What each rank does

def _measure(communicator, elements, calls):
    """Microseconds of an all-reduce: the median."""
    data, times = array.array('f', bytes(4 * elements)), []
    for _ in range(calls):
        begin = time.perf_counter()
        communicator.all_reduce(data)
        times.append(time.perf_counter() - begin)
    return sorted(times)[calls // 2] * 1e6


def _over(transport):
    """Whether a world over this transport works."""
    try:
        with lockstep.init(transport=transport, setup_timeout_ms=_SETUP_MS, timeout_ms=_SETUP_MS) as communicator:
            small, large = _measure(communicator, 2, 200), _measure(communicator, 1 << 20, 20)
            # "rank 1 (host a, pid 71) over tcp 127.0.0.1:4711 (not shm: ...)", or rank 0 for rank 1
            route = re.search(r'^rank [01] [^\n]*? over ((?!nothing)[^\n]*)', communicator.describe(), re.MULTILINE)
            return True, f'{route[1]}: all-reduce of 8 bytes in {small:.0f} us, of 4 MiB in {large:.0f} us'
    except (lockstep.Unavailable, lockstep.NotFound) as error:
        return transport in _OPTIONAL, _explain(error)
    except lockstep.Error as error:
        return False, _explain(error)


def _in_torch():
    """Whether the back end works; None without PyTorch."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return None
    try:
        import lockstep.torch  # noqa: F401  before PyTorch 2.14 nothing else makes the back end known
        begin = time.monotonic()
        dist.init_process_group('lockstep')
        made_s = time.monotonic() - begin
        x = torch.ones(4)
        dist.all_reduce(x)
        assert x.tolist() == [_RANKS] * 4, x
        text = f'back end {_library()}; made in {made_s:.1f} s; {torch.get_num_threads()} threads'
        dist.destroy_process_group()
        return True, text
    except Exception as error:
        return False, _explain(error)


def _library():
    """Where the library of the back end comes from."""
    package = os.path.dirname(os.path.realpath(lockstep.__file__))
    with open('/proc/self/maps') as maps:
        paths = {line[line.index('/'):].strip() for line in maps if '/' in line}
    ours = next(path for path in paths if os.path.basename(path).startswith('lockstep_torch'))
    return 'of the package' if ours.startswith(package) else 'compiled on this machine and cached'


def _rank_main():
    rank = int(os.environ['LOCKSTEP_RANK'])
    good = True
    for what in (*_TRANSPORTS, 'torch'):
        result = _in_torch() if what == 'torch' else _over(what)
        if result is None:
            continue
        good &= result[0]
        if rank == 0 or not result[0]:
            _say(what, result[1] if result[0] else f'{_FAULT}: rank {rank}: {result[1]}')
    if rank == 0:
        threads = os.environ.get('OMP_NUM_THREADS', 'not set: a rank may use every core')
        _say('threads', f'OMP_NUM_THREADS {threads}; {len(os.sched_getaffinity(0))} cores')
    return good


# ---- The page

def _versions():
    _say('lockstep', lockstep.version_text())
    _say('python', f'{platform.python_implementation()} {platform.python_version()}')
    _say('system', f'{platform.system()} {platform.release()} {platform.machine()}, {" ".join(platform.libc_ver())}, '
                  f'{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores')
    for name in ('torch', 'numpy', 'jax', 'lightning'):
        version = _installed(name)
        if version is not None:
            _say(name, version)
    for name in sorted(os.environ):
        if name.startswith('LOCKSTEP_') or name == 'OMP_NUM_THREADS':
            _say('variable', f'{name}={os.environ[name]}' if _HARMLESS.fullmatch(name) else f'{name} is set')


def _installed(name):
    import importlib.metadata
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def main():
    if sys.argv[1:] == ['--as-rank']:
        sys.exit(not _rank_main())
    if sys.argv[1:]:
        sys.exit(print(__doc__) if sys.argv[1] in ('-h', '--help') else __doc__)  # print returns None: status 0
    _versions()
    # The job of a launcher that this page is printed under is another one.
    environment = {name: value for name, value in os.environ.items()
                   if name not in ('LOCKSTEP_RANK', 'LOCKSTEP_WORLD_SIZE', 'LOCKSTEP_STORE', 'LOCKSTEP_JOB_ID', 'LOCKSTEP_STORE_SERVED')}
    environment['LOCKSTEP_LOG'] = 'warning'
    command = [run.launcher(), '-n', str(_RANKS), '--', sys.executable, '-u', '-m', 'lockstep.check', '--as-rank']
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', env=environment) as ranks:
        late = threading.Timer(_TIMEOUT_S, ranks.kill)  # the ranks die with their launcher
        late.daemon = True  # else the end of this program, after Ctrl-C, waits for it
        late.start()
        for line in ranks.stdout:
            print(re.sub(r'^\[\d+\] ', '', line), end='', flush=True)
    if not late.is_alive():
        _say('time', f'{_FAULT}: the ranks did not end in {_TIMEOUT_S} s')
    late.cancel()
    status = ranks.returncode
    _say('result', 'Lockstep works here' if status == 0 else f'{_FAULT}: exit status {status}; the lines above say what is wrong')
    sys.exit(status != 0)


if __name__ == '__main__':
    main()
