"""libfabric's own program fi_pingpong, by which a provider is commonly measured, in the place of a group of runners.

Both sides run the program, which sends a tagged message there and back so many times and tells how long one way took. It counts from
before the first message, for which a provider may take 20 ms to connect; so a run lasts a second, of which that is 2 %.
"""

import os
import socket
import subprocess
import time

import runners

HOST = '127.0.0.1'
RUN_SECONDS = 1
FIRST_MESSAGES = 500
FIRST_BYTES = 256 << 20  # which the first run moves at most
MESSAGES_MAX = 1_000_000


def microseconds_in(text):
    """One way, the slower of the sides, in the program's tables: bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec."""
    found = []
    for columns in map(str.split, text.splitlines()):
        try:
            found.append(float(columns[6]) if len(columns) == 8 else 0)
        except ValueError:
            pass  # the heading
    if not any(found):
        raise runners.RunnerError(f'fi_pingpong told no time: {text[:300]}')
    return max(found)


class PingpongGroup:
    def __init__(self, provider, pin):
        self.provider = provider
        self.cores = sorted(os.sched_getaffinity(0)) if pin else []
        self.fastest = {}  # seconds one way, by bytes

    def messages(self, size):
        known = self.fastest.get(size)
        messages = RUN_SECONDS / 2 / known if known else min(FIRST_MESSAGES, FIRST_BYTES // max(size, 1))
        return int(min(max(messages, 1), MESSAGES_MAX))

    def run(self, size, calls, deadline):
        """One run, however many calls are asked for. The side that serves waits for the other."""
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        words = ['fi_pingpong', '-p', self.provider, '-e', 'rdm', '-m', 'tagged', '-I', str(self.messages(size)), '-S', str(size)]

        def side(rank, *more):
            core = self.cores[rank % len(self.cores)] if self.cores else None
            return runners.start([*words, *more], subprocess.PIPE, core=core)

        def output(process):
            return process.communicate(timeout=runners.left_ms(deadline) / 1000)[0].decode(errors='replace')

        with side(0, '-B', str(port)) as server:
            try:
                while True:
                    client = side(1, '-P', str(port), HOST)
                    text = output(client)
                    # Until the side that serves is there.
                    if 'Connection refused' not in text or server.poll() is not None or not runners.left_ms(deadline):
                        break
                    time.sleep(0.01)
                text = output(server) + text
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
                raise runners.RunnerError('fi_pingpong did not end in time') from None
            finally:
                server.kill()
        if server.returncode != 0 or client.returncode != 0:
            raise runners.RunnerError(f'fi_pingpong failed: {text[:300]}')
        seconds = microseconds_in(text) * 1e-6
        self.fastest[size] = min(seconds, self.fastest.get(size, seconds))
        return seconds, seconds

    def sockets(self, deadline):
        return 'none', 0

    def quit(self, deadline):
        pass

    def close(self):
        pass
