"""The running ranks of one implementation, asked through the first of them: the protocol is in runner.h.

Every wait has a deadline, a time of time.monotonic(). After any RunnerError the group is of no more use: close it. A process that
we start leads a session and dies with us: lockstep-run, or a launcher of the implementation's own, with which its ranks die.
"""

import ctypes
import os
import pathlib
import select
import signal
import struct
import subprocess
import sys
import time

RANKS_MAX = 63  # of runner.h
PAGE_BYTES = 32768
POLL_SECONDS = 0.02  # between looks at processes
GRACE_SECONDS = 3  # from SIGTERM to SIGKILL
PR_SET_PDEATHSIG = 1


class RunnerError(Exception):
    """Why an implementation takes no further part."""


def after(seconds):
    return time.monotonic() + seconds


def left_ms(deadline):
    return max(0, int(1000 * (deadline - time.monotonic())))


def find_program(path):
    """What was built: beside the program as Bazel lays it out, or where a test is started."""
    folders = (f'{os.path.abspath(sys.argv[0])}.runfiles/lockstep', os.getcwd())
    found = next((program for folder in folders if os.access(program := f'{folder}/{path}', os.X_OK)), None)
    return found or sys.exit(f'compare: no {path} in {folders[0]} nor in {folders[1]}: start it by bazel run')


class RunnerGroup:
    def __init__(self, implementation, ranks, bytes_max, folder, deadline):
        """Returns when all ranks are ready. `folder` is made."""
        folder = pathlib.Path(folder)
        folder.mkdir()
        self.page, self.output = folder / 'page', folder / 'output'
        self.page.write_bytes(bytes(PAGE_BYTES))
        self.ranks, self.commands, self.received = ranks, 0, b''
        launcher = [] if implementation.starts_ranks else [find_program('launch/lockstep-run'), '-n', str(ranks), '--foreground', '0']
        words = [*launcher, *implementation.command, str(folder), str(bytes_max), *implementation.options]
        prctl = ctypes.CDLL(None).prctl
        with open(self.output, 'wb') as output:
            try:
                self.launcher = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
                                                 env={**os.environ, **implementation.environment}, start_new_session=True,
                                                 preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
            except OSError as error:
                raise RunnerError(f'cannot start {words[0]}: {error.strerror}') from None
        try:
            self.await_ready('start', deadline)
        except BaseException:
            self.close()
            raise

    def ended(self):
        # Looked at, not reaped: while the process is there its number, which is its group's too, belongs to nobody else.
        return os.waitid(os.P_PID, self.launcher.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def all_ended(self, deadline):
        while not self.ended():
            if left_ms(deadline) == 0:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def describe_end(self):
        self.all_ended(after(GRACE_SECONDS))
        end = os.waitid(os.P_PID, self.launcher.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if end is None:
            how = 'closed its output'
        elif end.si_code == os.CLD_EXITED:
            how = f'exited with status {end.si_status}'
        else:
            how = f'was killed by signal {end.si_status} ({signal.Signals(end.si_status).name})'
        return f'the launcher {how}{self.last_output()}'

    def last_output(self):
        # The ranks that our launcher ended are not the reason.
        lines = [line for line in self.output.read_text(errors='replace').splitlines()
                 if line.strip() and 'was ended by the launcher' not in line]
        return f'; it wrote: {"; ".join(lines[-2:])}' if lines else ''

    def signal(self, number):
        try:
            os.killpg(self.launcher.pid, number)
        except ProcessLookupError:
            pass

    def close(self):
        """Ends what is left: SIGTERM, which lets the launcher clean up, and SIGKILL later."""
        if self.launcher.returncode is not None:
            return
        if not self.ended():
            self.signal(signal.SIGTERM)
            self.all_ended(after(GRACE_SECONDS))
        self.signal(signal.SIGKILL)
        self.launcher.wait()
        self.launcher.stdin.close()
        self.launcher.stdout.close()

    def entries(self):
        """Of the ranks in the page: (barriers entered, commands answered, answer)."""
        entries = struct.iter_unpack('QQ496s', self.page.read_bytes()[:512 * self.ranks])
        return [(entered, answered, answer.partition(b'\0')[0].decode(errors='replace')) for entered, answered, answer in entries]

    def await_ready(self, what, deadline):
        output = self.launcher.stdout
        while b'ready\n' not in self.received:
            # Looked at first: a launcher that has ended by now has said what it had to.
            ended = self.ended()
            if select.select([output], [], [], 0 if ended else POLL_SECONDS)[0] and (received := os.read(output.fileno(), 4096)):
                self.received += received
                continue
            for rank, (_, _, answer) in enumerate(self.entries()):
                if answer.startswith('error '):
                    raise RunnerError(f'rank {rank}: {answer[6:]}')
            if ended:
                raise RunnerError(self.describe_end())
            if left_ms(deadline) == 0:
                late = [rank for rank, (entered, answered, _) in enumerate(self.entries()) if not entered or answered < self.commands]
                ranks = f'rank{"" if len(late) == 1 else "s"} {", ".join(map(str, late))}'
                raise RunnerError(f'{ranks} did not {what} in time{self.last_output()}')
        self.received = self.received.partition(b'ready\n')[2]

    def send(self, line):
        self.commands += 1
        try:
            os.write(self.launcher.stdin.fileno(), line.encode() + b'\n')
        except BrokenPipeError:
            raise RunnerError(self.describe_end()) from None

    def ask(self, line, deadline):
        """The ranks' answers, in words, in rank order."""
        self.send(line)
        self.await_ready(f"answer '{line}'", deadline)
        return [answer.split(' ') for _, _, answer in self.entries()]

    def run(self, size, calls, deadline):
        """Seconds of one call on the slowest rank; and of one call with what is done before it, likewise."""
        answers = self.ask(f'{"again" if size.again else "run"} {size.bytes} {calls}', deadline)
        return max(float(answer[0]) for answer in answers), max(float(answer[1]) for answer in answers)

    def check(self, size, deadline):
        """The wrong elements of one all-reduce, on all ranks together."""
        return sum(int(answer[0]) for answer in self.ask(f'check {size.bytes}', deadline))

    def sockets(self, deadline):
        """Of the TCP connection that has sent most: its congestion control, and the bytes."""
        return max(((name, int(sent)) for name, sent in self.ask('sockets', deadline)), key=lambda pair: pair[1])

    def quit(self, deadline):
        self.send('quit')
        if not self.all_ended(deadline):
            raise RunnerError('the processes did not end in time')
