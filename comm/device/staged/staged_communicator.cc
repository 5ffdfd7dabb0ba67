#include "comm/device/staged/staged_communicator.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "base/fork.h"
#include "base/poll.h"
#include "base/rank.h"
#include "base/ref.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "comm/byte_objects.h"
#include "comm/device/device_work.h"
#include "comm/plan/call_plan.h"
#include "comm/record/signature.h"

namespace lockstep {
namespace {

constexpr int kSlotsMax = 64;

// How often the thread that waits for a copy looks whether waiting is of use.
constexpr int64_t kLookMs = 20;

// As the words have it.
uint32_t Word(uint64_t number) { return static_cast<uint32_t>(number); }

absl::Status CheckOptions(const StagedOptions& options, int size) {
  if (options.slots < 1 || options.slots > kSlotsMax) {
    return absl::InvalidArgumentError(absl::StrCat("staging by ", options.slots, " slots: 1 to ", kSlotsMax));
  }
  const size_t min = StagedPlan::SlotBytesMin(size);
  if (options.chunk_bytes < min) {
    return absl::InvalidArgumentError(
        absl::StrCat("staging by chunks of ", options.chunk_bytes, " bytes: at least ", min, " in a world of ", size));
  }
  return absl::OkStatus();
}

// Every rank's part of the set-up went well, and alike. What a rank says is its options and its error.
absl::Status CheckAlike(Communicator* host, const std::string& options, const absl::Status& mine) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> errors, AllGatherBytes(host, std::string(mine.message())));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherBytes(host, options));
  LOCKSTEP_RETURN_IF_ERROR(mine);
  for (int r = 0; r < host->size(); ++r) {
    if (!errors[r].empty()) return absl::UnavailableError(absl::StrCat("staging: rank ", r, ": ", errors[r]));
  }
  for (int r = 1; r < host->size(); ++r) {
    if (all[r] == all[0]) continue;
    return WithFailedRank(absl::FailedPreconditionError(absl::StrCat("the ranks stage differently: rank 0 by ", all[0],
                                                                     ", rank ", r, " by ", all[r])),
                          host->WorldRank(Rank(r)).value());
  }
  return absl::OkStatus();
}

}  // namespace

// One call on its way.
struct StagedCommunicator::Call {
  explicit Call(StagedPlan call_plan) : plan(std::move(call_plan)), pieces(plan.pieces()) {}

  uint64_t last() const { return first + plan.pieces() - 1; }

  const StagedPlan plan;
  uint64_t first = 0;  // the number of its first piece on the device

  // The thread's.
  size_t pieces;                             // of all ranks; those beyond this rank's own are not on its device
  Deadline deadline = Deadline::Infinite();  // from the first collective on
  Signature signature;
  // With that signature's sequence, or another one's by now. The communicator's mutex guards it.
  FlightRecord* record = nullptr;
};

StagedCommunicator::StagedCommunicator(HostPart host, Device* device, StagedOptions options)
    : DeviceCommunicator(std::move(host), device, options.timeout),
      options_(std::move(options)),
      fork_generation_(ForkGeneration()),
      recorder_(options_.flight_records) {}

absl::StatusOr<std::unique_ptr<StagedCommunicator>> StagedCommunicator::Create(HostPart host, Device* device,
                                                                               StagedOptions options) {
  auto made = std::unique_ptr<StagedCommunicator>(new StagedCommunicator(std::move(host), device, std::move(options)));
  StagedCommunicator* const self = made.get();
  absl::Status mine = CheckOptions(self->options_, self->size());
  if (mine.ok()) {
    absl::StatusOr<std::unique_ptr<Staging>> created =
        Staging::Create(device, self->options_.slots, self->options_.chunk_bytes);
    mine = created.status();
    if (created.ok()) self->staging_ = *std::move(created);
  }
  const std::string alike = absl::StrCat(self->options_.slots, " slots of ", self->options_.chunk_bytes, " bytes");
  LOCKSTEP_RETURN_IF_ERROR(CheckAlike(self->host(), alike, mine));
  LOCKSTEP_ASSIGN_OR_RETURN(self->pieces_, self->host()->Duplicate());
  self->issued_.resize(self->staging_->slots());
  self->thread_ = Thread("lockstep-staged", [self] { self->RunThread(); });
  return made;
}

StagedCommunicator::~StagedCommunicator() {
  Close();
  // In a forked child there is no thread, and whoever had the lock in the parent has it for ever.
  if (pieces_ == nullptr || fork_generation_ != ForkGeneration()) return;
  size_t in_flight = 0;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    in_flight = in_flight_;
    arrived_.SignalAll();
  }
  if (in_flight > 0 && pieces_->status().ok()) {
    pieces_->Abort(absl::StrCat("destroyed with ", in_flight, " collectives on a device in flight"));
  }
  thread_.Join();
}

