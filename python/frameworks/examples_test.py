"""The examples that people run first, as they run them, for a few steps. Skipped without Debian's package dataset-fashion-mnist."""

import os
import re
import shlex
import sys
import unittest

import programs

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'examples')
DATA = '/usr/share/datasets/fashion-mnist'


@unittest.skipUnless(os.path.isdir(DATA), f'no {DATA}: apt-get install dataset-fashion-mnist')
class ExamplesTest(unittest.TestCase):
    def run_example(self, *command):
        """Everything that it writes."""
        status, output = programs.run([sys.executable, *command, '--steps', '8', '--compare-gloo'], 240)
        self.assertEqual(status, 0, output)
        return output

    def assert_same_result(self, output, result):
        """Lockstep's and Gloo's results are equal, but for their times."""
        found = dict(re.findall(rf'^(Lockstep|Gloo): [0-9.]+ s.*({result})', output, re.MULTILINE))
        self.assertEqual(set(found), {'Lockstep', 'Gloo'}, output)
        self.assertEqual(found['Lockstep'], found['Gloo'], output)

    def test_pytorch(self):
        script = os.path.join(EXAMPLES, 'pytorch', 'fashion_mnist.py')
        for launcher in (('lockstep.run', '-n', '2', '--foreground', '0'),
                         ('torch.distributed.run', '--standalone', '--nproc-per-node', '2')):
            with self.subTest(launcher[0]):
                output = self.run_example('-m', *launcher, script)
                self.assert_same_result(output, 'test accuracy [0-9.]+%')
                self.assertNotIn('#', output)
                self.assertEqual(output.count('the replicas are equal'), 2, output)

    def test_progress_bars_are_for_terminals(self):
        script = shlex.join([sys.executable, '-m', 'lockstep.run', '-n', '2', '--foreground', '0',
                             os.path.join(EXAMPLES, 'pytorch', 'fashion_mnist.py'), '--steps', '8'])
        status, output = programs.run(['script', '-qec', script, '/dev/null'], 300)
        self.assertEqual(status, 0, output)
        self.assertIn('Lockstep [########################################] 8, loss', output)
        self.assertRegex(output, r'(?m)^Lockstep: .* test accuracy')

    def test_lightning(self):
        output = self.run_example(os.path.join(EXAMPLES, 'lightning', 'fashion_mnist.py'))
        self.assert_same_result(output, 'loss [0-9.]+')
        self.assertNotIn('8/8', output)
        self.assertEqual(output.count('the replicas are equal'), 2, output)

    def test_jax(self):
        output = self.run_example('-m', 'lockstep.run', '-n', '2', '--foreground', '0', os.path.join(EXAMPLES, 'jax', 'fashion_mnist.py'))
        found = dict(re.findall(r'(Lockstep|Gloo) *: [0-9.]+ s, (loss [0-9.]+)', output))
        self.assertEqual(set(found), {'Lockstep', 'Gloo'}, output)
        self.assertEqual(found['Lockstep'], found['Gloo'], output)
        self.assertEqual(output.count('the replicas are equal'), 2, output)

    def test_they_are_short(self):
        for name in ('jax', 'pytorch', 'lightning'):
            with open(os.path.join(EXAMPLES, name, 'fashion_mnist.py')) as file:
                self.assertLessEqual(len(file.readlines()), 64)


if __name__ == '__main__':
    unittest.main()
