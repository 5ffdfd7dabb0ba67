// StagedExchange: what is done with a piece (comm/staged_plan.h) between the copies to its slot and those from it, where that
// is no collective of the host's: comm/fabric_exchange.h.
//
// Calls from two sides, as comm/staged_pipeline.h has them: whoever issues a call's work on the device, and the pipeline's
// thread, which never calls the device. Pieces have numbers, which count up; in words they are their lower 32 bits.

#ifndef COMM_STAGED_EXCHANGE_H_
#define COMM_STAGED_EXCHANGE_H_

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device.h"
#include "comm/communicator.h"
#include "comm/signature.h"
#include "comm/staged_plan.h"

namespace lockstep {

class StagedExchange {
 public:
  virtual ~StagedExchange() = default;
  StagedExchange(const StagedExchange&) = delete;
  StagedExchange& operator=(const StagedExchange&) = delete;

  // Whoever issues: behind the copies to the piece's slot, in their stream.
  virtual absl::Status IssueIn(const StagedPiece& piece, char* slot, Stream* in) = 0;
  // Whoever issues: behind all of that, in the stream of the copies from the slot, before those.
  virtual absl::Status IssueOut(const StagedPiece& piece, char* slot, uint64_t number, Stream* out) = 0;

  // The thread, once a call: whether all ranks are about to carry out the same. FAILED_PRECONDITION, alike on all of them,
  // when they are not.
  virtual absl::Status Agree(const Signature& call, Deadline deadline) = 0;

  // Returns when the word, which a stream writes, has come to a piece's number; an error when that is not to be expected, or
  // the deadline has passed: `what` has not happened then.
  using Await = absl::FunctionRef<absl::Status(std::atomic<uint32_t>* word, uint64_t number, Deadline deadline,
                                               const char* what)>;
  // The thread: carries out the piece, which has been copied in.
  virtual absl::Status Run(const StagedPiece& piece, char* slot, uint64_t number, Deadline deadline, Await await) = 0;
  // The thread: what a stream waits for on behalf of pieces up to this one is over.
  virtual void LetGo(uint64_t number) = 0;

 protected:
  StagedExchange() = default;
};

}  // namespace lockstep

#endif  // COMM_STAGED_EXCHANGE_H_
