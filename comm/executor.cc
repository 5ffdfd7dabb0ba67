#include "comm/executor.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

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

void Executor::BeginQueued() {
  // Beginning a job may complete it, which ends up here again.
  if (beginning_) return;
  beginning_ = true;
  while (!failed_ && begun_ < jobs_.size() && (begun_ == 0 || jobs_[begun_ - 1]->internal.steps_unposted == 0)) {
    Begin(jobs_[begun_++]);
  }
  beginning_ = false;
}

void Executor::Begin(Job* job) {
  const ExecutionPlan& plan = *job->plan;
  const int steps = plan.schedule().steps();
  Job::Internal& state = job->internal;
  state.envelope = Encode(job->signature);
  state.steps.resize(steps);
  state.ready.clear();
  state.steps_unposted = steps;
  state.steps_incomplete = steps;
  job->late = false;
  job->failing = false;
  for (int i = 0; i < steps; ++i) state.steps[i] = {static_cast<int32_t>(plan.step(i).chunks.chunks()), 0, 0};
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
  // Taken from the back: the first step is tried first.
  for (int i = steps - 1; i >= 0; --i) state.ready.push_back(i);
  Drain(job);
}

void Executor::Drain(Job* job) {
  Job::Internal& state = job->internal;
  if (state.draining) return;
  state.draining = true;
  while (!state.ready.empty() && !job->failing && !failed_) {
    const int32_t step = state.ready.back();
    state.ready.pop_back();
    PostStep(job, step);
  }
  state.draining = false;
  FinishIfComplete(job);
}

void Executor::PostStep(Job* job, int32_t index) {
  const PreparedSchedule::Links& links = job->plan->schedule().links(index);
  Job::StepState& step = job->internal.steps[index];
  if (links.lane_previous != PreparedSchedule::kNone) {
    const Job::StepState& previous = job->internal.steps[links.lane_previous];
    // Tried again once the previous message of the lane is posted whole.
    if (previous.posted < previous.chunks) return;
  }
  while (step.posted < step.chunks && step.posted - step.completed < kChunksInFlightMax &&
         Ready(*job, index, step.posted) && !job->failing && !failed_) {
    const int32_t chunk = step.posted++;
    if (step.posted == step.chunks) {
      --job->internal.steps_unposted;
      if (links.lane_next != PreparedSchedule::kNone) job->internal.ready.push_back(links.lane_next);
    }
    PostChunk(job, index, chunk);
  }
}

bool Executor::Ready(const Job& job, int32_t index, int32_t chunk) const {
  const Step& step = job.plan->schedule().step(index);
  const PreparedSchedule::Links& links = job.plan->schedule().links(index);
  for (size_t k = 0; k < step.after.size(); ++k) {
    const Job::StepState& earlier = job.internal.steps[step.after[k]];
    if (earlier.completed == earlier.chunks) continue;
    if (!links.chunkwise[k] || earlier.completed <= chunk) return false;
  }
  return true;
}

void Executor::PostChunk(Job* job, int32_t index, int32_t chunk) {
  const ExecutionPlan& plan = *job->plan;
  const Step& step = plan.schedule().step(index);
  if (!IsMessage(step)) {
    Compute(*job, index, chunk);
    return ChunkCompleted(job, index);
  }
  const ExecutionPlan::StepLayout& layout = plan.step(index);
  const size_t offset = layout.chunks.Offset(chunk) * plan.element_bytes();
  const size_t bytes = layout.chunks.Size(chunk) * plan.element_bytes();
  Unit* unit = NewUnit();
  unit->job = job;
  unit->step = index;
  unit->peer = step.peer;
  unit->send = step.kind == Step::Kind::kSend;
  unit->bytes = bytes;
  const Rank peer = TransportRank(step.peer);
  if (unit->send) {
    const char* const source = Address(*job, step.source, layout.source_offset, offset, bytes);
    return transport_->Send(peer, channel_, EnvelopeOf(*job, index), source, bytes, &unit->operation);
  }
  Sink sink;
  sink.bytes = bytes;
  sink.target = Address(*job, step.target, layout.target_offset, offset, bytes);
  if (bytes > 0 && step.kind == Step::Kind::kReceiveReduce) {
    sink.operand = Address(*job, step.source, layout.source_offset, offset, bytes);
    sink.reduction = &plan.reduction();
  }
  transport_->Receive(peer, channel_, EnvelopeOf(*job, index), sink, &unit->operation);
}

