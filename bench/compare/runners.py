"""The running ranks of one implementation, asked over their sockets: the protocol is in runner.h.

Every wait has a deadline, a time of time.monotonic(). After any RunnerError the group is of no more use: close it. A process that
we start leads a process group and dies with us. Launchers put ranks into groups of their own, so ranks are adopted one by one; the
orphans of a launcher that is gone come to us after become_subreaper().
"""

import ctypes
import os
import pathlib
import select
import shutil
import signal
import socket
import struct
import time

RANKS_MAX = 63  # of runner.h
PAGE_BYTES = 4096
POLL_SECONDS = 0.02  # between looks at processes
GRACE_SECONDS = 3  # from SIGTERM to SIGKILL
ENDING_SECONDS = 2  # for the status of a process whose socket has closed
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class RunnerError(Exception):
    """Why an implementation takes no further part."""


def become_subreaper():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def after(seconds):
    return time.monotonic() + seconds


def left_ms(deadline):
    return max(0, int(1000 * (deadline - time.monotonic())))


def names(numbers):
    return f'rank{"" if len(numbers) == 1 else "s"} {", ".join(map(str, numbers))}'


class Processes:
    """Those that we start, and those that they start; `output` is what the last line that they wrote is read from."""

    def __init__(self, output):
        self.output = output
        self.started = {}  # by pid: whether it has ended, then its exit code once it is reaped
        self.adopted = {}  # by pid: a pidfd, as the number may be another's by the time we kill

    def start(self, words, environment):
        program = shutil.which(words[0])
        if program is None:
            raise RunnerError(f'there is no program {words[0]}')
        prctl = ctypes.CDLL(None).prctl
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.execve(program, words, {**os.environ, **environment})
            finally:
                os._exit(127)
        self.started[pid] = None

    def adopt(self, pid):
        try:
            self.adopted[pid] = os.pidfd_open(pid)
        except OSError:
            pass  # it has ended

    def ended(self):
        # Looked at, not reaped: while a process is there its number, which is its group's too, belongs to nobody else.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return [pid for pid, code in self.started.items() if code is not None or os.waitid(os.P_PID, pid, flags)]

    def all_ended(self, deadline):
        while len(self.ended()) < len(self.started):
            if left_ms(deadline) == 0:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def describe_end(self, preferred):
        """How a process ended, and that one if it is known which; within two seconds."""
        deadline = after(ENDING_SECONDS)
        while not self.ended() and left_ms(deadline) > 0:
            time.sleep(POLL_SECONDS)
        ended = [pid for pid in self.ended() if self.started[pid] is None]
        if not ended:
            return 'closed its connection' + self.last_output()
        pid = preferred if preferred in ended else ended[0]
        self.kill_group(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.started[pid] = code
        how = f'exited with status {code}' if code >= 0 else f'was killed by signal {-code} ({signal.Signals(-code).name})'
        return how + self.last_output()

    def last_output(self):
        try:
            lines = pathlib.Path(self.output).read_text(errors='replace').splitlines()
        except FileNotFoundError:
            return ''
        return next((f'; it wrote: {line}' for line in reversed(lines) if line.strip()), '')

    @staticmethod
    def kill_group(pid, number):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            pass

    def signal_all(self, number):
        for pid, code in self.started.items():
            if code is None:
                self.kill_group(pid, number)
        for descriptor in self.adopted.values():
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                pass

    def close(self):
        """Ends what is left: SIGTERM, which lets launchers clean up, and SIGKILL later."""
        if not self.all_ended(after(0)):
            self.signal_all(signal.SIGTERM)
            self.all_ended(after(GRACE_SECONDS))
        self.signal_all(signal.SIGKILL)
        # A group with what it left in it: children of a process that has ended are ours. Then those whose launcher is gone.
        for pid in [*(-leader for leader in self.started), *self.adopted]:
            try:
                while True:
                    os.waitpid(pid, 0)
            except ChildProcessError:
                pass
        for descriptor in self.adopted.values():
            os.close(descriptor)
        self.started, self.adopted = {}, {}


class Rank:
    def __init__(self, connection):
        self.socket = connection
        self.pid = struct.unpack('3i', connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        self.received = b''  # not yet a line


class RunnerGroup:
    def __init__(self, implementation, ranks, bytes_max, pin, folder, deadline):
        """Returns when all ranks have said hello. `folder` is made."""
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        self.processes = Processes(str(self.folder / 'output'))
        self.ranks = [None] * ranks
        (self.folder / 'page').write_bytes(bytes(PAGE_BYTES))
        try:
            with self.listen() as listener:
                for rank in range(ranks) if implementation.process_per_rank else '-':
                    self.processes.start([*implementation.command, str(folder), str(bytes_max), str(rank), str(ranks),
                                          *implementation.options], implementation.environment)
                self.await_hellos(listener, deadline)
            if pin:
                self.ask('pin', 'pinned', deadline)
        except BaseException:
            self.close()
            raise

    def close(self):
        for rank in filter(None, self.ranks):
            rank.socket.close()
        self.processes.close()

    def listen(self):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        directory = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        # The folder's own path may be longer than an address can be.
        listener.bind(f'/proc/self/fd/{directory}/socket')
        os.close(directory)
        listener.listen(len(self.ranks))
        return listener

    def await_hellos(self, listener, deadline):
        while None in self.ranks:
            # Looked at first: a process that has ended by now has said what it had to, and its connection is there.
            some_ended = self.processes.ended()
            if select.select([listener], [], [], 0 if some_ended else POLL_SECONDS)[0]:
                self.greet(Rank(listener.accept()[0]), deadline)
            elif some_ended:
                raise RunnerError(f'a process {self.processes.describe_end(None)}')
            elif left_ms(deadline) == 0:
                late = [number for number, rank in enumerate(self.ranks) if rank is None]
                raise RunnerError(f'{names(late)} did not start in time{self.processes.last_output()}')

    def greet(self, rank, deadline):
        self.processes.adopt(rank.pid)
        line = None
        while line is None:
            if not select.select([rank.socket], [], [], left_ms(deadline) / 1000)[0]:
                raise RunnerError(f'process {rank.pid} says no hello')
            line = self.take_line(rank, 'a rank')
        word, _, number = line.partition(' ')
        if word != 'hello' or not number.isdigit() or int(number) >= len(self.ranks) or self.ranks[int(number)]:
            raise RunnerError(f"a runner says '{line}' instead of hello and its rank")
        self.ranks[int(number)] = rank

    def take_line(self, rank, name):
        """The next line that a rank has sent, None where there is none yet."""
        if b'\n' not in rank.received:
            try:
                received = rank.socket.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except ConnectionError:
                received = b''
            if not received:
                raise RunnerError(f'{name} {self.processes.describe_end(rank.pid)}')
            rank.received += received
        line, newline, rest = rank.received.partition(b'\n')
        if not newline:
            return None
        rank.received = rest
        line = line.decode(errors='replace')
        if line.startswith('error '):
            raise RunnerError(f'{name}: {line[6:]}')
        return line

    def send(self, line):
        for number, rank in enumerate(self.ranks):
            try:
                rank.socket.sendall(line.encode() + b'\n')
            except ConnectionError:
                raise RunnerError(f'rank {number} {self.processes.describe_end(rank.pid)}') from None

    def ask(self, line, word, deadline):
        """What comes behind `word` in the ranks' answers, in words, in rank order."""
        self.send(line)
        answers = [None] * len(self.ranks)
        while None in answers:
            waiting = {rank.socket: number for number, rank in enumerate(self.ranks) if answers[number] is None}
            ready = select.select(list(waiting), [], [], left_ms(deadline) / 1000)[0]
            if not ready:
                raise RunnerError(f"{names(list(waiting.values()))} did not answer '{line}' in time")
            for number in map(waiting.get, ready):
                answer = self.take_line(self.ranks[number], f'rank {number}')
                if answer is None:
                    continue
                first, *answers[number] = answer.split(' ')
                if first != word:
                    raise RunnerError(f"rank {number} answers '{line}' with '{answer}'")
        return answers

    def run(self, size, calls, deadline):
        """Seconds of one call on the slowest rank; and of one call with what is done before it, likewise."""
        answers = self.ask(f'run {size} {calls}', 'time', deadline)
        return max(float(answer[0]) for answer in answers), max(float(answer[1]) for answer in answers)

    def check(self, size, deadline):
        """The wrong elements of one all-reduce, on all ranks together."""
        return sum(int(answer[0]) for answer in self.ask(f'check {size}', 'wrong', deadline))

    def sockets(self, deadline):
        """Of the TCP connection that has sent most: its congestion control, and the bytes."""
        return max(((name, int(sent)) for name, sent in self.ask('sockets', 'sockets', deadline)), key=lambda pair: pair[1])

    def quit(self, deadline):
        self.send('quit')
        if not self.processes.all_ended(deadline):
            raise RunnerError('the processes did not end in time')
