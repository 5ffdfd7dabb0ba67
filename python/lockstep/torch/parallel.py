"""DistributedDataParallel on Lockstep's reducer, with torch.nn.parallel.DistributedDataParallel's arguments and methods.

    model = lockstep.torch.DistributedDataParallel(model)
    for x, y in batches:
        loss(model(x), y).backward()      # gradients are averages now
        optimizer.step()

lockstep.torch.averager wires parameters to the reducer; beside it are hooks, buffers, join, precision and layout.
"""

import contextlib
import functools
import os
import warnings
import weakref

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Joinable
from torch.nn.parallel import distributed as ddp

import lockstep
from lockstep.torch import hooks, join
from lockstep.torch.averager import Averager, accumulators_of, reaches
from lockstep.torch.buffers import Buffers, broadcast
from lockstep.torch.groups import communicator_of, default_group, follow_timeout
from lockstep.torch.layout import Layout
from lockstep.torch.precision import Precision
from lockstep.torch.replicas import Replicas, compare, local_parts, tensors_of
from lockstep.torch.sync_batch_norm import SyncBatchNorm

_MIB = 1 << 20
# As torch's logging data names dtypes.
_DTYPE_NAMES = {torch.float32: 'float', torch.float64: 'double', torch.float16: 'c10::Half', torch.bfloat16: 'c10::BFloat16',
                torch.complex64: 'c10::complex<float>', torch.complex128: 'c10::complex<double>'}
_BUILT = ('process_group', '_connected', '_kept', '_synced_buffers', '_layout', '_precision')  # what a pickle does not have


