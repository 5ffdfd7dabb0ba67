"""Communicators: a fixed group of ranks that call the same collectives in the same order.

    communicator = lockstep.init()                          # who we are: from the environment of the launcher
    communicator.all_reduce(gradients, op=lockstep.AVG)     # in place
    work = communicator.all_reduce(gradients, asynchronous=True)
    ...
    work.wait()

ARRAYS   What lockstep.tensors says, of any shape: a collective sees the elements in row-major order. "n elements" are those of an input.
         All arrays of a call are on the host, or all on the communicator's device. Where a call may go without an output, the input is
         overwritten, as with mpi4py's IN_PLACE; so is a slice of the output that is this rank's input.
OPTIONS  Every collective takes these keyword arguments:
         timeout       seconds for the whole collective; default the communicator's. When it expires, the communicator is over on all ranks
         algorithm     a name ('ring', ...), equal on all ranks; default: chosen by size
         factor        a float, for PREMUL_SUM only; each rank may have its own
         asynchronous  True: returns a Work at once. Leave the arrays alone until it is done
         stream        of the device: an address, or what has cuda_stream (torch) or ptr (CuPy). The call returns when the collective is
                       enqueued there
ERRORS   lockstep.errors. InvalidArgument comes before anything is sent. If ranks differ in their calls, all get FailedPrecondition. If a
         rank fails, the others get Aborted, which names it. After any error of a collective but InvalidArgument the communicator is over.
THREADS  Any thread may call. The interpreter goes on while a call waits. Collectives of several threads need an order that is equal on all
         ranks: a communicator for each (duplicate()).
SIGNALS  In the main thread a signal ends a wait within 0.1 seconds if its handler raises (KeyboardInterrupt). The operation goes on, and
         what it borrows stays alive until it is done. With a device, calls that make something (split, allocate) are not ended.
FORK     In a forked child the parent's communicators raise FailedPrecondition, and closing them there changes nothing. The child may call
         init() itself. Memory of allocate() is not there.
"""

import numbers
import threading

from lockstep import at_exit, options, tensors, works
from lockstep._native import ffi, lib
from lockstep.errors import FailedPrecondition, InvalidArgument, check, take_text, utf8
from lockstep.memory import CUDA, HOST, Memory
from lockstep.objects import ANY_SOURCE, ANY_TAG, EVERY_RANK, ObjectCalls  # noqa: F401: for those who look here
from lockstep.works import Message, Work  # noqa: F401

SUM, AVG, PREMUL_SUM = lib.LOCKSTEP_SUM, lib.LOCKSTEP_AVG, lib.LOCKSTEP_PREMUL_SUM
PROD, MIN, MAX = lib.LOCKSTEP_PROD, lib.LOCKSTEP_MIN, lib.LOCKSTEP_MAX
AND, OR, XOR = lib.LOCKSTEP_AND, lib.LOCKSTEP_OR, lib.LOCKSTEP_XOR


def own(c, destroy, kept=None):
    """(the handle, which is destroyed when it is released or collected; a list of what to call before that, for who has copied it). kept:
    lives until it is destroyed."""
    before = []

    def end(c, _kept=kept):
        for call in before:
            call()
        if at_exit.in_callback():  # perhaps on a thread that destroy() would wait for
            threading.Thread(target=lambda: (destroy(c), _kept), name='lockstep-destroy').start()
        else:
            destroy(c)

    return ffi.gc(c, end), before


