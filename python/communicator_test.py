"""Every call of a communicator, on two ranks, with arrays of the standard library."""

import array
import gc
import threading
import types
import unittest

import lockstep
from lockstep._native import ffi
from lockstep.communicator import _stream

communicator = lockstep.init(timeout_ms=60_000)
RANK, SIZE = communicator.rank, communicator.size
OTHER = 1 - RANK


def floats(*values):
    return array.array('f', values)


class Collectives(unittest.TestCase):

    def test_all_reduce(self):
        x = floats(1, RANK)
        communicator.all_reduce(x)
        self.assertEqual(x.tolist(), [2, 1])
        y = floats(0, 0)
        communicator.all_reduce(floats(RANK, 4), y, op=lockstep.MAX)
        self.assertEqual(y.tolist(), [1, 4])
        communicator.all_reduce(y, op=lockstep.PREMUL_SUM, factor=0.5, timeout=10, algorithm='auto')
        self.assertEqual(y.tolist(), [1, 4])

    def test_the_others(self):
        x = floats(RANK + 5)
        communicator.broadcast(x, root=1)
        self.assertEqual(x.tolist(), [6])
        out = floats(0, 0)
        communicator.all_gather(floats(RANK), out)
        self.assertEqual(out.tolist(), [0, 1])
        one = floats(0)
        communicator.reduce_scatter(floats(1, 2), one)
        self.assertEqual(one.tolist(), [2 * (RANK + 1)])
        communicator.all_to_all(floats(10 * RANK, 10 * RANK + 1), out)
        self.assertEqual(out.tolist(), [RANK, 10 + RANK])
        kept = floats(RANK)
        communicator.reduce(kept, root=0)
        self.assertEqual(kept.tolist(), [1])
        communicator.gather(floats(RANK + 1), out if RANK == 1 else None, root=1)
        if RANK == 1:
            self.assertEqual(out.tolist(), [1, 2])
        communicator.scatter(floats(7, 8) if RANK == 0 else None, one, root=0)
        self.assertEqual(one.tolist(), [7 + RANK])
        communicator.barrier()
        communicator.monitored_barrier(30)

    def test_counts(self):
        counts = [1, 3]
        out = floats(*[0] * 4)
        communicator.all_gather(floats(*[RANK] * counts[RANK]), out, counts)
        self.assertEqual(out.tolist(), [0, 1, 1, 1])
        mine = floats(*[0] * counts[RANK])
        communicator.reduce_scatter(floats(1, 2, 3, 4), mine, counts=counts)
        self.assertEqual(mine.tolist(), [2] if RANK == 0 else [4, 6, 8])
        with self.assertRaisesRegex(lockstep.InvalidArgument, '3 counts for 2 ranks'):
            communicator.all_gather(mine, out, [1, 1, 1])

    def test_lists(self):
        lists = [floats(1, 2), floats(3), floats()]
        communicator.all_reduce_coalesced(lists)
        self.assertEqual([each.tolist() for each in lists], [[2, 4], [6], []])
        outs = [floats(0, 0, 0, 0), floats(0, 0)]
        communicator.all_gather_coalesced([floats(RANK, 2), floats(RANK)], outs)
        self.assertEqual([each.tolist() for each in outs], [[0, 2, 1, 2], [0, 1]])
        communicator.broadcast_coalesced(lists, root=1)
        with self.assertRaisesRegex(lockstep.InvalidArgument, '2 inputs and 1 outputs'):
            communicator.all_reduce_coalesced(lists[:2], lists[:1])

    def test_dtypes_without_arithmetic_travel_as_bytes(self):
        mine, both = array.array('h', [RANK - 300, 7]), array.array('h', [0] * 4)
        communicator.all_gather(mine, both)
        self.assertEqual(both.tolist(), [-300, 7, -299, 7])
        for call in (communicator.all_gather, communicator.all_to_all):
            with self.assertRaisesRegex(lockstep.InvalidArgument, "input is of format 'h' and output is of format 'B'"):
                call(mine, bytearray(8))
        communicator.all_gather(mine[:1 + RANK], uneven := array.array('h', [0] * 3), [1, 2])
        self.assertEqual(uneven.tolist(), [-300, -299, 7])
        communicator.all_to_all(both, out := array.array('h', [0] * 4), [1, 3] if RANK == 0 else [3, 1], [1, 3] if RANK == 0 else [3, 1])
        self.assertEqual(out.tolist(), [-300, -300, 7, -299] if RANK == 0 else [7, -299, 7, 7])
        communicator.broadcast(mine, root=1)
        self.assertEqual(mine.tolist(), [-299, 7])
        communicator.gather(mine, both, root=0)
        communicator.scatter(both, mine, [2, 2], root=0)
        if RANK == 0:
            communicator.send(mine, 1)
        else:
            self.assertEqual(communicator.receive(mine, 0).bytes, 4)
        self.assertEqual(mine.tolist(), [-299, 7])
        with self.assertRaisesRegex(lockstep.InvalidArgument, "no dtype for the buffer format 'h'"):
            communicator.all_reduce(mine)

    def test_works(self):
        x = floats(1)
        work = communicator.all_reduce(x, asynchronous=True)
        work.wait()
        self.assertTrue(work.done())
        self.assertEqual(x.tolist(), [2])
        told = []
        work.on_complete(told.append)
        self.assertEqual(told, [None])
        came = threading.Event()
        work = communicator.all_reduce(x, asynchronous=True)
        work.on_complete(lambda error: came.set())
        came.wait()

    def test_a_work_that_nobody_keeps_goes_on_with_its_memory(self):
        for _ in range(20):
            communicator.all_reduce(floats(*range(100_000)), asynchronous=True)
        gc.collect()
        communicator.barrier()

    def test_waits_let_others_run_and_have_deadlines(self):
        ran = threading.Event()
        threading.Timer(0.05, ran.set).start()
        work = communicator.receive(floats(0), OTHER, tag=9, asynchronous=True)
        with self.assertRaises(TimeoutError):
            work.wait(0.3)
        self.assertTrue(ran.is_set())
        communicator.barrier()
        communicator.send(floats(RANK), OTHER, tag=9)
        work.wait()
        self.assertEqual((work.message().source, work.message().bytes), (OTHER, 4))


