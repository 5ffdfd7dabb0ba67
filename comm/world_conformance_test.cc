// What every communicator promises, over real TCP connections, shared memory, and both.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/world.h"
#include "gtest/gtest.h"
#include "tests/communicator_calls_conformance.h"
#include "tests/communicator_conformance.h"
#include "tests/worlds.h"
#include "transport/store_memory.h"

namespace lockstep {
namespace {

using Change = std::function<void(int rank, WorldOptions* options)>;

CommunicatorFactory Factory(const std::string& name, const Change& change) {
  return {name, [change](int size) -> absl::StatusOr<TestCommunicators> {
            MemoryStore store;
            auto worlds = std::make_shared<std::vector<std::unique_ptr<World>>>();
            TestCommunicators communicators{worlds, {}};
            for (WorldOrError& world : CreateWorlds(&store, size, change)) {
              if (!world.ok()) return world.status();
              communicators.ranks.push_back((*world)->communicator());
              worlds->push_back(*std::move(world));
            }
            return communicators;
          }};
}

Change Over(const std::string& transport, int64_t chunk_bytes) {
  return [=](int, WorldOptions* options) {
    options->transport = transport;
    options->chunk_bytes = chunk_bytes;
  };
}

// Pairs of ranks share a host, as they say: shared memory and TCP at once.
void OnHostsOfTwo(int rank, WorldOptions* options) { options->host_id = std::to_string(rank / 2); }

INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorConformance,
                         ::testing::Values(Factory("Tcp", Over("tcp", 0)), Factory("TcpSmallChunks", Over("tcp", 4096)),
                                           Factory("Shm", Over("shm", 0)), Factory("ShmSmallChunks", Over("shm", 4096)),
                                           Factory("HostsOfTwo", OnHostsOfTwo)),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep
