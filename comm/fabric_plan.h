// What becomes of a piece of a collective (comm/staged_plan.h) that lies in memory of a device, which the network between
// the ranks reads and writes by itself: messages between slots, and a fold on the device between two rounds of them. Pure,
// and in step on all ranks.
//
//   all-reduce       each rank gets its part of every slot and folds it; then all parts go to all
//   reduce           the same, and the parts go to the root
//   reduce-scatter   the first half
//   broadcast        parts of the root's slot go to a rank each, then to all
//   the others       each block goes from where it is to where it belongs
//
// So a vector of b bytes goes over each link about twice, whatever the number of ranks, and everything that is folded is
// folded in rank order: all ranks get the same bits.

#ifndef COMM_FABRIC_PLAN_H_
#define COMM_FABRIC_PLAN_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "comm/communicator.h"

namespace lockstep {

// With every other rank that has as much to say; pairs of ranks list what goes between them alike.
struct FabricMessage {
  int peer = 0;
  char* data = nullptr;
  size_t bytes = 0;
};

// What holds it is used again for the next piece.
struct FabricPlan {
  // Before anything else, on the device: what stays on this rank.
  const char* own_source = nullptr;
  char* own_target = nullptr;
  size_t own_bytes = 0;

  std::vector<FabricMessage> sends;
  std::vector<FabricMessage> receives;

  // By rank; the target is this rank's own. None where nothing is folded, on any rank.
  std::vector<const void*> operands;
  char* target = nullptr;
  size_t count = 0;  // elements; may be 0

  std::vector<FabricMessage> second_sends;
  std::vector<FabricMessage> second_receives;
};

// What is to be spare behind a slot of so many bytes.
size_t FabricSpareBytes(size_t slot_bytes, int size);

// `request`: of StagedPlan::MakePiece, its buffers in the slot, behind which is `spare`. Errors: none for what that makes.
absl::Status MakeFabricPlan(const CollectiveRequest& request, int rank, int size, char* slot, char* spare,
                            FabricPlan* plan);

}  // namespace lockstep

#endif  // COMM_FABRIC_PLAN_H_
