// What every communicator promises, over real TCP connections, shared memory, and both; or over the transport that is named
// on the command line.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/status.h"
#include "comm/symmetric_buffer.h"
#include "comm/world/world.h"
#include "gtest/gtest.h"
#include "tests/communicator_conformance.h"
#include "tests/communicator_testing.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using Change = std::function<void(int rank, WorldOptions* options)>;

// Of each rank's symmetric memory: enough for the longest vectors, in and out.
constexpr size_t kSymmetricBytes = size_t{8} << 20;

struct Worlds {
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<std::unique_ptr<SymmetricBuffer>> symmetric;
};

enum class Memory { kOfEachRank, kShared, kSymmetric };

CommunicatorFactory Factory(const std::string& name, const Change& change, Memory memory = Memory::kOfEachRank) {
  const auto create = [=](int size) -> absl::StatusOr<TestCommunicators> {
    MemoryStore store;
    auto made = std::make_shared<Worlds>();
    TestCommunicators communicators{made, {}};
    for (WorldOrError& world : CreateWorlds(&store, size, change)) {
      if (!world.ok()) return world.status();
      communicators.ranks.push_back((*world)->communicator());
      made->worlds.push_back(*std::move(world));
    }
    if (memory != Memory::kSymmetric) return communicators;
    made->symmetric.resize(size);
    std::vector<absl::Status> allocated(size);
    testing::RunRanks(size, [&](int rank) {
      absl::StatusOr<std::unique_ptr<SymmetricBuffer>> buffer = communicators.ranks[rank]->Allocate(kSymmetricBytes);
      allocated[rank] = buffer.status();
      if (buffer.ok()) made->symmetric[rank] = *std::move(buffer);
    });
    for (const absl::Status& status : allocated) LOCKSTEP_RETURN_IF_ERROR(status);
    for (const auto& buffer : made->symmetric) communicators.symmetric.emplace_back(buffer->data(), buffer->bytes());
    return communicators;
  };
  CommunicatorFactory factory{name, create};
  factory.shares_memory = memory != Memory::kOfEachRank;
  factory.announces_failures = true;
  return factory;
}

Change Over(const std::string& transport, int64_t chunk_bytes) {
  return [=](int, WorldOptions* options) {
    options->transport = transport;
    options->chunk_bytes = chunk_bytes;
  };
}

// Pairs of ranks share a host, as they say: shared memory and TCP at once.
void OnHostsOfTwo(int rank, WorldOptions* options) { options->host_id = std::to_string(rank / 2); }

std::vector<CommunicatorFactory> Factories() {
  if (const std::string chosen = GetEnv("LOCKSTEP_TRANSPORT").value_or(""); !chosen.empty()) {
    // Of libfabric's providers the first one is enough for what a chunk's size changes.
    if (GetEnv("LOCKSTEP_OFI_PROVIDER").has_value()) return {Factory("Chosen", Over(chosen, 0))};
    return {Factory("Chosen", Over(chosen, 0)), Factory("ChosenSmallChunks", Over(chosen, 4096))};
  }
  return {Factory("Tcp", Over("tcp", 0)),
          Factory("TcpSmallChunks", Over("tcp", 4096)),
          Factory("Shm", Over("shm", 0), Memory::kShared),
          Factory("ShmSmallChunks", Over("shm", 4096), Memory::kShared),
          Factory("ShmSymmetric", Over("shm", 0), Memory::kSymmetric),
          Factory("HostsOfTwo", OnHostsOfTwo)};
}

INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorConformance, ::testing::ValuesIn(Factories()), CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep
