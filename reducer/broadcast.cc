#include "reducer/broadcast.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "reducer/agreement.h"

namespace lockstep {
namespace {

constexpr size_t kMessageBytesMax = size_t{250} << 20;

// Above this a tensor goes by itself: a message more costs less than two copies.
constexpr size_t kCoalescedBytesMax = size_t{1} << 20;

absl::Status BroadcastBytes(Communicator& communicator, void* data, size_t bytes, Rank root) {
  CollectiveRequest request;
  request.collective = Collective::kBroadcast;
  request.root = root;
  request.count = bytes;
  request.input = data;
  request.output = data;
  return communicator.Run(request);
}

absl::Status CheckRoot(const Communicator& communicator, Rank root) {
  if (root.value() >= 0 && root.value() < communicator.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("broadcast: root ", root.value(), " is not a rank of a world of ", communicator.size()));
}

}  // namespace

absl::Status BroadcastCoalesced(Communicator& communicator, absl::Span<const TensorView> tensors, Rank root) {
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnTensors(communicator, CheckRoot(communicator, root), "broadcast",
                                          absl::StrCat("broadcast from root ", root.value()), tensors));
  std::vector<char> together;
  std::vector<const TensorView*> waiting;
  size_t waiting_bytes = 0;
  const auto flush = [&]() -> absl::Status {
    together.resize(waiting_bytes);
    size_t at = 0;
    for (const TensorView* tensor : waiting) {
      std::memcpy(together.data() + at, tensor->data(), tensor->bytes());
      at += tensor->bytes();
    }
    LOCKSTEP_RETURN_IF_ERROR(BroadcastBytes(communicator, together.data(), together.size(), root));
    at = 0;
    for (const TensorView* tensor : waiting) {
      if (communicator.rank() != root) std::memcpy(tensor->data(), together.data() + at, tensor->bytes());
      at += tensor->bytes();
    }
    waiting.clear();
    waiting_bytes = 0;
    return absl::OkStatus();
  };
  for (const TensorView& tensor : tensors) {
    if (tensor.bytes() == 0) continue;
    if (tensor.bytes() > kCoalescedBytesMax) {
      LOCKSTEP_RETURN_IF_ERROR(BroadcastBytes(communicator, tensor.data(), tensor.bytes(), root));
      continue;
    }
    if (waiting_bytes + tensor.bytes() > kMessageBytesMax) LOCKSTEP_RETURN_IF_ERROR(flush());
    waiting.push_back(&tensor);
    waiting_bytes += tensor.bytes();
  }
  return waiting.empty() ? absl::OkStatus() : flush();
}

}  // namespace lockstep
