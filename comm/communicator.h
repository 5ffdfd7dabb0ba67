// Communicator: a fixed group of ranks that execute the same collectives in the same order. What MPI calls a communicator,
// NCCL an ncclComm_t and PyTorch a ProcessGroup.
//
// There are two: over a transport (comm/host/transport_communicator.h), of which a world of one is a case, and for a device, over one for
// the host (comm/device/device_communicator.h). comm/world/world.h makes one from options and environment; comm/plan/collectives.h
// builds checked requests from tensors.
//
// Thread-safe. Every rank makes the same calls in the same order with equal counts, dtypes, ops and roots. A difference is
// FAILED_PRECONDITION with the same text on every rank that has not finished, and at the next call on the others; the
// communicator is over then. In checked mode it is found before anything moves, and the communicator stays usable.
//
// Groups. Between StartGroup and EndGroup the calls of that thread are collected: Start returns a Work that is not under way
// yet, Run and Send and Receive return at once, and EndGroup launches all together, so that nothing in it waits for anything
// else in it. Groups nest; the outermost end launches. When a call is refused, it says so, the end says it again, and
// nothing is launched. Waiting inside for a Work of the group is FAILED_PRECONDITION, as a group without its end is at
// destruction.
//
// Messages. Send and Receive are beside the collectives, on a lane of their own: neither waits for the other. Messages from one
// rank with one tag are received in the order in which they were sent. A small one (64 KiB) is sent whether or not anybody
// receives it, until a MiB from this rank waits there; a larger one, and everything then, moves when it is received.
//
// Memory. Allocate gives memory that ranks which share a host map. A collective whose buffers all lie in it is direct: each rank reads
// its peers' inputs and writes their outputs. Whether they do is part of the call: on all ranks or on none. Between the first rank's
// call and the last rank's return the buffers are everybody's. (Ordinary calls, wherever the buffers lie: an all-to-all in place or
// with counts, and a reduce, reduce-scatter or reduce-scatter-v with a factor.) Between hosts, the allocator's memory is registered with
// a network device once, and other buffers for each message.
//
// Devices. Every communicator takes buffers on the host; one that was made for a device (comm/device/device_communicator.h) takes
// buffers on that device, too, all of one call in one place. Elsewhere they are INVALID_ARGUMENT.
//
// Failure. When a rank dies, stops answering, aborts, or an operation's deadline passes, every rank's operations complete with
// the same error and so do later calls: status() tells it. A new communicator over the survivors may be made in the
// same processes.

#ifndef COMM_COMMUNICATOR_H_
#define COMM_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/rank.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"

namespace lockstep {

// One call. Buffers are contiguous, on `device`, and at least as long as said here; comm/plan/collectives.h has the checks.
struct CollectiveRequest {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  Rank root;
  // Elements of the whole vector: where each rank has a block of it (all-gather, reduce-scatter, gather, scatter), all
  // blocks together; for all-to-all the whole input. Those are multiples of the world's size unless `counts` are given.
  size_t count = 0;
  // The v-forms of those five: elements of each rank's block, which lie one behind the other in rank order. Empty: equal
  // blocks. They add up to `count` and, but for all-to-all, are equal on all ranks. Borrowed until the call returns.
  absl::Span<const int64_t> counts;
  // All-to-all with counts: `counts` go to each rank, and these come from each. Ranks know only their own; for each pair they
  // must fit together. Borrowed likewise.
  absl::Span<const int64_t> output_counts;
  // all-gather, gather: one block. broadcast, scatter: the root's vector, ignored elsewhere.
  const void* input = nullptr;
  // reduce-scatter, scatter: one block. reduce, gather: ignored but at the root.
  void* output = nullptr;
  double factor = 1.0;  // of premul-sum; each rank may have its own
  Algorithm algorithm = Algorithm::kAuto;
  std::chrono::milliseconds timeout{0};  // of the operation, which it aborts on every rank; 0: the communicator's
  // The thread that executes it shares its core with computation: it sleeps rather than polls while nothing moves.
  bool background = false;
  bool by_holder = false;  // of whoever holds the communicator: see Hold
  DeviceId device;         // where the buffers are
};

// What most calls name. In place, `output` is `input`.
inline CollectiveRequest MakeRequest(Collective collective, DType dtype, size_t count, const void* input,
                                     void* output) {
  CollectiveRequest request;
  request.collective = collective;
  request.dtype = dtype;
  request.count = count;
  request.input = input;
  request.output = output;
  return request;
}

inline constexpr Rank kAnySource{-1};
inline constexpr int64_t kAnyTag = -1;

// Buffers stay borrowed until the work is done.
struct SendRequest {
  Rank target;      // may be this rank
  int64_t tag = 0;  // not negative
  const void* data = nullptr;
  size_t bytes = 0;
  std::chrono::milliseconds timeout{0};  // as of a collective
  DeviceId device;
};

struct ReceiveRequest {
  Rank source = kAnySource;
  int64_t tag = kAnyTag;
  void* data = nullptr;
  size_t bytes = 0;             // room; a longer message is FAILED_PRECONDITION for both sides and is lost
  MessageInfo* info = nullptr;  // written when the work is done well, as the work has it; may be null
  std::chrono::milliseconds timeout{0};
  DeviceId device;
};

// What communicators for the host alone say of buffers elsewhere: INVALID_ARGUMENT.
absl::Status CheckOnHost(DeviceId device);

// INVALID_ARGUMENT for a peer or a tag that cannot be, in a world of this size.
absl::Status CheckMessage(const SendRequest& request, int size);
absl::Status CheckMessage(const ReceiveRequest& request, int size);

// A collective that is set up once and started as often as wanted, without an allocation: see Communicator::Prepare. Used by
// one thread at a time. Destroying it neither waits nor cancels: a started collective goes on.
class PreparedCollective {
 public:
  virtual ~PreparedCollective() = default;
  PreparedCollective(const PreparedCollective&) = delete;
  PreparedCollective& operator=(const PreparedCollective&) = delete;

