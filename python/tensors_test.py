"""What is read of arrays, and what is refused by name."""

import array
import ctypes
import gc
import unittest

import lockstep
from lockstep import tensors
from lockstep._native import lib

try:
    import numpy
except ImportError:
    numpy = None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


def read(given, writable=True):
    return tensors.read(given, 'x', writable)


def shape_of(tensor):
    return [tensor.c.shape[i] for i in range(tensor.c.dimensions)]


class Buffers(unittest.TestCase):

    def test_every_format(self):
        for code, dtype in (('b', lib.LOCKSTEP_I8), ('B', lib.LOCKSTEP_U8), ('i', lib.LOCKSTEP_I32), ('I', lib.LOCKSTEP_U32),
                            ('l', lib.LOCKSTEP_I64), ('q', lib.LOCKSTEP_I64), ('Q', lib.LOCKSTEP_U64), ('f', lib.LOCKSTEP_F32),
                            ('d', lib.LOCKSTEP_F64)):
            with self.subTest(code):
                given = array.array(code, [1, 2, 3])
                found = read(given)
                self.assertEqual((found.c.dtype, shape_of(found)), (dtype, [3]))
                self.assertEqual(int(tensors.ffi.cast('uintptr_t', found.c.data)), given.buffer_info()[0])

    def test_shapes(self):
        self.assertEqual(shape_of(read(memoryview(bytearray(24)).cast('f', (2, 3)))), [2, 3])
        self.assertEqual(shape_of(read((ctypes.c_double * 3)())), [3])
        self.assertEqual(shape_of(read(ctypes.c_float(1))), [])
        self.assertEqual(shape_of(read(array.array('f'))), [0])

    def test_what_cannot_be_served_is_refused_by_name(self):
        class Pair(ctypes.Structure):
            _fields_ = [('a', ctypes.c_int), ('b', ctypes.c_float)]
        view = memoryview(array.array('f', range(8)))
        for given, text in (
                (view[::2], r'x: an array of shape \(4,\) with strides \(8,\) is not contiguous; pass a contiguous copy'),
                (b'abc', 'x: this bytes is read-only; pass memory that may be written, or a separate output'),
                (view.toreadonly(), 'x: this memoryview is read-only'),
                (array.array('h', [1]), "x: Lockstep has no dtype for the buffer format 'h' of 2 bytes; it has bool, uint8"),
                ((Pair * 2)(), 'x: elements are structures'),
                ((ctypes.c_float.__ctype_be__ * 2)(), "x: elements of format '>f' have the other byte order"),
                (3, 'x: a int has no buffer, __cuda_array_interface__ or __dlpack__')):
            with self.subTest(text), self.assertRaisesRegex(lockstep.InvalidArgument, text):
                read(given)
        self.assertTrue(read(b'abc', writable=False))

    def test_memory_is_held_while_it_is_borrowed(self):
        memory = bytearray(8)
        with memoryview(memory) as view:
            found = read(view)
        for found in (found, read(memory)):
            with self.assertRaises(BufferError):
                memory.append(1)
        del found
        memory.append(1)

    def test_a_view_in_a_cycle_with_what_it_lent_is_collected(self):
        # Before Python 3.13 the collector crashes if it meets a memoryview that is lent.
        class Holder:
            pass
        for _ in range(50):
            holder = Holder()
            holder.self = holder
            holder.view = memoryview(array.array('f', range(100)))
            holder.lent = read(holder.view)
            del holder
            gc.collect()

    def test_bytes_of_any_elements(self):
        found = tensors.read_bytes(array.array('h', [1, 2, 3]), 'x')
        self.assertEqual((found.c.dtype, shape_of(found)), (lib.LOCKSTEP_U8, [6]))
        self.assertEqual(shape_of(tensors.read_bytes(b'', 'x')), [0])
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'x: a str is not bytes'):
            tensors.read_bytes('text', 'x')


@unittest.skipIf(numpy is None, 'needs NumPy')
class NumPy(unittest.TestCase):

    def test_dtypes(self):
        for name in tensors.NAMES:
            if name in ('bfloat16', 'float8_e4m3fn', 'float8_e5m2'):
                continue
            with self.subTest(name):
                given = numpy.zeros((2, 3), name)
                found = read(given)
                self.assertEqual((found.c.dtype, shape_of(found)), (tensors.NAMES[name], [2, 3]))
                self.assertEqual(int(tensors.ffi.cast('uintptr_t', found.c.data)), given.ctypes.data)

    def test_what_cannot_be_served_is_refused_by_name(self):
        frozen = numpy.zeros(3, 'f4')
        frozen.setflags(write=False)
        for given, text in ((numpy.zeros((3, 3), 'f4').T[:2], 'x: an array of shape .* is not contiguous'),
                            (numpy.zeros(3, '>f4'), "x: elements of format '>f' have the other byte order; .*newbyteorder"),
                            (numpy.zeros(3, 'i4,f4'), 'x: elements are structures'),
                            (numpy.zeros(3, 'i2'), "x: Lockstep has no dtype for the buffer format 'h'"),
                            (numpy.zeros(3, 'M8[s]'), r'x: Lockstep has no dtype datetime64\[s\]'),
                            (numpy.array([None]), "x: Lockstep has no dtype for the buffer format 'O'"),
                            (frozen, 'x: this ndarray is read-only')):
            with self.subTest(text), self.assertRaisesRegex(lockstep.InvalidArgument, text):
                read(given)

    @unittest.skipIf(ml_dtypes is None, 'needs ml_dtypes')
    def test_extended_dtypes(self):
        for name in ('bfloat16', 'float8_e4m3fn', 'float8_e5m2'):
            with self.subTest(name):
                given = numpy.zeros((2, 3), getattr(ml_dtypes, name))
                found = read(given)
                self.assertEqual((found.c.dtype, shape_of(found)), (tensors.NAMES[name], [2, 3]))
                self.assertEqual(int(tensors.ffi.cast('uintptr_t', found.c.data)), given.ctypes.data)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'x: an array of shape .* is not contiguous'):
            read(numpy.zeros((2, 3), ml_dtypes.bfloat16).T)
        with self.assertRaisesRegex(lockstep.InvalidArgument, 'x: Lockstep has no dtype float8_e3m4'):
            read(numpy.zeros(3, ml_dtypes.float8_e3m4))


