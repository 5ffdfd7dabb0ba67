#include "bench/overlap/device_work.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/status.h"
#include "bench/measure.h"

namespace lockstep {
namespace bench {
namespace {

constexpr std::chrono::seconds kPatience{60};  // for what a step computes
constexpr double kMeasuredSeconds = 0.02;      // so that what the host adds to events counts for little
constexpr int kProductsMax = 1000;

// Row by row, so that the inner loop goes along rows of memory.
void MultiplyOnHost(const MatmulArguments& matrices) {
  for (size_t row = 0; row < matrices.rows; ++row) {
    float* const product = matrices.product + row * matrices.columns;
    std::fill(product, product + matrices.columns, 0.0F);
    for (size_t d = 0; d < matrices.depth; ++d) {
      const float left = matrices.left[row * matrices.depth + d];
      const float* const right = matrices.right + d * matrices.columns;
      for (size_t column = 0; column < matrices.columns; ++column) product[column] += left * right[column];
    }
  }
}

}  // namespace

absl::Status Occupy(Stream& stream, std::chrono::nanoseconds time) {
  const DeviceId device = stream.device();
  if (device.kind == DeviceKind::kHost) {
    return stream.Enqueue([time] {
      std::this_thread::sleep_for(time);
      return absl::OkStatus();
    });
  }
  const CudaGuard guard(TheCudaApi(), device.index);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  const int code = LaunchClockWatcher(static_cast<uint64_t>(time.count()), stream.native());
  return CudaStatus(code, "launch of a kernel that watches the clock", device.index);
}

absl::Status Matmul(Stream& stream, const MatmulArguments& arguments) {
  const DeviceId device = stream.device();
  if (device.kind == DeviceKind::kHost) {
    return stream.Enqueue([arguments] {
      MultiplyOnHost(arguments);
      return absl::OkStatus();
    });
  }
  const CudaGuard guard(TheCudaApi(), device.index);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  const int code = LaunchMatmul(arguments, stream.native());
  return CudaStatus(code, "launch of a product of matrices", device.index);
}

MatmulCost MatmulCost::From(uint32_t depth, double seconds, uint32_t more_depth, double more_seconds) {
  const double average = more_seconds / more_depth;
  MatmulCost cost;
  cost.seconds_per_depth = std::clamp((more_seconds - seconds) / (more_depth - depth), average / 2, average);
  cost.launch_seconds = more_seconds - cost.seconds_per_depth * more_depth;
  return cost;
}

uint32_t MatmulCost::DepthFor(double seconds, uint32_t depth_max) const {
  const double depth = std::round((seconds - launch_seconds) / seconds_per_depth);
  return static_cast<uint32_t>(std::clamp(depth, 0.0, static_cast<double>(depth_max)));
}

absl::StatusOr<std::unique_ptr<MatmulWork>> MatmulWork::Create(Device* device, Stream* stream) {
  std::unique_ptr<MatmulWork> work(new MatmulWork(device, stream));
  LOCKSTEP_RETURN_IF_ERROR(work->Allocate());
  LOCKSTEP_RETURN_IF_ERROR(work->Calibrate());
  return work;
}

MatmulWork::MatmulWork(Device* device, Stream* stream)
    : device_(device),
      stream_(stream),
      // On a GPU 1,024 blocks, several for each of its processors, and operands of 64 MiB.
      shape_(device->id().kind == DeviceKind::kHost ? Shape{64, 256} : Shape{2048, 4096}) {}

MatmulWork::~MatmulWork() {
  if (memory_ == nullptr) return;
  // Where it fails nothing runs any more.
  stream_->Synchronize(Deadline::After(kPatience)).IgnoreError();
  device_->Free(memory_);
}

absl::Status MatmulWork::Allocate() {
  const size_t operand = size_t{shape_.rows} * shape_.depth_max;
  const size_t product = size_t{shape_.rows} * shape_.rows;
  LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, device_->Allocate((2 * operand + product) * sizeof(float)));
  memory_ = static_cast<float*>(memory);
  // Sums stay small; zeros would let a device run faster than real operands do.
  std::vector<float> values(2 * operand);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) / 16 - 0.5F;
  LOCKSTEP_RETURN_IF_ERROR(stream_->Copy(memory_, values.data(), values.size() * sizeof(float)));
  return stream_->Synchronize(Deadline::After(kPatience));
}

absl::Status MatmulWork::Calibrate() {
  // What is done once is done here: kernels are loaded, clocks rise.
  LOCKSTEP_RETURN_IF_ERROR(Measure(shape_.depth_max).status());
  const uint32_t depth = shape_.depth_max / 4;
  LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, Measure(depth));
  LOCKSTEP_ASSIGN_OR_RETURN(const double more_seconds, Measure(shape_.depth_max));
  cost_ = MatmulCost::From(depth, seconds, shape_.depth_max, more_seconds);
  return absl::OkStatus();
}

absl::StatusOr<double> MatmulWork::Measure(uint32_t depth) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Event> begun, device_->CreateEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Event> done, device_->CreateEvent());
  // Twice as many until they take long enough.
  for (int products = 1;; products *= 2) {
    LOCKSTEP_RETURN_IF_ERROR(EnqueueProduct(depth));
    LOCKSTEP_RETURN_IF_ERROR(stream_->Record(begun.get()));
    for (int i = 0; i < products; ++i) LOCKSTEP_RETURN_IF_ERROR(EnqueueProduct(depth));
    LOCKSTEP_RETURN_IF_ERROR(stream_->Record(done.get()));
    LOCKSTEP_RETURN_IF_ERROR(begun->Synchronize(Deadline::After(kPatience)));
    const auto begin = std::chrono::steady_clock::now();
    LOCKSTEP_RETURN_IF_ERROR(done->Synchronize(Deadline::After(kPatience)));
    const double seconds = SecondsSince(begin);
    if (seconds >= kMeasuredSeconds || products >= kProductsMax) return seconds / products;
  }
}

absl::Status MatmulWork::EnqueueProduct(uint32_t depth) {
  const size_t operand = size_t{shape_.rows} * shape_.depth_max;
  MatmulArguments arguments;
  arguments.left = memory_;
  arguments.right = memory_ + operand;
  arguments.product = memory_ + 2 * operand;
  arguments.rows = shape_.rows;
  arguments.columns = shape_.rows;
  arguments.depth = depth;
  return Matmul(*stream_, arguments);
}

absl::Status MatmulWork::Enqueue(double seconds) {
  owed_seconds_ += seconds;
  while (const uint32_t depth = cost_.DepthFor(owed_seconds_, shape_.depth_max)) {
    LOCKSTEP_RETURN_IF_ERROR(EnqueueProduct(depth));
    owed_seconds_ -= cost_.SecondsOf(depth);
  }
  return absl::OkStatus();
}

}  // namespace bench
}  // namespace lockstep
