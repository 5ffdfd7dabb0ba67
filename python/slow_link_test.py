"""The warning of a rank that uses a slow link although a fast one leads to rank 0's host. Two network namespaces are two hosts. A program
between two TAP devices is their slow link, whose speed is set to 100 Mbit/s; a pair of veth is the fast one (10000 Mbit/s). Needs root."""

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

PROGRAM = 'import lockstep\nwith lockstep.init() as communicator: communicator.barrier()\n'
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454ca, 2, 0x1000
SIOCETHTOOL, ETHTOOL_SSET = 0x8946, 2


def ip(*words):
    subprocess.run(['ip', *words], check=True, capture_output=True)


def tap(name):
    device = os.open('/dev/net/tun', os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack('16sH22x', name.encode(), IFF_TAP | IFF_NO_PI))
    settings = ctypes.create_string_buffer(struct.pack('IIIH30x', ETHTOOL_SSET, 0, 0, 100))  # ethtool_cmd: 100 Mbit/s
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack('16sP', name.encode(), ctypes.addressof(settings)) + bytes(16))
    return device


def forward(ends, stop):
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    while True:
        ready, _, _ = select.select([*ends, stop], [], [])
        if stop in ready:
            return
        for end in ready:
            try:
                os.write(other[end], os.read(end, 65536))
            except OSError:
                pass  # one of the two is down


class SlowLink(unittest.TestCase):

    def setUp(self):
        self.name = f'lockstep-link-{os.getpid()}'
        hosts = [f'{self.name}-{host}' for host in (0, 1)]
        try:
            for host in hosts:
                ip('netns', 'add', host)
                self.addCleanup(subprocess.run, ['ip', 'netns', 'del', host], check=False)
            taps = [tap(f'ls{os.getpid()}{host}') for host in (0, 1)]
            ip('link', 'add', f'lf{os.getpid()}0', 'type', 'veth', 'peer', 'name', f'lf{os.getpid()}1')
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f'no namespaces or no TAP devices here: {error}')
        # The slow link comes first in each host, where it is chosen.
        for host, namespace in enumerate(hosts):
            for link, network in (('slow0', '10.78.0'), ('fast0', '10.79.0')):
                ip('link', 'set', f'l{link[0]}{os.getpid()}{host}', 'netns', namespace, 'name', link)
                ip('-n', namespace, 'address', 'add', f'{network}.{host + 1}/24', 'dev', link)
                ip('-n', namespace, 'link', 'set', link, 'up')
            ip('-n', namespace, 'link', 'set', 'lo', 'up')
        stop, self.stop = os.pipe()
        thread = threading.Thread(target=forward, args=(taps, stop))
        thread.start()

        def end():
            os.write(self.stop, b'x')
            thread.join()
            for descriptor in (*taps, stop, self.stop):
                os.close(descriptor)
        self.addCleanup(end)

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
