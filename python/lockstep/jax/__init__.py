"""JAX: collectives inside compiled functions, and gradients averaged by the reducer.

    communicator = lockstep.init()

    @jax.jit
    def f(x, token):
        x, token = lockstep.jax.all_reduce(x, communicator, op=lockstep.AVG, token=token)
        return lockstep.jax.all_gather(2 * x, communicator, token=token)

    y, token = f(x, None)

A call works in jit, grad, vmap and scan. It is for arrays on the CPU. The communicator is part of the program, not an argument of it.

TOKENS  XLA runs calls in any order, unless one needs what another returns. But all ranks must make the calls of a communicator in one
    order. So each call takes the token that the call before it returned. One token goes through the calls of all communicators of a
    program: XLA has few threads, and calls of several communicators that wait in them for other ranks can keep each other from beginning.
    A call without a token (None) runs when its data is there: good for the only call of a program. Pass the token on between programs,
    too, or wait for results in between: programs may overlap. A call fails (FAILED_PRECONDITION) if its token is older than the last call
    of its communicator, or than the last call of another one that had a token, rather than run in an order that only this rank has. This
    is checked among collectives; average_gradients neither checks its token nor counts as a call there.

GRADIENTS  What is differentiated is the sum of all ranks' losses: grad gives on each rank the derivative of that sum by this rank's inputs.
    So the gradient of all_reduce is an all_reduce, of all_gather a reduce_scatter and the other way round, of all_to_all an all_to_all;
    broadcast gives the sum to the root and zeros to the others. A loss that all ranks compute from the same values counts as often as there
    are ranks (once in mpi4jax, where the gradient of a sum is the identity): divide it by communicator.size. Reductions other than SUM and
    AVG have no gradient. Forward mode (jvp, jacfwd, hessian) is refused, since calls for values and for tangents would have no order;
    reverse over reverse works.
    The calls of the backward pass are ordered by the token's gradient, which is the token behind them:

        (loss, (gradient, token)) = jax.value_and_grad(f, argnums=(0, 1))(x, token)

    If the loss does not depend on the last call of the forward pass, return tie(loss, token) instead of it, so that the backward pass
    begins after that call. jax.checkpoint would make calls of the forward pass again, which fails: let it keep their results,
    policy=jax.checkpoint_policies.save_only_these_names('lockstep').

VMAP  One call for the whole batch.

ERRORS  A program that fails raises Lockstep's text, which names the rank at fault, as jax.errors.JaxRuntimeError, or as ValueError where
    JAX runs a program at once. The text begins with the code: UNAVAILABLE, ABORTED, ... What is wrong before a program runs is a
    lockstep.Error. A KeyboardInterrupt comes when the running program has ended, as always in JAX.

END  JAX's caches keep the communicators and reducers of programs: close() those that are no longer used.

EXIT  As the interpreter exits, communicators close and end the calls in flight, here and on the other ranks. Wait for results
    (block_until_ready) before the program ends.
"""

from lockstep.jax.collectives import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter, tie
from lockstep.jax.gradients import average_gradients, make_reducer

__all__ = ['all_gather', 'all_reduce', 'all_to_all', 'average_gradients', 'broadcast', 'make_reducer', 'reduce_scatter', 'tie']
