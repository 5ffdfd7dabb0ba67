"""Batch normalisation over the batches of all ranks, on the CPU, where torch.nn.SyncBatchNorm does not work.

    model = SyncBatchNorm.convert_sync_batchnorm(model)
    model = lockstep.torch.DistributedDataParallel(model)

Statistics are joined in double and rounded once, in rank order (docs/numerics.md).
"""

import weakref

import torch
from torch.autograd.function import once_differentiable

import lockstep
from lockstep._native import ffi, lib
from lockstep.errors import check
from lockstep.torch.groups import communicator_of, default_group, follow_timeout

_communicators = weakref.WeakKeyDictionary()  # of a process group, for all its layers


def _communicator(group):
    if group not in _communicators:
        _communicators[group] = communicator_of(group, torch.device('cpu'))
    follow_timeout(_communicators[group])
    return _communicators[group]


def _floats(tensor):
    """The elements of a contiguous tensor of float32; NULL for None."""
    return ffi.cast('float*', 0 if tensor is None else tensor.data_ptr())


class _Normalise(torch.autograd.Function):
    """x normalised by the statistics of all ranks. Both directions are collectives."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps, communicator):
        channels, dimensions = x.shape[1], [dimension for dimension in range(x.dim()) if dimension != 1]
        count = x.numel() // channels
        if count:
            variance, mean = torch.var_mean(x.float(), dimensions, correction=0)
        else:
            variance, mean = torch.zeros(2, channels, dtype=torch.float32, device=x.device)
        mean, variance = mean.contiguous(), variance.contiguous()
        inverse_std = torch.empty_like(mean)
        running = [each if each is None else each.float().contiguous() for each in (running_mean, running_var)]
        options, total = ffi.new('lockstep_batch_norm_options*'), ffi.new('int64_t*')
        options.struct_size = ffi.sizeof('lockstep_batch_norm_options')
        options.epsilon, options.momentum = eps, momentum
        options.running_mean, options.running_variance = map(_floats, running)
        check(communicator._call(lib.lockstep_batch_norm_combine, channels, _floats(mean), _floats(variance), count, options,
                                 _floats(mean), _floats(variance), _floats(inverse_std), total))
        for each, updated in zip((running_mean, running_var), running):
            if updated is not each:
                each.copy_(updated)
        ctx.communicator, ctx.total, ctx.dimensions = communicator, total[0], dimensions
        ctx.save_for_backward(x, weight, mean, inverse_std)
        y = (x.float() - _spread(mean, x)) * _spread(inverse_std, x)
        if weight is not None:
            y = y * _spread(weight.float(), x) + _spread(bias.float(), x)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight, mean, inverse_std = ctx.saved_tensors
        dy, from_mean = gradient.float(), x.float() - _spread(mean, x)
        sum_dy, sum_dy_xmu = dy.sum(ctx.dimensions).contiguous(), (dy * from_mean).sum(ctx.dimensions).contiguous()
        for_weight = for_bias = None
        if weight is not None:
            for_weight, for_bias = (sum_dy_xmu * inverse_std).to(weight.dtype), sum_dy.to(weight.dtype)
        sum_dy, sum_dy_xmu = sum_dy.clone(), sum_dy_xmu.clone()
        check(ctx.communicator._call(lib.lockstep_batch_norm_sum_gradients, len(mean), _floats(sum_dy), _floats(sum_dy_xmu), ffi.NULL))
        total = max(ctx.total, 1)
        scale = inverse_std if weight is None else inverse_std * weight.float()
        dx = (dy - _spread(sum_dy / total, x) - from_mean * _spread(inverse_std.square() * sum_dy_xmu / total, x)) * _spread(scale, x)
        return dx.to(x.dtype), for_weight, for_bias, None, None, None, None, None


def _spread(channel_values, x):
    return channel_values.view(1, -1, *(1,) * (x.dim() - 2))


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """torch.nn.SyncBatchNorm for CPU tensors of shape (batch, channels, ...), of float32, bfloat16 or float16; batches may differ in size.

    process_group: of any back end; None: the default group. In training forward and backward are collectives of all its ranks. All layers
    of a group share a communicator of their own, so that they do not disturb the averaging of gradients. There are no second derivatives.
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, process_group=None, device=None,
                 dtype=None):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_group = process_group

    def _check_input_dim(self, x):
        if x.dim() < 2:
            raise lockstep.InvalidArgument(f'SyncBatchNorm: an input of {x.dim()} dimensions; it has (batch, channels, ...)')
        if x.shape[1] != self.num_features:
            raise lockstep.InvalidArgument(f'SyncBatchNorm: an input of {x.shape[1]} channels for a layer of {self.num_features}')
        if x.device.type != 'cpu' or x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise lockstep.InvalidArgument(f'SyncBatchNorm: an input of {x.dtype} on {x.device}; it is float32, bfloat16 or float16 on the '
                                           'CPU. On a GPU use torch.nn.SyncBatchNorm')

    def forward(self, x):
        self._check_input_dim(x)
        if not self.training:
            local = self.running_mean is None  # by the statistics of this batch
            return torch.nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, local, 0.0, self.eps)
        return self._normalise(x)

    @torch._disable_dynamo  # for torch.compile a graph ends here, since it cannot trace the library's calls
    def _normalise(self, x):
        momentum = 0.0 if self.momentum is None else self.momentum
        tracked = self.training and self.running_mean is not None
        if tracked:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / self.num_batches_tracked.item()
        tracked = tracked and momentum != 0
        return _Normalise.apply(x, self.weight, self.bias, self.running_mean if tracked else None, self.running_var if tracked else None,
                                momentum, self.eps, _communicator(self.process_group or default_group()))

    @classmethod
    def convert_sync_batchnorm(cls, module, process_group=None):
        """The module with its BatchNorm and SyncBatchNorm layers replaced by layers of this class, which keep parameters and buffers."""
        made = module
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(module, cls):
            made = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_group)
            made._parameters.update(module._parameters)
            made._buffers.update(module._buffers)
            made.training = module.training
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return made