class DistributedDataParallel(ddp.DistributedDataParallel):
    """Averages a module's gradients over the ranks of a process group, while the backward pass still computes.

    Takes torch's arguments and has its methods. It is one of torch's class, so that whoever asks for that class takes it for one; of
    torch's code it uses what does not touch torch's reducer. Beyond torch's arguments:

    optimizer_step   optimizer_step(parameters) is called for each bucket as soon as it is averaged, with averages in .grad, on the thread
                     lockstep-opt, while later buckets are under way. Errors come from backward().
    on_drift         Each backward that averages also compares a 61st of the replicas' parameters between the ranks. If they differ, 'warn'
                     warns once, on rank 0, and names the parameter, the element and the ranks; 'raise' raises that lockstep.DataLoss from
                     backward(), on all ranks; a function gets it. None compares nothing, as do hooks that do not average ('noop',
                     post_localSGD_hook). Buffers, frozen and ignored parameters, and ranks without inputs (join), are not compared.
    may_drift        names of further parameters that are not compared.
    preserve_gradients  True: if a step fails, .grad is this rank's own gradient everywhere. Costs a copy of the gradients.
    others           options of lockstep.Reducer: averaging, compression, trace_path, caps_from_last, plan, no_replan, ...
                     Where processes share too few cores, gradient_memory='copied' takes less time: ranks wait for each other less often.

    Where it differs from torch's
      bits        Two ranks get DDP's bits over Gloo. More ranks add in another order than Gloo's ring (docs/numerics.md). With an fp16 or
                  bf16 hook, gradients are scaled before they are rounded to 16 bits, and torch's after. With find_unused_parameters, what
                  an unused parameter has in .grad is averaged again, and torch's leaves it.
      backward    Every backward pass through the outputs averages, also a second one over the same graph, of which torch's averages the
                  first. It does not if its forward passes were in no_sync(), nor, once a pass has averaged, if it reaches no output, as a
                  gradient penalty's own backward(). torch.autograd.grad and torch.func average nothing.
      sharing     Several wrappers may have a parameter in common, and a wrapper may be inside another: what one pass averages, it averages
                  once. Gradients of such parameters are copied. Not with optimizers in backward.
      errors      A gradient that is missing on some rank fails that very backward on all ranks, and names rank and parameter. The next step
                  may be tried. What an exception stops half way is ended by the next forward pass of any wrapper; other ranks' backward()
                  waits for that, and fails. A rank that dies fails the others' backward at once, by name. A parameter that is new, gone,
                  another one or unfrozen since the module was wrapped is refused by the next forward pass, by name; a frozen one, or one of
                  another dtype, by the backward pass.
      hooks       Run on the library's thread, not on autograd's, and those of several wrappers one backward after the other:
                  lockstep.torch.hooks. If one is in Python, buckets are not planned again, except with no_replan=False. A hook that fails
                  on one rank fails the step on all. If another rank's hook waits for it then, their process group takes no more hooks.
      precision   mixed_precision scales and accumulates in full precision: lockstep.torch.precision. A write to a parameter in lower
                  precision, which torch's loses, is an error. Optimizers, copies and state dictionaries of the wrapper use full precision.
      writes      A write to a gradient that is being averaged, by a hook of a module for example, is an error; torch's loses it.
      static      With static_graph, a gradient that an earlier pass left of a parameter that only other ranks use is refused, unless it is
                  zero. torch's averages it. A parameter that has no gradient in the first backward must not have one later.
      join        divide_by_initial_world_size=False holds with every hook that averages. torch's hooks divide by all ranks.
      copies      copy.deepcopy and unpickling are local, and so is evaluating a copy. It first communicates, which every rank does then, in
                  a forward pass in training mode with gradients, or else in a backward pass.
      no effect   skip_all_reduce_unused_params, batched_grad_copy, lazy_bucket_allocation: hints for torch's reducer.

    ERRORS   lockstep.FailedPrecondition  parameters or options differ between ranks: the same text on every rank
             lockstep.InvalidArgument     an argument, or a parameter's dtype or device, that cannot be served
    THREADS  One backward at a time; any thread may run it.
    """

    def __init__(self, module, device_ids=None, output_device=None, dim=0, broadcast_buffers=None, init_sync=True, process_group=None,
                 bucket_cap_mb=None, find_unused_parameters=False, check_reduction=False, gradient_as_bucket_view=False, static_graph=False,
                 delay_all_reduce_named_params=None, param_to_hook_all_reduce=None, mixed_precision=None, device_mesh=None,
                 skip_all_reduce_unused_params=False, bucket_cap_mb_list=None, batched_grad_copy=False, forward_sync_buffers=None,
                 lazy_bucket_allocation=False, optimizer_step=None, on_drift='warn', may_drift=(), **reducer_options):
        """Collective. See the class, and torch.nn.parallel.DistributedDataParallel for torch's arguments."""
        torch.nn.Module.__init__(self)
        Joinable.__init__(self)
        self.process_group = _group(process_group, device_mesh)
        if device_mesh is not None:
            self.device_mesh = device_mesh
            if device_mesh._get_root_mesh() != device_mesh:
                from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
                _pre_dp_module_transform(module)  # parameters that are sharded over another dimension of the mesh
        self.module = module
        self.parameters_to_ignore = set(getattr(module, '_ddp_params_and_buffers_to_ignore', ()))
        self._set_device(device_ids, output_device)
        self.dim = dim
        if broadcast_buffers is not None:  # torch's words
            warnings.warn('`broadcast_buffers` is deprecated. ' + (
                'Use `forward_sync_buffers` instead, with which buffers are synced at init in any case.' if forward_sync_buffers is None
                else 'Its value is ignored when `forward_sync_buffers` is provided.'), FutureWarning, stacklevel=2)
        if forward_sync_buffers is None:
            forward_sync_buffers = init_buffers = True if broadcast_buffers is None else broadcast_buffers
        else:
            init_buffers = True
        self.forward_sync_buffers = forward_sync_buffers
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.gradient_as_bucket_view, self.mixed_precision = gradient_as_bucket_view, mixed_precision
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.logger = None  # torch's
        self.broadcast_bucket_size = 250 * _MIB  # torch's, which nothing here needs
        # For torch's to_kwargs.
        self.use_side_stream_for_tensor_copies = os.environ.get('PYTORCH_DDP_USE_SIDE_STREAM', '1') == '1'
        self._divide_by_initial_world_size = True
        self._hook = self._hook_name = None
        self._comm_hooks = []  # torch's: (hook, state)
        if mixed_precision is not None and optimizer_step is not None:
            raise lockstep.Unimplemented('mixed_precision with optimizer_step: the parameters are in lower precision then')
        self._optimizer_step, self._overlapped = optimizer_step, False
        self._on_drift, self._may_drift = on_drift, frozenset(may_drift)
        self._ends_itself, self._sample_rate, self._error = True, None, ''
        self._delayed = _delayed(delay_all_reduce_named_params, param_to_hook_all_reduce)
        self.bucket_bytes_cap = int((bucket_cap_mb if bucket_cap_mb is not None else getattr(ddp, '_DEFAULT_BUCKET_CAP_MB', 25)) * _MIB)
        if bucket_cap_mb is not None:
            reducer_options['bucket_cap_bytes'] = self.bucket_bytes_cap
        self.bucket_bytes_cap_list = [int(cap * _MIB) for cap in bucket_cap_mb_list or ()]
        self.bucket_bytes_cap_default = bucket_cap_mb is None and not bucket_cap_mb_list
        if bucket_cap_mb_list:
            reducer_options['bucket_caps_bytes'] = self.bucket_bytes_cap_list
            self.bucket_bytes_cap = max(self.bucket_bytes_cap_list)
        self._reducer_options = reducer_options
        self._prepare()
        self._connect()
        if init_sync:
            self._sync_model(0, init_buffers)

    def _set_device(self, device_ids, output_device):
        parameters = [parameter for name, parameter in self.module.named_parameters() if name not in self.parameters_to_ignore]
        if not any(parameter.requires_grad for parameter in parameters):
            raise lockstep.InvalidArgument('the module has no parameter that requires a gradient: there is nothing to average, use it '
                                           'without DistributedDataParallel')
        for parameter in parameters:
            if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
                raise lockstep.InvalidArgument('the module has uninitialized parameters: run a forward pass before wrapping it')
        devices = sorted({str(parameter.device) for parameter in parameters})
        if len({parameter.device.type for parameter in parameters}) > 1:
            raise lockstep.InvalidArgument(f'the parameters are on {", ".join(devices)}: move the module to devices of one type')
        self.device = parameters[0].device
        self.device_type, self.is_multi_device_module = self.device.type, len(devices) > 1
        if device_ids is not None and len(device_ids) > 1:
            raise lockstep.InvalidArgument('device_ids: None, or one device')
        self.device_ids = self.output_device = None
        if self.device_type == 'cpu' or self.is_multi_device_module:
            if device_ids or output_device is not None:
                raise lockstep.InvalidArgument(f'device_ids {device_ids} and output_device {output_device} are for a module on one GPU; '
                                               f'this one is on {", ".join(devices)}: leave them out')
        elif device_ids:
            self.device_ids = [torch._utils._get_device_index(device_ids[0], True)]
            self.output_device = torch._utils._get_device_index(device_ids[0] if output_device is None else output_device, True)
        if self.device_type == 'cpu' and any(isinstance(part, torch.nn.modules.SyncBatchNorm) for part in self.module.modules()):
            raise lockstep.InvalidArgument('torch.nn.SyncBatchNorm only works on GPUs: on the CPU convert the module by '
                                           'lockstep.torch.SyncBatchNorm.convert_sync_batchnorm(module)')

    # ---- What is made anew from a pickle

    def _prepare(self):
        self._precision = None
        if self.mixed_precision is not None:
            self._precision = Precision(self.mixed_precision, self.module, self.parameters_to_ignore)
        self._connected = self._kept = self._layout = self._synced_buffers = None
        self._closed = self._substituted = False

    def _connect(self):
        """Collective: makes communicator and averager, for the module as it is now."""
        self._synced_buffers = Buffers(self.module, self.parameters_to_ignore)
        communicator = communicator_of(self.process_group, self.device)
        self._connected = communicator, self._new_averager(communicator)
        self._kept = _Kept(*self._connected)

    @property
    def _communicator(self):
        """Collective for a copy that has none yet, as _averager is."""
        if self._connected is None:
            self._connect()
        return self._connected[0]

    @property
    def _averager(self):
        if self._connected is None:
            self._connect()
        return self._connected[1]

    def _averaged_parameters(self):
        return [(name, parameter) for name, parameter in self.module.named_parameters()
                if parameter.requires_grad and name not in self.parameters_to_ignore]

    def _new_averager(self, communicator):
        named = self._averaged_parameters()
        full = {} if self._precision is None else self._precision.full()  # a copy is connected in a backward pass
        self._layout = Layout(self.module, [name for name, _ in named], self.parameters_to_ignore, full)
        options = dict(self._reducer_options, find_unused_parameters=self.find_unused_parameters, static_graph=self.static_graph,
                       gradient_as_bucket_view=self.gradient_as_bucket_view)
        if self._delayed is not None:
            options.update(self._delayed_options(named))
        # A hook that compresses has the last word.
        if self._precision is not None and Precision.compression(self.mixed_precision) and not str(self._hook).endswith('_compress'):
            options['compression'] = Precision.compression(self.mixed_precision)
        hook, turn = self._hook, None
        if callable(hook):
            turn = hooks.Turn(self.process_group, communicator)
            hook = hooks.adapt(hook, self._hook_state, [parameter for _, parameter in named], turn)
            options.setdefault('no_replan', True)  # a hook may have state for each bucket, as PowerSGD's
        sparse = [part.weight for part in self.module.modules()
                  if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse]
        overlapped = [parameter for _, parameter in named if hasattr(parameter, '_in_backward_optimizers')] if self._overlapped else []
        step = _step_in_backward if overlapped else self._optimizer_step
        compares = self._on_drift is not None and hooks.averages(self._hook)
        averager = Averager(self.process_group, communicator, named, sparse, hook, turn, step, overlapped,
                            precision=self._precision, explain=_weak(self, '_explain'),
                            replicas=Replicas(named, self._on_drift, self._may_drift, communicator.rank) if compares else None, **options)
        averager.ends_itself = self._ends_itself
        if self._sample_rate is not None:
            averager.reducer.set_logging_sample_rate(self._sample_rate)
        return averager

    def _delayed_options(self, named):
        places = {id(parameter): index for index, (_, parameter) in enumerate(named)}
        parameters, trigger = self._delayed
        for parameter in (*parameters, trigger):
            if id(parameter) not in places:
                raise lockstep.InvalidArgument('delay_all_reduce_named_params and param_to_hook_all_reduce are parameters of the module '
                                               'that require a gradient and are not ignored')
        return {'delayed': [places[id(parameter)] for parameter in parameters], 'delayed_trigger': places[id(trigger)]}

    def _check_nothing_averaged(self, name):
        if self._connected is not None and self._averager.steps:
            raise lockstep.FailedPrecondition(f'{name} should be called before training loop starts: do it right after wrapping')

    @contextlib.contextmanager
    def _logging_errors(self):
        try:
            yield
        except Exception as error:
            self._error = f'{type(error)}: {error}'
            raise

    def _rebuild(self):
        """Another averager of the same parameters, before the first backward. Collective."""
        if self._connected is not None:
            communicator, averager = self._connected
            averager.close()
            frozen = [parameter for parameter in averager.parameters if not parameter.requires_grad]  # since the wrapping
            for parameter in frozen:
                parameter.requires_grad_(True)
            try:
                self._connected = communicator, self._new_averager(communicator)
            finally:
                for parameter in frozen:
                    parameter.requires_grad_(False)
            self._kept.averager = self._connected[1]

    def state_dict(self, *args, **kwargs):
        """torch's, of the parameters in full precision."""
        self._restore_precision()
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """torch's, into the parameters in full precision."""
        self._restore_precision()
        return super().load_state_dict(*args, **kwargs)

    def _restore_precision(self):
        if self._precision is not None:
            self._precision.restore()

    def __getstate__(self):
        self._restore_precision()
        self._check_default_group()
        return {name: value for name, value in self.__dict__.items() if name not in _BUILT}

    def __setstate__(self, state):
        """Local. The copy connects when it first has to communicate."""
        torch.nn.Module.__setstate__(self, state)
        self.process_group = _group(None, None)
        self._prepare()

    def close(self):
        """Takes the hooks off the parameters: the module can be wrapped again. Does not wait for other ranks. Twice is once."""
        self._remove_autograd_hooks()
        if self._connected is not None:
            self._connected[0].close()

    def abort(self, reason):
        """Ends the averaging on all ranks, which learn the reason. The process group stays usable."""
        if self._connected is not None:
            self._connected[0].abort(reason)

    # ---- A step

    @torch._disable_dynamo(recursive=False)
    def forward(self, *inputs, **kwargs):
        """The module's. Collective where buffers are due, and inside join()."""
        inputs, kwargs = self._prepare_for_forward(inputs, kwargs)
        given = {tensor.grad_fn for tensor in ddp._find_tensors((inputs, kwargs))} - {None}
        with self._inside_ddp_forward():
            outputs = self.module(*inputs, **kwargs)
        return self.prepare_for_backward(outputs, given)

    @torch._disable_dynamo
    def _prepare_for_forward(self, inputs, kwargs):
        sync = torch.is_grad_enabled() and self.require_backward_grad_sync
        if sync and self._closed:
            raise lockstep.FailedPrecondition('this DistributedDataParallel is closed: wrap the module again, or use it without')
        if self._connected is None and sync and self.training and self._averaged_parameters():
            self._connect()
        if self._connected is not None:
            follow_timeout(self._communicator)
            self._substituted = not self._layout.is_as_it_was(self.module) and self._layout.is_substituted()
            if self._substituted:
                return inputs, kwargs
            self._averager.end_stopped()
            if sync:
                self._averager.end_interrupted()
                self._averager.reducer.begin_forward()
            changed = self._changed() if sync else None
            if changed:
                raise lockstep.FailedPrecondition(f'the module has changed since it was wrapped: {changed}. After a change wrap it again: '
                                                  'DistributedDataParallel(model.module)')
        root, told = 0, join.tell(self, sync) if self._join_config.enable else None
        self._take_over_optimizers(sync)
        if told is not None:
            root = told.root
            fewer = not self._divide_by_initial_world_size and hooks.averages(self._hook)
            self._averager.scale = self._communicator.size / told.live if fewer else 1.0
        if self._check_sync_bufs_pre_fwd():
            self._sync_buffers(root)
        if self.device_ids:
            inputs, kwargs = (moved[0] for moved in self.to_kwargs(inputs, kwargs, self.device_ids[0]))
        if self._precision is not None:
            inputs, kwargs = self._precision.lower(inputs, kwargs)
        return inputs, kwargs

    @torch._disable_dynamo
    def prepare_for_backward(self, outputs, given=()):
        """What forward does with the module's outputs, which it returns ready for the backward pass. Only a backward pass that is inside of
        forward needs to call it, with its loss (Lightning's manual optimisation). given: the grad_fn of inputs, which outputs may be."""
        sync = self.require_backward_grad_sync and torch.is_grad_enabled()
        if not self._substituted:
            if self._check_sync_bufs_post_fwd():
                self._sync_buffers()
            self.require_forward_param_sync = sync
        if not torch.is_grad_enabled():
            self._restore_precision()
            return outputs
        found = [tensor for tensor in ddp._find_tensors(outputs) if tensor.requires_grad and tensor.grad_fn not in given]
        if self._precision is not None and not self._substituted:
            self._precision.watch(found)
        if self._connected is None:
            self._watch_unconnected(found, sync)
        # A module that is frozen for a while is only passed through.
        elif any(parameter.requires_grad for parameter in self._averager.parameters):
            self._averager.watch(found, sync, self._kept, self._substituted)
        return outputs

    def _watch_unconnected(self, outputs, sync):
        """Averager.watch for a copy, which connects if a backward pass through one of the outputs is to average gradients."""
        def reached(following, _gradients):
            if self._connected is not None or reaches(accumulators, following):
                self._averager.watch((), sync)
                self._averager.reached(following, None, self._kept)

        accumulators = accumulators_of([parameter for _, parameter in self._averaged_parameters()])
        for output in outputs if sync and accumulators else ():
            if output.grad_fn is not None:
                output.grad_fn.register_prehook(functools.partial(reached, output.grad_fn.next_functions))

    def average_gradients(self):
        """Collective: averages the gradients that there are, without a backward pass, after those of no_sync()."""
        self._averager.average()

    def check_replicas(self, optimizer=None):
        """lockstep.torch.check_replicas of this module, between two steps. Collective; blocks. ERRORS lockstep.DataLoss"""
        compare(self._communicator, local_parts(tensors_of(self, optimizer)))

    def gradient_states(self):
        """After a backward that failed, what .grad of each parameter holds, by name: 'unchanged', this rank's own gradient; 'averaged', or
        'undefined', perhaps parts of sums. With preserve_gradients=True all are unchanged."""
        return self._averager.gradient_states()

    def will_sync_module_buffers(self):
        """Whether the next forward pass copies buffers: it is the first one, or follows one whose backward averages."""
        return (self._connected is not None and self.require_forward_param_sync and self.forward_sync_buffers
                and len(self._synced_buffers) > 0)

    def _sync_buffers(self, root=0):
        if not hasattr(self, 'buffer_hook'):  # set by torch's _register_buffer_comm_hook, which says where it is called
            with self._averager.records.broadcast(self._synced_buffers.now):
                return self._synced_buffers.broadcast(self._communicator, root)
        hook = self.buffer_hook
        futures = hook.buffer_comm_hook(hook.buffer_comm_hook_state, self._synced_buffers.named())
        self._averager.awaited += futures or ()

    def _default_broadcast_coalesced(self, bufs=None, bucket_size=None, authoritative_rank=0):
        broadcast(self._communicator, self._synced_buffers.now() if bufs is None else bufs, authoritative_rank)

    def _sync_model(self, root, with_buffers=None):
        self._restore_precision()
        tensors = [parameter for name, parameter in self.module.named_parameters() if name not in self.parameters_to_ignore]
        if self.forward_sync_buffers if with_buffers is None else with_buffers:
            tensors += self._synced_buffers.now()
        with self._averager.records.broadcast(lambda: tensors):
            broadcast(self._communicator, tensors, root)

    def _changed(self):
        """Why the module has to be wrapped again, in words. None if it has not changed since it was wrapped."""
        if self._connected is None or self._layout.is_as_it_was(self.module):
            return None
        self._restore_precision()
        changed = self._layout.what_changed(self.module)
        if not changed:
            self._layout.accept(self.module, {})
            self._averager.attach()  # a parametrization computes its parameter in another dtype for a moment
            self._synced_buffers = Buffers(self.module, self.parameters_to_ignore)
        return changed

    def _explain(self):
        changed = self._layout.what_changed(self.module)
        return changed and f'On this rank the module has changed since it was wrapped: {changed}. After a change wrap it again.'

    # ---- Hooks, optimizers

    def register_comm_hook(self, state, hook):
        """Collective, once, before the first backward: hook(state, bucket) averages a bucket instead, and returns a torch.futures.Future of
        the averages. torch's hooks for all-reduce, fp16, bf16 and noop become the reducer's own, as do their names: 'all_reduce',
        'fp16_compress', 'bf16_compress', 'noop'."""
        with self._logging_errors():
            if self._hook is not None:
                raise lockstep.FailedPrecondition(f'the hook {self._hook_name} is registered already: one hook a module')
            self._check_nothing_averaged('register_comm_hook')
            name = hooks.named(hook, state, self.process_group)
            if name is None:
                hooks.check(hook)
        self._hook, self._hook_state = name or hook, state
        self._comm_hooks.append((hook, state))
        self._hook_name = hook if isinstance(hook, str) else getattr(hook, '__qualname__', str(hook))
        self._rebuild()

    def _register_builtin_comm_hook(self, comm_hook_type):
        self.register_comm_hook(None, comm_hook_type)

    def _take_over_optimizers(self, sync):
        """Optimizers in backward (torch.distributed.optim._apply_optimizer_in_backward) step when their bucket is averaged. Collective if
        `sync`, for the first time."""
        if self._overlapped:
            return
        found = [parameter for _, parameter in self._averaged_parameters() if hasattr(parameter, '_in_backward_optimizers')]
        if found and self._precision is not None:
            raise lockstep.Unimplemented('mixed_precision with optimizers in backward: their parameters are in lower precision then')
        self._overlapped = sync or not found
        for parameter in found:
            for handle in dist.optim.apply_optimizer_in_backward.param_to_optim_hook_handle_map.get(parameter, ()):
                handle.remove()
        if found and sync:
            self._rebuild()

    # ---- Uneven inputs: join() is torch's

    def join_hook(self, **kwargs):
        """For torch.distributed.algorithms.join.Join."""
        return join.Hook(self, **kwargs)

    # ---- Others of torch's

    def _set_static_graph(self):
        if not self.static_graph:
            with self._logging_errors():
                self._check_nothing_averaged('_set_static_graph')
            self.static_graph = True
            self._rebuild()

    @property
    def require_manual_backward_finalization(self):
        """Whether the user calls finalize_backward() after each backward that averages."""
        return not self._ends_itself

    @require_manual_backward_finalization.setter
    def require_manual_backward_finalization(self, required):
        self._ends_itself = not required
        if self._connected is not None:
            self._averager.ends_itself = self._ends_itself

    @property
    def should_finalize_after_backward(self):
        return self.require_manual_backward_finalization

    def finalize_backward(self):
        """Waits for the averages of the backward that has just returned."""
        if self._ends_itself:
            raise lockstep.FailedPrecondition('finalize_backward() is for require_manual_backward_finalization = True')
        self._averager.end()

    def _check_reducer_finalized(self):
        """Nothing to check: a backward that returned has averaged everything."""

    def _remove_autograd_hooks(self):
        self._closed = True
        if self._connected is not None:
            self._averager.close()

    def _update_process_group(self, new_process_group):
        """Moves to another process group, after a failure or when ranks come and go. Every rank of it calls this."""
        self.process_group = new_process_group
        if self._connected is None:
            return
        old, averager = self._connected
        communicator = communicator_of(new_process_group, self.device)
        averager.change_communicator(communicator, new_process_group)
        self._connected = communicator, averager
        self._kept.communicator = communicator
        old.close()

    @property
    def reducer(self):
        """The part of torch's reducer that its hooks and tests read."""
        return _Reducer(self)

    @property
    def _has_rebuilt_buckets(self):
        """Whether the buckets stay as they are now. It changes between steps only, in the same step on all ranks."""
        return self._connected is not None and self._averager.planned

    @property
    def _delay_all_reduce_params(self):
        return self._delayed[0] if self._delayed else []

    @property
    def _module_parameters(self):
        delayed = {id(parameter) for parameter in self._delay_all_reduce_params}
        return [parameter for name, parameter in self.module.named_parameters()
                if name not in self.parameters_to_ignore and id(parameter) not in delayed]

    @property
    def modules_buffers(self):
        return [*self.named_module_buffers.values()]

    @property
    def named_module_buffers(self):
        return Buffers(self.module, self.parameters_to_ignore).named()

    def _assign_modules_buffers(self):
        """Nothing to assign: the two properties above read the module."""

    def _set_sparse_metadata(self, global_unique_ids):
        raise lockstep.Unimplemented('_set_sparse_metadata: sparse gradients need none here')

    def _set_ddp_sink_clone(self, val):
        """Nothing to set: outputs are never cloned."""

    # ---- Logging

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate):
        self._sample_rate = sample_rate
        if self._connected is not None:
            self._averager.reducer.set_logging_sample_rate(sample_rate)

    def _get_ddp_logging_data(self):
        """torch's logging data, under torch's keys, and what the reducer adds. Times are nanoseconds."""
        found = {} if self._connected is None else self._averager.reducer.logging_data()
        for name, value in found.items():
            if isinstance(value, list):
                found[name] = ', '.join(' '.join(map(str, each)) if isinstance(each, list) else str(each) for each in value)
        parameters = [parameter for _, parameter in self._averaged_parameters()]
        dtypes = ', '.join(sorted({_DTYPE_NAMES[parameter.dtype] for parameter in parameters}))
        found.update(
            module_name=type(self.module).__name__, backend_name=dist.get_backend(self.process_group), dtypes=dtypes,
            device_ids=', '.join(map(str, self.device_ids or ())), output_device=-1 if self.output_device is None else self.output_device,
            is_multi_device_module=int(self.is_multi_device_module), broadcast_buffers=int(self.forward_sync_buffers),
            has_sync_bn=int(any(isinstance(part, (torch.nn.modules.SyncBatchNorm, SyncBatchNorm)) for part in self.module.modules())),
            num_parameter_tensors=len(parameters),
            total_parameter_size_bytes=sum(each.numel() * each.element_size() for each in parameters),
            join_uneven_inputs=int(self._join_config.enable),
            **{name.lower(): os.environ.get(name, 'N/A')
               for name in ('MASTER_ADDR', 'MASTER_PORT', 'CUDA_VISIBLE_DEVICES', 'TORCH_DISTRIBUTED_DEBUG')})
        # To the reducer a parameter that is unused, but has what an earlier pass left in .grad, is used.
        if found.get('can_set_static_graph'):
            found['can_set_static_graph'] = not self._averager.varied
        found['error'] = self._error or found.get('error', '')
        found['has_error'] = int(bool(found['error']))
        found.pop('comm_hook', None)
        if self._hook_name is not None:
            found['comm_hook'] = self._hook_name
        return found