class Others(unittest.TestCase):

    def test_messages(self):
        x = floats(0, 0)
        work = communicator.send(floats(RANK), OTHER, tag=3, asynchronous=True)
        message = communicator.receive(x, tag=3)
        work.wait()
        self.assertEqual((message.source, message.tag, message.bytes, x[0]), (OTHER, 3, 4, OTHER))

    def test_groups_of_ranks(self):
        with communicator.split(0, key=-RANK) as turned:
            self.assertEqual(turned.rank, OTHER)
        self.assertIsNone(communicator.split(-1))
        mesh = communicator.mesh(dp=2, tp=1)
        self.assertEqual({name: each.size for name, each in mesh.items()}, {'dp': 2, 'tp': 1})
        copy = communicator.duplicate()
        copy.close()
        copy.close()
        with self.assertRaisesRegex(lockstep.FailedPrecondition, 'closed'):
            copy.barrier()

    def test_streams_are_of_the_communicators_device_unless_they_name_one(self):
        cupys, torchs = types.SimpleNamespace(ptr=8), types.SimpleNamespace(cuda_stream=8, device=types.SimpleNamespace(index=2))
        for stream, index in ((8, 1), (cupys, 1), (torchs, 2)):
            made = _stream(stream, 1)
            self.assertEqual((int(ffi.cast('intptr_t', made.handle)), made.device_index), (8, index))

    def test_memory(self):
        memory = communicator.allocate(4096)
        x = memoryview(memory.buffer).cast('f')
        x[0] = 1
        del memory
        gc.collect()
        communicator.all_reduce(x)
        self.assertEqual(x[0], 2)

    def test_memory_is_of_the_host_or_of_a_device(self):
        memory = communicator.allocate(64)
        self.assertTrue(memory.is_shared)
        self.assertEqual((memory.bytes, len(memory.buffer)), (64, 64))
        self.assertFalse(hasattr(memory, '__cuda_array_interface__'))
        with self.assertRaises(lockstep.Unimplemented):
            communicator.allocate(64, lockstep.CUDA)

    def test_texts(self):
        communicator.barrier()
        self.assertIn('barrier', communicator.flight_records())
        self.assertIn('rank', communicator.describe())
        self.assertIsNone(communicator.status())

    def test_ranks_that_differ_are_named(self):
        with communicator.duplicate() as copy:
            with self.assertRaises(lockstep.FailedPrecondition) as raised:
                copy.all_reduce(floats(*range(1 + RANK)))
            self.assertIsNotNone(copy.status())
            self.assertEqual(raised.exception.collective, 'all_reduce')
            communicator.barrier()

    def test_abort(self):
        with communicator.duplicate() as copy:
            if RANK == 0:
                copy.abort('enough \udcff')
            with self.assertRaisesRegex(lockstep.Aborted, 'enough'):
                copy.barrier()
            communicator.barrier()

    def test_calls_that_wait_let_others_run(self):
        # Rank 1 makes each call only when a message of rank 0's main thread says that rank 0 waits in it.
        with communicator.duplicate() as copy:
            for call in (copy.duplicate, lambda: copy.split(0), lambda: copy.mesh(dp=2), lambda: copy.allocate(64), copy.monitored_barrier,
                         lambda: copy.gather_bytes(b''), lambda: copy.broadcast_bytes(root=1)):
                if RANK == 0:
                    thread = threading.Thread(target=call)
                    thread.start()
                    while not copy._calls and thread.is_alive():
                        pass
                    communicator.send(b'', 1, tag=20)
                    thread.join()
                else:
                    communicator.receive(bytearray(), 0, tag=20)
                    call()

    def test_close_ends_the_calls_of_other_threads(self):
        copy = communicator.duplicate()
        raised = []

        def call():
            try:
                copy.gather_bytes(b'x')
            except lockstep.Error as error:
                raised.append(error)
        if RANK == 0:
            thread = threading.Thread(target=call)
            thread.start()
            while not copy._calls:
                pass
            copy.close()
            thread.join(30)
            self.assertIsInstance(raised[0], (lockstep.Aborted, lockstep.FailedPrecondition))
        communicator.barrier()
        copy.close()

    def test_options_of_collectives(self):
        x = floats(1)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'no option colour; there are algorithm'):
            communicator.all_reduce(x, colour=1)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'factor'):
            communicator.all_reduce(x, factor=2)
        with self.assertRaisesRegex(TypeError, 'option algorithm'):
            communicator.all_reduce(x, algorithm=7)
        with self.assertRaises(lockstep.InvalidArgument):
            communicator.all_reduce(x, op=77)
        for op in ('sum', None, 1.0):
            with self.assertRaisesRegex(lockstep.InvalidArgument, f'op is {op!r}; it is lockstep.SUM'):
                communicator.all_reduce(x, op=op)
        work = communicator.barrier(asynchronous=True)
        for timeout in (-1, float('nan'), '5'):
            with self.assertRaisesRegex(lockstep.InvalidArgument, f'timeout is {timeout!r}; it is a number of seconds'):
                communicator.all_reduce(x, timeout=timeout)
            with self.assertRaisesRegex(lockstep.InvalidArgument, f'timeout is {timeout!r}; it is a number of seconds'):
                work.wait(timeout)
        work.wait()
        with self.assertRaises(lockstep.InvalidArgument):
            communicator.broadcast(x, root=5)
        communicator.all_reduce(x)
        self.assertEqual(x.tolist(), [2])

    def test_threads_with_communicators_of_their_own(self):
        copies = [communicator.duplicate() for _ in range(4)]
        sums = [floats(RANK + i) for i in range(4)]

        def work(copy, x):
            for _ in range(20):
                copy.all_reduce(x, op=lockstep.MAX)
        threads = [threading.Thread(target=work, args=each) for each in zip(copies, sums)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([x[0] for x in sums], [1, 2, 3, 4])


if __name__ == '__main__':
    unittest.main()
