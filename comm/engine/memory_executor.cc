#include "comm/engine/memory_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/fork.h"
#include "comm/plan/execution_plan.h"
#include "comm/plan/prepared_schedule.h"
#include "comm/record/signature.h"
#include "comm/schedule/schedule_memory.h"
#include "comm/schedule/stage.h"

namespace lockstep {
namespace {

// Bytes that one call reads and writes before it lets others have the engine's mutex.
constexpr size_t kShareBytes = size_t{1} << 20;
// Pieces of a step end at whole cache lines, and are no smaller than this for each operand.
constexpr size_t kLineBytes = 64;
constexpr size_t kPieceBytesMin = size_t{4} << 10;

// Looks at a slot before sleeping peers are woken, which begins with waiting until one's own slots are written: a peer that
// comes at the same time is there by then.
constexpr int kLooksBeforeRinging = 50;

static_assert(kShareBytesMax == sizeof(BarrierPayload), "what a schedule shares is what a slot holds");

static_assert(2 * (Pieces::kSharedMax + 1) * 2 * sizeof(uint64_t) <= kStageSlotBytes, "two tables fit into a slot");

// Of a part of the arena: the slots, then the stage, on pages of its own.
constexpr size_t kPageBytes = 4096;
size_t StageOffset(int size) { return (ShmBarrier::BytesPerRank(size) + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Without a call of memcmp, which takes as long as looking at four words does.
bool Equal(const Envelope& a, const Envelope& b) {
  std::array<uint64_t, sizeof(Envelope) / sizeof(uint64_t)> words_of_a;
  std::array<uint64_t, sizeof(Envelope) / sizeof(uint64_t)> words_of_b;
  std::memcpy(words_of_a.data(), a.data(), sizeof(Envelope));
  std::memcpy(words_of_b.data(), b.data(), sizeof(Envelope));
  uint64_t difference = 0;
  for (size_t i = 0; i < words_of_a.size(); ++i) difference |= words_of_a[i] ^ words_of_b[i];
  return difference == 0;
}

Rank RankIn(const std::vector<Rank>& ranks, Rank transport_rank) {
  const auto it = std::find(ranks.begin(), ranks.end(), transport_rank);
  LOCKSTEP_CHECK(it != ranks.end()) << "rank " << transport_rank << " of the transport is no rank of the communicator";
  return Rank(static_cast<int>(it - ranks.begin()));
}

}  // namespace

size_t MemoryExecutor::ArenaBytesPerRank(int size) { return StageOffset(size) + kStageSlots * StageSlotBytes(size); }

MemoryExecutor::MemoryExecutor(ShmTransport* transport, std::unique_ptr<SymmetricArena> arena,
                               const std::vector<Rank>& ranks, SymmetricMemory* memory, Executor::Owner* owner)
    : transport_(transport),
      ranks_(ranks),
      memory_(memory),
      owner_(owner),
      fork_generation_(ForkGeneration()),
      arena_(std::move(arena)),
      slot_bytes_(StageSlotBytes(static_cast<int>(ranks_.size()))),
      barrier_(transport, *arena_, ranks_, RankIn(ranks_, transport->rank())),
      places_(ranks_.size()),
      pieces_(ranks_.size()) {
  LOCKSTEP_CHECK(arena_->bytes_per_rank() == ArenaBytesPerRank(barrier_.size()))
      << arena_->bytes_per_rank() << " bytes";
  for (const Rank member : ranks_) stage_.push_back(arena_->base(member) + StageOffset(barrier_.size()));
}

MemoryExecutor::~MemoryExecutor() {
  LOCKSTEP_CHECK(jobs_.empty()) << jobs_.size() << " jobs left";
  memory_->Close();
}

void MemoryExecutor::Start(Job* job) {
  LOCKSTEP_CHECK(!failed_);
  job->late = false;
  job->failing = false;
  memory_->OnJobStarted();
  jobs_.push_back(job);
  if (jobs_.size() > 1 || advancing_) return;
  Begin(job);
  // The child has none of the memory.
  const PreparedSchedule& schedule = job->plan->schedule();
  const bool begins_with_barrier = schedule.phases() > 1 && schedule.phase(0).begin == schedule.phase(0).end;
  if (begins_with_barrier && fork_generation_ == ForkGeneration()) Enter(schedule.phase(0).end);
}

bool MemoryExecutor::Advance() {
  // A job that is done may have started another, which the call that is under way goes on with.
  if (advancing_) return false;
  advancing_ = true;
  moved_ = false;
  busy_ = false;
  share_bytes_left_ = kShareBytes;
  barrier_.Ring();  // of the slot that Start has written
  while (!jobs_.empty() && !jobs_.front()->failing) {
    if (!begun_) Begin(jobs_.front());
    if (!AdvanceJob()) break;
    EndFirst(absl::OkStatus());
  }
  barrier_.Ring();
  if (moved_) transport_->NoteMovement();
  advancing_ = false;
  return moved_;
}

// What follows is inline where that makes one function of a short call's way: a part of what the shortest take.

inline void MemoryExecutor::Begin(Job* job) {
  begun_ = true;
  in_pieces_ = job->in_pieces();
  envelope_ = Encode(job->signature);
  const ExecutionPlan& plan = *job->plan;
  if (scratch_.size() < plan.scratch_bytes()) scratch_.resize(plan.scratch_bytes());
  // The input is only ever read: the verifier proves it.
  windows_[static_cast<int>(Window::kInput)] = const_cast<char*>(job->input);
  windows_[static_cast<int>(Window::kOutput)] = job->output;
  windows_[static_cast<int>(Window::kScratch)] = scratch_.data();
  BeginTick(0);
  if (job->record == nullptr) return;
  job->record->state = FlightRecord::State::kRunning;
  job->record->started = FlightRecord::Clock::now();
}

inline void MemoryExecutor::BeginTick(int64_t tick) {
  tick_ = tick;
  entered_ = false;
  arrived_ = 0;
  BeginPhase(static_cast<int>(std::min<int64_t>(tick, jobs_.front()->plan->schedule().phases() - 1)));
}

inline void MemoryExecutor::BeginPhase(int phase) {
  phase_ = phase;
  step_ = phase < 0 ? 0 : jobs_.front()->plan->schedule().phase(phase).begin;
  done_ = 0;
}

inline bool MemoryExecutor::AdvanceJob() {
  // The child has none of the memory.
  if (fork_generation_ != ForkGeneration()) {
    Fail(absl::FailedPreconditionError("memory shared before fork() is of no use in the child"), barrier_.rank(),
         envelope_);
    return false;
  }
  const ExecutionPlan& plan = *jobs_.front()->plan;
  const int last_phase = plan.schedule().phases() - 1;
  const int64_t last_tick = plan.rounds() - 1 + last_phase;
  while (true) {
    if (!WorkInTick()) return false;
    if (tick_ == last_tick) return true;
    // Of a staged schedule all barriers are alike.
    const auto before_barrier = static_cast<int>(std::min<int64_t>(tick_, last_phase - 1));
    if (!PassBarrier(plan.schedule().phase(before_barrier).end)) return false;
    BeginTick(tick_ + 1);
  }
}

inline bool MemoryExecutor::WorkInTick() {
  const ExecutionPlan& plan = *jobs_.front()->plan;
  // The round that began first comes first.
  for (; phase_ >= 0 && tick_ - phase_ < plan.rounds(); BeginPhase(phase_ - 1)) {
    for (; step_ < plan.schedule().phase(phase_).end; ++step_, done_ = 0) {
      if (!Work(tick_ - phase_)) return false;
    }
  }
  return true;
}

inline void MemoryExecutor::EndFirst(const absl::Status& status) {
  Job* const job = jobs_.front();
  jobs_.erase(jobs_.begin());
  begun_ = false;
  // A direct one has used a slot for the tables of pieces, if there are any.
  const Algorithm algorithm = job->plan->schedule().schedule().algorithm;
  if (IsStaged(algorithm) || Has(algorithm, algorithms::kDirect)) {
    next_slot_ = static_cast<int>((next_slot_ + job->plan->rounds()) % kStageSlots);
  }
  if (ABSL_PREDICT_FALSE(in_pieces_)) {
    for (auto& of_rank : pieces_) of_rank = {};
  }
  memory_->OnJobDone();
  owner_->OnDone(job, status);
}

inline bool MemoryExecutor::PassBarrier(int barrier) {
  if (!entered_) Enter(barrier);
  const auto neighbour = [this](int distance) {
    const int rank = barrier_.rank().value() + distance;
    return Rank(rank < barrier_.size() ? rank : rank - barrier_.size());
  };
  for (; arrived_ < barrier_.size() - 1; ++arrived_) {
    const Rank peer = neighbour(1 + arrived_);
    const BarrierSlot* const slot = Look(peer);
    if (slot == nullptr) {
      // The peer may have failed because of another one, which is not looked at before it comes.
      bool look_on = transport_->status(ranks_[peer.value()]).ok();
      for (int distance = arrived_ + 2; look_on && distance < barrier_.size(); ++distance) {
        const Rank other = neighbour(distance);
        look_on = transport_->status(ranks_[other.value()]).ok() || Look(other) != nullptr;
      }
      return false;
    }
    moved_ = true;
    if (!Equal(slot->envelope, envelope_)) {
      Fail(absl::FailedPreconditionError(absl::StrCat("rank ", peer.value(), " came with another collective")), peer,
           slot->envelope);
      return false;
    }
    if (!TakeSlot(barrier, peer, slot->payload)) return false;
  }
  // Who came before the last one may have taken its slot back, and the last one have read what its memory held afterwards.
  for (int distance = 1; distance < arrived_; ++distance) {
    if (Look(neighbour(distance)) == nullptr) return false;
  }
  return true;
}

inline bool MemoryExecutor::TellsPlaces(int barrier) const {
  const Schedule& schedule = jobs_.front()->plan->schedule().schedule();
  return barrier == 0 && schedule.steps[0].kind == Step::Kind::kBarrier && !IsStaged(schedule.algorithm);
}

inline void MemoryExecutor::Enter(int barrier) {
  entered_ = true;
  moved_ = true;
  const Job& job = *jobs_.front();
  const Step& step = job.plan->schedule().step(barrier);
  BarrierPayload payload = {};
  if (step.kind == Step::Kind::kShare) {
    const ExecutionPlan::StepLayout& layout = job.plan->step(barrier);
    LOCKSTEP_CHECK(job.plan->scratch_block_bytes() <= payload.size()) << job.plan->scratch_block_bytes() << " bytes";
    const size_t bytes = layout.elements * job.plan->element_bytes();
    if (ABSL_PREDICT_FALSE(in_pieces_) && bytes > 0) {
      steps_in_pieces_.Copy({reinterpret_cast<char*>(payload.data())},
                            job.Caller(step.source.window, layout.source_offset), bytes);
    } else if (bytes > 0) {
      std::memcpy(payload.data(), windows_[static_cast<int>(step.source.window)] + layout.source_offset, bytes);
    }
    (void)TakeSlot(barrier, barrier_.rank(), payload);
  } else if (TellsPlaces(barrier)) {
    places_[barrier_.rank().value()] = TellPlaces(job);
    std::memcpy(payload.data(), &places_[barrier_.rank().value()], sizeof(payload));
  }
  barrier_.Enter(envelope_, payload);
}

inline const BarrierSlot* MemoryExecutor::Look(Rank peer) {
  const BarrierSlot* slot = barrier_.Arrived(peer);
  for (int looks = 1; slot == nullptr && !barrier_.rung() && looks < kLooksBeforeRinging; ++looks) {
    slot = barrier_.Arrived(peer);
  }
  if (slot != nullptr) return slot;
  const absl::Status& connection = transport_->status(ranks_[peer.value()]);
  if (connection.ok()) return nullptr;
  // What it wrote before it ended is there by now.
  slot = barrier_.Arrived(peer);
  if (slot == nullptr) {
    Fail(absl::UnavailableError(absl::StrCat("barrier with rank ", peer.value(), " over ",
                                             transport_->DescribePeer(ranks_[peer.value()]), ": ",
                                             connection.message())),
         peer, envelope_);
  }
  return slot;
}

MemoryExecutor::Places MemoryExecutor::TellPlaces(const Job& job) {
  Places own;
  TableEntry* table = reinterpret_cast<TableEntry*>(Table(barrier_.rank()));
  const auto tell = [&](const Pieces& pieces) {
    LOCKSTEP_CHECK(pieces.plain() && pieces.pieces() <= Pieces::kSharedMax) << pieces.pieces() << " pieces";
    for (size_t position = 0; position < pieces.bytes();) {
      const Pieces::Run run = pieces.At(position);
      *table++ = {position, memory_->Find(run.data, run.bytes)};
      position += run.bytes;
    }
    *table++ = {pieces.bytes(), SymmetricMemory::kNowhere};
    return static_cast<uint32_t>(pieces.pieces());
  };
  // One byte: the peers, who know what they need of it, look whether that is there.
  if (job.input_pieces != nullptr) {
    own.input_pieces = tell(*job.input_pieces);
  } else {
    own.input = memory_->Find(job.input, 1);
  }
  if (job.output_pieces == nullptr) {
    own.output = job.input == job.output ? own.input : memory_->Find(job.output, 1);
  } else if (job.output_pieces.get() == job.input_pieces.get()) {
    own.output_pieces = Places::kOneTable;
  } else {
    own.output_pieces = tell(*job.output_pieces);
  }
  return own;
}

bool MemoryExecutor::ReadTable(Rank peer, const TableEntry* table, uint32_t count, Ref<Pieces>* pieces) {
  *pieces = MakeRef<Pieces>(DType::kU8);
  for (uint32_t i = 0; i < count; ++i) {
    const size_t bytes = table[i + 1].begin - table[i].begin;
    char* const data = memory_->Address(peer, table[i].place, bytes);
    if (data == nullptr) return false;
    (*pieces)->AddPlain(data, bytes);
  }
  return true;
}

inline bool MemoryExecutor::TakeSlot(int barrier, Rank peer, const BarrierPayload& payload) {
  const ExecutionPlan& plan = *jobs_.front()->plan;
  if (plan.schedule().step(barrier).kind == Step::Kind::kShare) {
    // No more is given than a block of scratch holds, and what follows in the slot does no harm there.
    const size_t bytes = plan.scratch_block_bytes();
    if (bytes == 0) return true;
    std::memcpy(scratch_.data() + plan.step(barrier).target_offset + peer.value() * bytes, payload.data(), bytes);
  } else if (TellsPlaces(barrier)) {
    Places& places = places_[peer.value()];
    std::memcpy(&places, payload.data(), sizeof(Places));
    if (ABSL_PREDICT_TRUE(places.input_pieces == 0 && places.output_pieces == 0)) return true;
    in_pieces_ = true;
    auto& [input, output] = pieces_[peer.value()];
    const auto* const table = reinterpret_cast<const TableEntry*>(Table(peer));
    const bool one_table = places.output_pieces == Places::kOneTable;
    const uint32_t output_begin = places.input_pieces == 0 ? 0 : places.input_pieces + 1;
    if (places.input_pieces > Pieces::kSharedMax || (!one_table && places.output_pieces > Pieces::kSharedMax) ||
        (places.input_pieces > 0 && !ReadTable(peer, table, places.input_pieces, &input))) {
      FailOutside(peer, Window::kInput);
      return false;
    }
    if (one_table) {
      output = input;
    } else if (places.output_pieces > 0 && !ReadTable(peer, table + output_begin, places.output_pieces, &output)) {
      FailOutside(peer, Window::kOutput);
      return false;
    }
  }
  return true;
}

inline bool MemoryExecutor::Work(int64_t round) {
  const ExecutionPlan& plan = *jobs_.front()->plan;
  const Step& step = plan.schedule().step(step_);
  const int64_t begin = round * plan.piece_elements();
  const auto elements =
      static_cast<size_t>(std::clamp<int64_t>(plan.step(step_).elements - begin, 0, plan.piece_elements()));
  const size_t operands = step.kind == Step::Kind::kReduceMany ? 1 + step.terms.size() + step.more_targets.size() : 2;
  Piece piece;
  piece.begin = static_cast<size_t>(begin) * plan.element_bytes();
  piece.slot = static_cast<int>((next_slot_ + round) % kStageSlots);
  while (done_ < elements) {
    if (share_bytes_left_ == 0) {
      busy_ = true;
      return false;
    }
    piece.at = done_ * plan.element_bytes();
    piece.bytes = (elements - done_) * plan.element_bytes();
    if (piece.bytes * operands > kShareBytes) {
      piece.bytes = std::min(piece.bytes, std::max(kPieceBytesMin, kShareBytes / operands / kLineBytes * kLineBytes));
    }
    if (!Compute(step, piece)) return false;
    moved_ = true;
    done_ += piece.bytes / plan.element_bytes();
    share_bytes_left_ -= std::min(share_bytes_left_, piece.bytes * operands);
  }
  return true;
}

inline bool MemoryExecutor::Compute(const Step& step, const Piece& piece) {
  if (ABSL_PREDICT_FALSE(in_pieces_)) return ComputeInPieces(step, piece);
  const ExecutionPlan& plan = *jobs_.front()->plan;
  const ExecutionPlan::StepLayout& layout = plan.step(step_);
  const size_t elements = piece.bytes / plan.element_bytes();
  char* const target = Address(step.target, layout.target_offset, piece, /*written=*/true);
  if (target == nullptr) return false;
  if (step.kind != Step::Kind::kReduceMany) {
    const char* const source = Address(step.source, layout.source_offset, piece, /*written=*/false);
    if (source == nullptr) return false;
    if (source != target) std::memcpy(target, source, piece.bytes);
    return true;
  }
  targets_.assign(1, target);
  for (size_t k = 0; k < step.more_targets.size(); ++k) {
    targets_.push_back(Address(step.more_targets[k], layout.more_target_offsets[k], piece, /*written=*/true));
    if (targets_.back() == nullptr) return false;
  }
  terms_.clear();
  for (size_t k = 0; k < step.terms.size(); ++k) {
    terms_.push_back(Address(step.terms[k], layout.term_offsets[k], piece, /*written=*/false));
    if (terms_.back() == nullptr) return false;
  }
  plan.ReduceMany(targets_.data(), targets_.size(), terms_.data(), terms_.size(), elements);
  return true;
}

bool MemoryExecutor::FindMemory(const Operand& operand, size_t offset, const Piece& piece, bool written,
                                OperandMemory* memory) {
  if (operand.rank == Operand::kOwn && operand.window != Window::kScratch) {
    *memory = jobs_.front()->Caller(operand.window, offset + piece.begin + piece.at);
    return true;
  }
  const bool of_peer = operand.rank != Operand::kOwn && operand.window != Window::kScratch;
  if (of_peer) memory->pieces = pieces_[operand.rank][operand.window == Window::kInput ? 0 : 1].get();
  if (!of_peer || memory->pieces == nullptr) {
    *memory = {Address(operand, offset, piece, written)};
    return memory->data != nullptr;
  }
  memory->position = offset + piece.begin + piece.at;
  NoteMoved(Rank(operand.rank), piece.bytes, written);
  return true;
}

bool MemoryExecutor::ComputeInPieces(const Step& step, const Piece& piece) {
  const ExecutionPlan& plan = *jobs_.front()->plan;
  const ExecutionPlan::StepLayout& layout = plan.step(step_);
  targets_in_pieces_.resize(1 + step.more_targets.size());
  terms_in_pieces_.resize(std::max<size_t>(1, step.terms.size()));
  if (!FindMemory(step.target, layout.target_offset, piece, /*written=*/true, &targets_in_pieces_[0])) return false;
  if (step.kind != Step::Kind::kReduceMany) {
    if (!FindMemory(step.source, layout.source_offset, piece, /*written=*/false, &terms_in_pieces_[0])) return false;
    steps_in_pieces_.Copy(targets_in_pieces_[0], terms_in_pieces_[0], piece.bytes);
    return true;
  }
  for (size_t k = 0; k < step.more_targets.size(); ++k) {
    const size_t offset = layout.more_target_offsets[k];
    if (!FindMemory(step.more_targets[k], offset, piece, /*written=*/true, &targets_in_pieces_[k + 1])) return false;
  }
  for (size_t k = 0; k < step.terms.size(); ++k) {
    const size_t offset = layout.term_offsets[k];
    if (!FindMemory(step.terms[k], offset, piece, /*written=*/false, &terms_in_pieces_[k])) return false;
  }
  steps_in_pieces_.Reduce(plan, targets_in_pieces_, terms_in_pieces_, piece.bytes);
  return true;
}

inline char* MemoryExecutor::Address(const Operand& operand, size_t offset, const Piece& piece, bool written) {
  if (operand.rank != Operand::kOwn) return AddressOfPeer(operand, offset, piece, written);
  if (operand.window != Window::kScratch) {
    return windows_[static_cast<int>(operand.window)] + offset + piece.begin + piece.at;
  }
  const bool is_stage = IsStaged(jobs_.front()->plan->schedule().schedule().algorithm);
  char* const scratch = is_stage ? stage_[barrier_.rank().value()] + piece.slot * slot_bytes_ : scratch_.data();
  return scratch + offset + piece.at;
}

char* MemoryExecutor::AddressOfPeer(const Operand& operand, size_t offset, const Piece& piece, bool written) {
  const Rank peer(operand.rank);
  char* address = nullptr;
  if (operand.window == Window::kScratch) {
    address = stage_[peer.value()] + piece.slot * slot_bytes_ + offset + piece.at;
  } else {
    const size_t before = offset + piece.begin + piece.at;
    const Places& places = places_[peer.value()];
    const SymmetricMemory::Place place = operand.window == Window::kInput ? places.input : places.output;
    char* const begin = memory_->Address(peer, place, before + piece.bytes);
    if (begin == nullptr) {
      FailOutside(peer, operand.window);
      return nullptr;
    }
    address = begin + before;
  }
  NoteMoved(peer, piece.bytes, written);
  return address;
}

void MemoryExecutor::NoteMoved(Rank peer, size_t bytes, bool written) {
  FlightRecord* const record = jobs_.front()->record;
  if (record != nullptr && record->signature.sequence == jobs_.front()->signature.sequence) {
    written ? record->AddSent(peer, bytes) : record->AddReceived(peer, bytes);
  }
}

void MemoryExecutor::FailOutside(Rank peer, Window window) {
  Fail(absl::FailedPreconditionError(absl::StrCat("rank ", peer.value(), "'s ",
                                                  window == Window::kInput ? "input" : "output",
                                                  " does not lie in memory that the ranks share")),
       peer, envelope_);
}

void MemoryExecutor::Fail(const absl::Status& status, Rank peer, const Envelope& arrived) {
  Job* const job = jobs_.front();
  job->failing = true;
  Operation operation;
  operation.arrived = arrived;
  // The owner may call FailAll, which ends the job.
  const Envelope expected = envelope_;
  owner_->OnOperationFailed(job, status, peer, expected, operation);
}

void MemoryExecutor::FailAll(const absl::Status& status) {
  if (failed_) return;
  failed_ = true;
  busy_ = false;
  if (begun_ && fork_generation_ == ForkGeneration() &&
      Has(jobs_.front()->plan->schedule().schedule().algorithm, algorithms::kDirect)) {
    barrier_.Withdraw(tick_ + (entered_ ? 1 : 0));
  }
  while (!jobs_.empty()) EndFirst(status);
  memory_->Close();
}

}  // namespace lockstep
