"""KeyboardInterrupt in a wait leaves all usable; a rank whose program ends tells the others at once, and why."""

import array
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import lockstep

communicator = lockstep.init(timeout_ms=60_000)
RANK, SIZE = communicator.rank, communicator.size
OTHER = 1 - RANK


def interrupt_soon():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()


class Waits(unittest.TestCase):

    def interrupted(self, call, *arguments, **options):
        """Interrupts the call, which does not end otherwise. Returns on no rank before that was done on all."""
        communicator.barrier()
        interrupt_soon()
        with self.assertRaises(KeyboardInterrupt) as raised:
            call(*arguments, **options)
        # An interrupt that arrives after the call's own deadline has that error as its context.
        self.assertIsNone(raised.exception.__context__)
        communicator.barrier()

    def test_of_a_work(self):
        x = array.array('f', [0])
        work = communicator.receive(x, OTHER, tag=1, asynchronous=True)
        self.interrupted(work.wait)
        self.interrupted(work.wait, 30)
        self.assertFalse(work.done())
        communicator.barrier()
        communicator.send(array.array('f', [3]), OTHER, tag=1)
        work.wait()
        self.assertEqual(x.tolist(), [3])

    def test_of_a_message_that_nobody_has_then(self):
        x = array.array('f', [0])
        self.interrupted(communicator.receive, x, OTHER, tag=2)
        with self.assertRaises(BufferError):
            x.append(1)
        communicator.send(array.array('f', [3]), OTHER, tag=2)
        while not x[0]:
            pass
        communicator.barrier()
        x.append(1)
        self.assertEqual(x.tolist(), [3, 1])

    def test_of_calls_that_are_no_works(self):
        # Rank 0 waits for rank 1 and is interrupted; when rank 1 comes, the call goes on and what it made is dropped.
        for call, arguments in ((communicator.split, (0,)), (communicator.duplicate, ()), (communicator.gather_bytes, (b'x',)),
                                (communicator.broadcast_bytes, (b'', 1)), (communicator.allocate, (4096,)),
                                (communicator.monitored_barrier, ())):
            with self.subTest(call.__name__):
                communicator.barrier()
                if RANK == 0:
                    interrupt_soon()
                    with self.assertRaises(KeyboardInterrupt):
                        call(*arguments)
                    communicator.send(b'', 1, tag=3)
                else:
                    communicator.receive(bytearray(0), 0, tag=3)
                    call(*arguments)
        communicator.barrier()

    def test_of_a_backward(self):
        # The same with a step: it goes on with the gradient, and the next one comes behind it.
        duplicate = communicator.duplicate()
        reducer = lockstep.Reducer(duplicate, [('weight', (1,))])
        x, y = array.array('f', [RANK]), array.array('f', [RANK + 10])
        if RANK == 1:
            communicator.receive(bytearray(0), 0, tag=5)
        reducer.begin_backward()
        reducer.mark_ready(0, x)
        if RANK == 0:
            interrupt_soon()
            with self.assertRaises(KeyboardInterrupt):
                reducer.end_backward()
            with self.assertRaises(BufferError):
                x.append(1)
            communicator.send(b'', 1, tag=5)
        else:
            reducer.end_backward()
        reducer.begin_backward()
        self.assertEqual(x[0], 0.5)
        x.append(1)
        reducer.mark_ready(0, y)
        reducer.end_backward()
        self.assertEqual(y[0], 10.5)
        reducer.close()
        duplicate.close()

    def test_threads_are_not_interrupted(self):
        x, done = array.array('f', [0]), []

        def receive():
            communicator.receive(x, OTHER, tag=4)
            done.append(x[0])
        thread = threading.Thread(target=receive)
        thread.start()
        self.interrupted(time.sleep, 20)
        communicator.send(array.array('f', [5]), OTHER, tag=4)
        thread.join()
        self.assertEqual(done, [5])


HEAD = '''
import array, os, signal, sys, threading, time
import lockstep
x = array.array('f', [0])
'''
PEERS = HEAD + '''
communicator = lockstep.init()
if communicator.rank == 1:
    try:
        communicator.all_reduce(x)
    except lockstep.Aborted as error:
        print(error.failed_rank, error.collective, error, sep='; ')
    sys.exit(0)
'''


