#!/usr/bin/python3
"""bazel run --config=release //python:wheel -- DIR [FILE...]: writes lockstep_runtime-VERSION-cp310-abi3-PLATFORM.whl into DIR.

The wheel has the package, liblockstep.so, lockstep-run, the Abseil libraries that both need, if they are linked to any, and each FILE: a
library (.so) goes into lockstep/torch, anything else is a licence and goes next to ours. It installs without a compiler in every CPython
from 3.10 on. PLATFORM names the oldest distributions that have the glibc and libstdc++ that its programs need: a wheel built here fits
machines no older than this one, and tools/release builds one that fits glibc 2.28. If SOURCE_DATE_EPOCH is set, the bytes of the wheel
depend on the packed files alone.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LIBRARIES = 'lockstep/_lib'

METADATA = '''\
Metadata-Version: 2.1
Name: lockstep-runtime
Version: {version}
Summary: Gradient synchronisation for data-parallel training
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: cffi>=1.15
'''

WHEEL = '''\
Wheel-Version: 1.0
Generator: lockstep
Root-Is-Purelib: false
Tag: cp310-abi3-{platform}
'''

ENTRY_POINTS = '''\
[console_scripts]
lockstep-run = lockstep.run:main

[torch.distributed.backends]
lockstep = lockstep.torch.backend:register
'''


def version_of(header):
    """LOCKSTEP_VERSION of lockstep.h: '0.3.0'."""
    return '.'.join(re.search(rf'#define LOCKSTEP_VERSION_{part} (\d+)', header)[1] for part in ('MAJOR', 'MINOR', 'PATCH'))


def abseil_of(launcher, library):
    """The libraries of Abseil that these load, as the loader that the launcher names finds them, and the loader's machine ('aarch64').
    Another machine's loader runs under qemu, in the root QEMU_LD_PREFIX."""
    found = re.search(r'/lib\d*/ld-linux-([\w-]+)\.so\.\d', launcher.read_bytes().decode('latin-1'))
    machine = found[1].replace('-', '_')
    root = '' if machine == os.uname().machine else os.environ['QEMU_LD_PREFIX']
    lines = [line.split() for program in (launcher, library) for line in
             subprocess.run([root + found[0], '--list', program], capture_output=True, text=True, check=True).stdout.splitlines()]
    return sorted({root + line[2] for line in lines if line[0].startswith('libabsl_')}), machine


# From which glibc on distributions have the libstdc++ with these symbols, GLIBCXX_3.4.N, as PEP 600's policies are in auditwheel (which
# has 24 from 2.27 on, where nothing was tried).
GLIBC_WITH = {19: (2, 17), 24: (2, 28), 28: (2, 31), 29: (2, 34), 30: (2, 35), 33: (2, 39)}


def platform_of(files, machine):
    """The oldest that has what these need: 'manylinux_2_35_x86_64'."""
    text = subprocess.run(['objdump', '-T', *files], capture_output=True, text=True, check=True).stdout
    glibc = max(tuple(map(int, found)) for found in re.findall(r'GLIBC_(\d+)\.(\d+)', text))
    libstdcxx = max((int(found) for found in re.findall(r'GLIBCXX_3\.4\.(\d+)', text)), default=0)
    with_it = [of for symbols, of in GLIBC_WITH.items() if symbols >= libstdcxx]
    if not with_it:
        sys.exit(f'wheel: GLIBCXX_3.4.{libstdcxx} is newer than what GLIBC_WITH knows')
    return 'manylinux_{}_{}_'.format(*max(glibc, min(with_it))) + machine


def lay_out(root, torch_libraries):
    """Puts the package under root. Returns its programs, and their machine."""
    shutil.copytree('python/lockstep', root / 'lockstep', ignore=shutil.ignore_patterns('__pycache__'))
    library, launcher = root / LIBRARIES / 'liblockstep.so.1', root / LIBRARIES / 'lockstep-run'
    programs = [*(root / 'lockstep').glob('*.so'), library, launcher]
    abseil, machine = abseil_of(launcher, library)
    for path in abseil:
        # The run path of both leads there.
        (root / LIBRARIES / 'lockstep').mkdir(exist_ok=True)
        programs.append(shutil.copy(path, root / LIBRARIES / 'lockstep'))
    programs += [shutil.copy(path, root / 'lockstep/torch') for path in torch_libraries]
    for path in root.rglob('*'):
        path.chmod(0o755 if path.is_dir() or path == launcher else 0o644)
    return programs, machine


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith('-'):
        sys.exit(__doc__)
    # Bazel runs this in its runfiles; a relative path is meant where the user typed it.
    folder, *files = [pathlib.Path(os.environ.get('BUILD_WORKING_DIRECTORY', ''), path) for path in sys.argv[1:]]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        root = pathlib.Path(work)
        platform = platform_of(*lay_out(root, [file for file in files if file.suffix == '.so']))
        version = version_of((root / 'lockstep/include/capi/lockstep.h').read_text(encoding='ascii'))
        info = root / f'lockstep_runtime-{version}.dist-info'
        info.mkdir()
        (info / 'METADATA').write_text(METADATA.format(version=version))
        (info / 'WHEEL').write_text(WHEEL.format(platform=platform))
        (info / 'entry_points.txt').write_text(ENTRY_POINTS)
        for licence in ['LICENSE'] + [file for file in files if file.suffix != '.so']:
            shutil.copy(licence, info)
        subprocess.run([sys.executable, '-m', 'wheel', 'pack', '--dest-dir', str(folder), work], check=True)


if __name__ == '__main__':
    main()
