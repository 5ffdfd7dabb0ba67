// Captures: the steps of a reducer that were captured into CUDA graphs.
//
// A captured step is an ordinary step on streams that are being captured. The host does less beside them: it follows
// nothing, since nothing runs yet, and it puts nothing into the streams that a graph could not repeat.
//
// Our streams join the capture with the first bucket, which waits for the point at which the backward began. They leave
// it where the embedder's stream waits for the last bucket. In between they wait only for events that were recorded in
// the capture: CUDA refuses others. What a replay needs stays where it is until the reducer ends or changes its
// communicator.

#ifndef REDUCER_CAPTURES_H_
#define REDUCER_CAPTURES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "reducer/pipeline/bucket.h"
#include "reducer/plan/parameter.h"
#include "reducer/ready_set.h"
#include "reducer/reducer_options.h"

namespace lockstep {

// Externally synchronised.
class Captures {
 public:
  // What decides whether a step can be captured. Borrows.
  struct Candidate {
    const Communicator& communicator;
    const ReducerOptions& options;
    absl::Span<const Parameter> parameters;
    const ReadySet& ready_set;
    bool unused_named;  // BackwardOptions::unused is set
    bool has_buffers;
    bool replanning;
  };
  // ERRORS  FAILED_PRECONDITION  a graph cannot repeat the step: why, and what to do
  static absl::Status Check(const Candidate& candidate);

  // Memory of the host for what each replay leaves: the status trailer of the step's last bucket.
  // ERRORS  as of Device::AllocateOnHost
  absl::StatusOr<char*> Add(uint64_t step, Device* device, const Bucket& last);
  void Clear() { steps_.clear(); }

  // Of the first step whose last replay failed on some rank.
  struct Failure {
    uint64_t step = 0;
    int ranks = 0;
  };
  absl::optional<Failure> FindFailure() const;

  // A step begins.
  void ForgetStream() { checked_stream_ = nullptr; }
  // Checks that the stream of a gradient is being captured if, and only if, the step is.
  absl::Status CheckStream(Stream* stream, bool captured);

 private:
  struct Step {
    uint64_t number = 0;
    DType wire = DType::kF32;
    DeviceMemory trailer;  // of the last bucket; written by replays
  };

  std::vector<Step> steps_;           // oldest first
  Stream* checked_stream_ = nullptr;  // by CheckStream in this step
};

}  // namespace lockstep

#endif  // REDUCER_CAPTURES_H_
