// What happened when in one synchronised backward, by the host's steady clock.
//
//   the caller's calls   forward_begin   backward_begin ... end_called   end
//   of each bucket       first_marked   ready   launched   copy in   collective   copy out   optimizer
//
// A plain value, as StepRecorder fills it in; statistics, logging data, traces and summaries are functions of it. A
// time that was not recorded is the clock's epoch, which no process has seen: a bucket whose gradients are copied by
// the threads that mark them has no copy in, one that is not reduced no collective, and so on.

#ifndef REDUCER_REPORT_STEP_RECORD_H_
#define REDUCER_REPORT_STEP_RECORD_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

using StepClock = std::chrono::steady_clock;
using StepTime = StepClock::time_point;

inline bool IsRecorded(StepTime time) { return time != StepTime(); }

struct StepInterval {
  StepTime begin;
  StepTime end;

  bool recorded() const { return IsRecorded(begin) && IsRecorded(end); }
};

// What streams do with a bucket, in this order.
enum class Stage : int { kCopyIn = 0, kCollective = 1, kCopyOut = 2, kOptimizer = 3 };
inline constexpr int kStageCount = 4;

struct BucketRecord {
  StepTime first_marked;  // the first of its gradients was marked ready
  StepTime ready;         // the last of them was
  StepTime launched;      // queued on the streams
  std::array<StepInterval, kStageCount> stages;
  int64_t bytes = 0;  // that this rank gave to its collectives

  StepInterval& at(Stage stage) { return stages[static_cast<size_t>(stage)]; }
  const StepInterval& at(Stage stage) const { return stages[static_cast<size_t>(stage)]; }

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
  std::vector<BucketRecord> buckets;
  std::vector<uint32_t> ready_order;   // parameters, as they were marked
  int64_t unused_parameter_bytes = 0;  // of parameters that had no gradient on this rank
};

// A moment by the steady clock and by the system's. Constant over the life of what owns it, so that durations between
// absolute times are the steady clock's, whatever is done to the system's meanwhile.
struct ClockAnchor {
  StepTime steady = StepClock::now();
  std::chrono::system_clock::time_point system = std::chrono::system_clock::now();

  // Nanoseconds since 1970 (UTC); 0 for a time that was not recorded.
  int64_t UnixNanoseconds(StepTime time) const {
    if (!IsRecorded(time)) return 0;
    const auto since_1970 = system.time_since_epoch() + (time - steady);
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count();
  }
};

}  // namespace lockstep

#endif  // REDUCER_REPORT_STEP_RECORD_H_
