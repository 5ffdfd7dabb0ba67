#define LOCKSTEP_TO F32
#include "kernels/cuda/device_transfers_inl.h"
