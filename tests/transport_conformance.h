// What every transport promises (transport/transport.h), as a test suite over a factory:
//
//   INSTANTIATE_TEST_SUITE_P(Loopback, TransportConformance,
//                            testing::Values(TransportFactory{"seed1", &CreateLoopback}), TransportFactoryName);
//
// The tests are in transport_messages_conformance.cc and transport_endings_conformance.cc.

#ifndef TESTS_TRANSPORT_CONFORMANCE_H_
#define TESTS_TRANSPORT_CONFORMANCE_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/transport.h"

namespace lockstep {

// Makes the transports of a world of `size` ranks, by rank, able to reach each other. UNAVAILABLE: not on this machine,
// the tests are skipped; any other error fails them.
struct TransportFactory {
  std::string name;
  std::function<absl::StatusOr<Transports>(int size)> create;

  friend std::ostream& operator<<(std::ostream& stream, const TransportFactory& factory) {
    return stream << factory.name;
  }
};

inline std::string TransportFactoryName(const testing::TestParamInfo<TransportFactory>& info) {
  return info.param.name;
}

class TransportConformance : public TransportWorldTest<Transport>,
                             public testing::WithParamInterface<TransportFactory> {
 protected:
  using Code = absl::StatusCode;

  // Not in SetUp, so that a test says how many ranks it wants. False if the test is to end.
  bool Create(int size) { return Take(GetParam().create(size)); }

  // Sends from 0 to 1 and receives there, all on this thread.
  void Exchange(ChannelId channel, const std::vector<unsigned char>& payload) {
    std::vector<unsigned char> target(payload.size());
    EXPECT_THAT(TransportWorldTest::Exchange(0, 1, channel, payload.data(), target.data(), payload.size()), IsOk());
    EXPECT_EQ(target, payload);
  }
};

}  // namespace lockstep

#endif  // TESTS_TRANSPORT_CONFORMANCE_H_
