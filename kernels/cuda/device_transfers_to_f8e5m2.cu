#define LOCKSTEP_TO F8E5M2
#include "kernels/cuda/device_transfers_inl.h"
