from lockstep.torch.launched import init as init
from lockstep.torch.parallel import DistributedDataParallel as DistributedDataParallel
from lockstep.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
