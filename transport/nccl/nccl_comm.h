// NcclComm: one communicator of NCCL's, for one rank of this process on one GPU.
//
// Nothing here blocks on a peer beyond a deadline: NCCL's communicators are created without blocking (its `blocking =
// 0`), so every call returns at once and what it began is polled. That is paid for with a thread that NCCL starts for
// each group of calls.
//
// Thread-safe. Calls are made one at a time, in some order; ranks must make them in the same one. Owned by whoever
// created it. The calling thread's current device is the same after a call as before.
//
// Errors are NCCL's own: what was attempted, NCCL's words for the result and its last error text. INVALID_ARGUMENT,
// FAILED_PRECONDITION (invalid usage), UNAVAILABLE (a system call failed), ABORTED (a remote process exited),
// INTERNAL (CUDA's and NCCL's own), DEADLINE_EXCEEDED. After any of them other than from Create the communicator is
// of no use: abort it.

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
#include "transport/nccl/nccl_call.h"
#include "transport/nccl/nccl_library.h"

namespace lockstep {

struct NcclCommOptions {
  // How many thread blocks a kernel of NCCL's may have, in versions from 2.17; 0: NCCL's choice.
  int ctas_min = 0;
  int ctas_max = 0;
  // Parts of this communicator use its connections and buffers, in versions from 2.18: they take less memory, and may
  // not be used at the same time as it or as each other.
  bool split_share = false;
};

class NcclComm {
 public:
  // Asked while waiting; an error ends the wait and is returned.
  using Interrupted = absl::FunctionRef<absl::Status()>;
  // Asked when something went wrong.
  using Attempt = absl::FunctionRef<std::string()>;

  // For rank 0, which tells the others.
  static absl::StatusOr<nccl::UniqueId> MakeUniqueId(const NcclLibrary* library);

  // Collective. The library outlives what is returned. An error leaves nothing behind.
  static absl::StatusOr<std::unique_ptr<NcclComm>> Create(const NcclLibrary* library, const nccl::UniqueId& id,
                                                          int rank, int size, int device,
                                                          const NcclCommOptions& options, Deadline deadline,
                                                          Interrupted interrupted);

  // Collective, of a library that can_split(). Ranks of one colour, which is not negative, in the order of their keys
  // and then of their ranks here; null for a negative colour. On an error this one is aborted.
  absl::StatusOr<std::unique_ptr<NcclComm>> Split(int color, int key, Deadline deadline, Interrupted interrupted);

  // Aborts, unless Destroy was called.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // Issues the calls as one group on a stream (a cudaStream_t) of the device. Returns when they are all on it, so
  // that an event that is recorded afterwards comes after them. The first call that involves a peer connects to it
  // and waits until that one has come as far, by the deadline. `attempt` says what it is, for errors. ABORTED once
  // aborted.
  absl::Status Launch(absl::Span<const NcclCall> calls, void* stream, Attempt attempt, Deadline deadline);

  // What has failed meanwhile, for a watchdog. Does not wait; OK while another thread is in a call, which sees errors
  // itself.
  absl::Status Poll();

  // Ends kernels that are under way, calls of other threads and the communicator. Any thread, any number of times.
  // Waits for no peer, but for kernels that are ahead of its own on the device: those of another communicator that
  // hangs, too.
  void Abort();
  // The same on a thread of its own, lockstep-abort, which the destructor waits for: whoever ends several communicators
  // that may wait for each other's kernels ends them all so.
  void AbortSoon();

  // The gentle end, when everything issued has completed. Used by nobody else from now on.
  void Destroy();

  // Memory whose registration makes collectives in it faster, in a library that can_register(). The handle is given
  // back to Deregister while the communicator lives, and forgotten with it.
  absl::StatusOr<void*> Register(void* memory, size_t bytes);
  void Deregister(void* handle);

  const NcclLibrary& library() const { return *library_; }
  // NCCL's own, while it lives; null at the end.
  nccl::Comm* handle() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return comm_;
  }

 private:
  NcclComm(const NcclLibrary* library, int device, const NcclCommOptions& options);

  nccl::Config MakeConfig() const;
  nccl::Result Issue(const NcclCall& call, nccl::RedOp op, void* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The group of a launch, with the operators that it needs; those that were made are in operators_.
  nccl::Result IssueGroup(absl::Span<const NcclCall> calls, void* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbortLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Until what `begun` says is under way on `comm` is done.
  absl::Status Await(nccl::Comm* comm, nccl::Result begun, Attempt attempt, Deadline deadline, Interrupted interrupted);
  // Until the part that this one is split into is there.
  absl::Status AwaitPart(nccl::Comm** part, Attempt attempt, Deadline deadline, Interrupted interrupted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Error(nccl::Comm* comm, nccl::Result result, absl::string_view attempt) const;

  // Constant after construction.
  const NcclLibrary* const library_;
  const nccl::Api& api_;
  const int device_;
  const NcclCommOptions options_;

  // Set before mu_ is taken to abort: whoever waits with mu_ held looks at it, and returns.
  std::atomic<bool> aborted_{false};

  // Guarded by mu_, which is held during a call of NCCL's and while what it began is awaited.
  mutable Mutex mu_;
  nccl::Comm* comm_ ABSL_GUARDED_BY(mu_) = nullptr;  // null at the end
  // Of splits in which this rank has no part: NCCL's manual does not say until when it writes into them.
  std::vector<std::unique_ptr<NcclComm>> without_color_ ABSL_GUARDED_BY(mu_);
  std::vector<nccl::RedOp> operators_ ABSL_GUARDED_BY(mu_);

  Mutex aborter_mu_;
  Thread aborter_ ABSL_GUARDED_BY(aborter_mu_);
};

}  // namespace lockstep

#endif  // TRANSPORT_NCCL_NCCL_COMM_H_
