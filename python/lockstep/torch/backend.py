"""The c10d back end: torch.distributed.init_process_group("lockstep"), which finds it by its entry point.

Tensors of the CPU go through the host's communicator. Tensors of a GPU go through a communicator of the process's GPU, which is made when
the first of them appears, or at once if init_process_group got a device_id. Messages of them go by way of the host, whatever ranks they
are between. Ranks find each other over c10d's own store.

ERRORS   DistBackendError names the rank that died, stopped answering or differed; the process group is over then. ValueError: fix the call.
TIMEOUTS of the process group, or of the call, are deadlines: a collective that is not done by then fails on every rank.
MEMORY   Tensors are used where they lie. Those with gaps or in another order are copied, but for outputs of the calls that c10d names
         _single, which are refused.
THREADS  any; every rank calls collectives in one order.
"""

import re
import threading

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp
from torch._C._distributed_c10d import Backend as C10dBackend

import lockstep
from lockstep import works
from lockstep._native import ffi, lib
from lockstep.errors import check
from lockstep.torch import cpp
from lockstep.torch.lent import Lent, LentList, back, contiguous, distinct, flatten, room, split_into
from lockstep.torch.store import connect
from lockstep.torch.work import DeviceWork, Receive, Work, as_c10d

NAME = 'lockstep'

_OPS = {ReduceOp.SUM: lockstep.SUM, ReduceOp.AVG: lockstep.AVG, ReduceOp.PRODUCT: lockstep.PROD, ReduceOp.MIN: lockstep.MIN,
        ReduceOp.MAX: lockstep.MAX, ReduceOp.BAND: lockstep.AND, ReduceOp.BOR: lockstep.OR, ReduceOp.BXOR: lockstep.XOR,
        ReduceOp.PREMUL_SUM: lockstep.PREMUL_SUM}
_UNSET = AllreduceOptions().timeout

_alive = set()  # c10d may forget the Python half of a back end that it still calls


def _one(tensors):
    if len(tensors) != 1:
        raise lockstep.InvalidArgument(f'lockstep: a list of {len(tensors)} tensors where one belongs')
    return tensors[0]


