"""Jobs in which one rank fails in every way there is: what lockstep-run prints last is that rank and its reason.

For first_failure_test.py here (torch, Lightning) and in the folder above (C, plain Python).
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import lockstep.run

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'failing_rank.py')
LINES_MAX = 25
GROUPS = pathlib.Path('/sys/fs/cgroup')


class MemoryGroup:
    """A new control group whose processes may use `mebibytes` of memory together. Raises SkipTest if it cannot be made."""

    def __init__(self, mebibytes):
        version1 = (GROUPS / 'memory').is_dir()
        own = [line.split(':', 2)[2] for line in pathlib.Path('/proc/self/cgroup').read_text().splitlines()
               if line.split(':')[1] == ('memory' if version1 else '')]
        parents = [GROUPS / ('memory' if version1 else '') / path.strip('/') for path in own + ['/']]
        for parent in parents:
            self.folder = parent / f'lockstep-{os.getpid()}'
            try:
                self.folder.mkdir()
                limit = self.folder / ('memory.limit_in_bytes' if version1 else 'memory.max')
                limit.write_text(str(mebibytes << 20))
                return
            except OSError as error:
                reason = error
                if self.folder.is_dir():
                    self.folder.rmdir()
        raise unittest.SkipTest(f'no control group with a limit of memory can be made here: {reason}')

    def enter(self):
        (self.folder / 'cgroup.procs').write_text(str(os.getpid()))

    def remove(self):
        self.folder.rmdir()


def run(command, ranks, memory=None, launcher=None):
    """(exit status, lines of stderr) of a job. memory: the MiB that its processes may take together."""
    group = MemoryGroup(memory) if memory else None
    environment = {name: value for name, value in os.environ.items() if not name.startswith('LOCKSTEP_')}
    try:
        done = subprocess.run([*(launcher or [lockstep.run.launcher(), '-n', str(ranks)]), *command], capture_output=True, text=True,
                              timeout=300, check=False, env={**environment, 'OMP_NUM_THREADS': '1'},
                              preexec_fn=group.enter if group else None)
    finally:
        if group:
            group.remove()
    return done.returncode, done.stderr.splitlines()


def check(test, kind, command, way, ranks, culprit, memory):
    """One cell."""
    status, lines = run([*command, way, str(culprit)], ranks, memory if way == 'memory' else None)
    text = '\n'.join(lines)
    begin = max(i for i, line in enumerate(lines) if line.startswith('lockstep-run: '))
    described = lines[begin].partition(') ')[2]
    test.assertRegex(lines[begin], rf'^lockstep-run: rank {culprit} \(pid \d+\) ', text)
    if way == 'raise':
        test.assertEqual((status, described), (1, 'exited with status 1'), text)
        test.assertRegex(lines[begin + 1], rf'^\[{culprit}\] Traceback ')
        test.assertIn(f'[{culprit}] ValueError: a bad batch:', lines[begin:], text)
        test.assertEqual(lines[-1], rf'[{culprit}]   \udce9\0', text)
        test.assertNotIn('Traceback', '\n'.join(lines[:begin]))
    else:
        test.assertEqual(begin, len(lines) - 1, text)
        died = 'was killed by signal 9 (SIGKILL)'
        test.assertEqual((status, described), {'exit': (3, 'exited with status 3'), 'signal': (137, died),
                                               'memory': (137, died + ': its control group was out of memory')}[way], text)
    # Frameworks print much before anything has failed.
    first = next(i for i, line in enumerate(lines) if re.match(r'lockstep-run: |\[\d+\] (lockstep |Traceback )', line))
    test.assertLessEqual(begin + 1 - first, LINES_MAX, text)
    for rank in set(range(ranks)) - {culprit}:
        test.assertEqual(len([line for line in lines if line.startswith(f'lockstep-run: rank {rank} (pid ')]), 1, text)
    # After a signal the others may be ended before they notice.
    for folder in [line.rpartition(' ')[2] for line in lines if line.startswith('lockstep-run: the reports of the ranks')]:
        names = os.listdir(folder)
        if way == 'raise':
            report = json.loads((pathlib.Path(folder) / f'error.rank{culprit}.json').read_text())
            test.assertRegex(report['lockstep']['where'], r'failing_rank\.py:\d+$')
        shutil.rmtree(folder)
    if way == 'raise':
        test.assertIn(f'error.rank{culprit}.json', names, text)
        test.assertTrue([name for name in names if name.startswith('lockstep-flight-records.')], text)


def add_tests(case, kind, command, ways, memory):
    """A test of each cell, which runs it twice: first the last rank fails, then the first."""
    for way in ways:
        for ranks in (2, 4, 16) if (kind, way) == ('python', 'raise') else (4,) if kind.endswith('pairs') else (2, 4):
            def test(self, way=way, ranks=ranks):
                for culprit in (ranks - 1, 0):
                    with self.subTest(culprit=culprit):
                        check(self, kind, command, way, ranks, culprit, memory)
            setattr(case, f'test_{kind}_{way}_{ranks}_ranks', test)


def python(kind):
    return [sys.executable, '-u', PROGRAM, kind]
