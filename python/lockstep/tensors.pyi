from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from typing_extensions import Buffer

class _DLPack(Protocol):
    def __dlpack__(self) -> Any: ...

class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

_Array: TypeAlias = Buffer | _DLPack | _CudaArray | Tensor

NAMES: dict[str, int]

class Tensor:
    c: Any
    shape: Any
    owner: Any
    elements: int
    def __init__(
        self, address: int, dtype: int, shape: Sequence[int], owner: Any, device_kind: int = ..., device_index: int = 0
    ) -> None: ...

def read(array: _Array, name: str, writable: bool, any_dtype: bool = False) -> Tensor: ...
def read_two(input: _Array, output: _Array) -> tuple[Tensor, Tensor]: ...
def read_bytes(data: Buffer, name: str) -> Tensor: ...
