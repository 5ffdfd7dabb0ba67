"""Bytes and objects between ranks: plain ones as they are, others as pickles only where both sides say so."""

import math
import threading
import unittest

import lockstep

communicator = lockstep.init(timeout_ms=60_000)
RANK, SIZE = communicator.rank, communicator.size
NEXT, LAST = (RANK + 1) % SIZE, (RANK - 1) % SIZE
PLAIN = [None, True, 7, -2**80, 1.5, math.inf, 'text \N{SNOWMAN}', b'bytes', [], [1, ['a', None]], {'a': {'b': [1.5]}}]
OTHERS = [(1, 2), {1: 2}, {'a': (1,)}, [b'bytes'], {1, 2}, 1j, lockstep.Aborted('why')]


class Trap:
    """Tells where it was unpickled."""
    sprung = []

    def __reduce__(self):
        return Trap.sprung.append, (RANK,)


class Bytes(unittest.TestCase):

    def test_broadcast(self):
        for data in (b'', b'abc', bytes(100_000)):
            self.assertEqual(communicator.broadcast_bytes(data if RANK == SIZE - 1 else b'', root=SIZE - 1), data)
        self.assertEqual(communicator.broadcast_bytes(memoryview(bytearray(b'abcd'))[1:3]), b'bc')

    def test_gather(self):
        expected = [b'x' * rank for rank in range(SIZE)]
        self.assertEqual(communicator.gather_bytes(b'x' * RANK), expected)
        self.assertEqual(communicator.gather_bytes(bytearray(b'x' * RANK), root=0), expected if RANK == 0 else None)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'data: a str is not bytes'):
            communicator.gather_bytes('text')


class Objects(unittest.TestCase):

    def test_plain_objects_come_back_as_they_are(self):
        for value in PLAIN:
            with self.subTest(value):
                self.assertEqual(communicator.broadcast_object(value if RANK == 0 else None), value)
                self.assertEqual(communicator.all_gather_object(value), [value] * SIZE)
        nan = communicator.broadcast_object(math.nan, root=SIZE - 1)
        self.assertTrue(math.isnan(nan))

    def test_gather_and_scatter(self):
        found = communicator.gather_object({'rank': RANK}, root=SIZE - 1)
        self.assertEqual(found, [{'rank': rank} for rank in range(SIZE)] if RANK == SIZE - 1 else None)
        values = [[rank] * rank for rank in range(SIZE)] if RANK == 0 else None
        self.assertEqual(communicator.scatter_object(values), [RANK] * RANK)
        for values in ([1] * (SIZE + 1), None):
            with self.assertRaisesRegex(lockstep.Error, f'{SIZE} objects are to be scattered'):
                communicator.scatter_object(values)

    def test_messages(self):
        for value in PLAIN + [b'x' * 32767, b'x' * 32768, 'x' * 100_000]:
            sender = threading.Thread(target=communicator.send_object, args=(value, NEXT, 3))
            sender.start()
            self.assertEqual(communicator.receive_object(LAST, tag=3), value)
            sender.join()

    def test_any_source(self):
        communicator.send_object(RANK, 0)
        if RANK == 0:
            self.assertEqual(sorted(communicator.receive_object() for _ in range(SIZE)), list(range(SIZE)))

    def test_a_message_that_is_no_object(self):
        communicator.send(bytes(20), NEXT, tag=4)
        with self.assertRaisesRegex(lockstep.FailedPrecondition, f'20 bytes from rank {LAST} with tag 4 is not of send_object'):
            communicator.receive_object(LAST, tag=4)


class Pickles(unittest.TestCase):

    def test_with_permission(self):
        for value in OTHERS:
            with self.subTest(value):
                found = communicator.all_gather_object(value, allow_pickle=True)
                self.assertEqual([repr(each) for each in found], [repr(value)] * SIZE)
                communicator.send_object(value, NEXT, allow_pickle=True)
                self.assertEqual(repr(communicator.receive_object(LAST, allow_pickle=True)), repr(value))
                self.assertEqual(repr(communicator.broadcast_object(value, allow_pickle=True)), repr(value))
                self.assertEqual(repr(communicator.scatter_object([value] * SIZE, allow_pickle=True)), repr(value))

    def test_what_is_not_plain_fails_on_every_rank(self):
        for value in OTHERS:
            with self.subTest(value):
                error = lockstep.InvalidArgument if RANK == 0 else lockstep.FailedPrecondition
                with self.assertRaisesRegex(error, f'type {type(value).__name__} is neither bytes nor exactly JSON; allow_pickle=True'):
                    communicator.broadcast_object(value if RANK == 0 else None)
                with self.assertRaisesRegex(error, f'type {type(value).__name__}'):
                    communicator.all_gather_object(value if RANK == 0 else None)
                with self.assertRaisesRegex(lockstep.InvalidArgument, 'neither'):
                    communicator.send_object(value, NEXT)
                with self.assertRaisesRegex(lockstep.FailedPrecondition, f'rank {LAST}: .*neither'):
                    communicator.receive_object(LAST)

    def test_what_cannot_be_pickled_fails_on_every_rank(self):
        with self.assertRaisesRegex(lockstep.Error, 'cannot be sent: .*pickle'):
            communicator.broadcast_object(lambda: None, allow_pickle=True)

    def test_a_pickle_that_nobody_asked_for_is_not_opened(self):
        communicator.send_object(Trap(), NEXT, allow_pickle=True)
        with self.assertRaisesRegex(lockstep.FailedPrecondition, f'rank {LAST}: it sent a pickle; allow_pickle=True unpickles it'):
            communicator.receive_object(LAST)
        if SIZE > 1:
            if RANK == 0:
                communicator.broadcast_object(Trap(), allow_pickle=True)
            else:
                with self.assertRaisesRegex(lockstep.FailedPrecondition, 'rank 0: it sent a pickle'):
                    communicator.broadcast_object()
        self.assertEqual(Trap.sprung, [])


if __name__ == '__main__':
    unittest.main()
