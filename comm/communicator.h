// Communicator: a fixed group of ranks that execute the same collectives in the same order. What MPI calls a communicator,
// NCCL an ncclComm_t and PyTorch a ProcessGroup.
//
// There are two: over a transport (comm/host/transport_communicator.h), of which a world of one is a case, and for a device, over one for
// the host (comm/device/device_communicator.h). comm/world/world.h makes one from options and environment; comm/plan/collectives.h
// builds checked requests from tensors.
//
// Thread-safe. Every rank makes the same calls in the same order with equal counts, dtypes, ops and roots. A difference is
// FAILED_PRECONDITION with the same text on every rank: in the call that has not finished, or in the next one. The communicator
// is over then. In checked mode a difference is found before anything moves, and the communicator stays usable.
//
// Groups. Between StartGroup and EndGroup the calls of that thread are collected. Start returns a Work that is not under way
// yet; Run, Send and Receive return at once. EndGroup launches all of them together, so that no call of the group waits for
// another. Groups nest; the outermost end launches. A call that is refused returns its error, EndGroup returns it again, and
// nothing is launched. Waiting inside the group for one of its Works is FAILED_PRECONDITION. So are the calls of a group that was
// never ended, when the communicator is destroyed.
//
// Messages. Send and Receive have a lane of their own beside the collectives: neither waits for the other. Messages from one
// rank with one tag are received in the order in which they were sent. A small message (up to 64 KiB) is sent whether or not
// anybody receives it, until a MiB from this rank waits there. Larger messages, and all once that limit is reached, move when
// they are received.
//
// Memory. Allocate gives memory that ranks which share a host map. A collective whose buffers all lie in it is direct: each rank reads
// its peers' inputs and writes their outputs. Whether the buffers lie there is part of the call: on all ranks or on none. From the
// first rank's call to the last rank's return, any rank may access the buffers. Some calls are ordinary wherever the buffers lie: an
// all-to-all in place or with counts, and a reduce, reduce-scatter or reduce-scatter-v with a factor. Between hosts, the allocator's
// memory is registered with a network device once, other buffers for each message.
//
// Devices. Every communicator takes buffers on the host. One that was made for a device (comm/device/device_communicator.h) also takes
// buffers on that device. All buffers of one call are in one place. Any other place is INVALID_ARGUMENT.
//
// Failure. When a rank dies, stops answering, aborts, or an operation's deadline passes, every rank's operations and later calls
// complete with the same error, which status() returns. A new communicator over the survivors may be made in the same
// processes.

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
#include "base/ref.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/pieces.h"
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
  // Elements of the whole vector. Where each rank has a block of it (all-gather, reduce-scatter, gather, scatter): of all
  // blocks together. For all-to-all: of the whole input. These are multiples of the world's size unless `counts` are given.
  size_t count = 0;
  // The v-forms of those five: elements of each rank's block, which lie one behind the other in rank order. Empty: equal
  // blocks. They add up to `count` and, but for all-to-all, are equal on all ranks. Borrowed until the call returns.
  absl::Span<const int64_t> counts;
  // All-to-all with counts: `counts` elements go to each rank, `output_counts` come from each. A rank gives only its own; both
  // ranks of a pair must agree. Borrowed until the call returns.
  absl::Span<const int64_t> output_counts;
  // all-gather, gather: one block. broadcast, scatter: the root's vector, ignored elsewhere.
  const void* input = nullptr;
  // reduce-scatter, scatter: one block. reduce, gather: ignored but at the root.
  void* output = nullptr;
  // Instead of `input` and `output`, on the host, where they are not contiguous (comm/pieces.h): of `dtype`, with as many bytes as these
  // would have. Some of it or all may be in place. They stay unchanged until the collective is done. Not for an all-to-all.
  Ref<const Pieces> input_pieces;
  Ref<const Pieces> output_pieces;
  // On every rank all pieces are plain, lie where Communicator::Shares says so, and are at most Pieces::kSharedMax: the collective may be
  // direct.
  bool shared_pieces = false;
  double factor = 1.0;  // of premul-sum; each rank may have its own
  Algorithm algorithm = Algorithm::kAuto;
  std::chrono::milliseconds timeout{0};  // after it the operation is aborted on every rank; 0: the communicator's
  // Start waits so long for the operation before it returns. Until then no other thread has to be woken to execute it.
  std::chrono::milliseconds wait{0};
  // The thread that executes it shares its core with computation: it sleeps, rather than polls, when nothing moves for some microseconds.
  bool background = false;
  bool by_holder = false;  // the caller holds the communicator: see Hold
  DeviceId device;         // where the buffers are
};

// A request with the fields that most calls set. In place, `output` is `input`.
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
  MessageInfo* info = nullptr;  // written on success, equal to Work::message(); may be null
  std::chrono::milliseconds timeout{0};
  DeviceId device;
};

