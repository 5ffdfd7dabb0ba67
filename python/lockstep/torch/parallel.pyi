from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import distributed as ddp

from lockstep.errors import DataLoss

class DistributedDataParallel(ddp.DistributedDataParallel):
    module: torch.nn.Module
    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        param_to_hook_all_reduce: torch.nn.Parameter | None = None,
        mixed_precision: Any = None,
        device_mesh: DeviceMesh | None = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        lazy_bucket_allocation: bool = False,
        optimizer_step: Callable[[list[torch.nn.Parameter]], object] | None = None,
        on_drift: Callable[[DataLoss], object] | Literal['warn', 'raise'] | None = 'warn',
        may_drift: Iterable[str] = (),
        **reducer_options: Any,
    ) -> None: ...
    def close(self) -> None: ...
    def abort(self, reason: str) -> None: ...
    def forward(self, *inputs: Any, **kwargs: Any) -> Any: ...
    def prepare_for_backward(self, outputs: Any) -> Any: ...
    @property
    def reducer(self) -> Any: ...
    @property
    def modules_buffers(self) -> list[torch.Tensor]: ...
    @property
    def named_module_buffers(self) -> dict[str, torch.Tensor]: ...
    def average_gradients(self) -> None: ...
    def check_replicas(self, optimizer: torch.optim.Optimizer | None = None) -> None: ...
    def gradient_states(self) -> dict[str, str]: ...
    def will_sync_module_buffers(self) -> bool: ...
    def register_comm_hook(self, state: Any, hook: Callable[..., Any] | str) -> None: ...
    def join_hook(self, **kwargs: Any) -> Any: ...
    @property
    def require_manual_backward_finalization(self) -> bool: ...
    @require_manual_backward_finalization.setter
    def require_manual_backward_finalization(self, required: bool) -> None: ...
    @property
    def should_finalize_after_backward(self) -> bool: ...
    def finalize_backward(self) -> None: ...
