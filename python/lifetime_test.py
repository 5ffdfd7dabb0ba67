"""Handles die in any order, also in the garbage collector; forked children and the interpreter's end are clean."""

import array
import gc
import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
import unittest
import weakref

import lockstep
from lockstep import works


def floats(*values):
    return array.array('f', values)


class Names:
    """What dies: attributes, one of each kind, with what uses the others under way."""

    def __init__(self):
        self.communicator = lockstep.init()
        self.memory = self.communicator.allocate(4096)
        self.array = memoryview(self.memory.buffer).cast('f')
        self.gradient = floats(1, 2, 3, 4)
        self.work = self.communicator.receive(self.array, tag=1, asynchronous=True)
        self.send = self.communicator.send(bytes(2_000_000), 0, tag=5, asynchronous=True)
        self.work.on_complete(lambda error, kept=self.array: None)
        self.split = self.communicator.split(0)
        self.reducer = lockstep.Reducer(self.split, [('p', (4,))])
        self.reducer.begin_backward()
        self.reducer.mark_ready(0, self.gradient)


class Handles(unittest.TestCase):

    def test_they_die_in_any_order(self):
        for order in itertools.permutations(('communicator', 'work', 'memory', 'reducer', 'array')):
            names = Names()
            for name in order:
                delattr(names, name)

    def test_they_are_closed_in_any_order(self):
        for order in itertools.permutations(('communicator', 'split', 'reducer')):
            names = Names()
            for name in order:
                getattr(names, name).close()
            with self.assertRaises(lockstep.Error):
                names.send.wait()
            self.assertTrue(names.work.done())

    def test_they_die_in_the_garbage_collector(self):
        for order in itertools.permutations(('communicator', 'work', 'memory', 'reducer', 'array')):
            names = Names()
            # Everything in one cycle, which begins elsewhere each time.
            cycle = [getattr(names, name) for name in order]
            cycle.append(cycle)
            names.reducer.cycle = cycle
            names.__dict__.clear()
            del names, cycle
            gc.collect()

    def test_a_reducer_goes_in_its_own_callback(self):
        began, dropped, gone = threading.Event(), threading.Event(), threading.Event()

        def step(_bucket):
            began.set()
            dropped.wait(60)
        with lockstep.init() as communicator:
            reducer, gradient = lockstep.Reducer(communicator, [('p', (4,))], optimizer_step=step), floats(1, 2, 3, 4)
            weakref.finalize(reducer, gone.set)
            reducer.begin_backward()
            reducer.mark_ready(0, gradient)
            began.wait()
            del reducer
            dropped.set()
            gone.wait()

    def test_a_work_that_nobody_has_keeps_its_memory_until_it_is_done(self):
        with lockstep.init() as communicator:
            memory = bytearray(4)
            communicator.receive(memory, tag=1, asynchronous=True)
            gc.collect()
            with self.assertRaises(BufferError):
                memory.append(1)
            communicator.send(b'abcd', 0, tag=1)
            communicator.barrier()
            communicator.barrier()
            memory.append(1)
            self.assertEqual(memory[:4], b'abcd')

    def test_memory_is_free_after_the_wait(self):
        with lockstep.init() as communicator:
            x = floats(1)
            work = communicator.all_reduce(x, asynchronous=True)
            work.wait()
            x.append(1)

    def test_an_exception_in_the_middle_leaves_nothing_behind(self):
        with lockstep.init() as communicator:
            for _ in range(100):
                try:
                    work = communicator.receive(floats(*range(1000)), asynchronous=True)
                    communicator.all_reduce(work)
                except lockstep.InvalidArgument as error:
                    kept = error
            del work, kept
            gc.collect()
        with lockstep.init() as communicator:
            communicator.barrier()
            communicator.barrier()
        self.assertLessEqual(len(works._lent), 1)

    def test_a_communicator_that_nobody_has_ends(self):
        communicator = lockstep.init()
        work = communicator.receive(floats(0), asynchronous=True)
        gone = weakref.ref(communicator)
        del communicator
        self.assertIsNone(gone())
        with self.assertRaises(lockstep.Error):
            work.wait(30)

    def test_a_callback_keeps_its_work(self):
        communicator = lockstep.init()
        told = threading.Event()
        communicator.receive(floats(0), tag=1, asynchronous=True).on_complete(lambda error: told.set())
        gc.collect()
        communicator.send(floats(1), 0, tag=1)
        told.wait()


_children = []


def barrier_in_child():
    _children[0].barrier()


