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
import fi_pingpong
import implementations
import report
import runners
from report import Comparison, Result

MEGA = 1 << 20


def three_rounds():
    """The second peer was dropped after the first size."""
    return Comparison('shm', 2, [8, MEGA], [
        Result('lockstep', 'lockstep', 'about lockstep', rounds={8: [2e-7] * 3, MEGA: [0.02] * 3}, calls={8: 10, MEGA: 1}),
        Result('direct', 'limit', 'about direct', rounds={8: [1e-7, 2e-7, 4e-7], MEGA: [0.02, 0.01, 0.005]}, calls={8: 10, MEGA: 1}),
        Result('peer a', 'peer', 'about peer a', 'bbr', rounds={8: [1e-6] * 3, MEGA: [0.04] * 3}, calls={8: 10, MEGA: 1}),
        Result('peer b', 'peer', 'about peer b', dropped='at 1M: it died', rounds={8: [5e-7] * 3}, calls={8: 10})])


def rows(table):
    return [line.split() for line in table.splitlines() if not line.startswith('#')]


class Numbers(unittest.TestCase):
    def test_quartiles_lie_between_two_measurements_linearly(self):
        self.assertEqual(report.quartiles([5, 1, 4, 2, 3]), [2, 3, 4])
        self.assertEqual(report.quartiles([10, 20]), [12.5, 15, 17.5])
        self.assertEqual(report.quartiles([7]), [7, 7, 7])

    def test_ratios_are_taken_round_by_round(self):
        ours = Result('a', 'lockstep', rounds={8: [2, 30, 4]})
        self.assertEqual(report.ratio(ours, Result('b', 'peer', rounds={8: [1, 10, 4]}), 8), [1.5, 2, 2.5])
        self.assertEqual(report.ratio(ours, Result('b', 'peer', rounds={8: [1]}), 8), [2, 2, 2])  # of the rounds that both saw
        self.assertIsNone(report.ratio(ours, Result('b', 'peer'), 8))
        self.assertIsNone(Result('b', 'peer').median(8))

    def test_the_fastest_peer_is_a_peer_and_has_times(self):
        peers = [Result('limit', 'limit', rounds={8: [1]}), Result('b', 'peer', rounds={8: [4]}), Result('c', 'peer', rounds={8: [3]}),
                 Result('d', 'peer')]
        self.assertEqual(Comparison('tcp', 2, [8], peers).fastest_peer(8).name, 'c')
        self.assertIsNone(Comparison('tcp', 2, [8], []).fastest_peer(8))

    def test_bandwidth_is_that_of_all_reduce(self):
        self.assertEqual(Comparison('tcp', 2, [], []).bandwidth(1e9, 1), 1)
        self.assertEqual(Comparison('tcp', 4, [], []).bandwidth(1e9, 1), 1.5)

    def test_sizes_are_in_powers_of_1024(self):
        for text, size in (('0', 0), ('1000', 1000), ('3K', 3072), ('25M', 25 << 20), ('2G', 2 << 30)):
            self.assertEqual(report.parse_size(text), size)
            self.assertEqual(report.size_text(size), text)
        for text in ('', 'M', '64MB', '-8', '1.5M', ' 8', 'x'):
            with self.assertRaises(ValueError, msg=text):
                report.parse_size(text)


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
    def test_has_every_round_and_the_ratios(self):
        document = json.loads(json.dumps(report.to_json({'cpu': 'fast'}, ['gloo is not installed'], [three_rounds()])))
        self.assertEqual((document['facts'], document['missing']), ({'cpu': 'fast'}, ['gloo is not installed']))
        ours, limit, _, dropped = document['implementations']
        self.assertEqual((ours['transport'], ours['kind'], ours['dropped']), ('shm', 'lockstep', None))
        self.assertEqual(dropped['dropped'], 'at 1M: it died')
        self.assertEqual([row['bytes'] for row in document['rows'] if row['name'] == dropped['name']], [8])
        self.assertEqual((document['rows'][0]['ranks'], document['rows'][0]['lockstep_ratio']), (2, {}))
        row, = (row for row in document['rows'] if row['name'] == limit['name'] and row['bytes'] == MEGA)
        self.assertEqual((row['transport'], row['calls'], len(row['rounds_us'])), ('shm', 1, 3))
        self.assertAlmostEqual(row['time_us']['median'], 10000)
        self.assertAlmostEqual(row['lockstep_ratio']['lockstep']['median'], 2)
        self.assertAlmostEqual(row['busbw_gbps'], MEGA / 0.01 / 1e9)


