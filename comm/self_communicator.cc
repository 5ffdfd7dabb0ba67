#include "comm/self_communicator.h"

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/selector.h"
#include "kernels/cpu/scale.h"

namespace lockstep {
namespace {

constexpr size_t kNoteTopicsMax = 64;

class DoneState : public WorkState {
 public:
  DoneState() { Complete(absl::OkStatus()); }
  void Await(Deadline deadline) override {}
};

// What would be refused in a larger world is refused here.
absl::Status Check(const CollectiveRequest& request) {
  if (HasReduction(request.collective)) LOCKSTEP_RETURN_IF_ERROR(CheckDefined(request.dtype, request.op));
  if (request.algorithm == Algorithm::kAuto && (!HasRoot(request.collective) || request.root == Rank(0))) {
    return absl::OkStatus();
  }
  const Algorithm algorithm =
      request.algorithm == Algorithm::kAuto ? Select(request.collective, /*size=*/1, /*bytes=*/0) : request.algorithm;
  return BuildSchedule(request.collective, algorithm, Rank(0), /*size=*/1, request.root).status();
}

absl::Status CarryOut(const CollectiveRequest& request) {
  if (request.collective == Collective::kBarrier) return absl::OkStatus();
  // The average of one is itself; a premultiplied sum of one still multiplies.
  if (HasReduction(request.collective) && request.op == ReduceOp::kPremulSum) {
    return kernels::Scale(request.dtype, request.output, request.input, request.count, request.factor);
  }
  if (request.output != request.input && request.count > 0) {
    std::memcpy(request.output, request.input, request.count * SizeOf(request.dtype));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SelfCommunicator::Run(const CollectiveRequest& request) {
  MutexLock lock(&mu_);
  LOCKSTEP_RETURN_IF_ERROR(status_);
  LOCKSTEP_RETURN_IF_ERROR(Check(request));
  Signature signature;
  signature.sequence = ++sequence_;
  signature.count = request.count;
  signature.collective = request.collective;
  signature.dtype = request.dtype;
  signature.op = request.op;
  FlightRecord* const record = recorder_.Add(signature, request.count * SizeOf(request.dtype));
  record->started = record->queued;
  const absl::Status result = CarryOut(request);
  record->state = result.ok() ? FlightRecord::State::kDone : FlightRecord::State::kFailed;
  record->ended = FlightRecord::Clock::now();
  return result;
}

absl::StatusOr<Work> SelfCommunicator::Start(const CollectiveRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(Run(request));
  return Work(std::make_shared<DoneState>());
}

absl::Status SelfCommunicator::Supports(Collective collective, DType dtype, ReduceOp op) const {
  return HasReduction(collective) ? CheckDefined(dtype, op) : absl::OkStatus();
}

absl::Status SelfCommunicator::status() const {
  MutexLock lock(&mu_);
  return status_;
}

void SelfCommunicator::Abort(const std::string& reason) {
  MutexLock lock(&mu_);
  if (status_.ok()) status_ = absl::AbortedError(absl::StrCat("rank 0 aborted the communicator: ", reason));
}

void SelfCommunicator::PostNote(uint64_t topic, const std::string& text) {
  MutexLock lock(&mu_);
  notes_[topic] = text;
  if (notes_.size() > kNoteTopicsMax) notes_.erase(notes_.begin());
}

absl::StatusOr<std::vector<std::pair<Rank, std::string>>> SelfCommunicator::AwaitNotes(uint64_t topic, int count,
                                                                                       Deadline deadline) {
  MutexLock lock(&mu_);
  std::vector<std::pair<Rank, std::string>> notes;
  if (const auto it = notes_.find(topic); it != notes_.end()) notes.emplace_back(Rank(0), it->second);
  if (static_cast<int>(notes.size()) < count) {
    return absl::DeadlineExceededError(absl::StrCat("there are ", notes.size(), " notes, not ", count));
  }
  return notes;
}

std::string SelfCommunicator::FlightRecords() const {
  MutexLock lock(&mu_);
  return recorder_.ToString(SIZE_MAX);
}

}  // namespace lockstep
