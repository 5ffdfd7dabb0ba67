#include "comm/device/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_device.h"
#include "base/fork.h"
#include "base/status.h"
#include "comm/byte_objects.h"
#include "comm/device/nccl/nccl_peers.h"
#include "comm/device/nccl/nccl_plan.h"
#include "comm/plan/call_plan.h"
#include "comm/record/failure_report.h"
#include "comm/record/signature.h"
#include "transport/nccl/nccl_library.h"

namespace lockstep {
namespace {

// When a rank dies, its neighbours hear of it from NCCL and from the host communicator. What the latter says names
// the rank; it has this long for it.
constexpr std::chrono::milliseconds kVerdictGrace(1000);
constexpr std::chrono::milliseconds kVerdictPause(1);

// Whether NCCL's error may be the loss of a rank.
bool MayHaveVerdict(const absl::Status& error) { return absl::IsAborted(error) || absl::IsUnavailable(error); }

// NCCL's error, or the host communicator's when it has one by and by.
absl::Status Verdict(const absl::Status& error, const Communicator& host) {
  if (!MayHaveVerdict(error)) return error;
  const Deadline deadline = Deadline::After(kVerdictGrace);
  while (host.status().ok() && !deadline.passed()) std::this_thread::sleep_for(kVerdictPause);
  return host.status().ok() ? error : host.status();
}

std::chrono::milliseconds TimeoutOf(const DeviceCall& call) {
  return std::visit([](const auto& request) { return request.timeout; }, call);
}

bool IsInPlaceExchange(const CollectiveRequest& request) {
  return request.collective == Collective::kAllToAll && request.input == request.output && request.count > 0;
}

// Memory of ours that the call needs, in multiples of what CUDA's allocations are aligned to.
size_t ScratchBytes(const CollectiveRequest& request) {
  constexpr size_t kAlignment = 256;
  if (request.collective == Collective::kBarrier) return kAlignment;
  if (!IsInPlaceExchange(request)) return 0;
  return (request.count * SizeOf(request.dtype) + kAlignment - 1) / kAlignment * kAlignment;
}

// Each rank returns when all have got through, or one has failed.
absl::StatusOr<std::shared_ptr<NcclComm>> ConnectOver(Communicator* setup, const NcclLibrary* library, int device,
                                                      const NcclCommunicatorOptions& options) {
  // The id, or why rank 0 has none.
  std::string text;
  if (setup->rank() == Rank(0)) {
    const absl::StatusOr<nccl::UniqueId> made = NcclComm::MakeUniqueId(library);
    text = made.ok() ? std::string(made->bytes, sizeof(made->bytes)) : std::string(made.status().message());
  }
  LOCKSTEP_RETURN_IF_ERROR(BroadcastBytes(setup, &text, Rank(0)));
  nccl::UniqueId id = {};
  if (text.size() != sizeof(id.bytes)) return absl::InternalError(absl::StrCat("rank 0: ", text));
  std::memcpy(id.bytes, text.data(), sizeof(id.bytes));

  LOCKSTEP_ASSIGN_OR_RETURN(
      std::shared_ptr<NcclComm> comm,
      NcclComm::Create(library, id, setup->rank().value(), setup->size(), device, options.nccl,
                       Deadline::After(options.setup_timeout), [setup] { return setup->status(); }));
  CollectiveRequest all_are_here;
  all_are_here.timeout = options.setup_timeout;
  LOCKSTEP_RETURN_IF_ERROR(setup->Run(all_are_here));
  return comm;
}

}  // namespace

// ---- Creation

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(HostPart host, Device* device,
                                                                           const NcclCommunicatorOptions& options) {
  if (device->id().kind != DeviceKind::kCuda) {
    return absl::UnimplementedError(absl::StrCat("NCCL is for CUDA's devices, and this one is ", Name(device->id())));
  }
  if (options.deterministic) {
    return absl::UnimplementedError(
        "NCCL does not promise the order in which it adds: deterministic mode has the back end staged");
  }
  std::vector<NcclPeer> peers;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                            AllGatherBytes(host.get(), Encode(ThisNcclPeer(device->id()))));
  for (const std::string& answer : answers) {
    LOCKSTEP_ASSIGN_OR_RETURN(NcclPeer peer, DecodeNcclPeer(answer));
    peers.push_back(std::move(peer));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckNcclPeers(peers));
  LOCKSTEP_ASSIGN_OR_RETURN(const NcclLibrary* const library, Nccl());
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<NcclComm> comm, Connect(host.get(), library, device->id().index, options));
  return Make(std::move(host), device, options, library, std::move(comm));
}

