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

}  // namespace

Executor::Executor(Transport* transport, ChannelId channel, size_t chunk_bytes, Owner* owner)
    : transport_(transport), channel_(channel), chunk_bytes_(chunk_bytes), owner_(owner) {}

Executor::~Executor() { LOCKSTEP_CHECK(jobs_.empty()) << jobs_.size() << " jobs left"; }

void Executor::Start(Job* job) {
  LOCKSTEP_CHECK(!failed_);
  jobs_.push_back(job);
  BeginQueued();
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
  const PreparedSchedule& schedule = *job->schedule;
  Job::Internal& state = job->internal;
  state.envelope = Encode(job->signature);
  state.steps.resize(schedule.steps());
  state.ready.clear();
  state.steps_unposted = schedule.steps();
  state.steps_incomplete = schedule.steps();
  job->late = false;
  job->failing = false;
  for (int i = 0; i < schedule.steps(); ++i) {
    Job::StepState& step = state.steps[i];
    step.layout = ChunkLayout(Elements(*job, SizingOperand(schedule.step(i))), job->element_bytes, chunk_bytes_);
    step.chunks = static_cast<int32_t>(step.layout.chunks());
    step.posted = 0;
    step.completed = 0;
  }
  const size_t scratch_bytes =
      Elements(*job, {Window::kScratch, 0, schedule.schedule().scratch_blocks}) * job->element_bytes;
  if (state.scratch.size() < scratch_bytes + kScratchAlignment) state.scratch.resize(scratch_bytes + kScratchAlignment);
  if (job->record != nullptr) {
    job->record->state = FlightRecord::State::kRunning;
    job->record->started = FlightRecord::Clock::now();
  }
  // Taken from the back: the first step is tried first.
  for (int i = schedule.steps() - 1; i >= 0; --i) state.ready.push_back(i);
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
  const PreparedSchedule::Links& links = job->schedule->links(index);
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
  const Step& step = job.schedule->step(index);
  const PreparedSchedule::Links& links = job.schedule->links(index);
  for (int k = 0; k < Step::kAfterMax; ++k) {
    if (step.after[k] == Step::kNone) continue;
    const Job::StepState& earlier = job.internal.steps[step.after[k]];
    if (earlier.completed == earlier.chunks) continue;
    if (!links.chunkwise[k] || earlier.completed <= chunk) return false;
  }
  return true;
}

void Executor::PostChunk(Job* job, int32_t index, int32_t chunk) {
  const Step& step = job->schedule->step(index);
  const ChunkLayout& layout = job->internal.steps[index].layout;
  const size_t offset = layout.Offset(chunk) * job->element_bytes;
  const size_t bytes = layout.Size(chunk) * job->element_bytes;
  if (!IsMessage(step)) {
    char* const target = Address(*job, step.target) + offset;
    const char* const source = Address(*job, step.source) + offset;
    if (bytes > 0 && step.kind == Step::Kind::kReduce) {
      job->reduction.combine(target, target, source, bytes / job->element_bytes);
    } else if (bytes > 0 && source != target) {
      std::memcpy(target, source, bytes);
    }
    ChunkCompleted(job, index);
    return;
  }

  Unit* unit = NewUnit();
  unit->job = job;
  unit->step = index;
  unit->peer = step.peer;
  unit->send = step.kind == Step::Kind::kSend;
  unit->bytes = bytes;
  if (unit->send) {
    const char* const source = bytes == 0 ? nullptr : Address(*job, step.source) + offset;
    transport_->Send(step.peer, channel_, job->internal.envelope, source, bytes, &unit->operation);
    return;
  }
  Sink sink;
  sink.bytes = bytes;
  if (bytes > 0) sink.target = Address(*job, step.target) + offset;
  if (bytes > 0 && step.kind == Step::Kind::kReceiveReduce) {
    sink.operand = Address(*job, step.source) + offset;
    sink.reduction = &job->reduction;
  }
  transport_->Receive(step.peer, channel_, job->internal.envelope, sink, &unit->operation);
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
    self->owner_->OnOperationFailed(job, status, peer, *operation);
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
  for (const int32_t dependent : job->schedule->dependents(index)) {
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

char* Executor::Address(const Job& job, const Operand& operand) const {
  switch (operand.window) {
    case Window::kInput:
      // The input is only ever read: the verifier proves it.
      return const_cast<char*>(job.input) + (job.layout.Offset(operand.block) - job.input_begin) * job.element_bytes;
    case Window::kOutput:
      return job.output + (job.layout.Offset(operand.block) - job.output_begin) * job.element_bytes;
    case Window::kScratch:
      break;
  }
  const size_t offset = Elements(job, {Window::kScratch, 0, operand.block}) * job.element_bytes;
  char* const scratch = const_cast<char*>(job.internal.scratch.data());
  const size_t misalignment = reinterpret_cast<uintptr_t>(scratch) % kScratchAlignment;
  return scratch + (kScratchAlignment - misalignment) % kScratchAlignment + offset;
}

int64_t Executor::Elements(const Job& job, const Operand& operand) const {
  if (operand.window != Window::kScratch) return job.layout.Size(operand.block, operand.blocks);
  int64_t elements = 0;
  for (int i = operand.block; i < operand.block + operand.blocks; ++i) {
    elements += job.layout.Size(i % job.layout.blocks());
  }
  return elements;
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