class Communicator(ObjectCalls):
    """See the module. Made by init(), split(), duplicate() and mesh().

    rank: 0 to size - 1; size: the number of ranks. Usable in a `with` statement, which closes it.
    """

    def __init__(self, c, device_index=None):
        self._device_index = device_index  # of its GPU; None: the host only
        self._c, self._before_destroy = own(c, lib.lockstep_communicator_destroy)
        self._calls = set()  # the threads that are in a call on the handle
        self._interrupted = None  # a Call whose wait a signal ended. Later collectives come behind it
        self.rank = lib.lockstep_communicator_rank(c)
        self.size = lib.lockstep_communicator_size(c)
        at_exit.communicators.add(self)

    def close(self):
        """Ends the communicator. Operations under way end with Cancelled here and with Aborted on the other ranks, which can still finish
        what this rank has finished. Does not wait. Closing twice is closing once. Communicators made from it stay usable.

        THREADS  If another thread is in a call on it, that ends with Aborted, as on all ranks.
        """
        c, self._c = self._c, ffi.NULL
        if not c:
            return
        # This thread is in none, even if an exception kept it from saying so.
        if self._calls - {threading.get_ident()}:
            # The last of the calls ends the handle as it leaves.
            lib.lockstep_error_free(lib.lockstep_communicator_abort(c, b'closed by another thread'))
        else:
            ffi.release(c)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f'<lockstep.Communicator rank {self.rank} of {self.size}{"" if self._c else ", closed"}>'

    def _handle(self):
        if not self._c:
            raise FailedPrecondition('the communicator is closed')
        return self._c

    def _call(self, call, *arguments):
        """call(the handle, *arguments): what it returns."""
        me = threading.get_ident()
        try:
            self._calls.add(me)
            return call(self._handle(), *arguments)
        finally:
            self._calls.discard(me)

    def _wait_for(self, call, *arguments):
        """A call that waits and is not a work."""
        self._finish_interrupted()
        made = works.Call(self._call, call, *arguments, on_device=self._device_index is not None)
        try:
            made.wait()
        except BaseException:
            self._interrupted = made
            raise

    def _finish_interrupted(self):
        if self._interrupted is not None:
            self._interrupted.finish()
            self._interrupted = None

    # ---- What it is

    def status(self):
        """None while it is usable; else the cause, an Error, the same on all ranks."""
        try:
            check(self._call(lib.lockstep_communicator_status))
        except Exception as error:
            return error
        return None

    def abort(self, reason):
        """Fails all operations under way and all later ones, on every rank, with Aborted and this text. Does not wait."""
        check(self._call(lib.lockstep_communicator_abort, utf8(reason)))

    def set_timeout(self, seconds):
        """Changes the timeout of this rank's later collectives and messages that name none. What is made from the communicator later
        inherits it."""
        check(self._call(lib.lockstep_communicator_set_timeout, _milliseconds(seconds)))

    def describe(self):
        """A text: how ranks are connected, and why."""
        return self._text(lib.lockstep_communicator_describe)

    def flight_records(self):
        """A text: the last collectives, a line each, newest last."""
        return self._text(lib.lockstep_communicator_flight_records)

    def _text(self, call):
        out = ffi.new('char**')
        check(self._call(call, out))
        return take_text(out[0])

    # ---- Collectives

    def all_reduce(self, input, output=None, op=SUM, **options):
        """output on every rank = the reduction of all inputs, which have one shape and dtype.

        output: as the input; None: the input is overwritten. op: SUM, AVG, PREMUL_SUM, PROD, MIN, MAX, AND, OR or XOR.
        """
        source = tensors.read(input, 'input', output is None)
        target = source if output is None or output is input else tensors.read(output, 'output', True)
        return self._run(lib.lockstep_all_reduce, (source, target), (source.c, target.c, _op(op)), options)

    def broadcast(self, tensor, root=0, **options):
        """tensor on every rank = tensor on the root. The same number of elements everywhere."""
        read = tensors.read(tensor, 'tensor', self.rank != root, True)
        return self._run(lib.lockstep_broadcast, (read,), (read.c, root), options)

    def reduce(self, input, output=None, op=SUM, root=0, **options):
        """output on the root = the reduction of all inputs. None: the root's input is overwritten. Ignored elsewhere."""
        at_root = self.rank == root
        source = tensors.read(input, 'input', at_root and output is None)
        target = tensors.read(output, 'output', True) if at_root and output is not None else source
        return self._run(lib.lockstep_reduce, (source, target), (source.c, target.c, _op(op), root), options)

    def all_gather(self, input, output, counts=None, **options):
        """output on every rank = the inputs in rank order.

        output: size x n elements. counts: where inputs differ in size, the elements of each rank's, equal on all ranks.
        """
        source, target = tensors.read_two(input, output)
        if counts is None:
            return self._run(lib.lockstep_all_gather, (source, target), (source.c, target.c), options)
        return self._run(lib.lockstep_all_gather_v, (source, target), (source.c, target.c, self._counts(counts, source)), options)

    def reduce_scatter(self, input, output, op=SUM, counts=None, **options):
        """output = block `rank` of the reduction of all inputs.

        output: n / size elements. counts: where blocks differ in size, the elements of each rank's, equal on all ranks.
        """
        source, target = tensors.read(input, 'input', False), tensors.read(output, 'output', True)
        if counts is None:
            return self._run(lib.lockstep_reduce_scatter, (source, target), (source.c, target.c, _op(op)), options)
        arguments = (source.c, target.c, self._counts(counts, source), _op(op))
        return self._run(lib.lockstep_reduce_scatter_v, (source, target), arguments, options)

    def all_to_all(self, input, output, input_counts=None, output_counts=None, **options):
        """Block r of the input goes to rank r; block r of the output comes from rank r.

        Counts: the elements of each block, this rank's own; both or none. Without them blocks have n / size elements.
        """
        source, target = tensors.read_two(input, output)
        if (input_counts is None) != (output_counts is None):
            raise InvalidArgument('input_counts and output_counts: both, or none')
        if input_counts is None:
            return self._run(lib.lockstep_all_to_all, (source, target), (source.c, target.c), options)
        counts = (self._counts(input_counts, source), self._counts(output_counts, target))
        return self._run(lib.lockstep_all_to_all_v, (source, target), (source.c, target.c, *counts), options)

    def gather(self, input, output=None, counts=None, root=0, **options):
        """output on the root = the inputs in rank order. Ignored elsewhere. output and counts: as of all_gather."""
        source = tensors.read(input, 'input', False, True)
        target = tensors.read(output, 'output', True, True) if self.rank == root else None
        arguments = (source.c, target.c if target else ffi.NULL, self._counts(counts, source), root)
        return self._run(lib.lockstep_gather, (source, target), arguments, options)

    def scatter(self, input, output, counts=None, root=0, **options):
        """output = block `rank` of the root's input, which is ignored elsewhere. counts: as of reduce_scatter."""
        source = tensors.read(input, 'input', False, True) if self.rank == root else None
        target = tensors.read(output, 'output', True, True)
        arguments = (source.c if source else ffi.NULL, target.c, self._counts(counts, target), root)
        return self._run(lib.lockstep_scatter, (source, target), arguments, options)

    def barrier(self, **options):
        """Is done on no rank before every rank has called it."""
        return self._run(lib.lockstep_barrier, (), (), options)

    def monitored_barrier(self, timeout=None):
        """A barrier that tells which ranks have not called it within `timeout` seconds (default: the communicator's).

        ERRORS  DeadlineExceeded names them; failed_rank is the first. The communicator stays usable.
        """
        self._wait_for(lib.lockstep_monitored_barrier, _milliseconds(timeout))

    def all_reduce_coalesced(self, inputs, outputs=None, op=SUM, **options):
        """all_reduce of each tensor of a list, as one collective. Tensors of one dtype, in one place."""
        return self._run_lists(lib.lockstep_all_reduce_coalesced, inputs, outputs, (_op(op),), options)

    def broadcast_coalesced(self, tensor_list, root=0, **options):
        """broadcast of each tensor of a list, as one collective."""
        array, kept = read_list(tensor_list, 'tensor_list', self.rank != root, True)
        return self._run(lib.lockstep_broadcast_coalesced, kept, (array, len(kept), root), options)

    def all_gather_coalesced(self, inputs, outputs, **options):
        """all_gather of each pair of tensors, as one collective."""
        return self._run_lists(lib.lockstep_all_gather_coalesced, inputs, outputs, (), options, True)

    def reduce_scatter_coalesced(self, inputs, outputs, op=SUM, **options):
        """reduce_scatter of each pair of tensors, as one collective."""
        return self._run_lists(lib.lockstep_reduce_scatter_coalesced, inputs, outputs, (_op(op),), options)

    def _run_lists(self, call, inputs, outputs, arguments, options, any_dtype=False):
        sources, kept = read_list(inputs, 'inputs', outputs is None, any_dtype)
        targets, also = (sources, kept) if outputs is None else read_list(outputs, 'outputs', True, any_dtype)
        if len(kept) != len(also):
            raise InvalidArgument(f'{len(kept)} inputs and {len(also)} outputs')
        return self._run(call, (kept, also), (sources, targets, len(kept), *arguments), options)

    def _counts(self, counts, tensor):
        if counts is None:
            return ffi.NULL
        if len(counts) != self.size:
            raise InvalidArgument(f'{len(counts)} counts for {self.size} ranks')
        return ffi.new('int64_t[]', [count * tensor.elements for count in counts])

    def _run(self, call, borrowed, arguments, given):
        """Makes a collective call, as its options say."""
        self._finish_interrupted()
        given = dict(given)
        stream, asynchronous = given.pop('stream', None), given.pop('asynchronous', False)
        if not asynchronous:
            given['wait_ms'] = works.SLICE_MS
        c_options = _collective_options(given) if given else ffi.NULL
        if stream is not None:
            if asynchronous:
                raise InvalidArgument("a collective on a stream has no work: the stream's order says when it is done")
            return check(self._call(call, *arguments, c_options, _stream(stream, self._device_index), ffi.NULL))
        return self._end(works.start(self._call, call, *arguments, c_options, ffi.NULL, borrowed=borrowed), asynchronous)

    @staticmethod
    def _end(work, asynchronous):
        return work if asynchronous else work.wait()

    # ---- Messages

    def send(self, tensor, target, tag=0, timeout=None, asynchronous=False):
        """Sends the tensor's bytes, without dtype and shape, to the rank `target`. Returns when they are received or, up to 64 KiB, copied.

        tag: from 0. timeout: seconds, default the communicator's. asynchronous: returns a Work at once.
        """
        read = tensors.read(tensor, 'tensor', False, True)
        arguments = (lib.lockstep_send, read.c, target, tag, _milliseconds(timeout))
        return self._end(works.start(self._call, *arguments, borrowed=read), asynchronous)

    def receive(self, tensor, source=ANY_SOURCE, tag=ANY_TAG, timeout=None, asynchronous=False):
        """Receives a message into a tensor, which may be larger, and returns its Message. Those of one rank and tag come in their order.

        timeout: seconds, default the communicator's. asynchronous: returns a Work at once, whose message() it is.
        ERRORS  FailedPrecondition if the message does not fit; it is lost then.
        """
        read = tensors.read(tensor, 'tensor', True, True)
        arguments = (lib.lockstep_receive, read.c, source, tag, _milliseconds(timeout), ffi.NULL)
        work = works.start(self._call, *arguments, borrowed=read)
        if asynchronous:
            return work
        work.wait()
        return work.message()

    # ---- Others made from it. Every rank calls these, in the order of collectives.

    def split(self, color, key=0):
        """A Communicator for each color, of the ranks that passed it, ordered by key, then by rank. None for a negative color."""
        return self._make(lib.lockstep_communicator_split, color, key)

    def duplicate(self):
        """A Communicator of the same ranks, with an order of calls of its own."""
        return self._make(lib.lockstep_communicator_duplicate)

    def _make(self, call, *arguments):
        out = _communicators_out(1)
        self._wait_for(call, *arguments, out)
        return _take_communicators(out, self._device_index)[0]

    def mesh(self, **dimensions):
        """Arranges the ranks in a grid: mesh(dp=2, tp=4) returns {'dp': Communicator, 'tp': Communicator}, this rank's line along each.

        The product of the extents is the number of ranks. The last dimension changes fastest.
        """
        names = [ffi.new('char[]', name.encode()) for name in dimensions]
        c_names, extents = ffi.new('char*[]', names), ffi.new('int32_t[]', list(dimensions.values()))
        out = _communicators_out(len(dimensions))
        self._wait_for(lib.lockstep_communicator_mesh, c_names, extents, len(names), out)
        return dict(zip(dimensions, _take_communicators(out, self._device_index)))

    def allocate(self, bytes, device_kind=HOST):
        """Memory of as many bytes on every rank, zeroed on the host. device_kind: HOST or CUDA, the communicator's. If the communicator
        fails, a stopped rank may write into it later: make new memory for the next communicator.

        ERRORS  ResourceExhausted, with both figures, if this host's ranks ask for more than there is. The communicator stays usable.
        """
        out = ffi.gc(ffi.new('lockstep_memory**'), lambda out: lib.lockstep_memory_destroy(out[0]))
        self._wait_for(lib.lockstep_memory_create, bytes, device_kind, out)
        c, out[0] = out[0], ffi.NULL
        return Memory(c, device_kind, self._device_index or 0)