  // Like Communicator::Run and Start, whose errors it has. FAILED_PRECONDITION while the last start is not done.
  virtual absl::Status Run() = 0;
  virtual absl::Status Start() = 0;
  // Of the last start, as Work has them; before the first one, done.
  virtual bool done() const = 0;
  virtual absl::Status Wait(Deadline deadline) = 0;
  virtual void OnComplete(CompletionCallback callback) = 0;

 protected:
  PreparedCollective() = default;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  // The number of one of its ranks in the world that it is a subgroup of.
  virtual Rank WorldRank(Rank rank) const { return rank; }

  // Whose memory collectives take beside the host's; null where there is none. It outlives this.
  virtual Device* accelerator() const { return nullptr; }
  // The communicator of NCCL's that collectives on device() go over, an ncclComm_t, borrowed. FAILED_PRECONDITION where they do not go by
  // NCCL; what status() is once it has failed.
  virtual absl::StatusOr<void*> NcclHandle() const {
    return absl::FailedPreconditionError("tensors of this communicator do not travel by NCCL");
  }
  // Whether it looks, in checked mode, if buffers are where calls say (CheckPointer).
  virtual bool checks_pointers() const { return false; }
  DeviceId device() const { return accelerator() == nullptr ? DeviceId() : accelerator()->id(); }

  // Executes the collective; the caller's thread does the work. Returns by the operation's deadline.
  virtual absl::Status Run(const CollectiveRequest& request) = 0;

  // Starts the collective and returns; in checked mode, once all ranks have called. On an error nothing was started.
  virtual absl::StatusOr<Work> Start(const CollectiveRequest& request) = 0;

  // Sets the collective up to be started many times with the same buffers and counts. The communicator outlives what is
  // returned. Not collective: ranks may prepare and start in any form.
  virtual absl::StatusOr<std::unique_ptr<PreparedCollective>> Prepare(const CollectiveRequest& request) = 0;

  // See "Groups" above. The work that EndGroup returns is done when all calls of the group are, with the first error of
  // any; a nested end returns the same work as the outermost. FAILED_PRECONDITION when this thread has no group open, or at
  // the start when another thread has one.
  virtual absl::Status StartGroup() = 0;
  virtual absl::StatusOr<Work> EndGroup() = 0;
  // Whether this thread has a group open.
  virtual bool InGroup() const = 0;
  // Returns `refusal`, an error. The end of the group that this thread has open, if any, says it again and launches nothing.
  virtual absl::Status Refuse(const absl::Status& refusal) = 0;

  // See "Messages" above.
  virtual absl::StatusOr<Work> StartSend(const SendRequest& request) = 0;
  virtual absl::StatusOr<Work> StartReceive(const ReceiveRequest& request) = 0;
  virtual absl::Status Send(const SendRequest& request) = 0;
  virtual absl::Status Receive(const ReceiveRequest& request) = 0;

  // Collective. One communicator for each colour, of the ranks that gave it, in the order of their keys and then of their
  // ranks here; null for a negative colour. It shares the connections, and must be destroyed before the world; beyond that it
  // is on its own: it may be used at the same time as this one, from other threads, and a failure of one that is not the
  // loss of a rank does not reach the other.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) = 0;
  // The same ranks again.
  absl::StatusOr<std::unique_ptr<Communicator>> Duplicate() { return Split(0, rank().value()); }

  // Collective. Memory for collectives: see "Memory" above. INVALID_ARGUMENT on every rank when the sizes differ or are 0,
  // RESOURCE_EXHAUSTED where a limit does not allow it and UNAVAILABLE, naming it, on the other ranks; the communicator
  // stays usable. After a failure of the communicator a rank that was stopped may still write into it.
  virtual absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes) = 0;

  // Collective. Whether this rank can touch `bytes` more of the host's memory while the other ranks of its host touch what they
  // ask for: the kernel ends processes where more is touched than there is. ERRORS on every rank when one of them cannot:
  // RESOURCE_EXHAUSTED there, with what is needed and what is left, UNAVAILABLE, naming it, on the others.
  virtual absl::Status CheckMemory(size_t bytes);

