// Worlds of IpcCommunicators without a GPU: ranks are threads, CUDA is base/cuda_api_testing.h with kernels of the
// host, and the host communicators are over TCP. All ranks are on cuda:0, so that one request fits all.

#ifndef COMM_IPC_TESTING_H_
#define COMM_IPC_TESTING_H_

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_api_testing.h"
#include "base/cuda_device.h"
#include "base/device.h"
#include "base/status.h"
#include "comm/ipc_communicator.h"
#include "comm/world.h"
#include "kernels/cpu/fold_kernels.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store_memory.h"

namespace lockstep {

// What the process has instead of CUDA; made when it is first asked for, and never destroyed.
inline FakeCuda& IpcFakeCuda() {
  static auto* const fake = new FakeCuda();
  return *fake;
}

struct IpcWorlds {
  using Change = std::function<void(int rank, IpcOptions* options)>;
  using Made = absl::StatusOr<std::unique_ptr<IpcCommunicator>>;

  std::vector<std::unique_ptr<World>> worlds;
  std::vector<std::unique_ptr<IpcCommunicator>> ranks;  // they go first

  // The ranks' memory is not joined yet.
  static absl::StatusOr<std::shared_ptr<IpcWorlds>> CreateHosts(int size) {
    auto made = std::make_shared<IpcWorlds>();
    MemoryStore store;
    for (WorldOrError& world : CreateWorlds(&store, size)) {
      if (!world.ok()) return world.status();
      made->worlds.push_back(*std::move(world));
    }
    return made;
  }

  // What creating each rank's communicator said, on cuda:0 or on the rank's own.
  std::vector<Made> Connect(const Change& change = nullptr, bool own_devices = false) const {
    IpcFakeCuda();
    std::vector<Made> made;
    for (size_t r = 0; r < worlds.size(); ++r) made.emplace_back(absl::UnknownError("not created"));
    testing::RunRanks(static_cast<int>(worlds.size()), [&](int rank) {
      IpcOptions options;
      options.timeout = std::chrono::milliseconds(60'000);
      options.kernels = kernels::HostFoldKernels();
      if (change) change(rank, &options);
      made[rank] =
          IpcCommunicator::Create(worlds[rank]->communicator(), CudaDevice(own_devices ? rank : 0).value(), options);
    });
    return made;
  }

  static absl::StatusOr<std::shared_ptr<IpcWorlds>> Create(int size, const Change& change = nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<IpcWorlds> world, CreateHosts(size));
    for (Made& made : world->Connect(change)) {
      if (!made.ok()) return made.status();
      world->ranks.push_back(*std::move(made));
    }
    return world;
  }
};

}  // namespace lockstep

#endif  // COMM_IPC_TESTING_H_
