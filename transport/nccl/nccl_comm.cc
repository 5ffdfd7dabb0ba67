#include "transport/nccl/nccl_comm.h"

#include <sched.h>

#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/status.h"

namespace lockstep {
namespace {

// A launch is ready within some ten microseconds; creating a communicator takes tenths of a second.
constexpr int kYields = 1000;
constexpr std::chrono::microseconds kPause(50);

// By number.
constexpr const char* kNames[] = {"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                                  "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                                  "ncclRemoteError",   "ncclInProgress"};

const char* NameOf(nccl::Result result) {
  return result >= 0 && result < std::size(kNames) ? kNames[result] : "unknown result";
}

absl::StatusCode CodeOf(nccl::Result result) {
  switch (result) {
    case nccl::kSystemError:
      return absl::StatusCode::kUnavailable;
    case nccl::kInvalidArgument:
      return absl::StatusCode::kInvalidArgument;
    case nccl::kInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    case nccl::kRemoteError:
      return absl::StatusCode::kAborted;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::Status StatusOf(const NcclLibrary& library, nccl::Comm* comm, nccl::Result result, absl::string_view attempt) {
  const char* const words = library.api().GetErrorString(result);
  // Of the process rather than of the communicator, so it may be of another call; where there is nothing, it is empty.
  const char* const last = library.api().GetLastError(comm);
  const absl::string_view detail = absl::StripAsciiWhitespace(last == nullptr ? "" : last);
  return absl::Status(CodeOf(result),
                      absl::StrCat(attempt, ": ", library.VersionName(), ": ", words == nullptr ? "?" : words, " (",
                                   NameOf(result), ")", detail.empty() ? "" : ": ", detail));
}

}  // namespace

NcclComm::NcclComm(const NcclLibrary* library, int device, const NcclCommOptions& options)
    : library_(library), api_(library->api()), device_(device), options_(options) {}

NcclComm::~NcclComm() {
  {
    MutexLock lock(&aborter_mu_);
    aborter_.Join();
  }
  Abort();
}

absl::Status NcclComm::Error(nccl::Comm* comm, nccl::Result result, absl::string_view attempt) const {
  return StatusOf(*library_, comm, result, attempt);
}

nccl::Config NcclComm::MakeConfig() const {
  nccl::Config config = library_->MakeConfig();
  if (library_->has_ctas() && options_.ctas_min > 0) config.min_ctas = options_.ctas_min;
  if (library_->has_ctas() && options_.ctas_max > 0) config.max_ctas = options_.ctas_max;
  if (library_->can_split()) config.split_share = options_.split_share ? 1 : 0;
  return config;
}

absl::StatusOr<nccl::UniqueId> NcclComm::MakeUniqueId(const NcclLibrary* library) {
  nccl::UniqueId id = {};
  const nccl::Result result = library->api().GetUniqueId(&id);
  if (result != nccl::kSuccess) return StatusOf(*library, nullptr, result, "ncclGetUniqueId");
  return id;
}

absl::StatusOr<std::unique_ptr<NcclComm>> NcclComm::Create(const NcclLibrary* library, const nccl::UniqueId& id,
                                                           int rank, int size, int device,
                                                           const NcclCommOptions& options, Deadline deadline,
                                                           Interrupted interrupted) {
  const CudaGuard guard(TheCudaApi(), device);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  std::unique_ptr<NcclComm> made(new NcclComm(library, device, options));
  const auto attempt = [&] {
    return absl::StrCat("creating NCCL's communicator of rank ", rank, " of ", size, " on cuda:", device);
  };
  nccl::Config config = made->MakeConfig();
  MutexLock lock(&made->mu_);
  const nccl::Result begun = made->api_.CommInitRankConfig(&made->comm_, size, id, rank, &config);
  LOCKSTEP_RETURN_IF_ERROR(made->Await(made->comm_, begun, attempt, deadline, interrupted));
  return made;
}

absl::StatusOr<std::unique_ptr<NcclComm>> NcclComm::Split(int color, int key, Deadline deadline,
                                                          Interrupted interrupted) {
  const CudaGuard guard(TheCudaApi(), device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  std::unique_ptr<NcclComm> subgroup(new NcclComm(library_, device_, options_));
  const auto attempt = [&] { return absl::StrCat("splitting NCCL's communicator by colour ", color); };
  nccl::Config config = MakeConfig();
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return absl::AbortedError(absl::StrCat(attempt(), ": it was aborted"));
  MutexLock part_lock(&subgroup->mu_);
  nccl::Result begun = api_.CommSplit(comm_, color < 0 ? nccl::kNoColor : color, key, &subgroup->comm_, &config);
  // That the call was taken, not that it is done (2.28): until it is, no other call is taken, and one that is refused then leaves the
  // thread in a group of NCCL's.
  if (begun == nccl::kSuccess) begun = nccl::kInProgress;
  // This one says how the split goes on. By NCCL's source (2.28) the subgroup is there then; its manual does not say so.
  absl::Status status = Await(comm_, begun, attempt, deadline, interrupted);
  if (status.ok() && color < 0) {
    without_color_.push_back(std::move(subgroup));
    return nullptr;
  }
  if (status.ok()) status = AwaitSubgroup(&subgroup->comm_, attempt, deadline, interrupted);
  if (status.ok()) status = Await(subgroup->comm_, nccl::kInProgress, attempt, deadline, interrupted);
  if (status.ok()) return subgroup;
  // This one first: the thread that makes the subgroup is its own, and ends with it.
  AbortLocked();
  return status;
}

absl::Status NcclComm::AwaitSubgroup(nccl::Comm** subgroup, Attempt attempt, Deadline deadline,
                                     Interrupted interrupted) {
  // Pairs with whatever NCCL's thread publishes it by.
  while (__atomic_load_n(subgroup, __ATOMIC_ACQUIRE) == nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(Await(comm_, nccl::kInProgress, attempt, deadline, interrupted));
    if (aborted_.load(std::memory_order_acquire)) {
      return absl::AbortedError(absl::StrCat(attempt(), ": it was aborted"));
    }
    if (deadline.passed()) return absl::DeadlineExceededError(absl::StrCat(attempt(), " did not finish in time"));
    LOCKSTEP_RETURN_IF_ERROR(interrupted());
    std::this_thread::sleep_for(kPause);
  }
  return absl::OkStatus();
}

absl::Status NcclComm::Await(nccl::Comm* comm, nccl::Result begun, Attempt attempt, Deadline deadline,
                             Interrupted interrupted) {
  if (begun == nccl::kSuccess) return absl::OkStatus();
  if (begun != nccl::kInProgress) return Error(comm, begun, attempt());
  for (int polls = 0;; ++polls) {
    nccl::Result state = nccl::kInProgress;
    if (const nccl::Result asked = api_.CommGetAsyncError(comm, &state); asked != nccl::kSuccess) state = asked;
    if (state == nccl::kSuccess) return absl::OkStatus();
    if (state != nccl::kInProgress) return Error(comm, state, attempt());
    if (aborted_.load(std::memory_order_acquire))
      return absl::AbortedError(absl::StrCat(attempt(), ": it was aborted"));
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat(attempt(), " did not finish in time: ", library_->VersionName(), " still waits for its peers"));
    }
    if (polls < kYields) {
      sched_yield();
    } else {
      LOCKSTEP_RETURN_IF_ERROR(interrupted());
      std::this_thread::sleep_for(kPause);
    }
  }
}

absl::Status NcclComm::Launch(absl::Span<const NcclCall> calls, void* stream, Attempt attempt, Deadline deadline) {
  const CudaGuard guard(TheCudaApi(), device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return absl::AbortedError(absl::StrCat(attempt(), ": NCCL's communicator was aborted"));
  const nccl::Result begun = IssueGroup(calls, stream);
  const absl::Status status = Await(comm_, begun, attempt, deadline, [] { return absl::OkStatus(); });
  // Operators may go as soon as the calls that were given them are through.
  for (const nccl::RedOp op : operators_) api_.RedOpDestroy(op, comm_);
  operators_.clear();
  return status;
}

nccl::Result NcclComm::IssueGroup(absl::Span<const NcclCall> calls, void* stream) {
  for (const NcclCall& call : calls) {
    if (!call.scaled) continue;
    auto factor = call.factor;
    nccl::RedOp op;
    const nccl::Result made = api_.RedOpCreatePreMulSum(&op, factor.data(), call.type, nccl::kScalarOnHost, comm_);
    if (made != nccl::kSuccess) return made;
    operators_.push_back(op);
  }
  if (const nccl::Result started = api_.GroupStart(); started != nccl::kSuccess) return started;
  nccl::Result first_error = nccl::kSuccess;
  size_t operators_used = 0;
  for (const NcclCall& call : calls) {
    const nccl::RedOp op = call.scaled ? operators_[operators_used++] : call.op;
    const nccl::Result issued = Issue(call, op, stream);
    // Inside a group, being under way is as good as a success.
    if (issued != nccl::kSuccess && issued != nccl::kInProgress) {
      first_error = issued;
      break;
    }
  }
  const nccl::Result ended = api_.GroupEnd();
  return first_error != nccl::kSuccess ? first_error : ended;
}

nccl::Result NcclComm::Issue(const NcclCall& call, nccl::RedOp op, void* stream) {
  switch (call.kind) {
    case NcclCall::Kind::kAllReduce:
      return api_.AllReduce(call.input, call.output, call.count, call.type, op, comm_, stream);
    case NcclCall::Kind::kReduce:
      return api_.Reduce(call.input, call.output, call.count, call.type, op, call.peer, comm_, stream);
    case NcclCall::Kind::kBroadcast:
      return api_.Broadcast(call.input, call.output, call.count, call.type, call.peer, comm_, stream);
    case NcclCall::Kind::kAllGather:
      return api_.AllGather(call.input, call.output, call.count, call.type, comm_, stream);
    case NcclCall::Kind::kReduceScatter:
      return api_.ReduceScatter(call.input, call.output, call.count, call.type, op, comm_, stream);
    case NcclCall::Kind::kSend:
      return api_.Send(call.input, call.count, call.type, call.peer, comm_, stream);
    case NcclCall::Kind::kReceive:
      return api_.Recv(call.output, call.count, call.type, call.peer, comm_, stream);
  }
  return nccl::kInvalidArgument;
}

absl::Status NcclComm::Poll() {
  if (!mu_.TryLock()) return absl::OkStatus();
  absl::Status status;
  nccl::Result state = nccl::kSuccess;
  if (comm_ != nullptr) {
    if (const nccl::Result asked = api_.CommGetAsyncError(comm_, &state); asked != nccl::kSuccess) state = asked;
    if (state != nccl::kSuccess && state != nccl::kInProgress) status = Error(comm_, state, "a call under way");
  }
  mu_.Unlock();
  return status;
}

void NcclComm::Abort() {
  aborted_.store(true, std::memory_order_release);
  MutexLock lock(&mu_);
  AbortLocked();
}

void NcclComm::AbortSoon() {
  aborted_.store(true, std::memory_order_release);
  MutexLock lock(&aborter_mu_);
  if (!aborter_.joinable()) aborter_ = Thread("lockstep-abort", [this] { Abort(); });
}

void NcclComm::AbortLocked() {
  if (comm_ == nullptr) return;
  // Without the device there is no way but to leave it behind.
  if (const CudaGuard guard(TheCudaApi(), device_); guard.status().ok()) api_.CommAbort(comm_);
  comm_ = nullptr;
}

void NcclComm::Destroy() {
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return;
  if (const CudaGuard guard(TheCudaApi(), device_); guard.status().ok()) api_.CommDestroy(comm_);
  comm_ = nullptr;
}

absl::StatusOr<void*> NcclComm::Register(void* memory, size_t bytes) {
  const CudaGuard guard(TheCudaApi(), device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return absl::AbortedError("NCCL's communicator was aborted");
  void* handle = nullptr;
  const nccl::Result result = api_.CommRegister(comm_, memory, bytes, &handle);
  if (result != nccl::kSuccess) return Error(comm_, result, absl::StrCat("ncclCommRegister of ", bytes, " bytes"));
  return handle;
}

void NcclComm::Deregister(void* handle) {
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return;
  if (const CudaGuard guard(TheCudaApi(), device_); guard.status().ok()) api_.CommDeregister(comm_, handle);
}

}  // namespace lockstep
