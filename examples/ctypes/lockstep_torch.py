"""PyTorch on Lockstep: a module's gradients are averaged over ranks while its backward pass runs, on the CPU or a GPU.

    library = lockstep.Library()
    with lockstep.Communicator(library) as communicator:
        averager = GradientAverager(model, communicator)
        averager.broadcast()
        for inputs, labels in batches:
            optimizer.zero_grad()
            with averager.backward():
                loss(model(inputs), labels).backward()
            optimizer.step()
        averager.close()

On a GPU the communicator is told of it: lockstep.Communicator(library, device_kind=lockstep.CUDA, device_index=0).
Takes PyTorch 2.1, which brought register_post_accumulate_grad_hook.
"""

import contextlib
import functools

import torch

import lockstep


def tensor_of(tensor):
    """A view of it, which borrows its memory."""
    on_gpu = tensor.is_cuda
    return lockstep.Tensor(
        data=tensor.data_ptr(), shape=lockstep.int64s(tensor.shape), strides=lockstep.int64s(tensor.stride()),
        dimensions=tensor.dim(), dtype=dtype_of(tensor), device_kind=lockstep.CUDA if on_gpu else lockstep.HOST,
        device_index=tensor.device.index if on_gpu else 0)


def dtype_of(tensor):
    return lockstep.DTYPES[str(tensor.dtype).removeprefix("torch.")]


class GradientAverager:
    """The reducer of one module and the hooks by which its gradients reach it.

    The module's parameters are on one device. Those that require no gradient when the averager is made are left out;
    the others get one in each backward pass. Gradients are dense.
    `options` are fields of lockstep.ReducerOptions. The communicator must outlive it; close() removes the hooks.
    """

    def __init__(self, module, communicator, **options):
        self._module = module
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self._device = named[0][1].device
        self._in_backward = False
        # What mark_ready takes of each, so that a hook fills in but the address.
        self._tensors = [tensor_of(parameter) for _, parameter in named]
        self._strides = [parameter.stride() for _, parameter in named]
        table = [
            lockstep.Parameter(name=name, shape=like.shape, strides=like.strides, dimensions=like.dimensions,
                               dtype=like.dtype, device_kind=like.device_kind, device_index=like.device_index)
            for (name, _), like in zip(named, self._tensors)
        ]
        self.reducer = lockstep.Reducer(communicator, table, **options)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(self._mark_ready, index))
            for index, (_, parameter) in enumerate(named)
        ]

    def broadcast(self, root=0):
        """The root's parameters and buffers, on every rank. They travel from host to host: this is done once."""
        tensors = [tensor.detach() for tensor in (*self._module.parameters(), *self._module.buffers())]
        on_host = [tensor.cpu() for tensor in tensors]  # itself, where it is there already
        self.reducer.broadcast([tensor_of(tensor) for tensor in on_host], root)
        for tensor, received in zip(tensors, on_host):
            if tensor.is_cuda:
                tensor.copy_(received)

    @contextlib.contextmanager
    def backward(self, sync=True):
        """One backward pass. Behind it the gradients are averages, on a GPU in the order of the current stream; with
        sync=False they only accumulate. Outside of it a backward pass stays this rank's own."""
        self.reducer.begin_backward(sync, self._current_stream())
        self._in_backward = True
        try:
            yield
        except BaseException:
            # The other ranks learn that gradients are missing here; what the caller learns is why.
            with contextlib.suppress(lockstep.Error):
                self.reducer.end_backward(self._current_stream())
            raise
        finally:
            self._in_backward = False
        self.reducer.end_backward(self._current_stream())

    def close(self):
        for hook in self._hooks:
            hook.remove()
        self.reducer.close()

    # On autograd's thread, with the stream that computed the gradient as the current one.
    def _mark_ready(self, index, parameter):
        if not self._in_backward:
            return
        gradient = parameter.grad
        tensor = self._tensors[index]
        tensor.data = gradient.data_ptr()
        strides = gradient.stride()
        if strides != self._strides[index]:
            # Autograd keeps the parameter's, but for those of dimensions of one element.
            self._strides[index] = strides
            tensor.strides = lockstep.int64s(strides)
        self.reducer.mark_ready(index, tensor, self._current_stream())

    def _current_stream(self):
        if self._device.type != "cuda":
            return None
        handle = torch.cuda.current_stream(self._device).cuda_stream
        return lockstep.Stream(handle=handle, device_kind=lockstep.CUDA, device_index=self._device.index)
