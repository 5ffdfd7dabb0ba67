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
#include "base/rank.h"
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

class TransportConformance : public testing::TestWithParam<TransportFactory> {
 protected:
  using Code = absl::StatusCode;

  // Not in SetUp, so that a test says how many ranks it wants. Returns false when the test is to end, skipped or
  // failed.
  bool Create(int size) {
    absl::StatusOr<Transports> created = GetParam().create(size);
    if (created.ok()) {
      ranks_ = *std::move(created);
      return true;
    }
    if (absl::IsUnavailable(created.status())) {
      Skip(created.status());
    } else {
      ADD_FAILURE() << created.status();
    }
    return false;
  }

  Transport* rank(int index) { return ranks_[index].get(); }

  // Sends from 0 to 1 and receives there, all on this thread.
  void Exchange(ChannelId channel, const std::vector<unsigned char>& payload) {
    TestOperation send, receive;
    std::vector<unsigned char> target(payload.size());
    rank(1)->Receive(Rank(0), channel, TestEnvelope(9), CopySink(&target), &receive);
    rank(0)->Send(Rank(1), channel, TestEnvelope(9), payload.data(), payload.size(), &send);
    ASSERT_TRUE(DriveAll(ranks_, [&] { return send.done() && receive.done(); }));
    EXPECT_THAT(send.status, IsOk());
    EXPECT_THAT(receive.status, IsOk());
    EXPECT_EQ(target, payload);
  }

  Transports ranks_;

 private:
  static void Skip(const absl::Status& status) { GTEST_SKIP() << status; }
};

}  // namespace lockstep

#endif  // TESTS_TRANSPORT_CONFORMANCE_H_
