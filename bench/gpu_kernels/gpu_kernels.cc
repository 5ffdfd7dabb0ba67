// bazel run -c opt //bench/gpu_kernels: how near flatten and unflatten come to what the device can copy.
//
// Questions: which part of the device's copy bandwidth they reach on 500 MB and more of gradients, and how many
// microseconds a bucket takes beyond an empty launch and the time of its bytes. Bytes are counted read and written. A
// time is the median over the repetitions of CUDA's time between two events around the launch or launches, which are
// enqueued while the stream is kept busy; the arrays take turns, so that a bucket is read from memory and not from the
// cache. Exits with 77 where there is no GPU.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "bench/gpu_kernels/device_kernels.h"
#include "bench/model.h"
#include "bench/ranks.h"
#include "bench/report.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cuda/flatten.h"

ABSL_FLAG(int, device, 0, "which GPU");
ABSL_FLAG(int, repetitions, 31, "of each measurement");
ABSL_FLAG(std::vector<std::string>, models, std::vector<std::string>({"resnet50", "bert_large"}), "whose gradients");
ABSL_FLAG(int, list_mb, 512, "of f32 gradients at least, in MB: a model's list is repeated as often");
ABSL_FLAG(int, bucket_mib, 25, "of f32 gradients in a bucket");

namespace lockstep::bench {
namespace {

constexpr size_t kCopyBytes = size_t{1} << 30;
constexpr uint64_t kDelayNs = 300'000;
constexpr size_t kSlotAlignment = 256;

using Clock = std::chrono::steady_clock;
using Work = std::function<absl::Status(int repetition)>;

constexpr int kWarmups = 3;

// One for each repetition.
struct Timings {
  std::vector<double> us;       // on the device
  std::vector<double> host_us;  // of the call
};

class Bench {
 public:
  Bench(Device& device, Stream& stream) : device_(device), stream_(stream) {}
  ~Bench() {
    for (void* const memory : memory_) device_.Free(memory);
  }

  Stream& stream() { return stream_; }
  absl::Status Check(int code, const char* call) const { return CudaStatus(code, call, device_.id().index); }

  absl::StatusOr<char*> Allocate(size_t bytes) {
    LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, device_.Allocate(bytes));
    memory_.push_back(memory);
    return static_cast<char*>(memory);
  }

  absl::StatusOr<Timings> Time(const Work& work) {
    Timings timings;
    void* begin = nullptr;
    void* end = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(Check(CreateTimer(&begin), "cudaEventCreate"));
    LOCKSTEP_RETURN_IF_ERROR(Check(CreateTimer(&end), "cudaEventCreate"));
    for (int i = -kWarmups; i < absl::GetFlag(FLAGS_repetitions); ++i) {
      LOCKSTEP_RETURN_IF_ERROR(Check(LaunchClockWatcher(kDelayNs, stream_.native()), "delay"));
      LOCKSTEP_RETURN_IF_ERROR(Check(RecordTimer(begin, stream_.native()), "cudaEventRecord"));
      const Clock::time_point before = Clock::now();
      LOCKSTEP_RETURN_IF_ERROR(work(std::max(i, 0)));
      const std::chrono::duration<double, std::micro> host = Clock::now() - before;
      LOCKSTEP_RETURN_IF_ERROR(Check(RecordTimer(end, stream_.native()), "cudaEventRecord"));
      float ms = 0;
      LOCKSTEP_RETURN_IF_ERROR(Check(MillisecondsBetween(&ms, begin, end), "cudaEventElapsedTime"));
      if (i < 0) continue;  // the device's clock has yet to settle
      timings.us.push_back(1000.0 * ms);
      timings.host_us.push_back(host.count());
    }
    LOCKSTEP_RETURN_IF_ERROR(Check(DestroyTimer(begin), "cudaEventDestroy"));
    LOCKSTEP_RETURN_IF_ERROR(Check(DestroyTimer(end), "cudaEventDestroy"));
    return timings;
  }

