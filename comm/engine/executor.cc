#include "comm/engine/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/base/optimization.h"
#include "base/check.h"
#include "comm/schedule/schedule_memory.h"

namespace lockstep {
namespace {

// Chunks of one step in flight: enough to keep a stream busy while completions are handled, few enough that the pool of
// units stays small whatever the message.
constexpr int kChunksInFlightMax = 16;

constexpr size_t kScratchAlignment = 64;

char* AlignUp(char* address) {
  const size_t misalignment = reinterpret_cast<uintptr_t>(address) % kScratchAlignment;
  return address + (kScratchAlignment - misalignment) % kScratchAlignment;
}

}  // namespace

Executor::Executor(Transport* transport, ChannelId channel, absl::Span<const Rank> ranks, Owner* owner)
    : transport_(transport), channel_(channel), ranks_(ranks), owner_(owner) {}

Executor::~Executor() { LOCKSTEP_CHECK(jobs_.empty()) << jobs_.size() << " jobs left"; }

void Executor::Start(Job* job) {
  LOCKSTEP_CHECK(!failed_);
  jobs_.push_back(job);
  starting_ = job;
  BeginQueued();
  starting_ = nullptr;
}

bool Executor::StartAtOnce(Job* job, int looks) {
  const auto& exchange = job->plan->exchange();
  if (exchange.has_value() && jobs_.empty() && !failed_ && !job->in_pieces()) {
    Sink sink;
    sink.bytes = exchange->bytes;
    sink.target = job->output;
    sink.operand = job->input;
    sink.reduction = &job->plan->reduction();
    const Transport::Exchanged exchanged =
        transport_->Exchange(TransportRank(exchange->peer), channel_, Encode(job->signature), job->input, sink, looks);
    if (exchanged == Transport::Exchanged::kAll) {
      if (job->record != nullptr) {
        job->record->AddSent(exchange->peer, sink.bytes);
        job->record->AddReceived(exchange->peer, sink.bytes);
      }
      return true;
    }
    job->internal.sent = exchanged == Transport::Exchanged::kSent;
  }
  Start(job);
  return false;
}

void Executor::BeginQueued() {
  // Beginning a job may complete it, which ends up here again.
  if (beginning_) return;
  beginning_ = true;
  while (!failed_ && begun_ < jobs_.size() && (begun_ == 0 || jobs_[begun_ - 1]->internal.steps_unposted == 0)) {
    Begin(jobs_[begun_++]);
  }
  beginning_ = false;
}

// What follows is inline where that makes one function of a chunk's way: a tenth of what a chunk costs.

inline void Executor::Begin(Job* job) {
  const ExecutionPlan& plan = *job->plan;
  const int steps = plan.schedule().steps();
  Job::Internal& state = job->internal;
  state.envelope = Encode(job->signature);
  state.steps_unposted = steps;
  state.steps_incomplete = steps;
  job->late = false;
  job->failing = false;
  state.steps.resize(steps);
  state.ready.clear();
  // The last first: `ready` is taken from the back. The other steps become ready by those that they wait for.
  for (int i = steps - 1; i >= 0; --i) {
    const ExecutionPlan::StepLayout& layout = plan.step(i);
    state.steps[i] = {&layout, static_cast<int32_t>(layout.chunks.chunks()), 0, 0, layout.held_by};
    if (layout.held_by == 0 && layout.chunkwise_after.empty()) state.ready.push_back(&state.steps[i]);
  }
  if (plan.scratch_bytes() > 0 && state.scratch.size() < plan.scratch_bytes() + kScratchAlignment) {
    state.scratch.resize(plan.scratch_bytes() + kScratchAlignment);
  }
  // The input is only ever read: the verifier proves it.
  state.windows[static_cast<int>(Window::kInput)] = const_cast<char*>(job->input);
  state.windows[static_cast<int>(Window::kOutput)] = job->output;
  state.windows[static_cast<int>(Window::kScratch)] = AlignUp(state.scratch.data());
  if (job->record != nullptr) {
    job->record->state = FlightRecord::State::kRunning;
    job->record->started = job == starting_ ? job->record->queued : FlightRecord::Clock::now();
  }
  Drain(job);
}

void Executor::Drain(Job* job) {
  Job::Internal& state = job->internal;
  if (state.draining) return;
  state.draining = true;
  while (!state.ready.empty() && !Stopped(*job)) {
    Job::StepState* const step = state.ready.back();
    state.ready.pop_back();
    PostStep(job, step);
  }
  state.draining = false;
  FinishIfComplete(job);
}

inline void Executor::PostStep(Job* job, Job::StepState* step) {
  // Chunks that complete meanwhile make this step ready again.
  const int32_t end = ChunksReady(*job, *step);
  while (step->posted < end && !Stopped(*job)) {
    const int32_t chunk = step->posted++;
    if (step->posted == step->chunks) {
      --job->internal.steps_unposted;
      if (step->layout->lane_next != PreparedSchedule::kNone) Release(job, step->layout->lane_next);
    }
    PostChunk(job, step, chunk);
  }
}

inline int32_t Executor::ChunksReady(const Job& job, const Job::StepState& step) {
  int32_t ready = std::min(step.chunks, step.completed + kChunksInFlightMax);
  for (const int32_t index : step.layout->chunkwise_after) {
    const Job::StepState& earlier = job.internal.steps[index];
    if (earlier.completed < earlier.chunks) ready = std::min(ready, earlier.completed);
  }
  return ready;
}

inline void Executor::Release(Job* job, int32_t index) {
  Job::StepState* const step = &job->internal.steps[index];
  if (--step->held_by == 0) job->internal.ready.push_back(step);
}

inline void Executor::PostChunk(Job* job, Job::StepState* state, int32_t chunk) {
  const ExecutionPlan& plan = *job->plan;
  const ExecutionPlan::StepLayout& layout = *state->layout;
  const Step& step = *layout.step;
  const size_t elements = layout.chunks.Size(chunk);
  const size_t offset = layout.chunks.Offset(chunk) * plan.element_bytes();
  if (!IsMessage(step.kind)) {
    Compute(*job, layout, offset, elements);
    return ChunkCompleted(job, state);
  }
  const size_t bytes = elements * plan.element_bytes();
  if (step.kind == Step::Kind::kSend && std::exchange(job->internal.sent, false)) {
    if (job->record != nullptr) job->record->AddSent(step.peer, bytes);
    return ChunkCompleted(job, state);
  }
  Unit* const unit = TakeUnit();
  unit->job = job;
  unit->step = state;
  unit->bytes = bytes;
  if (ABSL_PREDICT_FALSE(job->in_pieces())) return PostInPieces(unit, layout, offset);
  const Rank peer = TransportRank(step.peer);
  const Envelope& envelope = EnvelopeOf(job, layout);
  if (step.kind == Step::Kind::kSend) {
    const char* const source = Address(*job, step.source, layout.source_offset, offset, bytes);
    return transport_->Send(peer, channel_, envelope, source, bytes, &unit->operation);
  }
  Sink sink;
  sink.bytes = bytes;
  sink.target = Address(*job, step.target, layout.target_offset, offset, bytes);
  if (bytes > 0 && step.kind == Step::Kind::kReceiveReduce) {
    sink.operand = Address(*job, step.source, layout.source_offset, offset, bytes);
    sink.reduction = &plan.reduction();
  }
  transport_->Receive(peer, channel_, envelope, sink, &unit->operation);
}

void Executor::Compute(const Job& job, const ExecutionPlan::StepLayout& layout, size_t offset, size_t elements) {
  const ExecutionPlan& plan = *job.plan;
  const Step& step = *layout.step;
  const size_t bytes = elements * plan.element_bytes();
  if (bytes == 0) return;
  if (ABSL_PREDICT_FALSE(job.in_pieces())) return ComputeInPieces(job, layout, offset, elements);
  void* const target = Address(job, step.target, layout.target_offset, offset, bytes);
  if (step.kind == Step::Kind::kReduceMany) {
    // A pair in place, as in recursive doubling, whose vectors are short: the function for pairs takes some nanoseconds less.
    // In a schedule by messages nothing is scaled here.
    if (step.terms.size() == 2 && Address(job, step.terms[0], layout.term_offsets[0], offset, bytes) == target) {
      const void* const other = Address(job, step.terms[1], layout.term_offsets[1], offset, bytes);
      return plan.reduction().combine(target, target, other, elements);
    }
    terms_.clear();
    for (size_t k = 0; k < step.terms.size(); ++k) {
      terms_.push_back(Address(job, step.terms[k], layout.term_offsets[k], offset, bytes));
    }
    return plan.ReduceMany(&target, 1, terms_.data(), terms_.size(), elements);
  }
  const void* const source = Address(job, step.source, layout.source_offset, offset, bytes);
  if (source != target) std::memcpy(target, source, bytes);
}

OperandMemory Executor::MemoryOf(const Job& job, const Operand& operand, size_t offset) {
  if (operand.window != Window::kScratch) return job.Caller(operand.window, offset);
  return {job.internal.windows[static_cast<int>(Window::kScratch)] + offset};
}

void Executor::PostInPieces(Unit* unit, const ExecutionPlan::StepLayout& layout, size_t offset) {
  Job* const job = unit->job;
  const Step& step = *layout.step;
  const Rank peer = TransportRank(step.peer);
  const Envelope& envelope = EnvelopeOf(job, layout);
  const size_t bytes = unit->bytes;
  const bool sends = step.kind == Step::Kind::kSend;
  const bool reduces = step.kind == Step::Kind::kReceiveReduce;
  Sink sink;
  sink.bytes = bytes;
  if (bytes > 0) {
    OperandMemory& memory = unit->target;
    memory = sends ? MemoryOf(*job, step.source, layout.source_offset + offset)
                   : MemoryOf(*job, step.target, layout.target_offset + offset);
    unit->operand = reduces ? MemoryOf(*job, step.source, layout.source_offset + offset) : memory;
    sink.target = memory.At(bytes);
    sink.operand = unit->operand.At(bytes);
    if (sink.target != nullptr && sink.operand != nullptr) {
      // It lies in one place.
    } else if (const size_t max = sends ? transport_->send_pieces_max(peer) : transport_->receive_pieces_max(peer);
               max > 1 && memory.ListRuns(bytes, max, &unit->runs) &&
               unit->operand.ListRuns(bytes, max, &unit->operand_runs)) {
      unit->pieces = {unit->runs, unit->operand_runs};
      unit->operation.pieces = &unit->pieces;
    } else {
      unit->buffered = true;
      if (unit->buffer.size() < bytes) unit->buffer.resize(bytes);
      sink.target = unit->buffer.data();
      if (sends) memory.pieces->Read(memory.position, bytes, unit->buffer.data());
    }
    if (reduces && !unit->buffered) sink.reduction = &job->plan->reduction();
  }
  if (sends) return transport_->Send(peer, channel_, envelope, sink.target, bytes, &unit->operation);
  transport_->Receive(peer, channel_, envelope, sink, &unit->operation);
}

void Executor::TakeFromBuffer(Unit* unit) {
  const OperandMemory buffer = {unit->buffer.data()};
  if (unit->step->layout->step->kind == Step::Kind::kReceive) {
    return steps_in_pieces_.Copy(unit->target, buffer, unit->bytes);
  }
  steps_in_pieces_.Reduce(*unit->job->plan, {unit->target}, {unit->operand, buffer}, unit->bytes);
}

void Executor::ComputeInPieces(const Job& job, const ExecutionPlan::StepLayout& layout, size_t offset,
                               size_t elements) {
  const Step& step = *layout.step;
  const size_t bytes = elements * job.plan->element_bytes();
  const OperandMemory target = MemoryOf(job, step.target, layout.target_offset + offset);
  if (step.kind != Step::Kind::kReduceMany) {
    const OperandMemory source = MemoryOf(job, step.source, layout.source_offset + offset);
    return steps_in_pieces_.Copy(target, source, bytes);
  }
  terms_in_pieces_.clear();
  for (size_t k = 0; k < step.terms.size(); ++k) {
    terms_in_pieces_.push_back(MemoryOf(job, step.terms[k], layout.term_offsets[k] + offset));
  }
  steps_in_pieces_.Reduce(*job.plan, {target}, terms_in_pieces_, bytes);
}

const Envelope& Executor::EnvelopeOf(Job* job, const ExecutionPlan::StepLayout& layout) {
  if (job->plan->count_per_message()) {
    Signature signature = job->signature;
    signature.count = layout.elements;
    job->internal.envelope = Encode(signature);
  }
  return job->internal.envelope;
}

void Executor::OnOperationComplete(Operation* operation, const absl::Status& status) {
  // The operation is the unit's first member.
  Unit* const unit = reinterpret_cast<Unit*>(operation);
  Executor* const self = unit->executor;
  Job* const job = unit->job;
  Job::StepState* const state = unit->step;
  const Step& step = *state->layout->step;
  if (status.ok() && job->record != nullptr && job->record->signature.sequence == job->signature.sequence) {
    step.kind == Step::Kind::kSend ? job->record->AddSent(step.peer, unit->bytes)
                                   : job->record->AddReceived(step.peer, unit->bytes);
  }
  if (!status.ok() && !self->Stopped(*job)) {
    job->failing = true;
    self->owner_->OnOperationFailed(job, status, step.peer, EnvelopeOf(job, *state->layout), *operation);
  }
  if (ABSL_PREDICT_FALSE(unit->buffered) && status.ok() && !self->failed_ && step.kind != Step::Kind::kSend) {
    self->TakeFromBuffer(unit);
  }
  unit->buffered = false;
  operation->pieces = nullptr;
  unit->next_free = self->free_units_;
  self->free_units_ = unit;
  if (!status.ok() || self->failed_) return;
  ChunkCompleted(job, state);
  self->Drain(job);
}

inline void Executor::ChunkCompleted(Job* job, Job::StepState* step) {
  Job::Internal& state = job->internal;
  const bool complete = ++step->completed == step->chunks;
  if (complete) --state.steps_incomplete;
  if (state.steps_unposted == 0) return;
  if (step->posted < step->chunks) state.ready.push_back(step);
  for (const ExecutionPlan::Dependent& dependent : step->layout->dependents) {
    if (!dependent.chunkwise) {
      if (complete) Release(job, dependent.step);
    } else if (Job::StepState* const waiting = &state.steps[dependent.step]; waiting->held_by == 0) {
      state.ready.push_back(waiting);
    }
  }
}

inline void Executor::FinishIfComplete(Job* job) {
  if (Stopped(*job)) return;
  // Read before the owner may use the job again.
  const bool posted = job->internal.steps_unposted == 0;
  if (job->internal.steps_incomplete == 0) {
    // Jobs may overtake each other: a later one that needs nobody is done first.
    const auto it = std::find(jobs_.begin(), jobs_.begin() + begun_, job);
    LOCKSTEP_CHECK(it != jobs_.begin() + begun_);
    jobs_.erase(it);
    --begun_;
    owner_->OnDone(job, absl::OkStatus());
  }
  if (posted) BeginQueued();
}

void Executor::FailAll(const absl::Status& status) {
  if (failed_) return;
  failed_ = true;
  // Completes every unit in flight; OnOperationComplete only takes them back.
  transport_->AbortChannel(channel_, status);
  begun_ = 0;
  while (!jobs_.empty()) {
    Job* const job = jobs_.front();
    jobs_.erase(jobs_.begin());
    owner_->OnDone(job, status);
  }
}

inline Executor::Unit* Executor::TakeUnit() {
  if (free_units_ == nullptr) {
    free_units_ = &units_.emplace_back();
    free_units_->executor = this;
    free_units_->operation.complete = &OnOperationComplete;
  }
  Unit* const unit = free_units_;
  free_units_ = unit->next_free;
  return unit;
}

}  // namespace lockstep
