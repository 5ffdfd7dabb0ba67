// Which way a device's tensors travel between ranks: chosen by all ranks alike, from what there is.

#ifndef COMM_WORLD_DEVICE_BACKEND_H_
#define COMM_WORLD_DEVICE_BACKEND_H_

#include <chrono>
#include <cstddef>
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

namespace lockstep {

struct DeviceBackendOptions {
  // "auto": the first of DeviceBackends() that all ranks can use. Or the name of one. Equal on all ranks.
  std::string backend = "auto";
  std::chrono::milliseconds timeout{1800000};       // of a call on the device that names none
  std::chrono::milliseconds setup_timeout{120000};  // of what NCCL does to connect ranks, and parts of them
  bool deterministic = false;                       // as the host communicator is
  bool checked = false;  // whether buffers are where calls say, too: DeviceCommunicator::CheckPointers
  size_t flight_records = 256;
  size_t chunk_bytes = size_t{1} << 20;  // of what is staged
  // Of "nccl", as NcclCommOptions has them.
  int nccl_ctas_min = 0;
  int nccl_ctas_max = 0;
  bool nccl_split_share = false;
};

struct DeviceBackend {
  std::string name;
  // Collective over `host`, which is borrowed; an error on one rank is one on every rank. UNAVAILABLE,
  // FAILED_PRECONDITION or UNIMPLEMENTED on all: not for these ranks, and the host communicator is still good.
  // `reason`: why what goes before it in the table cannot be used, for Describe; may be empty.
  std::function<absl::StatusOr<std::unique_ptr<DeviceCommunicator>>(
      Communicator* host, Device* device, const DeviceBackendOptions& options, const std::string& reason)>
      create;
};

// The best first.
const std::vector<DeviceBackend>& DeviceBackends();

// Collective over `host`. A communicator for the device, as all ranks can have it; on an error none has one.
// FAILED_PRECONDITION, naming the ranks, when they asked for different back ends or have different kinds of devices;
// INVALID_ARGUMENT for a name that there is not, and for the host, which needs no such thing; else what the back end
// that was asked for says, or, of the ranks that have nothing to say, UNAVAILABLE, naming one that has.
absl::StatusOr<std::unique_ptr<DeviceCommunicator>> MakeDeviceCommunicator(HostPart host, Device* device,
                                                                           const DeviceBackendOptions& options);

namespace internal {

// The same by another table.
absl::StatusOr<std::unique_ptr<DeviceCommunicator>> MakeDeviceCommunicator(HostPart host, Device* device,
                                                                           const DeviceBackendOptions& options,
                                                                           absl::Span<const DeviceBackend> backends);

}  // namespace internal
}  // namespace lockstep

#endif  // COMM_WORLD_DEVICE_BACKEND_H_
