#include "transport/net/port_range.h"

#include <stdlib.h>
#include <sys/socket.h>

#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/fork.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr char kVariable[] = "LOCKSTEP_PORTS";

TEST(PortRange, IsAFirstAndALastPort) {
  EXPECT_EQ(ParsePortRange("40000-40099")->ToString(), "40000-40099");
  EXPECT_EQ(ParsePortRange("7-7")->ToString(), "7-7");
  EXPECT_EQ(ParsePortRange("1-65535")->ToString(), "1-65535");
  for (const char* const wrong :
       {"", "-", "40000", "40000-", "-40000", "0-7", "8-7", "1-65536", "1-2-3", "a-b", "1 -2"}) {
    EXPECT_THAT(ParsePortRange(wrong), StatusIs(Code::kInvalidArgument, HasSubstr("as in 40000-40099"))) << wrong;
  }
}

TEST(PortRange, IsUsedUpByListenersAndThenSaysHowManyPortsARankNeeds) {
  const SocketAddress any = *SocketAddress::Parse("127.0.0.1:0");
  const uint16_t first = LocalAddress(ListenAnywhere(any)->get())->port();
  const PortRange range = {first, static_cast<uint16_t>(first > 65000 ? 65535 : first + 5)};
  setenv(kVariable, range.ToString().c_str(), 1);
  std::vector<UniqueFd> listeners;
  std::set<uint16_t> ports;
  absl::Status status;
  while (status.ok() && listeners.size() < 600) {
    absl::StatusOr<UniqueFd> listener = Listen(any);
    status = listener.status();
    if (!listener.ok()) break;
    ports.insert(LocalAddress(listener->get())->port());
    listeners.push_back(*std::move(listener));
  }
  // A port that is named, and a listener for this process alone, are where they are asked for.
  EXPECT_THAT(ListenAnywhere(any), IsOk());
  unsetenv(kVariable);
  EXPECT_EQ(ports.size(), listeners.size());
  ASSERT_FALSE(ports.empty());
  EXPECT_GE(*ports.begin(), range.first);
  EXPECT_LE(*ports.rbegin(), range.last);
  EXPECT_THAT(status, StatusIs(Code::kResourceExhausted,
                               AllOf(HasSubstr(absl::StrCat("listen on 127.0.0.1: no port of LOCKSTEP_PORTS=",
                                                            range.ToString(), " is free")),
                                     HasSubstr("1 port for each rank of the host"))));
}

// Bound and not listening, as lockstep-run holds it for PyTorch's store.
TEST(PortRange, MasterPortIsTakenByNoListener) {
  const int on = 1;
  const UniqueFd held(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = *SocketAddress::Parse("127.0.0.1:0");
  ASSERT_EQ(bind(held.get(), any.get(), any.length()), 0);
  ASSERT_EQ(setsockopt(held.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  const uint16_t port = LocalAddress(held.get())->port();
  setenv(kVariable, PortRange{port, port}.ToString().c_str(), 1);
  setenv("MASTER_PORT", absl::StrCat(port).c_str(), 1);
  EXPECT_THAT(Listen(any), StatusIs(Code::kResourceExhausted));
  unsetenv("MASTER_PORT");
  unsetenv(kVariable);
}

}  // namespace
}  // namespace lockstep
