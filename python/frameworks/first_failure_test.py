"""The rank that failed first, and its reason, come last: of PyTorch and Lightning, under lockstep-run and under torchrun."""

import re
import unittest

import first_failures


class FirstFailure(unittest.TestCase):
    pass


for _kind, _memory in (('torch', 3000), ('lightning', 6000)):
    first_failures.add_tests(FirstFailure, _kind, first_failures.python(_kind), ('raise', 'exit', 'signal', 'memory'), _memory)
first_failures.add_tests(FirstFailure, 'torch_pairs', first_failures.python('torch_pairs'), ('raise', 'exit', 'signal'), None)


class UnderTorchrun(unittest.TestCase):
    """The root cause in torchrun's report is that rank, and an exception has its traceback there."""

    def check(self, way, ranks, culprit):
        torchrun = [first_failures.sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', str(ranks)]
        _, lines = first_failures.run([first_failures.PROGRAM, 'torch', way, str(culprit)], ranks, launcher=torchrun)
        text = '\n'.join(lines)
        cause = text.partition('Root Cause (first observed failure):')[2]
        self.assertEqual(re.findall(r'^ +rank +: (\d+)', cause, re.MULTILINE), [str(culprit)], text)
        expected = {'raise': 'ValueError: a bad batch', 'exit': 'exitcode  : 3 ', 'signal': 'exitcode  : -9 '}[way]
        self.assertIn(expected, cause, text)


for _way in ('raise', 'exit', 'signal'):
    for _ranks in (2, 4):
        def _test(self, way=_way, ranks=_ranks):
            for culprit in (ranks - 1, 0):
                with self.subTest(culprit=culprit):
                    self.check(way, ranks, culprit)
        setattr(UnderTorchrun, f'test_{_way}_{_ranks}_ranks', _test)

if __name__ == '__main__':
    unittest.main()