// INVALID_ARGUMENT for buffers that are not on the host: the check of communicators for the host alone.
absl::Status CheckOnHost(DeviceId device);

// INVALID_ARGUMENT for a peer or a tag that is not valid in a world of this size.
absl::Status CheckMessage(const SendRequest& request, int size);
absl::Status CheckMessage(const ReceiveRequest& request, int size);

// A collective that is set up once and started any number of times, without an allocation: see Communicator::Prepare. One thread
// at a time. Destroying it neither waits nor cancels: a started collective goes on.
class PreparedCollective {
 public:
  virtual ~PreparedCollective() = default;
  PreparedCollective(const PreparedCollective&) = delete;
  PreparedCollective& operator=(const PreparedCollective&) = delete;

  // Like Communicator::Run and Start, with the same errors. FAILED_PRECONDITION while the last start is not done.
  virtual absl::Status Run() = 0;
  virtual absl::Status Start() = 0;
  // Of the last start, like those of Work. Before the first start: done.
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
  // The world's number of one of this communicator's ranks.
  virtual Rank WorldRank(Rank rank) const { return rank; }

  // The device whose memory collectives take beside the host's; null where there is none. It outlives this.
  virtual Device* accelerator() const { return nullptr; }
  // NCCL's communicator (ncclComm_t) for collectives on device(). Borrowed.
  // ERRORS  FAILED_PRECONDITION  this communicator does not use NCCL
  //         status()             it has failed
  virtual absl::StatusOr<void*> NcclHandle() const {
    return absl::FailedPreconditionError("tensors of this communicator do not travel by NCCL");
  }
  // Whether checked mode also checks that buffers are where calls say (CheckPointer).
  virtual bool checks_pointers() const { return false; }
  DeviceId device() const { return accelerator() == nullptr ? DeviceId() : accelerator()->id(); }

  // Executes the collective; the caller's thread does the work. Returns by the operation's deadline.
  virtual absl::Status Run(const CollectiveRequest& request) = 0;

  // Starts the collective and returns; in checked mode, once all ranks have called. On an error nothing was started.
  virtual absl::StatusOr<Work> Start(const CollectiveRequest& request) = 0;

  // Sets the collective up to be started many times with the same buffers and counts. The communicator outlives the result.
  // Not collective: other ranks may make the same calls without Prepare.
  virtual absl::StatusOr<std::unique_ptr<PreparedCollective>> Prepare(const CollectiveRequest& request) = 0;

  // See "Groups" above. EndGroup's work is done when all calls of the group are; its result is the first error of any. A nested
  // end returns the same work as the outermost. FAILED_PRECONDITION from EndGroup when this thread has no group open, from
  // StartGroup when another thread has one.
  virtual absl::Status StartGroup() = 0;
  virtual absl::StatusOr<Work> EndGroup() = 0;
  // Whether this thread has a group open.
  virtual bool InGroup() const = 0;
  // Returns `refusal`, an error. If this thread has a group open, its end returns the error again and launches nothing.
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

  // Whether the memory is of Allocate, and all ranks map it.
  // THREADS  any
  virtual bool Shares(const void* memory, size_t bytes) const { return false; }

  // Collective. Whether this rank can touch `bytes` more of the host's memory while the other ranks of its host touch what they
  // ask for: the kernel ends processes where more is touched than there is. ERRORS on every rank when one of them cannot:
  // RESOURCE_EXHAUSTED there, with what is needed and what is left, UNAVAILABLE, naming it, on the others.
  virtual absl::Status CheckMemory(size_t bytes);

  // Memory on device() for collectives there, in which they are fastest. Otherwise as Allocate, but its contents are undefined.
  virtual absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateOnDevice(size_t bytes);

  // Executes the collective in the order of a stream: after what was enqueued before, before what is enqueued later. After an
  // error nothing was enqueued and `done` will not be called. `before`, unless null, is called directly before the collective.
  // THREADS  on a stream of the host, with buffers there: the stream's own thread executes the collective and calls both. `done` gets
  //          the result; the stream itself gets no error. The request's counts stay borrowed until then.
  //          on a stream of device(): both are called before this returns, `done` once all is issued. status() returns later failures.
  virtual absl::Status Enqueue(const CollectiveRequest& request, Stream* stream, absl::AnyInvocable<void()> before,
                               absl::AnyInvocable<void(const absl::Status&)> done);
  absl::Status Enqueue(const CollectiveRequest& request, Stream* stream,
                       absl::AnyInvocable<void(const absl::Status&)> done) {
    return Enqueue(request, stream, nullptr, std::move(done));
  }

