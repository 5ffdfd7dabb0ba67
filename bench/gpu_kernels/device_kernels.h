// What benchmarks need of CUDA beyond base/device/device.h: events that tell the time, and kernels that ours are compared with or that
// stand for a framework's. Defined by device_kernels.cu or, in a build without CUDA, by device_kernels_stub.cc.
//
// All act on the current device and return CUDA's code, 0 for success. Streams and events are CUDA's.

#ifndef BENCH_GPU_KERNELS_DEVICE_KERNELS_H_
#define BENCH_GPU_KERNELS_DEVICE_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace lockstep::bench {

int UseDevice(int device);
int CreateTimer(void** event);
int DestroyTimer(void* event);
int RecordTimer(void* event, void* stream);
// Waits for the second.
int MillisecondsBetween(float* ms, void* begin, void* end);

// One block that does nothing.
int LaunchEmpty(void* stream);
// One thread that watches the device's clock for so long. It leaves memory and all but one multiprocessor to others.
int LaunchClockWatcher(uint64_t nanoseconds, void* stream);

// Simple copies of `bytes`, a multiple of 16, by vectors of 16 bytes; `kind` selects hints and how much a block does.
inline constexpr int kCopyKinds = 6;
const char* CopyKindName(int kind);
int LaunchCopy(int kind, void* target, const void* source, size_t bytes, void* stream);

}  // namespace lockstep::bench

#endif  // BENCH_GPU_KERNELS_DEVICE_KERNELS_H_
