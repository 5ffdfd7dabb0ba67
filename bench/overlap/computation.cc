#include "bench/overlap/computation.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/status.h"
#include "bench/gpu_kernels/device_kernels.h"
#include "bench/report.h"

namespace lockstep::bench {
namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr int kCalibrations = 5;
constexpr double kCalibrationSeconds = 0.02;

int64_t Now(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<int64_t>(time.tv_sec) * kNanosecondsPerSecond + time.tv_nsec;
}

int64_t Nanoseconds(double seconds) { return std::llround(seconds * kNanosecondsPerSecond); }

// A unit is one pass over a vector that fits in the innermost cache.
class Arithmetic {
 public:
  // Not inlined: what was calibrated and what is done later must be the same instructions.
  ABSL_ATTRIBUTE_NOINLINE void Do(int64_t units) {
    for (int64_t unit = 0; unit < units; ++unit) {
      for (float& value : values_) value = value * 0.5F + 1.0F;
    }
    // Or the compiler might find that nobody looks at the values.
    asm volatile("" : : "r"(values_.data()) : "memory");
  }

 private:
  alignas(64) std::array<float, 1024> values_ = {};
};

class BusyComputation : public Computation {
 public:
  BusyComputation(const ComputePlan& plan, double units_per_second, std::vector<absl::Span<float>> gradients,
                  float value)
      : forward_units_(std::llround(plan.forward_seconds * units_per_second)),
        gradients_(std::move(gradients)),
        value_(value) {
    const double seconds_per_element = MeasureWriting();
    for (size_t p = 0; p < gradients_.size(); ++p) {
      const double writing = seconds_per_element * static_cast<double>(gradients_[p].size());
      backward_units_.push_back(std::llround(std::max(0.0, plan.backward_seconds[p] - writing) * units_per_second));
    }
  }

  void Forward() override { arithmetic_.Do(forward_units_); }
  void Backward(size_t parameter) override {
    arithmetic_.Do(backward_units_[parameter]);
    Write(parameter);
  }

 private:
  void Write(size_t parameter) { std::fill(gradients_[parameter].begin(), gradients_[parameter].end(), value_); }

  // Seconds of processor time per element, over all gradients and so mostly in memory where they are many.
  double MeasureWriting() {
    size_t elements = 0;
    for (const absl::Span<float> gradient : gradients_) elements += gradient.size();
    std::vector<double> passes_ns;
    // The first pass counts little: pages are there only once they were written.
    for (int i = 0; i < kCalibrations; ++i) {
      const int64_t begin = Now(CLOCK_THREAD_CPUTIME_ID);
      for (size_t p = 0; p < gradients_.size(); ++p) Write(p);
      passes_ns.push_back(static_cast<double>(Now(CLOCK_THREAD_CPUTIME_ID) - begin));
    }
    return elements == 0 ? 0 : Median(passes_ns) / kNanosecondsPerSecond / static_cast<double>(elements);
  }

  const int64_t forward_units_;
  const std::vector<absl::Span<float>> gradients_;
  const float value_;
  std::vector<int64_t> backward_units_;
  Arithmetic arithmetic_;
};

class AwayComputation : public Computation {
 public:
  explicit AwayComputation(const ComputePlan& plan) : forward_ns_(Nanoseconds(plan.forward_seconds)) {
    for (const double seconds : plan.backward_seconds) backward_ns_.push_back(Nanoseconds(seconds));
    // A nanosecond, rather than the 50 us by which the kernel may be late otherwise.
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  }

  void Begin() override { done_ns_ = Now(CLOCK_MONOTONIC); }
  void Forward() override {
    done_ns_ += forward_ns_;
    Await();
  }
  void Backward(size_t parameter) override {
    if (backward_ns_[parameter] == 0) return;
    done_ns_ += backward_ns_[parameter];
    Await();
  }

 private:
  void Await() const {
    timespec time = {};
    time.tv_sec = done_ns_ / kNanosecondsPerSecond;
    time.tv_nsec = done_ns_ % kNanosecondsPerSecond;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) continue;
  }

