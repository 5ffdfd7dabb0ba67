// DeviceCommunicator: a communicator for a device, over a host communicator of the same ranks. Calls with buffers on the device go to
// the back end that derives from it, all others to the host communicator.
//
// The host communicator is owned, or borrowed and then outlives this. When a collective on the device fails, the host communicator
// is aborted too, so that nobody waits in it for a rank that has stopped calling.
//
// Run and Start take buffers that are ready: they wait for no stream of the caller's. Enqueue is for buffers that a stream will
// write.
//
// Groups. One group may have calls in both places. The host communicator has the group; this one keeps the calls on the device until
// its end. Enqueue cannot be in a group: FAILED_PRECONDITION while this thread has one open.
//
// THREADS  any, as of Communicator.

#ifndef COMM_DEVICE_DEVICE_COMMUNICATOR_H_
#define COMM_DEVICE_DEVICE_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/device/device_work.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"

namespace lockstep {

// A host communicator: owned when made from a unique_ptr; borrowed when made from a pointer, which must then outlive this.
class HostPart {
 public:
  template <typename C>
  HostPart(std::unique_ptr<C> owned)  // NOLINT(google-explicit-constructor): either is a host part
      : owned_(std::move(owned)), communicator_(owned_.get()) {}
  HostPart(Communicator* borrowed) : communicator_(borrowed) {}  // NOLINT(google-explicit-constructor)

  Communicator* get() const { return communicator_; }
  Communicator* operator->() const { return communicator_; }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator* communicator_;
};

// A call with its buffers on the device.
using DeviceCall = std::variant<CollectiveRequest, SendRequest, ReceiveRequest>;

class DeviceCommunicator : public Communicator {
 public:
  ~DeviceCommunicator() override;

  Rank rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  Rank WorldRank(Rank rank) const override { return host_->WorldRank(rank); }
  Device* accelerator() const override { return device_; }

  absl::Status Run(const CollectiveRequest& request) override;
  absl::StatusOr<Work> Start(const CollectiveRequest& request) override;
  absl::StatusOr<std::unique_ptr<PreparedCollective>> Prepare(const CollectiveRequest& request) override;
  using Communicator::Enqueue;
  absl::Status Enqueue(const CollectiveRequest& request, Stream* stream, absl::AnyInvocable<void()> before,
                       absl::AnyInvocable<void(const absl::Status&)> done) override;
  absl::Status StartGroup() override;
  absl::StatusOr<Work> EndGroup() override;
  bool InGroup() const override { return host_->InGroup(); }
  absl::Status Refuse(const absl::Status& refusal) override { return host_->Refuse(refusal); }
  absl::StatusOr<Work> StartSend(const SendRequest& request) override;
  absl::StatusOr<Work> StartReceive(const ReceiveRequest& request) override;
  absl::Status Send(const SendRequest& request) override;
  absl::Status Receive(const ReceiveRequest& request) override;

  // Of the same kind, over a subgroup of the host communicator.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckHeld(/*by_holder=*/false));
    return host_->Allocate(bytes);
  }
  bool Shares(const void* memory, size_t bytes) const override { return host_->Shares(memory, bytes); }
  absl::Status CheckMemory(size_t bytes) override { return host_->CheckMemory(bytes); }
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateOnDevice(size_t bytes) override;

