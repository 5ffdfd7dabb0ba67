#!/usr/bin/env python3
"""The secrets of a job and of its world, and the keys that follow from them, are found nowhere but where they belong: not in what the job
writes, not in the arguments and environments of its processes, not in their memory but for what is left out of core files. And no other
user gets at them.

Method: two ranks train, with all that there is to log and to trace, run into an error and describe themselves. While they train, all of it
is searched for the secrets as bytes, in hex and in Base64, and for the pre-shared key of every purpose and level. What is not known
otherwise is read from the memory in which ranks keep secrets. Values that are planted on purpose are found, and so is the key of a
handshake that is under way: it shows that the keys are computed as the library does.
"""

import array
import base64
import hashlib
import hmac
import importlib.util
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

ANOTHER_USER = 12345
SETUP_TIMEOUT_MS = 10_000
PIECE_BYTES = 4 << 20
PAGE_BYTES = 4096
SECRET_BYTES = 32
# transport/secure/channel.h
MAGIC, VERSION = b'LKSP', 1
PURPOSES = {'store': 1, 'control': 2, 'data': 3, 'local': 4, 'fabric': 5}
LEVELS = {'authenticate': 1, 'encrypt': 2}


def planted(where):
    """32 bytes that a rank puts there on purpose."""
    return hashlib.sha256(where.encode()).digest()


# ---- A rank


