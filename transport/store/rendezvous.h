// Finds this process's rank, the world's size and the store, from options and the environment.
//
// The first of these that is complete says rank and size:
//
//   source      rank, size                         local rank, local size                 store
//   options     rank, size                         local_rank, local_size                 store_url
//   LOCKSTEP_*  _RANK, _WORLD_SIZE                 _LOCAL_RANK, _LOCAL_WORLD_SIZE         _STORE
//   torchrun    RANK, WORLD_SIZE                   LOCAL_RANK, LOCAL_WORLD_SIZE           MASTER_ADDR, MASTER_PORT + 1111
//   Open MPI    OMPI_COMM_WORLD_RANK, _SIZE        OMPI_COMM_WORLD_LOCAL_RANK, _SIZE      -
//   PMI         PMI_RANK, PMI_SIZE                 MPI_LOCALRANKID, MPI_LOCALNRANKS       -
//   Slurm       SLURM_PROCID, SLURM_NTASKS         SLURM_LOCALID                          -
//
// The store is that of option store_url, else of LOCKSTEP_STORE, else the source's own. The job's name comes from the options, else
// from LOCKSTEP_JOB_ID. A half-set LOCKSTEP_* family is an error. A half-set foreign one is skipped with a note.
//
// torchrun's own store listens at MASTER_PORT, and other jobs are likely to have the next ports. So ours is 1111 above (or below,
// if that would leave the range of ports).

#ifndef TRANSPORT_STORE_RENDEZVOUS_H_
#define TRANSPORT_STORE_RENDEZVOUS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/rank.h"
#include "transport/net/socket.h"

namespace lockstep {

inline constexpr int kTorchrunPortOffset = 1111;

// Where a store is, as text: "tcp://host:port", "tcp://[v6]:port", "file:///path".
struct StoreUrl {
  enum Scheme { kTcp, kFile };

  Scheme scheme = kTcp;
  HostPort server;   // kTcp; the port is not 0
  std::string path;  // kFile; absolute
};

// INVALID_ARGUMENT says what is wrong; for an unknown scheme, which ones there are.
absl::StatusOr<StoreUrl> ParseStoreUrl(absl::string_view url);

// The environment as DetermineWorld sees it.
struct Environment {
  // The value of a variable; nothing, or an empty text, when it is not set.
  std::function<absl::optional<std::string>(absl::string_view name)> lookup;
  // Names that look like ours but are in no table.
  std::vector<std::string> unknown_names;

  static Environment OfThisProcess();
};

// What the caller fixes; the rest comes from the environment.
struct RendezvousOptions {
  absl::optional<int> rank;  // both of these or neither
  absl::optional<int> size;
  absl::optional<int> local_rank;
  absl::optional<int> local_size;
  std::string store_url;
  bool has_store = false;  // the caller brings a store of its own: no URL is looked for
  std::string job_id;
};

struct WorldSpec {
  Rank rank;
  int size = 1;
  int local_rank = -1;  // -1: unknown
  int local_size = -1;
  std::string store_url;     // valid; empty for a world of one and where the caller brings a store
  std::string store_source;  // "option store_url", "LOCKSTEP_STORE", "MASTER_ADDR and MASTER_PORT + 1111"
  // Whether the launcher serves the store (LOCKSTEP_STORE_SERVED). If not, rank 0 does, if the store needs a server.
  bool store_served = false;
  std::string job_id;
  std::string source;              // "options", "LOCKSTEP_*", "torchrun", "Open MPI", "PMI", "Slurm", "single process"
  std::vector<std::string> notes;  // for the log: families that were skipped and why, unknown variables
};

// Pure. INVALID_ARGUMENT names the option or variable, its value and what would be right.
absl::StatusOr<WorldSpec> DetermineWorld(const RendezvousOptions& options, const Environment& environment);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_RENDEZVOUS_H_
