#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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
#include "comm/mesh.h"
#include "comm/symmetric_buffer.h"
#include "comm/world/world.h"

namespace {

using lockstep::capi::CheckNotForked;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;

std::string OrEmpty(const char* text) { return text == nullptr ? "" : text; }

lockstep_error* CopyOut(const lockstep_communicator* communicator, char** out_text,
                        std::string (lockstep::Communicator::*text)() const) {
  return Guard(communicator, [&]() -> absl::Status {
    if (out_text == nullptr) return NullArgument("out_text");
    *out_text = lockstep::capi::CopyString((communicator->get()->*text)());
    return absl::OkStatus();
  });
}

std::unique_ptr<lockstep_communicator> PartOf(const lockstep_communicator& whole,
                                              std::unique_ptr<lockstep::Communicator> part) {
  auto handle = std::make_unique<lockstep_communicator>();
  handle->open = whole.open;
  handle->world = whole.world;
  // A part goes before its world.
  handle->ranks = std::shared_ptr<lockstep::Communicator>(
      part.release(), [world = whole.world](lockstep::Communicator* ranks) { delete ranks; });
  return handle;
}

std::unique_ptr<lockstep_communicator> AllOf(std::shared_ptr<lockstep::World> world) {
  auto handle = std::make_unique<lockstep_communicator>();
  handle->world = std::move(world);
  handle->ranks = std::shared_ptr<lockstep::Communicator>(
      handle->world->communicator(), [world = handle->world](lockstep::Communicator*) { world->CloseCommunicator(); });
  // Unless nothing shares it, and it is destroyed now.
  handle->open = std::shared_ptr<void>(handle->world.get(), [world = handle->world](void*) {
    if (world.use_count() > 1) world->Close();
  });
  return handle;
}

}  // namespace

lockstep_error* lockstep_communicator_create(const lockstep_communicator_options* options,
                                             lockstep_communicator** out_communicator) {
  return Guard([&]() -> absl::Status {
    if (out_communicator == nullptr) return NullArgument("out_communicator");
    lockstep_communicator_options given = {};
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(options, "lockstep_communicator_options", &given));
    if (given.store != nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(CheckNotForked(given.store->fork_generation, "store"));
    }
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckFlag(given.deterministic, "deterministic"));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckFlag(given.checked, "checked"));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckFlag(given.tcp_zero_copy, "tcp_zero_copy"));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckFlag(given.nccl_split_share, "nccl_split_share"));
    lockstep::WorldOptions world;
    world.size = given.world_size;
    world.rank = given.rank;
    world.local_size = given.local_world_size;
    world.local_rank = given.local_rank;
    world.store_url = OrEmpty(given.store_url);
    world.store = given.store == nullptr ? nullptr : given.store->store.get();
    world.job_id = OrEmpty(given.job_id);
    world.interface = OrEmpty(given.network_interface);
    world.setup_timeout = std::chrono::milliseconds(given.setup_timeout_ms);
    world.timeout = std::chrono::milliseconds(given.timeout_ms);
    world.peer_timeout = std::chrono::milliseconds(given.peer_timeout_ms);
    world.algorithm = OrEmpty(given.algorithm);
    world.chunk_bytes = given.chunk_bytes;
    world.checked = given.checked != 0;
    world.deterministic = given.deterministic != 0;
    world.transport = OrEmpty(given.transport);
    world.host_id = OrEmpty(given.host_id);
    world.tcp_congestion_control = OrEmpty(given.tcp_congestion_control);
    world.tcp_sockets = given.tcp_sockets;
    world.tcp_send_buffer_bytes = given.tcp_send_buffer_bytes;
    world.tcp_receive_buffer_bytes = given.tcp_receive_buffer_bytes;
    world.ofi_provider = OrEmpty(given.ofi_provider);
    world.security = OrEmpty(given.security);
    world.secret_file = OrEmpty(given.secret_file);
    world.tcp_zero_copy = given.tcp_zero_copy != 0;
    LOCKSTEP_ASSIGN_OR_RETURN(world.device, lockstep::capi::ToDevice(given.device_kind, given.device_index));
    world.device_backend = OrEmpty(given.device_backend);
    world.nccl_ctas_min = given.nccl_ctas_min;
    world.nccl_ctas_max = given.nccl_ctas_max;
    world.nccl_split_share = given.nccl_split_share != 0;
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<lockstep::World> created, lockstep::World::Create(world));
    *out_communicator = AllOf(std::move(created)).release();
    return absl::OkStatus();
  });
}

