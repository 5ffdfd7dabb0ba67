"""The package on a GPU, which two ranks share: arrays, streams, memory and the reducer. It needs no framework; PyTorch and CuPy take part
where they are installed.

    python3 python/gpu_test.py     starts the ranks; exit status 77 where there is no GPU, and says so

With tests/fake_cuda_library.cc in the place of liblockstep.so (LD_PRELOAD) it runs everywhere, on a CUDA in memory.
"""

import ctypes
import os
import sys
import time
import unittest

NOTHING_HERE = 77
NOT_READY = 600  # cudaErrorNotReady
LOADED = ctypes.CDLL(None)
FAKE = hasattr(LOADED, 'lockstep_fake_cuda_stream_query')


def skip(reason):
    print(reason)
    sys.exit(NOTHING_HERE)


class Driver:
    """CUDA's driver, which every machine with a GPU has: what the test itself does on device 0.

    ERRORS  OSError: there is no driver, or no GPU; RuntimeError: a call failed
    """

    def __init__(self):
        self._library = ctypes.CDLL('libcuda.so.1')
        count, self._context = ctypes.c_int(), ctypes.c_void_p()
        if self._library.cuInit(0) or self._library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            raise OSError("CUDA's driver sees no GPU here")

    def _call(self, name, *arguments):
        code = getattr(self._library, name)(*arguments)
        if code:
            raise RuntimeError(f'{name} answered {code}')

    def enter(self):
        """Makes the context that the library uses, too, the calling thread's."""
        self._call('cuDevicePrimaryCtxRetain', ctypes.byref(self._context), 0)
        self._call('cuCtxSetCurrent', self._context)

    def write(self, address, data):
        self._call('cuMemcpyHtoD_v2', ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self._call('cuMemcpyDtoH_v2', data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw

    def new_stream(self):
        """The address of a stream that is independent of the default one."""
        stream = ctypes.c_void_p()
        self._call('cuStreamCreate', ctypes.byref(stream), 1)
        return stream.value

    def synchronize(self, stream):
        self._call('cuStreamSynchronize', ctypes.c_void_p(stream))


class FakeDriver:
    """The same of the CUDA in memory, which the host reaches. It has the default stream for all."""

    def enter(self):
        pass

    def write(self, address, data):
        ctypes.memmove(address, data, len(data))

    def read(self, address, size):
        return ctypes.string_at(address, size)

    def new_stream(self):
        return 0

    def synchronize(self, stream):
        while LOADED.lockstep_fake_cuda_stream_query(ctypes.c_void_p(stream)) == NOT_READY:
            time.sleep(0.001)


if __name__ == '__main__' and 'LOCKSTEP_RANK' not in os.environ:
    try:
        import lockstep.run
    except ImportError as error:
        skip(f'the package lockstep cannot be imported: {error}')
    if not FAKE:
        try:
            Driver()
        except OSError as error:
            skip(f'no GPU: {error}')
    os.execv(lockstep.run.launcher(), ['lockstep-run', '-n', '2', '--foreground', '0', sys.executable, *sys.argv])

import array  # noqa: E402
import importlib  # noqa: E402

import lockstep  # noqa: E402
from lockstep._native import lib  # noqa: E402
from lockstep.errors import check  # noqa: E402


def framework(name):
    """A module that has arrays on this GPU, or None."""
    try:
        return None if FAKE else importlib.import_module(name)
    except ImportError:
        return None


torch, cupy = framework('torch'), framework('cupy')
if torch is not None and not torch.cuda.is_available():
    torch = None
driver = FakeDriver() if FAKE else Driver()
driver.enter()
communicator = lockstep.init(device_kind=lockstep.CUDA, device_backend='staged', timeout_ms=60_000)
RANK = communicator.rank
OTHER = 1 - RANK
_TYPESTR = {'f': '<f4', 'd': '<f8', 'i': '<i4', 'q': '<i8', 'B': '|u1'}


class OnGpu:
    """An array on the GPU, with __cuda_array_interface__ as CuPy's have it. Collective: its memory is the communicator's."""

    def __init__(self, values, code='f', shape=None):
        data = array.array(code, values)
        self.code, self.size = code, len(data.tobytes())
        self.memory = communicator.allocate(4096 * (self.size // 4096 + 1), lockstep.CUDA)  # as much on every rank
        driver.write(self.memory.address, data.tobytes())
        self.__cuda_array_interface__ = {'shape': shape or (len(data),), 'typestr': _TYPESTR[code],
                                         'data': (self.memory.address, False), 'strides': None, 'version': 3}

    def tolist(self):
        return array.array(self.code, driver.read(self.memory.address, self.size)).tolist()


class DLTensor(ctypes.Structure):
    _fields_ = [('data', ctypes.c_void_p), ('device_type', ctypes.c_int32), ('device_id', ctypes.c_int32), ('ndim', ctypes.c_int32),
                ('code', ctypes.c_uint8), ('bits', ctypes.c_uint8), ('lanes', ctypes.c_uint16), ('shape', ctypes.POINTER(ctypes.c_int64)),
                ('strides', ctypes.c_void_p), ('byte_offset', ctypes.c_uint64)]


class Versioned(ctypes.Structure):
    _fields_ = [('major', ctypes.c_uint32), ('minor', ctypes.c_uint32), ('manager', ctypes.c_void_p), ('deleter', ctypes.c_void_p),
                ('flags', ctypes.c_uint64), ('tensor', DLTensor)]


class ByDlpack:
    """Floats on the GPU that have DLPack and nothing else."""

    def __init__(self, on_gpu):
        self.on_gpu, self.shape = on_gpu, (ctypes.c_int64 * 1)(on_gpu.size // 4)
        self.managed = Versioned(1, 0, None, None, 0, DLTensor(on_gpu.memory.address, 2, 0, 1, 2, 32, 1, self.shape, None, 0))

    def __dlpack__(self, **_options):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.managed), b'dltensor_versioned', None)


class Collectives(unittest.TestCase):

    def test_of_each_kind(self):
        for code in 'fdiq':
            with self.subTest(code):
                x = OnGpu([1, RANK, 3], code)
                communicator.all_reduce(x)
                self.assertEqual(x.tolist(), [2, 1, 6])
        y = OnGpu([0, 0])
        communicator.all_reduce(OnGpu([RANK, 4]), y, op=lockstep.MAX)
        self.assertEqual(y.tolist(), [1, 4])
        communicator.all_reduce(y, op=lockstep.PREMUL_SUM, factor=0.25)
        self.assertEqual(y.tolist(), [0.5, 2])
        x = OnGpu([RANK + 5])
        communicator.broadcast(x, root=1)
        self.assertEqual(x.tolist(), [6])
        communicator.all_gather(OnGpu([RANK]), y)
        self.assertEqual(y.tolist(), [0, 1])
        communicator.reduce_scatter(OnGpu([1, 2]), x, op=lockstep.AVG)
        self.assertEqual(x.tolist(), [RANK + 1])
        communicator.all_to_all(OnGpu([10 * RANK, 10 * RANK + 1]), y)
        self.assertEqual(y.tolist(), [RANK, 10 + RANK])

    def test_large_ones(self):
        count = 3_000_000
        x = OnGpu([RANK + 0.5] * count)
        communicator.all_reduce(x)
        self.assertEqual(x.tolist(), [2] * count)

    def test_lists(self):
        x, y = OnGpu([1, RANK]), OnGpu([RANK], shape=(1, 1))
        communicator.all_reduce_coalesced([x, y])
        self.assertEqual((x.tolist(), y.tolist()), ([2, 1], [1]))
        communicator.broadcast_coalesced([OnGpu([0]), x])

    def test_works(self):
        x = OnGpu([1, 2])
        work = communicator.all_reduce(x, asynchronous=True)
        work.wait()
        self.assertTrue(work.done())
        self.assertEqual(x.tolist(), [2, 4])

    def test_dlpack(self):
        x = OnGpu([1, RANK])
        communicator.all_reduce(ByDlpack(x))
        self.assertEqual(x.tolist(), [2, 1])

    def test_messages_are_not_staged(self):
        x = OnGpu([RANK])
        with self.assertRaisesRegex(lockstep.Unimplemented, 'copy them to the host'):
            communicator.send(x, OTHER)
        with self.assertRaisesRegex(lockstep.Unimplemented, 'copy them to the host'):
            communicator.receive(x, OTHER)

    def test_arrays_of_the_host_go_through_the_same_communicator(self):
        x = array.array('f', [RANK, 1])
        communicator.all_reduce(x)
        self.assertEqual(x.tolist(), [1, 2])


class Streams(unittest.TestCase):

    def test_a_collective_on_a_stream(self):
        class OfTorch:
            cuda_stream = driver.new_stream()

        class OfCupy:
            ptr = driver.new_stream()

        for stream, address in ((OfTorch, OfTorch.cuda_stream), (OfCupy, OfCupy.ptr), (OfCupy.ptr, OfCupy.ptr), (0, 0)):
            with self.subTest(stream=stream):
                x = OnGpu([1, RANK])
                for _ in range(3):
                    communicator.all_reduce(x, stream=stream)
                communicator.broadcast(x, root=1, stream=stream)
                driver.synchronize(address)
                self.assertEqual(x.tolist(), [8, 4])
        self.assertIsNone(communicator.status())

    def test_every_collective_on_a_stream(self):
        stream, counts = driver.new_stream(), [1, 2]
        mine, all_three, pair = OnGpu([RANK] * counts[RANK]), OnGpu([9, 9, 9]), OnGpu([RANK, 4])
        out = OnGpu([0, 0])
        for call, where, expected in (
                (lambda: communicator.all_gather(mine, all_three, counts, stream=stream), all_three, [0, 1, 1]),
                (lambda: communicator.reduce_scatter(all_three, mine, counts=counts, stream=stream), mine, [0] if RANK == 0 else [2, 2]),
                (lambda: communicator.gather(mine, all_three, counts, root=1, stream=stream), all_three, [0, 1 + RANK, 1 + RANK]),
                (lambda: communicator.scatter(all_three, mine, counts, root=1, stream=stream), mine, [0] if RANK == 0 else [2, 2]),
                (lambda: communicator.reduce(pair, root=1, stream=stream), pair, [1, 8] if RANK == 1 else [0, 4]),
                (lambda: communicator.all_to_all(pair, out, stream=stream), out, [0, 1] if RANK == 0 else [4, 8]),
                # Each rank sends both elements to the other.
                (lambda: communicator.all_to_all(out, pair, [2 * RANK, 2 * OTHER], [2 * RANK, 2 * OTHER], stream=stream), pair,
                 [4, 8] if RANK == 0 else [0, 1])):
            call()
            driver.synchronize(stream)
            self.assertEqual(where.tolist(), expected)
        lists, gathered = [OnGpu([1, RANK]), OnGpu([RANK])], [OnGpu([0] * 4), OnGpu([0] * 2)]
        communicator.all_reduce_coalesced(lists, stream=stream)
        communicator.broadcast_coalesced(lists, root=1, stream=stream)
        communicator.all_gather_coalesced(lists, gathered, stream=stream)
        communicator.reduce_scatter_coalesced(gathered, lists, stream=stream)
        driver.synchronize(stream)
        self.assertEqual([each.tolist() for each in (*lists, *gathered)], [[4, 2], [2], [2, 1, 2, 1], [1, 1]])

    def test_a_collective_on_a_stream_has_no_work(self):
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'a collective on a stream has no work'):
            communicator.all_reduce(OnGpu([1]), stream=0, asynchronous=True)


class Memory(unittest.TestCase):

    def test_is_an_array_of_bytes_on_the_gpu(self):
        memory = communicator.allocate(4096, lockstep.CUDA)
        self.assertEqual((memory.bytes, memory.__cuda_array_interface__['shape']), (4096, (4096,)))
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'memory of a device has no buffer'):
            memory.buffer
        driver.write(memory.address, bytes([RANK + 1]) * 4096)
        communicator.all_reduce(memory)
        self.assertEqual(driver.read(memory.address, 4096), bytes([3]) * 4096)

    def test_outlives_its_communicator(self):
        with communicator.duplicate() as copy:
            memory = copy.allocate(64, lockstep.CUDA)
        driver.write(memory.address, bytes([RANK]) * 64)
        communicator.broadcast(memory, root=1)
        self.assertEqual(driver.read(memory.address, 64), bytes([1]) * 64)

    def test_of_the_host(self):
        memory = communicator.allocate(64)
        self.assertFalse(hasattr(memory, '__cuda_array_interface__'))
        self.assertEqual(bytes(memory.buffer), bytes(64))


class Reducers(unittest.TestCase):

    def steps(self, codes=('f', 'f', 'd'), **options):
        """Two steps with gradients of three parameters, and one without averaging."""
        dtypes = {'f': 'float32', 'd': 'float64'}
        rows = [lockstep.Parameter(f'p{i}', (2 + i,), dtypes[code], device_kind=lockstep.CUDA) for i, code in enumerate(codes)]
        reducer = lockstep.Reducer(communicator, rows, **options)
        for step in range(3):
            gradients = [OnGpu([step + 2 * RANK + i] * (2 + i), code) for i, code in enumerate(codes)]
            reducer.begin_backward(no_sync=step == 1)
            for i in reversed(range(len(codes))):
                reducer.mark_ready(i, gradients[i])
            reducer.end_backward()
            yield step, reducer, gradients

    def test_averages(self):
        for options in ({}, {'bucket_cap_bytes': 8}, {'averaging': 'after'}, {'compression': 'bfloat16'}, {'compression': 'float16'}):
            with self.subTest(**options):
                for step, reducer, gradients in self.steps(**options):
                    added = 2 * RANK if step == 1 else 1
                    for i, gradient in enumerate(gradients):
                        self.assertEqual(gradient.tolist(), [step + added + i] * (2 + i))
                if 'bucket_cap_bytes' in options:
                    self.assertEqual(reducer.bucket_count, 3)
                reducer.close()

    def test_a_result_that_comes_too_late_is_refused(self):
        refused = []

        def hook(bucket, completion):
            try:
                check(lib.lockstep_hook_bucket_set_result(bucket._c, bucket._tensor))
            except lockstep.FailedPrecondition as error:
                refused.append(str(error))
            completion.done()

        for _ in self.steps(hook=hook, bucket_cap_bytes=1 << 20):
            pass
        self.assertEqual(refused, ['a result on a device is set by hook_issue, before it returns'] * 2 * 2)  # two dtypes, two steps

    def test_averages_for_others(self):
        reducer = lockstep.Reducer(communicator, [lockstep.Parameter('p', (3,), device_kind=lockstep.CUDA)])
        gradient, target = OnGpu([RANK, 1, 2]), OnGpu([0, 0, 0], 'd')
        reducer.begin_backward()
        reducer.mark_ready_into(0, gradient, target)
        reducer.end_backward()
        self.assertEqual((gradient.tolist(), target.tolist()), ([RANK, 1, 2], [0.5, 1, 2]))

    def test_a_missing_gradient_is_named_on_both_ranks(self):
        reducer = lockstep.Reducer(communicator, [lockstep.Parameter('weight', (2,), device_kind=lockstep.CUDA)])
        gradient = OnGpu([1, 2])
        reducer.begin_backward()
        if RANK == 0:
            reducer.mark_ready(0, gradient)
        with self.assertRaisesRegex(lockstep.FailedPrecondition, 'rank 1.*weight'):
            reducer.end_backward()
        reducer.begin_backward()
        reducer.mark_ready(0, gradient)
        reducer.end_backward()
        self.assertEqual(gradient.tolist(), [1, 2])

    def test_a_gradient_of_the_host_is_refused(self):
        reducer = lockstep.Reducer(communicator, [lockstep.Parameter('weight', (2,), device_kind=lockstep.CUDA)])
        gradient = OnGpu([1, 2])
        reducer.begin_backward()
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'weight'):
            reducer.mark_ready(0, array.array('f', [1, 2]))
        reducer.mark_ready(0, gradient)
        reducer.end_backward()

    def test_broadcast(self):
        x = OnGpu([RANK, 4])
        with_x = lockstep.Reducer(communicator, [lockstep.Parameter('x', (2,), device_kind=lockstep.CUDA)])
        with_x.broadcast([x], root=1)
        self.assertEqual(x.tolist(), [1, 4])


