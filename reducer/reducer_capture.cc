// Steps that are captured into a CUDA graph. Capturing one is an ordinary step on streams that are captured, but for
// what the host does beside the streams: it follows nothing, since nothing happens yet, and leaves nothing in the
// streams that a graph could not repeat.
//
// Our streams become part of the capture by the first bucket, which waits for the point at which the backward began,
// and end their part in it where the embedder's stream waits for the last one. In between they wait for events that
// were recorded in the capture only: CUDA refuses others. What a replay needs stays where it is for as long as the
// reducer lives, or until it goes over to another communicator.

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "base/status.h"
#include "reducer/plan/bucket_tail.h"
#include "reducer/reducer.h"

namespace lockstep {

absl::Status Reducer::CheckCapture(const BackwardOptions& options) {
  const auto refuse = [](absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("begin_backward: the stream is being captured, and this step cannot be: ", why));
  };
  if (const absl::Status capturable = communicator_->CanCapture(); !capturable.ok()) {
    return refuse(absl::StrCat(capturable.message(), ": choose the back end nccl"));
  }
  if (options_.hook != nullptr) return refuse("the host calls a hook in each step: make the reducer without one");
  if (options_.optimizer)
    return refuse("the host calls the optimizer in each step: capture its own step behind this one");
  if (options_.uneven_inputs) return refuse("the host looks in each step who has inputs: unset uneven_inputs");
  if (buffer_sync_ != nullptr) return refuse("the host brings buffers for each step: broadcast them by yourself");
  if (!options_.delayed.empty()) return refuse("the host decides in each step what delayed parameters have");
  if (replanner_->under_way()) {
    return refuse(
        "buckets are about to be planned anew: run steps until plan_version() has grown, or make the reducer without "
        "replan");
  }
  MutexLock lock(&mu_);
  if (marks_.counting()) return refuse("a static graph is counted first: run one step before");
  if (options_.find_unused && !options_.static_graph && !options.unused.has_value()) {
    return refuse("the host finds out in each step what is unused: name it in begin_backward, or set static_graph");
  }
  if (!marks_.unused().empty()) {
    return refuse(absl::StrCat("the host sees to averages of parameters that are unused, as ",
                               Describe(marks_.unused()[0], parameters_[marks_.unused()[0]]), " is: mark all of them"));
  }
  return absl::OkStatus();
}

absl::Status Reducer::BeginCaptured(const BackwardOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckCapture(options));
  const Bucket& last = *buckets().back();
  Captured captured;
  captured.wire = last.plan().wire;
  LOCKSTEP_ASSIGN_OR_RETURN(captured.tail, DeviceMemory::AllocateOnHost(accelerator_.device, last.tail_bytes()));
  std::memset(captured.tail.data(), 0, last.tail_bytes());
  LOCKSTEP_RETURN_IF_ERROR(HoldCommunicator("begin_backward"));
  MutexLock lock(&mu_);
  BeginStep(/*joined=*/false, captured.tail.data());
  captured.step = step_;
  captured_.push_back(std::move(captured));
  const absl::Status forked = pipeline_->MarkPoint(*buckets().front(), *options.stream);
  if (!forked.ok()) BecomeIdle();
  return forked;
}

absl::Status Reducer::CheckStream(Stream* stream) {
  // The same handle is each thread's own stream.
  const bool known = stream == checked_stream_ && stream != nullptr && !stream->is_callers();
  if (known || (stream == nullptr && !capturing_)) return absl::OkStatus();
  if ((stream != nullptr && stream->capturing()) != capturing_) {
    return absl::FailedPreconditionError(
        capturing_
            ? "mark_ready: the backward is being captured, and the gradient's stream is not"
            : "mark_ready: the stream is being captured, and the backward is not: name the stream in begin_backward");
  }
  checked_stream_ = stream;
  return absl::OkStatus();
}

absl::Status Reducer::CheckEndOfCapture(const Stream* stream) {
  if (stream != nullptr && stream->capturing()) return absl::OkStatus();
  (void)marks_.End();
  EndWindow();
  BecomeIdle();
  return absl::FailedPreconditionError(
      absl::StrCat("end_backward: backward ", step_, " was being captured, and ",
                   stream == nullptr ? "no stream is named" : "its stream is not any more",
                   ": it is given up, and a graph with a part of it must not be launched"));
}

absl::Status Reducer::EndCaptured(Stream& stream) {
  absl::Status status = flight_->outcome->communication();
  status.Update(pipeline_->MakeWait(stream, *buckets().back()));
  const bool whole = status.ok();
  if (whole) status = flight_->outcome->Conclude(/*failed_ranks=*/0, "");
  MutexLock lock(&mu_);
  EndWindow();
  BecomeIdle();
  const char* const launched = !whole                     ? ", which is not whole: its graph must not be launched"
                               : flight_->outcome->told() ? ", each launch of which fails on every rank"
                                                          : ", in which that came last: its graph must not be launched";
  return Annotate(status, absl::StrCat("end_backward: captured backward ", step_, launched));
}

absl::Status Reducer::CheckReplays() {
  if (buckets().empty()) {
    return absl::FailedPreconditionError("check_replays: the change of the communicator failed");
  }
  LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
  for (const Captured& captured : captured_) {
    const int failed = BucketTail(captured.tail.data(), captured.wire, 1).Count(BucketTail::kFailed);
    if (failed == 0) continue;
    return Annotate(flight_->outcome->Incomplete(captured.step, failed, Remedy()), "a replay");
  }
  return absl::OkStatus();
}

}  // namespace lockstep