  // From Hold to Release only the holder may call collectives. Those of others (CollectiveRequest::by_holder is not set), Split and
  // Allocate are FAILED_PRECONDITION, before anything is issued. What was enqueued on a stream or put into a group before goes on;
  // messages are not affected. `holder` is a literal that names the holder in errors.
  // RETURNS  false if it is held already
  // THREADS  any; Release by the holder
  virtual bool Hold(const char* holder) {
    const char* nobody = nullptr;
    return holder_.compare_exchange_strong(nobody, holder, std::memory_order_relaxed);
  }
  virtual void Release() { holder_.store(nullptr, std::memory_order_relaxed); }

  // The timeout of later calls that name none. Communicators that are split from this one inherit it.
  // THREADS  any
  virtual void SetTimeout(std::chrono::milliseconds timeout) {
    timeout_ms_.store(timeout.count(), std::memory_order_relaxed);
  }
  std::chrono::milliseconds timeout() const {
    return std::chrono::milliseconds(timeout_ms_.load(std::memory_order_relaxed));
  }

  // OK, or UNIMPLEMENTED for what this back end cannot do.
  virtual absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const = 0;

  // Whether Enqueue on a stream of device() may be part of a CUDA graph that is being captured. If not, FAILED_PRECONDITION and why.
  // A repetition of the graph has no deadline and no flight record: it is not seen here.
  virtual absl::Status CanCapture() const;

  // OK while the communicator is usable, else why it is not.
  virtual absl::Status status() const = 0;

  // Fails everything in flight and to come, on every rank, with ABORTED and this reason.
  virtual void Abort(const std::string& reason) = 0;

  // This rank leaves, as in the destructor. Operations in flight end with CANCELLED here and with ABORTED on the other ranks; what the
  // communicator is held for is in flight too. If nothing is in flight here, the others may still finish what this rank has finished; their
  // calls beyond that are ABORTED and name this rank. Here status() and every later call are CANCELLED, also of what was made of this
  // communicator, except its subgroups. Waits for no peer. Idempotent.
  void Leave() {
    left_.store(true, std::memory_order_relaxed);
    OnLeave();
    Release();  // later calls fail because it was left, not because it is held
  }
  // Relaxed; status() is exact.
  bool left() const { return left_.load(std::memory_order_relaxed); }

  // Posted messages: short texts that ranks leave for each other under a topic, beside the data (see ControlChannel); not those of
  // Send and Receive. PostMessage returns at once. AwaitMessages returns them in rank order once there are `count`.
  virtual void PostMessage(uint64_t topic, const std::string& text) = 0;
  virtual absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                                  Deadline deadline) = 0;

  // A barrier with a timeout of its own (0: the communicator's) that names the ranks which have not come. All ranks call it, in the
  // same order among such barriers. It is independent of collectives and groups, and does not wait for what is in flight.
  // RETURNS  OK once all ranks have called it
  // ERRORS   DEADLINE_EXCEEDED  the first rank that waits has waited its timeout. The message names the missing ranks, and `missing`
  //                             (may be null) gets them: the same on every rank, also on those that come later. There is no list
  //                             when the coordinator does not answer. The communicator stays usable; the next barrier begins anew.
  //          status()           the communicator has failed: a rank's death ends the wait at once
  //          UNIMPLEMENTED      there is no control channel
  // COST     two messages through the coordinator, tens of microseconds
  virtual absl::Status MonitoredBarrier(std::chrono::milliseconds timeout, std::vector<Rank>* missing);

  // For people: the flight records, oldest first, and how the ranks are connected and why.
  virtual std::string FlightRecords() const = 0;
  virtual std::string Describe() const = 0;

 protected:
  explicit Communicator(std::chrono::milliseconds timeout = std::chrono::minutes(30)) : timeout_ms_(timeout.count()) {}

  // `given`, or timeout() if that is 0.
  std::chrono::milliseconds TimeoutOr(std::chrono::milliseconds given) const {
    return given.count() > 0 ? given : timeout();
  }

  // The literal that Hold was called with, or null.
  const char* holder() const { return holder_.load(std::memory_order_relaxed); }

  // The first check of every call that Hold restricts.
  absl::Status CheckHeld(bool by_holder) const {
    const char* const held_by = holder();
    return held_by == nullptr || by_holder ? absl::OkStatus() : HeldError(held_by);
  }

 private:
  virtual void OnLeave() = 0;
  static absl::Status HeldError(const char* holder);

  std::atomic<const char*> holder_{nullptr};  // relaxed: orders no other memory
  std::atomic<int64_t> timeout_ms_;           // relaxed, too
  std::atomic<bool> left_{false};
};

// OK outside a group of this thread. In one, what needs the result of a collective is refused, and so is the group: FAILED_PRECONDITION.
absl::Status CheckOutsideGroup(Communicator& communicator);

}  // namespace lockstep

#endif  // COMM_COMMUNICATOR_H_
