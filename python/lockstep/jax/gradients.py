"""Gradients averaged by Lockstep's reducer, while the backward pass of a compiled function still computes."""

import functools

import lockstep
from lockstep.jax import handlers
from lockstep.jax.handlers import jax


def make_reducer(parameters, communicator, **options):
    """A lockstep.Reducer for the gradients of a tree of parameters (arrays, or what has shape and dtype). Every rank calls it, with equal
    trees and options. options: those of lockstep.Reducer. It has memory for all gradients, which live in its buckets, until it is
    closed: JAX keeps the reducers of its programs."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(parameters)
    return lockstep.Reducer(communicator, [(jax.tree_util.keystr(path), leaf.shape, leaf.dtype.name) for path, leaf in leaves],
                            gradient_as_bucket_view=True, **options)


def average_gradients(gradients, reducer, token=None):
    """(averages, token): the averages over all ranks of a tree of gradients, shaped like the parameters that make_reducer was given.

    For compiled functions. Each gradient is copied into its bucket as soon as XLA has computed it, and the reducer sends a bucket when its
    gradients are in it. The token orders this among the calls of the reducer's communicator, of which none may be under way meanwhile. Here
    nothing checks it: a token that is too old is not refused. Two steps in one program need it: XLA merges calls with the same operands,
    such as those for a gradient that is always 0.

    If another part of the program fails in between (a callback that raises), the reducer is of no more use, and other ranks wait for this
    one until it ends or their deadline has passed.
    """
    leaves, tree = jax.tree_util.tree_flatten(gradients)
    if len(leaves) != len(reducer.parameters):
        raise lockstep.InvalidArgument(f'{len(leaves)} gradients for a reducer of {len(reducer.parameters)} parameters')
    for leaf, row in zip(leaves, reducer.parameters):
        if (leaf.shape, leaf.dtype.name) != (row.shape, row.dtype):
            raise lockstep.InvalidArgument(f'the gradient of {row.name} is {leaf.dtype.name}{list(leaf.shape)}, and the reducer was made '
                                           f'for {row.dtype}{list(row.shape)}')
    averages, token = _average(reducer, leaves, handlers.as_token(token))
    return jax.tree_util.tree_unflatten(tree, averages), token


# One program in any case: XLA decides when what happens.
@functools.partial(jax.jit, static_argnums=0)
def _average(reducer, gradients, token):
    marks = [handlers.call('mark_ready', reducer, (gradient, token), (token,), option=index)[0] for index, gradient in enumerate(gradients)]
    *averages, token = handlers.call('end_backward', reducer, marks, (*gradients, token))
    return averages, token
