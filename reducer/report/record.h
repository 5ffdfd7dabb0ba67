// The record of a reducer: what it is, and what happened when in its steps, by the host's steady clock.
//
//   the caller's calls   forward_begin   backward_begin ... end_called   end
//   of each bucket       ready   launched   copy in   collective   copy out   optimizer
//
// Plain values. Everything that a reducer reports is a function of them: reports.h has statistics, DDP's logging data
// and a summary, trace.h a trace. A time that was not recorded is the clock's epoch, which no process has seen: for
// example the copy in of a bucket whose gradients the marking threads copy.
//
// THREADS  Externally synchronised, each bucket by itself: the owner of a bucket writes its record.
// COST     Recording a time reads the clock, takes no lock, and allocates nothing unless there are more buckets or parameters than before.

#ifndef REDUCER_REPORT_RECORD_H_
#define REDUCER_REPORT_RECORD_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/rank.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

using StepClock = std::chrono::steady_clock;
using StepTime = StepClock::time_point;

inline bool IsRecorded(StepTime time) { return time != StepTime(); }

struct StepInterval {
  StepTime begin;
  StepTime end;

  bool recorded() const { return IsRecorded(begin) && IsRecorded(end); }
};

// The stages of a bucket on the streams, in this order.
enum class Stage : int { kCopyIn = 0, kCollective = 1, kCopyOut = 2, kOptimizer = 3 };
inline constexpr int kStageCount = 4;

struct BucketRecord {
  size_t parameters = 0;
  StepTime ready;     // the last of its gradients was marked ready
  StepTime launched;  // queued on the streams
  std::array<StepInterval, kStageCount> stages;
  int64_t bytes = 0;  // that this rank gave to its collectives

  StepInterval& at(Stage stage) { return stages[static_cast<size_t>(stage)]; }
  const StepInterval& at(Stage stage) const { return stages[static_cast<size_t>(stage)]; }

  // A stage in several pieces lasts from the first call of Began to the last of Ended.
  void Began(Stage stage, StepTime now = StepClock::now()) {
    if (!IsRecorded(at(stage).begin)) at(stage).begin = now;
  }
  void Ended(Stage stage, StepTime now = StepClock::now()) { at(stage).end = now; }

  // When the last stage from the collective on ended.
  StepTime done() const {
    return std::max({at(Stage::kCollective).end, at(Stage::kCopyOut).end, at(Stage::kOptimizer).end});
  }
};

struct StepRecord {
  uint64_t step = 0;  // the reducer's number of this synchronised backward, from 1
  StepTime forward_begin;
  StepTime backward_begin;  // BeginBackward
  StepTime end_called;      // EndBackward was called,
  StepTime end;             // and returned, with a stream before the buckets are done
  StepInterval replicas;    // BeginBackward checked a part of the replica
  std::vector<BucketRecord> buckets;
  std::vector<uint32_t> ready_order;   // parameters, as they were marked
  int64_t unused_parameter_bytes = 0;  // of parameters that had no gradient on this rank

  // A backward begins. Clears the record.
  void Begin(uint64_t number, const BucketPlan& plan, StepTime forward, StepTime now = StepClock::now());
  // All of it is done. An EndBackward that waited for that returns now.
  void Finish(StepTime now = StepClock::now()) {
    if (!IsRecorded(end)) end = now;
  }
};

// One moment by the steady clock and by the system's. Constant, so that durations between absolute times are the steady
// clock's even if the system's time is set.
struct ClockAnchor {
  StepTime steady = StepClock::now();
  std::chrono::system_clock::time_point system = std::chrono::system_clock::now();

  // Nanoseconds since 1970 (UTC); 0 for a time that was not recorded.
  int64_t UnixNanoseconds(StepTime time) const;
};

// The parts of a step that DDP measures: forward pass, backward pass, communication (from the first launch of a reduced
// bucket to the end of the last one), and the time that the last two have in common, even if nothing was on the wire
// for a part of it.
enum class Phase : int { kForward = 0, kBackward = 1, kCommunication = 2, kOverlap = 3 };
inline constexpr int kPhaseCount = 4;
std::array<StepInterval, kPhaseCount> Phases(const StepRecord& record);

// Its length. None if an end was not recorded, or if the host learned of the ends in the wrong order.
absl::optional<int64_t> Nanoseconds(const StepInterval& interval);

struct ReducerRecord {
  static constexpr uint64_t kFirst = 10;  // steps that are all sampled

  // Of the reducer on its communicator.
  Rank rank{0};
  int world_size = 0;
  absl::Span<const Parameter> parameters;  // borrowed
  BucketPlan first_plan;
  int64_t bucket_cap_bytes = 0;  // the last of the caps, which repeats
  bool broadcast_buffers = false;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  bool join_uneven_inputs = false;
  std::string comm_hook;  // empty: none

  // Of the steps that are over.
  absl::optional<BucketPlan> rebuilt_plan;
  absl::optional<bool> can_set_static_graph;  // once it is known whether the same parameters are unused each time
  std::string error;                          // the first; empty: none
  StepRecord last;                            // the last one; empty: none

  // Of the sampled ones: the last, and the mean of each phase over those in which it is known.
  struct Mean {
    int64_t sum = 0;
    int64_t count = 0;
  };
  StepRecord sampled;
  std::array<Mean, kPhaseCount> means;
  uint64_t sample_rate = 100;
  ClockAnchor anchor;

  // Samples the last step, once, if it is one of the first ten or a multiple of `sample_rate`. Called when a forward
  // begins, and when a backward does, for embedders that announce no forwards.
  void Sample();
  // ERRORS  INVALID_ARGUMENT  a rate below 1; nothing was changed
  absl::Status SetSampleRate(int64_t rate);
};

}  // namespace lockstep

#endif  // REDUCER_REPORT_RECORD_H_
