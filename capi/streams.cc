#include "capi/streams.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "capi/tensor.h"

namespace lockstep {
namespace capi {

absl::StatusOr<Stream*> Streams::Find(const lockstep_stream* stream, Device* device) {
  if (stream == nullptr) return nullptr;
  LOCKSTEP_ASSIGN_OR_RETURN(const DeviceId id, ToDevice(stream->device_kind, stream->device_index));
  if (id.kind == DeviceKind::kHost) {
    return absl::UnimplementedError("the host has no streams but those of hooks: pass NULL, which is the host, inline");
  }
  if (device == nullptr || id != device->id()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the stream is one of ", Name(id), ", which the communicator was not made for"));
  }
  MutexLock lock(&mu_);
  std::unique_ptr<Stream>& found = streams_[stream->handle];
  if (found == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(found, device->BorrowStream(stream->handle));
  }
  return found.get();
}

lockstep_stream ToStream(const Stream& stream) {
  const DeviceId id = stream.device();
  lockstep_stream given = {};
  given.handle = id.kind == DeviceKind::kHost ? const_cast<Stream*>(&stream) : stream.native();
  given.device_kind = static_cast<lockstep_device_kind>(id.kind);
  given.device_index = id.index;
  return given;
}

}  // namespace capi
}  // namespace lockstep
