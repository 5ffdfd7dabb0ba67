// What keeps a device's stream busy in the place of a framework: as little as can be, or layers of a network.

#ifndef BENCH_OVERLAP_DEVICE_WORK_H_
#define BENCH_OVERLAP_DEVICE_WORK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "bench/gpu_kernels/device_kernels.h"

namespace lockstep {
namespace bench {

// Enqueues it and returns. On a GPU LaunchClockWatcher, on the host the stream's thread sleeps. Errors are those of a launch and of
// Stream::Enqueue.
absl::Status Occupy(Stream& stream, std::chrono::nanoseconds time);

// A product of two matrices of f32: work that wants a device's processors and memory, as the layers of a network do. Enqueues it and
// returns; the matrices are the stream's device's, and borrowed until it is done. An element is summed in the order of depth; a GPU
// rounds once where the host rounds a product and a sum. Errors as above.
absl::Status Matmul(Stream& stream, const MatmulArguments& arguments);

// How long a product takes: a part that is always the same, and one for each unit of depth. Pure.
struct MatmulCost {
  double launch_seconds = 0;
  double seconds_per_depth = 0;

  // From two measurements, the deeper product second. However they disturb each other, the same part is
  // at least nothing and at most half of that one's.
  static MatmulCost From(uint32_t depth, double seconds, uint32_t more_depth, double more_seconds);

  double SecondsOf(uint32_t depth) const { return launch_seconds + seconds_per_depth * depth; }
  // Of the product that comes nearest to `seconds`: at most `depth_max`; 0 where the time is too short for any.
  uint32_t DepthFor(double seconds, uint32_t depth_max) const;
};

// Layers of a network in the order of a stream: products of matrices that take as long as they are told. Used by one thread, as the
// stream is.
class MatmulWork {
 public:
  // Allocates matrices on the stream's device and measures there, by events, how long their products take. Ranks that share
  // a GPU do it side by side, so that it counts that they share it. Blocks until it is done. The stream must outlive it.
  static absl::StatusOr<std::unique_ptr<MatmulWork>> Create(Device* device, Stream* stream);
  // Waits for what was enqueued.
  ~MatmulWork();
  MatmulWork(const MatmulWork&) = delete;
  MatmulWork& operator=(const MatmulWork&) = delete;

  // Enqueues products that take about so long, when nothing competes. What they are short of it, or too long, is made up for
  // in the next call. Errors are Matmul's.
  absl::Status Enqueue(double seconds);

  const MatmulCost& cost() const { return cost_; }

 private:
  // Of the largest product; others are less deep.
  struct Shape {
    uint32_t rows;  // and columns
    uint32_t depth_max;
  };

  MatmulWork(Device* device, Stream* stream);
  absl::Status Allocate();
  absl::Status Calibrate();
  // Of several, one by one.
  absl::StatusOr<double> Measure(uint32_t depth);
  absl::Status EnqueueProduct(uint32_t depth);

  Device* const device_;
  Stream* const stream_;
  const Shape shape_;
  float* memory_ = nullptr;  // the operands, then the product
  MatmulCost cost_;
  double owed_seconds_ = 0;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_DEVICE_WORK_H_