void lockstep_communicator_destroy(lockstep_communicator* communicator) {
  // A hook's is its reducer's.
  if (communicator != nullptr && communicator->borrowed == nullptr) lockstep::capi::Destroy(communicator);
}

lockstep_error* lockstep_communicator_split(lockstep_communicator* communicator, int32_t color, int32_t key,
                                            lockstep_communicator** out_communicator) {
  return Guard(communicator, [&]() -> absl::Status {
    if (out_communicator == nullptr) return NullArgument("out_communicator");
    LOCKSTEP_RETURN_IF_ERROR(lockstep::CheckOutsideGroup(*communicator->get()));
    LOCKSTEP_ASSIGN_OR_RETURN(auto part, communicator->get()->Split(color, key));
    *out_communicator = part == nullptr ? nullptr : PartOf(*communicator, std::move(part)).release();
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_communicator_duplicate(lockstep_communicator* communicator,
                                                lockstep_communicator** out_communicator) {
  return lockstep_communicator_split(communicator, 0, lockstep_communicator_rank(communicator), out_communicator);
}

lockstep_error* lockstep_communicator_mesh(lockstep_communicator* communicator, const char* const* names,
                                           const int32_t* sizes, size_t dimensions,
                                           lockstep_communicator** out_communicators) {
  return Guard(communicator, [&]() -> absl::Status {
    if (names == nullptr) return NullArgument("names");
    if (sizes == nullptr) return NullArgument("sizes");
    if (out_communicators == nullptr) return NullArgument("out_communicators");
    std::vector<lockstep::MeshDimension> grid;
    for (size_t i = 0; i < dimensions; ++i) {
      if (names[i] == nullptr) return NullArgument("names[i]");
      grid.push_back({names[i], sizes[i]});
    }
    LOCKSTEP_RETURN_IF_ERROR(lockstep::CheckOutsideGroup(*communicator->get()));
    LOCKSTEP_ASSIGN_OR_RETURN(auto lines, lockstep::SplitIntoMesh(communicator->get(), grid));
    for (size_t i = 0; i < dimensions; ++i) out_communicators[i] = PartOf(*communicator, std::move(lines[i])).release();
    return absl::OkStatus();
  });
}

int32_t lockstep_communicator_rank(const lockstep_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->get()->rank().value();
}

int32_t lockstep_communicator_size(const lockstep_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->get()->size();
}

lockstep_error* lockstep_communicator_status(const lockstep_communicator* communicator) {
  return Guard(communicator, [&] { return communicator->get()->status(); });
}

lockstep_error* lockstep_communicator_abort(lockstep_communicator* communicator, const char* reason) {
  return Guard(communicator, [&]() -> absl::Status {
    communicator->get()->Abort(reason == nullptr ? "no reason given" : reason);
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_communicator_set_timeout(lockstep_communicator* communicator, int64_t timeout_ms) {
  return Guard(communicator, [&]() -> absl::Status {
    if (timeout_ms <= 0)
      return absl::InvalidArgumentError(absl::StrCat("timeout_ms is ", timeout_ms, "; pass at least 1"));
    communicator->get()->SetTimeout(std::chrono::milliseconds(timeout_ms));
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_communicator_flight_records(const lockstep_communicator* communicator, char** out_text) {
  return CopyOut(communicator, out_text, &lockstep::Communicator::FlightRecords);
}

lockstep_error* lockstep_communicator_nccl(const lockstep_communicator* communicator, void** out_comm) {
  return Guard(communicator, [&]() -> absl::Status {
    if (out_comm == nullptr) return NullArgument("out_comm");
    LOCKSTEP_ASSIGN_OR_RETURN(*out_comm, communicator->get()->NcclHandle());
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_communicator_describe(const lockstep_communicator* communicator, char** out_text) {
  return CopyOut(communicator, out_text, &lockstep::Communicator::Describe);
}

lockstep_error* lockstep_memory_create(lockstep_communicator* communicator, size_t bytes,
                                       lockstep_device_kind device_kind, lockstep_memory** out_memory) {
  return Guard(communicator, [&]() -> absl::Status {
    if (out_memory == nullptr) return NullArgument("out_memory");
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::DeviceId device, lockstep::capi::ToDevice(device_kind, 0));
    lockstep::Communicator* const ranks = communicator->get();
    LOCKSTEP_RETURN_IF_ERROR(lockstep::CheckOutsideGroup(*ranks));
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
