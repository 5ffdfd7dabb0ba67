from typing import Any

HOST: int
CUDA: int

class Memory:
    bytes: int
    address: int
    is_shared: bool
    def __init__(self, c: Any, device_kind: int = ..., device_index: int = 0) -> None: ...
    @property
    def buffer(self) -> Any: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
