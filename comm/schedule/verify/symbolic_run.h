// Runs all ranks' schedules of one collective in one thread, on symbols.
//
// Steps start as the executor starts them: when the steps named in `after` are complete and, for a message, when all
// earlier steps of the list with the same peer in the same direction have been started. A message moves when both its ends
// have started, as if nothing were ever buffered. The order in which steps then complete does not matter, since two steps that
// touch the same memory are ordered; that is checked beforehand.

#ifndef COMM_SCHEDULE_VERIFY_SYMBOLIC_RUN_H_
#define COMM_SCHEDULE_VERIFY_SYMBOLIC_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/schedule_memory.h"
#include "comm/schedule/verify/expression.h"
#include "comm/schedule/verify/schedule_checks.h"

namespace lockstep {

// Used once, by one thread. Steps of all ranks are numbered through, rank by rank.
class SymbolicRun {
 public:
  using Id = ExpressionTable::Id;

  // all_ranks[r] is rank r's schedule. Borrowed.
  // REQUIRES  at least one rank; the schedules pass CheckSteps and CheckRaces, in shared memory CheckBarriers
  SymbolicRun(absl::Span<const Schedule> all_ranks, bool in_place);

  // INTERNAL naming the rank, the step and what is wrong, for the first fault found.
  absl::Status Run();

  // The results of a run without fault.

  // The final value of a block of the output that exists; kUndefined if nobody has written it.
  Id Output(int rank, int block) const;
  // The length of the longest chain of messages of which each had to wait for the one before; in shared memory, of barriers.
  int message_depth() const;
  // For the barrier collective: a rank that need not have begun when this one has completed all its steps, or -1.
  int FirstUnheard(int rank) const;
  ExpressionTable& expressions() { return expressions_; }

 private:
  static constexpr int kNone = -1;
  static constexpr Id kUndefined = ExpressionTable::kUndefined;

  struct StepState {
    int rank = 0;
    int index = 0;  // in the rank's list
    // Messages: the step at the other end, and the next of this rank with the same peer in the same direction.
    int partner = kNone;
    int next_in_channel = kNone;
    // Counts the steps in `after` that are not complete, the one before it in the channel if that has not started, and Execute
    // until it releases the step.
    int waits_for = 1;
    bool started = false;
    bool complete = false;
    int depth = 0;  // messages in the longest chain that this step has waited for, itself included
    std::vector<int> dependents;
  };

  const Schedule& schedule(int id) const { return all_[states_[id].rank]; }
  const Step& step(int id) const { return schedule(id).steps[states_[id].index]; }
  std::string Describe(int id) const { return DescribeStep(schedule(id), states_[id].index); }
  absl::Status Error(int id, absl::string_view fault) const {
    return StepError(schedule(id), states_[id].index, fault);
  }
  // Block i of an operand of the rank's.
  Id& Memory(const Schedule& schedule, const Operand& operand, int i) {
    const ScheduleMemory memory(schedule, in_place_);
    return memory_[memory.OwnerOf(operand)][memory.Location(operand) + i];
  }

  void NumberSteps();
  absl::Status MatchMessages();
  void InitializeMemory();
  absl::Status Execute();
  absl::Status ExecuteInSharedMemory();
  // `ids`: each rank's step of the same barrier.
  absl::Status PassBarrier(absl::Span<const int> ids);
  // One dependency less; starts the step when it was the last.
  void Release(int id);
  // Carries out a local step, or a message with both its ends.
  absl::Status Apply(int id);
  // Into all targets.
  absl::Status Write(int id, int i, Id value);
  absl::Status WriteTo(int id, const Operand& target, int i, Id value);
  absl::Status Read(int id, const Operand& operand, int i, Id* value);
  absl::Status CheckCombinable(int id, Id left, Id right) const;
  absl::Status FoldInto(int id, int i);
  // Moves what `reader` reads as its source to what `writer` writes. For a local step both are the step.
  absl::Status MoveInto(int writer, int i, int reader);
  // Whether the value is as large as block i of the operand, where blocks may differ.
  bool Fits(int id, const Operand& operand, int i, Id value) const;
  absl::Status Deadlock() const;
  // Updates which ranks' beginning the step, and through it its rank, has heard of. Barriers only.
  void Hear(int id);
  uint64_t* Heard(int id) { return &heard_[static_cast<size_t>(id) * words_]; }

  const absl::Span<const Schedule> all_;
  const bool in_place_;
  const bool blocks_may_differ_;
  ExpressionTable expressions_;
  std::vector<int> first_step_;  // of each rank
  std::vector<StepState> states_;
  std::vector<int> ready_;               // started, and (for a message) its partner too
  std::vector<std::vector<Id>> memory_;  // [rank][location]
  // For each step, the set of ranks whose entering precedes its completion.
  const int words_;
  std::vector<uint64_t> heard_;
};

}  // namespace lockstep

#endif  // COMM_SCHEDULE_VERIFY_SYMBOLIC_RUN_H_