def _elements(tensor, splits, size):
    """The elements of each rank's block, an int64_t[]. splits: the rows of each; empty: blocks are equal."""
    rows = tensor.shape[0] if tensor.dim() else 1
    splits = splits or [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise lockstep.InvalidArgument(f"lockstep: Split sizes doesn't match total dim 0 size: {splits} for {size} ranks and {rows} rows")
    width = tensor.numel() // rows if rows else 0
    return ffi.new('int64_t[]', [width * split for split in splits])


def _equally_many(inputs, outputs):
    if len(inputs) != len(outputs):
        raise lockstep.InvalidArgument(f'lockstep: {len(inputs)} inputs and {len(outputs)} outputs')
    return len(inputs)


def _reduction(op):
    """Lockstep's op, and the factor of PREMUL_SUM, a double* or NULL."""
    code = _OPS.get(op.op)
    if code is None:
        raise lockstep.InvalidArgument(f'lockstep: no reduction {op.op}')
    return code, ffi.NULL if code != lockstep.PREMUL_SUM else ffi.new('double*', float(op.factor))


def _milliseconds(timeout):
    # What is positive stays so: 0 is the default.
    return max(1, round(1000 * timeout.total_seconds()))


def _collective_options(timeout_ms, factor=ffi.NULL):
    options = ffi.new('lockstep_collective_options*')
    options.struct_size = ffi.sizeof('lockstep_collective_options')
    options.timeout_ms, options.factor = timeout_ms, factor
    return options


class _Group:
    """The calls of one thread between start_coalescing() and end_coalescing(), which are launched together."""

    def __init__(self):
        self.communicator = None
        self.works = []

    def open(self, communicator):
        if self.communicator is None:
            check(communicator._call(lib.lockstep_group_start))
            self.communicator = communicator

    def close(self):
        """The work of the group; None if nothing was called."""
        if self.communicator is None:
            return None
        work = works.start(self.communicator._call, lib.lockstep_group_end, borrowed=None)
        return Work(work, [tensor for each in self.works for tensor in each.results], self._finish)

    def _finish(self):
        for work in self.works:
            work.wait()


class Backend(C10dBackend):
    """See the module. Made by create() and split()."""

    def __init__(self, store, rank, size, options, communicator=None):
        super().__init__(rank, size)
        self._store = store
        self._options = options
        self.set_timeout(options._timeout)
        self._communicator = communicator or self._connect('host')
        self._gpu = self._stream = None  # the GPU's communicator, and the stream of its asynchronous collectives
        self._lock = threading.Lock()  # of the two
        self._groups = {}  # those that are open, by thread
        self._collectives = 0
        _alive.add(self)

    def _connect(self, name, **device):
        """A new communicator of all ranks of the group, each of which calls it."""
        try:
            return connect(dist.PrefixStore(name, self._store), self.size(), self.rank(), self._timeout_ms, **device)
        except lockstep.Error as error:
            raise as_c10d(error)

    # ---- What c10d asks of a back end

    @property
    def options(self):
        return self._options

    @property
    def supports_splitting(self):
        return True

    @property
    def supports_coalescing(self):
        return True

    def getBackendName(self):
        return NAME

    def _get_sequence_number_for_group(self):
        return self._collectives

    def set_timeout(self, timeout):
        self._options._timeout = timeout
        self._timeout_ms = _milliseconds(timeout)
        self._options_c = _collective_options(self._timeout_ms)

    def eager_connect_single_device(self, device):
        if device.type == 'cuda':
            self._of_gpu(device)

    def abort(self):
        """Fails what is in flight, and what comes later, on every rank."""
        for communicator in self._leave():
            if communicator.status() is None:
                communicator.abort('the process group was aborted')
            communicator.close()

    def shutdown(self):
        """Other ranks can finish what this one has finished."""
        for communicator in self._leave():
            communicator.close()

    def _leave(self):
        """The communicators, the first time."""
        if self not in _alive:
            return []
        _alive.discard(self)
        return [communicator for communicator in (self._gpu, self._communicator) if communicator is not None]

    # ---- Subgroups

    def subgroup(self, store, members, options):
        """The back end of a subgroup: `members` are ranks of this group, in the subgroup's order. Every rank of this group calls it, at the
        same time; those that are no members get None. Subgroups that are made at the same time have no common member."""
        inside = self.rank() in members
        communicator = self._split(min(members) if inside else -1, members.index(self.rank()) if inside else 0)
        if not inside:
            return None
        if options is None:
            options = C10dBackend.Options(NAME, timeout=self._options._timeout)
        world = self._options.global_ranks_in_group
        options.global_ranks_in_group = [world[rank] for rank in members] if world else list(members)
        return Backend(store, communicator.rank, communicator.size, options, communicator)

    def split(self, store, members, options):
        made = self.subgroup(store, members, options)
        if made is None:
            # The trampoline of PyTorch 2.15 crashes if it is given None.
            raise dist.DistBackendError('lockstep: this rank is in none of the groups of split_group(), which a back end in Python cannot '
                                        'say; give it a group of its own there, or call new_group()')
        return made

    def perform_nocolor_split(self, _device):
        """For ranks that are no members of a new group, while its members call split()."""
        self._split(-1, 0)

    def _split(self, color, key):
        try:
            return self._communicator.split(color, key)
        except lockstep.Error as error:
            raise as_c10d(error)

    # ---- Running what lockstep.h has

    def _run(self, call, lent, arguments, opts, results=(), finish=None, factor=ffi.NULL):
        """Runs a collective.

        call       its function, which takes these after the communicator:
        lent       tensors, which live until the collective is done; the first tells where it runs
        arguments  what comes between tensors and options
        results    of the work, a list of tensors
        finish     called when the collective is done

        RETURNS  a work; None if opts.asyncOp tells that nobody needs one: the collective is done, or in a group
        """
        self._collectives += 1
        options = self._options_c
        if factor or opts.timeout != _UNSET:
            options = _collective_options(self._timeout_ms if opts.timeout == _UNSET else _milliseconds(opts.timeout), factor)
        if lent and lent[0].device is not None and self._group() is None:
            return self._enqueue(call, lent, (*arguments, options), opts.asyncOp, results, finish)
        return self._start(call, lent, (*arguments, options, ffi.NULL), opts.asyncOp, results, finish)

    def _start(self, call, lent, arguments, asynchronous, results, finish, kind=Work):
        """Starts what has a work, and waits for it, unless it is asynchronous or in a group."""
        group = self._group()
        try:
            communicator = self._communicator if not lent or lent[0].device is None else self._after_stream(lent[0].device)
            if group is not None:
                group.open(communicator)
            communicator._finish_interrupted()
            work = works.start(communicator._call, call, *[each.c for each in lent], *arguments, borrowed=lent)
            if asynchronous or group is not None:
                work = kind(work, results, finish)
                if group is not None:
                    group.works.append(work)
                return work if asynchronous else None
            work.wait()
        except lockstep.Error as error:
            raise as_c10d(error)
        if finish is not None:
            finish()
        return None

    # ---- On a GPU

    def _of_gpu(self, device):
        with self._lock:
            if self._gpu is None:
                self._gpu = self._connect('cuda', device_kind=lib.LOCKSTEP_CUDA, device_index=device.index)
                self._stream = torch.cuda.Stream(device)
            return self._gpu

    def _after_stream(self, device):
        """The GPU's communicator, once the current stream is through with the tensors: for calls that are not enqueued."""
        torch.cuda.current_stream(device).synchronize()
        return self._of_gpu(device)

    def _enqueue(self, call, lent, arguments, asynchronous, results, finish):
        """Enqueues a collective: on a stream of its own if it is asynchronous, else on the current one."""
        device = lent[0].device
        communicator = self._of_gpu(device)
        current = torch.cuda.current_stream(device)
        stream = self._stream if asynchronous else current
        stream.wait_stream(current)
        c_stream = ffi.new('lockstep_stream*')
        c_stream.handle, c_stream.device_kind = ffi.cast('void*', stream.cuda_stream), lib.LOCKSTEP_CUDA
        c_stream.device_index = device.index
        try:
            communicator._finish_interrupted()
            check(communicator._call(call, *[each.c for each in lent], *arguments, c_stream, ffi.NULL))
        except lockstep.Error as error:
            raise as_c10d(error)
        with torch.cuda.stream(stream):
            if finish is not None:
                finish()
        if not asynchronous:
            return None
        for tensor in (*results, *(tensor for each in lent for tensor in each.tensors)):
            tensor.record_stream(stream)  # else its memory may be given away before the stream is through with it
        return DeviceWork(communicator, stream, results)

    # ---- Groups of calls

    def _group(self):
        """This thread's, if one is open."""
        return self._groups.get(threading.get_ident()) if self._groups else None

    def start_coalescing(self):
        left = self._group()
        self._groups[threading.get_ident()] = _Group()
        if left is not None:  # by a block that raised
            try:
                left.close()
            except lockstep.Error:
                pass  # the block has raised it

    def end_coalescing(self):
        group = self._groups.pop(threading.get_ident())
        try:
            return group.close()
        except lockstep.Error as error:
            raise as_c10d(error)

    # ---- Collectives

    def allreduce(self, tensors, opts):
        tensor = _one(tensors)
        if tensor.is_sparse:
            return self.allreduce_sparse(tensors, opts)
        op, factor = _reduction(opts.reduceOp)
        used = contiguous(tensor)
        lent = Lent(used)
        return self._run(lib.lockstep_all_reduce, (lent, lent), (op,), opts, tensors, back(tensor, used), factor)

    def allreduce_coalesced(self, tensors, opts):
        op, factor = _reduction(opts.reduceOp)
        used = [contiguous(tensor) for tensor in tensors]
        copies = [copy for copy in map(back, tensors, used) if copy is not None]

        def finish():
            for copy in copies:
                copy()
        lent = LentList(used)
        return self._run(lib.lockstep_all_reduce_coalesced, (lent, lent), (len(used), op), opts, tensors, finish, factor)

    def allreduce_sparse(self, tensors, opts):
        """The sum of sparse tensors of one shape, by way of all their indices and values."""
        if self._group() is not None:
            raise lockstep.InvalidArgument('lockstep: sparse tensors cannot be coalesced')
        given = _one(tensors)
        tensor = given.coalesce()
        if _reduction(opts.reduceOp)[0] != lockstep.SUM:
            raise lockstep.InvalidArgument('lockstep: sparse tensors can only be summed')
        now = AllreduceOptions()
        now.asyncOp, now.timeout = False, opts.timeout
        counts = torch.empty(self.size(), dtype=torch.int64)
        self._run(lib.lockstep_all_gather, (Lent(torch.tensor([tensor._nnz()])), Lent(counts)), (), now)
        counts = counts.tolist()
        indices, values = tensor.indices().t().contiguous(), tensor.values().contiguous()
        all_indices = indices.new_empty((sum(counts), *indices.shape[1:]))
        all_values = values.new_empty((sum(counts), *values.shape[1:]))

        def finish():
            given.copy_(torch.sparse_coo_tensor(all_indices.t(), all_values, given.shape, check_invariants=False).coalesce())

        self._run(lib.lockstep_all_gather_v, (Lent(indices), Lent(all_indices)), (_elements(all_indices, counts, self.size()),), now)
        return self._run(lib.lockstep_all_gather_v, (Lent(values), Lent(all_values)), (_elements(all_values, counts, self.size()),), opts,
                         tensors, finish)

    def broadcast(self, tensors, opts):
        tensor = _one(tensors)
        used = contiguous(tensor)
        return self._run(lib.lockstep_broadcast, (Lent(used),), (opts.rootRank,), opts, tensors, back(tensor, used))

    def reduce(self, tensors, opts):
        tensor = _one(tensors)
        op, factor = _reduction(opts.reduceOp)
        used = contiguous(tensor)
        lent = Lent(used)
        return self._run(lib.lockstep_reduce, (lent, lent), (op, opts.rootRank), opts, tensors, back(tensor, used), factor)

    def _check_list(self, tensors, like):
        """One of a dtype and size for each rank."""
        if len(tensors) != self.size():
            raise lockstep.InvalidArgument(f'lockstep: a list of {len(tensors)} tensors for {self.size()} ranks')
        for tensor in tensors:
            if tensor.dtype != like.dtype or tensor.numel() != like.numel():
                raise lockstep.InvalidArgument(f'lockstep: a {tensor.dtype} of shape {tuple(tensor.shape)} in the list, beside a '
                                               f'{like.dtype} of shape {tuple(like.shape)}')

    def allgather(self, output_lists, inputs, opts):
        tensor, outputs = _one(inputs), _one(output_lists)
        self._check_list(outputs, tensor)
        flat = room(tensor, self.size())
        return self._run(lib.lockstep_all_gather, (Lent(contiguous(tensor)), Lent(flat)), (), opts, outputs,
                         lambda: split_into(outputs, flat))

    def allgather_coalesced(self, output_lists, inputs, opts):
        """output_lists[r][i] becomes rank r's inputs[i]."""
        by_input = list(zip(*output_lists))
        if len(by_input) != len(inputs):
            raise lockstep.InvalidArgument(f'lockstep: lists of {len(by_input)} outputs for {len(inputs)} inputs')
        for outputs, tensor in zip(by_input, inputs):
            self._check_list(outputs, tensor)
        flats = [room(tensor, self.size()) for tensor in inputs]

        def finish():
            for outputs, flat in zip(by_input, flats):
                split_into(outputs, flat)
        return self._run(lib.lockstep_all_gather_coalesced, (LentList(distinct(inputs)), LentList(flats)),
                         (len(inputs),), opts, [output for outputs in output_lists for output in outputs], finish)

    def all_gather_single(self, output, tensor, opts):
        return self._run(lib.lockstep_all_gather, (Lent(contiguous(tensor)), Lent(output)), (), opts, [output])

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        return self._run(lib.lockstep_all_gather_coalesced, (LentList(distinct(inputs)), LentList(outputs)),
                         (_equally_many(inputs, outputs),), opts, outputs)

    def gather(self, output_lists, inputs, opts):
        tensor = _one(inputs)
        source = Lent(contiguous(tensor))
        if self.rank() != opts.rootRank:
            return self._run(lib.lockstep_gather, (source, source), (ffi.NULL, opts.rootRank), opts)
        outputs = _one(output_lists)
        self._check_list(outputs, tensor)
        flat = room(tensor, self.size())
        return self._run(lib.lockstep_gather, (source, Lent(flat)), (ffi.NULL, opts.rootRank), opts, outputs,
                         lambda: split_into(outputs, flat))

    def scatter(self, outputs, input_lists, opts):
        output = _one(outputs)
        used = contiguous(output)
        target = source = Lent(used)
        if self.rank() == opts.rootRank:
            self._check_list(_one(input_lists), output)
            source = Lent(flatten(input_lists[0]))
        return self._run(lib.lockstep_scatter, (source, target), (ffi.NULL, opts.rootRank), opts, outputs, back(output, used))

    def reduce_scatter(self, outputs, input_lists, opts):
        output, inputs = _one(outputs), _one(input_lists)
        self._check_list(inputs, output)
        op, factor = _reduction(opts.reduceOp)
        used = contiguous(output)
        return self._run(lib.lockstep_reduce_scatter, (Lent(flatten(inputs)), Lent(used)), (op,), opts, outputs, back(output, used), factor)

    def reduce_scatter_single(self, output, tensor, opts):
        op, factor = _reduction(opts.reduceOp)
        return self._run(lib.lockstep_reduce_scatter, (Lent(contiguous(tensor)), Lent(output)), (op,), opts, [output], factor=factor)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        op, factor = _reduction(opts.reduceOp)
        return self._run(lib.lockstep_reduce_scatter_coalesced, (LentList(distinct(inputs)), LentList(outputs)),
                         (_equally_many(inputs, outputs), op), opts, outputs, factor=factor)

    def all_to_all_single(self, output, tensor, output_splits, input_splits, opts):
        lent = (Lent(contiguous(tensor)), Lent(output))
        if not output_splits and not input_splits:
            return self._run(lib.lockstep_all_to_all, lent, (), opts, [output])
        counts = (_elements(tensor, input_splits, self.size()), _elements(output, output_splits, self.size()))
        return self._run(lib.lockstep_all_to_all_v, lent, counts, opts, [output])

    def alltoall(self, outputs, inputs, opts):
        if len(inputs) != self.size() or len(outputs) != self.size():
            raise lockstep.InvalidArgument(f'lockstep: {len(inputs)} inputs and {len(outputs)} outputs for {self.size()} ranks')
        counts = tuple(ffi.new('int64_t[]', [tensor.numel() for tensor in tensors]) for tensors in (inputs, outputs))
        flat = outputs[0].new_empty(sum(counts[1]))
        return self._run(lib.lockstep_all_to_all_v, (Lent(flatten(inputs)), Lent(flat)), counts, opts, outputs,
                         lambda: split_into(outputs, flat))

    def barrier(self, opts):
        if self._gpu is not None:
            torch.cuda.current_stream().synchronize()
        return self._run(lib.lockstep_barrier, (), (), opts)

    def monitored_barrier(self, opts, wait_all_ranks=False):
        """A barrier that tells which ranks have not called it in time. The process group stays usable."""
        timeout_ms = self._timeout_ms if opts.timeout == _UNSET else _milliseconds(opts.timeout)
        try:
            self._communicator.monitored_barrier(timeout_ms / 1000)
        except lockstep.DeadlineExceeded as error:
            raise self._late(error, timeout_ms, wait_all_ranks)
        except lockstep.Error as error:
            raise as_c10d(error)

    def _late(self, error, timeout_ms, wait_all_ranks):
        """The error of a monitored barrier, in Gloo's words, which people look for."""
        raised, rank = as_c10d(error), self.rank()
        missing = re.search(r'ranks? ([\d, ]+) ha(?:s|ve) not come in time', str(error))
        if missing is None:
            return raised
        missing = missing[1].split(', ')
        who = f"Ranks {', '.join(missing)}" if wait_all_ranks and len(missing) > 1 else f'Rank {missing[0]}'
        if rank == 0:
            text = f'Rank 0 timed out in monitoredBarrier after {timeout_ms} ms: {who} failed to pass monitoredBarrier'
        else:
            text = (f'Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: '
                    f'{who} failed to pass monitoredBarrier')
        raised.args = (f'[Rank {rank}]: {text} ({error})',)
        return raised

    # ---- Messages

    @staticmethod
    def _message_of(tensor):
        """The tensor, or a copy of it without gaps, on the host."""
        return contiguous(tensor.detach().cpu() if tensor.is_cuda else tensor)

    def send(self, tensors, target, tag):
        lent = Lent(self._message_of(_one(tensors)))
        return self._start(lib.lockstep_send, (lent,), (target, tag, self._timeout_ms), True, tensors, None)

    def recv(self, tensors, source, tag):
        tensor = _one(tensors)
        used = self._message_of(tensor)
        lent = Lent(used)
        return self._start(lib.lockstep_receive, (lent,), (source, tag, self._timeout_ms, ffi.NULL), True, tensors,
                           back(tensor, used), Receive)

    def recv_anysource(self, tensors, tag):
        return self.recv(tensors, lockstep.ANY_SOURCE, tag)


def create(opts, backend_options):
    """What c10d calls for each process group, on its members: the group's back end."""
    options = backend_options or C10dBackend.Options(NAME, timeout=opts.timeout)
    options._timeout = opts.timeout
    options.global_ranks_in_group = opts.global_ranks_in_group
    options.group_name = opts.group_id
    if opts.split_from is not None:
        return opts.split_from.split(opts.store, opts.global_ranks_in_group, options)
    return cpp.over(Backend(opts.store, opts.group_rank, opts.group_size, options))


def register():
    """The entry point torch.distributed.backends: makes "lockstep" known to c10d."""
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=['cpu', 'cuda'] if torch.cuda.is_available() else ['cpu'])