  // As the host communicator, unless a back end overrides it.
  absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const override;
  // Refuses, unless a back end overrides it.
  absl::Status CanCapture() const override;
  absl::Status status() const override;
  void Abort(const std::string& reason) override;
  void PostMessage(uint64_t topic, const std::string& text) override { host_->PostMessage(topic, text); }
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                          Deadline deadline) override {
    return host_->AwaitMessages(topic, count, deadline);
  }
  absl::Status MonitoredBarrier(std::chrono::milliseconds timeout, std::vector<Rank>* missing) override;
  void SetTimeout(std::chrono::milliseconds timeout) override {
    Communicator::SetTimeout(timeout);
    host_->SetTimeout(timeout);
  }
  std::string FlightRecords() const override { return host_->FlightRecords(); }

  // From now on every call checks that its buffers are where it says (base/device/devices.h): INVALID_ARGUMENT otherwise. Subgroups
  // made later do so too. To be called before the first call.
  // COST  about a microsecond for each buffer
  void CheckPointers() { check_pointers_ = true; }
  bool checks_pointers() const override { return check_pointers_; }

  // How the device's tensors travel and why, then the host communicator's description.
  std::string Describe() const override;

 protected:
  // `timeout`: of calls on the device that name none.
  DeviceCommunicator(HostPart host, Device* device, std::chrono::milliseconds timeout);

  // ---- Implemented by a back end, which reports its own errors by Fail.

  // An error for a call that the back end cannot execute, before anything is issued. Root, counts, op and dtype have been
  // checked. Any thread.
  virtual absl::Status CheckOnDevice(const DeviceCall& call) = 0;

  // Issues the calls together, in the order of `stream`. After an error nothing was issued. Called by one thread at a time, in
  // the order of the callers' calls. Counts stay borrowed until it returns.
  virtual absl::Status IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) = 0;

  // Starts the calls without a stream of the caller's. The work is done when all of them are, at the latest by their
  // deadline. Called by one thread at a time, as above. Default: issues them on a stream of the communicator's own; the work
  // waits for an event there.
  virtual absl::StatusOr<Work> StartOnDevice(absl::Span<const DeviceCall> calls);

  // Makes the same kind of communicator over `part`, this rank's subgroup of the host communicator. Collective over all ranks.
  // `color` and `key` are Split's. Where `color` is negative, part and result are null.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> MakePart(std::unique_ptr<Communicator> part, int color,
                                                                 int key) = 0;

  // Allocates this rank's memory for AllocateOnDevice. All ranks call it together for the same number of bytes, not 0. Default: from
  // the device's own allocator.
  virtual absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateHere(size_t bytes);

  // "cuda:0: NCCL 2.28.9 (libnccl.so.2): all ranks have a GPU of their own"
  virtual std::string DescribeDevice() const = 0;

  // Ends what is in flight on the device, on every rank. Called once, with the value of status(), on the thread that noticed
  // the failure, without locks.
  virtual void OnFailure(const absl::Status& status) = 0;

  // Whether everything that was issued is done on the device.
  virtual bool IdleOnDevice() { return true; }

  // ---- For back ends.

  Communicator* host() const { return host_.get(); }

  // Sets status(), if it is OK, aborts the host communicator and calls OnFailure. Any thread, without locks. A back end must
  // itself notice a failure of the host communicator alone, by status().
  void Fail(const absl::Status& status);

  // Ends what is in flight on the device, also on the other ranks, then leaves the host communicator.
  void OnLeave() override;

  // Holds the failure. Shared with works, which outlive this.
  const std::shared_ptr<DeviceFailure>& failure() const { return failure_; }

  // How errors name the calls that are issued next, and the number of collectives issued before. Inside StartOnDevice and
  // IssueOnDevice.
  IssuedCalls NameNext(absl::Span<const DeviceCall> calls) const;
  uint64_t collectives() const { return collectives_; }

  // To be called first in the destructor of a back end. When it returns, unfinished calls are CANCELLED, and nothing calls the back
  // end any more.
  void Close() ABSL_LOCKS_EXCLUDED(group_mu_);

 private:
  class KeptCall;
  class Prepared;
  struct Group;

  // Whether the call is for the back end, not for the host communicator.
  // ERRORS  INVALID_ARGUMENT  the buffers are on another device
  absl::StatusOr<bool> IsMine(DeviceId device) const;
  // The same. Also makes those checks of the host communicator's calls that it does not make itself.
  absl::StatusOr<bool> Route(const DeviceCall& call) ABSL_LOCKS_EXCLUDED(group_mu_);
  absl::Status CheckHostCall(const DeviceCall& call);
  absl::Status Check(const DeviceCall& call);
  // OK, or the error of a call on a communicator that has this status.
  static absl::Status CheckGood(const absl::Status& status, const DeviceCall& call);

  // Starts a call on the device, or puts it into this thread's open group.
  absl::StatusOr<Work> StartMine(const DeviceCall& call) ABSL_LOCKS_EXCLUDED(group_mu_, issue_mu_);
  absl::StatusOr<Work> Launch(absl::Span<const DeviceCall> calls) ABSL_LOCKS_EXCLUDED(issue_mu_);
  absl::StatusOr<Work> LaunchGroup(Group* group, absl::StatusOr<Work> on_host) ABSL_LOCKS_EXCLUDED(issue_mu_);

  // Constant once it is set up.
  const HostPart host_;
  bool check_pointers_ = false;
  Device* const device_;
  const std::shared_ptr<DeviceFailure> failure_;  // shared with works, which may outlive this

  // OnFailure was called, or will never be. Relaxed: it only picks the thread that calls it; what failed is in failure_.
  std::atomic<bool> ended_{false};

  Mutex group_mu_;
  std::unique_ptr<Group> group_ ABSL_GUARDED_BY(group_mu_);  // of the thread that has the host communicator's open

  // Counts the collectives among calls that were issued. Returns OK, or `error` as the error of the first call.
  absl::Status Issued(absl::Span<const DeviceCall> calls, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(issue_mu_);

  // Held while calls are issued, so that their order on the device is the back end's order.
  Mutex issue_mu_;
  uint64_t collectives_ = 0;  // issued so far, without those into graphs; written under the lock
  // Of the default StartOnDevice, under the lock; made by its first call.
  std::unique_ptr<Stream> stream_;
};

}  // namespace lockstep

#endif  // COMM_DEVICE_DEVICE_COMMUNICATOR_H_
