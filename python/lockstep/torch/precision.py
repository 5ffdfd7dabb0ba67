"""Mixed precision as DDP's: parameters are in lower precision from the forward pass to the end of the backward."""

import torch
from torch.distributed.utils import _cast_forward_inputs

import lockstep

_COMPRESSION = {torch.float16: 'float16', torch.bfloat16: 'bfloat16'}


class Precision:
    """The dtypes of torch.nn.parallel.distributed._MixedPrecision for a module.

    param_dtype   of parameters in forward and backward, and of the inputs
    reduce_dtype  of gradients on the wire; default param_dtype. They are scaled in full precision before they are rounded to it.
    buffer_dtype  of buffers, from the start
    Only floating point tensors change. Gradients accumulate and end in full precision.
    """

    def __init__(self, config, module, ignored):
        self._dtype = config.param_dtype
        self._parameters = [parameter for name, parameter in module.named_parameters()
                            if name not in ignored and parameter.is_floating_point()] if self._dtype is not None else []
        self._full = None  # the parameters' data, while they are in lower precision
        if config.buffer_dtype is not None:
            for name, buffer in module.named_buffers():
                if name not in ignored and buffer.is_floating_point():
                    buffer.data = buffer.to(config.buffer_dtype)

    @staticmethod
    def compression(config):
        """The reducer's option for gradients on the wire."""
        dtype = config.reduce_dtype or config.param_dtype
        if dtype is None or dtype is torch.float32:
            return None
        if dtype not in _COMPRESSION:
            raise lockstep.InvalidArgument(f'mixed_precision: reduce_dtype {dtype}; there are torch.float32, torch.float16 and '
                                           'torch.bfloat16')
        return _COMPRESSION[dtype]

    def lower(self, inputs, kwargs):
        """Before the forward pass. Returns the inputs in lower precision."""
        if self._dtype is None:
            return inputs, kwargs
        self.restore()
        self._full = [parameter.data for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.data = parameter.data.to(self._dtype)
        return _cast_forward_inputs(self._dtype, *inputs, **kwargs)

    def watch(self, outputs):
        """After a forward pass with gradients: the backward through one of these restores the parameters at its end."""
        for output in outputs:
            if output.grad_fn is not None:
                output.grad_fn.register_prehook(self._reached)

    def _reached(self, _gradients):
        torch.autograd.Variable._execution_engine.queue_callback(self.restore)

    def full(self):
        """{id(parameter): its data in full precision} of the parameters that are in lower precision now."""
        return {id(parameter): data for parameter, data in zip(self._parameters, self._full or ())}

    def restore(self):
        """Full precision again."""
        full, self._full = self._full, None
        for parameter, data in zip(self._parameters, full or ()):
            parameter.data = data
