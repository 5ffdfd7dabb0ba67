#include "comm/transport_communicator.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/block_layout.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/scale.h"

namespace lockstep {
namespace {

// How long a failure noticed here waits for the hub's announcement, which knows the cause better. The hub takes half a second
// at most to look at a suspect.
constexpr std::chrono::milliseconds kAnnouncementGrace{2000};

// The hub first asks every rank how far it is.
constexpr std::chrono::milliseconds kLateGrace{5000};

constexpr size_t kSchedulesMax = 1024;
constexpr size_t kFlightRecordsPrinted = 16;

// What an average or a premultiplied sum multiplies each input by; 1 for everything else.
double InputFactor(const CollectiveRequest& request, int size) {
  if (!HasReduction(request.collective)) return 1.0;
  if (request.op == ReduceOp::kPremulSum) return request.factor;
  if (request.op == ReduceOp::kAvg && !IsInteger(request.dtype)) return 1.0 / size;
  return 1.0;
}

// The wire carries sums; what makes them averages happens before and after.
ReduceOp WireOp(ReduceOp op) { return op == ReduceOp::kAvg || op == ReduceOp::kPremulSum ? ReduceOp::kSum : op; }

bool OneBlockPerRank(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter;
}

// What the collective has no use for does not make calls differ.
Signature SignatureOf(const CollectiveRequest& request, Algorithm algorithm, uint64_t sequence, bool check) {
  Signature signature;
  signature.sequence = sequence;
  signature.count = request.count;
  signature.collective = request.collective;
  signature.algorithm = algorithm;
  signature.dtype = request.dtype;
  if (HasReduction(request.collective)) signature.op = request.op;
  if (HasRoot(request.collective)) signature.root = request.root;
  signature.check = check;
  return signature;
}

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

}  // namespace

// A job with what goes before and after it.
struct TransportCommunicator::Call : Job {
  WorkState* work = nullptr;
  std::shared_ptr<WorkState> background;  // holds `work` when nobody need wait for it
  size_t divide_count = 0;                // integer average: elements of the output to divide by the size
  std::vector<char> prescaled;
};

class TransportCommunicator::CallState : public WorkState {
 public:
  explicit CallState(ProgressEngine* engine) : engine_(engine) {}
  void Await(Deadline deadline) override { engine_->Drive(done(), deadline, /*spin=*/true); }

 private:
  ProgressEngine* const engine_;
};

TransportCommunicator::TransportCommunicator(ProgressEngine* engine, ControlChannel* control,
                                             TransportCommunicatorOptions options)
    : engine_(engine),
      control_(control),
      options_(std::move(options)),
      executor_(engine->transport(), options_.channel, options_.chunk_bytes, this),
      recorder_(options_.flight_records) {
  MutexLock lock(mu());
  engine_->AddClient(this);
}

TransportCommunicator::~TransportCommunicator() {
  MutexLock lock(mu());
  if (status_.ok()) {
    status_ = absl::CancelledError("the communicator was destroyed");
    executor_.FailAll(status_);
    engine_->Notify();
  }
  engine_->RemoveClient(this);
}

Rank TransportCommunicator::rank() const { return engine_->transport()->rank(); }
int TransportCommunicator::size() const { return engine_->transport()->size(); }

absl::Status TransportCommunicator::Run(const CollectiveRequest& request) {
  if (!options_.checked) return RunUnchecked(request);
  MutexLock lock(&checked_mu_);
  LOCKSTEP_RETURN_IF_ERROR(CompareSignatures(request));
  return RunUnchecked(request);
}

absl::Status TransportCommunicator::RunUnchecked(const CollectiveRequest& request, bool check) {
  CallState state(engine_);
  {
    MutexLock lock(mu());
    LOCKSTEP_RETURN_IF_ERROR(Begin(request, &state, nullptr, check));
  }
  // The operation's deadline, not ours, bounds this: the state must stay until the executor is done with it.
  engine_->Drive(state.done(), Deadline::Infinite(), /*spin=*/!request.background);
  return state.status();
}

absl::StatusOr<Work> TransportCommunicator::Start(const CollectiveRequest& request) {
  auto state = std::make_shared<CallState>(engine_);
  const auto start = [&]() -> absl::Status {
    MutexLock lock(mu());
    return Begin(request, state.get(), state);
  };
  if (!options_.checked) {
    LOCKSTEP_RETURN_IF_ERROR(start());
    return Work(state);
  }
  MutexLock lock(&checked_mu_);
  LOCKSTEP_RETURN_IF_ERROR(CompareSignatures(request));
  LOCKSTEP_RETURN_IF_ERROR(start());
  return Work(state);
}

absl::Status TransportCommunicator::Begin(const CollectiveRequest& request, WorkState* work,
                                          std::shared_ptr<WorkState> background, bool check) {
  if (!status_.ok()) return status_;
  const Algorithm algorithm = ChooseAlgorithm(request);
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<const PreparedSchedule> schedule, FindSchedule(request, algorithm));
  Reduction reduction;
  if (HasReduction(request.collective)) {
    LOCKSTEP_RETURN_IF_ERROR(CheckDefined(request.dtype, request.op));
    reduction.dtype = request.dtype;
    reduction.op = WireOp(request.op);
    LOCKSTEP_ASSIGN_OR_RETURN(reduction.combine, kernels::CombineFor(request.dtype, reduction.op));
  }

