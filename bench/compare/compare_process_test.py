#!/usr/bin/env python3
"""Comparisons with runners that misbehave: whatever one does, it is dropped in bounded time with a reason, its processes are gone, and
the others are measured in every round. Then the program from end to end, without peers."""

import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path('bench/compare').resolve()))
import compare
import runners
from implementations import Implementation
from report import Size


PR_SET_CHILD_SUBREAPER = 36


def fake(how, **settings):
    return Implementation(how, 'peer', '', ['bench/compare/fake_runner'], [how], **settings)


# Starts the ranks itself, as mpiexec does, each in a session of its own, and ends when one of them fails.
LAUNCHER = '''
import os, subprocess, sys
ranks = [subprocess.Popen(sys.argv[1:], start_new_session=True, stdin=subprocess.DEVNULL if rank else None,
                          env={**os.environ, 'LOCKSTEP_RANK': str(rank), 'LOCKSTEP_WORLD_SIZE': '2'}) for rank in (0, 1)]
sys.exit(3 if any(os.wait()[1] for _ in ranks) else 0)
'''


def launched(how):
    return Implementation(how, 'peer', '', [sys.executable, '-c', LAUNCHER, 'bench/compare/fake_runner'], [how], starts_ranks=True)


class Misbehaviour(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.options = compare.parse_options(['--sizes=8,4K,8again', '--rounds=3', '--patience_s=4'])
        self.options.round_ms = 0.05  # a few calls, which a busy machine can do in time

    def outcome(self, implementation):
        """Of a comparison between this implementation and two that behave, which must not be affected."""
        compared = [fake('good'), implementation, fake('good')]
        results = compare.Compared(self.options, 'tcp', self.folder, compared).run().results
        for good in (results[0], results[2]):
            self.assertEqual(good.dropped, '')
            self.assertEqual([len(seconds) for seconds in good.rounds.values()], [3, 3, 3])
        # Nothing is left: what lost its parent comes to this process, and has been killed.
        deadline = runners.after(5)
        with self.assertRaises(ChildProcessError):
            while runners.left_ms(deadline):
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)
        return results[1]

    def test_every_implementation_is_measured_in_every_round(self):
        good = self.outcome(fake('good'))
        self.assertEqual((good.dropped, good.congestion_control), ('', 'none'))
        for size in (Size(8), Size(8, again=True), Size(4096)):
            self.assertGreaterEqual(good.calls[size], 1)
            self.assertEqual(len(good.rounds[size]), 3)
            self.assertGreater(min(good.rounds[size]), 0)

    def test_sizes_above_its_limit_are_not_asked_of_it(self):
        small = self.outcome(fake('good', bytes_max=8))
        self.assertEqual((small.dropped, list(small.rounds)), ('', [Size(8), Size(8, again=True)]))

    def test_whatever_it_does_it_is_dropped_with_the_reason(self):
        for how, reason in (
                ('wrong', '^at 8: 1 elements are wrong$'),
                ('fails', 'at 8: rank 1: out of ink'),
                # Rank 0 waits for rank 1 in the meantime.
                ('dies', r'at 8: the launcher exited with status \d+; it wrote: .*last words; .*rank 1 .* was killed by signal 6'),
                ('hangs', "at 8: ranks? (0, )?1 did not answer 'run 8 3' in time"),
                ('deaf', "did not answer 'run 8 3' in time"),  # to SIGTERM: it is killed
                ('forks', '^$'),  # behaves, and leaves a process that must not outlive it
                ('refuses', '^at its start: rank 1: no paper$')):
            with self.subTest(how), tempfile.TemporaryDirectory() as self.folder:
                self.assertRegex(self.outcome(fake(how)).dropped, reason)

    def test_who_does_not_start_in_time_is_dropped(self):
        self.options.start_patience_s = 5  # rank 0 must have started
        self.assertEqual(self.outcome(fake('silent')).dropped, 'at its start: rank 1 did not start in time')

    def test_a_launcher_that_starts_the_ranks_itself_is_measured(self):
        good = self.outcome(launched('good'))
        self.assertEqual((good.dropped, [len(seconds) for seconds in good.rounds.values()]), ('', [3, 3, 3]))

    def test_ranks_that_a_launcher_put_into_sessions_of_their_own_are_ended_too(self):
        for how in ('hangs', 'deaf'):
            with self.subTest(how), tempfile.TemporaryDirectory() as self.folder:
                self.assertRegex(self.outcome(launched(how)).dropped, 'did not answer')

    def test_the_death_of_a_launchers_rank_drops_it_with_its_last_words(self):
        self.assertRegex(self.outcome(launched('dies')).dropped, '^at 8: the launcher exited with status 3; it wrote: .*last words')

    def test_a_program_that_is_not_there_is_the_reason(self):
        missing = Implementation('missing', 'peer', '', ['./no-such-runner'])
        self.assertRegex(self.outcome(missing).dropped, 'no-such-runner')


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))

    def run_compare(self, *words):
        done = subprocess.run(['bench/compare/compare', '--peers=none', '--rounds=2', '--round_ms=2', *words], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, env={**os.environ, 'TMPDIR': str(self.folder)})
        return done.returncode, done.stdout

    def table(self, *words):
        status, output = self.run_compare(*words)
        self.assertEqual(status, 0, output)
        self.assertNotIn('# dropped', output)
        return output

    def rows(self, output, pattern, number):
        self.assertEqual(len(re.findall(f'^ +{pattern} *$', output, re.MULTILINE)), number, output)

    def test_over_tcp(self):
        written = self.folder / 'results.json'
        output = self.table('--transports=tcp', '--sizes=8,1000,256K', f'--json={written}')
        # Medians and ratios; 1,000 bytes and 256 KiB are not powers of each other. No ping-pong of 256 KiB.
        self.rows(output, '8( +[0-9.]+){3}', 1)
        self.rows(output, '256K( +[0-9.]+){2} +-', 1)
        self.rows(output, r'1000( +[0-9.]+ \[[0-9.]+-[0-9.]+\]){2}', 1)
        self.assertEqual(json.loads(written.read_text())['rows'][0]['transport'], 'tcp')
        # Nothing else is left.
        self.assertEqual(list(self.folder.iterdir()), [written])

    def test_over_libfabric_beside_bare_sockets(self):
        output = self.table('--transports=ofi', '--sizes=8,8again,256K')
        self.rows(output, '8( +[0-9.]+){3}', 1)
        self.rows(output, '8again( +[0-9.]+){3}', 1)

    def test_over_shared_memory_for_more_ranks_than_a_pair(self):
        # Four kinds of Lockstep, each beside all others.
        output = self.table('--transports=shm', '--nproc=3', '--sizes=8,64K')
        self.rows(output, '64K( +[0-9.]+){4}', 1)
        self.rows(output, r'64K( +[0-9.]+ \[[0-9.]+-[0-9.]+\]){3}', 4)

    def test_wrong_usage_is_told_before_anything_starts(self):
        for text, *words in (("no peer 'nccl'", '--peers=nccl'), ("no transport 'ib'", '--transports=ib'), ('no vector', '--sizes=6'),
                             ('1 ranks cannot be compared', '--nproc=1'), ('a round at least', '--rounds=0')):
            status, output = self.run_compare(*words)
            self.assertEqual(status, 2)
            self.assertIn(text, output)


if __name__ == '__main__':
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    unittest.main()
