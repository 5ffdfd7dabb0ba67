"""Errors are exceptions by code, with the facts of the message."""

import copy
import pickle
import subprocess
import sys
import unittest

import lockstep
from lockstep import errors
from lockstep._native import ffi, lib


class Errors(unittest.TestCase):

    def test_every_code_has_a_class_and_comes_back(self):
        for code in range(1, 16):
            with self.subTest(code):
                error = lib.lockstep_error_create(code, b'why')
                with self.assertRaisesRegex(lockstep.Error, 'why') as raised:
                    errors.check(error)
                self.assertEqual(raised.exception.code, code)
                self.assertIsNone(raised.exception.failed_rank)
                back = errors.to_error(raised.exception)
                self.assertEqual(lib.lockstep_error_code(back), code)
                lib.lockstep_error_free(back)
        errors.check(ffi.NULL)

    def test_python_knows_the_kinds(self):
        for kind, base in ((lockstep.InvalidArgument, ValueError), (lockstep.DeadlineExceeded, TimeoutError),
                           (lockstep.Aborted, ConnectionError), (lockstep.Unimplemented, NotImplementedError)):
            self.assertTrue(issubclass(kind, base) and issubclass(kind, lockstep.Error))

    def test_they_travel_between_processes(self):
        for code in range(1, 16):
            with self.subTest(code):
                made = errors.to_exception(ffi.gc(lib.lockstep_error_create(code, b'why'), lib.lockstep_error_free))
                made.failed_rank, made.collective, made.sequence = 3, 'all_reduce', 7
                back = pickle.loads(pickle.dumps(made))
                self.assertEqual((type(back), str(back), back.code), (type(made), 'why', code))
                self.assertEqual((back.failed_rank, back.collective, back.sequence, back.bucket), (3, 'all_reduce', 7, None))
                self.assertEqual(copy.copy(made).failed_rank, 3)

    def test_what_a_callback_raised_becomes_an_error(self):
        error = ffi.gc(errors.to_error(ZeroDivisionError('by zero')), lib.lockstep_error_free)
        self.assertEqual(str(errors.to_exception(error)), 'ZeroDivisionError: by zero')
        error = ffi.gc(errors.to_error(lockstep.Unavailable('no way: \N{SNOWMAN}')), lib.lockstep_error_free)
        self.assertEqual(repr(errors.to_exception(error)), repr(lockstep.Unavailable('no way: \N{SNOWMAN}')))
        error = ffi.gc(errors.to_error(OSError('no file \udcff\0')), lib.lockstep_error_free)
        self.assertEqual(str(errors.to_exception(error)), r'OSError: no file \udcff\0')

    def test_options_by_name(self):
        for given, kind, text in (({'colour': 1}, lockstep.InvalidArgument, 'no option colour; there are algorithm, .*world_size'),
                                  ({'struct_size': 1}, lockstep.InvalidArgument, 'no option struct_size'),
                                  ({'world_size': 'two'}, TypeError, 'option world_size: .*int'),
                                  ({'timeout_ms': 2**70}, OverflowError, 'option timeout_ms: '),
                                  ({'transport': 3}, TypeError, 'option transport: .*str'),
                                  ({'transport': 'pigeon'}, lockstep.InvalidArgument, 'pigeon')):
            with self.subTest(given), self.assertRaisesRegex(kind, text):
                lockstep.init(**given)
        lockstep.init(world_size=None, job_id='', deterministic=True).close()

    def test_free_threaded_python_is_told_what_to_do(self):
        # As in such an interpreter: the configuration, and no module under the name of the extension.
        program = '''
import sys, sysconfig
sysconfig.get_config_vars()['Py_GIL_DISABLED'] = {free_threaded}
sys.modules['lockstep._native'] = None
import lockstep
'''
        for free_threaded, text in ((1, 'ImportError: lockstep does not support free-threaded Python: .*use a build with the GIL'),
                                    (0, 'ModuleNotFoundError: .*lockstep._native')):
            ended = subprocess.run([sys.executable, '-c', program.format(free_threaded=free_threaded)], capture_output=True, text=True)
            self.assertEqual(ended.returncode, 1)
            self.assertRegex(ended.stderr.splitlines()[-1], text)


if __name__ == '__main__':
    unittest.main()
