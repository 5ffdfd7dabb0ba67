#include "comm/device/device_communicator.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/check.h"
#include "base/device/devices.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/ref.h"
#include "base/status.h"
#include "comm/agreement.h"
#include "comm/byte_objects.h"
#include "comm/device/device_call.h"
#include "comm/plan/call_plan.h"
#include "comm/point_to_point.h"
#include "comm/record/operation_error.h"

namespace lockstep {
namespace {

class DeviceBuffer : public SymmetricBuffer {
 public:
  DeviceBuffer(Device* device, void* data, size_t bytes)
      : device_(device), data_(static_cast<char*>(data)), bytes_(bytes) {}
  ~DeviceBuffer() override { device_->Free(data_); }

  char* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }
  bool shared() const override { return false; }

 private:
  Device* const device_;
  char* const data_;
  const size_t bytes_;
};

// Whether the call's buffers are where it says.
absl::Status CheckBuffers(const DeviceCall& call) {
  if (const auto* const request = std::get_if<CollectiveRequest>(&call)) {
    LOCKSTEP_RETURN_IF_ERROR(Annotate(CheckPointer(request->input, request->device), "input"));
    return Annotate(CheckPointer(request->output, request->device), "output");
  }
  if (const auto* const send = std::get_if<SendRequest>(&call)) return CheckPointer(send->data, send->device);
  const auto& receive = std::get<ReceiveRequest>(call);
  return CheckPointer(receive.data, receive.device);
}

// The operation's own deadline bounds the wait.
absl::Status Finish(absl::StatusOr<Work> work) {
  if (!work.ok()) return work.status();
  return work->collected() ? absl::OkStatus() : work->Wait(Deadline::Infinite());
}

}  // namespace

class DeviceCommunicator::Prepared : public PreparedCollective {
 public:
  Prepared(DeviceCommunicator* communicator, const CollectiveRequest& request)
      : communicator_(communicator), call_(request) {}

  absl::Status Run() override {
    LOCKSTEP_RETURN_IF_ERROR(Start());
    return work_->collected() ? absl::OkStatus() : work_->Wait(Deadline::Infinite());
  }
  absl::Status Start() override {
    if (!done()) return absl::FailedPreconditionError("the prepared collective is still in flight");
    LOCKSTEP_ASSIGN_OR_RETURN(work_, communicator_->StartMine(call_.call()));
    return absl::OkStatus();
  }
  bool done() const override { return !work_.has_value() || work_->done(); }
  absl::Status Wait(Deadline deadline) override { return work_.has_value() ? work_->Wait(deadline) : absl::OkStatus(); }
  void OnComplete(CompletionCallback callback) override {
    if (!work_.has_value()) return callback(absl::OkStatus());
    // Starting it again, in the callback or later, replaces the work.
    Work(*work_).OnComplete(std::move(callback));
  }

 private:
  DeviceCommunicator* const communicator_;
  const KeptCall call_;
  absl::optional<Work> work_;
};

// Of a call with buffers on the host: what goes before such a call, and then the host communicator's own.
class DeviceCommunicator::PreparedOnHost : public PreparedCollective {
 public:
  PreparedOnHost(DeviceCommunicator* communicator, const CollectiveRequest& request,
                 std::unique_ptr<PreparedCollective> prepared)
      : communicator_(communicator), call_(request), prepared_(std::move(prepared)) {}

  absl::Status Run() override {
    LOCKSTEP_RETURN_IF_ERROR(communicator_->PrepareHostCall(call_.call()));
    return prepared_->Run();
  }
  absl::Status Start() override {
    LOCKSTEP_RETURN_IF_ERROR(communicator_->PrepareHostCall(call_.call()));
    return prepared_->Start();
  }
  bool done() const override { return prepared_->done(); }
  absl::Status Wait(Deadline deadline) override { return prepared_->Wait(deadline); }
  void OnComplete(CompletionCallback callback) override { prepared_->OnComplete(std::move(callback)); }

 private:
  DeviceCommunicator* const communicator_;
  const KeptCall call_;
  const std::unique_ptr<PreparedCollective> prepared_;
};

DeviceCommunicator::DeviceCommunicator(HostPart host, Device* device, std::chrono::milliseconds timeout)
    : host_(std::move(host)), device_(device), timeout_(timeout), failure_(std::make_shared<DeviceFailure>()) {}

DeviceCommunicator::~DeviceCommunicator() { failure_->Close(); }

