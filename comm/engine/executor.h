// Executor: executes schedules over a transport, on one channel. It knows no algorithm.
//
// Collectives run in the order in which they were started. The next one begins when every message of the one before has been
// posted. So messages match on both sides, and the end of one overlaps the beginning of the next. Blocks are cut into chunks. A
// step runs chunk by chunk, as far as the steps it depends on have come, with a bounded number of chunks in flight.
//
// Externally synchronised by the progress engine's mutex. Posting allocates nothing once the pools have grown.

#ifndef COMM_ENGINE_EXECUTOR_H_
#define COMM_ENGINE_EXECUTOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/ref.h"
#include "comm/engine/operand_memory.h"
#include "comm/pieces.h"
#include "comm/plan/execution_plan.h"
#include "comm/record/flight_recorder.h"
#include "comm/record/signature.h"
#include "transport/transport.h"

namespace lockstep {

// One collective in flight: what to do (set by the caller before Start) and how far it is (the executor's). The owner keeps it
// in place until Owner::OnDone. It may then be used again; it keeps the memory that it has grown.
struct Job {
  bool in_pieces() const { return input_pieces != nullptr || output_pieces != nullptr; }
  // Of this rank's input or output.
  OperandMemory Caller(Window window, size_t offset) const {
    const Pieces* const pieces = (window == Window::kInput ? input_pieces : output_pieces).get();
    if (pieces != nullptr) return {nullptr, pieces, offset};
    return {(window == Window::kInput ? const_cast<char*>(input) : output) + offset};
  }

  const ExecutionPlan* plan = nullptr;  // borrowed until Owner::OnDone
  Signature signature;
  // The caller's buffers; null where the collective has none on this rank.
  const char* input = nullptr;
  char* output = nullptr;
  // Instead, where they are not contiguous.
  Ref<const Pieces> input_pieces;
  Ref<const Pieces> output_pieces;
  Deadline deadline = Deadline::Infinite();
  FlightRecord* record = nullptr;  // may be null; its sequence tells whether it is still ours

  bool late = false;     // the owner has acted on the deadline
  bool failing = false;  // an operation failed; nothing more is posted until the owner decides

  struct StepState {
    const ExecutionPlan::StepLayout* layout = nullptr;
    int32_t chunks = 0;
    int32_t posted = 0;
    int32_t completed = 0;
    int32_t held_by = 0;  // what is left of the layout's
  };
  struct Internal {
    Envelope envelope;
    std::vector<StepState> steps;
    std::vector<StepState*> ready;  // nothing holds them any more, and a chunk may have become postable
    std::vector<char> scratch;
    std::array<char*, 3> windows = {};  // where each begins, by Window
    int steps_unposted = 0;
    int steps_incomplete = 0;
    bool draining = false;
    bool sent = false;  // the exchange's message was sent at once
  } internal;
};

class Executor {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // The job is over; the executor has forgotten it, and its buffers are free. May start other jobs.
    virtual void OnDone(Job* job, const absl::Status& status) = 0;
    // An operation of the job failed. Called at most once for each job. The owner finds out the cause and calls FailAll.
    // `expected`: the envelope of the operation. `operation` has what arrived instead, if that is the failure.
    virtual void OnOperationFailed(Job* job, const absl::Status& status, Rank peer, const Envelope& expected,
                                   const Operation& operation) = 0;
  };

  // Transport and owner must outlive the executor. `ranks`: the transport's rank of each rank of the schedules, or empty where they
  // are the same; borrowed.
  Executor(Transport* transport, ChannelId channel, absl::Span<const Rank> ranks, Owner* owner);
  // REQUIRES  no job is in flight
  ~Executor();

  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // May complete the job before it returns.
  void Start(Job* job);

  // Starts a job that may be over at once. If it is the only job and an exchange of short messages, it is executed without
  // operations, polling `looks` times for the peer's message. True if it is done; the owner is then not called.
  bool StartAtOnce(Job* job, int looks);

