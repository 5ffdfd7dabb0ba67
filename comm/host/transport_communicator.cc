#include "comm/host/transport_communicator.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/ref.h"
#include "base/status.h"
#include "comm/host/transport_call.h"
#include "comm/record/failure_report.h"
#include "kernels/cpu/cast.h"

namespace lockstep {
namespace {

// How long a failure noticed here waits for the coordinator's announcement, which knows the cause better. The coordinator
// takes half a second at most to look at a suspect.
constexpr std::chrono::milliseconds kAnnouncementGrace{5000};

// The coordinator first asks every rank how far it is.
constexpr std::chrono::milliseconds kLateGrace{5000};

// More calls than this in flight, or with handles that somebody keeps, and starting one allocates.
constexpr size_t kStatesMax = 1024;

// How often the caller of a collective in shared memory goes on with it before it waits like any other.
constexpr int kLooks = 100;

// In a world of one: a longer vector is timed.
constexpr size_t kAtOnceBytesMax = 4096;

// How often it looks for the other's message in an exchange of short ones: each look is a system call.
constexpr int kLooksAtMessages = 32;

std::string CalledBy(Rank rank, const Signature& signature) {
  return absl::StrCat("rank ", rank.value(), " called ", ToString(signature));
}

// The same text on both ranks that notice it: the lower rank comes first.
absl::Status MismatchError(Rank a, const Signature& called_by_a, Rank b, const Signature& called_by_b) {
  const bool in_order = a < b;
  return absl::FailedPreconditionError(
      absl::StrCat("the ranks' collectives differ: ", in_order ? CalledBy(a, called_by_a) : CalledBy(b, called_by_b),
                   "; ", in_order ? CalledBy(b, called_by_b) : CalledBy(a, called_by_a)));
}

// Calls that differ in nothing but what one sends and the other expects.
absl::Status PairCountsError(Rank source, Rank target, const Signature& expected, const Signature& arrived) {
  Signature call = expected;
  call.count = 0;
  return absl::FailedPreconditionError(absl::StrCat(ToString(call), ": rank ", source.value(), " sends ", arrived.count,
                                                    " elements to rank ", target.value(), ", which expects ",
                                                    expected.count));
}

// A peer makes the same call now, but made a different one before.
absl::Status HistoryError(const FlightRecorder& recorder, uint64_t sequence, Rank rank, Rank peer) {
  constexpr uint64_t kCallsTold = 4;
  std::string calls;
  for (uint64_t i = sequence - std::min(sequence, kCallsTold); i < sequence; ++i) {
    const FlightRecord* const record = recorder.Find(i);
    if (record != nullptr) absl::StrAppend(&calls, calls.empty() ? "" : ", ", ToString(record->signature));
  }
  return absl::FailedPreconditionError(absl::StrCat("the ranks' collectives differ: rank ", rank.value(), " called ",
                                                    calls, ", which rank ", peer.value(), " did not call alike"));
}

bool DifferInHistoryOnly(Signature a, const Signature& b) {
  a.history = b.history;
  return a == b;
}

bool DifferInCountOnly(Signature a, const Signature& b) {
  a.count = b.count;
  return a == b;
}

Rank RankIn(const std::vector<Rank>& ranks, Rank transport_rank) {
  if (ranks.empty()) return transport_rank;
  const auto it = std::find(ranks.begin(), ranks.end(), transport_rank);
  LOCKSTEP_CHECK(it != ranks.end()) << "rank " << transport_rank << " of the transport is no rank of the communicator";
  return Rank(static_cast<int>(it - ranks.begin()));
}

// The end of an integer average.
absl::Status DivideOutput(DType dtype, void* output, const Pieces* pieces, size_t count, int size) {
  if (pieces == nullptr) return kernels::DivideTowardZero(dtype, output, count, size);
  for (size_t position = 0; position < pieces->bytes();) {
    const Pieces::Run run = pieces->At(position);
    LOCKSTEP_RETURN_IF_ERROR(kernels::DivideTowardZero(dtype, run.data, run.bytes / SizeOf(dtype), size));
    position += run.bytes;
  }
  return absl::OkStatus();
}

std::vector<Rank> AllRanks(int size) {
  std::vector<Rank> ranks;
  for (int r = 0; r < size; ++r) ranks.emplace_back(r);
  return ranks;
}

}  // namespace

TransportCommunicator::TransportCommunicator(ProgressEngine* engine, ControlChannel* control,
                                             TransportCommunicatorOptions options)
    : Communicator(options.timeout),
      engine_(engine),
      control_(control),
      options_(std::move(options)),
      rank_(RankIn(options_.ranks, engine->transport()->rank())),
      size_(options_.ranks.empty() ? engine->transport()->size() : static_cast<int>(options_.ranks.size())),
      members_(options_.ranks.empty() ? AllRanks(size_) : options_.ranks),
      registered_memory_(std::make_shared<RegisteredMemory>(engine)),
      executor_(engine->transport(), options_.channel, options_.ranks, this),
      messages_(engine->transport(), ChannelRegistry::MessagesOf(options_.channel), rank_, size_, options_.ranks, this),
      recorder_(options_.flight_records),
      plans_({rank_, size_, options_.chunk_bytes, options_.algorithms, options_.deterministic, options_.shape,
              options_.costs}) {
  {
    MutexLock lock(mu());
    engine_->AddClient(this);
  }
  if (options_.registry != nullptr) options_.registry->Add(options_.channel, this);
}

TransportCommunicator::~TransportCommunicator() {
  TransportCommunicator::OnLeave();
  MutexLock lock(mu());
  engine_->RemoveClient(this);
}

void TransportCommunicator::OnLeave() {
  if (options_.registry != nullptr) options_.registry->Remove(options_.channel);
  {
    MutexLock lock(mu());
    if (group_ != nullptr) {
      const absl::Status open =
          absl::FailedPreconditionError(absl::StrCat("the communicator was destroyed with a group open: its ",
                                                     group_->members.size(), " calls were not launched"));
      LOCKSTEP_LOG(kError) << "rank " << rank_ << ": " << open.message();
      group_->Drop(open);
      engine_->Notify();
      group_ = nullptr;
    }
    if (status_.ok()) {
      std::string left = FirstInFlight().text;
      if (left.empty() && holder() != nullptr) left = holder();
      if (control_ != nullptr && !left.empty()) {
        control_->Report(
            options_.channel,
            WithFailedRank(absl::AbortedError(absl::StrCat("rank ", rank_.value(), " destroyed the communicator with ",
                                                           left, " in flight")),
                           TransportRank(rank_).value()));
      } else if (control_ != nullptr) {
        control_->CloseChannel(options_.channel, size_, started_.load(std::memory_order_relaxed));
      }
      status_ = absl::CancelledError("the communicator was destroyed");
      FailCalls(status_);
    }
  }
  registered_memory_->Close();
}

absl::Status TransportCommunicator::Run(const CollectiveRequest& request) { return RunPlanned(request, nullptr); }

absl::StatusOr<Work> TransportCommunicator::Start(const CollectiveRequest& request) {
  Ref<CallState> state;
  LOCKSTEP_RETURN_IF_ERROR(StartPlanned(request, nullptr, &state));
  return Work(std::move(state));
}

absl::Status TransportCommunicator::RunPlanned(const CollectiveRequest& request, const Plan* plan) {
  if (const absl::Status held = CheckHeld(request.by_holder); !held.ok()) return Refuse(held);
  if (!options_.checked || InGroup()) return RunUnchecked(request, plan, /*check=*/false);
  MutexLock lock(&checked_mu_);
  LOCKSTEP_RETURN_IF_ERROR(CompareSignatures(request, plan));
  return RunUnchecked(request, plan, /*check=*/false);
}

absl::Status TransportCommunicator::RunUnchecked(const CollectiveRequest& request, const Plan* plan, bool check) {
  CallState state(engine_);
  size_t divide_count = 0;
  {
    MutexLock lock(mu());
    if (Collecting()) return Collect(request, plan, TakeState());
    LOCKSTEP_ASSIGN_OR_RETURN(Call* const call, PrepareCall(request, plan));
    divide_count = call->call_plan->divide_count;
    LaunchCall(call, request, &state, nullptr, check);
  }
  // The operation's deadline, not ours, bounds this: the state must stay until the executor is done with it.
  engine_->Drive(state.done(), Deadline::Infinite(), /*spin=*/!request.background);
  if (!state.status().ok() || divide_count == 0) return state.status();
  return DivideOutput(request.dtype, request.output, request.output_pieces.get(), divide_count, size_);
}

absl::Status TransportCommunicator::StartPlanned(const CollectiveRequest& request, const Plan* plan,
                                                 Ref<CallState>* state) {
  if (const absl::Status held = CheckHeld(request.by_holder); !held.ok()) return Refuse(held);
  if (!options_.checked || InGroup()) return StartUnchecked(request, plan, state);
  MutexLock lock(&checked_mu_);
  LOCKSTEP_RETURN_IF_ERROR(CompareSignatures(request, plan));
  return StartUnchecked(request, plan, state);
}

absl::Status TransportCommunicator::StartUnchecked(const CollectiveRequest& request, const Plan* plan,
                                                   Ref<CallState>* state) {
  MutexLock lock(mu());
  if (*state == nullptr) *state = TakeState();
  if (Collecting()) return Collect(request, plan, *state);
  LOCKSTEP_ASSIGN_OR_RETURN(Call* const call, PrepareCall(request, plan));
  LaunchCall(call, request, state->get(), *state, /*check=*/false);
  if (request.wait.count() == 0) return absl::OkStatus();
  mu()->Unlock();
  engine_->Drive((*state)->done(), Deadline::After(request.wait), /*spin=*/!request.background);
  mu()->Lock();
  if (call->work != state->get()) return absl::OkStatus();
  call->counted = true;
  engine_->AddBackgroundWork();
  return absl::OkStatus();
}

Ref<TransportCommunicator::CallState> TransportCommunicator::TakeState() {
  // That of the call that was started longest ago is the likeliest to be free. Some are held for longer: they are passed over.
  for (int tries = 0; tries < 2 && !states_.empty(); ++tries) {
    const Ref<CallState>& oldest = states_[next_state_];
    next_state_ = next_state_ + 1 < states_.size() ? next_state_ + 1 : 0;
    if (!oldest.unique()) continue;
    oldest->Reset();
    return oldest;
  }
  Ref<CallState> state = MakeRef<CallState>(engine_);
  if (states_.size() < kStatesMax) states_.push_back(state);
  return state;
}

absl::StatusOr<TransportCommunicator::Call*> TransportCommunicator::PrepareCall(const CollectiveRequest& request,
                                                                                const Plan* plan) {
  if (!status_.ok()) return Over(NameOf(request));
  if (plan == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(plan, FindPlan(request));
  }
  if (free_calls_.empty()) {
    calls_.push_back(std::make_unique<Call>());
    free_calls_.push_back(calls_.back().get());
  }
  Call* const call = free_calls_.back();
  free_calls_.pop_back();
  // Most often it has just been used for the like, and counting references is a good part of what posting costs.
  if (call->call_plan != *plan) call->call_plan = *plan;
  call->plan = call->call_plan->execution.get();
  call->input = static_cast<const char*>(request.input);
  call->output = static_cast<char*>(request.output);
  if (ABSL_PREDICT_FALSE(request.input_pieces != nullptr || request.output_pieces != nullptr)) {
    const absl::Status prepared = PreparePieces(request, call);
    if (prepared.ok()) return call;
    FreeCall(call);
    return prepared;
  }
  const double factor = InputFactor(request, size_);
  const bool exchange_in_place = request.collective == Collective::kAllToAll && request.input == request.output;
  const size_t count = call->call_plan->input_count;
  if (count == 0 || (factor == 1.0 && !exchange_in_place)) return call;

  // Other threads get on meanwhile; the call is nobody's but ours.
  mu()->Unlock();
  void* target = request.output;
  if (!call->call_plan->prepare_in_output) {
    call->prepared.resize(std::max(call->prepared.size(), call->call_plan->vector_bytes));
    target = call->prepared.data();
  }
  absl::Status status;
  if (exchange_in_place) {
    std::memcpy(target, request.input, call->call_plan->vector_bytes);
  } else {
    status = kernels::Scale(request.dtype, target, request.input, count, factor);
  }
  call->input = static_cast<const char*>(target);
  mu()->Lock();
  if (!status_.ok()) status.Update(Over(NameOf(request)));
  if (status.ok()) return call;
  FreeCall(call);
  return status;
}

void TransportCommunicator::LaunchCall(Call* call, const CollectiveRequest& request, CallState* work,
                                       Ref<CallState> background, bool check) {
  const uint64_t sequence = started_.load(std::memory_order_relaxed) + 1;
  call->signature = call->call_plan->signature;
  call->signature.sequence = sequence;
  call->signature.check = check;
  call->signature.history = history_.bits();
  call->work = work;
  call->background = std::move(background);
  call->record = nullptr;
  started_.store(sequence, std::memory_order_relaxed);
  if (ABSL_PREDICT_FALSE(size_ == 1)) return CopyAlone(call);
  const std::chrono::milliseconds timeout = TimeoutOr(request.timeout);
  // Messages fall through: they are the longer way, and a jump would be a good part of posting a short one.
  const bool in_shared_memory = ABSL_PREDICT_FALSE(UsesSharedMemory(call->signature.algorithm));
  const bool begins = in_shared_memory && memory_executor_->idle();
  call->counted = call->background != nullptr && request.wait.count() == 0;
  const bool stays = !call->counted && engine_->spins() && !request.background;
  call->at_once = in_shared_memory ? begins && Has(call->signature.algorithm, algorithms::kInline)
                                   : stays && call->plan->exchange().has_value();
  if (in_shared_memory) memory_executor_->Start(call);
  // The slot that it may have written takes as long to come to a peer as what follows takes.
  history_.Add(call->signature);
  call->record = recorder_.Add(call->signature, call->call_plan->vector_bytes, {});
  if (begins) call->record->state = FlightRecord::State::kRunning;
  if (!call->at_once) TimeCall(call, timeout);
  if (call->counted) engine_->AddBackgroundWork();
  if (in_shared_memory) {
    // Ranks in step come to the barrier at once, which is less than it takes to begin to wait.
    int looks = stays ? kLooks : 1;
    do {
      memory_executor_->Poll();
    } while (!work->done().load(std::memory_order_acquire) && !memory_executor_->busy() && --looks > 0);
  } else if (!call->at_once) {
    return executor_.Start(call);
  } else if (executor_.StartAtOnce(call, kLooksAtMessages)) {
    return OnDone(call, absl::OkStatus());
  }
  if (work->done().load(std::memory_order_acquire)) return;
  if (call->at_once) TimeCall(call, timeout);
  call->at_once = false;
  if (in_shared_memory && memory_executor_->busy()) engine_->Notify();
}

void TransportCommunicator::CopyAlone(Call* call) {
  const size_t bytes = call->call_plan->vector_bytes;
  call->at_once = bytes <= kAtOnceBytesMax;
  call->record = recorder_.Add(call->signature, bytes, {});
  if (!call->at_once) call->record->queued = call->record->started = FlightRecord::Clock::now();
  if (call->in_pieces()) {
    OperandSteps().Copy(call->Caller(Window::kOutput, 0), call->Caller(Window::kInput, 0), bytes);
  } else if (call->signature.collective != Collective::kBarrier && call->input != call->output && bytes > 0) {
    std::memcpy(call->output, call->input, bytes);
  }
  OnDone(call, absl::OkStatus());
}

void TransportCommunicator::TimeCall(Call* call, std::chrono::milliseconds timeout) {
  call->deadline = Deadline::After(timeout);
  // Reading the clock is a good part of what posting costs, and the deadline has done it.
  const auto now = call->deadline.infinite() ? FlightRecord::Clock::now() : call->deadline.time() - timeout;
  call->record->queued = now;
  if (call->record->state == FlightRecord::State::kRunning) call->record->started = now;
  engine_->NoteDeadline(call->deadline);
}

absl::Status TransportCommunicator::CompareSignatures(const CollectiveRequest& request, const Plan* plan) {
  Signature mine;
  {
    MutexLock lock(mu());
    if (!status_.ok()) return Over(NameOf(request));
    if (plan == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(plan, FindPlan(request));
    }
    mine = (*plan)->signature;
    // The exchange itself comes before it.
    mine.sequence = started_.load(std::memory_order_relaxed) + 2;
  }
  const Envelope envelope = Encode(mine);
  std::vector<Envelope> all(size_);
  CollectiveRequest exchange =
      MakeRequest(Collective::kAllGather, DType::kU8, all.size() * sizeof(Envelope), envelope.data(), all.data());
  exchange.timeout = request.timeout;
  const absl::Status exchanged = RunUnchecked(exchange, nullptr, /*check=*/true);
  if (!exchanged.ok()) {
    // The caller's collective is what did not begin.
    MutexLock lock(mu());
    return status_.ok() ? exchanged : Over(NameOf(request));
  }
  ErrorInfo info = NameOf(mine).info;
  const auto differs = std::find_if(all.begin(), all.end(), [&](const Envelope& other) { return other != all[0]; });
  if (differs != all.end()) info.failed_rank = TransportRank(Rank(static_cast<int>(differs - all.begin()))).value();
  return WithErrorInfo(lockstep::CompareSignatures(all), info);
}

void TransportCommunicator::OnDone(Job* job, const absl::Status& status) {
  Call* const call = static_cast<Call*>(job);
  absl::Status result = status;
  const size_t divide_count = call->call_plan->divide_count;
  // Where somebody waits, it is done by him, outside the lock.
  if (result.ok() && divide_count > 0 && call->background != nullptr) {
    result = DivideOutput(call->signature.dtype, call->output, call->output_pieces.get(), divide_count, size_);
  }
  if (result.ok() && call->copied_to != nullptr) call->copied_to->Write(0, call->copied_to->bytes(), call->output);
  const bool recorded = call->record->signature.sequence == call->signature.sequence;
  if (!result.ok()) {
    result = OperationError(result, NameOf(call->signature), recorded ? ProgressOf(*call->record) : "");
  }
  if (recorded) {
    call->record->state = result.ok() ? FlightRecord::State::kDone : FlightRecord::State::kFailed;
    if (!call->at_once) call->record->ended = FlightRecord::Clock::now();
  }
  if (result.ok()) {
    // A later one that needs nobody may be done first.
    const Job* const left = FirstJob();
    completed_.store(left == nullptr ? started_.load(std::memory_order_relaxed) : left->signature.sequence - 1,
                     std::memory_order_relaxed);
  }
  if (call->counted) engine_->RemoveBackgroundWork();
  const Ref<CallState> background = std::move(call->background);
  CallState* const work = call->work;
  call->work = nullptr;
  call->background = nullptr;
  FreeCall(call);
  Complete(work, std::move(result));
}

const Job* TransportCommunicator::FirstJob() const {
  const Job* first = executor_.jobs().empty() ? nullptr : executor_.jobs().front();
  if (memory_executor_ == nullptr || memory_executor_->jobs().empty()) return first;
  const Job* const in_shared_memory = memory_executor_->jobs().front();
  return first == nullptr || in_shared_memory->signature.sequence < first->signature.sequence ? in_shared_memory
                                                                                              : first;
}

OperationName TransportCommunicator::FirstInFlight() const {
  if (const Job* const job = FirstJob()) return NameOf(job->signature);
  return messages_.calls().empty() ? OperationName() : NameOf(*messages_.calls().front());
}

void TransportCommunicator::Complete(CallState* work, absl::Status status) {
  const Ref<CallState> group = std::move(work->group);
  work->group = nullptr;
  if (group != nullptr) group->first_error.Update(status);
  // A waiter may free its state as soon as it sees it complete: it is not touched afterwards.
  work->Complete(std::move(status));
  if (group != nullptr && --group->members_left == 0) group->Complete(group->first_error);
  engine_->Notify();
}

void TransportCommunicator::OnOperationFailed(Job* job, const absl::Status& status, Rank peer, const Envelope& expected,
                                              const Operation& operation) {
  // Of a connection that was refused, which is FAILED_PRECONDITION as well, nothing has arrived.
  const bool mismatch = operation.arrived != expected && operation.arrived != Envelope();
  if (!absl::IsFailedPrecondition(status) || !mismatch) {
    return ReportBroken(status, NameOf(job->signature), peer);
  }
  const Signature theirs = DecodeSignature(operation.arrived);
  const Signature ours = DecodeSignature(expected);
  const bool pair_counts = ours.pair_counts && DifferInCountOnly(ours, theirs);
  absl::Status error = pair_counts ? PairCountsError(peer, rank_, ours, theirs)
                       : DifferInHistoryOnly(ours, theirs)
                           ? HistoryError(recorder_, job->signature.sequence, rank_, peer)
                           : MismatchError(rank_, job->signature, peer, theirs);
  error = WithFailedRank(std::move(error), TransportRank(std::max(rank_, peer)).value());
  if (control_ != nullptr) control_->Report(options_.channel, error);
  ExpectFailure(error, control_ != nullptr ? kAnnouncementGrace : std::chrono::milliseconds::zero());
}

void TransportCommunicator::ReportBroken(const absl::Status& error, const OperationName& operation, Rank peer) {
  // A broken connection ends the communicator; that it may come back is of no use to anybody here. What else goes wrong, goes
  // wrong in this process, and the others hear of it before they suspect it.
  const bool broken = absl::IsUnavailable(error);
  absl::Status report = OperationError(error, operation);
  report = broken ? Reworded(report, absl::StatusCode::kAborted, report.message())
                  : Annotate(report, absl::StrCat("rank ", rank_.value()));
  report = WithFailedRank(std::move(report), TransportRank(broken ? peer : rank_).value());
  if (control_ != nullptr && broken) control_->Report(options_.channel, report, TransportRank(peer));
  if (control_ != nullptr && !broken) control_->Report(options_.channel, report);
  ExpectFailure(report, control_ != nullptr ? kAnnouncementGrace : std::chrono::milliseconds::zero());
}

void TransportCommunicator::ExpectFailure(const absl::Status& fallback, std::chrono::milliseconds grace) {
  if (failure_expected_ || !status_.ok()) return;
  failure_expected_ = true;
  fallback_ = fallback;
  fallback_deadline_ = Deadline::After(grace);
  engine_->NoteDeadline(fallback_deadline_);
}

Deadline TransportCommunicator::CheckDeadlines() {
  if (!status_.ok()) return Deadline::Infinite();
  Deadline next = Deadline::Infinite();
  const auto late = [&](const auto& call) {
    if (!call.deadline.passed()) next = Deadline::Earlier(next, call.deadline);
    return call.deadline.passed();
  };
  const std::chrono::milliseconds grace = control_ != nullptr ? kLateGrace : std::chrono::milliseconds::zero();
  const auto check = [&](const auto& jobs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) {
    for (Job* job : jobs) {
      if (job->late || !late(*job)) continue;
      job->late = true;
      const std::string operation = ToString(job->signature);
      if (control_ != nullptr) control_->ReportLate(options_.channel, job->signature.sequence, operation);
      ExpectFailure(absl::DeadlineExceededError(absl::StrCat(operation, " did not finish in time")), grace);
    }
  };
  check(executor_.jobs());
  if (memory_executor_ != nullptr) check(memory_executor_->jobs());
  for (MessageCall* call : messages_.calls()) {
    if (call->late || !late(*call)) continue;
    call->late = true;
    ErrorInfo info = NameOf(*call).info;
    if (call->peer != kAnySource) info.failed_rank = TransportRank(call->peer).value();
    const absl::Status error =
        WithErrorInfo(absl::DeadlineExceededError(
                          absl::StrCat("rank ", rank_.value(), ": ", ToString(*call), " did not finish in time")),
                      info);
    if (control_ != nullptr) control_->Report(options_.channel, error);
    ExpectFailure(error, grace);
  }
  if (failure_expected_) {
    if (fallback_deadline_.passed()) {
      Fail(fallback_);
    } else {
      next = Deadline::Earlier(next, fallback_deadline_);
    }
  }
  return next;
}

void TransportCommunicator::Fail(const absl::Status& status) {
  if (!status_.ok()) return;
  status_ = status;
  ended_in_ = FirstInFlight();
  // That this rank's world was closed is no failure.
  if (!absl::IsCancelled(status)) {
    ReportFailure({TransportRank(rank_), engine_->transport()->size(), options_.launched_as.get()},
                  absl::StrCat("rank ", rank_.value(), ": communicator failed", ended_in_.text.empty() ? "" : " in ",
                               ended_in_.text),
                  status, recorder_.ToString(options_.flight_records));
  }
  FailCalls(status);
}

void TransportCommunicator::FailCalls(const absl::Status& status) {
  executor_.FailAll(status);
  messages_.FailAll(status);
  if (memory_executor_ != nullptr) memory_executor_->FailAll(status);
  for (AskedArena* const asked : asked_arenas_) asked->state.Complete(status);
  asked_arenas_.clear();
  engine_->Notify();
}

void TransportCommunicator::OnFailure(const absl::Status& status) {
  MutexLock lock(mu());
  Fail(status);
}

void TransportCommunicator::Abort(const std::string& reason) {
  if (left()) return;  // the others have been told already
  absl::Status error =
      WithFailedRank(absl::AbortedError(absl::StrCat("rank ", rank_.value(), " aborted the communicator: ", reason)),
                     TransportRank(rank_).value());
  if (control_ != nullptr) {
    control_->Report(options_.channel, error);
    error = control_->AwaitFailure(options_.channel, error, Deadline::After(kAnnouncementGrace));
  }
  OnFailure(error);
}

absl::Status TransportCommunicator::Supports(Collective collective, DType dtype, ReduceOp op) const {
  return HasReduction(collective) ? CheckDefined(dtype, op) : absl::OkStatus();
}

absl::Status TransportCommunicator::status() const {
  MutexLock lock(mu());
  return status_;
}

void TransportCommunicator::PostMessage(uint64_t topic, const std::string& text) {
  if (control_ != nullptr) control_->PostMessage(options_.channel, topic, text);
}

absl::StatusOr<std::vector<std::pair<Rank, std::string>>> TransportCommunicator::AwaitMessages(uint64_t topic,
                                                                                               int count,
                                                                                               Deadline deadline) {
  if (control_ == nullptr) return absl::UnimplementedError("posted messages need a control channel");
  return control_->AwaitMessages(options_.channel, topic, count, deadline);
}

absl::Status TransportCommunicator::MonitoredBarrier(std::chrono::milliseconds timeout, std::vector<Rank>* missing) {
  if (missing != nullptr) missing->clear();
  if (control_ == nullptr) return Communicator::MonitoredBarrier(timeout, missing);
  OperationName operation;
  operation.text = "monitored barrier";
  operation.info.collective = "monitored_barrier";
  {
    MutexLock lock(mu());
    if (!status_.ok()) return Over(operation);
  }
  timeout = TimeoutOr(timeout);
  const uint64_t sequence = monitored_barriers_.fetch_add(1, std::memory_order_relaxed) + 1;
  absl::StrAppend(&operation.text, " #", sequence);
  operation.info.sequence = sequence;
  const absl::StatusOr<std::vector<Rank>> came = control_->EnterBarrier(options_.channel, sequence, size_, timeout);
  if (!came.ok()) {
    // What was announced may have come here before it came to OnFailure.
    const absl::Status failure = control_->AwaitFailure(options_.channel, absl::OkStatus(), Deadline::Now());
    if (!failure.ok()) OnFailure(failure);
    const absl::Status ended = status();
    return OperationError(ended.ok() ? came.status() : ended, operation);
  }
  std::string absent;
  bool late = false;
  int count = 0;
  for (int r = 0; r < size_; ++r) {
    if (std::find(came->begin(), came->end(), TransportRank(Rank(r))) != came->end()) continue;
    if (count == 0) operation.info.failed_rank = TransportRank(Rank(r)).value();
    absl::StrAppend(&absent, count++ == 0 ? "" : ", ", r);
    if (missing != nullptr) missing->emplace_back(r);
    late = late || Rank(r) == rank_;
  }
  if (count == 0) return absl::OkStatus();
  const absl::Status error = absl::DeadlineExceededError(absl::StrCat(
      operation.text, ": ", count == 1 ? "rank " : "ranks ", absent, count == 1 ? " has" : " have", " not come in time",
      late ? absl::StrCat("; this one, rank ", rank_.value(), ", came when it was over") : ""));
  return WithErrorInfo(error, operation.info);
}

std::string TransportCommunicator::FlightRecords() const {
  MutexLock lock(mu());
  return recorder_.ToString(options_.flight_records);
}

std::string TransportCommunicator::Describe() const {
  MutexLock lock(mu());
  return absl::StrCat(options_.description, no_memory_);
}

std::string TransportCommunicator::CalledAs(uint64_t sequence) const {
  if (!mu()->TryLock()) return "";
  const FlightRecord* const record = recorder_.Find(sequence);
  std::string text = record == nullptr ? "" : ToString(record->signature);
  mu()->Unlock();
  return text;
}

Progress TransportCommunicator::progress() const {
  return {started_.load(std::memory_order_relaxed), completed_.load(std::memory_order_relaxed)};
}

}  // namespace lockstep