void DeviceCommunicator::OnLeave() {
  const bool good = status().ok();
  const bool ends = !ended_.exchange(true, std::memory_order_relaxed) && !IdleOnDevice();
  Close();
  // The other ranks must not wait for this one's part.
  const std::string how = absl::StrCat("destroyed with calls in flight on ", Name(device_->id()));
  if (ends && good) host_->Abort(absl::StrCat("it was ", how));
  // What is told to the others is their error, not this rank's.
  if (ends) {
    OnFailure(WithFailedRank(absl::AbortedError(absl::StrCat("rank ", rank().value(), ": the communicator was ", how)),
                             WorldRank(rank()).value()));
  }
  host_->Leave();
}

void DeviceCommunicator::Close() {
  ended_.store(true, std::memory_order_relaxed);
  failure_->Set(absl::CancelledError("the communicator was destroyed"));
  MutexLock lock(&group_mu_);
  if (group_ == nullptr) return;
  const absl::Status open = absl::FailedPreconditionError(absl::StrCat(
      "the communicator was destroyed with a group open: its ", group_->members.size(), " calls were not launched"));
  LOCKSTEP_LOG(kError) << "rank " << rank() << ": " << open.message();
  for (Group::Member& member : group_->members) member.work->Finish(open);
  group_->work->Finish(open);
  group_ = nullptr;
}

// ---- Where a call goes

absl::StatusOr<bool> DeviceCommunicator::IsMine(DeviceId device) const {
  if (device == device_->id()) return true;
  if (device.kind == DeviceKind::kHost) return false;
  return absl::InvalidArgumentError(absl::StrCat("the buffers are on ", Name(device),
                                                 ", and this communicator was made for ", Name(device_->id()),
                                                 " and the host"));
}

absl::Status DeviceCommunicator::PrepareHostCall(const DeviceCall& call) {
  LOCKSTEP_RETURN_IF_ERROR(CheckGood(failure_->status(), call));
  if (check_pointers_) LOCKSTEP_RETURN_IF_ERROR(CheckBuffers(call));
  const auto* const request = std::get_if<CollectiveRequest>(&call);
  const absl::Status held = request == nullptr ? absl::OkStatus() : CheckHeld(request->by_holder);
  MutexLock lock(&group_mu_);
  if (!held.ok()) {
    if (Collecting()) group_->refused.Update(held);
    return held;
  }
  if (!Collecting() || group_->on_host) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(host_->StartGroup());
  group_->on_host = true;
  return absl::OkStatus();
}

absl::Status DeviceCommunicator::Run(const CollectiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, IsMine(request.device));
  if (mine) return Finish(StartMine(request));
  LOCKSTEP_RETURN_IF_ERROR(PrepareHostCall(request));
  return host_->Run(request);
}

absl::StatusOr<Work> DeviceCommunicator::Start(const CollectiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, IsMine(request.device));
  if (mine) return StartMine(request);
  LOCKSTEP_RETURN_IF_ERROR(PrepareHostCall(request));
  return host_->Start(request);
}

absl::StatusOr<std::unique_ptr<PreparedCollective>> DeviceCommunicator::Prepare(const CollectiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, IsMine(request.device));
  if (!mine) {
    if (check_pointers_) LOCKSTEP_RETURN_IF_ERROR(CheckBuffers(request));
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<PreparedCollective> prepared, host_->Prepare(request));
    return std::make_unique<PreparedOnHost>(this, request, std::move(prepared));
  }
  CollectiveRequest whenever = request;
  whenever.by_holder = true;  // who holds the communicator matters when it is started
  LOCKSTEP_RETURN_IF_ERROR(Check(whenever));
  return std::make_unique<Prepared>(this, request);
}

absl::Status DeviceCommunicator::Enqueue(const CollectiveRequest& request, Stream* stream,
                                         absl::AnyInvocable<void()> before,
                                         absl::AnyInvocable<void(const absl::Status&)> done) {
  LOCKSTEP_RETURN_IF_ERROR(CheckHeld(request.by_holder));
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, IsMine(request.device));
  if (stream == nullptr || stream->device() != request.device) {
    return absl::InvalidArgumentError(absl::StrCat("the buffers are on ", Name(request.device), ", and the stream is ",
                                                   stream == nullptr ? "null" : Name(stream->device())));
  }
  {
    MutexLock lock(&group_mu_);
    if (Collecting()) return absl::FailedPreconditionError("a collective in a stream's order, inside a group");
  }
  const DeviceCall call = request;
  LOCKSTEP_RETURN_IF_ERROR(CheckGood(failure_->status(), call));
  if (!mine) {
    if (check_pointers_) LOCKSTEP_RETURN_IF_ERROR(CheckBuffers(call));
    return host_->Enqueue(request, stream, std::move(before), std::move(done));
  }
  LOCKSTEP_RETURN_IF_ERROR(Check(call));
  if (before) before();
  {
    MutexLock lock(&issue_mu_);
    const absl::Status issued = IssueOnDevice({call}, stream);
    // What is put into a graph has no number.
    if (!issued.ok() || !stream->capturing()) LOCKSTEP_RETURN_IF_ERROR(Issued({call}, issued));
  }
  done(absl::OkStatus());
  return absl::OkStatus();
}

