#!/usr/bin/env python3
"""What does a collective in a compiled function of JAX cost beyond the collective itself?

    python -m lockstep.run -n 2 bench/frameworks/jax_calls.py [--rounds 300]

An all-reduce of 8 bytes, called in several ways that take turns in one run: the C function; the communicator's method; a jitted function
with one call of lockstep.jax.all_reduce, and with 101, whose difference is what a call in the middle of a program costs. A jitted function
without a call shows what JAX itself takes. Prints microseconds, medians over the rounds, and the differences of medians.
"""

import argparse
import statistics
import time

import numpy

import lockstep
import lockstep.jax
import jax
from lockstep import tensors
from lockstep._native import ffi, lib

IN_A_ROUND, IN_A_PROGRAM = 20, 101


def program(communicator, calls):
    """A jitted function of so many calls, one after the other."""
    def run(x, token):
        for _ in range(calls):
            x, token = lockstep.jax.all_reduce(x, communicator, op=lockstep.MAX, token=token)
        return x, token
    return jax.jit(run)


def ways(communicator):
    """{name: (a function, its calls in a round)}"""
    array = numpy.ones(2, numpy.float32)
    tensor = tensors.read(array, 'array', True)
    state = jax.numpy.ones(2), jax.numpy.float32(0)

    def c_function():
        lib.lockstep_all_reduce(communicator._c, tensor.c, tensor.c, lockstep.MAX, ffi.NULL, ffi.NULL, ffi.NULL)

    def method():
        communicator.all_reduce(array, op=lockstep.MAX)

    def jitted(function):
        def call():
            nonlocal state
            state = jax.block_until_ready(function(*state))
        return call

    return {'C function': (c_function, IN_A_ROUND), 'method': (method, IN_A_ROUND),
            'jitted, no call': (jitted(jax.jit(lambda x, token: (x + 1, token))), IN_A_ROUND),
            'jitted, 1 call': (jitted(program(communicator, 1)), IN_A_ROUND),
            f'jitted, {IN_A_PROGRAM} calls': (jitted(program(communicator, IN_A_PROGRAM)), 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=300)
    rounds = parser.parse_args().rounds
    communicator = lockstep.init()
    compared, times = ways(communicator), {}
    for number in range(-5, rounds):
        for name, (way, count) in compared.items():
            communicator.barrier()
            begin = time.perf_counter()
            for _ in range(count):
                way()
            if number >= 0:
                times.setdefault(name, []).append((time.perf_counter() - begin) / count * 1e6)
    if communicator.rank == 0:
        c_function, method, nothing, one, many = (statistics.median(found) for found in times.values())
        for name, found in times.items():
            print(f'{name:18} {statistics.median(found):9.2f} us')
        print(f'a jitted call beyond the C function     {one - c_function:9.2f} us')
        print(f'a jitted call beyond both (JAX and C)   {one - nothing - c_function:9.2f} us')
        print(f'a jitted call beyond the method         {one - method:9.2f} us')
        print(f'a further call beyond the C function    {(many - one) / (IN_A_PROGRAM - 1) - c_function:9.2f} us')
    communicator.barrier()


if __name__ == '__main__':
    main()
