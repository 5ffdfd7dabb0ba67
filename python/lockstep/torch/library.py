"""The back end's C++ library: taken from the wheel if that has it for this release of PyTorch, otherwise compiled once on each host.

    python -m lockstep.torch.library                      # compiles it now, for example while an image is built
    python library.py TORCH PACKAGE OUT [FLAG...]         # compiles it for the PyTorch in the folder TORCH, which need not be installed

The wheel of a release has it for PyTorch 2.12 to 2.15. Elsewhere the first process group compiles it, which takes a C++20 compiler and
about 25 s. It is kept in $XDG_CACHE_HOME/lockstep or ~/.cache/lockstep. The time does not count against the timeout of init_process_group.

ERRORS  lockstep.Unavailable says what to install or to set.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

LIMIT_S = 600  # for compiling it, or for another process of this host to do so

_HERE = pathlib.Path(__file__).resolve().parent
_PACKAGE = _HERE.parent
_SOURCES = sorted((_HERE / 'csrc').glob('*'))
_FLAGS = ['-std=c++20', '-O2', '-fPIC', '-shared', '-fvisibility=hidden', '-Wl,-z,now', '-s', '-DUSE_C10D', '-DUSE_DISTRIBUTED']
_LIBRARIES = ['-l:liblockstep.so.1', '-lc10', '-ltorch', '-ltorch_cpu']  # those that are loaded; no paths are noted

_logger = logging.getLogger('lockstep.torch')


def command(torch_folder, package, out, compiler='c++'):
    """Compiles the library for the PyTorch in a folder. package: the folder of a built package `lockstep`."""
    includes = [f'-I{package}/include', *(f'-isystem{torch_folder}/{folder}' for folder in ('include', 'include/torch/csrc/api/include'))]
    return [*shlex.split(compiler), *_FLAGS, *includes, str(_HERE / 'csrc/backend.cc'), '-o', str(out), f'-L{package}/_lib',
            f'-L{torch_folder}/lib', *_LIBRARIES]


def name_for(torch_version):
    """The library's file in a wheel. Releases with the same first two numbers have the same interface."""
    return f'lockstep_torch-{".".join(torch_version.split(".")[:2])}.so'


def cached_path():
    """Where the compiled library is, or will be: another file for each release of PyTorch, Lockstep and glibc, each source and each kind of
    processor, since hosts may share a home."""
    import torch
    import lockstep
    key = hashlib.sha256(repr((torch.__version__, torch.version.git_version, torch.compiled_with_cxx11_abi(), _FLAGS, platform.machine(),
                               platform.libc_ver())).encode())
    for source in _SOURCES:
        key.update(source.read_bytes())
    try:
        cache = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache')
    except RuntimeError as error:
        raise lockstep.Unavailable(f'the compiled back end for PyTorch needs a folder: set XDG_CACHE_HOME ({error})') from None
    return cache / 'lockstep' / f'lockstep_torch-{lockstep.__version__}-{key.hexdigest()[:16]}.so'


def find():
    """The library's path, or None if it has to be compiled."""
    import torch
    in_wheel = _HERE / name_for(torch.__version__)
    # Others than PyTorch's own releases may have another interface.
    if torch.__version__.split('+')[0].replace('.', '').isdigit() and torch.compiled_with_cxx11_abi() and in_wheel.exists():
        return in_wheel
    path = cached_path()
    return path if _is_ours(path) else None


def _is_ours(path):
    """Whether the file is there, belongs to this user or root, and no other user may write it."""
    try:
        found = path.stat()
    except OSError:  # if this is not because it is not there, build() says what is wrong
        return False
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


@contextlib.contextmanager
def _lock(path):
    import lockstep
    deadline = time.monotonic() + LIMIT_S
    with open(path, 'w') as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise lockstep.Unavailable(f'another process has held {path} for {LIMIT_S} s to compile the back end: end it') from None
                time.sleep(0.1)
        yield


def _compile(path):
    import torch
    import lockstep
    compiler = os.environ.get('CXX') or 'c++'
    remedy = "install g++ 11 or later, set CXX to such a compiler, or use a release's wheel with PyTorch 2.12 to 2.15"
    if shutil.which(shlex.split(compiler)[0]) is None:
        raise lockstep.Unavailable(f'the back end must be compiled for PyTorch {torch.__version__}: no C++ compiler {compiler!r}; {remedy}')
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        out = pathlib.Path(folder, path.name)
        line = command(pathlib.Path(torch.__file__).parent, _PACKAGE, out, compiler)
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise lockstep.Unavailable(f'{" ".join(line)} took more than {LIMIT_S} s') from None
        if done.returncode != 0:
            said = done.stderr.splitlines() or ['']
            first = next((line for line in said if 'error' in line), said[0])
            raise lockstep.Unavailable(f'the back end could not be compiled for PyTorch {torch.__version__}: {first[:200]}; '
                                       f'{remedy}. {" ".join(line)}: {done.stderr[:4000]}')
        out.chmod(0o755)  # whatever the umask
        out.rename(path)  # other processes see the whole file or none


def build():
    """Compiles the library, unless it is there, and returns its path. Processes that call it at the same time compile it once."""
    import torch
    import lockstep
    path = cached_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(path.with_suffix('.lock')):
            if not _is_ours(path):
                began = time.monotonic()
                _logger.warning('compiling the back end for PyTorch %s, which takes about 25 s', torch.__version__)
                _compile(path)
                _logger.warning('compiled the back end for PyTorch %s in %.0f s, once for all programs: %s', torch.__version__,
                                time.monotonic() - began, path)
    except lockstep.Unavailable:  # an OSError, too
        raise
    except OSError as error:
        raise lockstep.Unavailable(f'the compiled back end for PyTorch cannot be kept in {path.parent}: {error}. Set XDG_CACHE_HOME to a '
                                   'folder that can be written') from error
    return path


if __name__ == '__main__':
    if len(sys.argv) > 3:
        sys.exit(subprocess.run([*command(*sys.argv[1:4], os.environ.get('CXX', 'c++')), *sys.argv[4:]]).returncode)
    elif len(sys.argv) > 1:
        sys.exit(print(__doc__) if sys.argv[1] in ('-h', '--help') else __doc__)  # print returns None: status 0
    print(find() or build())
