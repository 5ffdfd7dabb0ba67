#include "reducer/buffers/broadcast.h"

#include <cstddef>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/status.h"
#include "comm/work.h"
#include "reducer/plan/agreement.h"

namespace lockstep {
namespace {

constexpr size_t kMessageBytesMax = size_t{250} << 20;

// Above this a tensor goes by itself: a message more costs less than two copies.
constexpr size_t kCoalescedBytesMax = size_t{1} << 20;

absl::Status CheckRoot(const Communicator& communicator, Rank root) {
  if (root.value() >= 0 && root.value() < communicator.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("broadcast: root ", root.value(), " is not a rank of a world of ", communicator.size()));
}

// Messages on their way, one behind the other: while one moves the next is packed.
class Messages {
 public:
  Messages(Communicator* communicator, Rank root) : communicator_(communicator), root_(root) {}

  absl::Status Send(const std::vector<const TensorView*>& tensors) {
    if (in_flight_.size() == kInFlightMax) LOCKSTEP_RETURN_IF_ERROR(FinishOldest());
    Message message;
    if (tensors.size() > 1) {
      message.tensors = tensors;
      message.together = Pack(tensors);
    }
    CollectiveRequest request;
    request.collective = Collective::kBroadcast;
    request.device = tensors[0]->device();
    request.root = root_;
    request.count = tensors.size() > 1 ? message.together.size() : tensors[0]->bytes();
    request.input = tensors.size() > 1 ? message.together.data() : tensors[0]->data();
    request.output = const_cast<void*>(request.input);
    LOCKSTEP_ASSIGN_OR_RETURN(message.work, communicator_->Start(request));
    in_flight_.push_back(std::move(message));
    return absl::OkStatus();
  }

  // Also after an error: what is on its way still uses the messages' memory.
  absl::Status Finish() {
    absl::Status status;
    while (!in_flight_.empty()) status.Update(FinishOldest());
    return status;
  }

 private:
  static constexpr size_t kInFlightMax = 2;

  struct Message {
    std::vector<const TensorView*> tensors;  // that are in `together`
    std::vector<char> together;
    absl::optional<Work> work;
  };

  static std::vector<char> Pack(const std::vector<const TensorView*>& tensors) {
    std::vector<char> together;
    for (const TensorView* tensor : tensors) {
      const char* const begin = static_cast<const char*>(tensor->data());
      together.insert(together.end(), begin, begin + tensor->bytes());
    }
    return together;
  }

  absl::Status FinishOldest() {
    Message message = std::move(in_flight_.front());
    in_flight_.pop_front();
    // By the operation's own deadline.
    LOCKSTEP_RETURN_IF_ERROR(message.work->Wait(Deadline::Infinite()));
    if (communicator_->rank() == root_) return absl::OkStatus();
    size_t at = 0;
    for (const TensorView* tensor : message.tensors) {
      std::memcpy(tensor->data(), message.together.data() + at, tensor->bytes());
      at += tensor->bytes();
    }
    return absl::OkStatus();
  }

  Communicator* const communicator_;
  const Rank root_;
  std::deque<Message> in_flight_;
};

// The tensors of each message: small ones of the host together, in their order.
std::vector<std::vector<const TensorView*>> Cut(absl::Span<const TensorView> tensors) {
  std::vector<std::vector<const TensorView*>> messages;
  std::vector<const TensorView*> together;
  size_t together_bytes = 0;
  for (const TensorView& tensor : tensors) {
    if (tensor.bytes() == 0) continue;
    if (tensor.bytes() > kCoalescedBytesMax || tensor.device().kind != DeviceKind::kHost) {
      messages.push_back({&tensor});
      continue;
    }
    if (together_bytes + tensor.bytes() > kMessageBytesMax) {
      messages.push_back(std::exchange(together, {}));
      together_bytes = 0;
    }
    together.push_back(&tensor);
    together_bytes += tensor.bytes();
  }
  if (!together.empty()) messages.push_back(std::move(together));
  return messages;
}

}  // namespace

absl::Status BroadcastCoalesced(Communicator& communicator, absl::Span<const TensorView> tensors, Rank root) {
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnTensors(communicator, CheckRoot(communicator, root), "broadcast",
                                          absl::StrCat("root of the broadcast: ", root.value()), tensors));
  Messages messages(&communicator, root);
  absl::Status status;
  for (const std::vector<const TensorView*>& message : Cut(tensors)) {
    status = messages.Send(message);
    if (!status.ok()) break;
  }
  status.Update(messages.Finish());
  return status;
}

}  // namespace lockstep
