"""PyTorch's own suite of collectives and DistributedDataParallel, torch.testing._internal.distributed.distributed_test, on the back end
"lockstep".

    torch_suite_test.py [--world-size N] [--gate gloo|lockstep|mpi|gpu|gloo_gpu] [--baseline] [--wrapper] [TEST...]

The suite chooses its tests at import, by the name of a back end. Each name opens another gate; the tests then run on Lockstep, or with
--baseline on Gloo. The gate "gpu" opens the tests for NCCL and for GPUs, "gloo_gpu" those for Gloo and for GPUs, and both move them
to the CPU. Profiler events are required as for Gloo. What passes on Gloo has to pass on Lockstep, except the tests listed here, which have
to fail, as listed. With --wrapper those run that use DistributedDataParallel, with lockstep.torch.DistributedDataParallel in its place.
"""

import argparse
import collections
import contextlib
import inspect
import logging
import multiprocessing
import os
import sys
import time
import types
import unittest
from unittest import mock

import lockstep.torch
from lockstep.torch import backend as back_end
from lockstep.torch import library

# Tests that fail on Lockstep, each with what its error contains.
KNOWN = {
    # In logging data PyTorch calls every back end that is not its own "custom".
    'test_ddp_logging_data_cpu': "'custom' != 'lockstep'",
}
# Tests of the gates "gpu" and "gloo_gpu" that cannot pass without a GPU.
KNOWN_ON_CPU = {
    # They expect NCCL's text of a timeout.
    **dict.fromkeys(('test_monitored_barrier_allreduce_hang', 'test_monitored_barrier_allreduce_hang_wait_all_ranks'),
                    '"caught collective operation timeout" does not match'),
    # It asks for NCCL's class by name.
    'test_nccl_high_priority_stream': 'ProcessGroupNCCL is only supported with GPUs',
    # They look at device_ids, which are left out here.
    'test_ddp_device': 'None mismatch: None is not',
    'test_ddp_logging_data_gpu': 'String comparison failed',
}
# And at world size 3, where one of two equal models divides by 3 before the sum, and the other behind it. Fail on Gloo, too.
KNOWN_OF_THREE = dict.fromkeys(('test_ddp_apply_optim_in_backward', 'test_ddp_apply_optim_in_backward_grad_as_bucket_view_false'),
                               'Tensor-likes are not close')

