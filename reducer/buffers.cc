#include "reducer/buffers.h"

#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "reducer/agreement.h"

namespace lockstep {
namespace {

constexpr size_t kAlignmentBytes = 256;

constexpr char kNothingToGive = 1;

}  // namespace

void FreshBuffers::Free::operator()(char* memory) const {
  ::operator delete(memory, std::align_val_t(kAlignmentBytes));
}

BufferSet::BufferSet(Communicator* communicator, absl::Span<const TensorView> buffers)
    : communicator_(communicator), like_(buffers.begin(), buffers.end()) {
  for (const TensorView& buffer : like_) {
    offsets_.push_back(mark_offset_);
    mark_offset_ += (buffer.bytes() + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  }
}

absl::StatusOr<std::unique_ptr<BufferSet>> BufferSet::Create(Communicator* communicator, const absl::Status& local,
                                                             absl::Span<const TensorView> buffers) {
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnTensors(*communicator, local, "buffers", "", buffers));
  return std::unique_ptr<BufferSet>(new BufferSet(communicator, buffers));
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
  fresh.memory_.reset(static_cast<char*>(::operator new(mark_offset_ + 1, std::align_val_t(kAlignmentBytes))));
  for (size_t i = 0; i < like_.size(); ++i) {
    char* const data = fresh.memory_.get() + offsets_[i];
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, TensorView::Create(data, like_[i].dtype(), like_[i].shape(),
                                                                  like_[i].strides(), like_[i].device()));
    fresh.views_.push_back(std::move(view));
  }
  return fresh;
}

absl::StatusOr<FreshBuffers> BufferSet::Broadcast(const absl::Status& local, absl::Span<const TensorView> buffers,
                                                  Rank root, std::chrono::milliseconds timeout) {
  if (root.value() < 0 || root.value() >= communicator_->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffers: root ", root.value(), " is not a rank of a world of ", communicator_->size()));
  }
  absl::Status mine = local;
  mine.Update(CheckBuffers(buffers));
  LOCKSTEP_ASSIGN_OR_RETURN(FreshBuffers fresh, Allocate());
  char* const block = fresh.memory_.get();
  if (communicator_->rank() == root) {
    // What is not a buffer's goes over the wire too: as zeros.
    size_t end = 0;
    for (size_t i = 0; mine.ok() && i < buffers.size(); ++i) {
      std::memset(block + end, 0, offsets_[i] - end);
      if (buffers[i].bytes() > 0) std::memcpy(block + offsets_[i], buffers[i].data(), buffers[i].bytes());
      end = offsets_[i] + buffers[i].bytes();
    }
    std::memset(block + end, 0, mark_offset_ - end);
    block[mark_offset_] = mine.ok() ? 0 : kNothingToGive;
  }
  CollectiveRequest request;
  request.collective = Collective::kBroadcast;
  request.root = root;
  request.count = mark_offset_ + 1;
  request.input = block;
  request.output = block;
  request.timeout = timeout;
  LOCKSTEP_RETURN_IF_ERROR(communicator_->Run(request));
  LOCKSTEP_RETURN_IF_ERROR(mine);
  if (block[mark_offset_] == kNothingToGive) {
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
    if (buffers[i].bytes() > 0) std::memcpy(buffers[i].data(), fresh.views()[i].data(), buffers[i].bytes());
  }
  return absl::OkStatus();
}

}  // namespace lockstep
