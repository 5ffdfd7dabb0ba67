"""Composer's synchronisation strategies: when the micro-batches of one step average their gradients.

    for i, (x, y) in enumerate(micro_batches):
        with sync_context(model, is_final_microbatch=i + 1 == len(micro_batches), sync_strategy='single_auto_sync'):
            loss(model(x), y).backward()
    optimizer.step()

All three end with the same gradients but for rounding: the average over ranks of each rank's sum.
"""

import contextlib
import enum


class SyncStrategy(enum.Enum):
    """SINGLE_AUTO_SYNC  the last micro-batch averages what has accumulated, during its backward pass
    MULTI_AUTO_SYNC   every micro-batch does, so that gradients are equal on all ranks after each
    FORCED_SYNC       no backward pass does; after the last one the gradients that there are, in a step of its own
    """

    SINGLE_AUTO_SYNC = 'single_auto_sync'
    MULTI_AUTO_SYNC = 'multi_auto_sync'
    FORCED_SYNC = 'forced_sync'


@contextlib.contextmanager
def sync_context(model, is_final_microbatch=True, sync_strategy=None):
    """Around forward and backward of one micro-batch of a lockstep.torch.DistributedDataParallel.

    sync_strategy: a SyncStrategy or its value; None: MULTI_AUTO_SYNC with find_unused_parameters, else SINGLE_AUTO_SYNC. With FORCED_SYNC
    leaving the last micro-batch is a collective. Without find_unused_parameters it fails by name where ranks have gradients for different
    parameters. An exception inside is passed on, and nothing is averaged.
    """
    if sync_strategy is None:
        sync_strategy = SyncStrategy.MULTI_AUTO_SYNC if model.find_unused_parameters else SyncStrategy.SINGLE_AUTO_SYNC
    strategy = SyncStrategy(sync_strategy)
    syncs = strategy is SyncStrategy.MULTI_AUTO_SYNC or strategy is SyncStrategy.SINGLE_AUTO_SYNC and is_final_microbatch
    with contextlib.nullcontext() if syncs else model.no_sync():
        yield
    if strategy is SyncStrategy.FORCED_SYNC and is_final_microbatch:
        model.average_gradients()