# And with --wrapper.
KNOWN_WITH_WRAPPER = {
    'test_ddp_logging_data_cpu': None,  # passes
    # A gradient that is missing fails the very backward pass, by name; torch's text comes in the next iteration.
    **dict.fromkeys(('test_ddp_control_flow_different_across_ranks', 'test_ddp_control_flow_same_across_ranks',
                     'test_ddp_multiple_nested_unused_params_err_ignore_params', 'test_ddp_multiple_nested_unused_params_error',
                     'test_ddp_unused_params_rebuild_buckets_exception'), 'no gradient came for parameter'),
    # The error of a graph that is not static names the parameter.
    'test_invalid_static_graph': "the graph changed: parameter 1 'lin2.weight'",
    # They read torch's second copy of each parameter.
    **dict.fromkeys((f'test_ddp_native_mixed_precision_{name}' for name in (
        'grad_as_bucket_view_no_set_grad_none', 'grad_as_bucket_view_set_grad_to_none', 'ignored_params',
        'no_grad_as_bucket_view_no_set_grad_none', 'no_grad_as_bucket_view_set_grad_to_none')), "no attribute '_mp_param'"),
    # skip_all_reduce_unused_params has no effect here.
    'test_skip_all_reduce_unused_parameters': 'Expected 1 but got 2',
    # It wants the broadcast of torch's new bucket plan, which is the library's own message here.
    'test_ddp_profiling_torch_profiler': '0 not greater than or equal to 1',
    # It leaves gradients in a static graph of which only other ranks use the parameter.
    'test_different_graph_across_ranks': 'has a gradient of an earlier pass, and only other ranks use it',
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--world-size', type=int, default=2)
    parser.add_argument('--gate', choices=['gloo', 'lockstep', 'mpi', 'gpu', 'gloo_gpu'], default='gloo')
    parser.add_argument('--baseline', action='store_true')
    parser.add_argument('--wrapper', action='store_true')
    parser.add_argument('tests', nargs='*')
    return parser.parse_args()


def on_cpu(torch):
    """A mode in which tensors are on the CPU, whatever GPU a call names, and other parts of torch.cuda do nothing."""
    from torch.overrides import TorchFunctionMode

    def is_gpu(device):
        return isinstance(device, int) and not isinstance(device, bool) or str(device).startswith('cuda')

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function, _types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if is_gpu(kwargs.get('device')):
                kwargs['device'] = 'cpu'
            if function is torch.Tensor.cuda:
                return args[0].clone()
            if function is torch.Tensor.to:
                args = [args[0], *('cpu' if is_gpu(each) else each for each in args[1:])]
            return function(*args, **kwargs)
    return OnCpu()


def move_to_cpu(torch, common_distributed):
    """Opens the tests that demand GPUs or NCCL."""
    for name in ('skip_if_no_gpu', 'skip_if_rocm_multiprocess', 'with_nccl_blocking_wait'):
        setattr(common_distributed, name, lambda test: test)
    for name in ('skip_if_lt_x_gpu', 'nccl_skip_if_lt_x_gpu', 'require_n_gpus_for_nccl_backend', 'requires_nccl_version'):
        setattr(common_distributed, name, lambda *_, **__: lambda test: test)
    common_distributed.init_multigpu_helper = lambda world_size, _: {rank: [rank] for rank in range(world_size)}
    for name in ('set_device', 'synchronize', 'manual_seed'):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = contextlib.nullcontext
    torch.nn.SyncBatchNorm = lockstep.torch.SyncBatchNorm  # torch's has no kernels for the CPU
    torch.Stream = torch.Event = mock.MagicMock
    torch.accelerator.current_stream = mock.MagicMock()
    ddp, begin = torch.nn.parallel.DistributedDataParallel, torch.nn.parallel.DistributedDataParallel.__init__

    def init(self, module, device_ids=None, output_device=None, *args, **kwargs):
        begin(self, module, None, None, *args, **kwargs)
    ddp.__init__ = init
    torch.nn.Module.cuda = lambda self, device=None: self


def load(gate, world_size, backend, wrapper=False):
    """The suite as a TestCase that runs on the back end."""
    # Read by the suite when it is imported.
    moved = gate.endswith('gpu')
    os.environ.update(BACKEND={'gpu': 'nccl', 'gloo_gpu': 'gloo'}.get(gate, gate), WORLD_SIZE=str(world_size), OMP_NUM_THREADS='1')
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed
    if backend == 'lockstep':  # here, not in each rank of each test
        back_end.load(library.find() or library.build())
    dist.is_mpi_available = lambda: True
    dist.is_nccl_available = lambda: True
    for feature in ('plugin', 'ddp', 'gpu'):
        common_distributed.DistTestCases.backend_feature[feature].add('lockstep')
    if wrapper:
        torch.nn.parallel.DistributedDataParallel = lockstep.torch.DistributedDataParallel
    if moved:
        move_to_cpu(torch, common_distributed)
    if world_size >= 3:  # the tests that demand more than 7 ranks pass with 3
        common_distributed.skip_if_small_worldsize = lambda test: test
    from torch.testing._internal.distributed import distributed_test
    distributed_test.BACKEND = backend
    if moved:
        new_group, tested = dist.new_group, backend
        dist.new_group = lambda *args, backend=None, **kwargs: new_group(*args, backend=tested if backend == 'nccl' else backend, **kwargs)
    for supported in (distributed_test.PROFILING_SUPPORTED_BACKENDS, distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        supported.append('lockstep')
    if world_size < 3:
        os.environ['BACKEND'] = 'gloo'  # skips the tests of a group of ranks 1 and 2
    # Errors come by the result, too; looking for the end of ranks every 0.1 s is half of the time.
    logging.getLogger(common_distributed.__name__).setLevel(logging.CRITICAL)
    common_distributed.get_timeout = lambda _: 1200  # also where others use the processors
    common_distributed.time = types.SimpleNamespace(**{**vars(time), 'sleep': lambda seconds: time.sleep(seconds / 10)})

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # Forked: to import torch in each rank of each test takes seconds.
            self._start_processes(multiprocessing.get_context('fork').Process)

        def run_test(self, *args, **kwargs):
            with on_cpu(torch) if moved else contextlib.nullcontext():
                super().run_test(*args, **kwargs)

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
        known = self._known.get(test.id().split('.')[-1])
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
    result = Result({} if options.baseline else {
        **KNOWN, **(KNOWN_ON_CPU if options.gate.endswith('gpu') else {}),
        **(KNOWN_WITH_WRAPPER if options.wrapper else KNOWN_OF_THREE if options.world_size == 3 else {})})
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
