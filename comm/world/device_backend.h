// How a device's tensors travel between ranks. All ranks choose the same back end among those that they can use.

#ifndef COMM_WORLD_DEVICE_BACKEND_H_
#define COMM_WORLD_DEVICE_BACKEND_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "comm/communicator.h"
#include "comm/device/device_communicator.h"
#include "comm/device/nccl/nccl_communicator.h"
#include "comm/device/staged/staged_communicator.h"

namespace lockstep {

struct DeviceBackendOptions {
  // "auto": the first of DeviceBackends() that all ranks can use. Or the name of one. Equal on all ranks.
  std::string backend = "auto";
  // Why what goes over NCCL is not protected as this world asks, if it may not go then.
  absl::Status nccl_is_protected;
  // What rank 0 says at level info where NCCL is chosen; may be empty.
  std::string nccl_notice;
  bool check_pointers = false;  // see DeviceCommunicator::CheckPointers
  NcclCommunicatorOptions nccl;
  StagedOptions staged;  // without the reason
};

struct DeviceBackend {
  std::string name;
  // Makes the communicator. Collective over `host`, which is borrowed. `reason`: why the back ends before it in the table cannot be
  // used, for Describe; may be empty.
  // ERRORS  on all ranks when one has one. UNAVAILABLE, FAILED_PRECONDITION or UNIMPLEMENTED on all: these ranks cannot use it, and
  //         the host communicator is still good.
  std::function<absl::StatusOr<std::unique_ptr<DeviceCommunicator>>(
      Communicator* host, Device* device, const DeviceBackendOptions& options, const std::string& reason)>
      create;
};

// The best first.
const std::vector<DeviceBackend>& DeviceBackends();

// Makes a communicator for the device, of the same kind on all ranks. Collective over `host`, which is borrowed and outlives it.
// ERRORS  on all ranks when one has one:
//         FAILED_PRECONDITION  they ask for different back ends, or have different kinds of devices; the message names the ranks
//         INVALID_ARGUMENT     an unknown name, or a device of the host, which needs no such communicator
//         the back end's       a back end was named, and it refuses or fails
//         UNAVAILABLE          every back end refuses, or another rank, which the message names, has an error of its own
absl::StatusOr<std::unique_ptr<DeviceCommunicator>> MakeDeviceCommunicator(Communicator* host, Device* device,
                                                                           const DeviceBackendOptions& options);

namespace internal {

// The same with another table.
absl::StatusOr<std::unique_ptr<DeviceCommunicator>> MakeDeviceCommunicator(Communicator* host, Device* device,
                                                                           const DeviceBackendOptions& options,
                                                                           absl::Span<const DeviceBackend> backends);

}  // namespace internal
}  // namespace lockstep

#endif  // COMM_WORLD_DEVICE_BACKEND_H_
