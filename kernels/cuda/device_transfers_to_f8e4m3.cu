#define LOCKSTEP_TO F8E4M3
#include "kernels/cuda/device_transfers_inl.h"
