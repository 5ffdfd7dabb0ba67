// Finds this process's rank, the world's size and where the ranks meet, from options and what the launcher brings.
//
// The first of these that is complete says rank and size:
//
//   source      rank, size                         local rank, local size                 where the ranks meet
//   options     rank, size                         local_rank, local_size                 store_url
//   LOCKSTEP_*  _RANK, _WORLD_SIZE                 _LOCAL_RANK, _LOCAL_WORLD_SIZE         _STORE
//   torchrun    RANK, WORLD_SIZE                   LOCAL_RANK, LOCAL_WORLD_SIZE           MASTER_ADDR, MASTER_PORT + 1111
//   Open MPI    OMPI_COMM_WORLD_RANK, _SIZE        OMPI_COMM_WORLD_LOCAL_RANK, _SIZE      PMIx
//   PMI         PMI_RANK, PMI_SIZE                 MPI_LOCALRANKID, MPI_LOCALNRANKS       PMI-1; under srun PMI-2
//   Kubeflow    PET_NODE_RANK, PET_NNODES, each    LOCAL_RANK, PET_NPROC_PER_NODE         PET_MASTER_ADDR, PET_MASTER_PORT + 1111
//               times PET_NPROC_PER_NODE
//   PMIx        PMIX_RANK, asked for               asked for                              PMIx
//   Slurm       SLURM_PROCID, SLURM_NTASKS         SLURM_LOCALID,                         first of SLURM_STEP_NODELIST, SlurmPort
//                                                  SLURM_STEP_TASKS_PER_NODE
//
// Where options say rank and size, LOCKSTEP_LOCAL_RANK and _LOCAL_WORLD_SIZE are read too, unless LOCKSTEP_RANK and _WORLD_SIZE say
// otherwise: then the launcher's variables describe its job, and this world is another one.
//
// The store is that of option store_url, else of LOCKSTEP_STORE, else the source's own. The job's name comes from the options, else
// from LOCKSTEP_JOB_ID, else from the source. A half-set LOCKSTEP_* family is an error. A half-set foreign one is skipped with a note.
//
// torchrun's own store listens at MASTER_PORT, and other jobs are likely to have the next ports. So ours is 1111 above (or below,
// if that would leave the range of ports).

#ifndef TRANSPORT_STORE_RENDEZVOUS_H_
#define TRANSPORT_STORE_RENDEZVOUS_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/exchange/exchange.h"
#include "transport/exchange/pmix.h"
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

// True for a store over TCP that nobody on another host can reach.
bool IsOnLoopback(const StoreUrl& url);

// The environment as DetermineWorld sees it.
struct Environment {
  // The value of a variable; nothing, or an empty text, when it is not set.
  std::function<absl::optional<std::string>(absl::string_view name)> lookup;
  // Names that look like ours but are in no table.
  std::vector<std::string> unknown_names;
  // Whether an MPI library is in this process, which needs the descriptor of Slurm's PMI-2 for itself.
  bool has_mpi = false;
  // Asks PMIx who this process is; called only where its variables are set and no source above it in the table is complete.
  std::function<absl::StatusOr<PmixJob>()> pmix_job;

  // PMIx answers by the deadline.
  static Environment OfThisProcess(Deadline deadline);
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
  // Valid; empty for a world of one, where the caller brings a store, and until the exchange has brought it.
  std::string store_url;
  std::string store_source;  // "option store_url", "LOCKSTEP_STORE", "MASTER_ADDR and MASTER_PORT + 1111", "PMIx"
  // By which rank 0, which serves the store at a port of the system's choice, tells the others its URL.
  ExchangeKind exchange = ExchangeKind::kNone;
  // Whether the launcher serves the store (LOCKSTEP_STORE_SERVED). If not, rank 0 does, if the store needs a server.
  bool store_served = false;
  // How long the store's server may leave a connection without an answer; 0: until the deadline.
  std::chrono::milliseconds answer_time{0};
  std::string job_id;
  std::string job_source;          // "option job_id", "LOCKSTEP_JOB_ID", "TORCHELASTIC_RUN_ID"
  std::string source;              // of the table above, or "single process"
  std::vector<std::string> notes;  // for the log: families that were skipped and why, unknown variables
};

// Pure, but for what the environment's functions do.
// ERRORS  INVALID_ARGUMENT names the option or variable, its value and what would be right
//         those of Environment::pmix_job
absl::StatusOr<WorldSpec> DetermineWorld(const RendezvousOptions& options, const Environment& environment);

// "rank 1 of 4 from Open MPI's variables; the ranks meet over PMIx at tcp://10.0.0.1:4411; job 'j' (LOCKSTEP_JOB_ID)".
std::string Explain(const WorldSpec& world);

// What to set where a launcher brings nothing that can be used.
inline constexpr char kSetStore[] = "set LOCKSTEP_STORE=tcp://host-of-rank-0:port or file:///path on all ranks";

}  // namespace lockstep

#endif  // TRANSPORT_STORE_RENDEZVOUS_H_
