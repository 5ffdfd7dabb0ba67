"""Programs that tests start, each in a session of its own, and that end by a deadline."""

import os
import signal
import subprocess


def run(command, seconds, text=None, **environment):
    """(exit status, all that it wrote). text: its input. environment: what is different from that of the test."""
    return run_together([(command, environment)], seconds, text)[0]


def run_together(programs, seconds, text=None):
    """The same of several that run at once: [(command, environment)]. When one is late, all sessions are killed, and the test fails."""
    processes = [subprocess.Popen(command, env={**os.environ, 'OMP_NUM_THREADS': '1', **environment}, text=True, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
                 for command, environment in programs]
    try:
        return [(process.communicate(text, timeout=seconds)[0], process.returncode)[::-1] for process in processes]
    except subprocess.TimeoutExpired as error:
        late = error.cmd
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    written = '\n'.join(process.communicate(timeout=10)[0] for process in processes)
    raise AssertionError(f'{late} did not end in {seconds} s:\n{written}')
