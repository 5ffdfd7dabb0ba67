// MemoryExecutor: executes shared-memory schedules (comm/schedule/schedule.h). It knows no algorithm.
//
// Collectives run one after the other in the order in which they were started, which is the same on all ranks. Each runs step by
// step; staged ones run in rounds that overlap (comm/schedule/stage.h). Nothing is posted: a step polls slots
// (comm/engine/shm_barrier.h) or works on memory. One call reads and writes about a MiB, so that others get the engine's mutex.
//
// If a job's first step is a barrier, each slot brings the places of its writer's input and output
// (comm/engine/symmetric_memory.h). Ranks learn from it where peers' buffers lie. Of buffers in pieces a table is on the writer's stage, in
// the slot of a round that the job takes for it.
//
// Accesses to the memory of peers are plain, and only barriers order them: CheckBarriers (comm/schedule/verify) proves that between two
// barriers no two ranks touch the same block, one of them writing. A table is written before its slot and read after it.
//
// Failures are reported by Executor::Owner::OnOperationFailed. The executor then does nothing until FailAll:
//   a peer is lost and did not come to a barrier      UNAVAILABLE
//   a peer came with another collective               FAILED_PRECONDITION, its envelope in Operation::arrived
//   a peer's buffer is not in a region                FAILED_PRECONDITION, Operation::arrived as expected
//   this process is a child of the one that began     FAILED_PRECONDITION, Operation::arrived as expected
// The executor waits for a peer that lives and does not come: deadlines are the owner's.
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
#include "comm/engine/operand_memory.h"
#include "comm/engine/shm_barrier.h"
#include "comm/engine/symmetric_memory.h"
#include "comm/schedule/schedule.h"
#include "transport/shm/shm_transport.h"
#include "transport/shm/symmetric_arena.h"
#include "transport/transport.h"

namespace lockstep {

class MemoryExecutor {
 public:
  // The bytes of each rank's segment of the arena, on small pages, for slots and stage.
  static size_t ArenaBytesPerRank(int size);

  // `arena`: ready, of ArenaBytesPerRank(size) bytes, and used for nothing else. `ranks`: the transport's rank of each rank of
  // the communicator. Memory, transport and owner must outlive the executor.
  MemoryExecutor(ShmTransport* transport, std::unique_ptr<SymmetricArena> arena, const std::vector<Rank>& ranks,
                 SymmetricMemory* memory, Executor::Owner* owner);
  // Closes the memory.
  // REQUIRES  no job is in flight
  ~MemoryExecutor();

  MemoryExecutor(const MemoryExecutor&) = delete;
  MemoryExecutor& operator=(const MemoryExecutor&) = delete;

  // Queues the job. If it is the first and begins with a barrier, its slots are written: the caller's other work for the job then
  // overlaps with that.
  // REQUIRES  the plan's schedule is in shared memory. Poll follows before this thread does anything else. Outside
  //           ProgressEngine::Client::Poll the caller goes on with Poll while busy(), or calls ProgressEngine::Notify so that the
  //           holder of the progress lock does.
  void Start(Job* job);
  // Whether the job that is started next begins at once.
  bool idle() const { return jobs_.empty(); }

  // Continues as far as possible without waiting, for a bounded amount of work. Returns whether anything moved.
  bool Poll() { return !jobs_.empty() && Advance(); }

  // Whether there is work that waits for nobody: the last Start or Poll stopped at its bound.
  bool busy() const { return busy_; }

  // Every job is done with `status` when this returns. Peers are not told. Nothing may be started afterwards. Closes the memory.
  // A peer in the middle of its pass still reads and writes the memory of a direct job. It has not passed the last barrier, which is taken
  // back here, so what it makes of memory that has changed meanwhile is no result. One that has not passed the first does nothing.
  void FailAll(const absl::Status& status);

  // In the order started. Valid until the next call.
  absl::Span<Job* const> jobs() const { return jobs_; }

 private:
  // Where a rank's input and output lie, or how many pieces its tables have. As a slot brings it.
  struct Places {
    static constexpr uint32_t kOneTable = ~uint32_t{0};  // the output is the input's memory

