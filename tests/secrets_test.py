#!/usr/bin/env python3
"""A job's secret is found nowhere but where it belongs: not in what the job writes, not in the arguments and environments of its
processes, not in their memory but for what is left out of core files. And no other user gets at it.

Method: two ranks train under lockstep-run, with all that there is to log and to trace, run into an error and describe themselves. While
they train, all of it is searched for the secret as bytes, in hex and in Base64. Values that are planted there on purpose are found.
"""

import array
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

ANOTHER_USER = 12345
PIECE_BYTES = 4 << 20


def planted(where):
    """32 bytes that a rank puts there on purpose."""
    return hashlib.sha256(where.encode()).digest()


# ---- A rank


def train(folder):
    import lockstep  # pylint: disable=import-outside-toplevel

    communicator = lockstep.init(timeout_ms=60_000)
    rank = communicator.rank
    kept = [planted(f'memory {rank}'), planted(f'memory {rank} in hex').hex()]
    print(communicator.describe(), 'planted:', planted('output').hex(), flush=True)
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
    pathlib.Path(folder, f'trains.{rank}').touch()
    stop = array.array('f', [0])
    while not stop[0]:
        step()
        stop[0] = float(rank == 0 and pathlib.Path(folder, 'stop').exists())
        communicator.all_reduce(stop)
    reducer.close()
    assert len(kept) == 2


# ---- The search


def forms_of(secret):
    text = base64.b64encode(secret).rstrip(b'=')
    return {'as bytes': secret, 'in hex': secret.hex().encode(), 'in upper-case hex': secret.hex().upper().encode(), 'in Base64': text,
            'in URL-safe Base64': base64.urlsafe_b64encode(secret).rstrip(b'=')}


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
                at += max(1, len(piece) - 128) if at + len(piece) < end else len(piece)


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


class Secrets(unittest.TestCase):

    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.folder = pathlib.Path(work.name, 'written')
        self.folder.mkdir()
        self.secret_file = pathlib.Path(work.name, 'secret')

    def start(self, **environment):
        """Starts a job. Its ranks train when this returns."""
        root = pathlib.Path.cwd()
        launcher = root / 'python/lockstep/_lib/lockstep-run'
        python = '/usr/bin/python3'
        with open(self.folder / 'output', 'wb') as output:
            self.launcher = subprocess.Popen(
                [launcher, '-n', '2', python, __file__, 'train', self.folder, planted('cmdline').hex()], stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
                env={'PATH': os.environ['PATH'], 'PYTHONPATH': str(root / 'python'), 'PYTHONDONTWRITEBYTECODE': '1',
                     'LOCKSTEP_LOG': 'trace', 'LOCKSTEP_TRACE': str(self.folder / 'trace'), 'PLANTED': planted('environ').hex(),
                     'LOCKSTEP_TRANSPORT': 'tcp', **environment})
        self.addCleanup(self.launcher.wait, 60)
        self.addCleanup(self.launcher.terminate)
        deadline = time.monotonic() + 60
        while not all((self.folder / f'trains.{rank}').exists() for rank in range(2)):
            self.assertLess(time.monotonic(), deadline, self.output())
            self.assertIsNone(self.launcher.poll(), self.output())
            time.sleep(0.05)
        self.job = job_of(self.launcher.pid)
        self.ranks = [process for process in self.job if b'\0LOCKSTEP_RANK=' in pathlib.Path(f'/proc/{process}/environ').read_bytes()]
        self.assertEqual(len(self.ranks), 2, self.job)

    def end(self):
        (self.folder / 'stop').touch()
        self.assertEqual(self.launcher.wait(60), 0, self.output())

    def output(self):
        return (self.folder / 'output').read_text(errors='replace')

    def variable(self, name):
        """Of a rank's environment."""
        variables = pathlib.Path(f'/proc/{self.ranks[0]}/environ').read_text().split('\0')
        return dict(variable.split('=', 1) for variable in variables if variable)[name]

    def expect_found_nowhere(self, secret):
        self.assertEqual(len(secret), 32)
        plants = {where: planted(where).hex().encode() for where in ('output', 'cmdline', 'environ')}
        for rank in range(2):
            plants[f'memory {rank}'] = planted(f'memory {rank}')
            plants[f'memory {rank} in hex'] = planted(f'memory {rank} in hex').hex().encode()
        forms = forms_of(secret)
        found = search(everything(self.job, self.folder), {**plants, **forms})
        self.end()
        written = search(everything([], self.folder), forms)  # at the end, too
        for where in plants:
            self.assertTrue(found[where], f'what was planted in {where} was not found')
        self.assertRegex(self.output(), '(?s)security: authenticate.*error: ')
        self.assertTrue(list(self.folder.glob('trace*')), 'no trace')
        self.assertEqual([*sum((found[form] + written[form] for form in forms), [])], [])

    def test_of_a_file(self):
        secret = os.urandom(32)
        self.secret_file.touch(0o600)
        self.secret_file.write_text(secret.hex() + '\n')
        self.start(LOCKSTEP_SECRET_FILE=str(self.secret_file))
        self.assertEqual(self.variable('LOCKSTEP_SECRET_FILE'), str(self.secret_file))
        self.expect_found_nowhere(secret)

    def test_of_the_launcher(self):
        self.start()
        secret = bytes.fromhex(pathlib.Path(self.variable('LOCKSTEP_SECRET_FILE')).read_text())
        # The launcher's store still needs it, so it is where it belongs.
        self.assertTrue(search(memory_of(self.launcher.pid, dumped=False), {'secret': secret})['secret'])
        self.expect_found_nowhere(secret)

    @unittest.skipIf(os.geteuid() != 0, 'only root can become another user')
    def test_another_user_does_not_get_it(self):
        self.start()
        path = self.variable('LOCKSTEP_SECRET_FILE')
        rank = self.ranks[0]
        self.assertEqual(as_another_user(lambda: open('/proc/self/cmdline', 'rb').close()), 'None')
        for secret in (path, f'/proc/{rank}/environ', f'/proc/{rank}/mem', f'/proc/{self.launcher.pid}/mem'):
            with self.subTest(secret):
                self.assertEqual(as_another_user(lambda secret=secret: open(secret, 'rb').read(1)), 'PermissionError')
        self.end()


if __name__ == '__main__':
    if len(sys.argv) > 1 and sys.argv[1] == 'train':
        train(sys.argv[2])
    else:
        unittest.main()