absl::StatusOr<Work> DeviceCommunicator::StartSend(const SendRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, IsMine(request.device));
  if (mine) return StartMine(request);
  LOCKSTEP_RETURN_IF_ERROR(PrepareHostCall(request));
  return host_->StartSend(request);
}

absl::StatusOr<Work> DeviceCommunicator::StartReceive(const ReceiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, IsMine(request.device));
  if (mine) return StartMine(request);
  LOCKSTEP_RETURN_IF_ERROR(PrepareHostCall(request));
  return host_->StartReceive(request);
}

absl::Status DeviceCommunicator::Send(const SendRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, IsMine(request.device));
  if (mine) return Finish(StartMine(request));
  LOCKSTEP_RETURN_IF_ERROR(PrepareHostCall(request));
  return host_->Send(request);
}

absl::Status DeviceCommunicator::Receive(const ReceiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, IsMine(request.device));
  if (mine) return Finish(StartMine(request));
  LOCKSTEP_RETURN_IF_ERROR(PrepareHostCall(request));
  return host_->Receive(request);
}

// ---- Calls on the device

absl::Status DeviceCommunicator::Supports(Collective collective, DType dtype, ReduceOp op) const {
  return host_->Supports(collective, dtype, op);
}

absl::Status DeviceCommunicator::CheckGood(const absl::Status& status, const DeviceCall& call) const {
  if (status.ok()) return status;
  if (const auto* const request = std::get_if<CollectiveRequest>(&call)) {
    return NotStarted(status, NameOf(*request), OperationName());
  }
  const auto* const send = std::get_if<SendRequest>(&call);
  return NotStarted(status, NameOf(send != nullptr ? ToCall(*send) : ToCall(std::get<ReceiveRequest>(call))),
                    OperationName());
}

absl::Status DeviceCommunicator::Check(const DeviceCall& call) {
  LOCKSTEP_RETURN_IF_ERROR(CheckGood(status(), call));
  if (const auto* const request = std::get_if<CollectiveRequest>(&call)) {
    LOCKSTEP_RETURN_IF_ERROR(CheckHeld(request->by_holder));
    LOCKSTEP_RETURN_IF_ERROR(CheckRequest(*request, rank(), size()));
    if (HasRoot(request->collective) && (request->root.value() < 0 || request->root.value() >= size())) {
      return absl::InvalidArgumentError(absl::StrCat(Name(request->collective), ": root ", request->root.value(),
                                                     " is not a rank of a world of ", size()));
    }
    LOCKSTEP_RETURN_IF_ERROR(Supports(request->collective, request->dtype, request->op));
  } else if (const auto* const send = std::get_if<SendRequest>(&call)) {
    SendRequest message = *send;
    message.device = DeviceId();
    LOCKSTEP_RETURN_IF_ERROR(CheckMessage(message, size()));
  } else {
    ReceiveRequest message = std::get<ReceiveRequest>(call);
    message.device = DeviceId();
    LOCKSTEP_RETURN_IF_ERROR(CheckMessage(message, size()));
  }
  if (check_pointers_) LOCKSTEP_RETURN_IF_ERROR(CheckBuffers(call));
  return CheckOnDevice(call);
}

absl::StatusOr<Work> DeviceCommunicator::StartMine(const DeviceCall& call) {
  {
    MutexLock lock(&group_mu_);
    if (Collecting()) return Collect(call);
  }
  LOCKSTEP_RETURN_IF_ERROR(Check(call));
  return Launch({call});
}

absl::StatusOr<Work> DeviceCommunicator::Launch(absl::Span<const DeviceCall> calls) {
  MutexLock lock(&issue_mu_);
  absl::StatusOr<Work> work = StartOnDevice(calls);
  LOCKSTEP_RETURN_IF_ERROR(Issued(calls, work.status()));
  return work;
}

IssuedCalls DeviceCommunicator::NameNext(absl::Span<const DeviceCall> calls) const {
  IssuedCalls named;
  named.more = calls.size() - 1;
  if (const auto* const request = std::get_if<CollectiveRequest>(&calls[0])) {
    named.signature = SignatureOf(*request, request->algorithm);
    named.signature.sequence = collectives_ + 1;
  } else if (const auto* const send = std::get_if<SendRequest>(&calls[0])) {
    named.message = ToCall(*send);
  } else {
    named.message = ToCall(std::get<ReceiveRequest>(calls[0]));
  }
  return named;
}

