"""lockstep.jax on three ranks: collectives and averaged gradients in compiled functions."""

import functools
import threading
import unittest

import ranks

import lockstep
import lockstep.jax
from lockstep.jax import handlers
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update('jax_enable_x64', True)

all_reduce, all_gather, all_to_all = lockstep.jax.all_reduce, lockstep.jax.all_gather, lockstep.jax.all_to_all
broadcast, reduce_scatter, tie = lockstep.jax.broadcast, lockstep.jax.reduce_scatter, lockstep.jax.tie

FAILED = jax.errors.JaxRuntimeError, ValueError  # the latter where JAX runs a program at once


def setUpModule():
    global communicator, RANK, SIZE
    communicator = lockstep.init(timeout_ms=60_000)
    RANK, SIZE = communicator.rank, communicator.size


def tearDownModule():
    communicator.close()


def of_rank(rank, shape, dtype='float64', seed=0):
    """An array that every rank can compute: that of `rank`."""
    generator = np.random.default_rng([seed, rank])
    if dtype == 'bool':
        return jnp.asarray(generator.integers(0, 2, shape), dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(generator.integers(1, 5, shape), dtype)
    # Whole numbers, so that sums are exact in any order and dtype.
    real = generator.integers(-4, 5, shape)
    return jnp.asarray(real + 1j * generator.integers(-4, 5, shape) if 'complex' in dtype else real, dtype)


def of_all(shape, dtype='float64', seed=0):
    return [of_rank(rank, shape, dtype, seed) for rank in range(SIZE)]


class Collectives(unittest.TestCase):

    def check(self, call, expected, *inputs):
        """In a jitted function and without one."""
        for function in (jax.jit(call), call):
            found, token = function(*inputs, None)
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
            self.assertGreater(token, 0)
            self.assertEqual(found.dtype, expected.dtype)

    def test_dtypes(self):
        for dtype in ('bool', 'int8', 'uint8', 'int32', 'uint32', 'int64', 'uint64', 'float16', 'bfloat16', 'float32', 'float64',
                      'complex64', 'complex128'):
            with self.subTest(dtype):
                xs = of_all((SIZE, 5), dtype)
                total = sum(xs[1:], xs[0]) if dtype != 'bool' else np.any(xs, axis=0)
                self.check(lambda x, token: all_reduce(x, communicator, token=token), jnp.asarray(total, dtype), xs[RANK])
                self.check(lambda x, token: reduce_scatter(x, communicator, token=token), jnp.asarray(total, dtype)[RANK], xs[RANK])
                self.check(lambda x, token: all_gather(x, communicator, token=token), jnp.stack(xs), xs[RANK])
                self.check(lambda x, token: broadcast(x, communicator, SIZE - 1, token=token), xs[-1], xs[RANK])
                self.check(lambda x, token: all_to_all(x, communicator, token=token), jnp.stack([x[RANK] for x in xs]), xs[RANK])
        for dtype in ('int16', 'uint16', 'int4', 'uint4', 'float4_e2m1fn', 'float8_e4m3fnuz', 'float8_e3m4'):  # no arithmetic of these
            with self.subTest(dtype):
                xs = of_all((SIZE, 5), dtype)
                self.check(lambda x, token: all_gather(x, communicator, token=token), jnp.stack(xs), xs[RANK])
                self.check(lambda x, token: broadcast(x, communicator, SIZE - 1, token=token), xs[-1], xs[RANK])
                self.check(lambda x, token: all_to_all(x, communicator, token=token), jnp.stack([x[RANK] for x in xs]), xs[RANK])

    def test_reductions(self):
        floats, integers = of_all((7,), 'float32'), of_all((7,), 'int32')
        for op, of, xs in ((lockstep.PROD, np.prod, floats), (lockstep.MIN, np.min, floats), (lockstep.MAX, np.max, integers),
                           (lockstep.AND, np.bitwise_and.reduce, integers), (lockstep.OR, np.bitwise_or.reduce, integers),
                           (lockstep.XOR, np.bitwise_xor.reduce, integers)):
            with self.subTest(op):
                expected = jnp.asarray(of(np.stack(xs), axis=0), xs[0].dtype)
                self.check(lambda x, token: all_reduce(x, communicator, op=op, token=token), expected, xs[RANK])
        x, _ = jax.jit(lambda x: all_reduce(x, communicator, op=lockstep.AVG))(floats[RANK])
        np.testing.assert_allclose(x, np.mean(np.stack(floats), axis=0), rtol=1e-6, atol=1e-6)

    def test_shapes(self):
        for shape in ((), (0,), (3, 0, 2), (1,), (2, 3, 4), (300_000,)):
            with self.subTest(shape):
                xs = of_all(shape)
                self.check(lambda x, token: all_reduce(x, communicator, token=token), sum(xs), xs[RANK])
                self.check(lambda x, token: all_gather(x, communicator, token=token), jnp.stack(xs), xs[RANK])
                self.check(lambda x, token: broadcast(x, communicator, 1, token=token), xs[1], xs[RANK])
                xs = of_all((SIZE, *shape))
                self.check(lambda x, token: reduce_scatter(x, communicator, token=token), sum(xs)[RANK], xs[RANK])
                self.check(lambda x, token: all_to_all(x, communicator, token=token), jnp.stack([x[RANK] for x in xs]), xs[RANK])

    def test_numpy_arrays_and_python_numbers(self):
        self.assertEqual(all_reduce(RANK + 1.5, communicator)[0], sum(rank + 1.5 for rank in range(SIZE)))
        np.testing.assert_array_equal(all_gather(np.full(2, RANK), communicator)[0], [[rank, rank] for rank in range(SIZE)])

    def test_inputs_stay_as_they_are(self):
        x = of_rank(RANK, (4,))
        before = np.array(x)
        jax.jit(lambda x: (all_reduce(x, communicator), x + 1))(x)
        y = jax.jit(lambda x: broadcast(x, communicator, root=1)[0] + x)(x)
        np.testing.assert_array_equal(x, before)
        np.testing.assert_array_equal(y, of_rank(1, (4,)) + before)

    def test_independent_calls_run_in_the_order_of_tokens(self):
        @jax.jit
        def program(xs, token):
            ys = []
            for x in xs:
                y, token = all_reduce(jnp.sin(x), communicator, token=token)
                ys.append(y)
            return ys, token

        # Of one size, so that calls in another order would be taken for each other.
        xs, token = [jnp.full(16, float(i)) for i in range(40)], None
        for _ in range(20):
            ys, token = program(xs, token)
            for i, y in enumerate(ys):
                np.testing.assert_allclose(y, SIZE * np.sin(np.full(16, float(i))), rtol=1e-12)

    def test_tokens_go_from_program_to_program(self):
        first, second = (jax.jit(lambda x, token, op=op: all_reduce(x, communicator, op=op, token=token))
                         for op in (lockstep.SUM, lockstep.MAX))
        token, found = None, []
        for i in range(50):
            y, token = first(jnp.full(3, float(i)), token)
            z, token = second(jnp.full(3, float(i)), token)
            found.append((y, z))
        for i, (y, z) in enumerate(found):
            self.assertEqual((y[0], z[0]), (i * SIZE, i))

    def test_scan_and_conditionals(self):
        def body(state, x):
            y, token = all_reduce(state[0] + x, communicator, op=lockstep.AVG, token=state[1])
            y, token = jax.lax.cond(x > 2, lambda y, token: all_reduce(y, communicator, op=lockstep.MAX, token=token),
                                    lambda y, token: (y, token), y, token)
            return (y, token), y

        x, xs = of_rank(RANK, (3,)), jnp.arange(6.)
        (_, token), ys = jax.jit(lambda x: jax.lax.scan(body, (x, jnp.float32(0)), xs))(x)
        expected, mean = [], np.mean(np.stack(of_all((3,))), axis=0)
        for x in xs:
            mean = mean + x
            expected.append(mean)
        np.testing.assert_allclose(ys, expected, rtol=1e-12)
        self.assertGreater(token, 0)

    def test_communicators_of_subgroups(self):
        half = communicator.split(min(RANK, 1))
        y, token = jax.jit(lambda x: all_reduce(x, half))(jnp.ones(2))
        y, token = jax.jit(lambda y, token: all_reduce(y, communicator, token=token))(y, token)
        y, token = jax.jit(lambda y, token: all_reduce(y, half, op=lockstep.MAX, token=token))(y, token)
        self.assertEqual(y.tolist(), [1 + (SIZE - 1) ** 2] * 2)
        half.close()

    def test_communicators_without_an_order_are_refused(self):
        parts = [communicator.duplicate() for _ in range(2)]

        @jax.jit
        def program(x, tokens):
            return [all_reduce(x, part, token=token)[1] for part, token in zip(parts, tokens)]

        tokens = [all_reduce(jnp.ones(2), part)[1] for part in parts]
        jax.block_until_ready(tokens)
        # A rank that has begun the call which another one refuses is aborted, with the same reason.
        with self.assertRaisesRegex(Exception, '(FAILED_PRECONDITION|ABORTED): .*its token is older than the last call of another communica'
                                               'tor: give each call the token of the one before it, whatever their communicators are'):
            for _ in range(2):
                tokens = jax.block_until_ready(program(jnp.ones(2), tokens))
        for part in parts:
            part.close()


class Batches(unittest.TestCase):

    CALLS = {
        'all_reduce': lambda x, token: all_reduce(x, communicator, token=token),
        'reduce_scatter': lambda x, token: reduce_scatter(x, communicator, token=token),
        'all_gather': lambda x, token: all_gather(x, communicator, token=token),
        'broadcast': lambda x, token: broadcast(x, communicator, 1, token=token),
        'all_to_all': lambda x, token: all_to_all(x, communicator, token=token),
    }

    def test_vmap_is_the_same_as_a_loop(self):
        x = of_rank(RANK, (SIZE, 4, 2, 5))
        for name, call in self.CALLS.items():
            for axis in (1, 2, 3):
                with self.subTest(f'{name} over {axis}'):
                    one_by_one = jnp.stack([call(part, None)[0] for part in jnp.moveaxis(x, axis, 0)])
                    batched, token = jax.jit(jax.vmap(call, (axis, None), (0, None)))(x, jnp.float32(0))
                    np.testing.assert_array_equal(batched, one_by_one)
                    self.assertEqual(token.shape, ())
            with self.subTest(f'{name}, twice'):
                twice, _ = jax.vmap(jax.vmap(call, (1, None), (0, None)), (1, None), (0, None))(x, jnp.float32(0))
                loop = [[call(x[:, i, j], None)[0] for j in range(2)] for i in range(4)]
                np.testing.assert_array_equal(twice, loop)

    def test_one_call_for_a_batch(self):
        text = jax.jit(jax.vmap(self.CALLS['all_gather'], (0, None), (0, None))).lower(jnp.ones((8, 3)), jnp.float32(0)).as_text()
        self.assertEqual(text.count('stablehlo.custom_call @lockstep_all_gather'), 1)

    def test_what_is_not_batched(self):
        x = of_rank(RANK, (3,))
        ys, token = jax.vmap(lambda a, x: (a * all_reduce(x, communicator)[0], a), (0, None))(jnp.arange(4.), x)
        np.testing.assert_array_equal(ys, np.arange(4.)[:, None] * sum(of_all((3,))))


class Gradients(unittest.TestCase):
    """Of the sum of all ranks' losses, compared with finite differences of that sum over each rank's inputs."""

    def check(self, loss, shape, tolerance=1e-6):
        """loss(x, token) is a rank's (loss, its last token)."""
        def with_token(x, token):
            value, token = loss(x, token)
            return tie(value, token)

        x = of_rank(RANK, shape) / 5 + 0.1
        evaluate = jax.jit(lambda x: loss(x, jnp.float32(0))[0])
        expected = np.zeros((SIZE, *shape))
        for rank in range(SIZE):
            for at in np.ndindex(*shape):
                step = np.zeros(shape)
                step[at] = 1e-5 if rank == RANK else 0
                difference = np.array([evaluate(x + step) - evaluate(x - step)])
                communicator.all_reduce(difference)
                expected[rank][at] = difference[0] / 2e-5
        for gradient in (jax.grad(with_token, argnums=(0, 1)), jax.jit(jax.grad(with_token, argnums=(0, 1)))):
            found, token = gradient(x, jnp.float32(0))
            np.testing.assert_allclose(found, expected[RANK], rtol=tolerance, atol=tolerance)
            self.assertGreater(token, 0)

    def weights(self, shape):
        return of_rank(RANK, shape, seed=1) / 3

    def test_all_reduce(self):
        for op in (lockstep.SUM, lockstep.AVG):
            def loss(x, token):
                y, token = all_reduce(jnp.sin(x), communicator, op=op, token=token)
                return (self.weights((3,)) * y ** 2).sum(), token
            self.check(loss, (3,))

    def test_reduce_scatter(self):
        for op in (lockstep.SUM, lockstep.AVG):
            def loss(x, token):
                y, token = reduce_scatter(jnp.sin(x), communicator, op=op, token=token)
                return (self.weights((2,)) * y ** 2).sum(), token
            self.check(loss, (SIZE, 2))

    def test_all_gather(self):
        def loss(x, token):
            y, token = all_gather(jnp.sin(x), communicator, token=token)
            return (self.weights((SIZE, 2)) * y ** 2).sum(), token
        self.check(loss, (2,))

    def test_broadcast(self):
        def loss(x, token):
            y, token = broadcast(jnp.sin(x), communicator, root=1, token=token)
            return (self.weights((3,)) * y ** 2).sum(), token
        self.check(loss, (3,))

    def test_broadcast_of_which_only_the_gradient_of_x_is_used(self):
        x = jnp.arange(3.) + 1
        gradient = jax.jit(jax.grad(lambda x: (broadcast(x, communicator, root=1)[0] ** 2).sum()))(x)
        expected = 2 * SIZE * x if communicator.rank == 1 else 0 * x
        self.assertEqual(gradient.tolist(), expected.tolist())
        y, _ = all_reduce(x, communicator)  # the ranks are in step
        self.assertEqual(y.tolist(), (SIZE * x).tolist())

    def test_all_to_all(self):
        def loss(x, token):
            y, token = all_to_all(jnp.sin(x), communicator, token=token)
            return (self.weights((SIZE, 2)) * y ** 2).sum(), token
        self.check(loss, (SIZE, 2))

    def test_all_of_them_in_a_row(self):
        def loss(x, token):
            y, token = all_reduce(x * x, communicator, token=token)
            y, token = all_gather(jnp.cos(y) * x, communicator, token=token)
            y, token = all_to_all(y, communicator, token=token)
            z, token = reduce_scatter(jnp.sin(y), communicator, token=token)
            most, token = all_reduce(jax.lax.stop_gradient(z), communicator, op=lockstep.MAX, token=token)
            y, token = broadcast(z / (1 + most ** 2), communicator, token=token)
            return (self.weights((2,)) * y).sum(), token

        # What the loss does not depend on comes last: the backward pass begins behind it.
        def and_a_metric(x, token):
            value, token = loss(x, token)
            _, token = all_reduce(jax.lax.stop_gradient(value), communicator, op=lockstep.MAX, token=token)
            return value, token

        # Without the change of `most`, which has a gradient of zero here and a finite difference that is not.
        def smooth(x, token):
            y, token = all_reduce(x * x, communicator, token=token)
            y, token = all_gather(jnp.cos(y) * x, communicator, token=token)
            y, token = all_to_all(y, communicator, token=token)
            z, token = reduce_scatter(jnp.sin(y), communicator, token=token)
            y, token = broadcast(z, communicator, token=token)
            return (self.weights((2,)) * y).sum(), token

        self.check(smooth, (2,))
        for _ in range(10):
            gradient = jax.jit(jax.grad(lambda x, token: tie(*and_a_metric(x, token)), argnums=(0, 1)))(of_rank(RANK, (2,)), jnp.float32(0))
            self.assertTrue(np.isfinite(gradient[0]).all())

    def test_in_scan_and_vmap(self):
        def loss(x, token):
            def body(state, weight):
                y, token = all_reduce(state[0] * weight, communicator, op=lockstep.AVG, token=state[1])
                return (jnp.sin(y) + state[0], token), None
            (x, token), _ = jax.lax.scan(body, (x, token), jnp.arange(1., 4.))
            return (self.weights((2,)) * x).sum(), token

        def batched(x, token):
            def one(x, token):
                y, token = all_gather(jnp.sin(x), communicator, token=token)
                return (y ** 2).sum(), token
            y, token = jax.vmap(one, (0, None), (0, None))(x, token)
            return (self.weights((2,)) * y).sum(), token

        self.check(loss, (2,))
        self.check(batched, (2, 2))

    def test_of_gradients(self):
        v = of_rank(RANK, (2,), seed=2) / 3

        def loss(x, token):
            y, token = all_reduce(jnp.sin(x), communicator, token=token)
            return tie((self.weights((2,)) * y ** 3).sum(), token)

        def along(x, token):
            gradient, token = jax.grad(loss, argnums=(0, 1))(x, token)
            return (gradient * v).sum(), token
        self.check(along, (2,))

    def test_checkpoints(self):
        def gradient(**options):
            @functools.partial(jax.checkpoint, **options)
            def layer(state, _):
                y, token = all_reduce(jnp.sin(state[0]), communicator, op=lockstep.AVG, token=state[1])
                return (jnp.sin(y) * state[0], token), None

            def loss(x, token):
                (x, token), _ = jax.lax.scan(layer, (x, token), None, length=3)
                return tie(x.sum(), token)
            return jax.jit(jax.grad(loss, argnums=(0, 1)))

        x, (_, token) = of_rank(RANK, (2,)), all_reduce(jnp.ones(2), communicator)
        kept, token = gradient(policy=jax.checkpoint_policies.save_only_these_names('lockstep'))(x, token)
        expected, token = gradient(policy=jax.checkpoint_policies.everything_saveable)(x, token)
        np.testing.assert_allclose(kept, expected, rtol=1e-12)
        # Every rank stops at the same call, the first that is made again.
        with self.assertRaisesRegex(FAILED, 'FAILED_PRECONDITION.*token is older than the last call'):
            jax.block_until_ready(gradient()(x, token))

    def test_vmap_of_gradients(self):
        def loss(x):
            y, _ = all_reduce(jnp.sin(x), communicator)
            return (y ** 2).sum()
        x = of_rank(RANK, (4, 3))
        np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(loss)))(x), jnp.stack([jax.grad(loss)(row) for row in x]))

    def test_integers_and_what_has_no_gradient(self):
        def loss(x, token):
            count, token = all_reduce(jnp.int32(2), communicator, token=token)
            most, token = all_reduce(x, communicator, op=lockstep.MAX, token=token)
            y, token = all_reduce(x * count, communicator, token=token)
            return tie(y.sum(), token), most

        function = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        (_, most), (gradient, token) = function(jnp.full(2, 1.0 + RANK), jnp.float32(0))
        np.testing.assert_array_equal(gradient, [2.0 * SIZE * SIZE] * 2)
        self.assertEqual(most[0], SIZE)
        with self.assertRaisesRegex(lockstep.Unimplemented, 'only SUM and AVG have a gradient'):
            jax.grad(lambda x: all_reduce(x, communicator, op=lockstep.MAX)[0].sum())(jnp.ones(2))
        with self.assertRaisesRegex(TypeError, 'forward-mode'):
            jax.jvp(lambda x: all_reduce(x, communicator)[0], (jnp.ones(2),), (jnp.ones(2),))


