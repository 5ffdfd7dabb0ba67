"""Collectives in compiled functions. Tokens, gradients and errors: see lockstep.jax."""

import collections
import functools

import lockstep
from lockstep.communicator import _op
from lockstep.jax import handlers
from lockstep.jax.handlers import jax

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero


def all_reduce(x, communicator, op=lockstep.SUM, token=None):
    """(y, token): y on every rank is the reduction of all ranks' x, which have one shape and dtype."""
    if op == lockstep.PREMUL_SUM:
        raise lockstep.InvalidArgument('all_reduce: there is no factor for PREMUL_SUM here; multiply x and take SUM')
    return _start('all_reduce', communicator, _op(op), x, token)


def reduce_scatter(x, communicator, op=lockstep.SUM, token=None):
    """(y, token): y on rank r is the reduction of all ranks' x[r]. The first axis of x is of the ranks."""
    if op == lockstep.PREMUL_SUM:
        raise lockstep.InvalidArgument('reduce_scatter: there is no factor for PREMUL_SUM here; multiply x and take SUM')
    return _start('reduce_scatter', communicator, _op(op), x, token)


def all_gather(x, communicator, token=None):
    """(y, token): y[r] on every rank is the x of rank r."""
    return _start('all_gather', communicator, 0, x, token)


def broadcast(x, communicator, root=0, token=None):
    """(y, token): y on every rank is the root's x. That of the others has its shape and dtype, and is not read."""
    return _start('broadcast', communicator, root, x, token)


def all_to_all(x, communicator, token=None):
    """(y, token): y[r] is what rank r has in x[rank]. The first axis of x is of the ranks."""
    return _start('all_to_all', communicator, 0, x, token)


@jax.custom_vjp
def tie(values, token):
    """values, unchanged, with a gradient that is computed after the calls before `token`."""
    return values


tie.defvjp(lambda values, token: (values, token), lambda token, gradient: (gradient, token))


def _travels_as_bytes(name, x):
    """Whether Lockstep has no arithmetic of its dtype, and needs none."""
    return not name.startswith(('all_reduce', 'reduce')) and not handlers.has_dtype(x) and jnp.issubdtype(x.dtype, jnp.number)


def _to_bytes(x):
    """x as bytes, and what makes an array like x of such bytes."""
    dtype, is_float = x.dtype, jnp.issubdtype(x.dtype, jnp.floating)
    if (jnp.finfo if is_float else jnp.iinfo)(dtype).bits < 8:
        return x.astype(jnp.float8_e4m3fn if is_float else jnp.int8), lambda y: y.astype(dtype)  # these have all its values
    return jax.lax.bitcast_convert_type(x, jnp.uint8), lambda y: jax.lax.bitcast_convert_type(y, dtype)


def _start(name, communicator, option, x, token):
    x = jnp.asarray(x)
    if not _travels_as_bytes(name, x):
        handlers.dtype_of(x, name)
    if _OPERATIONS[name].takes_ranks and x.shape[:1] != (communicator.size,):
        raise lockstep.InvalidArgument(f'{name}: the first axis of x is of the {communicator.size} ranks, and x has the shape {x.shape}')
    return _run(name, communicator, option, x, handlers.as_token(token))


def _call(name, communicator, option, x, token):
    """The handler's call. An axis of a batch stands behind that of the ranks."""
    if _travels_as_bytes(name, x):
        x, undo = _to_bytes(x)
        y, token = _call(name, communicator, option, x, token)
        return undo(y), token
    operation = _OPERATIONS[name]
    shape = x.shape[1:] if operation.takes_ranks else x.shape
    like = jax.ShapeDtypeStruct((communicator.size, *shape) if operation.gives_ranks else shape, x.dtype)

    @custom_vmap
    def call(x, token):
        y, token = handlers.call(name, communicator, (x, token), (like, token), handlers.dtype_of(x, name), option,
                                 {0: 0} if name == 'broadcast' else None)
        return y, token

    @call.def_vmap
    def _(_, batched, x, token):
        if batched[1]:
            token = token[0]
        if not batched[0]:
            return call(x, token), (False, False)
        y, token = _call(name, communicator, option, jnp.moveaxis(x, 0, int(operation.takes_ranks)), token)
        return (jnp.moveaxis(y, int(operation.gives_ranks), 0), token), (True, False)

    return call(x, token)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _run(name, communicator, option, x, token):
    return _call(name, communicator, option, x, token)


def _forward(name, communicator, option, x, token):
    # Named for jax.checkpoint, which may keep them.
    y, token = (checkpoint_name(result, 'lockstep') for result in _run(name, communicator, option, x.value, token.value))
    # Whether x has a gradient is told by the structure: values are traced.
    return (y, token), (token, () if x.perturbed else None)


def _backward(name, communicator, option, residuals, gradients):
    (token, perturbed), (y, later) = residuals, gradients
    is_zero = [isinstance(gradient, SymbolicZero) for gradient in gradients]
    # The token of what follows in the backward pass; where nothing does, of this call in the forward pass.
    if not is_zero[1]:
        token = jnp.where(later == 0, token, later)
    if is_zero[0] or perturbed is None:
        return None, token
    return _OPERATIONS[name].transpose(y, communicator, option, token)


_run.defvjp(_forward, _backward, symbolic_zeros=True)

# ---- The gradient of each: the transpose of the linear map from all ranks' inputs to all ranks' outputs.


def _of_all_reduce(y, communicator, op, token):
    _require_linear('all_reduce', op)
    return all_reduce(y, communicator, op, token)


def _of_reduce_scatter(y, communicator, op, token):
    _require_linear('reduce_scatter', op)
    return all_gather(y if op == lockstep.SUM else y / communicator.size, communicator, token)


def _of_all_gather(y, communicator, _, token):
    return reduce_scatter(y, communicator, token=token)


def _of_broadcast(y, communicator, root, token):
    # One call on all ranks: JAX drops a call whose result is not used, as an all-reduce's would not be where the gradient is 0.
    return _run('reduce', communicator, root, y, handlers.as_token(token))


def _of_reduce(y, communicator, root, token):
    return broadcast(y, communicator, root, token)


def _of_all_to_all(y, communicator, _, token):
    return all_to_all(y, communicator, token)


def _require_linear(name, op):
    if op not in (lockstep.SUM, lockstep.AVG):
        raise lockstep.Unimplemented(f'{name}: only SUM and AVG have a gradient; put jax.lax.stop_gradient around x')


# takes_ranks, gives_ranks: whether the first axis of input and output is of the ranks.
_Operation = collections.namedtuple('_Operation', ('takes_ranks', 'gives_ranks', 'transpose'))
_OPERATIONS = {
    'all_reduce': _Operation(False, False, _of_all_reduce),
    'reduce_scatter': _Operation(True, False, _of_reduce_scatter),
    'all_gather': _Operation(False, True, _of_all_gather),
    'broadcast': _Operation(False, False, _of_broadcast),
    'reduce': _Operation(False, False, _of_reduce),  # a sum; 0 on the other ranks
    'all_to_all': _Operation(True, True, _of_all_to_all),
}
