// What benchmarks need of CUDA beyond base/device/device.h: events that tell the time, kernels that ours are compared with, and
// kernels that stand for a framework's. Defined by device_kernels.cu or, in a build without CUDA, by device_kernels_stub.cc. All
// act on the current device and return CUDA's code, 0 for success; streams and events are CUDA's.

#ifndef BENCH_GPU_KERNELS_DEVICE_KERNELS_H_
#define BENCH_GPU_KERNELS_DEVICE_KERNELS_H_

#include <cstddef>
#include <cstdint>

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
// One thread that looks at the device's clock for so long, and so leaves memory and all but one multiprocessor to others.
int LaunchClockWatcher(uint64_t nanoseconds, void* stream);

// Simple copies of `bytes`, a multiple of 16, by vectors of 16 bytes; `kind` selects hints and how much a block does.
inline constexpr int kCopyKinds = 6;
const char* CopyKindName(int kind);
int LaunchCopy(int kind, void* target, const void* source, size_t bytes, void* stream);

// product = left x right. Matrices are row by row, without gaps; the product overlaps no operand. None is empty.
struct MatmulArguments {
  const float* left = nullptr;   // rows x depth
  const float* right = nullptr;  // depth x columns
  float* product = nullptr;      // rows x columns
  uint32_t rows = 0;
  uint32_t columns = 0;
  uint32_t depth = 0;
};

// A plain tiled kernel of our own, so that it needs no library. It is slower than a vendor's, and is there to compete with
// communication, not to be measured. An element is summed in the order of depth.
int LaunchMatmul(const MatmulArguments& arguments, void* stream);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_GPU_KERNELS_DEVICE_KERNELS_H_