 private:
  Device& device_;
  Stream& stream_;
  std::vector<void*> memory_;
};

// What the device can do, in bytes per microsecond and microseconds.
struct Limits {
  double bandwidth = 0;  // the better of CUDA's copy and the best kernel
  double empty_us = 0;
};

absl::StatusOr<Limits> MeasureLimits(Bench& bench) {
  Limits limits;
  LOCKSTEP_ASSIGN_OR_RETURN(char* const source, bench.Allocate(kCopyBytes));
  LOCKSTEP_ASSIGN_OR_RETURN(char* const target, bench.Allocate(kCopyBytes));
  const auto report = [&](const char* name, const Timings& timings) {
    const double us = Median(timings.us);
    const double bandwidth = 2.0 * kCopyBytes / us;
    limits.bandwidth = std::max(limits.bandwidth, bandwidth);
    std::printf("%-52s %8.1f us  %7.1f GB/s\n", name, us, bandwidth / 1000);
  };
  LOCKSTEP_ASSIGN_OR_RETURN(const Timings copy,
                            bench.Time([&](int) { return bench.stream().Copy(target, source, kCopyBytes); }));
  report("cudaMemcpyAsync of 1 GiB", copy);
  for (int kind = 0; kind < kCopyKinds; ++kind) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Timings kernel, bench.Time([&](int) {
      return bench.Check(LaunchCopy(kind, target, source, kCopyBytes, bench.stream().native()), "copy");
    }));
    report((std::string("copy kernel, ") + CopyKindName(kind)).c_str(), kernel);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const Timings empty, bench.Time([&](int) { return bench.Check(LaunchEmpty(bench.stream().native()), "empty"); }));
  limits.empty_us = Median(empty.us);
  std::printf("%-52s %8.2f us\n\n", "empty launch", limits.empty_us);
  return limits;
}

// A model's gradients, several times over, each an allocation's slot of its own; and buckets of them in reverse order.
struct Gradients {
  std::vector<TensorView> views;
  std::vector<kernels::BucketPiece> pieces;    // of one flat array
  std::vector<size_t> bucket_begins;           // pieces [begin, next begin)
  std::vector<kernels::BucketPiece> bucketed;  // with offsets in their bucket
  std::vector<size_t> bucket_elements;         // of the flat array
  size_t elements = 0;
  size_t flat_elements = 0;

  absl::Span<const kernels::BucketPiece> Bucket(size_t index) const {
    return absl::MakeConstSpan(bucketed).subspan(bucket_begins[index], bucket_begins[index + 1] - bucket_begins[index]);
  }
};

size_t Aligned(size_t elements, size_t element_bytes) {
  const size_t step = kSlotAlignment / element_bytes;
  return (elements + step - 1) / step * step;
}

absl::StatusOr<Gradients> MakeGradients(Bench& bench, const ModelTable& model, DeviceId device) {
  Gradients gradients;
  const size_t wanted = size_t{1000000} * absl::GetFlag(FLAGS_list_mb) / sizeof(float);
  const size_t bucket_elements = (size_t{1} << 20) * absl::GetFlag(FLAGS_bucket_mib) / sizeof(float);
  std::vector<size_t> counts;
  size_t total = 0;
  while (gradients.elements < wanted) {
    for (auto parameter = model.parameters.rbegin(); parameter != model.parameters.rend(); ++parameter) {
      counts.push_back(parameter->elements());
      gradients.elements += counts.back();
      total += Aligned(counts.back(), sizeof(float));
    }
  }
  LOCKSTEP_ASSIGN_OR_RETURN(char* const memory, bench.Allocate(total * sizeof(float)));
  size_t begin = 0;
  for (const size_t count : counts) {
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, TensorView::Create(memory + begin * sizeof(float), DType::kF32,
                                                                  {static_cast<int64_t>(count)}, {}, device));
    gradients.views.push_back(view);
    begin += Aligned(count, sizeof(float));
  }
  size_t in_bucket = 0;
  size_t bucket_offset = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    kernels::BucketPiece piece;
    piece.view = &gradients.views[i];
    piece.offset = gradients.flat_elements;
    gradients.pieces.push_back(piece);
    gradients.flat_elements += Aligned(counts[i], sizeof(uint16_t));
    if (in_bucket == 0) gradients.bucket_begins.push_back(i);
    piece.offset = bucket_offset;
    gradients.bucketed.push_back(piece);
    bucket_offset += Aligned(counts[i], sizeof(uint16_t));
    in_bucket += counts[i];
    if (in_bucket < bucket_elements && i + 1 < counts.size()) continue;
    gradients.bucket_elements.push_back(in_bucket);
    in_bucket = bucket_offset = 0;
  }
  gradients.bucket_begins.push_back(counts.size());
  return gradients;
}

