"""How programs with lockstep.jax end: with calls in flight, with a rank that raises or dies, and without a JAX that fits."""

import os
import signal
import sys
import tempfile
import unittest

import programs

BEGIN = '''
import os, signal, sys, time
import lockstep, lockstep.jax
import jax, jax.numpy as jnp
communicator = lockstep.init(timeout_ms=300_000)
program = jax.jit(lambda x: lockstep.jax.all_reduce(x, communicator)[0])
slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda i, x: jnp.sin(x @ x), x)[0, :2])
def late():
    """Two numbers that are not there yet, so that what needs them is put off to a thread of XLA's."""
    return slow(jnp.ones((300, 300)) / 300)
late().block_until_ready()
program(jnp.ones(2)).block_until_ready()
'''


class Exit(unittest.TestCase):

    def run_ranks(self, scripts):
        """[(exit status, its output)] of a rank for each script, none of which hangs."""
        with tempfile.TemporaryDirectory() as folder:
            common = {'LOCKSTEP_WORLD_SIZE': str(len(scripts)), 'LOCKSTEP_STORE': f'file://{folder}/store'}
            return programs.run_together([([sys.executable, '-c', BEGIN + script], {**common, 'LOCKSTEP_RANK': str(rank)})
                                          for rank, script in enumerate(scripts)], 100)

    def test_with_calls_in_flight_everywhere(self):
        script = 'y = program(program(late()))'
        for status, output in self.run_ranks([script, script]):
            self.assertEqual(status, 0, output)

    def test_with_a_call_in_flight_that_the_other_rank_never_makes(self):
        waits = '''
y = program(late())
while 'running' not in communicator.flight_records() and communicator.status() is None: pass
print('leaves')
'''
        for other in ('', 'time.sleep(1)'):
            (status, output), (other_status, other_output) = self.run_ranks([waits, other])
            self.assertEqual(status, 0, output)
            self.assertIn('leaves', output)
            self.assertEqual(other_status, 0, other_output)

    def test_after_an_exception_of_one_rank(self):
        (status, output), (_, other) = self.run_ranks([
            'program(program(jnp.ones(2))).block_until_ready()', 'raise SystemExit("gives up")'])
        self.assertEqual(status, 1, output)
        self.assertRegex(output, '(ABORTED|UNAVAILABLE): all_reduce.*rank 1')
        self.assertIn('gives up', other)

    def test_after_an_exception_in_a_program(self):
        script = '''
def fails(x):
    if communicator.rank == 1: raise ValueError('no more data')
    return x
@jax.jit
def step(x):
    x = jax.pure_callback(fails, x, x)
    return lockstep.jax.all_reduce(x, communicator)[0]
step(jnp.ones(2)).block_until_ready()
'''
        (status, output), (other_status, other) = self.run_ranks([script, script])
        self.assertEqual((status, other_status), (1, 1))
        self.assertRegex(output, '(ABORTED|UNAVAILABLE): all_reduce.*rank 1')
        self.assertIn('no more data', other)

    def test_with_a_rank_that_is_killed(self):
        (status, output), (other, _) = self.run_ranks([
            'program(jnp.ones(2)).block_until_ready()', 'os.kill(os.getpid(), signal.SIGKILL)'])
        self.assertEqual((status, other), (1, -signal.SIGKILL), output)
        self.assertRegex(output, 'all_reduce.*rank 1.*pid')
        self.assertNotIn('DEADLINE_EXCEEDED', output)

    def test_with_gradients_in_flight(self):
        script = '''
reducer = lockstep.jax.make_reducer([jnp.ones(100_000)] * 4, communicator, bucket_cap_bytes=100_000)
step = jax.jit(lambda x: lockstep.jax.average_gradients([x, x + 1, x + 2, x + 3], reducer)[0])
step(jnp.ones(100_000))
'''
        for status, output in self.run_ranks([script + 'y = step(jnp.ones(100_000) * late()[0])', script]):
            self.assertEqual(status, 0, output)
        (status, output), _ = self.run_ranks([script + 'jax.block_until_ready(step(jnp.ones(100_000)))',
                                              script + 'os.kill(os.getpid(), signal.SIGKILL)'])
        self.assertEqual(status, 1, output)
        self.assertIn('rank 1', output)


class Imports(unittest.TestCase):

    def import_with(self, script):
        status, output = programs.run([sys.executable, '-c', script + '\nimport lockstep.jax'], 100)
        self.assertEqual(status, 1, output)
        return output.splitlines()[-1]

    def test_without_jax(self):
        text = self.import_with("import sys; sys.modules['jax'] = None")
        self.assertRegex(text, r'^ImportError: lockstep.jax needs JAX .*pip install "jax>=')

    def test_with_a_jax_without_ffi(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, 'jax'))
            with open(os.path.join(folder, 'jax', '__init__.py'), 'w', encoding='ascii') as file:
                file.write('__version__ = "0.4.13"\n')
            text = self.import_with(f'import sys; sys.path.insert(0, {folder!r})')
            self.assertRegex(text, r'^ImportError: .*jax\.ffi.*pip install "jax>=')

    def test_with_a_jax_that_refuses_the_handlers(self):
        text = self.import_with('import jax\ndef refuse(*_, **__): raise RuntimeError("incompatible with the framework\'s API version")\n'
                                'jax.ffi.register_ffi_target = refuse')
        self.assertRegex(text, r'^ImportError: .*refuses the handlers \(incompatible.*pip install')


if __name__ == '__main__':
    unittest.main()
