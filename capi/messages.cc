#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/tensor_view.h"
#include "base/rank.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "comm/byte_objects.h"
#include "comm/communicator.h"

namespace {

using lockstep::Communicator;
using lockstep::Rank;
using lockstep::TensorView;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;
using lockstep::capi::ReadTimeout;

absl::StatusOr<TensorView> ToBuffer(const lockstep_tensor* tensor) {
  LOCKSTEP_ASSIGN_OR_RETURN(const TensorView view, lockstep::capi::ToTensorView(tensor, "tensor"));
  if (!view.contiguous())
    return absl::InvalidArgumentError(absl::StrCat("tensor ", view.ToString(), " is not contiguous"));
  return view;
}

// What a send and a receive have in common.
template <typename Request>
absl::Status ReadMessage(const lockstep_tensor* tensor, int64_t tag, int64_t timeout_ms, Request* request) {
  LOCKSTEP_ASSIGN_OR_RETURN(request->timeout, ReadTimeout(timeout_ms));
  LOCKSTEP_ASSIGN_OR_RETURN(const TensorView view, ToBuffer(tensor));
  request->tag = tag;
  request->data = view.data();
  request->bytes = view.bytes();
  request->device = view.device();
  return absl::OkStatus();
}

lockstep_message ToMessage(const lockstep::MessageInfo& info) {
  lockstep_message message = {};
  message.tag = info.tag;
  message.bytes = info.bytes;
  message.source = info.source.value();
  return message;
}

// The library's allocation, for lockstep_bytes_free; never null, so that an empty object is one too.
absl::StatusOr<void*> CopyOut(const char* data, size_t bytes) {
  void* const copy = std::malloc(bytes == 0 ? 1 : bytes);
  if (copy == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " B"));
  if (bytes > 0) std::memcpy(copy, data, bytes);
  return copy;
}

absl::Status CheckBytes(const void* data, size_t bytes) {
  return data == nullptr && bytes > 0 ? NullArgument("data") : absl::OkStatus();
}

}  // namespace

lockstep_error* lockstep_send(lockstep_communicator* communicator, const lockstep_tensor* tensor, int32_t target,
                              int64_t tag, int64_t timeout_ms, lockstep_work** out_work) {
  return Guard(communicator, [&]() -> absl::Status {
    Communicator* const ranks = communicator->get();
    lockstep::SendRequest request;
    const absl::Status read = ReadMessage(tensor, tag, timeout_ms, &request);
    if (!read.ok()) return ranks->Refuse(read);
    request.target = Rank(target);
    if (out_work == nullptr) return ranks->Send(request);
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Work work, ranks->StartSend(request));
    *out_work = new lockstep_work(communicator->Share(), std::move(work));
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_receive(lockstep_communicator* communicator, const lockstep_tensor* tensor, int32_t source,
                                 int64_t tag, int64_t timeout_ms, lockstep_message* out_message,
                                 lockstep_work** out_work) {
  return Guard(communicator, [&]() -> absl::Status {
    Communicator* const ranks = communicator->get();
    lockstep::ReceiveRequest request;
    const absl::Status read = ReadMessage(tensor, tag, timeout_ms, &request);
    if (!read.ok()) return ranks->Refuse(read);
    request.source = Rank(source);
    if (out_work != nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Work work, ranks->StartReceive(request));
      *out_work = new lockstep_work(communicator->Share(), std::move(work));
      return absl::OkStatus();
    }
    if (out_message == nullptr) return ranks->Receive(request);
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Work work, ranks->StartReceive(request));
    if (work.collected()) return absl::OkStatus();
    LOCKSTEP_RETURN_IF_ERROR(work.Wait(lockstep::Deadline::Infinite()));
    *out_message = ToMessage(work.message());
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_work_message(const lockstep_work* work, lockstep_message* out_message) {
  return Guard(work, [&]() -> absl::Status {
    if (out_message == nullptr) return NullArgument("out_message");
    if (!work->work.done()) {
      return absl::FailedPreconditionError("the work is not a receive that is done");
    }
    *out_message = ToMessage(work->work.message());
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_broadcast_bytes(lockstep_communicator* communicator, const void* data, size_t bytes,
                                         int32_t root, void** out_data, size_t* out_bytes) {
  return Guard(communicator, [&]() -> absl::Status {
    Communicator* const ranks = communicator->get();
    if (out_data == nullptr) return NullArgument("out_data");
    if (out_bytes == nullptr) return NullArgument("out_bytes");
    std::string object;
    if (ranks->rank() == Rank(root)) {
      LOCKSTEP_RETURN_IF_ERROR(CheckBytes(data, bytes));
      if (bytes > 0) object.assign(static_cast<const char*>(data), bytes);
    }
    LOCKSTEP_RETURN_IF_ERROR(lockstep::CheckOutsideGroup(*ranks));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::BroadcastBytes(ranks, &object, Rank(root)));
    LOCKSTEP_ASSIGN_OR_RETURN(*out_data, CopyOut(object.data(), object.size()));
    *out_bytes = object.size();
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_gather_bytes(lockstep_communicator* communicator, const void* data, size_t bytes, int32_t root,
                                      void** out_data, size_t* out_sizes) {
  return Guard(communicator, [&]() -> absl::Status {
    Communicator* const ranks = communicator->get();
    LOCKSTEP_RETURN_IF_ERROR(CheckBytes(data, bytes));
    const bool everywhere = root == LOCKSTEP_EVERY_RANK;
    const bool here = everywhere || ranks->rank() == Rank(root);
    if (here && out_data == nullptr) return NullArgument("out_data");
    if (here && out_sizes == nullptr) return NullArgument("out_sizes");
    std::string object;
    if (bytes > 0) object.assign(static_cast<const char*>(data), bytes);
    LOCKSTEP_RETURN_IF_ERROR(lockstep::CheckOutsideGroup(*ranks));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::vector<std::string> objects,
        everywhere ? lockstep::AllGatherBytes(ranks, object) : lockstep::GatherBytes(ranks, object, Rank(root)));
    if (!here) return absl::OkStatus();
    std::string all;
    for (const std::string& one : objects) all += one;
    LOCKSTEP_ASSIGN_OR_RETURN(*out_data, CopyOut(all.data(), all.size()));
    for (size_t r = 0; r < objects.size(); ++r) out_sizes[r] = objects[r].size();
    return absl::OkStatus();
  });
}

void lockstep_bytes_free(void* data) { std::free(data); }
