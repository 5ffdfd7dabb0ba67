#include "comm/device/device_communicator.h"

#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/device/devices.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/ref.h"
#include "base/status.h"
#include "comm/byte_objects.h"
#include "comm/pieces.h"
#include "comm/plan/call_plan.h"
#include "comm/point_to_point.h"
#include "comm/record/operation_error.h"

namespace lockstep {
namespace {

absl::Status CheckBuffer(const void* data, const Pieces* pieces, DeviceId device) {
  if (pieces == nullptr) return CheckPointer(data, device);
  for (size_t position = 0; position < pieces->bytes();) {
    const Pieces::Run run = pieces->At(position);
    LOCKSTEP_RETURN_IF_ERROR(CheckPointer(run.data, device));
    position += run.bytes;
  }
  return absl::OkStatus();
}

// Whether the call's buffers are where it says.
absl::Status CheckBuffers(const DeviceCall& call) {
  if (const auto* const request = std::get_if<CollectiveRequest>(&call)) {
    const auto check = [&](const void* data, const Ref<const Pieces>& pieces) {
      return CheckBuffer(data, pieces.get(), request->device);
    };
    LOCKSTEP_RETURN_IF_ERROR(Annotate(check(request->input, request->input_pieces), "input"));
    return Annotate(check(request->output, request->output_pieces), "output");
  }
  if (const auto* const send = std::get_if<SendRequest>(&call)) return CheckPointer(send->data, send->device);
  const auto& receive = std::get<ReceiveRequest>(call);
  return CheckPointer(receive.data, receive.device);
}

// The operation's own deadline bounds the wait. In a group its end waits.
absl::Status Finish(absl::StatusOr<Work> work) {
  if (!work.ok()) return work.status();
  return work->collected() ? absl::OkStatus() : work->Wait(Deadline::Infinite());
}

MessageCall ToMessage(const DeviceCall& call) {
  const auto* const send = std::get_if<SendRequest>(&call);
  return send != nullptr ? ToCall(*send) : ToCall(std::get<ReceiveRequest>(call));
}

}  // namespace

// A call that outlives its caller's counts.
class DeviceCommunicator::KeptCall {
 public:
  explicit KeptCall(const DeviceCall& call) : call_(call) {
    auto* const request = std::get_if<CollectiveRequest>(&call_);
    if (request == nullptr) return;
    counts_.assign(request->counts.begin(), request->counts.end());
    output_counts_.assign(request->output_counts.begin(), request->output_counts.end());
    request->counts = counts_;
    request->output_counts = output_counts_;
  }
  KeptCall(const KeptCall&) = delete;
  KeptCall& operator=(const KeptCall&) = delete;

  const DeviceCall& call() const { return call_; }

 private:
  DeviceCall call_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> output_counts_;
};

struct DeviceCommunicator::Group {
  struct Member {
    Member(const DeviceCall& given, std::thread::id thread) : call(given), work(MakeRef<DeferredWork>(thread)) {}
    KeptCall call;
    Ref<DeferredWork> work;
  };

  // Completes all works.
  void Finish(const absl::Status& status) {
    for (Member& member : members) member.work->Finish(status);
    work->Finish(status);
  }

  const std::thread::id thread = std::this_thread::get_id();
  int depth = 1;
  bool on_host = false;  // it has calls there, too
  Ref<DeferredWork> work = MakeRef<DeferredWork>(thread);
  std::deque<Member> members;  // on the device
};

// A call with buffers on the host is the host communicator's own, behind the checks of such a call.
class DeviceCommunicator::Prepared : public PreparedCollective {
 public:
  Prepared(DeviceCommunicator* communicator, const CollectiveRequest& request,
           std::unique_ptr<PreparedCollective> on_host)
      : communicator_(communicator), call_(request), on_host_(std::move(on_host)) {}

  absl::Status Run() override {
    if (on_host_ != nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(communicator_->Route(call_.call()).status());
      return on_host_->Run();
    }
    LOCKSTEP_RETURN_IF_ERROR(Start());
    return Finish(*work_);
  }
  absl::Status Start() override {
    if (on_host_ != nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(communicator_->Route(call_.call()).status());
      return on_host_->Start();
    }
    if (!done()) return absl::FailedPreconditionError("the prepared collective is still in flight");
    LOCKSTEP_ASSIGN_OR_RETURN(work_, communicator_->StartMine(call_.call()));
    return absl::OkStatus();
  }
  bool done() const override {
    if (on_host_ != nullptr) return on_host_->done();
    return !work_.has_value() || work_->done();
  }
  absl::Status Wait(Deadline deadline) override {
    if (on_host_ != nullptr) return on_host_->Wait(deadline);
    return work_.has_value() ? work_->Wait(deadline) : absl::OkStatus();
  }
  void OnComplete(CompletionCallback callback) override {
    if (on_host_ != nullptr) return on_host_->OnComplete(std::move(callback));
    if (!work_.has_value()) return callback(absl::OkStatus());
    // Starting it again, in the callback or later, replaces the work.
    Work(*work_).OnComplete(std::move(callback));
  }

