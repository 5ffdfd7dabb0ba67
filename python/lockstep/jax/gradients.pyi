from typing import Any, TypeVar

from jax import Array

from lockstep.communicator import Communicator
from lockstep.reducer import Reducer

_Tree = TypeVar('_Tree')

def make_reducer(parameters: Any, communicator: Communicator, **options: Any) -> Reducer: ...
def average_gradients(gradients: _Tree, reducer: Reducer, token: Array | None = None) -> tuple[_Tree, Array]: ...