class _Kept:
    """Closes an averager, which is part of a reference cycle, when its wrapper and all graphs of the wrapper's outputs are gone."""

    def __init__(self, communicator, averager):
        self.communicator, self.averager = communicator, averager

    def __del__(self):
        self.averager.close()
        self.communicator.close()


class _Reducer:
    """The methods of torch's reducer that its hooks and tests call, over the Lockstep reducer."""

    def __init__(self, ddp):
        self._averager, self._communicator = ddp._averager, ddp._communicator

    def _ddp_graph_static(self):
        return not self._averager.varied

    def _get_local_used_map(self):
        """Collective: by how many ranks each parameter was used in the last backward pass."""
        used = torch.ones(len(self._averager.parameters), dtype=torch.int32, device='cpu')
        used[list(self._averager.skipped)] = 0
        self._communicator.all_reduce(used)
        return used


def _group(process_group, device_mesh):
    if process_group is not None and device_mesh is not None:
        raise lockstep.InvalidArgument('Cannot specify both process_group and device_mesh arguments.')
    if device_mesh is not None:
        if device_mesh.ndim != 1:
            raise lockstep.InvalidArgument(f'Only 1D device mesh is supported, but this one has {device_mesh.ndim} dimensions: pass one of '
                                           'them, device_mesh["name"]')
        return device_mesh.get_group(mesh_dim=0)
    return process_group or default_group()


def _delayed(named, trigger):
    if (named is None) != (trigger is None):
        raise lockstep.InvalidArgument('delay_all_reduce_named_params and param_to_hook_all_reduce: both, or none')
    return None if named is None else ([parameter for _, parameter in named], trigger)


def _step_in_backward(parameters):
    for parameter in parameters:
        for optimizer in getattr(parameter, '_in_backward_optimizers', ()):
            optimizer.step()


def _weak(owner, name):
    reference = weakref.ref(owner)

    def call():
        found = reference()
        return None if found is None else getattr(found, name)()
    return call
