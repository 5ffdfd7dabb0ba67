"""Builds the wheel for pip, from a checkout or the sdist: runs Bazel, which needs a compiler and installs packages (./bazelw)."""

import os
import pathlib
import subprocess
import sysconfig

FREE_THREADED = '''lockstep does not support free-threaded Python: its extension uses the stable ABI (abi3), which free-threaded builds \
of CPython do not load. Use a build with the GIL, such as python3.13 instead of python3.13t.'''


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if sysconfig.get_config_var('Py_GIL_DISABLED'):
        raise SystemExit(FREE_THREADED)
    # pip's variables are about its own interpreter; what is started here is the system's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(('PYTHON', 'PIP_'))}
    before = set(pathlib.Path(wheel_directory).iterdir())
    subprocess.run(['./bazelw', 'run', '--config=release', '//python:wheel', '--', os.path.abspath(wheel_directory)],
                   check=True, env=environment)
    wheel, = set(pathlib.Path(wheel_directory).iterdir()) - before
    return wheel.name


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit('tools/release makes the sdist')
