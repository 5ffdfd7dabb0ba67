// The host's kernels for buckets as kernels of the fake CUDA's (base/device/cuda/cuda_api_testing.h): in streams that are captured,
// too, where the host's own, which are closures, are refused.

#ifndef TESTS_FAKE_CUDA_KERNELS_H_
#define TESTS_FAKE_CUDA_KERNELS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api_testing.h"
#include "base/device/device.h"
#include "base/types/dtype.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cpu/bucket_kernels.h"

namespace lockstep {

// Thread-safe. The fake outlives it, and what it launches.
class FakeCudaKernels : public kernels::BucketKernels {
 public:
  explicit FakeCudaKernels(FakeCuda* cuda) : cuda_(cuda) {}

  absl::Status Gather(absl::Span<const kernels::BucketPiece> pieces, absl::Span<const kernels::BucketEntry> entries,
                      void* flat, DType flat_dtype, double factor, Stream& stream) const override {
    Launches launches(cuda_, &stream);
    return kernels::HostBucketKernels()->Gather(pieces, entries, flat, flat_dtype, factor, launches);
  }
  absl::Status Spread(absl::Span<const kernels::BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                      const kernels::BucketGate& gate, Stream& stream) const override {
    Launches launches(cuda_, &stream);
    return kernels::HostBucketKernels()->Spread(pieces, flat, flat_dtype, factor, gate, launches);
  }

 private:
  // A stream whose closures are kernels; the host's kernels ask it for nothing else.
  class Launches : public Stream {
   public:
    Launches(FakeCuda* cuda, Stream* stream) : cuda_(cuda), stream_(stream) {}

    DeviceId device() const override { return stream_->device(); }
    absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) override {
      // A graph runs it again and again.
      const auto kernel = std::make_shared<absl::AnyInvocable<absl::Status()>>(std::move(work));
      const int code = cuda_->LaunchKernel(stream_->native(), [kernel] { LOCKSTEP_CHECK((*kernel)().ok()); });
      return code == 0 ? absl::OkStatus() : absl::InternalError("the kernel was not launched");
    }
    absl::Status Copy(void*, const void*, size_t) override { return Unasked(); }
    absl::Status Record(Event*) override { return Unasked(); }
    absl::Status Wait(Event*) override { return Unasked(); }
    absl::Status AwaitValue(const std::atomic<uint32_t>*, uint32_t) override { return Unasked(); }
    absl::Status WriteValue(std::atomic<uint32_t>*, uint32_t) override { return Unasked(); }
    absl::Status Synchronize(Deadline) override { return Unasked(); }
    absl::Status status() const override { return Unasked(); }

   private:
    static absl::Status Unasked() { return absl::UnimplementedError("only kernels are launched here"); }

    FakeCuda* const cuda_;
    Stream* const stream_;
  };

  FakeCuda* const cuda_;
};

}  // namespace lockstep

#endif  // TESTS_FAKE_CUDA_KERNELS_H_