  // Memory on device() for collectives there, in which they are fastest. Otherwise as Allocate, but its contents are undefined.
  virtual absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateOnDevice(size_t bytes);

  // Executes the collective in the order of a stream: after what was enqueued before, before what is enqueued later. An error
  // returned means that nothing was enqueued and `done` will not be called.
  // `before`, unless null, is called directly before the collective.
  // On a stream of the host (buffers there, too) by the stream's own thread: it calls both, `done` gets the result, and the stream
  // itself takes no error from it. The request's counts stay borrowed until then.
  // On a stream of device() both are called before this returns, `done` once all is issued; a failure after that is status()'s to tell.
  virtual absl::Status Enqueue(const CollectiveRequest& request, Stream* stream, absl::AnyInvocable<void()> before,
                               absl::AnyInvocable<void(const absl::Status&)> done);
  absl::Status Enqueue(const CollectiveRequest& request, Stream* stream,
                       absl::AnyInvocable<void(const absl::Status&)> done) {
    return Enqueue(request, stream, nullptr, std::move(done));
  }

  // From Hold to Release the order of collectives is the holder's affair: those of others (CollectiveRequest::by_holder is not set) and
  // what else is collective (Split, Allocate) are FAILED_PRECONDITION, before anything is issued. What was enqueued on a stream or
  // put into a group before goes on, and messages are free. `holder` names it in errors, and is a literal. False: it is held already.
  // THREADS  any; Release by whoever holds it.
  virtual bool Hold(const char* holder) {
    const char* nobody = nullptr;
    return holder_.compare_exchange_strong(nobody, holder, std::memory_order_relaxed);
  }
  virtual void Release() { holder_.store(nullptr, std::memory_order_relaxed); }

  // OK, or UNIMPLEMENTED for what this back end cannot do.
  virtual absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const = 0;

  // Whether Enqueue on a stream of device() may be part of a CUDA graph that is being captured, and repeated with it. If not,
  // FAILED_PRECONDITION and why. Of a repetition nothing is known here: it has no deadline and no flight record.
  virtual absl::Status CanCapture() const;

  // OK while usable, else why not.
  virtual absl::Status status() const = 0;

  // Fails everything in flight and to come, on every rank, with ABORTED and this reason.
  virtual void Abort(const std::string& reason) = 0;

  // This rank leaves, as the destructor does: what is in flight ends with CANCELLED here and with ABORTED on the other ranks. With
  // nothing in flight they may still finish what this rank has finished; what they call beyond that is ABORTED and names this rank.
  // Every later call here is CANCELLED, as status() is, also of what was made of this communicator, but for its subgroups. Waits for no
  // peer. Idempotent.
  void Leave() {
    left_.store(true, std::memory_order_relaxed);
    OnLeave();
    Release();  // whoever held it: that it has been left is what later calls are told
  }
  // Relaxed: who needs more asks for status().
  bool left() const { return left_.load(std::memory_order_relaxed); }

  // Posted messages: short texts that ranks leave for each other under a topic, beside the data (see ControlChannel); not those of
  // Send and Receive. PostMessage returns at once. AwaitMessages returns them in rank order once there are `count`.
  virtual void PostMessage(uint64_t topic, const std::string& text) = 0;
  virtual absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                                  Deadline deadline) = 0;

  // A barrier with a timeout of its own (0: the communicator's) that says who has not come. For all ranks, in the same order among
  // such barriers; collectives and groups have nothing to do with it, and what is in flight is not waited for. It takes two messages
  // by the coordinator, tens of microseconds.
  // RETURNS  OK once all ranks have called it.
  // ERRORS   DEADLINE_EXCEEDED when the first who waits has waited its timeout. Its message names the ranks that had not come, and
  //          `missing` (may be null) gets them: the same on every rank, those included that come to it later. The communicator
  //          stays usable, and the next one begins anew. Without the list when the coordinator does not answer.
  //          What status() tells when the communicator has failed: a rank's death ends the wait at once.
  //          UNIMPLEMENTED without a control channel.
  virtual absl::Status MonitoredBarrier(std::chrono::milliseconds timeout, std::vector<Rank>* missing);

  // For people: the flight records, oldest first, and how the ranks are connected and why.
  virtual std::string FlightRecords() const = 0;
  virtual std::string Describe() const = 0;

 protected:
  Communicator() = default;

  // What every call begins with that is one of those which Hold speaks of.
  absl::Status CheckHeld(bool by_holder) const {
    const char* const holder = holder_.load(std::memory_order_relaxed);
    return holder == nullptr || by_holder ? absl::OkStatus() : HeldError(holder);
  }

 private:
  virtual void OnLeave() = 0;
  static absl::Status HeldError(const char* holder);

  std::atomic<const char*> holder_{nullptr};  // says nothing about other memory
  std::atomic<bool> left_{false};
};

}  // namespace lockstep

#endif  // COMM_COMMUNICATOR_H_