class Frameworks(unittest.TestCase):
    """Without a stream a call does not wait for what the framework still computes: here that is done first."""

    @unittest.skipIf(torch is None, 'needs PyTorch, of any version, that sees a GPU')
    def test_tensors_of_torch(self):
        x = torch.tensor([1.0, RANK], device='cuda')
        torch.cuda.synchronize()
        communicator.all_reduce(x)
        self.assertEqual(x.tolist(), [2, 1])
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            y = torch.full((1000,), RANK + 1.0, dtype=torch.bfloat16, device='cuda')
            communicator.all_reduce(y, stream=stream)
            y *= 2
        stream.synchronize()
        self.assertEqual(y.tolist(), [6] * 1000)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'not contiguous'):
            communicator.all_reduce(torch.zeros(2, 3, device='cuda').t())
        memory = communicator.allocate(4096, lockstep.CUDA)
        z = torch.as_tensor(memory, device='cuda')
        self.assertEqual(z.data_ptr(), memory.address)
        z.fill_(RANK + 1)
        torch.cuda.synchronize()
        communicator.all_reduce(memory)
        self.assertEqual(z.tolist(), [3] * 4096)

    @unittest.skipIf(torch is None, 'needs PyTorch, of any version, that sees a GPU')
    def test_gradients_of_torch(self):
        reducer = lockstep.Reducer(communicator, [lockstep.Parameter('weight', (3, 2), device_kind=lockstep.CUDA)])
        weight = torch.ones(3, 2, device='cuda', requires_grad=True)
        for step in range(3):
            weight.grad = None
            (weight * (step + 2 * RANK)).sum().backward()
            torch.cuda.synchronize()
            reducer.begin_backward()
            reducer.mark_ready(0, weight.grad)
            reducer.end_backward()
            self.assertEqual(weight.grad.tolist(), [[step + 1] * 2] * 3)

    @unittest.skipIf(cupy is None, 'needs CuPy')
    def test_arrays_of_cupy(self):
        x, stream = cupy.asarray([1, RANK], cupy.float32), cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        communicator.all_reduce(x)
        communicator.all_reduce(x, stream=stream)
        stream.synchronize()
        self.assertEqual(x.tolist(), [4, 2])


class Refused(unittest.TestCase):

    def test_an_array_of_the_gpu_by_a_communicator_of_the_host(self):
        x = OnGpu([1])
        place = {'world_size': 1, 'rank': 0, 'local_world_size': 1, 'local_rank': 0, 'job_id': f'alone {RANK}'}
        with lockstep.init(**place) as host, self.assertRaisesRegex(lockstep.InvalidArgument, 'cuda'):
            host.all_reduce(x)

    def test_an_input_of_the_host_with_an_output_of_the_gpu(self):
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'host.*cuda|cuda.*host'):
            communicator.all_reduce(array.array('f', [1]), OnGpu([1]))

    def test_an_array_of_another_gpu(self):
        x = OnGpu([1])
        x.device = type('Device', (), {'id': 1})
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'cuda'):
            communicator.all_reduce(x)


if __name__ == '__main__':
    unittest.main()