class Files:
    """A store as torch's are, of which a file is a key."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def at(self, key):
        return self.folder / key.encode().hex()

    def set(self, key, value):
        new = self.folder / f'new.{os.getpid()}'
        new.write_bytes(value)
        new.rename(self.at(key))

    def get(self, key):
        return self.at(key).read_bytes()

    def check(self, keys):
        return all(self.at(key).exists() for key in keys)

    def delete_key(self, key):
        self.at(key).unlink(missing_ok=True)


def as_torchs(store):
    """What lockstep.torch makes of the store, without torch."""
    import lockstep  # pylint: disable=import-outside-toplevel

    torch = types.SimpleNamespace(distributed=types.SimpleNamespace(DistStoreError=TimeoutError))
    spec = importlib.util.spec_from_file_location('store', pathlib.Path(lockstep.__file__).parent / 'torch/store.py')
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {'torch': torch, 'torch.distributed': torch.distributed}):
        spec.loader.exec_module(module)
    return module.Store(store)


def train(folder):
    import lockstep  # pylint: disable=import-outside-toplevel

    rank = int(os.environ.get('LOCKSTEP_RANK') or os.environ['PMI_RANK'])
    kept = [planted(f'memory {rank}'), planted(f'memory {rank} in hex').hex()]
    print('planted:', planted('output').hex(), flush=True)
    ready, stop = pathlib.Path(folder, f'ready.{rank}'), pathlib.Path(folder, 'stop')
    store = as_torchs(Files(os.environ['FILES'])) if 'FILES' in os.environ else None
    try:
        communicator = lockstep.init(timeout_ms=60_000, setup_timeout_ms=SETUP_TIMEOUT_MS, store=store)
    except lockstep.Error as error:
        print('error:', error, flush=True)
        ready.touch()
        while not stop.exists():
            time.sleep(0.05)
        return
    print(communicator.describe(), flush=True)
    gradient = array.array('f', [1] * 1000)
    reducer = lockstep.Reducer(communicator, [('p', (1000,))])

    def step():
        reducer.begin_backward()
        reducer.mark_ready(0, gradient)
        reducer.end_backward()
    for _ in range(10):
        step()
    with communicator.duplicate() as another:
        try:
            another.receive(array.array('f', [0]), source=1 - rank, timeout=0.1)
        except lockstep.Error as error:
            print('error:', error, another.flight_records(), flush=True)
    print(communicator.flight_records(), flush=True)
    ready.touch()
    stops = array.array('f', [0])
    while not stops[0]:
        step()
        stops[0] = float(rank == 0 and stop.exists())
        communicator.all_reduce(stops)
    reducer.close()
    assert len(kept) == 2


# ---- The search


def forms_of(secret):
    text, hex_text = base64.b64encode(secret).rstrip(b'='), secret.hex().encode()
    # Behind an address, as a launcher's exchange has it: all characters that depend on the secret alone.
    within = {f'in hex in Base64, {offset}': base64.b64encode(bytes(offset) + hex_text).rstrip(b'=')[skipped:-1]
              for offset, skipped in enumerate((0, 2, 3))}
    return {'as bytes': secret, 'in hex': hex_text, 'in upper-case hex': hex_text.upper(), 'in Base64': text,
            'in URL-safe Base64': base64.urlsafe_b64encode(secret).rstrip(b'='), **within}


def key_of(secret, purpose, level):
    """The pre-shared key of a handshake: HKDF-Expand of RFC 5869 with SHA-384, of which it is one block."""
    return hmac.digest(secret, f'lockstep {VERSION} {purpose} {level}'.encode() + b'\1', 'sha384')


def keys_of(secret, whose):
    """{name: key}: what follows from a secret, and is worth as much for one purpose."""
    keys = {f'{whose} key for {purpose} at {level}': key_of(secret, purpose, level) for purpose in PURPOSES for level in LEVELS}
    # What TLS goes on with (RFC 8446, 7.1): HKDF-Extract.
    return {**keys, **{f'early secret of {name}': hmac.digest(bytes(48), key, 'sha384') for name, key in keys.items()}}


def job_of(launcher):
    """The process IDs of a launcher and all that has come from it."""
    parents = {}
    for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
        try:
            process, rest = path.read_text().split(' ', 1)
            parents[int(process)] = int(rest.rsplit(')', 1)[1].split()[1])
        except OSError:
            pass
    job = {launcher}
    while more := {process for process, parent in parents.items() if parent in job} - job:
        job |= more
    return sorted(job)


def memory_of(process, dumped=True):
    """(where, bytes) of what a core file of the process would have, or of what it would not, in pieces that overlap."""
    mappings = re.findall(r'^([0-9a-f]+)-([0-9a-f]+) (r\S+) \S+ \S+ \S+ *(.*)\n(?:(?![0-9a-f]+-).*\n)*?VmFlags:(.*)$',
                          pathlib.Path(f'/proc/{process}/smaps').read_text(), re.MULTILINE)
    with open(f'/proc/{process}/mem', 'rb', buffering=0) as memory:
        for begin, end, _, name, flags in mappings:
            if ('dd' not in flags.split()) != dumped:  # VM_DONTDUMP
                continue
            at, end = int(begin, 16), int(end, 16)
            while at < end:
                try:
                    memory.seek(at)
                    piece = memory.read(min(PIECE_BYTES, end - at))
                except (OSError, ValueError, OverflowError):
                    break  # [vvar], or gone meanwhile
                if not piece:
                    break
                yield f'memory of process {process} at {at:x} ({name})', piece
                at += max(1, len(piece) - PAGE_BYTES) if at + len(piece) < end else len(piece)


def secrets_of(process):
    """Where a process keeps secrets (transport/secure/secret.cc): pages that no core file has, of a secret, a byte that is 1, and zeros."""
    return {piece[at:at + SECRET_BYTES] for _, piece in memory_of(process, dumped=False) for at in range(0, len(piece), PAGE_BYTES)
            if piece[at + SECRET_BYTES:at + PAGE_BYTES] == b'\1'.ljust(PAGE_BYTES - SECRET_BYTES, b'\0')}


def everything(job, folder):
    """(where, bytes) of all that the job has and has written."""
    for path in pathlib.Path(folder).rglob('*'):
        if path.is_file():
            yield str(path), path.read_bytes()
    for process in job:
        for name in ('cmdline', 'environ'):
            yield f'{name} of process {process}', pathlib.Path(f'/proc/{process}/{name}').read_bytes()
        yield from memory_of(process)


def search(places, values):
    """{value's name: [where it is]}, of {name: bytes}."""
    found = {name: [] for name in values}
    for where, content in places:
        for name, value in values.items():
            if value in content:
                at = content.index(value)
                found[name].append(f'{where}: ...{content[max(0, at - 40):at]}[{name}]{content[at + len(value):at + len(value) + 40]}')
    return found


def as_another_user(look):
    """What look() returns in a process of another user, as text."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresgid(ANOTHER_USER, ANOTHER_USER, ANOTHER_USER)
            os.setgroups([])
            os.setresuid(ANOTHER_USER, ANOTHER_USER, ANOTHER_USER)
            os.write(writes, str(look()).encode())
        except OSError as error:
            os.write(writes, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, 'rb') as told:
        text = told.read().decode()
    os.waitpid(child, 0)
    return text


class ProcessManager:
    """What MPICH's launcher is to ranks that exchange by PMI-1: docs/environment.md."""

    def __init__(self, size):
        self.values = {}
        self.barrier = threading.Barrier(size)
        self.sockets = []
        for _ in range(size):
            ours, theirs = socket.socketpair()
            self.sockets.append(theirs)
            threading.Thread(target=self.serve, args=[ours], daemon=True).start()

    def serve(self, connection):
        with connection, connection.makefile('r') as lines:
            for line in lines:
                connection.sendall((self.answer(dict(word.split('=', 1) for word in line.split())) + '\n').encode())

    def answer(self, question):
        if question['cmd'] == 'get_my_kvsname':
            return 'cmd=my_kvsname kvsname=kvs'
        if question['cmd'] == 'put':
            self.values[question['key']] = question['value']
            return 'cmd=put_result rc=0 msg=success'
        if question['cmd'] == 'barrier_in':
            self.barrier.wait(60)
            return 'cmd=barrier_out'
        if question['cmd'] == 'get':
            return f'cmd=get_result rc=0 msg=success value={self.values[question["key"]]}'
        return 'cmd=finalize_ack'


class Secrets(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.folder = pathlib.Path(work.name, 'written')
        self.folder.mkdir()
        self.secrets = pathlib.Path(work.name, 'secrets')
        self.secrets.mkdir()
        self.root = pathlib.Path.cwd()
        self.started = []

    def start(self, command, environment, descriptors=()):
        """Starts a program of the job. It writes to `output`."""
        with open(self.folder / 'output', 'ab') as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=descriptors,
                env={'PATH': os.environ['PATH'], 'PYTHONPATH': str(self.root / 'python'), 'PYTHONDONTWRITEBYTECODE': '1',
                     'LOCKSTEP_LOG': 'trace', 'LOCKSTEP_TRACE': str(self.folder / 'trace'), 'PLANTED': planted('environ').hex(),
                     **environment})
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.terminate)
        self.started.append(process)
        return process.pid

    def launch(self, **environment):
        """Starts two ranks by lockstep-run. They train when this returns."""
        self.launcher = self.start([self.root / 'python/lockstep/_lib/lockstep-run', '-n', '2', *self.rank_command()], environment)
        self.await_ranks()
        job = job_of(self.launcher)
        self.ranks = [process for process in job if b'\0LOCKSTEP_RANK=' in pathlib.Path(f'/proc/{process}/environ').read_bytes()]
        self.ranks.sort(key=lambda process: b'\0LOCKSTEP_RANK=1\0' in pathlib.Path(f'/proc/{process}/environ').read_bytes())
        self.assertEqual(len(self.ranks), 2, job)

    def start_ranks(self, *environments):
        """Starts the ranks alone, with these variables. They train, or have an error, when this returns."""
        size = str(len(environments))
        self.ranks = [self.start(self.rank_command(), {'LOCKSTEP_RANK': str(rank), 'LOCKSTEP_WORLD_SIZE': size,
                                                       'LOCKSTEP_LOCAL_RANK': str(rank), 'LOCKSTEP_LOCAL_WORLD_SIZE': size, **environment})
                      for rank, environment in enumerate(environments)]
        self.await_ranks()

    def rank_command(self):
        return ['/usr/bin/python3', __file__, 'train', self.folder, planted('cmdline').hex()]

    def await_ranks(self):
        while not all((self.folder / f'ready.{rank}').exists() for rank in range(2)):
            for process in self.started:
                self.assertIsNone(process.poll(), self.output())
            time.sleep(0.05)

    def end(self):
        (self.folder / 'stop').touch()
        for process in self.started:
            self.assertEqual(process.wait(60), 0, self.output())

    def output(self):
        return (self.folder / 'output').read_text(errors='replace')

    def variable(self, name):
        """Of a rank's environment."""
        variables = pathlib.Path(f'/proc/{self.ranks[0]}/environ').read_text().split('\0')
        return dict(variable.split('=', 1) for variable in variables if variable)[name]

    def draw(self, name):
        """A file with a secret: (its path, the secret)."""
        secret = os.urandom(SECRET_BYTES)
        path = self.secrets / name
        path.touch(0o600)
        path.write_text(secret.hex() + '\n')
        return str(path), secret

    def secrets_in_use(self):
        """(the job's, the world's), as rank 0 keeps both and rank 1 the latter."""
        of_rank_0, of_rank_1 = (secrets_of(rank) for rank in self.ranks)
        self.assertEqual((len(of_rank_0), len(of_rank_1)), (2, 1))
        self.assertLess(of_rank_1, of_rank_0)
        return (*(of_rank_0 - of_rank_1), *of_rank_1)

    def expect_found_nowhere(self, secrets, output='security: (authenticate|encrypt).*error: ', trace=True, may_be_in_memory=()):
        """secrets: {whose: secret}. output: a pattern of what the ranks write. trace: whether they write one."""
        plants = {where: planted(where).hex().encode() for where in ('output', 'cmdline', 'environ')}
        for rank in range(2):
            plants[f'memory {rank}'] = planted(f'memory {rank}')
            plants[f'memory {rank} in hex'] = planted(f'memory {rank} in hex').hex().encode()
        forms = {}
        for whose, secret in secrets.items():
            self.assertEqual(len(secret), SECRET_BYTES)
            forms.update({f'{whose} secret {form}': value for form, value in forms_of(secret).items()})
            forms.update(keys_of(secret, whose))
        job = sorted({process for started in self.started for process in job_of(started.pid)})
        found = search(everything(job, self.folder), {**plants, **forms})
        self.end()
        written = search(everything([], self.folder), forms)  # at the end, too
        for where in plants:
            self.assertTrue(found[where], f'what was planted in {where} was not found')
        self.assertRegex(self.output(), f'(?s){output}')
        self.assertEqual(bool(list(self.folder.glob('trace*'))), trace)
        for form in may_be_in_memory:
            found[form] = [where for where in found[form] if not where.startswith('memory of ')]
        self.assertEqual(sum((found[form] + written[form] for form in forms), []), [])

    def test_of_a_file(self):
        path, secret = self.draw('secret')
        self.launch(LOCKSTEP_SECRET_FILE=path, LOCKSTEP_TRANSPORT='tcp')
        self.assertEqual(self.variable('LOCKSTEP_SECRET_FILE'), path)
        job, world = self.secrets_in_use()
        self.assertEqual(job, secret)
        self.expect_found_nowhere({'job': job, 'world': world})

    def test_of_the_launcher(self):
        self.launch(LOCKSTEP_TRANSPORT='tcp', LOCKSTEP_SECURITY='encrypt')
        secret = bytes.fromhex(pathlib.Path(self.variable('LOCKSTEP_SECRET_FILE')).read_text())
        # The launcher's store still needs it, so it is where it belongs.
        self.assertEqual(secrets_of(self.launcher), {secret})
        job, world = self.secrets_in_use()
        self.assertEqual(job, secret)
        self.expect_found_nowhere({'job': job, 'world': world})

    def places_in_memory(self, key):
        """Where the launcher has it, be it in core files or not."""
        return sum((search(memory_of(self.launcher, dumped), {'key': key})['key'] for dumped in (True, False)), [])

    def test_the_key_of_a_handshake_under_way_is_found(self):
        self.launch()
        secret, = secrets_of(self.launcher)
        key = key_of(secret, 'store', 'authenticate')
        self.assertEqual(self.places_in_memory(key), [])
        host, port = self.variable('LOCKSTEP_STORE').removeprefix('tcp://').rsplit(':', 1)
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            preamble = MAGIC + VERSION.to_bytes(2, 'little') + bytes([PURPOSES['store'], LEVELS['authenticate']])
            connection.sendall(preamble)
            self.assertEqual(connection.recv(len(preamble), socket.MSG_WAITALL), preamble)
            self.assertNotEqual(self.places_in_memory(key), [])
        self.end()

    def test_of_a_file_store(self):
        self.start_ranks(*2 * [{'LOCKSTEP_STORE': f'file://{self.secrets}/store', 'LOCKSTEP_SECURITY': 'encrypt'}])
        job, world = self.secrets_in_use()
        # A store's own copies of texts may stay (docs/security.md).
        self.expect_found_nowhere({'job': job, 'world': world}, may_be_in_memory=['job secret in hex'])

    def test_of_torchs_store(self):
        store = self.secrets / 'store'
        store.mkdir()
        self.start_ranks(*2 * [{'FILES': str(store)}])
        job, world = self.secrets_in_use()
        self.assertEqual(list(store.iterdir()), [])
        self.expect_found_nowhere({'job': job, 'world': world}, "the job's secret stands in store .*error: ",
                                  may_be_in_memory=['job secret in hex'])

    def test_of_a_launchers_exchange(self):
        manager = ProcessManager(2)
        descriptors = [theirs.fileno() for theirs in manager.sockets]
        self.ranks = [self.start(self.rank_command(), {'PMI_RANK': str(rank), 'PMI_SIZE': '2', 'PMI_FD': str(descriptor),
                                                       'MPI_LOCALRANKID': str(rank), 'MPI_LOCALNRANKS': '2'}, [descriptor])
                      for rank, descriptor in enumerate(descriptors)]
        self.await_ranks()
        for theirs in manager.sockets:
            theirs.close()
        job, world = self.secrets_in_use()
        forms = forms_of(job)
        self.assertTrue(any(form in value.encode() for value in manager.values.values() for form in forms.values()), 'another form')
        self.expect_found_nowhere({'job': job, 'world': world})

    def test_handed_out(self):
        with socket.create_server(('127.0.0.1', 0)) as taken:
            url = f'tcp://127.0.0.1:{taken.getsockname()[1]}'
        self.start_ranks(*2 * [{'LOCKSTEP_STORE': url, 'LOCKSTEP_TRANSPORT': 'tcp'}])
        job, world = self.secrets_in_use()
        self.expect_found_nowhere({'job': job, 'world': world})

    def test_of_a_set_up_that_fails(self):
        url = f'file://{self.secrets}/store'
        path_0, secret_0 = self.draw('secret 0')
        path_1, secret_1 = self.draw('secret 1')
        self.start_ranks({'LOCKSTEP_STORE': url, 'LOCKSTEP_SECRET_FILE': path_0}, {'LOCKSTEP_STORE': url, 'LOCKSTEP_SECRET_FILE': path_1})
        self.assertEqual([secrets_of(rank) for rank in self.ranks], [set(), set()])
        self.expect_found_nowhere({"rank 0's": secret_0, "rank 1's": secret_1}, output='error: .*does not have the secret', trace=False)

    @unittest.skipIf(os.geteuid() != 0, 'only root can become another user')
    def test_another_user_does_not_get_it(self):
        self.launch()
        path = self.variable('LOCKSTEP_SECRET_FILE')
        rank = self.ranks[0]
        self.assertEqual(as_another_user(lambda: open('/proc/self/cmdline', 'rb').close()), 'None')
        for secret in (path, f'/proc/{rank}/environ', f'/proc/{rank}/mem', f'/proc/{self.launcher}/mem'):
            with self.subTest(secret):
                self.assertEqual(as_another_user(lambda secret=secret: open(secret, 'rb').read(1)), 'PermissionError')
        self.end()


if __name__ == '__main__':
    if len(sys.argv) > 1 and sys.argv[1] == 'train':
        train(sys.argv[2])
    else:
        unittest.main()
