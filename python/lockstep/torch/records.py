"""What c10d's operators leave behind, for the wrapper's own collectives: records of c10d's flight recorder, and events of torch.profiler.

The wrapper's collectives do not go through c10d's operators. So a process group that communicates nothing is called in their place
(csrc/recorder.h). The flight recorder is attached to it as to any other group (PyTorch 2.15). Its records are in the recorder "lockstep",
under the name of the wrapper's group and "/ddp". It takes microseconds of the backward pass to record a bucket, so this is done only if one
of _VARIABLES is set; for its own collectives c10d does it without.

A bucket's record and event begin when the last of its gradients is marked, in the order of launch, and end with the backward pass;
Reducer.statistics has the bucket's own times. The records of a step that fails are not completed.
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from lockstep.torch import backend

_VARIABLES = 'TORCH_FR_BUFFER_SIZE', 'TORCH_NCCL_TRACE_BUFFER_SIZE'  # the size of the flight recorder; 0 turns it off
_ALL_REDUCE = c10d.AllreduceOptions()
_ALL_REDUCE.asyncOp = True


def _is_recorded(group):
    """Whether the environment asks for flight records, and c10d's recorder records the group's own collectives."""
    return any(map(os.environ.get, _VARIABLES)) and group in getattr(dist.distributed_c10d._world, 'pg_flight_recorder_hooks', ())


def _like(tensors):
    """A tensor with as many elements, for its size and dtype."""
    return torch.zeros(1, dtype=tensors[0].dtype, device='cpu').expand(sum(tensor.numel() for tensor in tensors))


class Records:
    """Flight records and profiler events of the collectives of one wrapper. One thread at a time."""

    def __init__(self, group, reducer, parameters):
        self._of, self._reducer, self._parameters = group, reducer, parameters
        self._is_recorded = _is_recorded(group)
        self._group = self._hook = None  # made when they are wanted
        self._plan = None  # its number

    def _wanted(self):
        """Whether records or events are wanted now, and the library that makes them is there."""
        if not self._is_recorded and not torch.autograd._profiler_enabled():
            return False
        if self._group is None and backend.load_if_there():
            self._group = dist.ProcessGroup(dist.HashStore(), self._of.rank(), self._of.size())
            torch.ops.lockstep.create_recorder(self._group.boxed())
            self._group._set_group_name(f'{self._of.group_name}/ddp')
            self._group._set_group_desc('lockstep.torch.DistributedDataParallel')
            if self._is_recorded:
                self._hook = c10d.FlightRecorderHook.attach(self._group, dist.get_process_group_ranks(self._of))
        return self._group is not None

    def begin(self):
        """A backward pass begins. Returns these records, or None if nobody wants any."""
        if not self._wanted():
            return None
        if self._plan != self._reducer.plan_version:
            self._read_plan()
        self._left, self._next = list(self._sizes), 0
        return self

    def _read_plan(self):
        self._plan = self._reducer.plan_version
        buckets = [[int(index) for index in line.split()[1:]] for line in self._reducer.export_plan().splitlines()
                   if line.startswith('bucket ')]
        self._bucket_of = {index: number for number, bucket in enumerate(buckets) for index in bucket}
        self._sizes = [len(bucket) for bucket in buckets]
        self._buckets = [_like([self._parameters[index] for index in bucket]) for bucket in buckets]

    def mark(self, index):
        """A gradient is final. One whose all-reduce is delayed is in no bucket."""
        bucket = self._bucket_of.get(index)
        if bucket is None:
            return
        self._left[bucket] -= 1
        while self._next < len(self._left) and self._left[self._next] <= 0:
            self._launch()

    def _launch(self):
        self._group.allreduce([self._buckets[self._next]], _ALL_REDUCE)
        self._next += 1

    def end(self, success):
        """The backward pass has ended, and with it the buckets without gradients."""
        while success and self._next < len(self._left):
            self._launch()
        self._finish(success)

    def _finish(self, success):
        torch.ops.lockstep.end_records(self._group.boxed(), success)

    @contextlib.contextmanager
    def broadcast(self, tensors):
        """Around a broadcast of what tensors() returns."""
        kept = [tensor for tensor in tensors() if tensor.numel()] if self._wanted() else []
        if not kept:
            yield
            return
        self._group.broadcast([_like(kept)], c10d.BroadcastOptions())
        success = False
        try:
            yield
            success = True
        finally:
            self._finish(success)
