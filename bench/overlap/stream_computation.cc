#include "bench/overlap/stream_computation.h"

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "bench/overlap/occupy.h"

namespace lockstep {
namespace bench {
namespace {

constexpr std::chrono::seconds kPatience{60};  // for what a few steps compute

class StreamComputation : public Computation {
 public:
  StreamComputation(const ComputePlan& plan, Stream* stream) : plan_(plan), stream_(stream) {}

  void Begin() override {}
  void Forward() override { Compute(plan_.forward_seconds); }
  void Backward(size_t parameter) override { Compute(plan_.backward_seconds[parameter]); }
  absl::Status Finish() override {
    if (!status_.ok()) return status_;
    return stream_->Synchronize(Deadline::After(kPatience));
  }

 private:
  void Compute(double seconds) {
    const auto time = std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
    if (time.count() > 0) status_.Update(Occupy(*stream_, time));
  }

  const ComputePlan plan_;
  Stream* const stream_;
  absl::Status status_;  // the first error of issuing
};

}  // namespace

std::unique_ptr<Computation> MakeStreamComputation(const ComputePlan& plan, Stream* stream) {
  return std::make_unique<StreamComputation>(plan, stream);
}

}  // namespace bench
}  // namespace lockstep
