from typing import Any

import torch
from torch.distributed import ProcessGroup

class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    process_group: ProcessGroup | None
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: ProcessGroup | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...
    def forward(self, x: torch.Tensor) -> torch.Tensor: ...
    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module, process_group: ProcessGroup | None = None) -> torch.nn.Module: ...
