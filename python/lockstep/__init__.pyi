from lockstep.communicator import (
    AND as AND,
    ANY_SOURCE as ANY_SOURCE,
    ANY_TAG as ANY_TAG,
    AVG as AVG,
    CUDA as CUDA,
    EVERY_RANK as EVERY_RANK,
    HOST as HOST,
    MAX as MAX,
    MIN as MIN,
    OR as OR,
    PREMUL_SUM as PREMUL_SUM,
    PROD as PROD,
    SUM as SUM,
    XOR as XOR,
    Communicator as Communicator,
    Memory as Memory,
    Message as Message,
    Work as Work,
    init as init,
)
from lockstep.errors import (
    Aborted as Aborted,
    AlreadyExists as AlreadyExists,
    Cancelled as Cancelled,
    DataLoss as DataLoss,
    DeadlineExceeded as DeadlineExceeded,
    Error as Error,
    FailedPrecondition as FailedPrecondition,
    Internal as Internal,
    InvalidArgument as InvalidArgument,
    NotFound as NotFound,
    OutOfRange as OutOfRange,
    PermissionDenied as PermissionDenied,
    ResourceExhausted as ResourceExhausted,
    Unavailable as Unavailable,
    Unimplemented as Unimplemented,
)
from lockstep.reducer import (
    Parameter as Parameter,
    Reducer as Reducer,
    check_replicas as check_replicas,
)

__version__: str

def version_text() -> str: ...
