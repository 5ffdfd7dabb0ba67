"""The reducer from Python, on two ranks."""

import array
import itertools
import re
import threading
import unittest
import weakref

import lockstep

communicator = lockstep.init(timeout_ms=60_000)
RANK = communicator.rank


def floats(*values):
    return array.array('f', values)


def matrix(values, rows=2):
    return memoryview(values).cast('B').cast(values.typecode, (rows, 2))


class Reducer(unittest.TestCase):

    def setUp(self):
        self.gradients = [floats(*[RANK + i] * 4) for i in range(3)]

    def make(self, **options):
        return lockstep.Reducer(communicator, [(f'p{i}', (2, 2)) for i in range(3)], **options)

    def step(self, reducer, indexes=(2, 1, 0), **begin):
        reducer.begin_backward(**begin)
        for index in indexes:
            reducer.mark_ready(index, matrix(self.gradients[index]))
        reducer.end_backward()

    def sparse_step(self, **options):
        """A step of a sparse parameter. RETURNS  how many rows have averages"""
        reducer = lockstep.Reducer(communicator, [lockstep.Parameter('e', (10, 2), sparse=True)], **options)
        reducer.begin_backward()
        reducer.mark_ready_sparse(0, array.array('q', [3, RANK]), matrix(floats(1, 2, 3, 4)))
        reducer.end_backward()
        return reducer.averaged_rows(0)[2]

    def averages(self):
        return [gradient[0] for gradient in self.gradients]

    def test_averages(self):
        reducer = self.make()
        self.step(reducer)
        self.assertEqual(self.averages(), [0.5, 1.5, 2.5])
        self.assertEqual(reducer.statistics()['steps'], 1)
        self.assertIsNone(reducer.statistics()['copied_because'])
        self.assertEqual(reducer.logging_data()['world_size'], 2)
        self.assertIn('bucket', reducer.report())

    def test_accumulation_and_options(self):
        reducer = self.make(averaging='none', compression='bfloat16', bucket_cap_bytes=1)
        self.step(reducer, no_sync=True)
        self.assertEqual(self.averages(), [RANK, RANK + 1, RANK + 2])
        self.step(reducer)
        self.assertEqual(self.averages(), [1, 3, 5])
        for options, kind, text in (({'colour': 1}, lockstep.InvalidArgument, 'no option colour; there are averaging, bucket_cap_bytes, '),
                                    ({'hook_context': 1}, lockstep.InvalidArgument, 'no option hook_context'),
                                    ({'averaging': 'never'}, lockstep.InvalidArgument, "averaging 'never'; there are before"),
                                    ({'bucket_cap_bytes': 'x'}, TypeError, 'option bucket_cap_bytes: '),
                                    ({'delayed': ['x']}, TypeError, 'option delayed: '),
                                    ({'bucket_caps_bytes': [2**70]}, OverflowError, 'option bucket_caps_bytes: ')):
            with self.subTest(options), self.assertRaisesRegex(kind, text):
                self.make(**options)
        self.step(self.make(averaging=None, bucket_cap_bytes=None, plan=None, delayed=None))

    def test_unused_parameters(self):
        reducer = self.make(find_unused_parameters=True)
        self.step(reducer, (0, 1) if RANK == 0 else (0,))
        self.assertEqual(self.averages()[0], 0.5)
        address, used = reducer.averaged_gradient(1)
        self.assertTrue(used and address)
        self.assertEqual(reducer.averaged_gradient(2), (None, False))

    def test_a_backward_that_is_cut_short_has_no_unused_parameters(self):
        for option, reason in itertools.product(('find_unused_parameters', 'static_graph'), ('it raised', '')):
            reducer = self.make(**{option: True})
            self.setUp()
            error = self.assertRaisesRegex(lockstep.FailedPrecondition, f'rank 0.* {reason or "no gradient came"}')
            with self.subTest(option, reason=reason), error:
                if RANK == 0:
                    reducer.begin_backward()
                    reducer.mark_ready(2, matrix(self.gradients[2]))
                    reducer.explain_missing(reason)
                    reducer.end_backward()
                else:
                    self.step(reducer)
            self.assertEqual(reducer.gradient_states(), ['unchanged'] * 3)
            for _ in range(2):
                self.setUp()
                self.step(reducer)
                self.assertEqual(self.averages(), [0.5, 1.5, 2.5])

    def test_what_a_failed_step_leaves(self):
        for preserve in (False, True):
            reducer = self.make(bucket_cap_bytes=1, no_replan=True, preserve_gradients=preserve)
            self.setUp()
            with self.assertRaisesRegex(lockstep.FailedPrecondition, "rank 1.*'p1'") as raised:
                self.step(reducer, (2, 1, 0) if RANK == 0 else (2, 0))
            self.assertEqual(raised.exception.failed_rank, 1)
            self.assertEqual(reducer.gradient_states(), ['unchanged', 'unchanged', 'unchanged' if preserve else 'averaged'])
            self.assertEqual(self.averages(), [RANK, RANK + 1, RANK + 2 if preserve else 2.5])
            self.setUp()
            self.step(reducer)
            self.assertEqual(self.averages(), [0.5, 1.5, 2.5])

    def test_a_refused_step_leaves_the_one_under_way_its_gradients(self):
        reducer = self.make()
        reducer.begin_backward()
        for index in (2, 1):
            reducer.mark_ready(index, matrix(self.gradients[index]))
        with self.assertRaises(lockstep.FailedPrecondition):
            reducer.begin_backward()
        with self.assertRaises(BufferError):
            self.gradients[2].append(0)
        reducer.mark_ready(0, matrix(self.gradients[0]))
        reducer.end_backward()
        self.assertEqual(self.averages(), [0.5, 1.5, 2.5])
        self.gradients[2].append(0)

    def test_memory_is_held_while_the_library_owns_it(self):
        """A gradient that is marked without sync is averaged by the next synchronised step, a delayed one when its trigger is marked."""
        def mark(reducer, call, *arrays):
            getattr(reducer, call)(0, *map(matrix, arrays))
            return [weakref.ref(each) for each in arrays]

        for options, calls in (({'find_unused_parameters': True}, ('mark_ready', 'mark_ready_into')),
                               ({'delayed': iter([0]), 'delayed_trigger': 1}, ('mark_ready',))):
            for call in calls:
                with self.subTest(call, **options):
                    reducer = self.make(**options)
                    reducer.begin_backward(no_sync=True)
                    alive = mark(reducer, call, *[floats(*[RANK] * 4) for _ in range(len(call.split('_')) - 1)])
                    for index in (1, 2) if 'delayed' in options else ():
                        reducer.mark_ready(index, matrix(self.gradients[index]))
                    reducer.end_backward()
                    self.assertIsNotNone(alive[0]())
                    self.step(reducer, (2, 1))
                    if 'delayed' in options:
                        self.assertEqual(alive[0](), floats(*[0.5] * 4))
                    else:
                        self.assertEqual([each() for each in alive], [None] * len(alive))
                    reducer.close()

    def test_sparse_parameters(self):
        self.assertEqual(self.sparse_step(), 3)

    def test_optimizer_in_backward_and_its_errors(self):
        seen = []

        def step(bucket):
            seen.append((bucket.gradients, bucket.rows, threading.current_thread().name))
        self.step(self.make(optimizer_step=step))
        self.assertEqual(sorted(gradient for gradients, _, _ in seen for gradient in gradients),
                         [(i, gradient.buffer_info()[0]) for i, gradient in enumerate(self.gradients)])
        self.assertEqual({rows for _, rows, _ in seen}, {None})
        self.assertNotEqual(seen[0][2], threading.current_thread().name)

        def fail(bucket):
            raise ZeroDivisionError('by zero')
        failing = self.make(optimizer_step=fail)
        with self.assertRaisesRegex(lockstep.Error, 'ZeroDivisionError: by zero'):
            self.step(failing)

    def test_hooks(self):
        def halve(bucket, completion):
            bucket.all_reduce()
            values = memoryview(bucket.buffer).cast('f')
            for _, begin, elements in bucket.gradients():
                for i in range(begin // 4, begin // 4 + elements):
                    values[i] /= 4
            threading.Timer(0.01, completion.done).start()
        self.step(self.make(hook=halve))
        self.assertEqual(self.averages(), [0.25, 0.75, 1.25])
        self.setUp()
        self.step(self.make(hook='noop'))
        self.assertEqual(self.averages(), [RANK, RANK + 1, RANK + 2])

        def fail(bucket, completion):
            raise ZeroDivisionError('by zero')
        with self.assertRaisesRegex(lockstep.Error, 'ZeroDivisionError: by zero'):
            self.step(self.make(hook=fail))

    def test_bucket_views_outlive_the_reducer(self):
        reducer = self.make(gradient_as_bucket_view=True)
        views = [memoryview(reducer.gradient_view(i)).cast('f') for i in range(3)]
        reducer.begin_backward()
        for i, view in enumerate(views):
            view[:] = self.gradients[i]
            reducer.mark_ready_at(i, reducer.gradient_view_address(i))
        reducer.end_backward()
        self.assertEqual([view[3] for view in views], [0.5, 1.5, 2.5])
        reducer.close()
        views[0][0] = 7
        self.assertEqual([views[0][0], views[2][0]], [7, 2.5])

    def test_a_sparse_bucket_in_a_hook_and_an_optimizer(self):
        seen, refused = [], []

        def double(bucket, completion):
            rows_at, values_at, count = bucket.rows()
            seen.append(count)
            row = matrix(floats(1, 2), rows=1)
            for rows, values, text in ((array.array('i', [4]), row, 'rows: a vector of int64'),
                                       (array.array('q', [4]), array.array('d', [1, 2]), 'values: float64 for the float32 of parameter e'),
                                       (array.array('q', [4]), floats(1, 2), r'values: shape \[2\], not \[1, 2\]'),
                                       (array.array('q', [4, 5]), row, r'values: shape \[1, 2\], not \[2, 2\]')):
                try:
                    bucket.set_rows(rows, values)
                except lockstep.InvalidArgument as error:
                    refused.append(re.match(text, str(error)) is not None)
            bucket.set_rows(array.array('q', [4]), row)
            completion.done()

        self.assertEqual((self.sparse_step(hook=double), seen), (1, [2]))
        self.assertEqual(refused, [True] * 4)

    def test_a_rank_without_inputs_joins(self):
        reducer = self.make(uneven_inputs=True)
        model = floats(RANK)
        if RANK == 0:
            self.step(reducer)
            self.assertEqual(self.averages(), [0, 0.5, 1])
        reducer.join([model])
        self.assertEqual(model[0], 0)

    def test_a_closed_reducer_says_so(self):
        reducer = self.make()
        reducer.close()
        reducer.close()
        with self.assertRaisesRegex(lockstep.FailedPrecondition, 'the reducer is closed'):
            reducer.begin_backward()

    def test_marks_from_several_threads(self):
        reducer = lockstep.Reducer(communicator, [(f'p{i}', (8,)) for i in range(64)])
        gradients = [floats(*[RANK + i] * 8) for i in range(64)]
        for _ in range(5):
            reducer.begin_backward()
            threads = [threading.Thread(target=lambda t: [reducer.mark_ready(i, gradients[i]) for i in range(t, 64, 4)], args=(t,))
                       for t in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            reducer.end_backward()
        self.assertEqual([gradient[0] for gradient in gradients], [i + 0.5 for i in range(64)])

    def test_plans_and_another_communicator(self):
        reducer = self.make()
        self.step(reducer)
        self.make(plan=reducer.export_plan())
        with communicator.duplicate() as copy:
            reducer.change_communicator(copy)
            self.setUp()
            self.step(reducer)
            self.assertEqual(self.averages(), [0.5, 1.5, 2.5])
            reducer.close()


if __name__ == '__main__':
    unittest.main()
