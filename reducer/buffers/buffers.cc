#include "reducer/buffers/buffers.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/host_device.h"
#include "base/status.h"
#include "reducer/plan/agreement.h"

namespace lockstep {
namespace {

constexpr size_t kAlignmentBytes = 256;

constexpr char kZeros[kAlignmentBytes] = {};
constexpr char kNothingToGive = 1;

absl::Status CheckOneDevice(absl::Span<const TensorView> buffers) {
  for (size_t i = 1; i < buffers.size(); ++i) {
    if (buffers[i].device() == buffers[0].device()) continue;
    return absl::InvalidArgumentError(absl::StrCat("buffers: tensor ", i, " ", buffers[i].ToString(),
                                                   " is not where tensor 0 is, on ", Name(buffers[0].device())));
  }
  return absl::OkStatus();
}

}  // namespace

BufferSet::BufferSet(Communicator* communicator, absl::Span<const TensorView> buffers)
    : communicator_(communicator), like_(buffers.begin(), buffers.end()), device_(HostDevice()) {
  for (const TensorView& buffer : like_) {
    offsets_.push_back(mark_offset_);
    mark_offset_ += (buffer.bytes() + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  }
}

absl::StatusOr<std::unique_ptr<BufferSet>> BufferSet::Create(Communicator* communicator, const absl::Status& local,
                                                             absl::Span<const TensorView> buffers,
                                                             const std::string& settings) {
  std::unique_ptr<BufferSet> set(new BufferSet(communicator, buffers));
  absl::Status mine = local;
  mine.Update(CheckOneDevice(buffers));
  if (mine.ok()) mine = set->Open();
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnTensors(*communicator, mine, "buffers", settings, buffers));
  return set;
}

absl::Status BufferSet::Open() {
  // A device that is not the communicator's is refused with the tensors.
  if (like_.empty() || like_[0].device().kind == DeviceKind::kHost) return absl::OkStatus();
  if (like_[0].device() != communicator_->device()) return absl::OkStatus();
  device_ = communicator_->accelerator();
  LOCKSTEP_ASSIGN_OR_RETURN(copies_, device_->CreateStream("lockstep-buf"));
  return absl::OkStatus();
}

absl::Status BufferSet::Copy(void* target, const void* source, size_t bytes) const {
  if (bytes == 0) return absl::OkStatus();
  if (copies_ != nullptr) return copies_->Copy(target, source, bytes);
  std::memcpy(target, source, bytes);
  return absl::OkStatus();
}

absl::Status BufferSet::AwaitCopies() const {
  return copies_ == nullptr ? absl::OkStatus() : copies_->Synchronize(Deadline::Infinite());
}

absl::Status BufferSet::CheckBuffers(absl::Span<const TensorView> buffers) const {
  if (buffers.size() != like_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffers: there are ", buffers.size(), ", and ", like_.size(), " were agreed on"));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    const TensorView& buffer = buffers[i];
    if (buffer.dtype() != like_[i].dtype() || buffer.device() != like_[i].device() || !SameLayout(buffer, like_[i])) {
      return absl::InvalidArgumentError(absl::StrCat("buffers: tensor ", i, " is ", buffer.ToString(), ", and ",
                                                     like_[i].ToString(), " was agreed on"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<FreshBuffers> BufferSet::Allocate() const {
  FreshBuffers fresh;
  LOCKSTEP_ASSIGN_OR_RETURN(fresh.memory_, DeviceMemory::Allocate(device_, mark_offset_ + 1));
  for (size_t i = 0; i < like_.size(); ++i) {
    char* const data = fresh.memory_.data() + offsets_[i];
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, TensorView::Create(data, like_[i].dtype(), like_[i].shape(),
                                                                  like_[i].strides(), like_[i].device()));
    fresh.views_.push_back(std::move(view));
  }
  return fresh;
}

absl::Status BufferSet::Fill(char* block, absl::Span<const TensorView> buffers) const {
  for (size_t i = 0; i < buffers.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(Copy(block + offsets_[i], buffers[i].data(), buffers[i].bytes()));
    // What is not a buffer's goes over the wire too: as zeros.
    const size_t end = offsets_[i] + buffers[i].bytes();
    const size_t next = i + 1 < offsets_.size() ? offsets_[i + 1] : mark_offset_;
    LOCKSTEP_RETURN_IF_ERROR(Copy(block + end, kZeros, next - end));
  }
  LOCKSTEP_RETURN_IF_ERROR(Copy(block + mark_offset_, kZeros, 1));
  return AwaitCopies();
}

absl::Status BufferSet::FillWithNothing(char* block) const {
  for (size_t at = 0; at < mark_offset_; at += kAlignmentBytes) {
    LOCKSTEP_RETURN_IF_ERROR(Copy(block + at, kZeros, kAlignmentBytes));
  }
  LOCKSTEP_RETURN_IF_ERROR(Copy(block + mark_offset_, &kNothingToGive, 1));
  return AwaitCopies();
}

absl::StatusOr<FreshBuffers> BufferSet::Broadcast(const absl::Status& local, absl::Span<const TensorView> buffers,
                                                  Rank root, std::chrono::milliseconds timeout) {
  if (root.value() < 0 || root.value() >= communicator_->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffers: root ", root.value(), " is not a rank of a world of ", communicator_->size()));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckOutsideGroup(*communicator_));
  absl::Status mine = local;
  mine.Update(CheckBuffers(buffers));
  LOCKSTEP_ASSIGN_OR_RETURN(FreshBuffers fresh, Allocate());
  char* const block = fresh.memory_.data();
  if (communicator_->rank() == root) {
    if (mine.ok()) mine = Fill(block, buffers);
    if (!mine.ok()) mine.Update(FillWithNothing(block));
  }
  CollectiveRequest request;
  request.collective = Collective::kBroadcast;
  request.device = device_->id();
  request.root = root;
  request.count = mark_offset_ + 1;
  request.input = block;
  request.output = block;
  request.timeout = timeout;
  LOCKSTEP_RETURN_IF_ERROR(communicator_->Run(request));
  LOCKSTEP_RETURN_IF_ERROR(mine);
  char mark = 0;
  LOCKSTEP_RETURN_IF_ERROR(Copy(&mark, block + mark_offset_, 1));
  LOCKSTEP_RETURN_IF_ERROR(AwaitCopies());
  if (mark == kNothingToGive) {
    return absl::FailedPreconditionError(
        absl::StrCat("buffers: rank ", root.value(), ", the root, does not have those that were agreed on"));
  }
  return fresh;
}

absl::Status BufferSet::BroadcastInPlace(const absl::Status& local, absl::Span<const TensorView> buffers, Rank root,
                                         std::chrono::milliseconds timeout) {
  LOCKSTEP_ASSIGN_OR_RETURN(const FreshBuffers fresh, Broadcast(local, buffers, root, timeout));
  if (communicator_->rank() == root) return absl::OkStatus();
  for (size_t i = 0; i < buffers.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(Copy(buffers[i].data(), fresh.views()[i].data(), buffers[i].bytes()));
  }
  return AwaitCopies();
}

}  // namespace lockstep
