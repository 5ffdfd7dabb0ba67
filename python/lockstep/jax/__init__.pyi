from lockstep.jax.collectives import (
    all_gather as all_gather,
    all_reduce as all_reduce,
    all_to_all as all_to_all,
    broadcast as broadcast,
    reduce_scatter as reduce_scatter,
    tie as tie,
)
from lockstep.jax.gradients import average_gradients as average_gradients
from lockstep.jax.gradients import make_reducer as make_reducer
