// Exchange: small texts from rank 0 to all ranks of a job, through what the launcher lends its processes. Ranks that know nothing of
// each other yet learn by it where rank 0's store is.
//
//   kind    launcher                                                    by
//   kPmix   Open MPI's mpirun, PRRTE, srun --mpi=pmix                   libpmix, loaded at run time (pmix.h)
//   kPmi1   mpiexec of MPICH and its relatives (Hydra), Flux            a descriptor (pmi.h)
//   kPmi2   srun --mpi=pmi2                                             a descriptor (pmi.h)
//
// An MPI library in the same process uses the same launcher. Each implementation says how the two get along.

#ifndef TRANSPORT_EXCHANGE_EXCHANGE_H_
#define TRANSPORT_EXCHANGE_EXCHANGE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/rank.h"

namespace lockstep {

enum class ExchangeKind { kNone, kPmix, kPmi1, kPmi2 };

// "PMIx", "PMI-1", "PMI-2".
const char* Name(ExchangeKind kind);

inline constexpr size_t kExchangeValueBytesMax = 1000;

// Thread-safe, a call after the other. Fences pair in the order of their calls, which has to agree on all ranks. Not to be used while
// MPI_Init or MPI_Finalize runs. After a call that ended at its deadline, or had an answer that makes no sense, every call is
// FAILED_PRECONDITION.
// Keys are short names. Values have at most kExchangeValueBytesMax bytes: letters, digits, '-', '_' and '='.
class Exchange {
 public:
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Visible after the next fence. A key is put once in the life of a job.
  virtual absl::Status Put(absl::string_view key, absl::string_view value, Deadline deadline) = 0;
  // Returns when all ranks of the job have called it.
  virtual absl::Status Fence(Deadline deadline) = 0;
  // What rank 0 has put.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) = 0;

 protected:
  Exchange() = default;
  ~Exchange() = default;
};

// The process's connection to its launcher: opened when it is first used, closed at exit, never destroyed.
// ERRORS  NOT_FOUND            there is no library, or it is of another version
//         UNAVAILABLE          there is no descriptor, or no launcher behind it
//         DEADLINE_EXCEEDED    the launcher does not answer
//         FAILED_PRECONDITION  an earlier call has failed for good
//         RESOURCE_EXHAUSTED   there is no thread or descriptor left
absl::StatusOr<Exchange*> OpenExchange(ExchangeKind kind, Deadline deadline);

inline constexpr char kNotAllHaveCome[] = "not all ranks of the job have come to make the communicator";

// Rank 0's text, of any bytes, cut at 700, on all ranks; or rank 0's error, with its code, on all ranks. Called by all ranks of the
// job, equally often, and not by two threads at once.
// ERRORS  DEADLINE_EXCEEDED  beginning with kNotAllHaveCome: the fence has not ended in time; otherwise the launcher does not answer
//         those of Exchange's calls, and rank 0's
absl::StatusOr<std::string> TellAll(Exchange* exchange, Rank rank, const absl::StatusOr<std::string>& text,
                                    Deadline deadline);

}  // namespace lockstep

#endif  // TRANSPORT_EXCHANGE_EXCHANGE_H_