class Plot(unittest.TestCase):
    def setUp(self):
        # 1 GB/s at both sizes; 0.1 and 10 GB/s. The axes run from x = 70 to 690 and from y = 380 (0.1 GB/s) to 40 (10 GB/s), in powers.
        self.comparison = Comparison('tcp', 2, [1000, 1_000_000], [
            Result('limit <&>', 'limit', rounds={1000: [1e-6], 1_000_000: [1e-3]}),
            Result('lockstep', 'lockstep', rounds={1000: [1e-5], 1_000_000: [1e-4]}), Result('gone', 'peer', dropped='at its start')])

    def test_lines_go_through_the_medians(self):
        svg = report.plot([self.comparison])
        self.assertIn('points="70.0,210.0 690.0,210.0"', svg)
        self.assertIn('points="70.0,380.0 690.0,40.0"', svg)
        self.assertEqual(svg.count('<polyline'), 2)

    def test_it_is_a_document_with_a_panel_for_each_comparison(self):
        svg = report.plot([self.comparison, self.comparison])
        self.assertTrue(svg.startswith('<svg xmlns=') and svg.endswith('</svg>\n'))
        self.assertIn('height="860"', svg)
        self.assertIn('all-reduce over TCP, 2 ranks', svg)
        self.assertEqual((svg.count('<g '), svg.count('</g>')), (2, 2))

    def test_names_are_escaped_and_kinds_differ(self):
        svg = report.plot([self.comparison])
        self.assertIn('>limit &lt;&amp;&gt;<', svg)
        self.assertIn('>gone (dropped)<', svg)
        # A line and its place in the legend each.
        self.assertEqual(svg.count('stroke-width="3"'), 2)
        self.assertEqual(svg.count('stroke-dasharray'), 2)

    def test_labels_that_would_overlap_are_left_out(self):
        svg = report.plot([Comparison('tcp', 2, [1024, 16 << 20, 20 << 20, 64 << 20], [])])
        for label, there in (('1K', True), ('16M', True), ('20M', False), ('64M', True)):
            self.assertEqual(f'>{label}<' in svg, there, label)

    def test_colours_that_come_again_are_dotted(self):
        many = [Result(str(i), 'peer', rounds={8: [1]}) for i in range(12)]
        self.assertEqual(report.plot([Comparison('tcp', 2, [8], many)]).count('stroke-dasharray="2 3"'), 2)

    def test_one_size_alone_has_a_place_and_none_has_axes(self):
        self.assertIn('points="380.0,', report.plot([Comparison('tcp', 2, [8], [Result('a', 'peer', rounds={8: [1]})])]))
        self.assertNotIn('<polyline', report.plot([Comparison('tcp', 2, [8, 16], [Result('a', 'peer')])]))


class Options(unittest.TestCase):
    def test_defaults(self):
        options = compare.parse_options([])
        self.assertEqual((options.peers, options.transports), (list(implementations.PEERS), ['shm', 'tcp']))
        self.assertEqual((options.sizes[0], options.sizes[-1], options.pin), (8, 64 << 20, True))
        options = compare.parse_options(['--peers', 'mpich,gloo,mpich', '--sizes=1K,8', '--nopin'])
        self.assertEqual((options.peers, options.sizes, options.pin), (['mpich', 'gloo'], [8, 1024], False))
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

    def test_versions_are_read_and_commands_to_install_name_packages(self):
        self.assertEqual(implementations.mpi_version('mpirun (Open MPI) 5.0.1\n\nReport bugs to ...\n'), ('openmpi', '5.0.1'))
        self.assertEqual(implementations.mpi_version('HYDRA build details:\n    Version:        4.0.2\n'), ('mpich', '4.0.2'))
        for text in ('', 'Intel(R) MPI Library 2021', 'HYDRA', 'OpenRTE'):
            self.assertIsNone(implementations.mpi_version(text), text)
        self.assertEqual(implementations.how_to_install('gloo'), 'apt-get install --no-install-recommends g++ libgloo-dev')


