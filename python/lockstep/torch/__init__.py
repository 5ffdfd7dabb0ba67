"""Lockstep in PyTorch: the c10d back end "lockstep" (lockstep.torch.backend), init() to set up its process group under any
launcher, a DistributedDataParallel on Lockstep's reducer, check_replicas(), and batch normalisation over all ranks for the CPU."""


def _require_torch():
    needs = 'lockstep.torch needs PyTorch 2.8 or later, '
    try:
        import torch
    except ImportError as error:
        raise ImportError(needs + "which cannot be imported: pip install 'torch>=2.8'") from error
    if tuple(int(part) for part in torch.__version__.split('.')[:2]) < (2, 8):
        raise ImportError(f"{needs}and this is {torch.__version__}: pip install 'torch>=2.8'")
    if not torch.distributed.is_available():
        raise ImportError(needs + 'and this one was built without torch.distributed: install one that has it')


_require_torch()

from lockstep.torch.backend import register as _register  # noqa: E402
from lockstep.torch.launched import init  # noqa: E402
from lockstep.torch.parallel import DistributedDataParallel  # noqa: E402
from lockstep.torch.replicas import DriftWarning, check_replicas  # noqa: E402
from lockstep.torch.sync_batch_norm import SyncBatchNorm  # noqa: E402

_register()  # PyTorch 2.14 is the first that finds it by its entry point
