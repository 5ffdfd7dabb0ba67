#include "transport/net/interface.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

InterfaceAddress Make(const char* name, absl::string_view host, bool up = true) {
  InterfaceAddress address;
  address.name = name;
  address.address =
      *SocketAddress::Parse(absl::StrCat(absl::StrContains(host, ":") ? absl::StrCat("[", host, "]") : host, ":0"));
  address.up = up;
  return address;
}

std::vector<InterfaceAddress> Machine() {
  return {Make("lo", "127.0.0.1"),    Make("docker0", "172.17.0.1"),
          Make("eth0", "10.1.0.2"),   Make("eth1", "10.2.0.2"),
          Make("ib0", "192.168.7.2"), Make("eth2", "10.3.0.2", false),
          Make("lo", "::1"),          Make("eth0", "2001:db8::2"),
          Make("eth1", "fe80::2"),    Make("eth10", "169.254.3.4"),
          Make("ib0", "fd00:7::2")};
}

// "eth0 10.1.0.2", or the error.
std::string Chosen(absl::string_view selection, WorldHosts hosts = WorldHosts::kSeveral,
                   const std::vector<InterfaceAddress>& machine = Machine()) {
  const auto choice = ChooseInterface(machine, selection, hosts);
  if (!choice.ok()) return choice.status().ToString();
  return absl::StrCat(choice->chosen.name, " ", choice->chosen.address.HostString());
}

TEST(ChooseInterface, WithoutASelectionTheFirstOrdinaryIpv4AddressWins) {
  EXPECT_EQ(Chosen(""), "docker0 172.17.0.1");
  EXPECT_EQ(Chosen("  "), "docker0 172.17.0.1");
}

TEST(ChooseInterface, NamesMatchByPrefixOrExactly) {
  EXPECT_EQ(Chosen("eth"), "eth0 10.1.0.2");
  EXPECT_EQ(Chosen("eth1"), "eth1 10.2.0.2");  // eth10 fits too, but is link-local
  EXPECT_EQ(Chosen("=eth10"), "eth10 169.254.3.4");
  EXPECT_EQ(Chosen("=ib0"), "ib0 192.168.7.2");
}

TEST(ChooseInterface, PositiveEntriesAreAlternativesInOrder) {
  EXPECT_EQ(Chosen("wlan,ib,eth"), "ib0 192.168.7.2");
  EXPECT_EQ(Chosen(" eth1 , ib "), "eth1 10.2.0.2");
}

TEST(ChooseInterface, NegativeEntriesOnlyTakeAway) {
  EXPECT_EQ(Chosen("^docker"), "eth0 10.1.0.2");
  EXPECT_EQ(Chosen("^docker,^=eth0"), "eth1 10.2.0.2");
  EXPECT_EQ(Chosen("^172.16.0.0/12"), "eth0 10.1.0.2");
  EXPECT_EQ(Chosen("eth,^10.1.0.0/16"), "eth1 10.2.0.2");
}

TEST(ChooseInterface, SubnetsOfBothFamilies) {
  EXPECT_EQ(Chosen("10.2.0.0/16"), "eth1 10.2.0.2");
  EXPECT_EQ(Chosen("10.2.0.2/32"), "eth1 10.2.0.2");
  EXPECT_EQ(Chosen("192.168.0.0/21"), "ib0 192.168.7.2");
  EXPECT_EQ(Chosen("2001:db8::/32"), "eth0 2001:db8::2");
  EXPECT_EQ(Chosen("fd00:7::2/128"), "ib0 fd00:7::2");
  EXPECT_EQ(Chosen("0.0.0.0/0"), "docker0 172.17.0.1");
  EXPECT_EQ(Chosen("::/0"), "eth0 2001:db8::2");
  EXPECT_THAT(Chosen("192.168.0.0/22"), HasSubstr("NOT_FOUND"));  // 7 is just outside
  EXPECT_THAT(Chosen("10.2.0.3/32"), HasSubstr("NOT_FOUND"));
}

TEST(ChooseInterface, LoopbackOnlyWhenNamedOrTheLastResort) {
  EXPECT_EQ(Chosen("=lo"), "lo 127.0.0.1");
  EXPECT_EQ(Chosen("127.0.0.0/8"), "lo 127.0.0.1");
  EXPECT_EQ(Chosen("", WorldHosts::kUnknown), "docker0 172.17.0.1");
  const std::vector<InterfaceAddress> alone = {Make("lo", "::1"), Make("lo", "127.0.0.1")};
  EXPECT_EQ(Chosen("", WorldHosts::kUnknown, alone), "lo 127.0.0.1");
  EXPECT_THAT(Chosen("", WorldHosts::kSeveral, alone),
              AllOf(HasSubstr("NOT_FOUND"), HasSubstr("lo 127.0.0.1: loopback")));
  EXPECT_THAT(Chosen("^eth", WorldHosts::kSeveral, alone), HasSubstr("NOT_FOUND"));
}

