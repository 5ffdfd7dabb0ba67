#!/usr/bin/env python3
"""lockstep.py on the CPU without any framework: its structures, errors, two processes that average arrays.

Usage: lockstep_test.py LIBRARY HEADER. With LOCKSTEP_RANK set it is one of the two processes.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # beside the sources

import lockstep  # noqa: E402

PATH = os.path.abspath(sys.argv.pop(1))
HEADER = os.path.abspath(sys.argv.pop(1))
LIBRARY = lockstep.Library(PATH)
SIZE = 2
TIMEOUT_S = 60


class Array:
    """What a framework's tensor is to Lockstep."""

    def __init__(self, shape, dtype="float32", strides=None):
        elements = 1
        for extent in shape:
            elements *= extent
        self.values = ({"float32": ctypes.c_float, "float64": ctypes.c_double}[dtype] * elements)()
        self.tensor = lockstep.Tensor(
            data=ctypes.addressof(self.values), shape=lockstep.int64s(shape),
            strides=lockstep.int64s(strides) if strides else None, dimensions=len(shape), dtype=lockstep.DTYPES[dtype])

    def parameter(self, name):
        like = self.tensor
        return lockstep.Parameter(name=name, shape=like.shape, strides=like.strides, dimensions=like.dimensions,
                                  dtype=like.dtype)

    def fill(self, first):
        for i in range(len(self.values)):
            self.values[i] = first + i


def gradients():
    return {
        "scalar": Array(()),
        "matrix": Array((3, 4)),
        "transposed": Array((4, 3), strides=(1, 4)),
        "empty": Array((0, 7)),
        "double": Array((1000,), "float64"),
        "long": Array((300000,)),
    }


def backward(reducer, arrays, rank, leave_out=(), sync=True):
    """As autograd does it: the last gradient appears first. Whole numbers, so that their averages are exact."""
    reducer.begin_backward(sync)
    for index, (name, array) in reversed(list(enumerate(arrays.items()))):
        if name not in leave_out:
            array.fill(10 * rank)
            reducer.mark_ready(index, array.tensor)
    reducer.end_backward()


def run_rank():
    with lockstep.Communicator(LIBRARY, timeout_ms=TIMEOUT_S * 1000) as communicator:
        check = unittest.TestCase()
        rank = communicator.rank
        check.assertEqual((rank, communicator.size), (int(os.environ["LOCKSTEP_RANK"]), SIZE))
        check.assertIn("rank 1", communicator.describe())
        arrays = gradients()
        table = [array.parameter(name) for name, array in arrays.items()]
        with lockstep.Reducer(communicator, table, bucket_cap_bytes=1 << 20) as reducer:
            check.assertGreater(reducer.bucket_count(), 1)

            arrays["matrix"].fill(100 * (rank + 1))
            reducer.broadcast([arrays["matrix"].tensor], root=1)
            check.assertEqual(list(arrays["matrix"].values), [200 + i for i in range(12)])

            def check_averages():
                for name, array in arrays.items():
                    check.assertEqual(list(array.values), [5 + i for i in range(len(array.values))], name)

            for _ in range(3):
                backward(reducer, arrays, rank)
                check_averages()
            check.assertEqual(reducer.statistics().steps, 3)
            check.assertIn("buckets launched in backward", reducer.summary())

            backward(reducer, arrays, rank, sync=False)
            check.assertEqual(list(arrays["matrix"].values), [10 * rank + i for i in range(12)])

            with check.assertRaisesRegex(lockstep.Error, "rank 1.*matrix") as missing:
                backward(reducer, arrays, rank, leave_out=("matrix",) if rank == 1 else ())
            check.assertEqual(missing.exception.code, "FAILED_PRECONDITION")
            backward(reducer, arrays, rank)
            check_averages()


class LockstepTest(unittest.TestCase):
    def test_structures_are_the_headers_to_the_byte(self):
        program = [f'#include "{HEADER}"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{']
        ours = []
        for name, structure in lockstep.STRUCTURES.items():
            program.append(f'printf("%d\\n", (int)sizeof({name}));')
            ours.append(ctypes.sizeof(structure))
            for field, _ in structure._fields_:
                program.append(f'printf("%d\\n", (int)offsetof({name}, {field}));')
                ours.append(getattr(structure, field).offset)
        program.append("return 0; }\n")
        with tempfile.TemporaryDirectory() as folder:
            compiled = os.path.join(folder, "program")
            subprocess.run(["cc", "-x", "c", "-o", compiled, "-"], input="\n".join(program), text=True, check=True)
            printed = subprocess.run([compiled], capture_output=True, text=True, check=True).stdout
        self.assertEqual([int(line) for line in printed.split()], ours)

    def test_an_error_has_code_and_message(self):
        with self.assertRaisesRegex(lockstep.Error, "^INVALID_ARGUMENT: .*rank") as raised:
            lockstep.Communicator(LIBRARY, world_size=2, rank=2, store_url="file:///nowhere")
        self.assertEqual(raised.exception.code, "INVALID_ARGUMENT")

    def test_a_call_that_is_refused_leaves_the_reducer_usable(self):
        array = Array((4,))
        with lockstep.Communicator(LIBRARY, world_size=1) as communicator:
            with lockstep.Reducer(communicator, [array.parameter("weight")]) as reducer:
                reducer.begin_backward()
                for index, tensor in (1, array.tensor), (0, Array((5,)).tensor):
                    with self.assertRaisesRegex(lockstep.Error, "^INVALID_ARGUMENT: mark_ready"):
                        reducer.mark_ready(index, tensor)
                reducer.mark_ready(0, array.tensor)
                reducer.end_backward()

    def test_an_option_that_there_is_not_is_refused(self):
        with self.assertRaisesRegex(TypeError, "ReducerOptions has no field 'bucket_cap_mb'"):
            lockstep.ReducerOptions(bucket_cap_mb=25)

    def test_two_processes_average(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "LOCKSTEP_WORLD_SIZE": str(SIZE), "LOCKSTEP_STORE": f"file://{folder}/store"}
            command = [sys.executable, sys.argv[0], PATH, HEADER]
            ranks = [
                subprocess.Popen(command, env={**environment, "LOCKSTEP_RANK": str(rank)}, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(SIZE)
            ]
            try:
                for rank, process in enumerate(ranks):
                    output, _ = process.communicate(timeout=TIMEOUT_S)
                    self.assertEqual(process.returncode, 0, f"rank {rank}:\n{output}")
            finally:
                for process in ranks:
                    process.kill()
                    process.communicate()


if __name__ == "__main__":
    if "LOCKSTEP_RANK" in os.environ:
        run_rank()
    else:
        unittest.main()
