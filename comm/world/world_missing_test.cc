// What is said of ranks that do not come to a world whose store rank 0 serves.

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worlds.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Its server keeps out a rank of another level, which rank 0 would otherwise miss without a hint.
TEST(WorldMissing, WhoWasTurnedAwayForAnotherLevelIsNamedByAddressAndLevel) {
  // Free a moment ago.
  const std::string address = LocalAddress(Listen(*SocketAddress::Parse("127.0.0.1:0"))->get())->ToString();
  const std::vector<WorldOrError> worlds = CreateWorlds(nullptr, 2, [&](int rank, WorldOptions* options) {
    options->store_url = absl::StrCat("tcp://", address);
    options->security = rank == 0 ? "authenticate" : "none";
    options->setup_timeout = std::chrono::milliseconds(3000);
  });
  EXPECT_THAT(worlds[1].status(), StatusIs(absl::StatusCode::kPermissionDenied,
                                           HasSubstr("another security level: authenticate or encrypt, not none")));
  EXPECT_THAT(worlds[0].status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 1 of 2 has not joined; the store's server has turned away 127.0.0.1:"),
                             HasSubstr("has another security level: none, not authenticate or encrypt"))));
}

// The second finds the port of its store taken.
TEST(WorldMissing, TwoRankZerosThatServeOneStoreBothFail) {
  const std::string address = LocalAddress(Listen(*SocketAddress::Parse("127.0.0.1:0"))->get())->ToString();
  std::vector<WorldOptions> options(2, TestWorldOptions(nullptr, 0, 2));
  for (WorldOptions& one : options) one.store_url = absl::StrCat("tcp://", address);
  for (const WorldOrError& world : CreateWorlds(options)) {
    EXPECT_THAT(world.status(), StatusIs(absl::StatusCode::kAlreadyExists,
                                         HasSubstr("two processes take part as rank 0: rank 0 (host ")));
  }
}

}  // namespace
}  // namespace lockstep
