// Exchange by PMIx, through libpmix, which is loaded at run time.
//
// Versions 2 to 6 have the same functions and structures as far as they are declared in pmix.cc. The library counts its users in a
// process, so MPI_Init may come before or after. The connection is closed at exit: a launcher takes a process that ends without
// that for dead.

#ifndef TRANSPORT_EXCHANGE_PMIX_H_
#define TRANSPORT_EXCHANGE_PMIX_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "transport/exchange/exchange.h"

namespace lockstep {

// What PMIx says of this process; -1: it does not say.
struct PmixJob {
  int rank = -1;
  int size = -1;
  int local_rank = -1;
  int local_size = -1;
};

// The process's. A call into the library cannot be interrupted, so each is made on a thread of its own ("lockstep-pmix"), which is
// left behind when the deadline passes.
// ERRORS  those of OpenExchange
absl::StatusOr<Exchange*> OpenPmix(Deadline deadline);

// ERRORS  those of OpenPmix
absl::StatusOr<PmixJob> AskPmixForJob(Deadline deadline);

}  // namespace lockstep

#endif  // TRANSPORT_EXCHANGE_PMIX_H_
