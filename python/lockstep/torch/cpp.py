"""The c10d back end in C++: works that tell all (is_completed, exception, source_rank), futures without Python, and less per call.

    python -m lockstep.torch.cpp      # once for each PyTorch and Python; takes a C++20 compiler and about 25 s

From then on init_process_group('lockstep') uses it. It is in $XDG_CACHE_HOME/lockstep or ~/.cache/lockstep; if that folder is deleted,
lockstep.torch.backend serves again. A job builds it only where its program calls build(), since its first step would wait for that.
Ranks may differ: both back ends make the same calls on the wire. With CUDA, whose tensors it does not take, it is not used.
"""

import atexit
import fcntl
import hashlib
import importlib.util
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time

import torch

import lockstep
from lockstep import at_exit
from lockstep._native import ffi

NAME = 'lockstep_torch'

_HERE, _PACKAGE, _TORCH = pathlib.Path(__file__).parent, pathlib.Path(lockstep.__file__).parent, pathlib.Path(torch.__file__).parent
_SOURCES = [_HERE / 'cpp_backend.cc', _HERE / 'cpp_work.h']
_FLAGS = ['-std=c++20', '-O2', '-fPIC', '-shared', '-fvisibility=hidden', '-Wl,-z,now']
_LIBRARIES = ['-l:liblockstep.so.1', '-lc10', '-ltorch', '-ltorch_cpu', '-ltorch_python']  # those that are loaded; no paths are noted

_logger = logging.getLogger('lockstep.torch')


def built_path():
    """Where the library is, or will be: another file for each release of PyTorch, Python and Lockstep."""
    key = hashlib.sha256(repr((torch.__version__, torch.version.git_version, sys.implementation.cache_tag, _FLAGS)).encode())
    for source in _SOURCES:
        key.update(source.read_bytes())
    cache = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache')
    return cache / 'lockstep' / f'{NAME}-{lockstep.__version__}-{key.hexdigest()[:16]}.so'


def _compile(path):
    compiler = shutil.which(os.environ.get('CXX', 'c++'))
    if compiler is None:
        raise lockstep.Unavailable('no C++ compiler; install g++ 11 or later, or set CXX')
    includes = [_PACKAGE / 'include', _TORCH / 'include', _TORCH / 'include/torch/csrc/api/include', sysconfig.get_paths()['include']]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        out = pathlib.Path(folder, path.name)
        command = [compiler, *_FLAGS, *(f'-I{folder}' for folder in includes), _SOURCES[0], '-o', out,
                   f'-L{_PACKAGE}/_lib', f'-L{_TORCH}/lib', *_LIBRARIES]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise lockstep.Unavailable(f'{" ".join(map(str, command))}: {done.stderr[:4000]}')
        out.rename(path)  # other processes see all of it or nothing


def build():
    """Builds the back end, unless that was done before. Processes that call it at once build it once.

    Returns whether it is there. If not, the logger lockstep.torch tells why at level INFO, and the back end in Python serves.
    """
    try:
        path = built_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix('.lock'), 'w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _compile(path)
    except (OSError, RuntimeError) as error:
        _logger.info('the back end in C++ is not built: %s', error)
        return False
    return True


def _load():
    """The module, or None if it is not built."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    try:
        path = built_path()
        there = path.exists()
    except (OSError, RuntimeError) as error:  # the home folder cannot be read, or is not known
        _logger.info('using the back end in Python: %s', error)
        return None
    if not there:
        _logger.info('using the back end in Python; "%s -m lockstep.torch.cpp" builds the one in C++', sys.executable)
        return None
    spec = importlib.util.spec_from_file_location(NAME, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    atexit.register(_end, module, os.getpid())
    return module


def _end(module, pid):
    """Closes what is open and waits for callbacks, which may need the interpreter."""
    at_exit.close_all()
    deadline = time.monotonic() + 10
    while module.callbacks_to_come() and os.getpid() == pid and time.monotonic() < deadline:
        time.sleep(0.001)


def over(backend):
    """A back end in C++, which keeps the given one in Python for what is not called often. The given one if it has to serve itself."""
    module = None if torch.cuda.is_available() else _load()
    if module is None:
        return backend
    communicator = backend._communicator
    handle = module.Handle(int(ffi.cast('uintptr_t', communicator._handle())))
    communicator._before_destroy.append(handle.close)
    return module.Backend(handle, backend)


if __name__ == '__main__':
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    sys.exit(print(built_path()) if build() else 1)
