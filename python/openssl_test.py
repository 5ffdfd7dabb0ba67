"""Lockstep's OpenSSL and that of Python's `ssl` in one process: TLS of both, before, while and after ranks exchange what is protected."""

import array
import os
import ssl
import subprocess
import sys
import threading
import unittest

os.environ['LOCKSTEP_TRANSPORT'] = 'tcp'
os.environ['LOCKSTEP_SECURITY_LOCAL'] = '1'

import lockstep  # pylint: disable=wrong-import-position
from lockstep import run  # pylint: disable=wrong-import-position

# Of two ranks, for their handshakes.
SCRIPT = '''
import array
with lockstep.init(timeout_ms=60_000) as communicator:
    assert 'security: authenticate' in communicator.describe()
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    x = array.array('f', [1]) * 1000
    communicator.all_reduce(x)
    print(set(x), ssl.OPENSSL_VERSION)
'''


def talk():
    """A TLS connection of this process with itself, without a certificate: anonymous ECDH. What the server has heard."""
    sides = []
    for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers('AECDH-AES256-SHA:@SECLEVEL=0')
        sides.append(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = sides[0].wrap_bio(to_client, to_server)
    server = sides[1].wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            break
    client.write(b'between us')
    return server.read()


BEFORE = talk()
communicator = lockstep.init(timeout_ms=60_000)
RANK, SIZE = communicator.rank, communicator.size


def step(count=100_000):
    """The sum over all ranks, as many times as there are elements."""
    x = array.array('f', [RANK + 1.0]) * count
    communicator.all_reduce(x)
    return set(x)


class OpenSSL(unittest.TestCase):

    def test_it_is_on(self):
        self.assertIn('security: authenticate', communicator.describe())

    def test_before_and_after(self):
        self.assertEqual(BEFORE, b'between us')
        self.assertEqual(step(), {3.0})
        self.assertEqual(talk(), b'between us')
        self.assertEqual(step(), {3.0})

    def test_at_the_same_time(self):
        heard = []
        talking = threading.Thread(target=lambda: heard.extend(talk() for _ in range(200)))
        talking.start()
        for _ in range(50):
            self.assertEqual(step(), {3.0})
        talking.join(60)
        self.assertEqual(heard, [b'between us'] * 200)

    def test_other_worlds_come_and_go_meanwhile(self):
        for _ in range(3):
            with communicator.duplicate() as another:
                x = array.array('f', [1])
                another.all_reduce(x)
                self.assertEqual(x[0], 2)
                self.assertEqual(talk(), b'between us')

    def test_either_may_be_imported_first(self):
        for imports in ('import ssl, lockstep\n', 'import lockstep, ssl\n'):
            with self.subTest(imports):
                done = subprocess.run([run.launcher(), '-n', '2', sys.executable, '-c', imports + SCRIPT], capture_output=True, text=True,
                                      timeout=120, check=False)
                self.assertEqual((done.returncode, sorted(done.stdout.splitlines())),
                                 (0, [f'[{rank}] {{2.0}} {ssl.OPENSSL_VERSION}' for rank in range(2)]), done.stderr)


if __name__ == '__main__':
    unittest.main()