class AverageGradients(unittest.TestCase):

    PARAMETERS = {'layers': [{'weight': (40, 30), 'bias': (30,)} for _ in range(5)], 'scale': ()}

    def tree(self, rank, dtype='float32', seed=0):
        shapes, tree = jax.tree_util.tree_flatten(self.PARAMETERS, is_leaf=lambda node: isinstance(node, tuple))
        return jax.tree_util.tree_unflatten(tree, [of_rank(rank, shape, dtype, seed + i) for i, shape in enumerate(shapes)])

    def mean(self, trees):
        return jax.tree_util.tree_map(lambda *leaves: np.mean(np.stack([np.asarray(leaf, 'float64') for leaf in leaves]), axis=0), *trees)

    def assert_close(self, found, expected, tolerance=1e-6):
        def check(a, b):
            np.testing.assert_allclose(np.asarray(a, 'float64'), b, rtol=tolerance, atol=tolerance)
        jax.tree_util.tree_map(check, found, expected)

    def test_averages(self):
        for dtype, tolerance in (('float32', 1e-6), ('bfloat16', 2e-2), ('float64', 1e-12)):
            with self.subTest(dtype):
                reducer = lockstep.jax.make_reducer(self.tree(0, dtype), communicator, bucket_cap_bytes=4096)
                step = jax.jit(lambda gradients, token: lockstep.jax.average_gradients(gradients, reducer, token))
                token = None
                for seed in range(5):
                    found, token = step(self.tree(RANK, dtype, seed), token)
                    self.assert_close(found, self.mean([self.tree(rank, dtype, seed) for rank in range(SIZE)]), tolerance)
                self.assertGreater(reducer.bucket_count, 1)
                self.assertEqual([row.name for row in reducer.parameters][:2], ["['layers'][0]['bias']", "['layers'][0]['weight']"])
                reducer.close()

    def test_outside_of_a_compiled_function(self):
        reducer = lockstep.jax.make_reducer([jnp.ones(3), jnp.ones(2)], communicator)
        (a, b), _ = lockstep.jax.average_gradients([jnp.full(3, float(RANK)), jnp.ones(2)], reducer)
        self.assertEqual((a.tolist(), b.tolist()), ([(SIZE - 1) / 2] * 3, [1, 1]))
        reducer.close()

    def test_training_in_scan_is_that_of_one_process(self):
        def predict(parameters, x):
            for layer in parameters[:-1]:
                x = jnp.tanh(x @ layer[0] + layer[1])
            return x @ parameters[-1][0] + parameters[-1][1]

        def loss(parameters, x, y):
            return ((predict(parameters, x) - y) ** 2).mean()

        widths = (8, 64, 64, 64, 2)
        parameters = [(of_rank(9, (a, b), seed=a) / 40, jnp.zeros(b)) for a, b in zip(widths, widths[1:])]
        xs = [np.random.default_rng(rank).normal(size=(12, 16, 8)) for rank in range(SIZE)]
        ys = [x[..., :2] ** 2 for x in xs]
        reducer = lockstep.jax.make_reducer(parameters, communicator, bucket_cap_bytes=20_000)

        def train(average, x, y):
            def step(state, batch):
                parameters, token = state
                value, gradients = jax.value_and_grad(loss)(parameters, *batch)
                norm = jnp.sqrt(sum((leaf ** 2).sum() for leaf in jax.tree_util.tree_leaves(gradients)))
                gradients, token = average(gradients, token)
                parameters = jax.tree_util.tree_map(lambda parameter, gradient: parameter - 0.1 * gradient, parameters, gradients)
                return (parameters, token), (value, norm)
            return jax.jit(lambda: jax.lax.scan(step, (parameters, jnp.float32(0)), (jnp.asarray(x), jnp.asarray(y))))()

        def average(gradients, token):
            return lockstep.jax.average_gradients(gradients, reducer, token)
        (found, _), (values, norms) = train(average, xs[RANK], ys[RANK])
        (expected, _), _ = train(lambda gradients, token: (gradients, token), np.concatenate(xs, axis=1), np.concatenate(ys, axis=1))
        self.assert_close(found, expected, 1e-9)
        # The norms of a rank's own gradients, from before they were averaged in their memory.
        self.assertEqual(len(np.unique(np.asarray(all_gather(norms[0], communicator)[0]))), SIZE)
        self.assertTrue((np.asarray(values)[1:] > 0).all())
        reducer.close()

    def test_beside_collectives(self):
        parameters = {'a': jnp.ones((300, 30)), 'b': jnp.ones(3)}
        reducer = lockstep.jax.make_reducer(parameters, communicator)

        @jax.jit
        def step(x, token):
            value, token = all_reduce(x.sum(), communicator, op=lockstep.AVG, token=token)
            gradients, token = lockstep.jax.average_gradients({'a': jnp.full((300, 30), x[0]), 'b': x}, reducer, token)
            most, token = all_reduce(gradients['b'], communicator, op=lockstep.MAX, token=token)
            return value, gradients, most, token

        token = None
        for i in range(30):
            value, gradients, most, token = step(jnp.full(3, float(i + RANK)), token)
            average = i + (SIZE - 1) / 2
            np.testing.assert_allclose([value, gradients['a'][7, 7], gradients['b'][1], most[2]], [3 * average, average, average, average])
        reducer.close()

    def test_equal_gradients_lie_apart(self):
        reducer = lockstep.jax.make_reducer([jnp.ones(100)] * 3, communicator)
        found, _ = jax.jit(lambda x: lockstep.jax.average_gradients([x, x, 2 * x], reducer))(jnp.full(100, 1.0 + RANK))
        average = (SIZE + 1) / 2
        np.testing.assert_allclose([leaf[0] for leaf in found], [average, average, 2 * average])
        reducer.close()

    def test_after_a_program_that_failed(self):
        own = communicator.duplicate()
        reducer = lockstep.jax.make_reducer([jnp.ones(1000)] * 2, own, bucket_cap_bytes=100)
        x, token = jnp.ones(1000), jnp.float32(0)
        # What such a program has left.
        jax.jit(lambda x: handlers.call('mark_ready', reducer, (x, token), (token,), option=1))(x)
        with self.assertRaisesRegex(FAILED, 'an earlier program with this reducer failed before its end'):
            jax.block_until_ready(jax.jit(lambda x: lockstep.jax.average_gradients([x, x], reducer))(x))
        reducer.close()
        own.close()

    def test_what_does_not_fit(self):
        reducer = lockstep.jax.make_reducer({'a': jnp.ones(3)}, communicator)
        with self.assertRaisesRegex(lockstep.InvalidArgument, r"the gradient of \['a'\] is float64\[4\].* for float64\[3\]"):
            lockstep.jax.average_gradients({'a': jnp.ones(4)}, reducer)
        with self.assertRaisesRegex(lockstep.InvalidArgument, '2 gradients for a reducer of 1 parameters'):
            lockstep.jax.average_gradients({'a': jnp.ones(3), 'b': jnp.ones(3)}, reducer)
        step = jax.jit(lambda x: lockstep.jax.average_gradients({'a': x}, reducer)).lower(jnp.ones(3)).compile()
        reducer.close()
        with self.assertRaisesRegex(FAILED, 'FAILED_PRECONDITION.*the reducer is closed'):
            jax.block_until_ready(step(jnp.ones(3)))


