"""Lockstep's OpenSSL beside those of PyTorch, JAX and Python's `ssl` in one process, whichever is loaded first."""

import http.server
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

os.environ['LOCKSTEP_TRANSPORT'] = 'tcp'
os.environ['LOCKSTEP_SECURITY_LOCAL'] = '1'

import ranks
import torch

import lockstep.run

communicator = lockstep.init(timeout_ms=120_000)
RANK, SIZE = communicator.rank, communicator.size

# Of two ranks, for their handshakes.
SCRIPT = '''
import sys
for name in sys.argv[1].split():
    __import__(name)
import lockstep, ssl, torch
x = torch.ones(3)
with lockstep.init(timeout_ms=120_000) as communicator:
    assert 'security: authenticate' in communicator.describe()
    communicator.all_reduce(x)
ssl.create_default_context()
print(x.tolist())
'''
# Each rank of this test starts some of them.
ORDERS = ('ssl torch lockstep', 'lockstep torch ssl', 'torch lockstep ssl', 'lockstep ssl jax torch')[RANK::SIZE]


class Server:
    """HTTPS on this machine, with a certificate that openssl(1) makes."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.certificate, key = (str(pathlib.Path(self.folder.name, name)) for name in ('certificate', 'key'))
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2',
                        '-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost', '-keyout', key, '-out', self.certificate],
                       check=True, capture_output=True, timeout=60)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)

        class Handler(http.server.BaseHTTPRequestHandler):

            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'weights')

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.folder.cleanup()

    def get(self):
        context = ssl.create_default_context(cafile=self.certificate)
        with urllib.request.urlopen(f'https://localhost:{self.server.server_port}/', context=context, timeout=30) as answer:
            return answer.read()


def step():
    x = torch.full((100_000,), RANK + 1.0)
    communicator.all_reduce(x)
    return set(x.tolist())


class OpenSSL(unittest.TestCase):

    def test_https_while_ranks_exchange_tensors(self):
        self.assertIn('security: authenticate', communicator.describe())
        with Server() as server:
            self.assertEqual(server.get(), b'weights')
            self.assertEqual(step(), {3.0})
            got = []
            getting = threading.Thread(target=lambda: got.extend(server.get() for _ in range(20)))
            getting.start()
            for _ in range(50):
                self.assertEqual(step(), {3.0})
            getting.join(120)
            self.assertEqual(got, [b'weights'] * 20)
        self.assertEqual(step(), {3.0})

    def test_any_may_be_imported_first(self):
        for order in ORDERS:
            with self.subTest(order):
                done = subprocess.run([lockstep.run.launcher(), '-n', '2', sys.executable, '-c', SCRIPT, order], capture_output=True,
                                      text=True, timeout=300, check=False)
                self.assertEqual((done.returncode, sorted(done.stdout.splitlines())),
                                 (0, [f'[{rank}] [2.0, 2.0, 2.0]' for rank in range(2)]), done.stderr)


if __name__ == '__main__':
    ranks.main(2)
