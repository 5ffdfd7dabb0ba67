from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from typing_extensions import Unpack

from lockstep.errors import Error
from lockstep.memory import CUDA as CUDA
from lockstep.memory import HOST as HOST
from lockstep.memory import Memory as Memory
from lockstep.objects import ANY_SOURCE as ANY_SOURCE
from lockstep.objects import ANY_TAG as ANY_TAG
from lockstep.objects import EVERY_RANK as EVERY_RANK
from lockstep.objects import ObjectCalls
from lockstep.tensors import Tensor, _Array
from lockstep.works import Message as Message
from lockstep.works import Work as Work

SUM: int
AVG: int
PREMUL_SUM: int
PROD: int
MIN: int
MAX: int
AND: int
OR: int
XOR: int

class _Options(TypedDict, total=False):
    timeout: float | None
    algorithm: str | None
    factor: float | None
    asynchronous: bool
    stream: Any

def read_list(given: Iterable[_Array], name: str, writable: bool, any_dtype: bool = False) -> tuple[Any, list[Tensor]]: ...
def own(c: Any, destroy: Any, kept: Any = ...) -> tuple[Any, list[Any]]: ...

class Communicator(ObjectCalls):
    rank: int
    size: int
    def __init__(self, c: Any, device_index: int | None = None) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Communicator: ...
    def __exit__(self, *_: object) -> None: ...
    def status(self) -> Error | None: ...
    def abort(self, reason: str) -> None: ...
    def set_timeout(self, seconds: float) -> None: ...
    def describe(self) -> str: ...
    def flight_records(self) -> str: ...
    # With asynchronous=True a Work, else None.
    def all_reduce(self, input: _Array, output: _Array | None = None, op: int = ..., **options: Unpack[_Options]) -> Any: ...
    def broadcast(self, tensor: _Array, root: int = 0, **options: Unpack[_Options]) -> Any: ...
    def reduce(
        self, input: _Array, output: _Array | None = None, op: int = ..., root: int = 0, **options: Unpack[_Options]
    ) -> Any: ...
    def all_gather(
        self, input: _Array, output: _Array, counts: Sequence[int] | None = None, **options: Unpack[_Options]
    ) -> Any: ...
    def reduce_scatter(
        self, input: _Array, output: _Array, op: int = ..., counts: Sequence[int] | None = None, **options: Unpack[_Options]
    ) -> Any: ...
    def all_to_all(
        self,
        input: _Array,
        output: _Array,
        input_counts: Sequence[int] | None = None,
        output_counts: Sequence[int] | None = None,
        **options: Unpack[_Options],
    ) -> Any: ...
    def gather(
        self,
        input: _Array,
        output: _Array | None = None,
        counts: Sequence[int] | None = None,
        root: int = 0,
        **options: Unpack[_Options],
    ) -> Any: ...
    def scatter(
        self,
        input: _Array | None,
        output: _Array,
        counts: Sequence[int] | None = None,
        root: int = 0,
        **options: Unpack[_Options],
    ) -> Any: ...
    def barrier(self, **options: Unpack[_Options]) -> Any: ...
    def monitored_barrier(self, timeout: float | None = None) -> None: ...
    def all_reduce_coalesced(
        self, inputs: Sequence[_Array], outputs: Sequence[_Array] | None = None, op: int = ..., **options: Unpack[_Options]
    ) -> Any: ...
    def broadcast_coalesced(self, tensor_list: Sequence[_Array], root: int = 0, **options: Unpack[_Options]) -> Any: ...
    def all_gather_coalesced(
        self, inputs: Sequence[_Array], outputs: Sequence[_Array], **options: Unpack[_Options]
    ) -> Any: ...
    def reduce_scatter_coalesced(
        self, inputs: Sequence[_Array], outputs: Sequence[_Array], op: int = ..., **options: Unpack[_Options]
    ) -> Any: ...
    def send(
        self, tensor: _Array, target: int, tag: int = 0, timeout: float | None = None, asynchronous: bool = False
    ) -> Any: ...
    # A Message; with asynchronous=True a Work.
    def receive(
        self,
        tensor: _Array,
        source: int = ...,
        tag: int = ...,
        timeout: float | None = None,
        asynchronous: bool = False,
    ) -> Any: ...
    def split(self, color: int, key: int = 0) -> Communicator | None: ...
    def duplicate(self) -> Communicator: ...
    def mesh(self, **dimensions: int) -> dict[str, Communicator]: ...
    def allocate(self, bytes: int, device_kind: int = ...) -> Memory: ...

def init(
    *,
    world_size: int | None = None,
    rank: int | None = None,
    local_world_size: int | None = None,
    local_rank: int | None = None,
    store_url: str | None = None,
    store: Any = None,
    job_id: str | None = None,
    network_interface: str | None = None,
    host_id: str | None = None,
    setup_timeout_ms: int | None = None,
    timeout_ms: int | None = None,
    peer_timeout_ms: int | None = None,
    transport: str | None = None,
    algorithm: str | None = None,
    chunk_bytes: int | None = None,
    deterministic: bool | None = None,
    checked: bool | None = None,
    device_kind: int | None = None,
    device_index: int | None = None,
    device_backend: str | None = None,
    tcp_congestion_control: str | None = None,
    tcp_send_buffer_bytes: int | None = None,
    tcp_receive_buffer_bytes: int | None = None,
    tcp_sockets: int | None = None,
    tcp_zero_copy: bool | None = None,
    nccl_ctas_min: int | None = None,
    nccl_ctas_max: int | None = None,
    nccl_split_share: bool | None = None,
    ofi_provider: str | None = None,
    security: str | None = None,
    secret_file: str | None = None,
) -> Communicator: ...
