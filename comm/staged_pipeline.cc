#include "comm/staged_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/fork.h"
#include "base/status.h"
#include "comm/signature.h"

namespace lockstep {
namespace {

// How often the thread that waits for a copy looks whether waiting is of use.
constexpr int64_t kLookMs = 20;

Signature SignatureOf(const CollectiveRequest& request, uint64_t sequence) {
  Signature signature;
  signature.sequence = sequence;
  signature.count = request.count;
  signature.collective = request.collective;
  signature.algorithm = request.algorithm;
  signature.dtype = request.dtype;
  signature.op = request.op;
  signature.root = request.root;
  return signature;
}

}  // namespace

// ---- One call

absl::Status StagedOp::Await(Deadline deadline) {
  MutexLock lock(&mu_);
  while (!done().load(std::memory_order_relaxed) && finished_.WaitUntil(&mu_, deadline)) {
  }
  return absl::OkStatus();
}

void StagedOp::Finish(const absl::Status& status) {
  // Signalled under the lock: a waiter may free this as soon as it sees it done.
  MutexLock lock(&mu_);
  Complete(status);
  finished_.SignalAll();
}

// ---- The pipeline, from outside

StagedPipeline::StagedPipeline(std::unique_ptr<Staging> staging, std::unique_ptr<Communicator> communicator,
                               std::shared_ptr<DeviceFailure> failure, std::function<void(const absl::Status&)> fail,
                               Options options)
    : staging_(std::move(staging)),
      communicator_(std::move(communicator)),
      failure_(std::move(failure)),
      fail_(std::move(fail)),
      options_(options),
      fork_generation_(ForkGeneration()),
      plans_(staging_->slots().size()),
      recorder_(options.flight_records),
      thread_("lockstep-staged", [this] { Run(); }),
      done_thread_("lockstep-done", [this] { RunDone(); }) {}

StagedPipeline::~StagedPipeline() {
  // In a forked child there are no threads, and whoever had the lock in the parent has it for ever.
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
  done_thread_.Join();
}

absl::Status StagedPipeline::CheckRoom(size_t calls) const {
  if (fork_generation_ != ForkGeneration()) {
    return absl::FailedPreconditionError("the communicator was made before fork()");
  }
  MutexLock lock(&mu_);
  if (waiting_.size() + calls <= kWaitingMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(waiting_.size(), " collectives on the device wait already"));
}

void StagedPipeline::Submit(Ref<StagedOp> op) {
  MutexLock lock(&mu_);
  const CollectiveRequest& request = op->plan_.request();
  op->pieces_ = op->plan_.pieces();
  op->pieces_agreed_ = op->plan_.ranks_know_pieces();
  op->sequence_ = ++sequence_;
  op->record_ = recorder_.Add(SignatureOf(request, sequence_), request.count * SizeOf(request.dtype));
  ++in_flight_;
  waiting_.push_back(std::move(op));
  arrived_.SignalAll();
}

std::string StagedPipeline::FlightRecords() const {
  MutexLock lock(&mu_);
  return recorder_.ToString(options_.flight_records);
}

void StagedPipeline::Note(const StagedOp& op, FlightRecord::State state) {
  MutexLock lock(&mu_);
  FlightRecord* const record = op.record_;
  if (record->signature.sequence != op.sequence_) return;
  record->state = state;
  (state == FlightRecord::State::kRunning ? record->started : record->ended) = FlightRecord::Clock::now();
}

// ---- The thread "lockstep-staged"

void StagedPipeline::Run() {
  do {
    FillSlots();
    while (!pieces_.empty()) {
      CarryOut(&pieces_.front());
      pieces_.pop_front();
      FillSlots();
    }
  } while (AwaitCall());
  MutexLock lock(&mu_);
  all_left_ = true;
  left_.SignalAll();
}

bool StagedPipeline::AwaitCall() {
  MutexLock lock(&mu_);
  while (waiting_.empty() && !stopping_) arrived_.WaitUntil(&mu_, Deadline::Infinite());
  return !waiting_.empty();
}

Ref<StagedOp> StagedPipeline::TakeCall() {
  MutexLock lock(&mu_);
  if (waiting_.empty()) return nullptr;
  Ref<StagedOp> op = std::move(waiting_.front());
  waiting_.pop_front();
  return op;
}

void StagedPipeline::FillSlots() {
  while (pieces_.size() < staging_->slots().size()) {
    if (filling_ != nullptr && next_index_ == filling_->pieces_) {
      // What comes next, more of this call or another one, is known once its first piece is carried out.
      if (!filling_->pieces_agreed_) return;
      filling_ = nullptr;
    }
    if (filling_ == nullptr) {
      filling_ = TakeCall();
      next_index_ = 0;
      if (filling_ == nullptr) return;
    }
    Piece& piece = pieces_.emplace_back();
    piece.op = filling_;
    piece.index = next_index_++;
    piece.slot = &staging_->slots()[next_slot_];
    piece.plan = &plans_[next_slot_];
    next_slot_ = (next_slot_ + 1) % staging_->slots().size();
    if (!failure_->status().ok()) continue;
    if (absl::Status copied = CopyIn(&piece); !copied.ok()) fail_(copied);
  }
}

absl::Status StagedPipeline::CopyIn(Piece* piece) {
  Stream* const stream = staging_->in();
  piece->op->plan_.MakePiece(piece->index, piece->slot->data, piece->plan);
  if (piece->index == 0 && piece->op->ready_ != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(stream->Wait(piece->op->ready_.get()));
  }
  LOCKSTEP_RETURN_IF_ERROR(stream->Wait(piece->slot->emptied.get()));
  for (const StagedCopy& copy : piece->plan->in) {
    LOCKSTEP_RETURN_IF_ERROR(
        stream->Copy(piece->slot->data + copy.slot_offset, piece->op->input_ + copy.device_offset, copy.bytes));
  }
  return stream->Record(piece->slot->filled.get());
}

void StagedPipeline::CarryOut(Piece* piece) {
  StagedOp* const op = piece->op.get();
  if (piece->index == 0) Note(*op, FlightRecord::State::kRunning);
  absl::Status status = failure_->status();
  if (status.ok()) {
    status = Exchange(piece);
    if (!status.ok()) {
      status = Annotate(status, absl::StrCat(ToString(SignatureOf(op->plan_.request(), op->sequence_)), ", piece ",
                                             piece->index + 1, " of ", op->pieces_));
    }
  }
  // Each time: it may have been set by somebody who did not tell the others.
  if (!status.ok()) fail_(status);
  op->pieces_agreed_ = true;
  if (piece->index + 1 == op->pieces_) Leave(piece);
}

absl::Status StagedPipeline::Exchange(Piece* piece) {
  StagedOp* const op = piece->op.get();
  LOCKSTEP_RETURN_IF_ERROR(AwaitFilled(*piece));
  if (piece->index == 0) {
    const std::chrono::milliseconds timeout = op->plan_.request().timeout;
    op->deadline_ = Deadline::After(timeout.count() > 0 ? timeout : options_.timeout);
    LOCKSTEP_RETURN_IF_ERROR(AgreeOnPieces(op));
  }
  LOCKSTEP_RETURN_IF_ERROR(RunOnHost(piece->plan->request, op));
  return CopyOut(*piece);
}

absl::Status StagedPipeline::AwaitFilled(const Piece& piece) {
  const Deadline deadline = Deadline::After(options_.timeout);
  while (true) {
    const absl::Status filled =
        piece.slot->filled->Synchronize(Deadline::Earlier(deadline, Deadline::AfterMs(kLookMs)));
    if (!absl::IsDeadlineExceeded(filled)) return filled;
    LOCKSTEP_RETURN_IF_ERROR(failure_->status());
    LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the stream that writes its input has not come to it in ", options_.timeout.count(), " ms"));
    }
  }
}