 private:
  DeviceCommunicator* const communicator_;
  const KeptCall call_;
  const std::unique_ptr<PreparedCollective> on_host_;  // null: on the device
  absl::optional<Work> work_;                          // of the last start on the device
};

DeviceCommunicator::DeviceCommunicator(HostPart host, Device* device, std::chrono::milliseconds timeout)
    : Communicator(timeout), host_(std::move(host)), device_(device), failure_(std::make_shared<DeviceFailure>()) {}

DeviceCommunicator::~DeviceCommunicator() { failure_->Close(); }

void DeviceCommunicator::OnLeave() {
  const bool good = status().ok();
  const bool ends = !ended_.exchange(true, std::memory_order_relaxed) && (holder() != nullptr || !IdleOnDevice());
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
  absl::Status open;
  int opened_here = 0;
  {
    MutexLock lock(&group_mu_);
    if (group_ == nullptr) return;
    open = absl::FailedPreconditionError(absl::StrCat("the communicator was destroyed with a group open: its ",
                                                      group_->members.size(), " calls were not launched"));
    LOCKSTEP_LOG(kError) << "rank " << rank() << ": " << open.message();
    if (group_->thread == std::this_thread::get_id()) opened_here = group_->depth;
    group_->Finish(open);
    group_ = nullptr;
  }
  // The host's, which may go on without this communicator, would keep this thread's calls for ever.
  if (opened_here > 0) host_->Refuse(open).IgnoreError();
  for (; opened_here > 0; --opened_here) host_->EndGroup().IgnoreError();
}

// ---- Where a call goes

absl::StatusOr<bool> DeviceCommunicator::IsMine(DeviceId device) const {
  if (device == device_->id()) return true;
  if (device.kind == DeviceKind::kHost) return false;
  return absl::InvalidArgumentError(absl::StrCat("the buffers are on ", Name(device),
                                                 ", and this communicator was made for ", Name(device_->id()),
                                                 " and the host"));
}

absl::Status DeviceCommunicator::CheckHostCall(const DeviceCall& call) {
  LOCKSTEP_RETURN_IF_ERROR(CheckGood(failure_->status(), call));
  if (check_pointers_) LOCKSTEP_RETURN_IF_ERROR(CheckBuffers(call));
  const auto* const request = std::get_if<CollectiveRequest>(&call);
  return request == nullptr ? absl::OkStatus() : CheckHeld(request->by_holder);
}

absl::StatusOr<bool> DeviceCommunicator::Route(const DeviceCall& call) {
  const absl::StatusOr<bool> mine = IsMine(std::visit([](const auto& request) { return request.device; }, call));
  if (!mine.ok()) return host_->Refuse(mine.status());
  if (*mine) return true;
  if (const absl::Status wrong = CheckHostCall(call); !wrong.ok()) return host_->Refuse(wrong);
  MutexLock lock(&group_mu_);
  if (group_ != nullptr && group_->thread == std::this_thread::get_id()) group_->on_host = true;
  return false;
}

absl::Status DeviceCommunicator::Run(const CollectiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, Route(request));
  return mine ? Finish(StartMine(request)) : host_->Run(request);
}

absl::StatusOr<Work> DeviceCommunicator::Start(const CollectiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, Route(request));
  return mine ? StartMine(request) : host_->Start(request);
}

absl::StatusOr<Work> DeviceCommunicator::StartSend(const SendRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, Route(request));
  return mine ? StartMine(request) : host_->StartSend(request);
}

absl::StatusOr<Work> DeviceCommunicator::StartReceive(const ReceiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, Route(request));
  return mine ? StartMine(request) : host_->StartReceive(request);
}

absl::Status DeviceCommunicator::Send(const SendRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, Route(request));
  return mine ? Finish(StartMine(request)) : host_->Send(request);
}

absl::Status DeviceCommunicator::Receive(const ReceiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, Route(request));
  return mine ? Finish(StartMine(request)) : host_->Receive(request);
}

absl::StatusOr<std::unique_ptr<PreparedCollective>> DeviceCommunicator::Prepare(const CollectiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool mine, IsMine(request.device));
  std::unique_ptr<PreparedCollective> on_host;
  if (!mine) {
    if (check_pointers_) LOCKSTEP_RETURN_IF_ERROR(CheckBuffers(request));
    LOCKSTEP_ASSIGN_OR_RETURN(on_host, host_->Prepare(request));
  } else {
    CollectiveRequest whenever = request;
    whenever.by_holder = true;  // who holds the communicator matters when it is started
    LOCKSTEP_RETURN_IF_ERROR(Check(whenever));
  }
  return std::make_unique<Prepared>(this, request, std::move(on_host));
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
  if (InGroup()) return absl::FailedPreconditionError("a collective in a stream's order, inside a group");
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

// ---- Calls on the device

