"""Uneven inputs, by torch.distributed.algorithms.Join: what a rank with inputs does before each forward pass, and what one without does
meanwhile. The two sides make the same collectives."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

import lockstep


class Told:
    """What a rank learns at a forward pass: how many ranks still have inputs, and whose buffers count."""

    __slots__ = ('live', 'root')


def tell(ddp, sync):
    """Of a rank with inputs, before its forward pass. sync: whether its backward averages."""
    told = Told()
    told.live = _count_live(ddp)
    told.root = _agree(ddp, ddp.process_group.rank())
    _agree(ddp, int(sync))
    return told


def _count_live(ddp):
    # What Join.notify_join_context does, whose work does not tell the sum.
    config, group = ddp._join_config, ddp.process_group
    if not config.is_first_joinable:
        return group.size()
    live = torch.ones(1, device=ddp.join_device)
    dist.all_reduce(live, group=group)
    if config.throw_on_early_termination:
        ended = torch.zeros(1, device=ddp.join_device)
        dist.all_reduce(ended, group=group)
        if ended.item():
            raise RuntimeError('Detected at least one rank that exhausted inputs. Throwing across all ranks.')
    return round(live.item())


def _agree(ddp, value):
    """The highest of the ranks' values."""
    highest = torch.tensor([value], dtype=torch.int64, device='cpu')
    ddp._communicator.all_reduce(highest, op=lockstep.MAX)
    return int(highest)


class Hook(JoinHook):
    """Of a rank that has no inputs left."""

    def __init__(self, ddp, divide_by_initial_world_size=True, **_):
        self._ddp = ddp
        ddp._divide_by_initial_world_size = divide_by_initial_world_size

    def main_hook(self):
        """One forward pass of the others, and its backward."""
        ddp = self._ddp
        root = _agree(ddp, -1)
        sync = bool(_agree(ddp, 0))
        ddp._take_over_optimizers(sync)
        if ddp._check_sync_bufs_pre_fwd():
            ddp._sync_buffers(root)
        ddp.require_forward_param_sync = sync
        if sync:
            ddp._averager.shadow()

    def post_hook(self, is_last_joiner):
        """The model of the last rank with inputs is everybody's."""
        ddp = self._ddp
        ddp._averager.scale = 1.0
        ddp._authoritative_rank = _agree(ddp, ddp.process_group.rank() if is_last_joiner else -1)
        ddp._sync_model(ddp._authoritative_rank)
