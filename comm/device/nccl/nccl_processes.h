// Ranks that are processes and share one GPU, for tests of NCCL on machines with one GPU.
//
// NCCL refuses two ranks on one GPU of a host. Each process gives itself a host of its own (NCCL_HOSTID), so that
// NCCL connects them by sockets, over loopback. Kernels of several processes take turns on the GPU while they wait
// for each other: slow.

#ifndef COMM_DEVICE_NCCL_NCCL_PROCESSES_H_
#define COMM_DEVICE_NCCL_NCCL_PROCESSES_H_

#include <stdlib.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_device.h"
#include "base/status.h"
#include "comm/device/nccl/nccl_communicator.h"
#include "comm/world/world.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"
#include "transport/nccl/nccl_library.h"

namespace lockstep {

// Why this machine cannot run such tests; empty if it can.
inline std::string WhyNoNccl() {
  if (const absl::Status device = CudaDevice(0).status(); !device.ok()) return device.ToString();
  return Nccl().ok() ? "" : Nccl().status().ToString();
}

// For `size` ranks of that function, which meet at the store.
inline ProcessGroup::Options NcclProcessOptions(int size, const std::string& store_address) {
  ProcessGroup::Options options;
  options.size = size;
  options.arguments = {store_address};
  options.environment = {{"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"}, {"NCCL_DEBUG", "WARN"}};
  return options;
}

// In a rank, before it loads NCCL.
inline void BeOnAHostOfItsOwn(const RankProcess& self) {
  setenv("NCCL_HOSTID", absl::StrCat("test-host-", self.rank()).c_str(), /*overwrite=*/1);
}

inline NcclCommunicatorOptions NcclProcessCommunicatorOptions() {
  NcclCommunicatorOptions options;
  options.nccl.ctas_max = 2;  // the GPU is everybody's
  options.timeout = std::chrono::seconds(60);
  options.setup_timeout = std::chrono::seconds(60);
  return options;
}

// One rank's world and communicator. The communicator is destroyed first.
struct NcclWorld {
  std::unique_ptr<World> world;
  std::unique_ptr<NcclCommunicator> communicator;

  static absl::StatusOr<NcclWorld> Create(const WorldOptions& options) {
    NcclWorld made;
    LOCKSTEP_ASSIGN_OR_RETURN(made.world, World::Create(options));
    LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
    LOCKSTEP_ASSIGN_OR_RETURN(made.communicator, NcclCommunicator::Create(made.world->communicator(), device,
                                                                          NcclProcessCommunicatorOptions()));
    return made;
  }
};

}  // namespace lockstep

#endif  // COMM_DEVICE_NCCL_NCCL_PROCESSES_H_