absl::StatusOr<std::shared_ptr<NcclComm>> NcclCommunicator::Connect(Communicator* host, const NcclLibrary* library,
                                                                    int device,
                                                                    const NcclCommunicatorOptions& options) {
  // Of its own, to be aborted when a rank fails here: that ends the wait of the others, and leaves the host
  // communicator good.
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> setup, host->Duplicate());
  absl::StatusOr<std::shared_ptr<NcclComm>> comm = ConnectOver(setup.get(), library, device, options);
  if (comm.ok()) return comm;
  const absl::Status verdict = Verdict(comm.status(), *setup);
  setup->Abort(std::string(verdict.message()));
  // Where one failed, all did. Those that are here go on without NCCL; the loss of a rank is the host communicator's
  // error.
  LOCKSTEP_RETURN_IF_ERROR(host->Run({}));
  return Reworded(verdict, absl::StatusCode::kUnavailable, verdict.message());
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Make(HostPart host, Device* device,
                                                                         const NcclCommunicatorOptions& options,
                                                                         const NcclLibrary* library,
                                                                         std::shared_ptr<NcclComm> comm) {
  std::unique_ptr<Communicator> checks;
  if (options.checked) {
    LOCKSTEP_ASSIGN_OR_RETURN(checks, host->Duplicate());
  }
  return std::unique_ptr<NcclCommunicator>(
      new NcclCommunicator(std::move(host), device, options, library, std::move(comm), std::move(checks)));
}

NcclCommunicator::NcclCommunicator(HostPart host, Device* device, const NcclCommunicatorOptions& options,
                                   const NcclLibrary* library, std::shared_ptr<NcclComm> comm,
                                   std::unique_ptr<Communicator> checks)
    : DeviceCommunicator(std::move(host), device, options.timeout),
      options_(options),
      library_(library),
      comm_(std::move(comm)),
      checks_(std::move(checks)),
      fork_generation_(ForkGeneration()),
      operations_(device, options.flight_records) {
  DeviceWatchdog::Get()->Add(this);
}

NcclCommunicator::~NcclCommunicator() {
  // CUDA and the watchdog did not come along into a forked child.
  if (fork_generation_ != ForkGeneration()) return;
  DeviceWatchdog::Get()->Remove(this);
  const bool good = left() || status().ok();
  const bool idle = good && operations_.Idle();
  // The other ranks must not wait for this one's part.
  if (good && !idle)
    host()->Abort(absl::StrCat("it was destroyed with calls in flight on ", Name(accelerator()->id())));
  Close();
  if (idle) {
    comm_->Destroy();
  } else {
    comm_->Abort();
  }
  for (void* const memory : scratch_) accelerator()->Free(memory);
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::MakePart(std::unique_ptr<Communicator> part, int color,
                                                                         int key) {
  std::shared_ptr<NcclComm> comm;
  if (library_->can_split()) {
    absl::StatusOr<std::unique_ptr<NcclComm>> split =
        comm_->Split(color, key, Deadline::After(options_.setup_timeout), [this] { return status(); });
    if (!split.ok()) {
      Fail(Verdict(split.status(), *host()));
      return status();
    }
    comm = *std::move(split);
  } else if (part != nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(comm, Connect(part.get(), library_, accelerator()->id().index, options_));
  }
  if (part == nullptr) return nullptr;
  return Make(std::move(part), accelerator(), options_, library_, std::move(comm));
}

// ---- Calls

absl::Status NcclCommunicator::Supports(Collective collective, DType dtype, ReduceOp op) const {
  return NcclSupports(collective, dtype, op, library_->has_float8());
}

absl::Status NcclCommunicator::CheckOnDevice(const DeviceCall& call) {
  if (const auto* const request = std::get_if<CollectiveRequest>(&call)) {
    return CheckAlgorithm(request->collective, request->algorithm);
  }
  int64_t tag = 0;
  if (const auto* const receive = std::get_if<ReceiveRequest>(&call)) {
    tag = receive->tag == kAnyTag ? 0 : receive->tag;
    if (receive->source == kAnySource) {
      return absl::UnimplementedError("NCCL receives from one rank: a receive on the device names its source");
    }
  } else {
    tag = std::get<SendRequest>(call).tag;
  }
  if (tag == 0) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("NCCL's messages have no tags: one on the device has tag 0, not ", tag));
}

