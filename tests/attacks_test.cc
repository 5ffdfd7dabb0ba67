#include "tests/attacks.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/secret.h"
#include "transport/shm/handshake.h"
#include "transport/store/store_wire.h"
#include "transport/tcp/handshake.h"

namespace lockstep {
namespace {

using Side = Channel::Side;

struct Ends {
  Ends(Purpose purpose, const Credentials& credentials)
      : connects(purpose, Side::kConnects, credentials), listens(purpose, Side::kListens, credentials) {}

  // The listener takes what has come. What it has to say is added to `heard`.
  absl::Status Take(const std::string& bytes) { return listens.Receive(bytes, &plain, &heard); }

  Channel connects, listens;
  std::string plain;
  std::string heard;
};

// By this all attacks, and the fuzzed listeners, are judged.
TEST(AttacksTest, TheLongestAnswerToAnUnauthenticatedPeerIsShorterThanTheShortestToAPeer) {
  // Of the control channel's answers the shortest, a welcome, is longer.
  const size_t shortest_answer =
      std::min({kAnswerBytes, EncodeStoreReply({}).size(), EncodeAnswer(absl::OkStatus()).size()});
  for (const SecurityLevel level : {SecurityLevel::kAuthenticate, SecurityLevel::kEncrypt}) {
    for (const Purpose purpose : {Purpose::kStore, Purpose::kControl, Purpose::kData, Purpose::kLocal}) {
      SCOPED_TRACE(Name(purpose));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto secret, Secret::Draw());
      const Credentials credentials = {level, secret, "the test"};
      Ends admitted(purpose, credentials);
      const std::string first_flight = admitted.connects.Start();
      ASSERT_THAT(admitted.Take(first_flight), IsOk());
      std::string last_flight;
      ASSERT_THAT(admitted.connects.Receive(admitted.heard, &admitted.plain, &last_flight), IsOk());
      ASSERT_THAT(admitted.Take(last_flight), IsOk());
      ASSERT_TRUE(admitted.listens.ready());
      const size_t flight = admitted.heard.size();
      admitted.listens.Send(std::string(shortest_answer, '\0'), &admitted.heard);
      EXPECT_GT(admitted.heard.size(), kAnswerBytesMax);

      Ends replayed(purpose, credentials);
      ASSERT_THAT(replayed.Take(first_flight), IsOk());
      EXPECT_THAT(replayed.Take(last_flight), StatusIs(absl::StatusCode::kPermissionDenied));
      EXPECT_GT(replayed.heard.size(), flight) << "there was no alert";
      EXPECT_LE(replayed.heard.size(), kAnswerBytesMax);
      EXPECT_FALSE(replayed.listens.ready());
    }
  }
}

}  // namespace
}  // namespace lockstep
