"""python -m lockstep.run starts ranks: of scripts, modules and other programs."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from lockstep import run

SCRIPT = '''
import sys
import lockstep
with lockstep.init() as communicator:
    print('rank', communicator.rank, 'of', communicator.size, *sys.argv[1:])
    communicator.barrier()
    if communicator.rank == 1 and 'fail' in sys.argv:
        sys.exit(7)
'''


class Command(unittest.TestCase):

    def command(self, *words):
        """Without the launcher and the interpreter's own options."""
        with mock.patch('subprocess._args_from_interpreter_flags', return_value=['-Wx']):
            return run.command(list(words))[1:]

    def test_python_is_started_by_this_interpreter(self):
        python = [sys.executable, '-Wx', '-u']
        self.assertEqual(self.command('-n', '2', 'a.py', '-n', 'b.py'), ['-n', '2', '--', *python, 'a.py', '-n', 'b.py'])
        self.assertEqual(self.command('--nproc=2', '--job-id', 'x.py', '-m', 'a', '-m'),
                         ['--nproc=2', '--job-id', 'x.py', '--', *python, '-m', 'a', '-m'])
        self.assertEqual(self.command('-n', '2', '--', 'a.py'), ['-n', '2', '--', *python, 'a.py'])

    def test_other_words_are_left_alone(self):
        for words in (['-n', '2', 'program', 'a.py'], ['--help'], ['-n', '2'], ['-n'], [], ['-n', '2', '--', 'program', '-m']):
            self.assertEqual(self.command(*words), words)


class Launched(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ('script.py', '__main__.py'):
            self.write(name, SCRIPT)

    def write(self, name, text):
        with open(os.path.join(self.folder, name), 'w', encoding='utf-8') as file:
            file.write(text)

    def run_ranks(self, *words, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith('LOCKSTEP_') or name == 'LOCKSTEP_RUN'}
        # The launcher's own, before this process moves.
        environment['PYTHONPATH'] = os.pathsep.join([self.folder, *map(os.path.abspath, filter(None, sys.path))])
        return subprocess.run([sys.executable, '-m', 'lockstep.run', *words], capture_output=True, text=True, errors='replace', timeout=60,
                              check=False, env={**environment, **variables})

    def test_ranks_of_a_script_a_module_and_a_folder(self):
        for program in ([os.path.join(self.folder, 'script.py')], ['-m', 'script'], [self.folder]):
            with self.subTest(program):
                done = self.run_ranks('-n', '2', *program, '-x', 'y')
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(sorted(done.stdout.splitlines()), [f'[{rank}] rank {rank} of 2 -x y' for rank in range(2)])

    def test_the_status_is_that_of_the_rank_that_failed(self):
        done = self.run_ranks('-n', '2', '-m', 'script', 'fail')
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn('rank 1', done.stderr)

    def test_help_lists_python_s_programs_and_every_option_that_takes_a_value(self):
        done = self.run_ranks('--help')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('  -m MODULE  ', done.stdout)
        self.assertNotIn('-m MODULE', self.run_ranks('-n', '2', 'echo', '--help').stdout)
        listed = re.findall(r'^  (-.*?) [A-Z]+  ', done.stdout, re.MULTILINE)
        options = [word for words in listed if words != '-m' for word in re.findall(r'--?[a-z-]+', words)]
        self.assertEqual(sorted(options), sorted(run._WITH_VALUE))

    def test_ranks_do_not_inherit_that_python_ignores_signals(self):
        done = self.run_ranks('-n', '1', 'grep', 'SigIgn', '/proc/self/status')
        ignored = int(done.stdout.split()[-1], 16)
        self.assertEqual([name.name for name in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> name - 1 & 1], [])

    def test_the_ends_of_a_long_exception_are_printed(self):
        self.write('raise.py', "import lockstep\nraise ValueError('begin' + 600_000 * '\u00e9' + 'end')\n")
        done = self.run_ranks('-n', '1', os.path.join(self.folder, 'raise.py'))
        self.assertRegex(done.stderr, r"(?s)Traceback.*raise ValueError.*ValueError: begin.*characters \.\.\.\].*end\n")

    def test_words_that_the_launcher_does_not_know(self):
        done = self.run_ranks('--colour', '1')
        self.assertEqual(done.returncode, 2)
        self.assertIn('no option --colour', done.stderr)

    def test_a_launcher_that_is_not_there_is_named(self):
        done = self.run_ranks('-n', '2', '-m', 'script', LOCKSTEP_RUN='/nowhere/lockstep-run')
        self.assertEqual(done.returncode, 1)
        self.assertIn('no launcher at /nowhere/lockstep-run', done.stderr)


if __name__ == '__main__':
    unittest.main()