  // Ends the channel: every job, started or queued, is done with `status` when this returns, and no memory of theirs is touched
  // any more. Nothing may be started afterwards.
  void FailAll(const absl::Status& status);

  // In the order started. Valid until the next call.
  absl::Span<Job* const> jobs() const { return jobs_; }

 private:
  // One message in flight. Pooled.
  struct Unit {
    Operation operation;
    Executor* executor = nullptr;
    Job* job = nullptr;
    Job::StepState* step = nullptr;
    size_t bytes = 0;
    // Of a chunk that is not contiguous in the caller's memory: where it lies, as the transport takes it. Or, where it does not take it
    // so, the chunk goes by way of a buffer: a received one is then put to the target, with a reduction into the operand.
    OperandMemory target;
    OperandMemory operand;
    std::vector<iovec> runs;
    std::vector<iovec> operand_runs;
    MessagePieces pieces;
    bool buffered = false;
    std::vector<char> buffer;
    Unit* next_free = nullptr;
  };

  static void OnOperationComplete(Operation* operation, const absl::Status& status);

  void Begin(Job* job);
  // Posts what can be posted, for as long as posting makes more of it ready.
  void Drain(Job* job);
  void PostStep(Job* job, Job::StepState* step);
  // How many of the step's chunks may have been posted by now.
  static int32_t ChunksReady(const Job& job, const Job::StepState& step);
  // Something that held the step is done.
  static void Release(Job* job, int32_t step);
  void PostChunk(Job* job, Job::StepState* step, int32_t chunk);
  // The same for a message of a job in pieces.
  void PostInPieces(Unit* unit, const ExecutionPlan::StepLayout& layout, size_t chunk_offset);
  // Of a received chunk that went by way of the unit's buffer.
  void TakeFromBuffer(Unit* unit);
  // A step that is no message: done when this returns.
  void Compute(const Job& job, const ExecutionPlan::StepLayout& layout, size_t chunk_offset, size_t elements);
  void ComputeInPieces(const Job& job, const ExecutionPlan::StepLayout& layout, size_t chunk_offset, size_t elements);
  static OperandMemory MemoryOf(const Job& job, const Operand& operand, size_t offset);
  static void ChunkCompleted(Job* job, Job::StepState* step);
  void FinishIfComplete(Job* job);
  // Starts queued jobs while the newest begun one has posted everything.
  void BeginQueued();

  // Null for an empty chunk: its window may be null, to which nothing may be added.
  static char* Address(const Job& job, const Operand& operand, size_t step_offset, size_t chunk_offset, size_t bytes) {
    if (bytes == 0) return nullptr;
    return job.internal.windows[static_cast<int>(operand.window)] + step_offset + chunk_offset;
  }
  // Valid until the next call.
  static const Envelope& EnvelopeOf(Job* job, const ExecutionPlan::StepLayout& layout);
  // Whether nothing of the job is posted any more.
  bool Stopped(const Job& job) const { return failed_ || job.failing; }
  Rank TransportRank(Rank rank) const { return ranks_.empty() ? rank : ranks_[rank.value()]; }
  Unit* TakeUnit();

  // Constant after construction.
  Transport* const transport_;
  const ChannelId channel_;
  const absl::Span<const Rank> ranks_;
  Owner* const owner_;

  std::vector<Job*> jobs_;  // in the order started; the first `begun_` have begun
  size_t begun_ = 0;
  bool beginning_ = false;
  const Job* starting_ = nullptr;  // its record's start time is its queue time
  bool failed_ = false;
  std::deque<Unit> units_;
  Unit* free_units_ = nullptr;
  std::vector<const void*> terms_;  // of the step that is being computed
  // The same in pieces.
  OperandSteps steps_in_pieces_;
  std::vector<OperandMemory> terms_in_pieces_;
};

}  // namespace lockstep

#endif  // COMM_ENGINE_EXECUTOR_H_
