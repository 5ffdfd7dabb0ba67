"""The back end's library: compiled once for all processes of a host, and what the error says if it cannot be compiled."""

import os
import sys
import tempfile
import unittest
from unittest import mock

import programs
from lockstep.torch import library

BEGIN = '''
import os, sys, datetime, torch, torch.distributed as dist
dist.init_process_group("lockstep", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=int(sys.argv[3]),
                        timeout=datetime.timedelta(seconds=float(sys.argv[4])))
x = torch.ones(1)
dist.all_reduce(x)
print(x.item())
'''


def ranks(size, timeout_s, script=BEGIN, caches=None, **environment):
    """The exit statuses and outputs of `size` ranks. caches: the folder of each rank for what is compiled."""
    with tempfile.TemporaryDirectory() as folder:
        return programs.run_together(
            [([sys.executable, '-c', script, os.path.join(folder, 'store'), str(rank), str(size), str(timeout_s)],
              {**environment, **({'XDG_CACHE_HOME': caches[rank]} if caches else {})}) for rank in range(size)], 600)


@unittest.skipIf(library.find() not in (None, library.cached_path()), 'the wheel has the library for this PyTorch')
class Compiled(unittest.TestCase):
    def test_once_for_all_ranks_of_a_host_and_outside_the_timeout(self):
        """Ranks 0 and 1 share a cache, which is empty; rank 2 has another one with the library. The compilation takes longer than the
        timeout."""
        with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as filled:
            os.makedirs(os.path.join(filled, 'lockstep'))
            os.symlink(library.build(), os.path.join(filled, 'lockstep', library.build().name))
            ends = ranks(3, 10, caches=[empty, empty, filled])
            self.assertEqual([(status, text.splitlines()[-1]) for status, text in ends], 3 * [(0, '3.0')], ends)
            self.assertEqual(''.join(text for _, text in ends).count('compiled the back end for PyTorch'), 1, ends)
            self.assertEqual({os.path.splitext(name)[1] for name in os.listdir(os.path.join(empty, 'lockstep'))}, {'.so', '.lock'})

    @unittest.skipUnless(os.geteuid() == 0, 'needs root')
    def test_a_library_that_another_user_may_write_is_not_used(self):
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, XDG_CACHE_HOME=cache):
            path = library.cached_path()
            path.parent.mkdir()
            path.touch()
            self.assertEqual(library.find(), path)
            path.chmod(0o666)
            self.assertIsNone(library.find())
            path.chmod(0o644)
            os.chown(path, 12345, 0)
            self.assertIsNone(library.find())

    def test_without_a_compiler(self):
        for compiler, message in (('no-such-compiler', r'no C\+\+ compiler .*install g\+\+'), ('false', 'could not be compiled')):
            with tempfile.TemporaryDirectory() as cache:
                (status, text), = ranks(1, 60, CXX=compiler, XDG_CACHE_HOME=cache)
            self.assertEqual(status, 1, text)
            self.assertRegex(text, f'lockstep.errors.Unavailable: the back end .*{message}')

    def test_a_rank_without_a_compiler_fails_all_ranks(self):
        with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as filled:
            os.makedirs(os.path.join(filled, 'lockstep'))
            os.symlink(library.build(), os.path.join(filled, 'lockstep', library.build().name))
            for status, text in ranks(2, 60, caches=[filled, empty], CXX='no-such-compiler'):
                self.assertEqual(status, 1, text)
                self.assertRegex(text, r'lockstep.errors.Unavailable: .*no C\+\+ compiler .*install g\+\+')
                self.assertNotIn('Timed out', text)

    def test_a_rank_that_is_killed_while_it_compiles_is_named_after_the_timeout(self):
        with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as filled:
            os.makedirs(os.path.join(filled, 'lockstep'))
            os.symlink(library.build(), os.path.join(filled, 'lockstep', library.build().name))
            compiler = os.path.join(empty, 'c++')
            with open(compiler, 'w', opener=lambda path, flags: os.open(path, flags, 0o700)) as file:
                file.write('#!/bin/sh\nkill -9 $PPID\n')
            (status, text), (killed, _) = ranks(2, 1.5, caches=[filled, empty], CXX=compiler)
        self.assertEqual((status, killed), (1, -9), text)
        self.assertRegex(text, 'DistBackendError: lockstep: Timed out waiting: .*rank 1')

    def test_without_a_cache(self):
        """The home folder is unknown, or the cache's name cannot be a folder."""
        for environment in ({'XDG_CACHE_HOME': '', 'HOME': '~'}, {'XDG_CACHE_HOME': '/' + 300 * 'x'}):
            (status, text), = ranks(1, 60, **environment)
            self.assertEqual(status, 1, text)
            self.assertRegex(text, 'lockstep.errors.Unavailable: .*set XDG_CACHE_HOME|Set XDG_CACHE_HOME')


class Setup(unittest.TestCase):
    def test_a_rank_that_does_not_appear_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, '-c', BEGIN, os.path.join(folder, 'store'), '0', '2', '1.5']
            status, text = programs.run(command, 120)
        self.assertEqual(status, 1, text)
        self.assertRegex(text, 'DistBackendError: lockstep: Timed out waiting: .*rank 1')

    def test_lockstep_check_tells_which_library_there_is_or_why_there_is_none(self):
        command = [sys.executable, '-m', 'lockstep.check']
        (good, page), (bad, faulty) = programs.run_together([(command, {}), (command, {'XDG_CACHE_HOME': '/' + 300 * 'x'})], 600)
        self.assertEqual((good, bad), (0, 1), page + faulty)
        self.assertRegex(page, '(?m)^torch: *back end compiled on this machine and cached; made in')
        self.assertRegex(faulty, '(?m)^torch: *FAULT.*XDG_CACHE_HOME')

    def test_timeouts_that_are_not_positive(self):
        (status, text), = ranks(1, -1)
        self.assertEqual(status, 1, text)
        self.assertIn('ValueError: lockstep: a timeout of -1.0 s; it must be positive', text)

    def test_the_default_timeout_gives_way_to_the_environments(self):
        wrap = 'import lockstep.torch; net = lockstep.torch.DistributedDataParallel(torch.nn.Linear(1, 1))'
        for before, call, error in (('', 'dist.all_reduce(x)', 'Timed out waiting: .*rank 1 .*has not called it'),
                                    ('', 'dist.monitored_barrier()', r'Rank 0 timed out in monitoredBarrier after \d{3} ms: Rank 1 failed'),
                                    (wrap, 'net(x).sum().backward()', 'DEADLINE')):
            script = BEGIN.replace('timeout=datetime.timedelta(seconds=float(sys.argv[4]))', '').replace(
                'dist.all_reduce(x)', f'{before}\nsys.argv[2] == "0" and {call}\nos.read(0, 1)')
            (status, text), _ = ranks(2, 0, script, LOCKSTEP_TIMEOUT_MS='500')
            self.assertEqual(status, 1, text)
            self.assertRegex(text, error)


if __name__ == '__main__':
    unittest.main()