absl::Status StagedPipeline::AgreeOnPieces(StagedOp* op) {
  if (op->pieces_agreed_) return absl::OkStatus();
  uint64_t pieces = op->pieces_;
  CollectiveRequest largest;
  largest.collective = Collective::kAllReduce;
  largest.dtype = DType::kU64;
  largest.op = ReduceOp::kMax;
  largest.count = 1;
  largest.input = &pieces;
  largest.output = &pieces;
  LOCKSTEP_RETURN_IF_ERROR(RunOnHost(largest, op));
  op->pieces_ = pieces;
  return absl::OkStatus();
}

absl::Status StagedPipeline::RunOnHost(CollectiveRequest request, StagedOp* op) {
  // What is left of the whole call's time. A call without time left still says how it fails.
  request.timeout = std::chrono::milliseconds(op->deadline_.infinite() ? 0 : std::max(1, op->deadline_.remaining_ms()));
  return communicator_->Run(request);
}

absl::Status StagedPipeline::CopyOut(const Piece& piece) {
  for (const StagedCopy& copy : piece.plan->out) {
    LOCKSTEP_RETURN_IF_ERROR(
        staging_->out()->Copy(piece.op->output_ + copy.device_offset, piece.slot->data + copy.slot_offset, copy.bytes));
  }
  return staging_->out()->Record(piece.slot->emptied.get());
}

void StagedPipeline::Leave(Piece* piece) {
  // Copies in of a call that failed may still be under way.
  absl::Status recorded = staging_->out()->Wait(piece->slot->filled.get());
  recorded.Update(staging_->out()->Record(piece->op->left_.get()));
  if (!recorded.ok()) fail_(recorded);
  MutexLock lock(&mu_);
  --in_flight_;
  leaving_.push_back(std::move(piece->op));
  left_.SignalAll();
}

// ---- The thread "lockstep-done"

Ref<StagedOp> StagedPipeline::AwaitLeaving() {
  MutexLock lock(&mu_);
  while (leaving_.empty() && !all_left_) left_.WaitUntil(&mu_, Deadline::Infinite());
  if (leaving_.empty()) return nullptr;
  Ref<StagedOp> op = std::move(leaving_.front());
  leaving_.pop_front();
  return op;
}

void StagedPipeline::RunDone() {
  for (Ref<StagedOp> op = AwaitLeaving(); op != nullptr; op = AwaitLeaving()) {
    EventWork left(failure_, std::move(op->left_));
    left.Await(Deadline::Infinite()).IgnoreError();
    if (!left.status().ok()) fail_(left.status());
    Note(*op, left.status().ok() ? FlightRecord::State::kDone : FlightRecord::State::kFailed);
    op->Finish(left.status());
  }
}

}  // namespace lockstep
