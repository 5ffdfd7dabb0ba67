// What every communicator promises, over real TCP connections.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/world.h"
#include "gtest/gtest.h"
#include "tests/communicator_conformance.h"
#include "tests/worlds.h"
#include "transport/store_memory.h"

namespace lockstep {
namespace {

CommunicatorFactory Factory(const std::string& name, int64_t chunk_bytes) {
  return {name, [chunk_bytes](int size) -> absl::StatusOr<TestCommunicators> {
            MemoryStore store;
            auto worlds = std::make_shared<std::vector<std::unique_ptr<World>>>();
            TestCommunicators communicators{worlds, {}};
            for (WorldOrError& world :
                 CreateWorlds(&store, size, [&](int, WorldOptions* options) { options->chunk_bytes = chunk_bytes; })) {
              if (!world.ok()) return world.status();
              communicators.ranks.push_back((*world)->communicator());
              worlds->push_back(*std::move(world));
            }
            return communicators;
          }};
}

INSTANTIATE_TEST_SUITE_P(Tcp, CommunicatorConformance,
                         ::testing::Values(Factory("DefaultChunks", 0), Factory("SmallChunks", 4096)),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep
