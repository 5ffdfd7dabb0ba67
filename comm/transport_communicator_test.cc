#include "comm/transport_communicator.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/communicator_calls_conformance.h"
#include "tests/communicator_conformance.h"
#include "tests/ranks.h"
#include "transport/loopback.h"

namespace lockstep {
namespace {

using ::lockstep::testing::LoopbackWorld;

CommunicatorFactory Factory(const std::string& name, const LoopbackOptions& network,
                            const TransportCommunicatorOptions& options) {
  return {name, [network, options](int size) -> absl::StatusOr<TestCommunicators> {
            if (size < 2) return absl::UnavailableError("a transport needs two ranks");
            auto world = std::make_shared<LoopbackWorld>(size, network, options);
            TestCommunicators communicators{world, {}};
            for (int rank = 0; rank < size; ++rank) communicators.ranks.push_back(world->communicator(rank));
            return communicators;
          }};
}

CommunicatorFactory Seed(uint64_t seed) {
  LoopbackOptions network;
  network.seed = seed;
  return Factory("Seed" + std::to_string(seed), network, {});
}

// Every header and element is cut, whatever can be late is, and a vector has many chunks.
CommunicatorFactory Crumbs() {
  LoopbackOptions network;
  network.seed = 4;
  network.buffer_bytes = 8 << 10;
  network.piece_bytes_max = 4093;
  network.delay_max = 6;
  TransportCommunicatorOptions options;
  options.chunk_bytes = 4096;
  return Factory("Crumbs", network, options);
}

CommunicatorFactory Checked() {
  TransportCommunicatorOptions options;
  options.checked = true;
  CommunicatorFactory factory = Factory("Checked", {}, options);
  factory.checked = true;
  return factory;
}

INSTANTIATE_TEST_SUITE_P(Loopback, CommunicatorConformance, ::testing::Values(Seed(1), Seed(2), Crumbs(), Checked()),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep
