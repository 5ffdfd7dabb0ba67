#!/usr/bin/env python3
"""environment.py DIR [NAME...]: a virtual environment in DIR with what requirements.txt names (all, or NAMEs), for machines without a GPU.

PyPI's PyTorch for x86-64 is built for CUDA. It loads only where the loader finds CUDA's libraries (2.5 GB), though on a machine without a
GPU nothing of them runs. Here each of these libraries is a stub, whose functions return an error: torch.cuda.is_available() is
False, and everything on the CPU works. For tests; such a folder is not for others.

Needs venv, gcc and binutils. A second run finds the environment and returns.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import venv

HERE = pathlib.Path(__file__).parent
ERROR = 100  # cudaErrorNoDevice; to the other libraries, some error


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def read(library):
    """What a library has to do with others: ({needed library}, {library: {version}}, {(undefined symbol, its version or '')},
    {defined symbol})"""
    needed = set(re.findall(r'\(NEEDED\).*\[(.*)\]', output_of('readelf', '-d', library)))
    versions, of = {}, None
    for line in output_of('readelf', '-W', '-V', library).splitlines():
        if found := re.search(r'Version: \d+  File: (\S+)', line):
            of = found[1]
        elif of and (found := re.search(r'Name: (\S+)  Flags', line)):
            versions.setdefault(of, set()).add(found[1])
    undefined, defined = set(), set()
    for line in output_of('nm', '-D', '--with-symbol-versions', library).splitlines():
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition('@')
        if kind == 'U':
            undefined.add((name, version.lstrip('@')))
        elif kind not in 'wv':
            defined.add(name)
    return needed, versions, undefined, defined


def stubs_for(libraries):
    """{library of CUDA that these need and that is not among them: {version: {symbol}}}. A symbol without a version may come from any."""
    needed, versions, undefined, defined = set(), {}, set(), set()
    for library in libraries:
        its = read(library)
        needed |= its[0]
        undefined |= its[2]
        defined |= its[3]
        for of, names in its[1].items():
            versions.setdefault(of, set()).update(names)
    missing = sorted(name for name in needed if re.match('lib(cu|nv|nccl)', name))
    stubs = {name: {version: {symbol for symbol, of in undefined if of == version} for version in versions.get(name, ())}
             for name in missing}
    python_or_cxx = re.compile('_?Py|_Z')
    loose = {symbol for symbol, of in undefined if not of and symbol not in defined and not python_or_cxx.match(symbol)}
    stubs[missing[0]].setdefault('', set()).update(loose)
    return stubs


def write_stub(path, symbols_of):
    symbols = sorted(set().union(*symbols_of.values()))
    with tempfile.TemporaryDirectory() as work:
        source, script = pathlib.Path(work, 'stub.c'), pathlib.Path(work, 'stub.map')
        source.write_text('int stub;\n' + ''.join(f'long {name}(void) {{ return {ERROR}; }}\n' for name in symbols))
        script.write_text(''.join(f'{version} {{ {" ".join(f"{name};" for name in sorted(names))} }};\n'
                                  for version, names in symbols_of.items() if version))
        subprocess.run(['gcc', '-w', '-shared', '-fPIC', '-nostdlib', source, '-o', path, f'-Wl,-soname,{path.name}',
                        *([f'-Wl,--version-script={script}'] if script.stat().st_size else [])], check=True)


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith('-'):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]).resolve()
    requirements = (HERE / 'requirements.txt').read_text()
    if sys.argv[2:]:
        requirements = '\n'.join(line for line in requirements.splitlines() if re.split('[=[]', line)[0] in sys.argv[2:])
    done = folder / 'done'
    if done.exists() and done.read_text() == requirements:
        return
    venv.create(folder, clear=True, with_pip=True)
    python = folder / 'bin/python'

    def install(*words):
        subprocess.run([python, '-m', 'pip', 'install', '-q', '--disable-pip-version-check', *words], check=True)
    install('--no-deps', re.search('^torch==.*', requirements, re.MULTILINE)[0])
    site = pathlib.Path(output_of(python, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))').strip())
    # So that nothing of CUDA is fetched.
    for metadata in site.glob('torch-*.dist-info/METADATA'):
        metadata.write_text(re.sub(r'Requires-Dist: (nvidia-|cuda-|triton).*\n', '', metadata.read_text()))
    install(*re.findall('^[^#\n]+', requirements, re.MULTILINE))
    # The wheel looks for CUDA's libraries there.
    stubs = site / 'nvidia/cu13/lib'
    stubs.mkdir(parents=True)
    for name, symbols_of in stubs_for(sorted((site / 'torch/lib').glob('*.so*'))).items():
        write_stub(stubs / name, symbols_of)
    subprocess.run([python, '-c', 'import torch; assert not torch.cuda.is_available()'], check=True)
    done.write_text(requirements)


if __name__ == '__main__':
    main()
