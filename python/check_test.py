"""python -m lockstep.check: its page where all is well, where something is broken, and what it keeps to itself."""

import os
import subprocess
import sys
import tempfile
import unittest

SECRET = '0123456789abcdef' * 4


class Check(unittest.TestCase):

    def start(self, *before, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith('LOCKSTEP_') or name == 'LOCKSTEP_RUN'}
        environment['PYTHONPATH'] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        return subprocess.Popen([*before, sys.executable, '-m', 'lockstep.check'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env={**environment, **variables})

    def check(self, *before, **variables):
        with self.start(*before, **variables) as done:
            page, _ = done.communicate(timeout=200)
        return done.returncode, page

    def test_all_is_well(self):
        status, page = self.check()
        self.assertEqual(status, 0, page)
        for line in (r'lockstep: +\d', r'python: +CPython 3', r'system: +Linux .*glibc 2\.\d',
                     r'auto: +shm: all-reduce of 8 bytes in \d+ us',
                     r'tcp: +tcp 127\.0\.0\.1:\d+: all-reduce of 8 bytes in \d+ us, of 4 MiB in \d+ us', r'threads: +OMP_NUM_THREADS',
                     r'result: +Lockstep works here'):
            self.assertRegex(page, rf'(?m)^{line}')
        self.assertNotIn('FAULT', page)

    def test_what_is_wrong_is_named(self):
        status, page = self.check(LOCKSTEP_INTERFACE='=nosuch0')
        self.assertEqual(status, 1, page)
        self.assertRegex(page, r'(?m)^auto: +FAULT: rank \d: \w+: .*nosuch0')
        self.assertRegex(page, r'(?m)^result: +FAULT: exit status \d')

    def test_a_machine_without_loopback(self):
        unshare = ['unshare', '--net'] if os.geteuid() == 0 else ['unshare', '--user', '--net']
        try:
            subprocess.run([*unshare, 'true'], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f'no network namespace: {error}')
        status, page = self.check(*unshare)
        self.assertEqual(status, 1, page)
        self.assertRegex(page, r'(?m)^lockstep-run: connect to 127\.0\.0\.1:0: the loopback interface is down\nresult: +FAULT: ')

    def test_ends_if_nobody_reads_the_page(self):
        with self.start() as check:
            for line in check.stdout:
                if line.startswith('auto:'):
                    break
            check.stdout.close()
            self.assertNotEqual(check.wait(timeout=200), 0)

    def test_no_secret_is_printed(self):
        with tempfile.NamedTemporaryFile('w', prefix='private') as file:
            file.write(SECRET)
            file.flush()
            status, page = self.check(LOCKSTEP_SECRET_FILE=file.name, LOCKSTEP_LOG='info', LOCKSTEP_TIMEOUT_MS='40000')
        self.assertEqual(status, 0, page)
        self.assertRegex(page, r'(?m)^variable: +LOCKSTEP_SECRET_FILE is set$')
        self.assertRegex(page, r'(?m)^variable: +LOCKSTEP_TIMEOUT_MS=40000$')
        self.assertNotIn(SECRET, page)
        self.assertNotIn(file.name, page)


if __name__ == '__main__':
    unittest.main()
