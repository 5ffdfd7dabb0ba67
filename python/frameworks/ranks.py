"""Runs a test file as several ranks: `python python/frameworks/X_test.py` starts the ranks by the package's launcher, each of which runs
the tests. Then RANK and its like are set, as torchrun sets them."""

import os
import sys
import unittest

import lockstep.run


def main(ranks):
    """What a test file calls at its end. The tests run in every rank, in one order."""
    if 'LOCKSTEP_RANK' in os.environ:
        unittest.main(verbosity=1)
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    os.execv(lockstep.run.launcher(), ['lockstep-run', '-n', str(ranks), '--foreground', '0', sys.executable, *sys.argv])