class Forks(unittest.TestCase):

    def setUp(self):
        self.names = Names()
        self.communicator = lockstep.init()

    def tearDown(self):
        # The parent's are as they were.
        self.communicator.barrier()
        self.names.communicator.send(floats(7), 0, tag=1)
        self.names.work.wait(30)
        self.assertEqual(self.names.array[0], 7)
        self.names.reducer.end_backward()

    def child(self):
        """Runs in a forked child: what is there from the parent is refused by name, and may be dropped; the child may make its own."""
        for call in (self.communicator.barrier, self.communicator.duplicate, self.communicator.describe, self.names.work.wait,
                     self.names.reducer.end_backward, lambda: self.communicator.send(b'', 0), lambda: self.communicator.gather_bytes(b''),
                     lambda: self.communicator.allocate(64).buffer, lambda: self.names.memory.buffer):
            with self.assertRaisesRegex(lockstep.FailedPrecondition, 'fork'):
                call()
        self.names.communicator.close()
        self.names.__dict__.clear()
        gc.collect()
        with lockstep.init() as own:
            own.all_reduce(floats(1))

    def test_os_fork(self):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.child()
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_worker_process(self):
        # As a DataLoader starts them.
        child = multiprocessing.get_context('fork').Process(target=self.child)
        child.start()
        child.join(60)
        self.assertEqual(child.exitcode, 0)

    def test_errors_travel_between_processes(self):
        with multiprocessing.get_context('fork').Pool(1, _children.append, (self.communicator,)) as pool:
            with self.assertRaisesRegex(lockstep.FailedPrecondition, 'fork'):
                pool.apply(barrier_in_child)


HEAD = '''
import array, gc, os, sys, threading, time
import lockstep
communicator = lockstep.init()
x = array.array('f', [0] * 4)
'''


class Ends(unittest.TestCase):

    def ends(self, text, status=0, errors=''):
        done = subprocess.run([sys.executable, '-X', 'faulthandler', '-W', 'ignore::DeprecationWarning', '-c', HEAD + text],
                              capture_output=True, text=True, timeout=60, check=False, env={**os.environ, 'LOCKSTEP_LOG': 'error'})
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertRegex(done.stderr, f'^{errors}$')
        return done.stdout

    def test_with_everything_open(self):
        self.ends('''
reducer = lockstep.Reducer(communicator.split(0), [('p', (4,))], optimizer_step=print)
work = communicator.receive(x, asynchronous=True)
reducer.begin_backward()
memory = communicator.allocate(100).buffer
cycle = [communicator, reducer, work, memory]; cycle.append(cycle)
try:
    reducer.mark_ready(0, array.array('f', [1]))
except lockstep.InvalidArgument as error:
    kept = error
''')

    def test_callbacks_are_told(self):
        output = self.ends('''
for i in range(50):
    communicator.receive(x, tag=i, asynchronous=True).on_complete(lambda error: print(type(error).__name__))
''')
        self.assertEqual(set(output.split()), {'Cancelled'})
        self.assertEqual(len(output.split()), 50)

    def test_with_threads_that_wait(self):
        self.ends('''
for call in (lambda: communicator.receive(x), communicator.receive(x, asynchronous=True).wait, communicator.barrier):
    for _ in range(3):
        threading.Thread(target=call, daemon=True).start()
time.sleep(0.1)
''', errors='(.|\\n)*')

    def test_a_reducer_closed_under_a_thread_that_is_in_it(self):
        self.ends('''
for _ in range(20):
    own, kept = communicator.duplicate(), []
    reducer = lockstep.Reducer(own, [('p', (4,))], hook=lambda bucket, completion: kept.append(completion))
    def step():
        reducer.begin_backward()
        reducer.mark_ready(0, x)
        reducer.end_backward()
    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    while not kept:
        time.sleep(0.001)
    time.sleep(0.005)
    threading.Timer(0.005, kept[0].done).start()
    own.close()
    reducer.close()
    thread.join()
''', errors='(.|\\n)*')

    def test_with_threads_that_compute_and_communicate(self):
        self.ends('''
def work(own):
    y = array.array('f', range(1000))
    while True:
        own.all_reduce(y, asynchronous=True).on_complete(lambda error: sum(y))
for _ in range(3):
    threading.Thread(target=work, args=(communicator.duplicate(),), daemon=True).start()
time.sleep(0.2)
''', errors='(.|\\n)*')

    def test_in_the_middle_of_a_hook(self):
        self.ends('''
entered = threading.Event()
def hook(bucket, completion):
    entered.set()
    time.sleep(0.5)
    completion.done()
reducer = lockstep.Reducer(communicator, [('p', (4,))], hook=hook)
reducer.begin_backward()
reducer.mark_ready(0, x)
entered.wait()
''', errors='(.|\\n)*')

    def test_with_an_exception(self):
        self.ends('''
work = communicator.receive(x, asynchronous=True)
raise ValueError('a bad batch')
''', status=1, errors='(.|\\n)*ValueError: a bad batch(.|\\n)*')

    def test_in_functions_of_the_end(self):
        self.assertEqual(self.ends('''
import atexit
@atexit.register
def last():
    with communicator.duplicate() as copy:
        print(copy.gather_object(7), copy.receive(x, tag=3, asynchronous=True).done())
'''), '[7] False\n')

    def test_after_a_fork(self):
        self.ends('''
work = communicator.receive(x, asynchronous=True)
work.on_complete(lambda error: print('told'))
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
communicator.barrier()
''')


if __name__ == '__main__':
    unittest.main()
