#include "base/device/cuda/cuda_api.h"
#include "bench/gpu_kernels/device_kernels.h"

namespace lockstep::bench {

int UseDevice(int) { return kCudaNotSupported; }
int CreateTimer(void**) { return kCudaNotSupported; }
int DestroyTimer(void*) { return kCudaNotSupported; }
int RecordTimer(void*, void*) { return kCudaNotSupported; }
int MillisecondsBetween(float*, void*, void*) { return kCudaNotSupported; }
int LaunchEmpty(void*) { return kCudaNotSupported; }
int LaunchClockWatcher(uint64_t, void*) { return kCudaNotSupported; }
const char* CopyKindName(int) { return ""; }
int LaunchCopy(int, void*, const void*, size_t, void*) { return kCudaNotSupported; }

}  // namespace lockstep::bench
