"""The warning of a rank that uses a slow link although a fast one leads to rank 0's host. Two network namespaces are two hosts.
tools/distant_link.py is their slow link (100 Mbit/s); a pair of veth is the fast one (10000 Mbit/s). Needs root."""

import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = 'import lockstep\nwith lockstep.init() as communicator: communicator.barrier()\n'


def ip(*words):
    subprocess.run(['ip', *words], check=True, capture_output=True)


class SlowLink(unittest.TestCase):

    def setUp(self):
        self.name = f'lockstep-link-{os.getpid()}'
        hosts = [f'{self.name}-{host}' for host in (0, 1)]
        try:
            os.close(os.open('/dev/net/tun', os.O_RDWR))
            for host in hosts:
                ip('netns', 'add', host)
                self.addCleanup(subprocess.run, ['ip', 'netns', 'del', host], check=False)
            # The indices differ. If they were equal, the kernel would report up to a second later that the link is up.
            ip('link', 'add', 'fast0', 'index', '9', 'netns', hosts[0], 'type', 'veth', 'peer', 'name', 'fast0', 'netns', hosts[1])
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f'no namespaces or no TAP devices here: {error}')
        cable = subprocess.Popen([sys.executable, 'tools/distant_link.py', '0', '0', '1', *(f'{host}/slow0' for host in hosts)],
                                 text=True, stdout=subprocess.PIPE)
        self.addCleanup(cable.communicate)
        self.addCleanup(cable.kill)
        self.assertEqual(cable.stdout.readline(), 'ready\n')
        # The slow link comes first in each host, where it is chosen.
        for host, namespace in enumerate(hosts):
            for link, network in (('slow0', '10.78.0'), ('fast0', '10.79.0')):
                ip('-n', namespace, 'address', 'add', f'{network}.{host + 1}/24', 'dev', link)
                ip('-n', namespace, 'link', 'set', link, 'up')
            ip('-n', namespace, 'link', 'set', 'lo', 'up')

    def output_of_rank_1(self, **variables):
        with tempfile.NamedTemporaryFile('w') as secret:
            secret.write('0123456789abcdef' * 4)
            secret.flush()
            ranks = []
            for rank in (0, 1):
                environment = {name: value for name, value in os.environ.items() if not name.startswith('LOCKSTEP_')}
                environment.update(LOCKSTEP_RANK=str(rank), LOCKSTEP_WORLD_SIZE='2', LOCKSTEP_LOCAL_RANK='0', LOCKSTEP_LOCAL_WORLD_SIZE='1',
                                   LOCKSTEP_STORE='tcp://10.78.0.1:4711', LOCKSTEP_SECRET_FILE=secret.name, **variables)
                environment['PYTHONPATH'] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
                ranks.append(subprocess.Popen(['ip', 'netns', 'exec', f'{self.name}-{rank}', sys.executable, '-c', PROGRAM],
                                              env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
            outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        return outputs[1]

    def test_it_is_named_with_the_faster_one(self):
        self.assertIn("rank 1 reaches rank 0's host by slow0 10.78.0.2 (100 Mbit/s), while fast0 10.79.0.2 (10000 Mbit/s) leads there too: "
                      'set LOCKSTEP_INTERFACE=fast0 on all ranks', self.output_of_rank_1())

    def test_nothing_is_said_of_a_choice_of_the_users(self):
        self.assertNotIn('leads there too', self.output_of_rank_1(LOCKSTEP_INTERFACE='fast0'))
        self.assertNotIn('leads there too', self.output_of_rank_1(LOCKSTEP_INTERFACE='slow0'))


if __name__ == '__main__':
    unittest.main()
