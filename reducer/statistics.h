// Where the time of a synchronised backward went. Pure bookkeeping of time stamps by the host's clock.

#ifndef REDUCER_STATISTICS_H_
#define REDUCER_STATISTICS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

// Of the last synchronised backward that ended.
struct ReducerStatistics {
  int64_t steps = 0;            // synchronised backwards so far
  double backward_ms = 0;       // BeginBackward to the call of EndBackward
  double communication_ms = 0;  // some bucket was being all-reduced
  double exposed_ms = 0;        // of that, after EndBackward was called
  int64_t bytes_reduced = 0;
  int buckets = 0;
  int buckets_launched_in_backward = 0;

  double hidden_ms() const { return communication_ms - exposed_ms; }
};

// Externally synchronised. Buckets are all-reduced one after the other, so their times do not overlap.
class StepTimer {
 public:
  using Clock = std::chrono::steady_clock;

  void Begin(Clock::time_point now);
  void Launched();
  void Reduced(Clock::time_point started, Clock::time_point ended, size_t bytes);
  void EndCalled(Clock::time_point now);
  void End();

  const ReducerStatistics& last() const { return last_; }

 private:
  struct Interval {
    Clock::time_point started;
    Clock::time_point ended;
  };

  Clock::time_point begin_;
  Clock::time_point end_called_;
  bool ending_ = false;
  std::vector<Interval> reduced_;
  ReducerStatistics current_;
  ReducerStatistics last_;
};

}  // namespace lockstep

#endif  // REDUCER_STATISTICS_H_
