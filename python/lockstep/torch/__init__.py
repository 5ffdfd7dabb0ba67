"""Lockstep in PyTorch: the c10d back end "lockstep" (lockstep.torch.backend), and a DistributedDataParallel on Lockstep's reducer,
with batch normalisation over all ranks for the CPU."""


def _require_torch():
    # Back ends in Python, and their entry points, came with 2.14.
    needs = 'lockstep.torch needs PyTorch 2.14 or later, '
    try:
        import torch
    except ImportError as error:
        raise ImportError(needs + "which cannot be imported: pip install 'torch>=2.14'") from error
    if tuple(int(part) for part in torch.__version__.split('.')[:2]) < (2, 14):
        raise ImportError(f"{needs}and this is {torch.__version__}: pip install 'torch>=2.14'")
    if not torch.distributed.is_available():
        raise ImportError(needs + 'and this one was built without torch.distributed: install one that has it')


_require_torch()

from lockstep.torch.launched import init  # noqa: E402
from lockstep.torch.parallel import DistributedDataParallel  # noqa: E402
from lockstep.torch.sync_batch_norm import SyncBatchNorm  # noqa: E402
