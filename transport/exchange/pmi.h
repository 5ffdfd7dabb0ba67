// Exchange by PMI-1 or PMI-2: short messages over a descriptor (PMI_FD), a question and its answer at a time.
//
//   PMI-1   message = "cmd=" name { " " key "=" value } "\n"
//   PMI-2   message = length body, where length = 6 characters, decimal, filled up with blanks
//           body    = "cmd=" name ";" { key "=" value ";" }
//
//             PMI-1 question, answer          PMI-2 question, answer
//   begin     get_my_kvsname, my_kvsname      init in the form of PMI-1, response_to_init; fullinit, fullinit-response
//   put       put, put_result                 kvs-put, kvs-put-response
//   fence     barrier_in, barrier_out         kvs-fence, kvs-fence-response
//   get       get, get_result                 kvs-get, kvs-get-response
//   end       finalize, finalize_ack          finalize, finalize-response
//
// The MPI library of the same process has the same descriptor, and sends init and finalize at its own time.
//   PMI-1   Process managers answer questions without an init, so none is sent, and MPI_Init may come before or after. They take a
//           process for dead that ends without a finalize, and end the others. So one is sent at exit, unless MPI was initialised:
//           then it is MPI's.
//   PMI-2   Slurm takes one init. DetermineWorld chooses PMI-2 only in a process without an MPI library. An MPI_Init after that fails.

#ifndef TRANSPORT_EXCHANGE_PMI_H_
#define TRANSPORT_EXCHANGE_PMI_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "transport/exchange/exchange.h"

namespace lockstep {

// Over a socket of its own. For the process's, see OpenPmi.
class PmiExchange final : public Exchange {
 public:
  // What PMI-2's fullinit says of this process.
  struct Identity {
    std::string job;
    std::string rank;
  };

  // `kind` is kPmi1 or kPmi2.
  PmiExchange(ExchangeKind kind, UniqueFd socket, Identity self);

  absl::Status Begin(Deadline deadline);
  absl::Status Put(absl::string_view key, absl::string_view value, Deadline deadline) override;
  absl::Status Fence(Deadline deadline) override;
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override;
  // Also after a failure. FAILED_PRECONDITION, at once, while another thread is in a call.
  absl::Status End(Deadline deadline);
  // What every call returns from now on, unless OK.
  absl::Status failure() const;

 private:
  using Fields = std::vector<std::pair<std::string, std::string>>;

  // Sends the question and returns the answer's fields. An answer of another name, or with an rc other than 0, is an error.
  absl::StatusOr<Fields> Ask(ExchangeKind form, absl::string_view name, const Fields& fields, absl::string_view answer,
                             Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Send(ExchangeKind form, const std::string& message, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status EndLocked(Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::string> AskRaw(ExchangeKind form, const std::string& message, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ExchangeKind kind_;
  const UniqueFd socket_;
  const Identity self_;
  // Held while a question and its answer are under way.
  mutable Mutex mu_;
  std::string space_ ABSL_GUARDED_BY(mu_);     // PMI-1's name of the job's key-value space
  absl::Status failure_ ABSL_GUARDED_BY(mu_);  // the first, after which questions and answers may not match any more
};

// The process's, over a copy of the descriptor that PMI_FD names; begun.
// ERRORS  those of OpenExchange, without NOT_FOUND
absl::StatusOr<Exchange*> OpenPmi(ExchangeKind kind, Deadline deadline);

}  // namespace lockstep

#endif  // TRANSPORT_EXCHANGE_PMI_H_
