"""Mixed precision as DDP's: parameters are in lower precision from the forward pass to the end of the backward.

A parameter has one copy in full precision, whichever wrappers contain it. An optimizer's step, a state dictionary and a copy of the wrapper
take that one, also after a forward pass without a backward pass. Writing to the other one is an error, because the write would be lost.
"""

import functools

import torch
from torch.distributed.utils import _cast_forward_inputs
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

import lockstep

_COMPRESSION = {torch.float16: 'float16', torch.bfloat16: 'bfloat16'}

_full = WeakIdKeyDictionary()  # for each parameter in lower precision: its data in full precision, and its version since then


@functools.lru_cache(maxsize=None)
def _restore_before_steps():
    """From now on, parameters are in full precision when an optimizer of any kind takes a step."""
    def restore(optimizer, _args, _kwargs):
        for group in optimizer.param_groups if _full else ():
            _restore(group['params'])
    register_optimizer_step_pre_hook(restore)


def _restore(parameters, names=()):
    written = []
    for index, parameter in enumerate(parameters):
        data, version = _full.pop(parameter, (None, None))
        if data is not None:
            if parameter._version != version:
                written.append(f"'{names[index]}'" if names else str(tuple(parameter.shape)))
            parameter.data = data
    if written:
        raise lockstep.FailedPrecondition(f'parameter {", ".join(written)} was written to while it was in lower precision, between a '
                                          'forward pass and the end of its backward pass, and the write is lost: write before the forward '
                                          'pass or after the backward pass, and use torch.no_grad() if no backward pass follows')


class Precision:
    """The dtypes of torch.nn.parallel.distributed._MixedPrecision for a module.

    param_dtype   of parameters in forward and backward, and of the inputs
    reduce_dtype  of gradients on the wire; default param_dtype. They are scaled in full precision before they are rounded to it.
    buffer_dtype  of buffers, from the start
    Only floating point tensors change. Gradients accumulate and end in full precision.
    """

    def __init__(self, config, module, ignored):
        self._dtype = config.param_dtype
        named = [(name, parameter) for name, parameter in module.named_parameters()
                 if name not in ignored and parameter.is_floating_point()] if self._dtype is not None else []
        self._names, self._parameters = [name for name, _ in named], [parameter for _, parameter in named]
        if named:
            _restore_before_steps()
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
        self._lower_parameters()
        return _cast_forward_inputs(self._dtype, *inputs, **kwargs)

    def _lower_parameters(self):
        if any(parameter in _full and parameter._version != _full[parameter][1] for parameter in self._parameters):
            self.restore()
        for parameter in self._parameters:
            # A parameter that an earlier forward pass or another wrapper has lowered stays, so that both graphs have the same nodes.
            full, _ = _full.setdefault(parameter, (parameter.data, parameter._version))
            if parameter.dtype is not self._dtype:
                parameter.data = full.to(self._dtype)

    def watch(self, outputs):
        """After a forward pass with gradients: the backward pass through one of these uses lower precision and restores full precision."""
        for output in outputs:
            if output.grad_fn is not None:
                output.grad_fn.register_prehook(self._reached)

    def _reached(self, _gradients):
        if self._dtype is not None:
            self._lower_parameters()
            torch.autograd.Variable._execution_engine.queue_callback(self.restore)

    def full(self):
        """{id(parameter): its data in full precision} of the parameters that are in lower precision now."""
        return {id(parameter): _full[parameter][0] for parameter in self._parameters if parameter in _full}

    def restore(self):
        """Full precision again.

        ERRORS  lockstep.FailedPrecondition  a parameter was written to meanwhile. It has full precision, without what was written.
        """
        _restore(self._parameters, self._names)
