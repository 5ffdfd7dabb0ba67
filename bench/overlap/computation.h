// Stands in for a framework that computes: takes as long as a plan says, and fills in gradients.

#ifndef BENCH_OVERLAP_COMPUTATION_H_
#define BENCH_OVERLAP_COMPUTATION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "bench/model.h"

namespace lockstep {
namespace bench {

// How long a replayed model computes before each of its gradients is there.
struct ComputePlan {
  double forward_seconds = 0;
  // By parameter: from the gradient before, in the reverse order of definition, to this one.
  std::vector<double> backward_seconds;

  double total_seconds() const;
};

// Shares `total_seconds` out by multiplications. Backward has two where forward has one, for the gradients of a layer's
// input and of its weights (Kaplan et al., arXiv:2001.08361, section 2.1), so forward takes a third of it all.
ComputePlan PlanCompute(const ModelTable& model, double total_seconds);

enum class ComputeKind {
  kBusy,  // arithmetic on the calling thread, as a framework that computes on processors does
  kAway,  // sleep until it is done, as when an accelerator computes
  // In the order of a stream, as on an accelerator whose streams we know:
  kStream,  // a clock is watched, which leaves the device to communication
  kMatmul,  // matrices are multiplied (bench/overlap/device_work.h), and compete with it
};

// "busy", "away", "stream", "matmul". INVALID_ARGUMENT for anything else.
absl::StatusOr<ComputeKind> ParseComputeKind(absl::string_view text);
const char* Name(ComputeKind kind);
// Whether it needs a stream.
bool ComputesOnStream(ComputeKind kind);

// Used by one thread. A step is Begin, Forward, and Backward of every parameter in the reverse order of definition. Finish
// comes behind some steps.
class Computation {
 public:
  virtual ~Computation() = default;
  Computation(const Computation&) = delete;
  Computation& operator=(const Computation&) = delete;

  virtual void Begin() = 0;
  // These return when their part of the plan is done or, on a stream, issued.
  virtual void Forward() = 0;
  virtual void Backward(size_t parameter) = 0;
  // Returns when all that was issued is done, or with why it is not.
  virtual absl::Status Finish() { return absl::OkStatus(); }

 protected:
  Computation() = default;
};

// How many units of the arithmetic below this core does in a second of processor time now: the median of a few short
// tries.
double CalibrateArithmetic();

// Does a number of units for each part of the plan, so that it takes longer when something else has the core. The end
// of each part of backward is writing `value` into the gradient, which finds out here how long that takes; a part for
// which it alone takes longer than the plan says takes that long. Borrows the gradients, one for each parameter.
std::unique_ptr<Computation> MakeBusyComputation(const ComputePlan& plan, double units_per_second,
                                                 std::vector<absl::Span<float>> gradients, float value);

// Sleeps until the parts of the plan, one behind the other from Begin on, would be done elsewhere: what the caller does
// in between delays nothing. Touches no gradient, as an accelerator writes memory without the core. Makes the calling
// thread's timers exact (PR_SET_TIMERSLACK). `awaited`: for which gradients it sleeps; it is early with the others. Empty: all.
std::unique_ptr<Computation> MakeAwayComputation(const ComputePlan& plan, std::vector<bool> awaited);

// Enqueues so many seconds of work and returns.
using StreamWork = std::function<absl::Status(double seconds)>;

// Keeps the device busy with as little as can be: Occupy in bench/overlap/device_work.h. Borrows the stream.
StreamWork ClockWork(Stream* stream);

// As frameworks compute on accelerators: what it does is issued and goes on while the caller goes on. Has `work` enqueue each part of the
// plan that takes time on the stream, which it borrows. Touches no gradient.
std::unique_ptr<Computation> MakeStreamComputation(const ComputePlan& plan, Stream* stream, StreamWork work);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_COMPUTATION_H_
