"""The rank that failed first, and its reason, come last: of C programs and of plain Python."""

import os
import sys
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'frameworks'))
import first_failures  # noqa: E402


class FirstFailure(unittest.TestCase):
    pass


first_failures.add_tests(FirstFailure, 'c', [os.path.abspath('python/failing_rank')], ('exit', 'signal', 'memory'), memory=96)
first_failures.add_tests(FirstFailure, 'python', first_failures.python('python'), ('raise', 'exit', 'signal', 'memory'), memory=400)
first_failures.add_tests(FirstFailure, 'python_pairs', first_failures.python('python_pairs'), ('raise', 'exit', 'signal'), None)

if __name__ == '__main__':
    unittest.main()