    SymmetricMemory::Place input = 0;
    SymmetricMemory::Place output = 0;
    uint32_t input_pieces = 0;
    uint32_t output_pieces = 0;
  };
  static_assert(sizeof(Places) == sizeof(BarrierPayload));
  // A piece in a table; one more tells the end.
  struct TableEntry {
    uint64_t begin = 0;  // in the vector
    SymmetricMemory::Place place = 0;
  };

  // Bytes of a step's operands, at the same place in each.
  struct Piece {
    size_t begin = 0;  // where the round's piece begins, from the block's begin
    size_t at = 0;     // where the bytes begin, from the piece's begin
    size_t bytes = 0;
    int slot = 0;  // of the stage
  };

  bool Advance();
  void Begin(Job* job);
  void BeginTick(int64_t tick);
  void BeginPhase(int phase);
  // Each continues the first job, its tick, a barrier or a step as far as possible. True when that is complete; false also after
  // a failure.
  bool AdvanceJob();
  bool WorkInTick();
  bool PassBarrier(int barrier);
  bool Work(int64_t round);
  void EndFirst(const absl::Status& status);

  void Enter(int barrier);
  // Null when the peer's slot is not written yet.
  const BarrierSlot* Look(Rank peer);
  // False when the peer's pieces are not in a region.
  bool TakeSlot(int barrier, Rank peer, const BarrierPayload& payload);
  // Writes the table of this rank's buffers, and reads a peer's.
  Places TellPlaces(const Job& job);
  bool ReadTable(Rank peer, const TableEntry* table, uint32_t count, Ref<Pieces>* pieces);
  // Of the slot of the first job's next round.
  char* Table(Rank rank) const { return stage_[rank.value()] + next_slot_ * slot_bytes_; }
  void FailOutside(Rank peer, Window window);
  // In the flight record.
  void NoteMoved(Rank peer, size_t bytes, bool written);
  // Whether the slots of this barrier bring the places of the ranks' buffers.
  bool TellsPlaces(int barrier) const;
  // False when a peer's buffer is not in a region.
  bool Compute(const Step& step, const Piece& piece);
  // The same where this rank's input or output is in pieces.
  bool ComputeInPieces(const Step& step, const Piece& piece);
  // False as of Compute.
  bool FindMemory(const Operand& operand, size_t offset, const Piece& piece, bool written, OperandMemory* memory);
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

  ShmBarrier barrier_;
  int next_slot_ = 0;       // of the stage: that of the next round that begins
  std::vector<Job*> jobs_;  // in the order started
  bool advancing_ = false;
  bool busy_ = false;
  bool failed_ = false;

  // Of the current call of Advance.
  bool moved_ = false;
  size_t share_bytes_left_ = 0;
  std::vector<void*> targets_;
  std::vector<const void*> terms_;
  OperandSteps steps_in_pieces_;
  std::vector<OperandMemory> targets_in_pieces_;
  std::vector<OperandMemory> terms_in_pieces_;

  // Of the first job, once it has begun.
  bool begun_ = false;
  bool in_pieces_ = false;  // some buffer, of this rank or another
  Envelope envelope_ = {};
  std::array<char*, 3> windows_ = {};  // where this rank's begin, by Window
  std::vector<Places> places_;         // by rank
  // By rank and window, of peers whose buffers are in pieces; else null.
  std::vector<std::array<Ref<Pieces>, 2>> pieces_;
  std::vector<char> scratch_;
  // Of its current tick. With one round a tick is a phase.
  int64_t tick_ = 0;
  int phase_ = 0;         // the current one; -1: all phases with a round in this tick are done
  int step_ = 0;          // in the schedule
  size_t done_ = 0;       // elements of the step
  bool entered_ = false;  // the barrier that ends it
  int arrived_ = 0;       // peers whose slots were read, beginning with the next rank
};

}  // namespace lockstep

#endif  // COMM_ENGINE_MEMORY_EXECUTOR_H_
