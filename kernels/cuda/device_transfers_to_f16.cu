#define LOCKSTEP_TO F16
#include "kernels/cuda/device_transfers_inl.h"
