"""What c10d's operators leave behind, for the wrapper's own collectives: records of c10d's flight recorder, and events of torch.profiler.

The wrapper's collectives do not go through c10d's operators. So a process group that communicates nothing is called in their place. The
flight recorder is attached to it as to any other group (PyTorch 2.15). Its records are in the recorder "lockstep", under the name of the
wrapper's group and "/ddp". It takes tens of microseconds of the backward pass to record a bucket, so this is done only if one of _VARIABLES
is set; for its own collectives c10d does it without.

A bucket's record and event begin when the last of its gradients is marked, in the order of launch. Its event ends with the backward pass;
Reducer.statistics has the bucket's own times. Records are retired at once, as Gloo's are.
"""

import contextlib
import os
import threading

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

_NAME = 'lockstep'
_VARIABLES = 'TORCH_FR_BUFFER_SIZE', 'TORCH_NCCL_TRACE_BUFFER_SIZE'  # the size of the flight recorder; 0 turns it off


class _Silent(c10d.Backend):
    """A back end whose collectives are done at once."""

    def getBackendName(self):
        return _NAME

    def _done(self, tensors, _options):
        future = torch.futures.Future()
        future.set_result(tensors)
        return c10d._create_work_from_future(future)

    allreduce = broadcast = _done


def _recorded_group(group):
    """Returns a process group like the given one, which only leaves records, and what has to live as long. (None, None) if nobody asked for
    records, or c10d's flight recorder does not record the given one."""
    if not any(map(os.environ.get, _VARIABLES)) or group not in getattr(dist.distributed_c10d._world, 'pg_flight_recorder_hooks', ()):
        return None, None
    made, custom = dist.ProcessGroup(dist.HashStore(), group.rank(), group.size()), dist.ProcessGroup.BackendType.CUSTOM
    made._set_default_backend(custom)
    backend = _Silent(group.rank(), group.size())
    made._register_backend(torch.device('cpu'), custom, backend)
    made._set_group_name(f'{group.group_name}/ddp')
    made._set_group_desc('lockstep.torch.DistributedDataParallel')
    return made, (backend, c10d.FlightRecorderHook.attach(made, dist.get_process_group_ranks(group)))


def _like(tensors):
    """A tensor with as many elements, for its size and dtype."""
    return torch.zeros(1, dtype=tensors[0].dtype, device='cpu').expand(sum(tensor.numel() for tensor in tensors))


class Records:
    """Flight records and profiler events of the collectives of one wrapper. One thread at a time."""

    def __init__(self, group, reducer, parameters):
        self._group, self._kept = _recorded_group(group)
        self._reducer, self._parameters = reducer, parameters
        self._plan = None  # its number
        self._futures = []  # which end the events under way

    def _wanted(self):
        return self._group is not None or torch.autograd._profiler_enabled()

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
        bucket = self._buckets[self._next]
        self._next += 1
        if self._group is not None:
            options = c10d.AllreduceOptions()
            options.asyncOp = True
            self._group.allreduce([bucket], options)
        if torch.autograd._profiler_enabled():
            event = torch.autograd.profiler.record_function(f'{_NAME}:all_reduce')
            event.__enter__()
            self._futures.append(torch.futures.Future())
            event._call_end_callbacks_on_future(self._futures[-1])

    def end(self):
        """The backward pass has ended, and with it the buckets without gradients."""
        while self._next < len(self._left):
            self._launch()
        if self._futures:
            # The profiler takes an event for an asynchronous one if it ends on another thread.
            thread = threading.Thread(target=lambda: [future.set_result(None) for future in self._futures])
            thread.start()
            thread.join()
            self._futures.clear()

    def broadcast(self, tensors):
        """Around a broadcast of what tensors() returns."""
        return self._broadcast(tensors()) if self._wanted() else contextlib.nullcontext()

    @contextlib.contextmanager
    def _broadcast(self, tensors):
        tensors = [tensor for tensor in tensors if tensor.numel()]
        if self._group is not None and tensors:
            self._group.broadcast([_like(tensors)], c10d.BroadcastOptions())
        profiled = tensors and torch.autograd._profiler_enabled()
        with torch.autograd.profiler.record_function(f'{_NAME}:broadcast') if profiled else contextlib.nullcontext():
            yield
