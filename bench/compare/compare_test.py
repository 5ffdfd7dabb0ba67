#!/usr/bin/env python3
"""What compare.py says of given times, and which peers it finds: among programs that only pretend, in a folder that is all of PATH."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path('bench/compare').resolve()))
import compare
import implementations
import report
from report import Comparison, Result, Size

EIGHT = Size(8)
MEGA = Size(1 << 20)


def three_rounds():
    """The second peer was dropped after the first size."""
    return Comparison('shm', 2, [EIGHT, MEGA], [
        Result('lockstep', 'lockstep', 'about lockstep', rounds={EIGHT: [2e-7] * 3, MEGA: [0.02] * 3}, calls={EIGHT: 10, MEGA: 1}),
        Result('direct', 'limit', 'about direct', rounds={EIGHT: [1e-7, 2e-7, 4e-7], MEGA: [0.02, 0.01, 0.005]},
               calls={EIGHT: 10, MEGA: 1}),
        Result('peer a', 'peer', 'about peer a', 'bbr', rounds={EIGHT: [1e-6] * 3, MEGA: [0.04] * 3}, calls={EIGHT: 10, MEGA: 1}),
        Result('peer b', 'peer', 'about peer b', dropped='at 1M: it died', rounds={EIGHT: [5e-7] * 3}, calls={EIGHT: 10})])


def rows(table):
    return [line.split() for line in table.splitlines() if not line.startswith('#')]


class Numbers(unittest.TestCase):
    def test_quartiles_lie_between_two_measurements_linearly(self):
        self.assertEqual(report.quartiles([5, 1, 4, 2, 3]), [2, 3, 4])
        self.assertEqual(report.quartiles([10, 20]), [12.5, 15, 17.5])
        self.assertEqual(report.quartiles([7]), [7, 7, 7])

    def test_ratios_are_taken_round_by_round(self):
        ours = Result('a', 'lockstep', rounds={EIGHT: [2, 30, 4]})
        self.assertEqual(report.ratio(ours, Result('b', 'peer', rounds={EIGHT: [1, 10, 4]}), EIGHT), [1.5, 2, 2.5])
        self.assertEqual(report.ratio(ours, Result('b', 'peer', rounds={EIGHT: [1]}), EIGHT), [2, 2, 2])  # of the rounds that both saw
        self.assertIsNone(report.ratio(ours, Result('b', 'peer'), EIGHT))
        self.assertIsNone(Result('b', 'peer').median(EIGHT))

    def test_the_fastest_peer_is_a_peer_and_has_times(self):
        peers = [Result('limit', 'limit', rounds={EIGHT: [1]}), Result('b', 'peer', rounds={EIGHT: [4]}),
                 Result('c', 'peer', rounds={EIGHT: [3]}),
                 Result('d', 'peer')]
        self.assertEqual(Comparison('tcp', 2, [EIGHT], peers).fastest_peer(EIGHT).name, 'c')
        self.assertIsNone(Comparison('tcp', 2, [EIGHT], []).fastest_peer(EIGHT))

    def test_sizes_are_in_powers_of_1024(self):
        for text, size in (('0', Size(0)), ('1000', Size(1000)), ('3K', Size(3072)), ('25M', Size(25 << 20)), ('2G', Size(2 << 30)),
                           ('8again', Size(8, again=True)), ('1Kagain', Size(1024, again=True))):
            self.assertEqual(Size.parse(text), size)
            self.assertEqual(str(size), text)
        self.assertLess(EIGHT, Size(8, again=True))
        for text in ('', 'M', '64MB', '-8', '1.5M', ' 8', 'x', 'again', '8againK'):
            with self.assertRaises(ValueError, msg=text):
                Size.parse(text)


class Table(unittest.TestCase):
    def test_has_medians_and_then_ratios_with_quartiles(self):
        self.assertEqual(rows(report.table(three_rounds())), [
            ['8', '0.20', '0.20', '1.00', '0.50'], ['1M', '20000', '10000', '40000', '-'],
            ['8', '1.00', '[0.75-1.50]', '0.20', '[0.20-0.20]', '0.40', '[0.40-0.40]*'],
            ['1M', '2.00', '[1.50-3.00]', '0.50', '[0.50-0.50]*', '-']])

    def test_says_who_took_part_and_who_was_dropped(self):
        table = report.table(three_rounds())
        for text in ('shared memory, 2 ranks', 'median of 3 rounds', '#   lockstep       about lockstep\n',
                     '#   direct         limit: about direct\n', '#   peer a         peer: about peer a; its connections used bbr\n',
                     '# dropped: peer b at 1M: it died\n'):
            self.assertIn(text, table)

    def test_each_kind_of_lockstep_that_has_times_has_ratios(self):
        comparison = three_rounds()
        self.assertNotIn('time of direct /', report.table(comparison))
        comparison.results[1].kind = 'lockstep'
        self.assertEqual(len(rows(report.table(comparison))), 6)
        comparison.results[0].rounds = comparison.results[1].rounds = {}
        self.assertEqual(rows(report.table(comparison)), [['8', '-', '-', '1.00', '0.50'], ['1M', '-', '-', '40000', '-']])

    def test_facts_are_a_line_each(self):
        self.assertEqual(report.facts_text({'cpu': 'fast', 'ranks': '2'}), '# cpu: fast\n# ranks: 2\n')


class Json(unittest.TestCase):
    def test_has_every_round(self):
        document = json.loads(json.dumps(report.to_json({'cpu': 'fast'}, [three_rounds()])))
        self.assertEqual(document['facts'], {'cpu': 'fast'})
        self.assertEqual([row['bytes'] for row in document['rows'] if row['name'] == 'peer b'], [8])  # which was dropped
        row, = (row for row in document['rows'] if row['name'] == 'direct' and row['bytes'] == MEGA.bytes)
        self.assertEqual((row['transport'], row['ranks'], row['calls'], len(row['rounds_us'])), ('shm', 2, 1, 3))
        self.assertAlmostEqual(row['time_us']['median'], 10000)


class Options(unittest.TestCase):
    def test_defaults(self):
        options = compare.parse_options([])
        self.assertEqual((options.peers, options.transports), (list(implementations.PEERS), ['shm', 'tcp']))
        self.assertEqual((options.sizes[:2], options.sizes[-1]), ([EIGHT, Size(8, again=True)], Size(64 << 20)))
        options = compare.parse_options(['--peers', 'mpich,gloo,mpich', '--sizes=1K,8'])
        self.assertEqual((options.peers, options.sizes), (['mpich', 'gloo'], [EIGHT, Size(1024)]))
        self.assertEqual(compare.parse_options(['--peers=none']).peers, [])


class FindPeer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.addCleanup(os.environ.update, PATH=os.environ['PATH'])
        os.environ['PATH'] = self.folder

    def make(self, name, script):
        path = pathlib.Path(self.folder, name)
        path.write_text(f'#!/bin/sh\n{script}\n')
        path.chmod(0o700)

    def find(self, name):
        return implementations.find_peer(name, '/sources', self.folder)

    def test_without_programs_nothing_is_installed(self):
        for name in ('gloo', 'openmpi', 'mpich'):
            with self.assertRaises(implementations.NotInstalled, msg=name):
                self.find(name)

    def test_each_mpi_is_found_under_its_debian_name(self):
        self.make('mpirun.openmpi', "echo 'mpirun.openmpi (OpenRTE) 4.1.4'")
        self.make('mpicc.openmpi', 'exit 0')
        peer = self.find('openmpi')
        self.assertEqual((peer.version, peer.command, peer.runner),
                         ('Open MPI 4.1.4', ['mpirun.openmpi'], f'{self.folder}/openmpi_runner'))
        with self.assertRaises(implementations.NotInstalled):
            self.find('mpich')

    def test_a_plain_mpirun_is_asked_which_it_is(self):
        self.make('mpirun', r"printf 'HYDRA build details:\n    Version:            4.0.2\n'")
        self.make('mpicc', 'exit 0')
        self.assertEqual(self.find('mpich').version, 'MPICH 4.0.2')
        with self.assertRaises(implementations.NotInstalled):
            self.find('openmpi')

    def test_a_compiler_that_fails_is_not_the_same_as_not_installed(self):
        self.make('mpirun', "echo 'mpirun (Open MPI) 5.0.1'")
        self.make('mpicc', "echo 'no mpi.h' >&2; exit 3")
        with self.assertRaisesRegex(implementations.DoesNotWork, 'exited with status 3: no mpi.h'):
            self.find('openmpi')
        # Nor is one that is not there.
        self.make('mpirun.mpich', r"printf 'HYDRA build details:\n    Version: 4.0.2\n'")
        with self.assertRaisesRegex(implementations.NotInstalled, 'mpicc.mpich'):
            self.find('mpich')

    def test_gloo_is_found_by_its_header(self):
        self.make('g++', 'exit 0')
        peer = self.find('gloo')
        self.assertEqual((peer.version, peer.command), ('Gloo of unknown version', [f'{self.folder}/gloo_runner']))  # no dpkg-query

    def test_pytorch_is_there_when_python_can_import_it(self):
        self.make('python3', 'echo 1.13.1')
        self.make('cc', 'exit 0')
        peer = self.find('pytorch')
        self.assertEqual((peer.version, peer.command), ('PyTorch 1.13.1 over Gloo', ['python3', '/sources/torch_runner.py']))

    def test_other_mpis_are_none_and_commands_to_install_name_packages(self):
        for text in ('', 'Intel(R) MPI Library 2021', 'HYDRA', 'OpenRTE'):
            self.assertIsNone(implementations.mpi_version(text), text)
        self.assertEqual(implementations.how_to_install('gloo'), 'apt-get install --no-install-recommends g++ libgloo-dev')


class Settings(unittest.TestCase):
    def peers(self, name, transport):
        runner = '/runner' if name in ('openmpi', 'mpich') else ''
        return implementations.peers(implementations.Peer(name, 'MPI 1', ['mpirun'], runner), transport, 4)

    def test_open_mpi_takes_the_transport_that_is_asked_for(self):
        tcp, _ = self.peers('openmpi', 'tcp')
        self.assertIn('--oversubscribe --bind-to none -n 4 --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo /runner',
                      ' '.join(tcp.command))
        self.assertEqual('--allow-run-as-root' in tcp.command, os.geteuid() == 0)
        self.assertTrue(tcp.starts_ranks)
        copy, cma, *_ = self.peers('openmpi', 'shm')
        self.assertIn('--mca btl self,vader --mca btl_vader_single_copy_mechanism none', ' '.join(copy.command))
        self.assertIn('--mca btl_vader_single_copy_mechanism cma', ' '.join(cma.command))

    def test_malloc_settings_make_more_columns_of_mpi_alone(self):
        mpich = self.peers('mpich', 'shm')
        self.assertEqual([one.name for one in mpich], ['mpich', 'mpich ucx', 'mpich m', 'mpich ucx m'])
        self.assertEqual(mpich[0].environment, {})
        self.assertEqual(mpich[2].environment['MALLOC_MMAP_THRESHOLD_'], '4000000000')
        self.assertEqual(len(self.peers('gloo', 'shm')), 3)

    def test_names_fit_the_table_and_differ(self):
        for transport in ('shm', 'tcp', 'ofi'):
            names = [one.name for one in implementations.lockstep('/runner', transport) +
                     implementations.limits('/runner', transport, 2)]
            names += [one.name for name in implementations.PEERS if transport != 'ofi' for one in self.peers(name, transport)]
            self.assertEqual(len(names), len(set(names)))
            self.assertLessEqual(max(map(len, names)), 14)

    def test_more_than_a_pair_has_no_limits(self):
        for transport in ('shm', 'tcp', 'ofi'):
            self.assertEqual(implementations.limits('/runner', transport, 3), [])


if __name__ == '__main__':
    unittest.main()
