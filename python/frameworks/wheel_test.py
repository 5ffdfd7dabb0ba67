"""The wheel is what its name says: to auditwheel and to pip."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

WHEEL = os.environ['WHEEL_UNDER_TEST']
PROGRAM = '''
import array, lockstep
with lockstep.init() as communicator:
    x = array.array('f', [communicator.rank + 1])
    communicator.all_reduce(x)
    assert x[0] == 3, x
'''


class Wheel(unittest.TestCase):

    def test_auditwheel_agrees_with_the_tag(self):
        shown = json.loads(subprocess.check_output([sys.executable, '-m', 'auditwheel', 'show', '--json', WHEEL]))
        # A tag may name a newer glibc than what is needed: one that was tried.
        needed, named = ([int(number) for number in re.findall(r'\d+', tag)[:2]] for tag in (shown['sym_tag'], WHEEL.split('-')[-1]))
        self.assertLessEqual(needed, named)
        self.assertFalse(shown['unsupported_isa'])
        # What lockstep/torch shares with PyTorch.
        self.assertLessEqual(set(shown['external_libs']), {'libc10.so', 'libtorch.so', 'libtorch_cpu.so'})

    def test_installs_and_runs_where_nothing_else_is(self):
        with tempfile.TemporaryDirectory() as work:
            subprocess.run([sys.executable, '-m', 'venv', work], check=True)
            python = pathlib.Path(work, 'bin/python')
            subprocess.run([python, '-m', 'pip', 'install', '-q', '--disable-pip-version-check', WHEEL], check=True)
            program = pathlib.Path(work, 'sum.py')
            program.write_text(PROGRAM)
            for launcher in ([python, '-m', 'lockstep.run'], [pathlib.Path(work, 'bin/lockstep-run')]):
                subprocess.run([*launcher, '-n', '2', program], check=True, timeout=120, cwd='/', env={'PATH': f'{work}/bin:/usr/bin:/bin'})


if __name__ == '__main__':
    unittest.main()
