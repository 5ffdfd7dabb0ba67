// MemoryExecutor: executes shared-memory schedules (comm/schedule/schedule.h). It knows no algorithm.
//
// Collectives run one after the other in the order in which they were started, which is the same on all ranks, and each of
// them step by step, staged ones in rounds that overlap (comm/schedule/stage.h). Nothing is posted: a step is a look at lines
// (comm/engine/shm_barrier.h) or work on memory, of which one call does about a MiB, read and written, so that others get the engine's
// mutex.
//
// Where peers' buffers lie is told at a job's first step, where that is a barrier: each line brings the places of its
// writer's input and output (comm/engine/symmetric_memory.h).
//
// What goes wrong is told by Executor::Owner::OnOperationFailed, and the executor then rests until FailAll:
//   a peer is lost and did not come to a barrier      UNAVAILABLE
//   a peer came with another collective               FAILED_PRECONDITION, its envelope in Operation::arrived
//   a peer's buffer is not in a region                FAILED_PRECONDITION, Operation::arrived as expected
//   this process is a child of the one that began     FAILED_PRECONDITION, Operation::arrived as expected
// A peer that lives and does not come is waited for: deadlines are the owner's.
//
// Externally synchronised by the progress engine's mutex. Allocates nothing once it has grown.

#ifndef COMM_ENGINE_MEMORY_EXECUTOR_H_
#define COMM_ENGINE_MEMORY_EXECUTOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/rank.h"
#include "comm/engine/executor.h"
#include "comm/engine/shm_barrier.h"
#include "comm/engine/symmetric_memory.h"
#include "comm/schedule/schedule.h"
#include "transport/shm/shm_transport.h"
#include "transport/shm/symmetric_arena.h"
#include "transport/transport.h"

namespace lockstep {

class MemoryExecutor {
 public:
  // What it needs of an arena, on small pages, for lines and stage.
  static size_t ArenaBytesPerRank(int size);

  // `arena`: ready, of ArenaBytesPerRank(size) bytes, and used for nothing else. `ranks`: the transport's rank of each rank of
  // the communicator. Memory, transport and owner must outlive the executor.
  MemoryExecutor(ShmTransport* transport, std::unique_ptr<SymmetricArena> arena, const std::vector<Rank>& ranks,
                 SymmetricMemory* memory, Executor::Owner* owner);
  // No job may be left. Closes the memory.
  ~MemoryExecutor();

  MemoryExecutor(const MemoryExecutor&) = delete;
  MemoryExecutor& operator=(const MemoryExecutor&) = delete;

  // Queues the job, whose plan's schedule is in shared memory. Where it is the first and begins with a barrier its line is written: what
  // else the caller has to do for the job is done while the line is under way. Poll must follow before this thread turns to
  // anything else; whoever calls this outside ProgressEngine::Client::Poll goes on with Poll while busy(), or calls
  // ProgressEngine::Notify so that whoever holds the progress lock does.
  void Start(Job* job);
  // Whether the job that is started next begins at once.
  bool idle() const { return jobs_.empty(); }

  // Goes on as far as it can without waiting, but for a bounded share of work. Whether anything moved.
  bool Poll() { return !jobs_.empty() && Advance(); }

  // Whether there is work that waits for nobody: the last Start or Poll had its share.
  bool busy() const { return busy_; }

  // Every job is done with `status` when this returns, and no memory of theirs is touched any more, but by peers. Peers are
  // not told. Nothing may be started afterwards. Closes the memory.
  void FailAll(const absl::Status& status);

  // In the order started. Valid until the next call.
  absl::Span<Job* const> jobs() const { return jobs_; }

 private:
  using Places = std::array<SymmetricMemory::Place, 2>;  // of the input and the output

  // Some bytes of a step's operands, which lie alike in all of them.
  struct Piece {
    size_t begin = 0;  // from where the blocks begin to where the round's pieces of them do
    size_t at = 0;     // from there
    size_t bytes = 0;
    int slot = 0;  // of the stage
  };

  bool Advance();
  void Begin(Job* job);
  void BeginTick(int64_t tick);
  void BeginPhase(int phase);
  // Each does what can be done of the first job, of its tick, of a barrier or of a step; true when it is complete, false
  // also when it failed.
  bool AdvanceJob();
  bool WorkInTick();
  bool PassBarrier(int barrier);
  bool Work(int64_t round);
  void EndFirst(const absl::Status& status);

  void Enter(int barrier);
  // Null when the peer's line is not there.
  const BarrierSlot* Look(Rank peer);
  void TakeLine(int barrier, Rank peer, const BarrierPayload& payload);
  // Whether the lines tell where the ranks' buffers lie.
  bool TellsPlaces(int barrier) const;
  // False when a peer's memory is not where it should be.
  bool Compute(const Step& step, const Piece& piece);
  // `offset`: of the operand, as the plan has it.
  char* Address(const Operand& operand, size_t offset, const Piece& piece, bool written);
  char* AddressOfPeer(const Operand& operand, size_t offset, const Piece& piece, bool written);
  void Fail(const absl::Status& status, Rank peer, const Envelope& arrived);

  // Constant after construction.
  ShmTransport* const transport_;
  const std::vector<Rank> ranks_;
  SymmetricMemory* const memory_;
  Executor::Owner* const owner_;
  const uint64_t fork_generation_;
  const std::unique_ptr<SymmetricArena> arena_;
  std::vector<char*> stage_;  // by rank: where its part begins
  const size_t slot_bytes_;

  ShmBarrier lines_;
  int next_slot_ = 0;       // of the stage: that of the next round that begins
  std::vector<Job*> jobs_;  // in the order started
  bool advancing_ = false;
  bool busy_ = false;
  bool failed_ = false;

  // Of the call that is under way.
  bool moved_ = false;
  size_t share_bytes_left_ = 0;
  std::vector<void*> targets_;
  std::vector<const void*> terms_;

  // Of the first job, once it has begun.
  bool begun_ = false;
  Envelope envelope_ = {};
  std::array<char*, 3> windows_ = {};  // where this rank's begin, by Window
  std::vector<Places> places_;         // by rank
  std::vector<char> scratch_;
  // Of its current tick. Where there is one round, a tick is a phase.
  int64_t tick_ = 0;
  int phase_ = 0;         // at work; -1: all that have a round in this tick are done
  int step_ = 0;          // in the schedule
  size_t done_ = 0;       // elements of the step
  bool entered_ = false;  // the barrier that ends it
  int arrived_ = 0;       // peers whose lines were read, beginning with the next neighbour
};

}  // namespace lockstep

#endif  // COMM_ENGINE_MEMORY_EXECUTOR_H_
