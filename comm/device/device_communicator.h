// DeviceCommunicator: a communicator for a device, over a host communicator of the same ranks. Calls with buffers on the device go to
// the back end that derives from it, all others to the host communicator.
//
// The host communicator is owned, or borrowed and then outlives this. It is a part of this one: when a collective on the device
// fails, it is aborted too, so that nobody waits in it for a rank that has stopped calling.
//
// Run and Start take buffers that are ready when they are called: they wait for no stream of the caller's. Enqueue is
// for buffers that a stream has yet to write.
//
// Groups. One group may have calls in both places. It is the host communicator's: this one keeps the calls on the device until the end.
// Enqueue is no call of a group: FAILED_PRECONDITION while this thread has one open.
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

// A host communicator with its owner: this, when it is made of a unique_ptr, else somebody who keeps it for as long as
// this lives.
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

  // Of the same kind, over a part of the host communicator.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckHeld(/*by_holder=*/false));
    return host_->Allocate(bytes);
  }
  absl::Status CheckMemory(size_t bytes) override { return host_->CheckMemory(bytes); }
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateOnDevice(size_t bytes) override;

  // What the host communicator supports, where a back end has no more to say.
  absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const override;
  // Refused, where a back end does not know better.
  absl::Status CanCapture() const override;
  absl::Status status() const override;
  void Abort(const std::string& reason) override;
  void PostMessage(uint64_t topic, const std::string& text) override { host_->PostMessage(topic, text); }
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                          Deadline deadline) override {
    return host_->AwaitMessages(topic, count, deadline);
  }
  absl::Status MonitoredBarrier(std::chrono::milliseconds timeout, std::vector<Rank>* missing) override;
  std::string FlightRecords() const override { return host_->FlightRecords(); }

  // From now on buffers are looked at, whether they are where calls say (base/device/devices.h): INVALID_ARGUMENT otherwise.
  // In parts made later, too. About a microsecond a buffer. Before the first call.
  void CheckPointers() { check_pointers_ = true; }
  bool checks_pointers() const override { return check_pointers_; }

  // How the device's tensors travel and why, and then what the host communicator says.
  std::string Describe() const override;

 protected:
  // `timeout`: of calls on the device that name none.
  DeviceCommunicator(HostPart host, Device* device, std::chrono::milliseconds timeout);

  // ---- What a back end executes. Its own errors end in Fail.

  // An error for a call that it cannot execute, before anything is issued: the root, the counts, op and dtype have
  // been looked at. Any thread.
  virtual absl::Status CheckOnDevice(const DeviceCall& call) = 0;

  // Issues the calls, all together, in the order of `stream`, and returns; on an error nothing was issued. One call to
  // this at a time, in the order of the callers'. Counts stay borrowed until it returns.
  virtual absl::Status IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) = 0;

  // Starts the calls without a stream of the caller's; the work is done when all of them are, or at the latest by their
  // deadline. One call at a time, as above. As it is here: issues them on a stream of the communicator's own, whose
  // event the work waits for.
  virtual absl::StatusOr<Work> StartOnDevice(absl::Span<const DeviceCall> calls);

  // Collective over all ranks: the same kind of communicator over this rank's part. Null, as the result is, where
  // `color` is negative. `color` and `key` are Split's.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> MakePart(std::unique_ptr<Communicator> part, int color,
                                                                 int key) = 0;

  // This rank's memory for AllocateOnDevice: all ranks ask for as many bytes, not 0, and come here together. As it is here: of the
  // device's own allocator.
  virtual absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateHere(size_t bytes);

  // "cuda:0: NCCL 2.28.9 (libnccl.so.2): all ranks have a GPU of their own"
  virtual std::string DescribeDevice() const = 0;

  // Ends what is in flight on the device, on every rank. Called once, with what status() tells by then, on the thread
  // that noticed it: any, without locks.
  virtual void OnFailure(const absl::Status& status) = 0;

  // Whether all that it has issued is done on the device.
  virtual bool IdleOnDevice() { return true; }

  // ---- What it finds here.

  Communicator* host() const { return host_.get(); }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // The first failure is status() from then on; aborts the host communicator and calls OnFailure. Any thread, without
  // locks. A failure of the host communicator alone is the back end's to notice, by status().
  void Fail(const absl::Status& status);

  // What is in flight on the device ends, on the other ranks, too; then the host communicator is left.
  void OnLeave() override;

  // Told of the failure, and outlives this: works share it.
  const std::shared_ptr<DeviceFailure>& failure() const { return failure_; }

  // What calls that are issued next are called in errors, and how many collectives were issued before. Inside StartOnDevice and
  // IssueOnDevice.
  IssuedCalls NameNext(absl::Span<const DeviceCall> calls) const;
  uint64_t collectives() const { return collectives_; }

  // To be called first in the destructor of a back end: what is not done by the end of that is CANCELLED, and nothing
  // calls the back end any more.
  void Close() ABSL_LOCKS_EXCLUDED(group_mu_);

 private:
  class KeptCall;
  class Prepared;
  struct Group;

  // Whether the call is the back end's, rather than the host communicator's.
  // ERRORS  INVALID_ARGUMENT  the buffers are on another device
  absl::StatusOr<bool> IsMine(DeviceId device) const;
  // The same. A call of the host communicator's has been checked then, as far as it does not do that itself.
  absl::StatusOr<bool> Route(const DeviceCall& call) ABSL_LOCKS_EXCLUDED(group_mu_);
  absl::Status CheckHostCall(const DeviceCall& call);
  absl::Status Check(const DeviceCall& call);
  // The status, if it is an error as that of a call that finds the communicator so.
  static absl::Status CheckGood(const absl::Status& status, const DeviceCall& call);

  // A call on the device. In a group of this thread's, it is put into that.
  absl::StatusOr<Work> StartMine(const DeviceCall& call) ABSL_LOCKS_EXCLUDED(group_mu_, issue_mu_);
  absl::StatusOr<Work> Launch(absl::Span<const DeviceCall> calls) ABSL_LOCKS_EXCLUDED(issue_mu_);
  absl::StatusOr<Work> LaunchGroup(Group* group, absl::StatusOr<Work> on_host) ABSL_LOCKS_EXCLUDED(issue_mu_);

  // Constant once it is set up.
  const HostPart host_;
  bool check_pointers_ = false;
  Device* const device_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<DeviceFailure> failure_;  // shared with works, which may outlive this

  std::atomic<bool> ended_{false};  // OnFailure was called or never will be

  Mutex group_mu_;
  std::unique_ptr<Group> group_ ABSL_GUARDED_BY(group_mu_);  // of the thread that has the host communicator's open

  // Counts collectives that were issued; `error` as that of the first of the calls, where the communicator has failed.
  absl::Status Issued(absl::Span<const DeviceCall> calls, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(issue_mu_);

  // Held while calls are issued: their order is the same on the device and in what the back end notes of them.
  Mutex issue_mu_;
  uint64_t collectives_ = 0;  // that were issued, but for those into graphs; written under the lock
  // Of StartOnDevice as it is here, which the lock covers; made by its first call.
  std::unique_ptr<Stream> stream_;
};

}  // namespace lockstep

#endif  // COMM_DEVICE_DEVICE_COMMUNICATOR_H_
