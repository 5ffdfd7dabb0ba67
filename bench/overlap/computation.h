// Stands in for a framework that computes: takes as long as a plan says, and fills in gradients.

#ifndef BENCH_OVERLAP_COMPUTATION_H_
#define BENCH_OVERLAP_COMPUTATION_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "bench/model.h"

namespace lockstep::bench {

// How long a replayed model computes before each of its gradients is ready.
struct ComputePlan {
  double forward_seconds = 0;
  // By parameter: from the gradient before, in the reverse order of definition, to this one.
  std::vector<double> backward_seconds;

  double total_seconds() const;
};

// Shares `total_seconds` out by multiplications. Forward takes a third of it. Backward has two multiplications for each of forward, one
// for the gradient of a layer's input and one for that of its weights (Kaplan et al., arXiv:2001.08361, section 2.1).
ComputePlan PlanCompute(const ModelTable& model, double total_seconds);

enum class ComputeKind {
  kBusy,    // arithmetic on the calling thread, as a framework that computes on processors does
  kAway,    // sleep until it is done, as when an accelerator computes
  kStream,  // in the order of a stream, on which a clock is watched: the device is left to communication
};

// "busy", "away", "stream". INVALID_ARGUMENT for anything else.
absl::StatusOr<ComputeKind> ParseComputeKind(absl::string_view text);
const char* Name(ComputeKind kind);

// Used by one thread. A step is Begin(), Forward(), and Backward() of every parameter in the reverse order of definition. Finish()
// follows some steps.
class Computation {
 public:
  virtual ~Computation() = default;
  Computation(const Computation&) = delete;
  Computation& operator=(const Computation&) = delete;

  virtual void Begin() {}
  // These return when their part of the plan is done or, on a stream, enqueued.
  virtual void Forward() = 0;
  virtual void Backward(size_t parameter) = 0;
  // Waits for everything that was enqueued. Returns the first error.
  virtual absl::Status Finish() { return absl::OkStatus(); }

 protected:
  Computation() = default;
};

// Units of MakeBusyComputation()'s arithmetic that this core does in a second of processor time now: the median of a few short tries.
double CalibrateArithmetic();

// Does a number of units for each part of the plan. A part takes longer when something else has the core. Each part of backward ends with
// writing `value` into the gradient. The constructor measures how long writing takes; a part whose plan is shorter takes that long.
// Borrows the gradients, one for each parameter.
std::unique_ptr<Computation> MakeBusyComputation(const ComputePlan& plan, double units_per_second,
                                                 std::vector<absl::Span<float>> gradients, float value);

// Sleeps until the parts of the plan, one after the other from Begin() on, would be done elsewhere. What the caller does in between
// delays nothing. Touches no gradient, as an accelerator writes memory without the core. Makes the calling thread's timers exact
// (PR_SET_TIMERSLACK).
std::unique_ptr<Computation> MakeAwayComputation(const ComputePlan& plan);

// Enqueues on the stream, which it borrows, a wait for each part of the plan that takes time: on a GPU a kernel of one thread that
// watches the clock, on the host a sleep of the stream's thread. Touches no gradient.
std::unique_ptr<Computation> MakeStreamComputation(const ComputePlan& plan, Stream* stream);

}  // namespace lockstep::bench

#endif  // BENCH_OVERLAP_COMPUTATION_H_
