// What Slurm's variables say, beyond numbers. Pure.

#ifndef TRANSPORT_STORE_SLURM_H_
#define TRANSPORT_STORE_SLURM_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// The first host of a node list.
//
//   list    = host { "," host }
//   host    = part { part }
//   part    = text | "[" range { "," range } "]"
//   range   = digits [ "-" digits ]
//
// "n[07-09,12],x" begins with n07. INVALID_ARGUMENT for any other text.
absl::StatusOr<std::string> FirstSlurmHost(absl::string_view list);

// How many tasks the node with this number has: "2(x3),1" is 2 for nodes 0 to 2, and 1 for node 3. INVALID_ARGUMENT for any other
// text, and for a node that is not there.
absl::StatusOr<int> SlurmTasksOnNode(absl::string_view tasks_per_node, int64_t node);

// Steps from this number on (SLURM_MAX_NORMAL_STEP_ID in Slurm's own slurm.h) are no steps of ranks. One is salloc's shell
// (LaunchParameters=use_interactive_step): one process, beside the allocation's SLURM_NTASKS.
inline constexpr int64_t kSlurmReservedSteps = 4294967280;

inline constexpr int kSlurmPortFirst = 20000;
inline constexpr int kSlurmPortCount = 8192;

// Where rank 0 of a step listens: 20000 + (31 job + step) mod 8192. Below the ports that Linux gives to connections. The steps of a
// job have different ones, and so have jobs that follow each other, while each has 31 steps at most.
uint16_t SlurmPort(int64_t job, int64_t step);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_SLURM_H_