@unittest.skipIf(RANK != 0, 'rank 0 starts programs')
class Programs(unittest.TestCase):

    def run_program(self, text, ranks=1, timeout=60):
        """[(exit status, output, errors)] of a program on so many ranks."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        environment = {**os.environ, 'LOCKSTEP_WORLD_SIZE': str(ranks), 'LOCKSTEP_LOCAL_WORLD_SIZE': str(ranks), 'LOCKSTEP_LOG': 'error',
                       'LOCKSTEP_STORE': f'file://{folder.name}/store'}
        started = [subprocess.Popen([sys.executable, '-c', text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env={**environment, 'LOCKSTEP_RANK': str(rank), 'LOCKSTEP_LOCAL_RANK': str(rank)})
                   for rank in range(ranks)]
        try:
            return [(process.returncode, *output) for process in started for output in [process.communicate(timeout=timeout)]]
        finally:
            for process in started:
                process.kill()

    def test_a_rank_that_raises_tells_the_others_why(self):
        first, second = self.run_program(PEERS + 'time.sleep(0.2); raise ValueError("a bad batch")', 2)
        self.assertEqual(first[0], 1)
        self.assertIn('ValueError: a bad batch', first[2])
        self.assertEqual(second[0], 0, second[2])
        self.assertRegex(second[1], '^0; all_reduce; .*rank 0.*ValueError: a bad batch')

    def test_a_rank_that_leaves_tells_the_others(self):
        for leave in ('sys.exit(3)', 'os._exit(3)'):
            first, second = self.run_program(PEERS + f'time.sleep(0.2); {leave}', 2)
            self.assertEqual(first[:1] + first[2:], (3, ''))
            self.assertEqual(second[0], 0, second[2])
            self.assertRegex(second[1], '^0; all_reduce; .*rank 0')

    def test_a_rank_that_raises_while_its_own_threads_wait(self):
        first, second = self.run_program(PEERS + '''
threading.Thread(target=communicator.receive, args=(x,)).start()
threading.Thread(target=communicator.monitored_barrier, daemon=True).start()
time.sleep(0.2)
raise ValueError("a bad batch")
''', 2)
        self.assertEqual(first[0], 1)
        self.assertRegex(second[1], '^0; all_reduce; .*rank 0')

    def test_an_interrupt_while_ranks_are_missing(self):
        (status, output, errors), = self.run_program(HEAD + '''
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    lockstep.init(world_size=2, rank=0)
except KeyboardInterrupt:
    print('interrupted')
lockstep.init(world_size=1, job_id='another').barrier()
''')
        self.assertEqual((status, output, errors), (0, 'interrupted\n', ''))

    def test_exceptions_at_any_instruction(self):
        # The memory of a receive is unmapped with its last reference: to write to it later would end the program.
        (status, output, errors), = self.run_program(HEAD + '''
import gc, mmap
class Now(Exception):
    pass
armed = []
def now(*_):
    if armed:
        armed.clear()
        raise Now
communicator = lockstep.init()
signal.signal(signal.SIGALRM, now)
caught = 0
memory = bytes(200_000)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0003)
while caught < 300:
    try:
        armed.append(True)
        while True:
            work = communicator.receive(mmap.mmap(-1, 200_000), tag=1, asynchronous=True)
            communicator.receive(mmap.mmap(-1, 200_000), tag=1, asynchronous=True)
            communicator.send(memory, 0, tag=1)
            communicator.send(memory, 0, tag=1, asynchronous=True)
            work.wait()
    except Now:
        caught += 1
signal.setitimer(signal.ITIMER_REAL, 0)
communicator.barrier()
communicator.close()
print(caught)
''')
        self.assertEqual((status, errors, int(output)), (0, '', 300))

    def test_an_interrupt_ends_a_program(self):
        first, second = self.run_program(PEERS + '''
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
communicator.receive(x)
''', 2)
        self.assertEqual(first[0], -signal.SIGINT)
        self.assertRegex(second[1], '^0; all_reduce; .*rank 0.*KeyboardInterrupt')


if __name__ == '__main__':
    unittest.main()