def _communicators_out(count):
    """Room for communicators that a call makes. It destroys those that nobody takes."""
    def destroy(out):
        for c in out:
            lib.lockstep_communicator_destroy(c)
    return ffi.gc(ffi.new(f'lockstep_communicator*[{count}]'), destroy)


def _take_communicators(out, device_index):
    made = []
    for i in range(len(out)):
        c, out[i] = out[i], ffi.NULL  # first: behind the other order a signal's exception would leave two owners
        made.append(Communicator(c, device_index) if c else None)
    return made


def _milliseconds(seconds):
    if seconds is None:
        return 0
    works.check_timeout(seconds)
    # What is positive stays so: 0 is the default.
    return max(1, round(1000 * seconds))


def _op(op):
    if not isinstance(op, numbers.Integral) or isinstance(op, bool):
        raise InvalidArgument(f'op is {op!r}; it is lockstep.SUM, AVG, PREMUL_SUM, PROD, MIN, MAX, AND, OR or XOR')
    return op


def _collective_options(given):
    if 'timeout' in given:
        given['timeout_ms'] = _milliseconds(given.pop('timeout'))
    if given.get('factor') is not None:
        given['factor'] = ffi.new('double*', given['factor'])
    return options.fill('lockstep_collective_options', given)


def _stream(stream, device_index):
    address = getattr(stream, 'cuda_stream', None)
    address = getattr(stream, 'ptr', stream) if address is None else address
    made = ffi.new('lockstep_stream*')
    made.handle = ffi.cast('void*', address)
    made.device_kind = CUDA
    named = getattr(getattr(stream, 'device', None), 'index', None)  # torch's streams name their device
    made.device_index = device_index or 0 if named is None else named
    return made


