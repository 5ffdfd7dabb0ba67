#include "comm/device/staged/staged_pipeline.h"

#include <algorithm>
#include <atomic>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/fork.h"
#include "base/poll.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "comm/plan/call_plan.h"

namespace lockstep {
namespace {

// How often the thread that waits for a copy looks whether waiting is of use.
constexpr int64_t kLookMs = 20;

// As the words have it.
uint32_t Word(uint64_t number) { return static_cast<uint32_t>(number); }

}  // namespace

StagedPipeline::StagedPipeline(std::unique_ptr<Staging> staging, std::unique_ptr<Communicator> communicator,
                               std::shared_ptr<DeviceFailure> failure, std::function<void(const absl::Status&)> fail,
                               Options options)
    : staging_(std::move(staging)),
      communicator_(std::move(communicator)),
      failure_(std::move(failure)),
      fail_(std::move(fail)),
      options_(options),
      fork_generation_(ForkGeneration()),
      issued_(staging_->slots()),
      recorder_(options.flight_records),
      thread_("lockstep-staged", [this] { Run(); }) {}

StagedPipeline::~StagedPipeline() {
  // In a forked child there is no thread, and whoever had the lock in the parent has it for ever.
  if (fork_generation_ != ForkGeneration()) return;
  size_t in_flight = 0;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    in_flight = in_flight_;
    arrived_.SignalAll();
  }
  if (in_flight > 0 && communicator_->status().ok()) {
    communicator_->Abort(absl::StrCat("destroyed with ", in_flight, " collectives on a device in flight"));
  }
  thread_.Join();
}

absl::Status StagedPipeline::CheckRoom(size_t calls) const {
  if (fork_generation_ != ForkGeneration()) {
    return absl::FailedPreconditionError("the communicator was made before fork()");
  }
  MutexLock lock(&mu_);
  if (waiting_.size() + calls <= kWaitingMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(waiting_.size(), " collectives on the device wait already"));
}

std::string StagedPipeline::FlightRecords() const {
  MutexLock lock(&mu_);
  return recorder_.ToString(options_.flight_records);
}

void StagedPipeline::Note(const Call& call, FlightRecord::State state) {
  FlightRecord* const record = call.record;
  if (record->signature.sequence != call.signature.sequence) return;
  record->state = state;
  (state == FlightRecord::State::kRunning ? record->started : record->ended) = FlightRecord::Clock::now();
}

// ---- Whoever issues

absl::Status StagedPipeline::Issue(absl::Span<const DeviceCall> calls, Stream* stream) {
  LOCKSTEP_RETURN_IF_ERROR(stream->Record(staging_->ready()));
  LOCKSTEP_RETURN_IF_ERROR(staging_->in()->Wait(staging_->ready()));
  LOCKSTEP_RETURN_IF_ERROR(IssueUntil(calls, staging_->done()));
  return stream->Wait(staging_->done());
}

absl::Status StagedPipeline::IssueUntil(absl::Span<const DeviceCall> calls, Event* end) {
  for (const DeviceCall& call : calls) LOCKSTEP_RETURN_IF_ERROR(IssueCall(std::get<CollectiveRequest>(call)));
  return staging_->out()->Record(end);
}

absl::Status StagedPipeline::IssueCall(const CollectiveRequest& request) {
  // First, or a call that fills the device's queue would wait there for the thread for ever.
  const std::shared_ptr<Call> call = Submit(request);
  const auto* const input = static_cast<const char*>(request.input);
  auto* const output = static_cast<char*>(request.output);
  // Copies in are ahead by the other slots, so that stages overlap where both streams share a queue, too.
  const size_t ahead = staging_->slots() - 1;
  const size_t pieces = call->plan.pieces();
  for (size_t i = 0; i < pieces + ahead; ++i) {
    if (i < pieces) LOCKSTEP_RETURN_IF_ERROR(IssueIn(*call, input, i));
    if (i >= ahead) LOCKSTEP_RETURN_IF_ERROR(IssueOut(*call, output, i - ahead));
  }
  return absl::OkStatus();
}

std::shared_ptr<StagedPipeline::Call> StagedPipeline::Submit(const CollectiveRequest& request) {
  auto call =
      std::make_shared<Call>(StagedPlan(request, communicator_->rank(), communicator_->size(), staging_->slot_bytes()));
  call->first = next_number_;
  next_number_ += call->plan.pieces();
  MutexLock lock(&mu_);
  call->signature = SignatureOf(request, request.algorithm);
  call->signature.sequence = ++sequence_;
  call->record = recorder_.Add(call->signature, request.count * SizeOf(request.dtype));
  ++in_flight_;
  waiting_.push_back(call);
  arrived_.SignalAll();
  return call;
}

absl::Status StagedPipeline::IssueIn(const Call& call, const char* input, size_t index) {
  const uint64_t number = call.first + index;
  Stream* const in = staging_->in();
  Staging::Slot& slot = staging_->slot(number);
  StagedPiece& piece = issued_[number % issued_.size()];
  call.plan.MakePiece(index, slot.data, &piece);
  LOCKSTEP_RETURN_IF_ERROR(in->Wait(slot.emptied.get()));
  for (const StagedCopy& copy : piece.in) {
    LOCKSTEP_RETURN_IF_ERROR(in->Copy(slot.data + copy.slot_offset, input + copy.device_offset, copy.bytes));
  }
  LOCKSTEP_RETURN_IF_ERROR(in->WriteValue(staging_->filled(), Word(number)));
  return in->Record(slot.filled.get());
}