  if (free_calls_.empty()) {
    calls_.push_back(std::make_unique<Call>());
    free_calls_.push_back(calls_.back().get());
  }
  Call* const call = free_calls_.back();
  const size_t element_bytes = SizeOf(request.dtype);
  const int blocks = schedule->schedule().blocks;
  const size_t block_count = OneBlockPerRank(request.collective) ? request.count / size() : 0;
  if (OneBlockPerRank(request.collective)) {
    LOCKSTEP_ASSIGN_OR_RETURN(call->layout, BlockLayout::Equal(block_count, element_bytes, blocks));
  } else if (blocks > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(call->layout, BlockLayout::Split(request.count, element_bytes, blocks));
  } else {
    call->layout = BlockLayout();
  }
  call->schedule = std::move(schedule);
  call->element_bytes = element_bytes;
  call->input = static_cast<const char*>(request.input);
  call->output = static_cast<char*>(request.output);
  call->input_begin = request.collective == Collective::kAllGather ? block_count * rank().value() : 0;
  call->output_begin = request.collective == Collective::kReduceScatter ? block_count * rank().value() : 0;
  call->reduction = reduction;
  const bool at_root = request.collective != Collective::kReduce || rank() == request.root;
  const bool divide = HasReduction(request.collective) && request.op == ReduceOp::kAvg && IsInteger(request.dtype);
  call->divide_count = !divide || !at_root                                ? 0
                       : request.collective == Collective::kReduceScatter ? block_count
                                                                          : request.count;
  LOCKSTEP_RETURN_IF_ERROR(Prescale(request, call));

  const uint64_t sequence = started_.load(std::memory_order_relaxed) + 1;
  call->signature = SignatureOf(request, algorithm, sequence, check);
  call->deadline = Deadline::After(request.timeout.count() > 0 ? request.timeout : options_.timeout);
  call->record = recorder_.Add(call->signature, request.count * element_bytes);
  call->work = work;
  call->background = std::move(background);
  free_calls_.pop_back();
  started_.store(sequence, std::memory_order_relaxed);
  engine_->NoteDeadline(call->deadline);
  if (call->background != nullptr) engine_->AddBackgroundWork();
  executor_.Start(call);
  return absl::OkStatus();
}

Algorithm TransportCommunicator::ChooseAlgorithm(const CollectiveRequest& request) const {
  if (request.algorithm != Algorithm::kAuto) return request.algorithm;
  return Select(request.collective, size(), request.count * SizeOf(request.dtype), options_.algorithms);
}

absl::StatusOr<std::shared_ptr<const PreparedSchedule>> TransportCommunicator::FindSchedule(
    const CollectiveRequest& request, Algorithm algorithm) {
  const Rank root = HasRoot(request.collective) ? request.root : Rank(0);
  const auto key = std::make_tuple(request.collective, algorithm, root);
  if (const auto it = schedules_.find(key); it != schedules_.end()) return it->second;
  LOCKSTEP_ASSIGN_OR_RETURN(Schedule schedule, BuildSchedule(request.collective, algorithm, rank(), size(), root));
  if (schedules_.size() >= kSchedulesMax) schedules_.clear();
  auto prepared = std::make_shared<const PreparedSchedule>(std::move(schedule));
  schedules_.emplace(key, prepared);
  return prepared;
}

absl::Status TransportCommunicator::Prescale(const CollectiveRequest& request, Call* call) {
  const double factor = InputFactor(request, size());
  if (factor == 1.0) return absl::OkStatus();
  void* target = request.output;
  const bool whole_output = request.collective == Collective::kAllReduce ||
                            (request.collective == Collective::kReduce && rank() == request.root);
  if (!whole_output) {
    // The input is not ours to change and the output does not hold a vector.
    const size_t bytes = request.count * SizeOf(request.dtype);
    if (call->prescaled.size() < bytes) call->prescaled.resize(bytes);
    target = call->prescaled.data();
  }
  LOCKSTEP_RETURN_IF_ERROR(kernels::Scale(request.dtype, target, request.input, request.count, factor));
  call->input = static_cast<const char*>(target);
  return absl::OkStatus();
}

