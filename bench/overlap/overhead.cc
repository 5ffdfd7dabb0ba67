#include "bench/overlap/overhead.h"

#include <chrono>
#include <cstddef>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "bench/measure.h"
#include "comm/host/self_communicator.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"

namespace lockstep {
namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 3;
constexpr size_t kFlightRecords = 16;

double SecondsBetween(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Caps that cut a table of single floats as `plan` cuts its own.
std::vector<size_t> CapsLike(const BucketPlan& plan) {
  std::vector<size_t> caps;
  for (const BucketPlan::Bucket& bucket : plan.buckets) caps.push_back(bucket.slots.size() * sizeof(float));
  return caps;
}

// A line of these files: "VmRSS:      1234 kB".
absl::StatusOr<int64_t> BytesIn(const char* path, absl::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    int64_t kib = 0;
    if (!absl::ConsumePrefix(&rest, name) || !absl::ConsumePrefix(&rest, ":")) continue;
    if (absl::ConsumeSuffix(&rest, "kB") && absl::SimpleAtoi(absl::StripAsciiWhitespace(rest), &kib)) return kib * 1024;
  }
  return absl::UnavailableError(absl::StrCat("no ", name, " in ", path));
}

}  // namespace

absl::StatusOr<ReducerOverhead> MeasureReducerOverhead(const BucketPlan& plan, int steps) {
  const size_t count = plan.locations.size();
  std::vector<float> gradients(count);
  std::vector<TensorView> views;
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < count; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, TensorView::Vector(&gradients[i], DType::kF32, 1));
    views.push_back(std::move(view));
    Parameter parameter;
    parameter.name = absl::StrCat("p", i);
    parameter.shape = {1};
    parameters.push_back(std::move(parameter));
  }
  ReducerOptions options;
  options.bucket_caps_bytes = CapsLike(plan);
  SelfCommunicator alone(kFlightRecords);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Reducer> reducer,
                            Reducer::Create(&alone, std::move(parameters), std::move(options)));
  std::vector<double> mark_ready;
  std::vector<double> whole;
  for (int step = -kWarmUp; step < steps; ++step) {
    const Clock::time_point begin = Clock::now();
    LOCKSTEP_RETURN_IF_ERROR(reducer->BeginBackward({}));
    const Clock::time_point begun = Clock::now();
    for (size_t left = count; left > 0; --left) {
      LOCKSTEP_RETURN_IF_ERROR(reducer->MarkReady(left - 1, views[left - 1], /*stream=*/nullptr));
    }
    const Clock::time_point marked = Clock::now();
    LOCKSTEP_RETURN_IF_ERROR(reducer->EndBackward(/*stream=*/nullptr));
    if (step < 0) continue;
    mark_ready.push_back(SecondsBetween(begun, marked));
    whole.push_back(SecondsBetween(begin, Clock::now()));
  }
  ReducerOverhead overhead;
  overhead.buckets = static_cast<int>(reducer->plan().buckets.size());
  overhead.mark_ready_seconds = Median(mark_ready);
  overhead.step_seconds = Median(whole);
  return overhead;
}

absl::StatusOr<ProcessMemory> MeasureProcessMemory() {
  ProcessMemory memory;
  LOCKSTEP_ASSIGN_OR_RETURN(memory.resident_bytes, BytesIn("/proc/self/status", "VmRSS"));
  LOCKSTEP_ASSIGN_OR_RETURN(memory.peak_resident_bytes, BytesIn("/proc/self/status", "VmHWM"));
  LOCKSTEP_ASSIGN_OR_RETURN(memory.proportional_bytes, BytesIn("/proc/self/smaps_rollup", "Pss"));
  return memory;
}

absl::Status ResetPeakMemory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write /proc/self/clear_refs");
}

}  // namespace bench
}  // namespace lockstep