class Errors(unittest.TestCase):

    def test_arguments(self):
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'all_reduce: Lockstep has no dtype int16'):
            all_reduce(jnp.ones(2, 'int16'), communicator)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'reduce: Lockstep has no dtype float8_e4m3fnuz'):
            jax.grad(lambda x: broadcast(x, communicator)[0].astype('float32').sum())(jnp.ones(2, 'float8_e4m3fnuz'))
        with self.assertRaisesRegex(lockstep.InvalidArgument, rf'reduce_scatter: the first axis .* {SIZE} ranks.*\({SIZE + 1}, 2\)'):
            reduce_scatter(jnp.ones((SIZE + 1, 2)), communicator)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'all_to_all: the first axis'):
            all_to_all(jnp.float32(1), communicator)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'multiply x and take SUM'):
            all_reduce(jnp.ones(2), communicator, op=lockstep.PREMUL_SUM)
        for call in (all_reduce, reduce_scatter):
            with self.assertRaisesRegex(lockstep.InvalidArgument, "op is 'sum'; it is lockstep.SUM"):
                call(jnp.ones(SIZE), communicator, op='sum')
        with self.assertRaisesRegex(lockstep.InvalidArgument, r'token: float64\[2\] is none; pass what a call'):
            all_reduce(jnp.ones(2), communicator, token=jnp.ones(2))
        with self.assertRaisesRegex(FAILED, 'INVALID_ARGUMENT'):
            jax.block_until_ready(jax.jit(lambda x: all_reduce(x, communicator, op=lockstep.XOR))(jnp.ones(2)))

    def test_an_old_token(self):
        program = jax.jit(lambda x, token: all_reduce(x, communicator, token=token))
        x, first = program(jnp.ones(2), None)
        x, second = program(x, first)
        with self.assertRaisesRegex(FAILED, 'FAILED_PRECONDITION.*token is older than the last call'):
            jax.block_until_ready(program(x, first))
        self.assertEqual(program(x, second)[0][0], SIZE ** 3)

    def test_two_calls_at_once(self):
        own = communicator.duplicate()
        program = jax.jit(lambda x: all_reduce(x, own)[0])
        program(jnp.ones(2)).block_until_ready()
        if RANK > 0:
            communicator.barrier()
            self.assertEqual(program(jnp.ones(2))[0], SIZE)
        else:
            found = []

            def run():
                try:
                    found.append(float(program(jnp.ones(2))[0]))
                except FAILED as error:
                    found.append(str(error))
            threads = [threading.Thread(target=run) for _ in range(2)]
            for thread in threads:
                thread.start()
            # One waits for the other ranks, so that it is the other that has ended.
            while not found:
                for thread in threads:
                    thread.join(0.01)
            self.assertIn('another call of this communicator is under way', found[0])
            communicator.barrier()
            for thread in threads:
                thread.join()
            self.assertEqual(found[1], SIZE)
        own.close()

    def test_a_closed_communicator(self):
        own = communicator.duplicate()
        compiled = jax.jit(lambda x: all_reduce(x, own)[0]).lower(jnp.ones(2)).compile()
        self.assertEqual(compiled(jnp.ones(2))[0], SIZE)
        own.close()
        with self.assertRaisesRegex(lockstep.FailedPrecondition, 'the communicator is closed'):
            all_reduce(jnp.ones(3), own)
        with self.assertRaisesRegex(FAILED, 'FAILED_PRECONDITION.*the communicator is closed'):
            jax.block_until_ready(compiled(jnp.ones(2)))

    def test_closed_while_a_program_waits(self):
        own = communicator.duplicate()
        program = jax.jit(lambda x: all_reduce(x, own)[0])
        program(jnp.ones(2)).block_until_ready()
        communicator.barrier()  # the others have their result, too
        if RANK == 0:
            failed = []

            def run():
                try:
                    jax.block_until_ready(program(jnp.ones(2)))
                except FAILED as error:
                    failed.append(str(error))
            thread = threading.Thread(target=run)
            thread.start()
            while 'running' not in own.flight_records():
                self.assertTrue(thread.is_alive())
            own.close()
            thread.join()
            self.assertRegex(failed[0], 'rank 0 closed the communicator while a program was in a call')
        communicator.barrier()
        own.close()

    def test_ranks_that_differ(self):
        own = communicator.duplicate()
        with self.assertRaisesRegex(FAILED, 'rank 0 called all_reduce'):
            jax.block_until_ready(jax.jit(lambda x: all_reduce(x, own)[0])(jnp.ones(2 if RANK == 0 else 3)))
        own.close()


if __name__ == '__main__':
    ranks.main(3)
