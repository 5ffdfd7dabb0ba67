#include "comm/ipc_communicator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/cuda_ipc.h"
#include "base/deadline.h"
#include "base/dtype.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "comm/agreement.h"
#include "comm/byte_objects.h"
#include "comm/device_fold.h"
#include "comm/host_id.h"
#include "comm/schedule.h"
#include "comm/signature.h"

namespace lockstep {
namespace {

// So that the largest elements are aligned in each rank's part of a slot.
constexpr size_t kSlotAlignment = 256;
// How long the end waits for streams that were released, and set-up for the first word.
constexpr std::chrono::seconds kDrain{10};
// How long a stream may take to await what is released meanwhile.
constexpr int64_t kReleaseMs = 1;

constexpr size_t kFlightRecordsPrinted = 16;

std::chrono::milliseconds TimeoutOf(const DeviceCall& call) {
  return std::visit([](const auto& request) { return request.timeout; }, call);
}

bool HasPairCounts(const CollectiveRequest& request) {
  return request.collective == Collective::kAllToAll && !request.counts.empty();
}

size_t PairCountMax(const CollectiveRequest& request) {
  int64_t most = 0;
  for (const int64_t count : request.counts) most = std::max(most, count);
  for (const int64_t count : request.output_counts) most = std::max(most, count);
  return static_cast<size_t>(most);
}

}  // namespace

// ---- Creation

IpcCommunicator::IpcCommunicator(HostPart host, Device* device, IpcOptions options)
    : DeviceCommunicator(std::move(host), device, options.timeout),
      options_(std::move(options)),
      fork_generation_(ForkGeneration()),
      operations_(device, options_.flight_records) {}

absl::StatusOr<std::unique_ptr<IpcCommunicator>> IpcCommunicator::Create(HostPart host, Device* device,
                                                                         IpcOptions options) {
  std::unique_ptr<IpcCommunicator> made(new IpcCommunicator(std::move(host), device, std::move(options)));
  LOCKSTEP_RETURN_IF_ERROR(made->CheckPeers());
  LOCKSTEP_RETURN_IF_ERROR(made->SetUp());
  made->failure()->AskAlso([page = made->page_] { return page->failure(); });
  DeviceWatchdog::Get()->Add(made.get());
  made->watched_ = true;
  return made;
}

absl::Status IpcCommunicator::CheckPeers() {
  if (options_.slots.bytes < kIpcRanksMax * kSlotAlignment || options_.slots.bytes % kSlotAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat("slots of ", options_.slots.bytes, " bytes: a multiple of ",
                                                   kSlotAlignment, ", and at least ", kIpcRanksMax * kSlotAlignment));
  }
  if (size() > kIpcRanksMax) {
    return absl::UnimplementedError(
        absl::StrCat("collectives by memory that ", size(), " ranks map: at most ", kIpcRanksMax));
  }
  const absl::StatusOr<std::string> gpu = CudaPciAddress(accelerator()->id().index);
  LOCKSTEP_RETURN_IF_ERROR(AgreeThatAllCan(host(), gpu.status()));
  const std::string slots = absl::StrCat(options_.slots.bytes, " ", options_.slots.one_shot_bytes);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                            AllGatherBytes(host(), absl::StrCat(HostId(), "\n", *gpu, "\n", slots)));
  std::vector<std::vector<std::string>> peers;
  for (const std::string& answer : answers) {
    peers.push_back(absl::StrSplit(answer, '\n'));
    if (peers.back().size() != 3) return absl::InternalError(absl::StrCat("\"", answer, "\" tells of no peer"));
  }
  for (int r = 1; r < size(); ++r) {
    if (peers[r][0] != peers[0][0]) {
      return absl::UnavailableError(absl::StrCat("ranks 0 and ", r, " are on different hosts"));
    }
    if (peers[r][2] != peers[0][2]) {
      return absl::FailedPreconditionError(absl::StrCat("the ranks' slots differ: rank 0 has ", peers[0][2], ", rank ",
                                                        r, " ", peers[r][2], " bytes for two shots and one"));
    }
  }
  absl::Status reached;
  for (int r = 0; r < size() && reached.ok(); ++r) {
    reached = Annotate(CheckCudaPeer(accelerator()->id().index, peers[r][1]),
                       absl::StrCat("rank ", rank().value(), " to rank ", r));
  }
  return AgreeThatAllCan(host(), reached);
}

absl::Status IpcCommunicator::SetUp() {
  // Not at their first launch, which would wait for streams that wait for other ranks.
  const absl::Status loaded = options_.kernels == nullptr
                                  ? absl::UnavailableError("this program has no kernels that fold on a GPU")
                                  : options_.kernels->Load(*accelerator());
  LOCKSTEP_RETURN_IF_ERROR(AgreeThatAllCan(host(), loaded));
  LOCKSTEP_ASSIGN_OR_RETURN(page_, IpcPage::Join(host(), accelerator()));
  absl::StatusOr<std::unique_ptr<Event>> last = accelerator()->CreateEvent();
  LOCKSTEP_RETURN_IF_ERROR(AgreeThatAllCan(host(), last.ok() ? TryWords() : last.status()));
  buffers_ = std::make_shared<IpcBuffers>(*std::move(last));
  LOCKSTEP_ASSIGN_OR_RETURN(
      slots_, IpcMemory::Create(host(), accelerator(), page_, memories_++, IpcSteps::kSlots * options_.slots.bytes));
  steps_ = std::make_unique<IpcSteps>(rank().value(), size(), page_, slots_.get(), options_.slots, options_.kernels);
  LOCKSTEP_ASSIGN_OR_RETURN(compare_, host()->Duplicate());
  return absl::OkStatus();
}

