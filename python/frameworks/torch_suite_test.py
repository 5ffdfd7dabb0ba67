"""PyTorch's own suite of collectives and DistributedDataParallel, torch.testing._internal.distributed.distributed_test, on the back end
"lockstep".

    torch_suite_test.py [--world-size N] [--gate gloo|lockstep|mpi] [--baseline] [--wrapper] [TEST...]

The suite chooses its tests at import, by the name of a back end. Each of three names opens another gate; the tests then run on Lockstep, or
with --baseline on Gloo. What passes on Gloo has to pass on Lockstep, but for the tests listed here, which have to fail, as listed.
With --wrapper those run that use DistributedDataParallel, with lockstep.torch.DistributedDataParallel in its place.
"""

import argparse
import collections
import inspect
import logging
import multiprocessing
import os
import sys
import time
import types
import unittest

from lockstep.torch import cpp

# Tests that fail on Lockstep and pass on Gloo, each with what its error contains: in logging data PyTorch calls every back end that is not
# its own "custom".
KNOWN = {
    'test_ddp_logging_data_cpu': "'custom' != 'lockstep'",
}
# And on a back end in Python: PyTorch's trampoline does not forward these two calls of a work.
KNOWN_IN_PYTHON = {
    'test_irecv': 'is_completed()',
    'test_isend': 'is_completed()',
    'test_isend_autograd_profiler': 'is_completed()',
    'test_isend_torch_profiler': 'is_completed()',
    'test_send_recv_any_source': 'sourceRank()',
    'test_send_recv_any_source_autograd_profiler': 'sourceRank()',
    'test_send_recv_any_source_torch_profiler': 'sourceRank()',
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--world-size', type=int, default=2)
    parser.add_argument('--gate', choices=['gloo', 'lockstep', 'mpi'], default='gloo')
    parser.add_argument('--baseline', action='store_true')
    parser.add_argument('--wrapper', action='store_true')
    parser.add_argument('tests', nargs='*')
    return parser.parse_args()


def load(gate, world_size, backend, wrapper=False):
    """The suite as a TestCase that runs on the back end."""
    # Read by the suite when it is imported.
    os.environ.update(BACKEND=gate, WORLD_SIZE=str(world_size), OMP_NUM_THREADS='1')
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed
    import lockstep.torch.backend  # noqa: F401: here, not in each rank of each test
    dist.is_mpi_available = lambda: True
    if wrapper:
        torch.nn.parallel.DistributedDataParallel = lockstep.torch.DistributedDataParallel
    for feature in ('plugin', 'ddp'):
        common_distributed.DistTestCases.backend_feature[feature].add('lockstep')
    from torch.testing._internal.distributed import distributed_test
    distributed_test.BACKEND = backend
    if world_size < 3:
        os.environ['BACKEND'] = 'gloo'  # skips the tests of a group of ranks 1 and 2
    # Errors come by the result, too; looking for the end of ranks every 0.1 s is half of the time.
    logging.getLogger(common_distributed.__name__).setLevel(logging.CRITICAL)
    common_distributed.time = types.SimpleNamespace(**{**vars(time), 'sleep': lambda seconds: time.sleep(seconds / 10)})

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # Forked: to import torch in each rank of each test takes seconds.
            self._start_processes(multiprocessing.get_context('fork').Process)

        def _test_accumulate_gradients_no_sync(self, *args, **kwargs):
            # Knows by name whether the model belongs on the CPU. In this rank all else has been chosen.
            distributed_test.BACKEND = 'gloo'
            super()._test_accumulate_gradients_no_sync(*args, **kwargs)

    return Suite


def uses_ddp(suite):
    """The names of the tests that use DistributedDataParallel, or call a method that does."""
    sources = {name: inspect.getsource(method) for name, method in inspect.getmembers(suite, inspect.isfunction)}
    found = {name for name, source in sources.items() if 'DistributedDataParallel' in source or 'ddp' in name.lower()}
    while True:
        more = {name for name, source in sources.items() if any(f'self.{each}(' in source for each in found)} - found
        if not more:
            return found
        found |= more


class Result(unittest.TestResult):
    """Prints a line a test. known: {the name of a test that has to fail: what its error contains}. outcomes: the names of the tests by
    outcome."""

    def __init__(self, known):
        super().__init__()
        self.outcomes = collections.defaultdict(list)
        self._known = known

    def startTest(self, test):
        super().startTest(test)
        self._began = time.monotonic()

    def _note(self, test, outcome, detail):
        name = test.id().split('.')[-1]
        self.outcomes[outcome].append(name)
        print(f'{outcome:16} {name} {time.monotonic() - self._began:.1f} s {detail}', flush=True)

    def addSuccess(self, test):
        known = test.id().split('.')[-1] in self._known
        self._note(test, 'known, but passed' if known else 'passed', '')

    def addSkip(self, test, reason):
        self._note(test, 'skipped', reason)

    def addFailure(self, test, error):
        text, expected = self._exc_info_to_string(error, test), self._known.get(test.id().split('.')[-1])
        known = expected is not None and expected in text
        self._note(test, 'known' if known else 'failed', expected if known else text)

    addError = addFailure


def main():
    options = parse()
    suite = load(options.gate, options.world_size, 'gloo' if options.baseline else 'lockstep', options.wrapper)
    names = options.tests or unittest.defaultTestLoader.getTestCaseNames(suite)
    if options.wrapper and not options.tests:
        names = sorted(set(names) & uses_ddp(suite))
    result = Result({} if options.baseline else KNOWN if cpp.built_path().exists() else {**KNOWN, **KNOWN_IN_PYTHON})
    began = time.monotonic()
    unittest.TestSuite(map(suite, names)).run(result)
    counts = {outcome: len(found) for outcome, found in result.outcomes.items()}
    print(f'gate {options.gate}, world size {options.world_size}: ran {len(names) - counts.get("skipped", 0)}, '
          + ', '.join(f'{outcome} {counts.get(outcome, 0)}' for outcome in ('passed', 'skipped', 'known', 'failed', 'known, but passed'))
          + f', {time.monotonic() - began:.0f} s')
    wrong = result.outcomes['failed'] + result.outcomes['known, but passed']
    sys.exit('wrong: ' + ' '.join(wrong) if wrong else 0)


if __name__ == '__main__':
    main()
