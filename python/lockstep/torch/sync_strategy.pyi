import enum
from contextlib import AbstractContextManager

from lockstep.torch.parallel import DistributedDataParallel

class SyncStrategy(enum.Enum):
    SINGLE_AUTO_SYNC = 'single_auto_sync'
    MULTI_AUTO_SYNC = 'multi_auto_sync'
    FORCED_SYNC = 'forced_sync'

def sync_context(
    model: DistributedDataParallel, is_final_microbatch: bool = True, sync_strategy: SyncStrategy | str | None = None
) -> AbstractContextManager[None]: ...