void Executor::Compute(const Job& job, int32_t index, int32_t chunk) {
  const ExecutionPlan& plan = *job.plan;
  const Step& step = plan.schedule().step(index);
  const ExecutionPlan::StepLayout& layout = plan.step(index);
  const size_t elements = layout.chunks.Size(chunk);
  const size_t offset = layout.chunks.Offset(chunk) * plan.element_bytes();
  const size_t bytes = elements * plan.element_bytes();
  if (bytes == 0) return;
  void* const target = Address(job, step.target, layout.target_offset, offset, bytes);
  if (step.kind == Step::Kind::kReduceMany) {
    terms_.clear();
    for (size_t k = 0; k < step.terms.size(); ++k) {
      terms_.push_back(Address(job, step.terms[k], layout.term_offsets[k], offset, bytes));
    }
    return plan.reduce_many()(&target, 1, terms_.data(), terms_.size(), elements);
  }
  const void* const source = Address(job, step.source, layout.source_offset, offset, bytes);
  if (step.kind == Step::Kind::kReduce) {
    plan.reduction().combine(target, target, source, elements);
  } else if (source != target) {
    std::memcpy(target, source, bytes);
  }
}

Envelope Executor::EnvelopeOf(const Job& job, int32_t step) const {
  if (!job.plan->count_per_message()) return job.internal.envelope;
  Signature signature = job.signature;
  signature.count = job.plan->step(step).elements;
  return Encode(signature);
}

void Executor::OnOperationComplete(Operation* operation, const absl::Status& status) {
  // The operation is the unit's first member.
  Unit* const unit = reinterpret_cast<Unit*>(operation);
  Executor* const self = unit->executor;
  Job* const job = unit->job;
  const int32_t step = unit->step;
  const Rank peer = unit->peer;
  if (status.ok() && job->record != nullptr && job->record->signature.sequence == job->signature.sequence) {
    unit->send ? job->record->AddSent(peer, unit->bytes) : job->record->AddReceived(peer, unit->bytes);
  }
  if (!status.ok() && !self->failed_ && !job->failing) {
    job->failing = true;
    self->owner_->OnOperationFailed(job, status, peer, self->EnvelopeOf(*job, step), *operation);
  }
  unit->next_free = self->free_units_;
  self->free_units_ = unit;
  if (!status.ok() || self->failed_) return;
  self->ChunkCompleted(job, step);
  self->Drain(job);
}

void Executor::ChunkCompleted(Job* job, int32_t index) {
  Job::StepState& step = job->internal.steps[index];
  if (++step.completed == step.chunks) --job->internal.steps_incomplete;
  if (step.posted < step.chunks) job->internal.ready.push_back(index);
  for (const int32_t dependent : job->plan->schedule().dependents(index)) {
    const Job::StepState& waiting = job->internal.steps[dependent];
    if (waiting.posted < waiting.chunks) job->internal.ready.push_back(dependent);
  }
}

void Executor::FinishIfComplete(Job* job) {
  if (failed_ || job->failing) return;
  const bool complete = job->internal.steps_incomplete == 0;
  const bool posted = job->internal.steps_unposted == 0;
  if (complete) {
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
    jobs_.pop_front();
    owner_->OnDone(job, status);
  }
}

Executor::Unit* Executor::NewUnit() {
  if (free_units_ == nullptr) {
    Unit* const unit = &units_.emplace_back();
    unit->executor = this;
    unit->operation.complete = &OnOperationComplete;
    return unit;
  }
  Unit* const unit = free_units_;
  free_units_ = unit->next_free;
  return unit;
}

}  // namespace lockstep
