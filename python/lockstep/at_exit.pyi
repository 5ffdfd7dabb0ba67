from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from lockstep.communicator import Communicator

class _Closes(Protocol):
    def close(self) -> None: ...

_Function = TypeVar('_Function', bound=Callable[..., Any])

communicators: WeakSet[Communicator]
made_from_communicators: WeakSet[_Closes]

def expect_callback(handle: Any, kept: Any) -> None: ...
def callback_came(handle: Any) -> None: ...
def called_by_library(function: _Function) -> _Function: ...
def close_all() -> None: ...