absl::Status IpcCommunicator::TryWords() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, accelerator()->CreateStream("ipc-trial"));
  std::atomic<uint32_t>* const word = page_->trial(rank().value());
  absl::Status tried = stream->WriteValue(word, 1);
  if (tried.ok()) tried = stream->AwaitValue(word, 1);
  if (tried.ok()) tried = stream->Synchronize(Deadline::After(kDrain));
  if (tried.ok() && word->load(std::memory_order_acquire) != 1) {
    tried = absl::UnavailableError("a stream wrote a word, and the host does not see it");
  }
  return Annotate(tried, "streams that await words of host memory");
}

absl::StatusOr<std::unique_ptr<Communicator>> IpcCommunicator::MakePart(std::unique_ptr<Communicator> part,
                                                                        int /*color*/, int /*key*/) {
  if (part == nullptr) return nullptr;
  return Create(std::move(part), accelerator(), options_);
}

IpcCommunicator::~IpcCommunicator() {
  // CUDA and the watchdog did not come along into a forked child.
  if (fork_generation_ != ForkGeneration()) {
    (void)slots_.release();
    return;
  }
  if (watched_) DeviceWatchdog::Get()->Remove(this);
  if (steps_ == nullptr) return;
  Event* const last = buffers_->last();
  const absl::Status status = this->status();
  const bool idle = last->Query();
  const absl::Status ended = status.ok() ? absl::AbortedError(absl::StrCat("rank ", rank().value(),
                                                                           " destroyed its communicator with calls in "
                                                                           "flight on ",
                                                                           Name(accelerator()->id())))
                                         : status;
  if (!idle && status.ok()) host()->Abort(std::string(ended.message()));
  Close();
  if (idle) return;
  page_->TellFailure(ended);
  const Deadline deadline = Deadline::After(kDrain);
  absl::Status through;
  do {
    steps_->Release();
    through = last->Synchronize(Deadline::AfterMs(kReleaseMs));
  } while (absl::IsDeadlineExceeded(through) && !deadline.passed());
  if (absl::IsDeadlineExceeded(through)) LeakIpcMemory(std::move(slots_), through);
}

// ---- Calls

absl::Status IpcCommunicator::CheckOnDevice(const DeviceCall& call) {
  const auto* const request = std::get_if<CollectiveRequest>(&call);
  if (request == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("messages of buffers on ", Name(device()), " by memory that ranks map: copy them to the host"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckAlgorithm(request->collective, request->algorithm));
  // What kernels read and write.
  const size_t alignment = SizeOf(request->dtype);
  const auto is_aligned = [&](const void* data) { return reinterpret_cast<uintptr_t>(data) % alignment == 0; };
  const bool is_written =
      HasReduction(request->collective) && (request->collective != Collective::kReduce || request->root == rank());
  if ((is_written && !is_aligned(request->output)) || (ScalesInput(*request) && !is_aligned(request->input))) {
    return absl::InvalidArgumentError(absl::StrCat(Name(request->collective), " of ", Name(request->dtype),
                                                   ": a buffer is not aligned to ", alignment, " bytes"));
  }
  if (!HasPairCounts(*request) || request->input != request->output || request->count == 0) return absl::OkStatus();
  return absl::InvalidArgumentError("an all_to_all with counts in place: what comes may lie where something goes from");
}

absl::Status IpcCommunicator::Agree(absl::Span<const DeviceCall> calls, std::vector<size_t>* pair_counts) {
  pair_counts->assign(calls.size(), 0);
  if (options_.checked) LOCKSTEP_RETURN_IF_ERROR(AgreeOnCalls(compare_.get(), operations_.SignaturesOf(calls)));
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto& request = std::get<CollectiveRequest>(calls[i]);
    if (!HasPairCounts(request)) continue;
    uint64_t most = PairCountMax(request);
    CollectiveRequest largest;
    largest.collective = Collective::kAllReduce;
    largest.dtype = DType::kU64;
    largest.op = ReduceOp::kMax;
    largest.count = 1;
    largest.input = largest.output = &most;
    largest.timeout = TimeoutOf(calls[i]).count() > 0 ? TimeoutOf(calls[i]) : options_.timeout;
    LOCKSTEP_RETURN_IF_ERROR(compare_->Run(largest));
    (*pair_counts)[i] = most;
  }
  return absl::OkStatus();
}