class DLTensor(ctypes.Structure):
    _fields_ = [('data', ctypes.c_void_p), ('device_type', ctypes.c_int32), ('device_id', ctypes.c_int32), ('ndim', ctypes.c_int32),
                ('code', ctypes.c_uint8), ('bits', ctypes.c_uint8), ('lanes', ctypes.c_uint16), ('shape', ctypes.POINTER(ctypes.c_int64)),
                ('strides', ctypes.POINTER(ctypes.c_int64)), ('byte_offset', ctypes.c_uint64)]


class Versioned(ctypes.Structure):
    _fields_ = [('major', ctypes.c_uint32), ('minor', ctypes.c_uint32), ('manager', ctypes.c_void_p), ('deleter', ctypes.c_void_p),
                ('flags', ctypes.c_uint64), ('tensor', DLTensor)]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Producer:
    """Has only DLPack. version None: the protocol before 1.0, which knows no arguments."""

    def __init__(self, version, flags=0, strides=(3, 1), device=1, bits=32):
        self.memory = (ctypes.c_float * 7)()
        self.arrays = (ctypes.c_int64 * 2)(2, 3), (ctypes.c_int64 * 2)(*strides)
        self.version = version
        tensor = DLTensor(ctypes.addressof(self.memory), device, 0, 2, 2, bits, 1, self.arrays[0], self.arrays[1], 4)
        self.managed = tensor if version is None else Versioned(*version, None, None, flags, tensor)

    def __dlpack__(self, **options):
        if self.version is None:
            if options:
                raise TypeError('no arguments')
            return new_capsule(ctypes.addressof(self.managed), b'dltensor', None)
        assert options == {'max_version': (1, 0), 'copy': False}
        return new_capsule(ctypes.addressof(self.managed), b'dltensor_versioned', None)


class DLPack(unittest.TestCase):

    def test_versions(self):
        for version, writable in ((None, False), ((1, 0), True), ((1, 3), True)):
            with self.subTest(version):
                given = Producer(version)
                found = read(given, writable)
                self.assertEqual((found.c.dtype, shape_of(found)), (lib.LOCKSTEP_F32, [2, 3]))
                self.assertEqual(int(tensors.ffi.cast('uintptr_t', found.c.data)), ctypes.addressof(given.memory) + 4)

    def test_what_cannot_be_served_is_refused_by_name(self):
        for given, text in ((Producer(None), 'x: this Producer is read-only'), (Producer((1, 0), flags=1), 'this Producer is read-only'),
                            (Producer((1, 0), flags=2), 'this Producer is read-only'), (Producer((2, 0)), 'x: DLPack 2.0; Lockstep has 1'),
                            (Producer((1, 0), device=4), 'x: .*device type 4'), (Producer((1, 0), bits=128), 'x: .*no dtype')):
            with self.subTest(text), self.assertRaisesRegex(lockstep.InvalidArgument, text):
                read(given)
        with lockstep.init() as communicator, self.assertRaisesRegex(lockstep.InvalidArgument, 'contiguous'):
            communicator.all_reduce(Producer((1, 0), strides=(1, 2)))

    def test_the_producer_is_held(self):
        given = Producer((1, 0))
        found = read(given)
        self.assertIs(found.owner[0], given)


class OnDevice:
    """Says that it is on a CUDA device."""

    def __init__(self, **changes):
        self.__cuda_array_interface__ = {'shape': (2, 3), 'typestr': '<f4', 'data': (4096, False), 'strides': None, 'version': 3, **changes}


class CudaArrayInterface(unittest.TestCase):

    def test_what_it_says(self):
        for changes in ({}, {'strides': (12, 4)}, {'typestr': '|u1'}, {'typestr': '<c8', 'strides': (24, 8)}, {'shape': ()}):
            with self.subTest(changes):
                found = read(OnDevice(**changes))
                self.assertEqual((found.c.device_kind, int(tensors.ffi.cast('uintptr_t', found.c.data))), (lib.LOCKSTEP_CUDA, 4096))

    def test_memory_is_where_its_communicator_is(self):
        found = read(lockstep.Memory(tensors.ffi.NULL, lockstep.CUDA, 1))
        self.assertEqual((found.c.device_kind, found.c.device_index), (lib.LOCKSTEP_CUDA, 1))

    def test_what_cannot_be_served_is_refused_by_name(self):
        for changes, text in (({'strides': (4, 8)}, 'x: an array of shape .* is not contiguous'), ({'data': (4096, True)}, 'read-only'),
                              ({'typestr': '>f4'}, 'x: Lockstep has no dtype >f4'), ({'typestr': '<i2'}, 'x: Lockstep has no dtype <i2'),
                              ({'mask': object()}, 'x: a masked array')):
            with self.subTest(text), self.assertRaisesRegex(lockstep.InvalidArgument, text):
                read(OnDevice(**changes))


if __name__ == '__main__':
    unittest.main()