def read_list(given, name, writable, any_dtype=False):
    """(a lockstep_tensor[] of the arrays, the Tensors that keep their memory)"""
    kept = [tensors.read(tensor, f'{name}[{i}]', writable, any_dtype) for i, tensor in enumerate(given)]
    array = ffi.new('lockstep_tensor[]', len(kept))
    for i, tensor in enumerate(kept):
        array[i] = tensor.c[0]
    return array, kept


def init(**given):
    """Connects all ranks, each of which calls it, and returns their Communicator.

    Without options this rank's place comes from the environment: LOCKSTEP_RANK, _WORLD_SIZE, _STORE and so on, then the variables of
    torchrun, Open MPI, PMI, Kubeflow, PMIx and Slurm. If there is none, the world has one rank. An option that is not given, None, 0 or
    '' is the environment's, or the default. These are the options:

    world_size, rank              who this is, instead of the environment
    local_world_size, local_rank  how many ranks this host has, and which of them this is
    store_url                     where the ranks find each other: 'tcp://host:port', which rank 0 serves, or 'file:///path'
    store                         instead of a URL: what has a lockstep_store* as `c`. Used until init returns
    job_id                        separates jobs that share a store; at most 256 bytes
    network_interface             of this host: 'eth0', '^docker', '10.0.0.0/8'
    host_id                       ranks with the same text share a host; default: derived from the machine
    setup_timeout_ms              milliseconds for every rank to appear; default 300,000
    timeout_ms                    milliseconds of one collective; default 1,800,000
    peer_timeout_ms               milliseconds: a rank silent this long has failed; default 30,000
    transport                     'auto' (shared memory on a host, else TCP), 'tcp', 'shm' or 'ofi'
    algorithm                     'ring', 'all_reduce:recursive_doubling;broadcast:binomial'; default: chosen by size
    chunk_bytes                   pipelining unit; default 262,144, over TCP alone 261,696, over libfabric 524,288
    deterministic                 True: sums are in rank order, so their bits depend on the inputs only
    checked                       True: arguments are compared across ranks before each collective; slower
    device_kind, device_index     lockstep.CUDA and its number: the communicator takes tensors and streams of this device, too
    device_backend                'nccl', 'staged' or 'auto'
    nccl_ctas_min, nccl_ctas_max, nccl_split_share
    tcp_congestion_control, tcp_send_buffer_bytes, tcp_receive_buffer_bytes, tcp_sockets, tcp_zero_copy
    ofi_provider                  as lockstep.h says
    security                      'none', 'authenticate' (the default) or 'encrypt': docs/security.md
    secret_file                   a file with the job's secret in 64 hex digits, which its owner alone may read (0600 or 0400)

    Options are equal on all ranks, except for who and where a rank is, its device_index and its tcp_ options.

    SIGNALS  A KeyboardInterrupt ends the wait. The connecting goes on until setup_timeout_ms; until then this rank's place in the job is
             taken.

    ERRORS  DeadlineExceeded    ranks did not appear in time; the text names them
            FailedPrecondition  ranks differ in their options; the text names both
            InvalidArgument     there is no such option; the text lists those that there are. Or secret_file holds something else
            NotFound            there is no secret_file
            PermissionDenied    another secret or level than other ranks have, or others may read secret_file
            TypeError           an option of the wrong type, by name
    """
    store = given.pop('store', None)
    c_options = options.fill('lockstep_communicator_options', given, kept=store)
    if store is not None:
        c_options.store = store.c
    out = _communicators_out(1)
    device_index = None if c_options.device_kind == HOST else c_options.device_index
    works.Call(lib.lockstep_communicator_create, c_options, out, on_device=device_index is not None).wait()
    return _take_communicators(out, device_index)[0]