absl::Status StagedCommunicator::status() const {
  if (absl::Status status = DeviceCommunicator::status(); !status.ok()) return status;
  failure()->Set(pieces_->status());
  return failure()->status();
}

void StagedCommunicator::OnFailure(const absl::Status& status) {
  if (pieces_->status().ok()) pieces_->Abort(std::string(status.message()));
}

void StagedCommunicator::OnLeave() {
  DeviceCommunicator::OnLeave();
  pieces_->Leave();  // what it has in flight ends there
}

std::string StagedCommunicator::FlightRecords() const {
  std::string text = absl::StrCat(DeviceCommunicator::FlightRecords(), "on ", Name(device()), ":\n");
  {
    MutexLock lock(&mu_);
    text += recorder_.ToString(options_.flight_records);
  }
  return absl::StrCat(text, "in pieces:\n", pieces_->FlightRecords());
}

std::string StagedCommunicator::DescribeDevice() const {
  return absl::StrCat(Name(device()), ": staged through ", options_.slots, " slots of ", options_.chunk_bytes,
                      " bytes on the host", options_.reason.empty() ? "" : ": ", options_.reason);
}

absl::StatusOr<std::unique_ptr<Communicator>> StagedCommunicator::MakePart(std::unique_ptr<Communicator> part,
                                                                           int /*color*/, int /*key*/) {
  if (part == nullptr) return nullptr;
  return Create(std::move(part), accelerator(), options_);
}

absl::Status StagedCommunicator::CheckOnDevice(const DeviceCall& call) {
  const auto* const request = std::get_if<CollectiveRequest>(&call);
  if (request == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("messages of buffers on ", Name(device()), " are not staged: copy them to the host"));
  }
  // What the host communicator would refuse only when the call comes to it.
  CollectiveRequest on_host = *request;
  on_host.device = DeviceId();
  return pieces_->Prepare(on_host).status();
}

// ---- Whoever issues

absl::Status StagedCommunicator::CheckRoom(size_t calls) const {
  if (fork_generation_ != ForkGeneration()) {
    return absl::FailedPreconditionError("the communicator was made before fork()");
  }
  MutexLock lock(&mu_);
  if (waiting_.size() + calls <= kWaitingMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(waiting_.size(), " collectives on the device wait already"));
}

absl::Status StagedCommunicator::FailIfNotOk(const absl::Status& issued) {
  if (issued.ok()) return issued;
  Fail(Annotate(issued, absl::StrCat("staging on ", Name(device()))));
  return status();
}

absl::StatusOr<Work> StagedCommunicator::StartOnDevice(absl::Span<const DeviceCall> calls) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRoom(calls.size()));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Event> end, accelerator()->CreateEvent());
  LOCKSTEP_RETURN_IF_ERROR(FailIfNotOk(IssueUntil(calls, end.get())));
  // Calls are done in their order, and fail with all that come later.
  return Work(MakeRef<EventWork>(failure(), std::move(end), NameNext(calls)));
}

absl::Status StagedCommunicator::IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) {
  if (stream->capturing()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the stream is being captured, and collectives on ", Name(device()),
                     " are staged through the host: a graph cannot repeat them (", options_.reason, ")"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckRoom(calls.size()));
  return FailIfNotOk(IssueBehind(calls, stream));
}

absl::Status StagedCommunicator::IssueBehind(absl::Span<const DeviceCall> calls, Stream* stream) {
  LOCKSTEP_RETURN_IF_ERROR(stream->Record(staging_->ready()));
  LOCKSTEP_RETURN_IF_ERROR(staging_->in()->Wait(staging_->ready()));
  LOCKSTEP_RETURN_IF_ERROR(IssueUntil(calls, staging_->done()));
  return stream->Wait(staging_->done());
}

absl::Status StagedCommunicator::IssueUntil(absl::Span<const DeviceCall> calls, Event* end) {
  for (const DeviceCall& call : calls) LOCKSTEP_RETURN_IF_ERROR(IssueCall(std::get<CollectiveRequest>(call)));
  return staging_->out()->Record(end);
}