struct Operation {
  const char* name;
  bool to_flat;
  DType flat_dtype;
  double factor;
};

const Operation kOperations[] = {
    {"flatten f32 scaled", true, DType::kF32, 0.125},       {"flatten f32 copied", true, DType::kF32, 1},
    {"flatten f32 to bf16", true, DType::kBF16, 0.125},     {"flatten f32 to f16", true, DType::kF16, 0.125},
    {"flatten f32 to f8e4m3", true, DType::kF8E4M3, 0.125}, {"unflatten f32 scaled", false, DType::kF32, 0.125},
    {"unflatten bf16 to f32", false, DType::kBF16, 0.125},  {"unflatten f16 to f32", false, DType::kF16, 0.125},
};

absl::Status Run(const Operation& operation, absl::Span<const kernels::BucketPiece> pieces, void* flat,
                 Stream& stream) {
  return operation.to_flat
             ? kernels::cuda::FlattenViews(pieces, {}, flat, operation.flat_dtype, operation.factor, stream)
             : kernels::cuda::UnflattenViews(pieces, flat, operation.flat_dtype, operation.factor, nullptr, stream);
}

absl::Status MeasureModel(Bench& bench, const ModelTable& model, const Limits& limits, DeviceId device) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Gradients gradients, MakeGradients(bench, model, device));
  LOCKSTEP_ASSIGN_OR_RETURN(char* const flat, bench.Allocate(gradients.flat_elements * sizeof(float)));
  std::printf("%s: %zu gradients, %.0f MB in f32, %zu buckets\n", model.name.c_str(), gradients.pieces.size(),
              gradients.elements * sizeof(float) / 1e6, gradients.bucket_elements.size());
  std::printf("%-24s %9s %9s %7s %9s | %9s %9s %9s %9s\n", "", "us", "GB/s", "of copy", "host us", "bucket us",
              "of bytes", "beyond us", "host us");
  for (const Operation& operation : kOperations) {
    const size_t element_bytes = sizeof(float) + SizeOf(operation.flat_dtype);
    LOCKSTEP_ASSIGN_OR_RETURN(const Timings list,
                              bench.Time([&](int) { return Run(operation, gradients.pieces, flat, bench.stream()); }));
    const double list_us = Median(list.us);
    const double bandwidth = gradients.elements * element_bytes / list_us;
    // One bucket after the other, so that each is read from memory.
    const size_t buckets = gradients.bucket_elements.size();
    LOCKSTEP_ASSIGN_OR_RETURN(const Timings bucket, bench.Time([&](int repetition) {
      return Run(operation, gradients.Bucket(repetition % buckets), flat, bench.stream());
    }));
    std::vector<double> bytes_us;
    std::vector<double> beyond_us;
    for (size_t i = 0; i < bucket.us.size(); ++i) {
      bytes_us.push_back(gradients.bucket_elements[i % buckets] * element_bytes / limits.bandwidth);
      beyond_us.push_back(bucket.us[i] - limits.empty_us - bytes_us.back());
    }
    std::printf("%-24s %9.1f %9.1f %6.1f%% %9.1f | %9.2f %9.2f %9.2f %9.2f\n", operation.name, list_us,
                bandwidth / 1000, 100 * bandwidth / limits.bandwidth, Median(list.host_us), Median(bucket.us),
                Median(bytes_us), Median(beyond_us), Median(bucket.host_us));
  }
  std::printf("\n");
  return absl::OkStatus();
}

absl::Status MeasureAll() {
  LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(absl::GetFlag(FLAGS_device)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("bench"));
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(UseDevice(device->id().index), "cudaSetDevice", device->id().index));
  LOCKSTEP_ASSIGN_OR_RETURN(const Limits limits, [&]() -> absl::StatusOr<Limits> {
    Bench bench(*device, *stream);
    return MeasureLimits(bench);
  }());
  for (const std::string& name : absl::GetFlag(FLAGS_models)) {
    LOCKSTEP_ASSIGN_OR_RETURN(const ModelTable model, FindModel(name));
    Bench bench(*device, *stream);
    LOCKSTEP_RETURN_IF_ERROR(MeasureModel(bench, model, limits, device->id()));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  ParseFlags(argc, argv, "How near flatten and unflatten on a GPU come to what it can copy.");
  const absl::Status status = MeasureAll();
  return status.ok() ? 0 : Complain(status, absl::IsUnavailable(status) ? kSkipped : kFailed);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }
