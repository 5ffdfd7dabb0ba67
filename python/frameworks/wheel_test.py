"""The wheel is what its name says: to auditwheel and to pip."""

import os
import pathlib
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
        shown = subprocess.run([sys.executable, '-m', 'auditwheel', 'show', WHEEL], capture_output=True, text=True, check=True).stdout
        platform = pathlib.Path(WHEEL).stem.split('-')[-1]
        self.assertIn(f'consistent with the following platform tag: "{platform}"', ' '.join(shown.split()))
        self.assertNotIn('external shared libraries are required', ' '.join(shown.split()))

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