class Settings(unittest.TestCase):
    def peers(self, name, transport, with_malloc=False):
        runner = '/runner' if name in ('openmpi', 'mpich') else ''
        return implementations.peers(implementations.Peer(name, 'MPI 1', ['mpirun'], runner), transport, 4, with_malloc)

    def test_open_mpi_takes_the_transport_that_is_asked_for(self):
        tcp, = self.peers('openmpi', 'tcp')
        self.assertIn('--oversubscribe --bind-to none -n 4 --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo /runner',
                      ' '.join(tcp.command))
        self.assertEqual('--allow-run-as-root' in tcp.command, os.geteuid() == 0)
        self.assertTrue(tcp.starts_ranks)
        copy, cma = self.peers('openmpi', 'shm')
        self.assertIn('--mca btl self,vader --mca btl_vader_single_copy_mechanism none', ' '.join(copy.command))
        self.assertIn('--mca btl_vader_single_copy_mechanism cma', ' '.join(cma.command))

    def test_malloc_settings_make_more_columns_of_mpi_alone(self):
        mpich = self.peers('mpich', 'shm', with_malloc=True)
        self.assertEqual([one.name for one in mpich], ['mpich', 'mpich ucx', 'mpich m', 'mpich ucx m'])
        self.assertEqual(mpich[0].environment, {})
        self.assertEqual(mpich[2].environment['MALLOC_MMAP_THRESHOLD_'], '4000000000')
        self.assertEqual(len(self.peers('gloo', 'shm', with_malloc=True)), 3)

    def test_names_fit_the_table_and_differ(self):
        for transport in ('shm', 'tcp', 'ofi'):
            names = [one.name for one in implementations.lockstep('/runner', transport) +
                     implementations.limits('/runner', transport, 2, 'reno', 'tcp')]
            names += [one.name for name in implementations.PEERS if transport != 'ofi' for one in self.peers(name, transport, True)]
            self.assertEqual(len(names), len(set(names)))
            self.assertLessEqual(max(map(len, names)), 14)

    def test_more_than_a_pair_has_the_limits_that_are_for_it(self):
        self.assertEqual([one.name for one in implementations.limits('/runner', 'shm', 3, 'reno', '')], ['direct'])
        self.assertEqual(implementations.limits('/runner', 'tcp', 3, 'reno', ''), [])


class Pingpong(unittest.TestCase):
    def test_times_are_read_from_the_programs_table(self):
        heading = 'bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n'
        self.assertEqual(fi_pingpong.microseconds_in(
            heading + '1m      20      =20      40m         0.07s    617.93    1696.93       0.00\n'), 1696.93)
        with self.assertRaisesRegex(runners.RunnerError, 'told no time: bytes'):
            fi_pingpong.microseconds_in(heading)

    def test_the_next_run_lasts_as_long_as_it_should(self):
        group = fi_pingpong.PingpongGroup('tcp;ofi_rxm', pin=True)
        self.assertEqual(group.messages(8), 500)
        self.assertEqual(group.messages(1 << 30), 1)
        group.fastest[8] = 2**-16
        self.assertEqual(group.messages(8), 1 << 15)  # there and back in a second

    @unittest.skipUnless(implementations.fi_pingpong_installed(), 'fi_pingpong is not installed')
    def test_two_sides_connect_and_a_provider_that_there_is_not_is_an_error(self):
        self.assertGreater(fi_pingpong.PingpongGroup('tcp;ofi_rxm', pin=False).run(8, 1, runners.after(60))[0], 0)
        with self.assertRaises(runners.RunnerError):
            fi_pingpong.PingpongGroup('no-such-provider', pin=False).run(8, 1, runners.after(5))


if __name__ == '__main__':
    unittest.main()
