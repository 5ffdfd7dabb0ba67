#include "reducer/statistics.h"

#include <algorithm>

namespace lockstep {
namespace {

double Milliseconds(StepTimer::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

void StepTimer::Begin(Clock::time_point now) {
  begin_ = now;
  ending_ = false;
  reduced_.clear();
  current_ = ReducerStatistics();
}

void StepTimer::Launched() {
  ++current_.buckets;
  if (!ending_) ++current_.buckets_launched_in_backward;
}

void StepTimer::Reduced(Clock::time_point started, Clock::time_point ended, size_t bytes) {
  reduced_.push_back({started, ended});
  current_.bytes_reduced += bytes;
}

void StepTimer::EndCalled(Clock::time_point now) {
  end_called_ = now;
  ending_ = true;
  current_.backward_ms = Milliseconds(now - begin_);
}

void StepTimer::End() {
  for (const Interval& interval : reduced_) {
    current_.communication_ms += Milliseconds(interval.ended - interval.started);
    if (interval.ended > end_called_) {
      current_.exposed_ms += Milliseconds(interval.ended - std::max(interval.started, end_called_));
    }
  }
  current_.steps = last_.steps + 1;
  last_ = current_;
}

}  // namespace lockstep
