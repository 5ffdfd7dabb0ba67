// Communicator: a fixed group of ranks that carry out the same collectives in the same order. What MPI calls a communicator,
// NCCL an ncclComm_t and PyTorch a ProcessGroup.
//
// One interface for every back end: over a transport (comm/transport_communicator.h), a world of one
// (comm/self_communicator.h). comm/world.h makes one from options and environment; comm/collectives.h builds checked requests
// from tensors.
//
// Thread-safe. Every rank makes the same calls in the same order with equal counts, dtypes, ops and roots. A difference is
// FAILED_PRECONDITION with the same text on every rank that has not finished, and at the next call on the others; the
// communicator is over then. In checked mode it is found before anything moves, and the communicator stays usable.
//
// Failure. When a rank dies, stops answering, aborts, or an operation's deadline passes, every rank's operations complete with
// the same error and so do later calls: status() tells it. A new communicator over the survivors may be made in the
// same processes.

#ifndef COMM_COMMUNICATOR_H_
#define COMM_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "comm/schedule.h"
#include "comm/work.h"

namespace lockstep {

// One call. Buffers are contiguous, on the host, and at least as long as said here; comm/collectives.h has the checks.
struct CollectiveRequest {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  Rank root;
  // Elements of the whole vector: for all-gather all ranks' blocks together, for reduce-scatter the whole input; both are
  // multiples of the world's size.
  size_t count = 0;
  const void* input = nullptr;  // all-gather: one block. broadcast: the root's vector, ignored elsewhere
  void* output = nullptr;       // reduce-scatter: one block. reduce: ignored but at the root
  double factor = 1.0;          // of premul-sum; each rank may have its own
  Algorithm algorithm = Algorithm::kAuto;
  std::chrono::milliseconds timeout{0};  // of the operation, which it aborts on every rank; 0: the communicator's
  // The thread that carries it out shares its core with computation: it sleeps rather than polls while nothing moves.
  bool background = false;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;

  // Carries out the collective; the caller's thread does the work. Returns by the operation's deadline.
  virtual absl::Status Run(const CollectiveRequest& request) = 0;

  // Starts the collective and returns; in checked mode, once all ranks have called. On an error nothing was started.
  virtual absl::StatusOr<Work> Start(const CollectiveRequest& request) = 0;

  // Carries out the collective in the order of a stream: after what was enqueued before, before what is enqueued later. Here,
  // for back ends that work on the host, on the stream's own thread. `done` gets the result, on that thread; the stream itself
  // takes no error from it. An error returned means that nothing was enqueued and `done` will not be called.
  virtual absl::Status Enqueue(const CollectiveRequest& request, Stream* stream,
                               absl::AnyInvocable<void(const absl::Status&)> done);

  // OK, or UNIMPLEMENTED for what this back end cannot do.
  virtual absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const = 0;

  // OK while usable, else why not.
  virtual absl::Status status() const = 0;

  // Fails everything in flight and to come, on every rank, with ABORTED and this reason.
  virtual void Abort(const std::string& reason) = 0;

  // Notes: small texts that ranks leave for each other under a topic, beside the data (see ControlChannel). Posting returns at
  // once; AwaitNotes returns the notes in rank order once there are `count`.
  virtual void PostNote(uint64_t topic, const std::string& text) = 0;
  virtual absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitNotes(uint64_t topic, int count,
                                                                               Deadline deadline) = 0;

  // For people: the flight records, oldest first, and how the ranks are connected and why.
  virtual std::string FlightRecords() const = 0;
  virtual std::string Describe() const = 0;

 protected:
  Communicator() = default;
};

}  // namespace lockstep

#endif  // COMM_COMMUNICATOR_H_