absl::Status StagedPipeline::IssueOut(const Call& call, char* output, size_t index) {
  const uint64_t number = call.first + index;
  Stream* const out = staging_->out();
  Staging::Slot& slot = staging_->slot(number);
  const StagedPiece& piece = issued_[number % issued_.size()];
  LOCKSTEP_RETURN_IF_ERROR(out->Wait(slot.filled.get()));
  LOCKSTEP_RETURN_IF_ERROR(out->AwaitValue(staging_->exchanged(), Word(number)));
  for (const StagedCopy& copy : piece.out) {
    LOCKSTEP_RETURN_IF_ERROR(out->Copy(output + copy.device_offset, slot.data + copy.slot_offset, copy.bytes));
  }
  return out->Record(slot.emptied.get());
}

// ---- The thread "lockstep-staged"

void StagedPipeline::Run() {
  for (auto call = AwaitCall(); call != nullptr; call = AwaitCall()) CarryOut(call.get());
}

std::shared_ptr<StagedPipeline::Call> StagedPipeline::AwaitCall() {
  MutexLock lock(&mu_);
  while (waiting_.empty() && !stopping_) arrived_.WaitUntil(&mu_, Deadline::Infinite());
  if (waiting_.empty()) return nullptr;
  std::shared_ptr<Call> call = std::move(waiting_.front());
  waiting_.pop_front();
  Note(*call, FlightRecord::State::kRunning);
  return call;
}

void StagedPipeline::CarryOut(Call* call) {
  absl::Status status;
  for (size_t index = 0; status.ok() && index < call->pieces; ++index) {
    status = failure_->status();
    if (!status.ok()) break;
    status = Exchange(call, index);
    if (!status.ok()) {
      status = Annotate(status, absl::StrCat(ToString(call->signature), ", piece ", index + 1, " of ", call->pieces));
    } else if (call->first + index < call->last()) {
      LetGo(call->first + index);
    }
  }
  // Each time: it may have been set by somebody who did not tell the others. Before anybody sees the call done.
  if (!status.ok()) fail_(status);
  {
    MutexLock lock(&mu_);
    --in_flight_;
    Note(*call, status.ok() ? FlightRecord::State::kDone : FlightRecord::State::kFailed);
  }
  // The last piece only now: other ranks may have more, and whoever sees the call done may destroy the communicator.
  LetGo(call->last());
}

// Pairs with the stream that awaits it: what the collective wrote is there to be copied.
void StagedPipeline::LetGo(uint64_t number) { staging_->exchanged()->store(Word(number), std::memory_order_release); }

absl::Status StagedPipeline::Exchange(Call* call, size_t index) {
  const bool own = index < call->plan.pieces();
  const uint64_t number = own ? call->first + index : call->last();  // one beyond its own has nothing in its slot
  if (own) LOCKSTEP_RETURN_IF_ERROR(AwaitFilled(number));
  if (index == 0) {
    const std::chrono::milliseconds timeout = call->plan.request().timeout;
    call->deadline = Deadline::After(timeout.count() > 0 ? timeout : options_.timeout);
    if (!call->plan.ranks_know_pieces()) LOCKSTEP_RETURN_IF_ERROR(AgreeOnPieces(call));
  }
  call->plan.MakePiece(index, staging_->slot(number).data, &piece_);
  return RunOnHost(piece_.request, *call);
}

// The device writes the word without telling anybody, so the thread looks at it. It does so only while a call that was
// issued is not copied in; an event for each slot would be no better, since it stands for a later copy once that is
// issued.
absl::Status StagedPipeline::AwaitFilled(uint64_t number) {
  const Deadline deadline = Deadline::After(options_.timeout);
  const auto filled = [&] { return HasComeTo(staging_->filled()->load(std::memory_order_acquire), Word(number)); };
  while (!PollUntil(Deadline::Earlier(deadline, Deadline::AfterMs(kLookMs)), filled)) {
    LOCKSTEP_RETURN_IF_ERROR(failure_->status());
    LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
    if (deadline.passed()) {
      return absl::DeadlineExceededError("the stream that writes its input has not come to it in time");
    }
  }
  return absl::OkStatus();
}

absl::Status StagedPipeline::AgreeOnPieces(Call* call) {
  uint64_t pieces = call->pieces;
  CollectiveRequest largest;
  largest.collective = Collective::kAllReduce;
  largest.dtype = DType::kU64;
  largest.op = ReduceOp::kMax;
  largest.count = 1;
  largest.input = &pieces;
  largest.output = &pieces;
  LOCKSTEP_RETURN_IF_ERROR(RunOnHost(largest, *call));
  call->pieces = pieces;
  return absl::OkStatus();
}

absl::Status StagedPipeline::RunOnHost(CollectiveRequest request, const Call& call) {
  // What is left of the whole call's time. A call without time left still says how it fails.
  request.timeout = std::chrono::milliseconds(call.deadline.infinite() ? 0 : std::max(1, call.deadline.remaining_ms()));
  return communicator_->Run(request);
}

}  // namespace lockstep