absl::Status DeviceCommunicator::Issued(absl::Span<const DeviceCall> calls, const absl::Status& error) {
  if (!error.ok()) return failure_->status().ok() ? error : NameNext(calls).Error(error);
  for (const DeviceCall& call : calls) collectives_ += std::holds_alternative<CollectiveRequest>(call) ? 1 : 0;
  return error;
}

absl::StatusOr<Work> DeviceCommunicator::StartOnDevice(absl::Span<const DeviceCall> calls) {
  if (stream_ == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(stream_, device_->CreateStream("collectives"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Event> event, device_->CreateEvent());
  LOCKSTEP_RETURN_IF_ERROR(IssueOnDevice(calls, stream_.get()));
  LOCKSTEP_RETURN_IF_ERROR(stream_->Record(event.get()));
  return Work(MakeRef<EventWork>(failure_, std::move(event), NameNext(calls)));
}

// ---- The rest

absl::StatusOr<std::unique_ptr<Communicator>> DeviceCommunicator::Split(int color, int key) {
  LOCKSTEP_RETURN_IF_ERROR(CheckHeld(/*by_holder=*/false));
  {
    MutexLock lock(&group_mu_);
    if (Collecting()) return absl::FailedPreconditionError("a communicator cannot be split inside a group");
  }
  LOCKSTEP_RETURN_IF_ERROR(status());
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part, host_->Split(color, key));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> made, MakePart(std::move(part), color, key));
  if (made != nullptr && check_pointers_) static_cast<DeviceCommunicator&>(*made).CheckPointers();
  return made;
}

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> DeviceCommunicator::AllocateHere(size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, device_->Allocate(bytes));
  return std::make_unique<DeviceBuffer>(device_, memory, bytes);
}

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> DeviceCommunicator::AllocateOnDevice(size_t bytes) {
  LOCKSTEP_RETURN_IF_ERROR(CheckHeld(/*by_holder=*/false));
  LOCKSTEP_RETURN_IF_ERROR(status());
  const auto text = [&](int other, absl::string_view said) {
    return absl::StrCat("memory on ", Name(device_->id()), ": rank ", rank().value(), " asks for ", bytes,
                        " bytes, rank ", other, " for ", said);
  };
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> sizes,
                            AllGatherBytes(host_.get(), absl::StrCat(bytes, " bytes")));
  for (int r = 0; r < size(); ++r) {
    if (sizes[r] != sizes[rank().value()]) return absl::InvalidArgumentError(text(r, sizes[r]));
  }
  if (bytes == 0) return absl::InvalidArgumentError("a buffer of 0 bytes");
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> buffer = AllocateHere(bytes);
  LOCKSTEP_ASSIGN_OR_RETURN(const RankError first, CompareResults(host_.get(), buffer.status()));
  if (first.rank < 0 || !buffer.ok()) return buffer;
  return Reworded(first.status, absl::StatusCode::kUnavailable,
                  text(first.rank, absl::StrCat(bytes, " bytes: ", first.status.message())));
}

void DeviceCommunicator::KeepHost(HostPart host) {
  LOCKSTEP_CHECK(host.get() == host_.get()) << "not the host communicator that this was made with";
  host_ = std::move(host);
}

absl::Status DeviceCommunicator::CanCapture() const {
  return absl::FailedPreconditionError(
      absl::StrCat("a graph cannot repeat what the host does for collectives on ", DescribeDevice()));
}

absl::Status DeviceCommunicator::status() const {
  if (absl::Status failure = failure_->status(); !failure.ok()) return failure;
  failure_->Set(host_->status());
  return failure_->status();
}

void DeviceCommunicator::Fail(const absl::Status& status) {
  failure_->Set(status);
  if (ended_.exchange(true, std::memory_order_relaxed)) return;
  const absl::Status failure = failure_->status();
  if (host_->status().ok()) {
    host_->Abort(absl::StrCat("its collectives on ", Name(device_->id()), " failed: ", failure.message()));
  }
  OnFailure(failure);
}

void DeviceCommunicator::Abort(const std::string& reason) {
  host_->Abort(reason);
  Fail(host_->status());
}

absl::Status DeviceCommunicator::MonitoredBarrier(std::chrono::milliseconds timeout, std::vector<Rank>* missing) {
  ErrorInfo info;
  info.collective = "monitored_barrier";
  LOCKSTEP_RETURN_IF_ERROR(NotStarted(status(), {"monitored barrier", info}, OperationName()));
  return host_->MonitoredBarrier(timeout, missing);
}

std::string DeviceCommunicator::Describe() const { return absl::StrCat(DescribeDevice(), "\n", host_->Describe()); }

}  // namespace lockstep
