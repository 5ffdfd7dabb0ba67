"""Moves the tests of PyTorch's suite that ask for GPUs to the CPU: call decorate() before the suite is imported and move() after that.

Every `.cuda()`, `.to(rank)`, `device=` and `device_ids=` then means the CPU.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed


def _of_cpu(value, first=False):
    """An argument that may be a device. `first`: it is in the place of a device, so a number is one."""
    if isinstance(value, torch.device) or isinstance(value, str) and value.startswith('cuda'):
        return 'cpu'
    return 'cpu' if first and isinstance(value, int) and not isinstance(value, bool) else value


class OnCpu(TorchFunctionMode):
    """While it is active, tensors are made on the CPU and stay there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if kwargs.get('device') is not None:
            kwargs['device'] = 'cpu'
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], _of_cpu(args[1], first=True), *map(_of_cpu, args[2:]))
        return func(*args, **kwargs)


def decorate(backend):
    """Makes the decorators that demand GPUs or NCCL accept every test, for a back end."""
    def accept(*_, **__):
        return lambda test: test
    for name in ('skip_if_lt_x_gpu', 'nccl_skip_if_lt_x_gpu', 'require_n_gpus_for_nccl_backend', 'requires_nccl_version'):
        setattr(common_distributed, name, accept)
    common_distributed.skip_if_no_gpu = accept()
    common_distributed.init_multigpu_helper = lambda world_size, backend: {rank: [rank] for rank in range(int(world_size))}
    for feature in ('gpu', 'cuda', 'ddp'):
        common_distributed.DistTestCases.backend_feature[feature].update(('gloo', backend))


def move(suite, wrapper):
    """Runs each test of the suite, a TestCase, on the CPU, with the given class in the place of DistributedDataParallel."""
    class Wrapper(wrapper):
        def __init__(self, module, device_ids=None, output_device=None, *args, **kwargs):
            super().__init__(module, None, None, *args, **kwargs)

    Wrapper.__qualname__ = 'Wrapper'  # for pickles
    globals()['Wrapper'] = Wrapper
    torch.cuda.set_device = torch.cuda.synchronize = lambda device=None: None
    torch.cuda.current_device, torch.cuda.manual_seed = lambda: 0, torch.manual_seed
    torch.nn.Module.cuda = lambda module, device=None: module
    to = torch.nn.Module.to
    torch.nn.Module.to = lambda module, *args, **kwargs: to(module, *(_of_cpu(each, first=True) for each in args),
                                                            **{name: _of_cpu(value, name == 'device') for name, value in kwargs.items()})
    run_test = suite.run_test

    def run(self, name, pipe):
        with OnCpu():
            return run_test(self, name, pipe)
    suite.run_test = run
    return Wrapper
