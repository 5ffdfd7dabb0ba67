#include "reducer/captures.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "reducer/plan/status_trailer.h"

namespace lockstep {

absl::Status Captures::Check(const Candidate& candidate) {
  const ReducerOptions& options = candidate.options;
  const auto refuse = [](absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("begin_backward: the stream is being captured, and this step cannot be: ", why));
  };
  if (const absl::Status capturable = candidate.communicator.CanCapture(); !capturable.ok()) {
    return refuse(absl::StrCat(capturable.message(), ": choose the back end nccl"));
  }
  if (options.hook != nullptr) return refuse("the host calls a hook in each step: make the reducer without one");
  if (options.optimizer) {
    return refuse("the host calls the optimizer in each step: capture its own step behind this one");
  }
  if (options.preserve_gradients) {
    return refuse("the host puts gradients back if a step fails: make the reducer without preserve_gradients");
  }
  if (options.uneven_inputs) return refuse("the host looks in each step who has inputs: unset uneven_inputs");
  if (candidate.has_buffers) return refuse("the host brings buffers for each step: broadcast them by yourself");
  if (!options.delayed.empty()) return refuse("the host decides in each step what delayed parameters have");
  if (candidate.replanning) {
    return refuse(
        "buckets are about to be planned anew: run steps until plan_version() has grown, or make the reducer with "
        "no_replan");
  }
  if (candidate.ready_set.counting()) return refuse("a static graph is counted first: run one step before");
  if (options.find_unused && !options.static_graph && !candidate.unused_named) {
    return refuse("the host finds out in each step what is unused: name it in begin_backward, or set static_graph");
  }
  const std::vector<size_t> unused = candidate.ready_set.unused();
  if (!unused.empty()) {
    return refuse(absl::StrCat("the host sees to averages of parameters that are unused, as ",
                               Describe(unused[0], candidate.parameters[unused[0]]), " is: mark all of them"));
  }
  return absl::OkStatus();
}

absl::StatusOr<char*> Captures::Add(uint64_t step, Device* device, const Bucket& last) {
  Step added;
  added.number = step;
  added.wire = last.plan().wire;
  LOCKSTEP_ASSIGN_OR_RETURN(added.trailer, DeviceMemory::AllocateOnHost(device, last.trailer_bytes()));
  std::memset(added.trailer.data(), 0, last.trailer_bytes());
  steps_.push_back(std::move(added));
  return steps_.back().trailer.data();
}

absl::optional<Captures::Failure> Captures::FindFailure() const {
  for (const Step& step : steps_) {
    const int failed = StatusTrailer(step.trailer.data(), step.wire, 1).Count(StatusTrailer::kFailed);
    if (failed > 0) return Failure{step.number, failed};
  }
  return absl::nullopt;
}

absl::Status Captures::CheckStream(Stream* stream, bool captured) {
  // The same handle is each thread's own stream.
  const bool known = stream == checked_stream_ && stream != nullptr && !stream->is_callers();
  if (known || (stream == nullptr && !captured)) return absl::OkStatus();
  if ((stream != nullptr && stream->capturing()) != captured) {
    return absl::FailedPreconditionError(
        captured
            ? "mark_ready: the backward is being captured, and the gradient's stream is not"
            : "mark_ready: the stream is being captured, and the backward is not: name the stream in begin_backward");
  }
  checked_stream_ = stream;
  return absl::OkStatus();
}

}  // namespace lockstep
