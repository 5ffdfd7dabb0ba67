"""Arrays of NumPy, ml_dtypes, PyTorch and JAX in the collectives of lockstep.Communicator."""

import unittest

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy
import ranks
import torch

import lockstep

communicator = lockstep.init(timeout_ms=60_000)
RANK, SIZE = communicator.rank, communicator.size
NARROW = ('bfloat16', 'float8_e4m3fn', 'float8_e5m2')
SUM = SIZE * (SIZE + 1) // 2  # of the ranks, from 1


class NumPy(unittest.TestCase):

    def test_in_place(self):
        for dtype in ('float32', 'int64', 'float16', 'complex128', *(getattr(ml_dtypes, name) for name in NARROW)):
            with self.subTest(dtype):
                x = numpy.full((2, 3), RANK + 1, dtype)
                communicator.all_reduce(x)
                self.assertEqual(x.astype('complex128').tolist(), [[SUM] * 3] * 2)

    def test_a_slice_of_the_output_is_the_input(self):
        x = numpy.full((SIZE, 4), -1.0)
        x[RANK] = RANK
        communicator.all_gather(x[RANK], x)
        self.assertEqual(x.tolist(), [[rank] * 4 for rank in range(SIZE)])


class PyTorch(unittest.TestCase):

    def test_in_place(self):
        for dtype in (torch.float32, torch.int64, torch.complex64, torch.float16, *(getattr(torch, name) for name in NARROW)):
            with self.subTest(dtype):
                x = torch.full((2, 3), RANK + 1.0).to(dtype)
                communicator.all_reduce(x)
                self.assertEqual(x.to(torch.complex128).tolist(), [[SUM] * 3] * 2)
        scalar = torch.tensor(RANK + 1.0)
        communicator.all_reduce(scalar)
        self.assertEqual(scalar.item(), SUM)

    def test_what_cannot_be_served_is_refused_by_name(self):
        for given, text in ((torch.ones(3, 3).t()[:2], r'input: a tensor of shape \(2, 3\) with strides \(1, 3\) is not contiguous'),
                            (torch.ones(3, dtype=torch.int16), r'input: Lockstep has no dtype torch.int16; it has bool'),
                            (torch.ones(3, device='meta'), 'input: a tensor on meta; Lockstep has the CPU and CUDA'),
                            (torch.ones(3, 3).to_sparse(), 'input: a tensor of layout torch.sparse_coo'),
                            (torch.ones(3, dtype=torch.complex64).conj(), 'input: a lazily conjugated or negated tensor')):
            with self.subTest(text), self.assertRaisesRegex(lockstep.InvalidArgument, text):
                communicator.all_reduce(given)


class JAX(unittest.TestCase):

    def test_inputs(self):
        for dtype in (jnp.float32, jnp.int32, jnp.bool_, jnp.complex64, *(getattr(jnp, name) for name in NARROW)):
            with self.subTest(dtype):
                x = jnp.ones((2, 3), dtype)
                out = numpy.zeros((SIZE, 2, 3), x.dtype)
                communicator.all_gather(x, out)
                self.assertTrue((out == 1).all())

    def test_arrays_are_not_written(self):
        for dtype in (jnp.float32, jnp.bfloat16):
            x = jnp.ones(3, dtype)
            with self.assertRaisesRegex(lockstep.InvalidArgument, 'input: this ArrayImpl is read-only; pass memory that may be written'):
                communicator.all_reduce(x)
            with self.assertRaisesRegex(lockstep.InvalidArgument, 'output: this ArrayImpl is read-only'):
                communicator.all_reduce(numpy.ones(3, x.dtype), x)
        self.assertEqual(x.tolist(), [1, 1, 1])

    def test_what_cannot_be_served_is_refused_by_name(self):
        with self.assertRaisesRegex(lockstep.InvalidArgument, "input: Lockstep has no dtype for the buffer format '=h'"):
            communicator.all_reduce(jnp.ones(3, jnp.int16), numpy.zeros(3, numpy.int16))
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'input is int16 and output is float64'):
            communicator.all_gather(jnp.ones(3, jnp.int16), numpy.zeros(3 * SIZE))
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'input: an array that JAX traces .* lockstep.jax'):
            jax.jit(lambda x: communicator.all_reduce(x))(jnp.ones(3))


if __name__ == '__main__':
    ranks.main(2)
