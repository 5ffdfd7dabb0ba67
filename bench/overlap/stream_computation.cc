#include "bench/overlap/stream_computation.h"

#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "bench/overlap/occupy.h"

namespace lockstep {
namespace bench {
namespace {

constexpr std::chrono::seconds kPatience{60};  // for what a few steps compute

class StreamComputation : public Computation {
 public:
  StreamComputation(const ComputePlan& plan, Stream* stream, StreamWork work)
      : plan_(plan), stream_(stream), work_(std::move(work)) {}

  void Begin() override {}
  void Forward() override { Compute(plan_.forward_seconds); }
  void Backward(size_t parameter) override { Compute(plan_.backward_seconds[parameter]); }
  absl::Status Finish() override {
    if (!status_.ok()) return status_;
    return stream_->Synchronize(Deadline::After(kPatience));
  }

 private:
  void Compute(double seconds) {
    if (seconds > 0) status_.Update(work_(seconds));
  }

  const ComputePlan plan_;
  Stream* const stream_;
  const StreamWork work_;
  absl::Status status_;  // the first error of issuing
};

}  // namespace

StreamWork ClockWork(Stream* stream) {
  return [stream](double seconds) {
    return Occupy(*stream, std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
  };
}

std::unique_ptr<Computation> MakeStreamComputation(const ComputePlan& plan, Stream* stream, StreamWork work) {
  return std::make_unique<StreamComputation>(plan, stream, std::move(work));
}

}  // namespace bench
}  // namespace lockstep
