#define LOCKSTEP_TO F64
#include "kernels/cuda/device_transfers_inl.h"