  const int64_t forward_ns_;
  std::vector<int64_t> backward_ns_;
  int64_t done_ns_ = 0;  // when all parts so far are done, by CLOCK_MONOTONIC
};

constexpr std::chrono::seconds kPatience{60};  // for what a few steps compute

class StreamComputation : public Computation {
 public:
  StreamComputation(const ComputePlan& plan, Stream* stream) : plan_(plan), stream_(stream) {}

  void Forward() override { Compute(plan_.forward_seconds); }
  void Backward(size_t parameter) override { Compute(plan_.backward_seconds[parameter]); }
  absl::Status Finish() override {
    if (!status_.ok()) return status_;
    return stream_->Synchronize(Deadline::After(kPatience));
  }

 private:
  void Compute(double seconds) {
    if (seconds > 0) status_.Update(Enqueue(Nanoseconds(seconds)));
  }

  absl::Status Enqueue(int64_t nanoseconds) {
    const DeviceId device = stream_->device();
    if (device.kind == DeviceKind::kHost) {
      return stream_->Enqueue([nanoseconds] {
        std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
        return absl::OkStatus();
      });
    }
    const CudaGuard guard(TheCudaApi(), device.index);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    const int code = LaunchClockWatcher(static_cast<uint64_t>(nanoseconds), stream_->native());
    return CudaStatus(code, "launch of a kernel that watches the clock", device.index);
  }

  const ComputePlan plan_;
  Stream* const stream_;
  absl::Status status_;  // the first error of enqueuing
};

}  // namespace

double ComputePlan::total_seconds() const {
  return std::accumulate(backward_seconds.begin(), backward_seconds.end(), forward_seconds);
}

ComputePlan PlanCompute(const ModelTable& model, double total_seconds) {
  ComputePlan plan;
  plan.forward_seconds = total_seconds / 3;
  const double seconds_each = (total_seconds - plan.forward_seconds) / model.multiply_adds();
  for (const ModelParameter& parameter : model.parameters) {
    plan.backward_seconds.push_back(parameter.multiply_adds * seconds_each);
  }
  return plan;
}

absl::StatusOr<ComputeKind> ParseComputeKind(absl::string_view text) {
  for (const ComputeKind kind : {ComputeKind::kBusy, ComputeKind::kAway, ComputeKind::kStream}) {
    if (text == Name(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("no way to compute '", text, "'; known are busy, away, stream"));
}

const char* Name(ComputeKind kind) {
  constexpr const char* kNames[] = {"busy", "away", "stream"};
  return kNames[static_cast<int>(kind)];
}

double CalibrateArithmetic() {
  Arithmetic arithmetic;
  std::vector<double> rates;
  for (int i = 0; i < kCalibrations; ++i) {
    const int64_t begin = Now(CLOCK_THREAD_CPUTIME_ID);
    int64_t taken = 0;
    int64_t units = 0;
    while (taken < Nanoseconds(kCalibrationSeconds)) {
      constexpr int64_t kUnitsAtOnce = 1000;
      arithmetic.Do(kUnitsAtOnce);
      units += kUnitsAtOnce;
      taken = Now(CLOCK_THREAD_CPUTIME_ID) - begin;
    }
    rates.push_back(static_cast<double>(units) / static_cast<double>(taken) * kNanosecondsPerSecond);
  }
  return Median(rates);
}

std::unique_ptr<Computation> MakeBusyComputation(const ComputePlan& plan, double units_per_second,
                                                 std::vector<absl::Span<float>> gradients, float value) {
  return std::make_unique<BusyComputation>(plan, units_per_second, std::move(gradients), value);
}

std::unique_ptr<Computation> MakeAwayComputation(const ComputePlan& plan) {
  return std::make_unique<AwayComputation>(plan);
}

std::unique_ptr<Computation> MakeStreamComputation(const ComputePlan& plan, Stream* stream) {
  return std::make_unique<StreamComputation>(plan, stream);
}

}  // namespace lockstep::bench
