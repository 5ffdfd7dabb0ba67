// What becomes of a call over memory that all ranks reach: steps in which each puts its input where the others read
// it, and then reads theirs. Pure, and in step on all ranks: they agree on the number of steps and on what lies
// where.
//
//   put    the rank's input, as much as a slot holds, into its own slot
//   ---    all ranks' inputs are in place
//   fold   a part of all ranks' slots, in rank order, into the output (one shot) or the own slot (of two shots)
//   ---    of two shots: all ranks' parts are folded
//   get    others' inputs, or their folded parts, into the output
//   ---    all ranks have read, before the slot is used again
//
// One shot reads a vector of n ranks n times on each of them; two shots read it twice in all, at the price of one
// more meeting. A rank folds the same part of all slots that it alone reads before it is folded, so the result may
// lie in its own slot.

#ifndef COMM_IPC_PLAN_H_
#define COMM_IPC_PLAN_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "comm/communicator.h"

namespace lockstep {

// Elements between a buffer of the call's, from `offset` on, and the slot of a rank, from `slot_offset` on. There may
// be none: then the offsets mean nothing.
struct IpcCopy {
  int rank = 0;
  size_t slot_offset = 0;
  size_t offset = 0;
  size_t count = 0;
};

struct IpcStep {
  std::vector<IpcCopy> puts;
  // The same elements of all slots: into the output, or, of two shots, into the own slot.
  absl::optional<IpcCopy> fold;
  bool two_shots = false;
  std::vector<IpcCopy> gets;
};

struct IpcSlots {
  size_t bytes = 0;           // of a slot
  size_t one_shot_bytes = 0;  // vectors of at most so many bytes, and of a slot at most, are reduced in one shot
};

// Not empty. `pair_count_max`: of an all-to-all with counts, the elements of the largest block between any two ranks;
// else 0.
absl::StatusOr<std::vector<IpcStep>> PlanIpc(const CollectiveRequest& request, int rank, int size,
                                             const IpcSlots& slots, size_t pair_count_max);

// An all-reduce whose vector lies in memory that all ranks reach, at one place on all of them, and is reduced there:
// the slot is the vector.
absl::StatusOr<IpcStep> PlanIpcInPlace(const CollectiveRequest& request, int rank, int size);

}  // namespace lockstep

#endif  // COMM_IPC_PLAN_H_
