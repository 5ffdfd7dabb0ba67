// NcclComm: a communicator of NCCL, for one rank of this process on one GPU.
//
// THREADS  Thread-safe. Calls are made one at a time; all ranks must make them in the same order. A call leaves the calling
//          thread's current device as it was.
// ERRORS   INVALID_ARGUMENT, FAILED_PRECONDITION (invalid usage), UNAVAILABLE (a system call failed), ABORTED (a remote
//          process exited), INTERNAL (errors of CUDA and NCCL), DEADLINE_EXCEEDED. The message has the attempt, NCCL's name
//          of the result and its last error text. After an error, except from Create, abort the communicator.
//
// No call blocks on a peer beyond its deadline. NCCL's communicators are non-blocking (`blocking = 0`): each call of NCCL
// returns at once, and we poll what it began. NCCL starts a thread for each group of calls, which is the cost.

#ifndef TRANSPORT_NCCL_NCCL_COMM_H_
#define TRANSPORT_NCCL_NCCL_COMM_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "transport/nccl/nccl_abi.h"
#include "transport/nccl/nccl_library.h"

namespace lockstep {

struct NcclCommOptions {
  // How many thread blocks a kernel of NCCL may have, from version 2.17 on; 0: NCCL's choice.
  int ctas_min = 0;
  int ctas_max = 0;
  // Communicators split from this one share its connections and buffers, from version 2.18 on. They take less memory. They
  // may not be used at the same time as this one or as each other.
  bool split_share = false;
};

class NcclComm {
 public:
  // Called while waiting. An error ends the wait and is returned.
  using Interrupted = absl::FunctionRef<absl::Status()>;
  // Called for an error's message: what was attempted.
  using Attempt = absl::FunctionRef<std::string()>;

  // For rank 0, which sends it to the others.
  static absl::StatusOr<nccl::UniqueId> MakeUniqueId(const NcclLibrary* library);

  // Collective. The library must outlive the result. An error leaves nothing behind.
  static absl::StatusOr<std::unique_ptr<NcclComm>> Create(const NcclLibrary* library, const nccl::UniqueId& id,
                                                          int rank, int size, int device,
                                                          const NcclCommOptions& options, Deadline deadline,
                                                          Interrupted interrupted);

  // Collective. REQUIRES can_split(). A communicator of the ranks with the same colour, ordered by key and then by rank here.
  // Null for a negative colour. On an error this communicator is aborted.
  absl::StatusOr<std::unique_ptr<NcclComm>> Split(int color, int key, Deadline deadline, Interrupted interrupted);

  // Aborts, unless Destroy was called.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // Issues the calls as one group on a stream (a cudaStream_t) of the device. Returns when all are enqueued, so that an event
  // recorded afterwards comes after them. The first call that involves a peer connects to it, and waits for it until the
  // deadline. ABORTED once aborted.
  absl::Status Launch(absl::Span<const NcclCall> calls, void* stream, Attempt attempt, Deadline deadline);

  // NCCL's asynchronous error, for a watchdog. Does not wait. OK while another thread is in a call: that call returns the
  // error.
  absl::Status Poll();

  // Ends running kernels, calls of other threads and the communicator. May be called by any thread and repeatedly. Waits for
  // no peer, but for kernels ahead of its own on the device, even those of another communicator that hangs.
  void Abort();
  // Aborts on a thread of its own, lockstep-abort, which the destructor joins. For several communicators whose aborts may wait
  // for each other's kernels.
  void AbortSoon();

  // Ends the communicator in good order. REQUIRES that everything issued has completed, and no later call.
  void Destroy();

  // Registers memory, which makes collectives in it faster. REQUIRES can_register(). The handle is for Deregister, and ends
  // with the communicator.
  absl::StatusOr<void*> Register(void* memory, size_t bytes);
  void Deregister(void* handle);

  // NCCL's communicator; null once it has ended.
  nccl::Comm* handle() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return comm_;
  }

 private:
  NcclComm(const NcclLibrary* library, int device, const NcclCommOptions& options);

  nccl::Config MakeConfig() const;
  nccl::Result Issue(const NcclCall& call, nccl::RedOp op, void* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Issues a launch's group. Operators made for it are in operators_.
  nccl::Result IssueGroup(absl::Span<const NcclCall> calls, void* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbortLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until `comm` is no longer in progress with what returned `begun`.
  absl::Status Await(nccl::Comm* comm, nccl::Result begun, Attempt attempt, Deadline deadline, Interrupted interrupted);
  // Waits until the subgroup's communicator exists.
  absl::Status AwaitSubgroup(nccl::Comm** subgroup, Attempt attempt, Deadline deadline, Interrupted interrupted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Error(nccl::Comm* comm, nccl::Result result, absl::string_view attempt) const;

  // Constant after construction.
  const NcclLibrary* const library_;
  const nccl::Api& api_;
  const int device_;
  const NcclCommOptions options_;

  // Set before Abort takes mu_: a thread that waits with mu_ held polls this, and returns.
  std::atomic<bool> aborted_{false};

  // Guarded by mu_, which is held during a call of NCCL and while we wait for what it began.
  mutable Mutex mu_;
  nccl::Comm* comm_ ABSL_GUARDED_BY(mu_) = nullptr;  // null at the end
  // Results of splits without a colour. NCCL's manual does not say until when it writes into them.
  std::vector<std::unique_ptr<NcclComm>> without_color_ ABSL_GUARDED_BY(mu_);
  std::vector<nccl::RedOp> operators_ ABSL_GUARDED_BY(mu_);

  Mutex aborter_mu_;
  Thread aborter_ ABSL_GUARDED_BY(aborter_mu_);
};

}  // namespace lockstep

#endif  // TRANSPORT_NCCL_NCCL_COMM_H_