absl::Status NcclCommunicator::Compare(absl::Span<const DeviceCall> calls) {
  std::string mine;
  uint64_t sequence = collectives();
  for (const DeviceCall& call : calls) {
    const auto* const request = std::get_if<CollectiveRequest>(&call);
    if (request == nullptr) continue;
    Signature signature = SignatureOf(*request, Algorithm::kAuto);
    signature.sequence = ++sequence;
    absl::StrAppend(&mine, mine.empty() ? "" : ", ", ToString(signature));
  }
  // Messages differ from rank to rank.
  if (mine.empty()) return absl::OkStatus();
  return AgreeOnCalls(checks_.get(), mine);
}

absl::Status NcclCommunicator::IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) {
  if (checks_ != nullptr) LOCKSTEP_RETURN_IF_ERROR(Compare(calls));
  if (stream->native() != reinterpret_cast<void*>(kCudaPerThreadStream)) return Launch(calls, stream);
  if (bridge_ == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(bridge_event_, accelerator()->CreateEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(bridge_, accelerator()->CreateStream("nccl"));
  }
  LOCKSTEP_RETURN_IF_ERROR(stream->Record(bridge_event_.get()));
  LOCKSTEP_RETURN_IF_ERROR(bridge_->Wait(bridge_event_.get()));
  LOCKSTEP_RETURN_IF_ERROR(Launch(calls, bridge_.get()));
  LOCKSTEP_RETURN_IF_ERROR(bridge_->Record(bridge_event_.get()));
  return stream->Wait(bridge_event_.get());
}

absl::Status NcclCommunicator::Launch(absl::Span<const DeviceCall> calls, Stream* stream) {
  std::chrono::milliseconds timeout = std::chrono::milliseconds::max();
  for (const DeviceCall& call : calls) {
    timeout = std::min(timeout, TimeoutOr(TimeoutOf(call)));
  }
  LOCKSTEP_RETURN_IF_ERROR(Plan(calls, stream));
  const Deadline deadline = Deadline::After(timeout);
  absl::Status issued = comm_->Launch(
      calls_, stream->native(), [&] { return NameNext(calls).Name(); }, deadline);
  if (issued.ok()) issued = Note(calls, stream, deadline, timeout);
  if (issued.ok()) return absl::OkStatus();
  // Some ranks may have issued it, and wait for this one.
  Fail(Verdict(issued, *host()));
  return status();
}

absl::Status NcclCommunicator::Plan(absl::Span<const DeviceCall> calls, Stream* stream) {
  calls_.clear();
  size_t scratch_bytes = 0;
  for (const DeviceCall& call : calls) {
    if (const auto* const request = std::get_if<CollectiveRequest>(&call)) scratch_bytes += ScratchBytes(*request);
  }
  char* scratch = nullptr;
  if (scratch_bytes > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(*stream));
    // Whatever was done with that memory before is not part of the graph.
    if (capturing) {
      return absl::FailedPreconditionError(
          absl::StrCat(NameNext(calls).Name(), ": a call that needs memory of ours cannot be captured into a graph"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(scratch, TakeScratch(scratch_bytes, stream));
  }
  scratch_used_ = scratch_bytes > 0;
  for (const DeviceCall& call : calls) {
    if (const auto* const send = std::get_if<SendRequest>(&call)) {
      AppendNcclCalls(*send, &calls_);
    } else if (const auto* const receive = std::get_if<ReceiveRequest>(&call)) {
      AppendNcclCalls(*receive, &calls_);
    } else {
      CollectiveRequest request = std::get<CollectiveRequest>(call);
      char* const own = scratch;
      scratch += ScratchBytes(request);
      if (request.collective == Collective::kBarrier) {
        request.input = request.output = own;
      } else if (IsInPlaceExchange(request)) {
        LOCKSTEP_RETURN_IF_ERROR(stream->Copy(own, request.input, request.count * SizeOf(request.dtype)));
        request.input = own;
      }
      AppendNcclCalls(request, rank(), size(), &calls_);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<char*> NcclCommunicator::TakeScratch(size_t bytes, Stream* stream) {
  if (bytes > scratch_bytes_) {
    const size_t more = std::max(bytes, 2 * scratch_bytes_);
    LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, accelerator()->Allocate(more));
    scratch_.push_back(memory);
    scratch_bytes_ = more;
  }
  if (scratch_free_ == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(scratch_free_, accelerator()->CreateEvent());
  }
  // Calls before this one may be in other streams.
  LOCKSTEP_RETURN_IF_ERROR(stream->Wait(scratch_free_.get()));
  return static_cast<char*>(scratch_.back());
}

absl::Status NcclCommunicator::Note(absl::Span<const DeviceCall> calls, Stream* stream, Deadline deadline,
                                    std::chrono::milliseconds timeout) {
  if (scratch_used_) LOCKSTEP_RETURN_IF_ERROR(stream->Record(scratch_free_.get()));
  // What is put into a graph has no event to ask: whoever replays the graph knows when it is late.
  LOCKSTEP_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(*stream));
  return capturing ? absl::OkStatus() : operations_.Issued(calls, stream, deadline, timeout);
}

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> NcclCommunicator::AllocateHere(size_t bytes) {
  if (!library_->can_register()) return DeviceCommunicator::AllocateHere(bytes);
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<NcclMemory> memory,
                            NcclMemory::Allocate(library_, accelerator()->id().index, bytes));
  LOCKSTEP_ASSIGN_OR_RETURN(void* const registration, comm_->Register(memory->data(), bytes));
  char* const data = memory->data();
  // The communicator may go first.
  return std::make_unique<SymmetricBuffer>(
      data, bytes, /*shared=*/false,
      [memory = std::move(memory), comm = comm_, registration] { comm->Deregister(registration); });
}

// ---- Failure

void NcclCommunicator::Watch() {
  // Also what the host communicator has heard.
  if (const absl::Status known = status(); !known.ok()) return Fail(known);
  // The other communicators of the process are not to wait for the verdict on this one.
  if (!polled_.ok()) {
    if (verdict_until_.passed()) Fail(polled_);
    return;
  }
  if (const absl::Status error = comm_->Poll(); !error.ok()) {
    if (!MayHaveVerdict(error)) return Fail(error);
    polled_ = error;
    verdict_until_ = Deadline::After(kVerdictGrace);
    return;
  }
  if (const absl::Status late = operations_.Check(); !late.ok()) Fail(late);
}

void NcclCommunicator::OnFailure(const absl::Status& status) {
  // Before the abort, after which their events are reached.
  operations_.Fail();
  comm_->AbortSoon();
  // Somebody may be comparing calls with a rank that has stopped calling.
  if (checks_ != nullptr && checks_->status().ok()) checks_->Abort(std::string(status.message()));
  ReportFailure({WorldRank(rank()), size(), options_.launched_as.get()},
                absl::StrCat("rank ", rank().value(), ": collectives on ", Name(accelerator()->id()), " failed"),
                status, operations_.Records(SIZE_MAX));
}

absl::StatusOr<void*> NcclCommunicator::NcclHandle() const {
  LOCKSTEP_RETURN_IF_ERROR(status());
  return comm_->handle();
}

std::string NcclCommunicator::DescribeDevice() const {
  return absl::StrCat(Name(accelerator()->id()), ": ", library_->Describe(),
                      ": every rank has it, and a GPU that it takes; Lockstep protects none of its data");
}

std::string NcclCommunicator::FlightRecords() const {
  return absl::StrCat("on ", Name(accelerator()->id()), ":\n", operations_.Records(SIZE_MAX), "on the host:\n",
                      DeviceCommunicator::FlightRecords());
}

}  // namespace lockstep