absl::Status StagedCommunicator::IssueCall(const CollectiveRequest& request) {
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

std::shared_ptr<StagedCommunicator::Call> StagedCommunicator::Submit(const CollectiveRequest& request) {
  auto call = std::make_shared<Call>(StagedPlan(request, pieces_->rank(), pieces_->size(), staging_->slot_bytes()));
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

absl::Status StagedCommunicator::IssueIn(const Call& call, const char* input, size_t index) {
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

absl::Status StagedCommunicator::IssueOut(const Call& call, char* output, size_t index) {
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

void StagedCommunicator::Note(const Call& call, FlightRecord::State state) {
  FlightRecord* const record = call.record;
  if (record->signature.sequence != call.signature.sequence) return;
  record->state = state;
  (state == FlightRecord::State::kRunning ? record->started : record->ended) = FlightRecord::Clock::now();
}

void StagedCommunicator::RunThread() {
  for (auto call = AwaitCall(); call != nullptr; call = AwaitCall()) Execute(call.get());
}

std::shared_ptr<StagedCommunicator::Call> StagedCommunicator::AwaitCall() {
  MutexLock lock(&mu_);
  while (waiting_.empty() && !stopping_) arrived_.WaitUntil(&mu_, Deadline::Infinite());
  if (waiting_.empty()) return nullptr;
  std::shared_ptr<Call> call = std::move(waiting_.front());
  waiting_.pop_front();
  Note(*call, FlightRecord::State::kRunning);
  return call;
}

void StagedCommunicator::Execute(Call* call) {
  absl::Status status;
  for (size_t index = 0; status.ok() && index < call->pieces; ++index) {
    status = failure()->status();
    if (!status.ok()) break;
    status = Exchange(call, index);
    if (!status.ok()) {
      status = Annotate(status, absl::StrCat(ToString(call->signature), ", piece ", index + 1, " of ", call->pieces));
    } else if (call->first + index < call->last()) {
      LetGo(call->first + index);
    }
  }
  // Each time: it may have been set by somebody who did not tell the others. Before anybody sees the call done.
  if (!status.ok()) {
    // Both communicators hear of what ends all, and the host's tells it in fewer words.
    const absl::Status host_status = host()->status();
    Fail(host_status.ok() ? status : host_status);
  }
  {
    MutexLock lock(&mu_);
    --in_flight_;
    Note(*call, status.ok() ? FlightRecord::State::kDone : FlightRecord::State::kFailed);
  }
  // The last piece only now: other ranks may have more, and whoever sees the call done may destroy the communicator.
  LetGo(call->last());
}

// Pairs with the stream that awaits it: what the collective wrote is there to be copied.
void StagedCommunicator::LetGo(uint64_t number) {
  staging_->exchanged()->store(Word(number), std::memory_order_release);
}

absl::Status StagedCommunicator::Exchange(Call* call, size_t index) {
  const bool own = index < call->plan.pieces();
  const uint64_t number = own ? call->first + index : call->last();  // one beyond its own has nothing in its slot
  if (own) LOCKSTEP_RETURN_IF_ERROR(AwaitFilled(number));
  if (index == 0) {
    call->deadline = Deadline::After(TimeoutOr(call->plan.request().timeout));
    if (!call->plan.ranks_know_pieces()) LOCKSTEP_RETURN_IF_ERROR(AgreeOnPieces(call));
  }
  call->plan.MakePiece(index, staging_->slot(number).data, &piece_);
  return RunOnHost(piece_.request, *call);
}

// The device writes the word without telling anybody, so the thread looks at it. It does so only while a call that was
// issued is not copied in; an event for each slot would be no better, since it stands for a later copy once that is
// issued.
absl::Status StagedCommunicator::AwaitFilled(uint64_t number) {
  const Deadline deadline = Deadline::After(timeout());
  const auto filled = [&] { return HasComeTo(staging_->filled()->load(std::memory_order_acquire), Word(number)); };
  while (!PollUntil(Deadline::Earlier(deadline, Deadline::AfterMs(kLookMs)), filled)) {
    LOCKSTEP_RETURN_IF_ERROR(failure()->status());
    LOCKSTEP_RETURN_IF_ERROR(pieces_->status());
    if (deadline.passed()) {
      return absl::DeadlineExceededError("the stream that writes its input has not come to it in time");
    }
  }
  return absl::OkStatus();
}

absl::Status StagedCommunicator::AgreeOnPieces(Call* call) {
  uint64_t pieces = call->pieces;
  CollectiveRequest largest = MakeRequest(Collective::kAllReduce, DType::kU64, 1, &pieces, &pieces);
  largest.op = ReduceOp::kMax;
  LOCKSTEP_RETURN_IF_ERROR(RunOnHost(largest, *call));
  call->pieces = pieces;
  return absl::OkStatus();
}

absl::Status StagedCommunicator::RunOnHost(CollectiveRequest request, const Call& call) {
  // What is left of the whole call's time. A call without time left still says how it fails.
  request.timeout = std::chrono::milliseconds(call.deadline.infinite() ? 0 : std::max(1, call.deadline.remaining_ms()));
  return pieces_->Run(request);
}

}  // namespace lockstep
