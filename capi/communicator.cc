#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "comm/communicator.h"
#include "comm/world.h"

namespace {

using lockstep::capi::CheckNotForked;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;

absl::Status CheckUsable(const lockstep_communicator* communicator) {
  if (communicator == nullptr) return NullArgument("communicator");
  return CheckNotForked(communicator->fork_generation, "communicator");
}

std::string OrEmpty(const char* text) { return text == nullptr ? "" : text; }

lockstep_error* CopyOut(const lockstep_communicator* communicator, char** out_text,
                        std::string (lockstep::Communicator::*text)() const) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(communicator));
    if (out_text == nullptr) return NullArgument("out_text");
    *out_text = lockstep::capi::CopyString((communicator->world->communicator()->*text)());
    return absl::OkStatus();
  });
}

}  // namespace

void lockstep_communicator_options_init(lockstep_communicator_options* options) {
  if (options == nullptr) return;
  *options = lockstep_communicator_options{};
  options->struct_size = sizeof(*options);
}

lockstep_error* lockstep_communicator_create(const lockstep_communicator_options* options,
                                             lockstep_communicator** out_communicator) {
  return Guard([&]() -> absl::Status {
    if (out_communicator == nullptr) return NullArgument("out_communicator");
    lockstep_communicator_options given = {};
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(options, "lockstep_communicator_options", &given));
    if (given.store != nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(CheckNotForked(given.store->fork_generation, "store"));
    }
    lockstep::WorldOptions world;
    world.size = given.world_size;
    world.rank = given.rank;
    world.local_size = given.local_world_size;
    world.local_rank = given.local_rank;
    world.store_url = OrEmpty(given.store_url);
    world.store = given.store == nullptr ? nullptr : given.store->store.get();
    world.job_id = OrEmpty(given.job_id);
    world.interface = OrEmpty(given.interface);
    world.setup_timeout = std::chrono::milliseconds(given.setup_timeout_ms);
    world.timeout = std::chrono::milliseconds(given.timeout_ms);
    world.peer_timeout = std::chrono::milliseconds(given.peer_timeout_ms);
    world.algorithm = OrEmpty(given.algorithm);
    world.chunk_bytes = given.chunk_bytes;
    world.checked = given.checked != 0;
    auto handle = std::make_unique<lockstep_communicator>();
    LOCKSTEP_ASSIGN_OR_RETURN(handle->world, lockstep::World::Create(world));
    *out_communicator = handle.release();
    return absl::OkStatus();
  });
}

void lockstep_communicator_destroy(lockstep_communicator* communicator) { lockstep::capi::Destroy(communicator); }

int32_t lockstep_communicator_rank(const lockstep_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->world->communicator()->rank().value();
}

int32_t lockstep_communicator_size(const lockstep_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->world->communicator()->size();
}

lockstep_error* lockstep_communicator_status(const lockstep_communicator* communicator) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(communicator));
    return communicator->world->communicator()->status();
  });
}

lockstep_error* lockstep_communicator_abort(lockstep_communicator* communicator, const char* reason) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(communicator));
    communicator->world->communicator()->Abort(reason == nullptr ? "no reason given" : reason);
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_communicator_flight_records(const lockstep_communicator* communicator, char** out_text) {
  return CopyOut(communicator, out_text, &lockstep::Communicator::FlightRecords);
}

lockstep_error* lockstep_communicator_describe(const lockstep_communicator* communicator, char** out_text) {
  return CopyOut(communicator, out_text, &lockstep::Communicator::Describe);
}
