// A world whose communicator takes tensors on a device, too.

#ifndef COMM_WORLD_WORLD_ON_DEVICE_H_
#define COMM_WORLD_WORLD_ON_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "comm/world/device_backend.h"
#include "comm/world/world.h"

namespace lockstep {

// Collective over the world's communicator; every rank names a device. Errors of FindDevice on the rank that has them and UNAVAILABLE,
// naming it, on the others; then those of MakeDeviceCommunicator.
absl::StatusOr<std::unique_ptr<World>> MakeWorldOnDevice(std::unique_ptr<World> world, DeviceId device,
                                                         const DeviceBackendOptions& options);

}  // namespace lockstep

#endif  // COMM_WORLD_WORLD_ON_DEVICE_H_