absl::Status DeviceCommunicator::Supports(Collective collective, DType dtype, ReduceOp op) const {
  return host_->Supports(collective, dtype, op);
}

absl::Status DeviceCommunicator::CheckGood(const absl::Status& status, const DeviceCall& call) {
  if (status.ok()) return status;
  if (const auto* const request = std::get_if<CollectiveRequest>(&call)) {
    return NotStarted(status, NameOf(*request), OperationName());
  }
  return NotStarted(status, NameOf(ToMessage(call)), OperationName());
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
    LOCKSTEP_RETURN_IF_ERROR(CheckMessage(*send, size()));
  } else {
    LOCKSTEP_RETURN_IF_ERROR(CheckMessage(std::get<ReceiveRequest>(call), size()));
  }
  if (check_pointers_) LOCKSTEP_RETURN_IF_ERROR(CheckBuffers(call));
  return CheckOnDevice(call);
}

absl::StatusOr<Work> DeviceCommunicator::StartMine(const DeviceCall& call) {
  if (const absl::Status wrong = Check(call); !wrong.ok()) return host_->Refuse(wrong);
  {
    MutexLock lock(&group_mu_);
    if (group_ != nullptr && group_->thread == std::this_thread::get_id()) {
      return Work(group_->members.emplace_back(call, group_->thread).work);
    }
  }
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
  } else {
    named.message = ToMessage(calls[0]);
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

// ---- Groups

absl::Status DeviceCommunicator::StartGroup() {
  if (!InGroup()) LOCKSTEP_RETURN_IF_ERROR(NotStarted(failure_->status(), {"a group", {}}, OperationName()));
  LOCKSTEP_RETURN_IF_ERROR(host_->StartGroup());
  MutexLock lock(&group_mu_);
  if (group_ != nullptr) {
    ++group_->depth;
  } else {
    group_ = std::make_unique<Group>();
  }
  return absl::OkStatus();
}

absl::StatusOr<Work> DeviceCommunicator::EndGroup() {
  if (!InGroup()) return host_->EndGroup();
  // Before another thread can open one.
  std::unique_ptr<Group> group;
  absl::optional<Work> outermost;
  {
    MutexLock lock(&group_mu_);
    if (group_ != nullptr && --group_->depth > 0) outermost = Work(group_->work);
    if (!outermost.has_value()) group = std::move(group_);
  }
  if (const absl::Status failure = failure_->status(); !failure.ok()) {
    host_->Refuse(NotStarted(failure, {"a group", {}}, OperationName())).IgnoreError();
  }
  absl::StatusOr<Work> on_host = host_->EndGroup();
  if (outermost.has_value()) return *std::move(outermost);
  if (group == nullptr) return on_host;
  absl::StatusOr<Work> launched = LaunchGroup(group.get(), std::move(on_host));
  if (!launched.ok()) {
    group->Finish(Reworded(launched.status(), absl::StatusCode::kCancelled,
                           absl::StrCat("the group was not launched: ", launched.status().message())));
  }
  return launched;
}

absl::StatusOr<Work> DeviceCommunicator::LaunchGroup(Group* group, absl::StatusOr<Work> on_host) {
  LOCKSTEP_RETURN_IF_ERROR(on_host.status());
  std::vector<Work> works = {*std::move(on_host)};
  if (!group->members.empty()) {
    std::vector<DeviceCall> calls;
    for (const Group::Member& member : group->members) calls.push_back(member.call.call());
    absl::StatusOr<Work> work = Launch(calls);
    // The calls on the host are under way, and the other ranks wait for these.
    if (!work.ok() && group->on_host) Fail(work.status());
    LOCKSTEP_RETURN_IF_ERROR(work.status());
    for (Group::Member& member : group->members) member.work->Become({*work});
    works.push_back(*std::move(work));
  }
  group->work->Become(std::move(works));
  return Work(group->work);
}

// ---- The rest

absl::StatusOr<std::unique_ptr<Communicator>> DeviceCommunicator::Split(int color, int key) {
  LOCKSTEP_RETURN_IF_ERROR(CheckHeld(/*by_holder=*/false));
  LOCKSTEP_RETURN_IF_ERROR(status());
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part, host_->Split(color, key));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> made, MakePart(std::move(part), color, key));
  if (made != nullptr && check_pointers_) static_cast<DeviceCommunicator&>(*made).CheckPointers();
  return made;
}

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> DeviceCommunicator::AllocateHere(size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, device_->Allocate(bytes));
  return std::make_unique<SymmetricBuffer>(static_cast<char*>(memory), bytes, /*shared=*/false,
                                           [device = device_, memory] { device->Free(memory); });
}

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> DeviceCommunicator::AllocateOnDevice(size_t bytes) {
  LOCKSTEP_RETURN_IF_ERROR(CheckHeld(/*by_holder=*/false));
  if (InGroup()) return absl::FailedPreconditionError("memory cannot be allocated inside a group");
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