absl::Status TransportCommunicator::CompareSignatures(const CollectiveRequest& request) {
  // The exchange itself comes before it.
  const uint64_t sequence = started_.load(std::memory_order_relaxed) + 2;
  const Signature mine = SignatureOf(request, ChooseAlgorithm(request), sequence, /*check=*/false);
  const Envelope envelope = Encode(mine);
  std::vector<Envelope> all(size());
  CollectiveRequest exchange;
  exchange.collective = Collective::kAllGather;
  exchange.count = all.size() * sizeof(Envelope);
  exchange.input = envelope.data();
  exchange.output = all.data();
  exchange.timeout = request.timeout;
  LOCKSTEP_RETURN_IF_ERROR(RunUnchecked(exchange, /*check=*/true));
  std::string text;
  for (int r = 0; r < size(); ++r) {
    absl::StrAppend(&text, r == 0 ? "" : "; ", CalledBy(Rank(r), DecodeSignature(all[r])));
  }
  for (const Envelope& other : all) {
    if (other != all[0]) return absl::FailedPreconditionError(absl::StrCat("the ranks' collectives differ: ", text));
  }
  return absl::OkStatus();
}

void TransportCommunicator::OnDone(Job* job, const absl::Status& status) {
  Call* const call = static_cast<Call*>(job);
  absl::Status result = status;
  if (result.ok() && call->divide_count > 0) {
    result = kernels::DivideTowardZero(call->signature.dtype, call->output, call->divide_count, size());
  }
  if (call->record->signature.sequence == call->signature.sequence) {
    call->record->state = result.ok() ? FlightRecord::State::kDone : FlightRecord::State::kFailed;
    call->record->ended = FlightRecord::Clock::now();
  }
  if (result.ok()) {
    // A later one that needs nobody may be done first.
    const std::deque<Job*>& left = executor_.jobs();
    completed_.store(left.empty() ? started_.load(std::memory_order_relaxed) : left.front()->signature.sequence - 1,
                     std::memory_order_relaxed);
  }
  if (call->background != nullptr) engine_->RemoveBackgroundWork();
  // A waiter may free its state as soon as it sees it complete: it is not touched afterwards.
  const std::shared_ptr<WorkState> background = std::move(call->background);
  WorkState* const work = call->work;
  call->work = nullptr;
  call->background = nullptr;
  call->schedule = nullptr;
  free_calls_.push_back(call);
  work->Complete(std::move(result));
  engine_->Notify();
}

void TransportCommunicator::OnOperationFailed(Job* job, const absl::Status& status, Rank peer,
                                              const Operation& operation) {
  absl::Status error = Annotate(status, ToString(job->signature));
  const Signature theirs = DecodeSignature(operation.arrived);
  const bool mismatch = absl::IsFailedPrecondition(status) && operation.arrived != job->internal.envelope;
  if (mismatch) error = MismatchError(rank(), job->signature, peer, theirs);
  // A broken connection ends the communicator; that it may come back is of no use to anybody here.
  if (absl::IsUnavailable(error)) error = absl::AbortedError(error.message());
  if (control_ == nullptr) {
    ExpectFailure(error, std::chrono::milliseconds::zero());
    return;
  }
  mismatch ? control_->Report(options_.channel, error) : control_->Report(options_.channel, error, peer);
  ExpectFailure(error, kAnnouncementGrace);
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
  for (Job* job : executor_.jobs()) {
    if (job->late) continue;
    if (!job->deadline.passed()) {
      next = Deadline::Earlier(next, job->deadline);
      continue;
    }
    job->late = true;
    const std::string operation = ToString(job->signature);
    if (control_ != nullptr) control_->ReportLate(options_.channel, job->signature.sequence, operation);
    ExpectFailure(absl::DeadlineExceededError(absl::StrCat(operation, " did not finish in time")),
                  control_ != nullptr ? kLateGrace : std::chrono::milliseconds::zero());
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
  LOCKSTEP_LOG(kError) << "rank " << rank() << ": communicator failed: " << status.ToString()
                       << "\nlast collectives, newest last:\n"
                       << recorder_.ToString(kFlightRecordsPrinted);
  executor_.FailAll(status);
  engine_->Notify();
}

void TransportCommunicator::OnFailure(const absl::Status& status) {
  MutexLock lock(mu());
  Fail(status);
}

void TransportCommunicator::Abort(const std::string& reason) {
  absl::Status error = absl::AbortedError(absl::StrCat("rank ", rank().value(), " aborted the communicator: ", reason));
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

void TransportCommunicator::PostNote(uint64_t topic, const std::string& text) {
  if (control_ != nullptr) control_->PostNote(options_.channel, topic, text);
}

absl::StatusOr<std::vector<std::pair<Rank, std::string>>> TransportCommunicator::AwaitNotes(uint64_t topic, int count,
                                                                                            Deadline deadline) {
  if (control_ == nullptr) return absl::UnimplementedError("notes need a control channel");
  return control_->AwaitNotes(options_.channel, topic, count, deadline);
}

std::string TransportCommunicator::FlightRecords() const {
  MutexLock lock(mu());
  return recorder_.ToString(options_.flight_records);
}

std::string TransportCommunicator::Describe() const { return options_.description; }

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