absl::Status IpcCommunicator::IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) {
  if (stream->capturing()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the stream is being captured, and collectives on ", Name(device()),
                     " count their steps, which a graph would repeat: capture works with NCCL"));
  }
  std::chrono::milliseconds timeout = std::chrono::milliseconds::max();
  for (const DeviceCall& call : calls) {
    timeout = std::min(timeout, TimeoutOf(call).count() > 0 ? TimeoutOf(call) : options_.timeout);
  }
  const Deadline deadline = Deadline::After(timeout);
  std::vector<size_t> pair_counts;
  if (absl::Status disagree = Agree(calls, &pair_counts); !disagree.ok()) {
    if (compare_->status().ok()) return disagree;
    Fail(disagree);
    return status();
  }
  absl::Status issued = Issue(calls, pair_counts, stream);
  if (issued.ok()) issued = operations_.Issued(calls, stream, deadline, timeout);
  if (issued.ok()) return absl::OkStatus();
  // Part of it may be under way, and other ranks wait for the rest.
  Fail(issued);
  return status();
}

absl::Status IpcCommunicator::Issue(absl::Span<const DeviceCall> calls, absl::Span<const size_t> pair_counts,
                                    Stream* stream) {
  // Calls before these may be in other streams, and use the same slots.
  LOCKSTEP_RETURN_IF_ERROR(stream->Wait(buffers_->last()));
  absl::Status issued;
  for (size_t i = 0; i < calls.size() && issued.ok(); ++i) {
    const auto& request = std::get<CollectiveRequest>(calls[i]);
    const IpcBuffers::Place place = steps_->IsReducedInPlace(request)
                                        ? buffers_->Find(request.input, request.count * SizeOf(request.dtype))
                                        : IpcBuffers::Place();
    issued = Compare(request, place);
    if (issued.ok()) issued = steps_->Issue(request, place, pair_counts[i], stream);
  }
  // Also behind what was issued of a call that failed.
  const absl::Status recorded = stream->Record(buffers_->last());
  return issued.ok() ? recorded : issued;
}

absl::Status IpcCommunicator::Compare(const CollectiveRequest& request, const IpcBuffers::Place& place) {
  // What all ranks' steps follow from.
  const bool own_counts = HasPairCounts(request);
  const std::array<int64_t, 8> call = {static_cast<int64_t>(request.collective),
                                       static_cast<int64_t>(request.dtype),
                                       HasReduction(request.collective) ? static_cast<int64_t>(request.op) : 0,
                                       HasRoot(request.collective) ? request.root.value() : 0,
                                       own_counts ? -1 : static_cast<int64_t>(request.count),
                                       own_counts || request.counts.empty() ? 0 : HashOfCounts(request.counts),
                                       place.memory == nullptr ? -1 : place.memory->number(),
                                       static_cast<int64_t>(place.offset)};
  const int other = page_->CompareCall(rank().value(), size(), ++calls_, HashOfCounts(call));
  if (other < 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "ranks ", rank().value(), " and ", other, " make different calls, or with buffers in different places: rank ",
      rank().value(), " ", operations_.NameOf({request}),
      place.memory == nullptr ? "" : absl::StrCat(" at ", place.offset, " of a buffer that all ranks map")));
}

// ---- Memory

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> IpcCommunicator::AllocateHere(size_t bytes) {
  const int number = memories_.fetch_add(1);
  if (number >= IpcPage::kMemoriesMax) return DeviceCommunicator::AllocateHere(bytes);
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<IpcMemory> memory,
                            IpcMemory::Create(host(), accelerator(), page_, number, bytes));
  return IpcBuffers::Add(buffers_, std::move(memory));
}

// ---- Failure

void IpcCommunicator::Watch() {
  // A peer may write an earlier number over what was stored.
  if (failed_.load(std::memory_order_acquire)) return steps_->Release();
  if (const absl::Status known = status(); !known.ok()) return Fail(known);
  if (const absl::Status late = operations_.Check(); !late.ok()) Fail(late);
}

void IpcCommunicator::OnFailure(const absl::Status& status) {
  page_->TellFailure(status);
  operations_.Fail();
  failed_.store(true, std::memory_order_release);
  steps_->Release();
  if (compare_->status().ok()) compare_->Abort(std::string(status.message()));
  LOCKSTEP_LOG(kError) << "rank " << rank() << ": collectives on " << Name(device())
                       << " failed: " << status.ToString(absl::StatusToStringMode::kWithNoExtraData)
                       << "\nlast collectives there, newest last:\n"
                       << operations_.Records(kFlightRecordsPrinted);
}

std::string IpcCommunicator::DescribeDevice() const {
  return absl::StrCat(Name(device()), ": ipc: kernels read the other ranks' memory on this host, in ", IpcSteps::kSlots,
                      " slots of ", options_.slots.bytes, " bytes or where it is", options_.reason.empty() ? "" : ": ",
                      options_.reason);
}

std::string IpcCommunicator::FlightRecords() const {
  return absl::StrCat("on ", Name(device()), ":\n", operations_.Records(SIZE_MAX), "compared on the host:\n",
                      compare_->FlightRecords(), "on the host:\n", DeviceCommunicator::FlightRecords());
}

}  // namespace lockstep
