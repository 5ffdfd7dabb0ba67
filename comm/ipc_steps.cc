#include "comm/ipc_steps.h"

#include <array>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "comm/device_fold.h"
#include "comm/schedule.h"

namespace lockstep {
namespace {

char* At(void* base, size_t elements, DType dtype) { return static_cast<char*>(base) + elements * SizeOf(dtype); }
const char* At(const void* base, size_t elements, DType dtype) {
  return static_cast<const char*>(base) + elements * SizeOf(dtype);
}

}  // namespace

IpcSteps::IpcSteps(int rank, int size, std::shared_ptr<IpcPage> page, const IpcMemory* slot_memory,
                   const IpcSlots& slots, const kernels::FoldKernels* kernels)
    : rank_(rank), size_(size), page_(std::move(page)), slot_memory_(slot_memory), slots_(slots), kernels_(kernels) {}

bool IpcSteps::IsReducedInPlace(const CollectiveRequest& request) const {
  // A premultiplied sum's inputs are scaled where they are put, by factors that the ranks do not know of each other.
  return request.collective == Collective::kAllReduce && request.op != ReduceOp::kPremulSum &&
         request.input == request.output && request.count * SizeOf(request.dtype) > slots_.one_shot_bytes;
}

absl::Status IpcSteps::Issue(const CollectiveRequest& request, const IpcBuffers::Place& place, size_t pair_count,
                             Stream* stream) {
  std::array<char*, kIpcRanksMax> slots = {};
  const absl::Span<char*> ranks_slots(slots.data(), size_);
  if (place.memory != nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(const IpcStep step, PlanIpcInPlace(request, rank_, size_));
    for (int r = 0; r < size_; ++r) slots[r] = place.memory->part(r) + place.offset;
    LOCKSTEP_RETURN_IF_ERROR(IssueStep(request, step, ranks_slots, stream));
    return AwaitDone(number_, stream);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<IpcStep> steps, PlanIpc(request, rank_, size_, slots_, pair_count));
  std::array<uint32_t, kSlots> last_use = {};
  for (size_t i = 0; i < steps.size(); ++i) {
    const size_t slot = i % kSlots;
    if (i >= kSlots) LOCKSTEP_RETURN_IF_ERROR(AwaitDone(last_use[slot], stream));
    for (int r = 0; r < size_; ++r) slots[r] = slot_memory_->part(r) + slot * slots_.bytes;
    LOCKSTEP_RETURN_IF_ERROR(IssueStep(request, steps[i], ranks_slots, stream));
    last_use[slot] = number_;
  }
  // The next call may be in another place, or memory of this one's go.
  return AwaitDone(number_, stream);
}

absl::Status IpcSteps::IssueStep(const CollectiveRequest& request, const IpcStep& step, absl::Span<char* const> slots,
                                 Stream* stream) {
  const DType dtype = request.dtype;
  for (const IpcCopy& put : step.puts) {
    if (put.count == 0) continue;
    char* const target = At(slots[put.rank], put.slot_offset, dtype);
    const char* const source = At(request.input, put.offset, dtype);
    LOCKSTEP_RETURN_IF_ERROR(ScalesInput(request)
                                 ? kernels_->Scale(dtype, target, source, put.count, request.factor, *stream)
                                 : stream->Copy(target, source, put.count * SizeOf(dtype)));
  }
  LOCKSTEP_RETURN_IF_ERROR(Meet(stream));
  if (step.fold.has_value()) LOCKSTEP_RETURN_IF_ERROR(Fold(request, step, slots, stream));
  if (step.two_shots) LOCKSTEP_RETURN_IF_ERROR(Meet(stream));
  for (const IpcCopy& get : step.gets) {
    char* const target = At(request.output, get.offset, dtype);
    const char* const source = At(slots[get.rank], get.slot_offset, dtype);
    // A block of the root's, say, that is in place.
    if (get.count == 0 || target == source) continue;
    LOCKSTEP_RETURN_IF_ERROR(stream->Copy(target, source, get.count * SizeOf(dtype)));
  }
  return TellDone(stream);
}

absl::Status IpcSteps::Fold(const CollectiveRequest& request, const IpcStep& step, absl::Span<char* const> slots,
                            Stream* stream) {
  const IpcCopy& fold = *step.fold;
  if (fold.count == 0) return absl::OkStatus();
  std::array<const void*, kIpcRanksMax> sources = {};
  for (int r = 0; r < size_; ++r) sources[r] = At(slots[r], fold.slot_offset, request.dtype);
  char* const target = step.two_shots ? At(slots[rank_], fold.slot_offset, request.dtype)
                                      : At(request.output, fold.offset, request.dtype);
  return FoldOnDevice(request, *kernels_, target, absl::MakeConstSpan(sources.data(), size_), fold.count, *stream);
}

absl::Status IpcSteps::Meet(Stream* stream) {
  const uint32_t step = number_.load(std::memory_order_relaxed) + 1;
  // Before a stream awaits it.
  number_.store(step, std::memory_order_release);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) LOCKSTEP_RETURN_IF_ERROR(stream->WriteValue(page_->ready(peer, rank_), step));
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) LOCKSTEP_RETURN_IF_ERROR(stream->AwaitValue(page_->ready(rank_, peer), step));
  }
  return absl::OkStatus();
}

absl::Status IpcSteps::TellDone(Stream* stream) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) LOCKSTEP_RETURN_IF_ERROR(stream->WriteValue(page_->done(peer, rank_), number_));
  }
  return absl::OkStatus();
}

absl::Status IpcSteps::AwaitDone(uint32_t number, Stream* stream) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) LOCKSTEP_RETURN_IF_ERROR(stream->AwaitValue(page_->done(rank_, peer), number));
  }
  return absl::OkStatus();
}

void IpcSteps::Release() {
  const uint32_t step = number_.load(std::memory_order_acquire);
  for (int peer = 0; peer < size_; ++peer) {
    page_->ready(rank_, peer)->store(step, std::memory_order_release);
    page_->done(rank_, peer)->store(step, std::memory_order_release);
  }
}

}  // namespace lockstep
