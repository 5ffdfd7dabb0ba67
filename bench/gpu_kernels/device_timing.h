// What a benchmark needs of CUDA beyond base/device.h: events that tell the time, and the kernels that ours are
// compared with. Defined by device_timing.cu or, in a build without CUDA, by device_timing_stub.cc. All act on the
// current device and return CUDA's code, 0 for success; streams and events are CUDA's.

#ifndef BENCH_GPU_KERNELS_DEVICE_TIMING_H_
#define BENCH_GPU_KERNELS_DEVICE_TIMING_H_

#include <cstddef>

namespace lockstep {
namespace bench {

int UseDevice(int device);
int CreateTimer(void** event);
int DestroyTimer(void* event);
int RecordTimer(void* event, void* stream);
// Waits for the second.
int MillisecondsBetween(float* ms, void* begin, void* end);

// One block that does nothing.
int LaunchEmpty(void* stream);
// Keeps the stream busy for about so long, so that what is enqueued meanwhile runs back to back.
int LaunchDelay(int microseconds, void* stream);

// Simple copies of `bytes`, a multiple of 16, by vectors of 16 bytes; `kind` selects hints and how much a block does.
inline constexpr int kCopyKinds = 6;
const char* CopyKindName(int kind);
int LaunchCopy(int kind, void* target, const void* source, size_t bytes, void* stream);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_GPU_KERNELS_DEVICE_TIMING_H_
