#define LOCKSTEP_TO BF16
#include "kernels/cuda/device_transfers_inl.h"
