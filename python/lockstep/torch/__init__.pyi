from lockstep.torch.launched import init as init
from lockstep.torch.parallel import DistributedDataParallel as DistributedDataParallel
from lockstep.torch.replicas import DriftWarning as DriftWarning
from lockstep.torch.replicas import check_replicas as check_replicas
from lockstep.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
