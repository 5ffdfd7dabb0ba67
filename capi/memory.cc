#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/fork.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"

using lockstep::capi::Guard;
using lockstep::capi::NullArgument;

lockstep_error* lockstep_memory_create(lockstep_communicator* communicator, size_t bytes,
                                       lockstep_device_kind device_kind, lockstep_memory** out_memory) {
  return Guard(communicator, [&]() -> absl::Status {
    if (out_memory == nullptr) return NullArgument("out_memory");
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::DeviceId device, lockstep::capi::ToDevice(device_kind, 0));
    lockstep::Communicator* const ranks = communicator->get();
    auto handle = std::make_unique<lockstep_memory>();
    LOCKSTEP_ASSIGN_OR_RETURN(handle->buffer, device.kind == lockstep::DeviceKind::kHost
                                                  ? ranks->Allocate(bytes)
                                                  : ranks->AllocateOnDevice(bytes));
    *out_memory = handle.release();
    return absl::OkStatus();
  });
}

void lockstep_memory_destroy(lockstep_memory* memory) { lockstep::capi::Destroy(memory); }

void* lockstep_memory_data(const lockstep_memory* memory) {
  if (memory == nullptr || memory->fork_generation != lockstep::ForkGeneration()) return nullptr;
  return memory->buffer->data();
}

size_t lockstep_memory_bytes(const lockstep_memory* memory) { return memory == nullptr ? 0 : memory->buffer->bytes(); }

int32_t lockstep_memory_is_shared(const lockstep_memory* memory) {
  return memory != nullptr && memory->buffer->shared() ? 1 : 0;
}
