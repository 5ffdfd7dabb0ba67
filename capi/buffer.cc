#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fork.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"

using lockstep::capi::CheckNotForked;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;

namespace {

using Allocate = absl::StatusOr<std::unique_ptr<lockstep::SymmetricBuffer>> (lockstep::Communicator::*)(size_t bytes);

lockstep_error* Create(lockstep_communicator* communicator, size_t bytes, Allocate allocate,
                       lockstep_buffer** out_buffer) {
  return Guard([&]() -> absl::Status {
    if (communicator == nullptr) return NullArgument("communicator");
    if (out_buffer == nullptr) return NullArgument("out_buffer");
    LOCKSTEP_RETURN_IF_ERROR(CheckNotForked(communicator->fork_generation, "communicator"));
    auto handle = std::make_unique<lockstep_buffer>();
    LOCKSTEP_ASSIGN_OR_RETURN(handle->buffer, (communicator->get()->*allocate)(bytes));
    *out_buffer = handle.release();
    return absl::OkStatus();
  });
}

}  // namespace

lockstep_error* lockstep_buffer_create(lockstep_communicator* communicator, size_t bytes,
                                       lockstep_buffer** out_buffer) {
  return Create(communicator, bytes, &lockstep::Communicator::Allocate, out_buffer);
}

lockstep_error* lockstep_buffer_create_on_device(lockstep_communicator* communicator, size_t bytes,
                                                 lockstep_buffer** out_buffer) {
  return Create(communicator, bytes, &lockstep::Communicator::AllocateOnDevice, out_buffer);
}

void lockstep_buffer_destroy(lockstep_buffer* buffer) { lockstep::capi::Destroy(buffer); }

void* lockstep_buffer_data(const lockstep_buffer* buffer) {
  if (buffer == nullptr || buffer->fork_generation != lockstep::ForkGeneration()) return nullptr;
  return buffer->buffer->data();
}

size_t lockstep_buffer_bytes(const lockstep_buffer* buffer) { return buffer == nullptr ? 0 : buffer->buffer->bytes(); }

int32_t lockstep_buffer_is_shared(const lockstep_buffer* buffer) {
  return buffer != nullptr && buffer->buffer->shared() ? 1 : 0;
}