TEST(ChooseInterface, LinkLocalComesAfterOrdinaryAndBeforeLoopback) {
  EXPECT_EQ(
      Chosen("", WorldHosts::kUnknown, {Make("lo", "127.0.0.1"), Make("a", "169.254.1.1"), Make("b", "2001:db8::1")}),
      "b 2001:db8::1");
  EXPECT_EQ(Chosen("", WorldHosts::kUnknown, {Make("lo", "127.0.0.1"), Make("a", "fe80::1")}), "a fe80::1");
}

TEST(ChooseInterface, InterfacesThatAreDownAreNeverChosen) {
  EXPECT_THAT(Chosen("=eth2"), AllOf(HasSubstr("NOT_FOUND"), HasSubstr("eth2 10.3.0.2: is down")));
}

TEST(ChooseInterface, EveryRejectionHasItsReason) {
  const std::vector<InterfaceAddress> machine = {Make("lo", "127.0.0.1"), Make("docker0", "172.17.0.1"),
                                                 Make("eth0", "10.1.0.2"), Make("eth1", "10.2.0.2", false),
                                                 Make("ib0", "10.9.0.2")};
  const auto choice = ChooseInterface(machine, "=ib0,10.0.0.0/8,^docker", WorldHosts::kSeveral);
  ASSERT_THAT(choice, IsOk());
  EXPECT_EQ(choice->chosen.name, "ib0");
  EXPECT_THAT(choice->rejected,
              ElementsAre("lo 127.0.0.1: is not ib0, not in 10.0.0.0/8", "docker0 172.17.0.1: excluded by ^docker",
                          "eth0 10.1.0.2: usable, but ib0 10.9.0.2 is preferred", "eth1 10.2.0.2: is down"));
}

TEST(ChooseInterface, NotFoundListsEveryCandidate) {
  EXPECT_THAT(ChooseInterface({Make("eth0", "10.1.0.2"), Make("lo", "127.0.0.1")}, "wlan", WorldHosts::kSeveral),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("'wlan'"), HasSubstr("eth0 10.1.0.2: does not begin with wlan"),
                             HasSubstr("lo 127.0.0.1: does not begin with wlan"))));
  EXPECT_THAT(ChooseInterface({}, "", WorldHosts::kUnknown),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("this machine has none")));
}

// As it is for a moment when a network comes up, or its cable is out.
TEST(ChooseInterface, AWorldOverSeveralHostsNeverChoosesLoopback) {
  const std::vector<InterfaceAddress> down = {Make("lo", "127.0.0.1"), Make("eth0", "10.1.0.2", false)};
  EXPECT_THAT(Chosen("", WorldHosts::kSeveral, down),
              AllOf(HasSubstr("NOT_FOUND: the ranks are on several hosts"), HasSubstr("lo 127.0.0.1: loopback"),
                    HasSubstr("eth0 10.1.0.2: is down")));
  EXPECT_EQ(Chosen("", WorldHosts::kUnknown, down), "lo 127.0.0.1");
  EXPECT_EQ(Chosen("", WorldHosts::kOne, down), "lo 127.0.0.1");
  // Whoever names it has a reason.
  EXPECT_EQ(Chosen("=lo", WorldHosts::kSeveral, down), "lo 127.0.0.1");
  EXPECT_EQ(Chosen("", WorldHosts::kOne), "lo 127.0.0.1");
  EXPECT_EQ(Chosen("eth", WorldHosts::kOne), "eth0 10.1.0.2");
}

TEST(ChooseInterface, EntriesThatCannotBeParsedAreInvalid) {
  const struct {
    const char* selection;
    const char* message;
  } cases[] = {
      {",", "empty entry"},
      {"eth0,", "empty entry"},
      {"^", "empty entry"},
      {"=", "no interface name after '='"},
      {"^=", "no interface name after '='"},
      {"10.0.0.0/33", "from 0 to 32"},
      {"10.0.0.0/", "from 0 to 32"},
      {"10.0.0.0/-1", "from 0 to 32"},
      {"::/129", "from 0 to 128"},
      {"10.0.0/8", "no numeric IPv4 or IPv6 address"},
      {"host/8", "no numeric IPv4 or IPv6 address"},
      {"/8", "no numeric IPv4 or IPv6 address"},
      {"10.0.0.7", "as in 10.0.0.7/32"},
      {"fe80::1", "as in fe80::1/128"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ChooseInterface(Machine(), c.selection, WorldHosts::kUnknown),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(c.message), HasSubstr(absl::StrCat("selection '", c.selection, "'")))))
        << c.selection;
  }
}

TEST(ListInterfaceAddresses, FindsLoopbackOfThisMachine) {
  const auto addresses = ListInterfaceAddresses();
  ASSERT_THAT(addresses, IsOk());
  const auto loopback = std::find_if(addresses->begin(), addresses->end(), [](const InterfaceAddress& address) {
    return address.address.HostString() == "127.0.0.1";
  });
  ASSERT_NE(loopback, addresses->end());
  EXPECT_TRUE(loopback->up);
  EXPECT_EQ(loopback->address.port(), 0);
}

}  // namespace
}  // namespace lockstep
