#include "transport/net/link_speed.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/interface.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

SocketAddress At(absl::string_view host) { return *SocketAddress::Parse(absl::StrCat(host, ":0")); }

InterfaceAddress On(const char* name, absl::string_view host, int prefix_length = 24) {
  InterfaceAddress interface;
  interface.name = name;
  interface.address = At(host);
  interface.up = true;
  interface.prefix_length = prefix_length;
  return interface;
}

const std::vector<InterfaceAddress> kMachine = {On("lo", "127.0.0.1", 8), On("wlan0", "192.168.1.7"),
                                                On("eth0", "10.0.0.7"), On("eth1", "10.1.0.7"),
                                                On("docker0", "172.17.0.1", 16)};

// What wlan0, or `own`, is told for these addresses of the peer.
std::string Faster(const std::vector<SocketAddress>& peer, absl::string_view own = "192.168.1.7",
                   std::map<std::string, LinkSpeed> speeds = {}) {
  const std::map<std::string, LinkSpeed> usual = {{"wlan0", {100, "wireless"}},
                                                  {"eth0", {1000, "1000 Mbit/s"}},
                                                  {"eth1", {10000, "10000 Mbit/s"}},
                                                  {"docker0", {10000, "10000 Mbit/s"}}};
  speeds.insert(usual.begin(), usual.end());
  return FasterInterface(kMachine, At(own), peer, [&](const std::string& name) { return speeds[name]; });
}

TEST(FasterInterface, IsTheFastestThatLeadsToThePeer) {
  EXPECT_EQ(
      Faster({At("192.168.1.5"), At("10.0.0.5")}),
      "wlan0 192.168.1.7 (wireless), while eth0 10.0.0.7 (1000 Mbit/s) leads there too: set LOCKSTEP_INTERFACE=eth0 "
      "on all ranks");
  EXPECT_THAT(Faster({At("10.0.0.5"), At("10.1.0.5")}), ::testing::HasSubstr("while eth1 10.1.0.7 (10000 Mbit/s)"));
}

TEST(FasterInterface, IsNoneWithoutAWayOrWithoutANumber) {
  EXPECT_EQ(Faster({At("192.168.1.5"), At("10.7.0.5"), At("[::1]")}), "");
  // docker0 is another network on each host, though the addresses are equal.
  EXPECT_EQ(Faster({At("192.168.1.5"), At("172.17.0.1")}), "");
  EXPECT_EQ(Faster({At("10.0.0.5")}, "192.168.1.7", {{"wlan0", {}}}), "");
  EXPECT_EQ(Faster({At("10.0.0.5")}, "192.168.1.7", {{"eth0", {}}}), "");
  EXPECT_EQ(Faster({At("10.0.0.5")}, "192.168.1.7", {{"wlan0", {101, "101 Mbit/s"}}}), "");
  EXPECT_EQ(Faster({At("10.0.0.5")}, "127.0.0.1"), "");
  EXPECT_EQ(Faster({At("192.168.1.5")}, "10.1.0.7"), "");
}

TEST(SpeedOfInterface, IsWhatTheDriverReports) {
  char made[] = "/tmp/link_speed_test.XXXXXX";
  const std::string folder = mkdtemp(made);
  const auto file = [&](const std::string& path, const char* text) {
    std::filesystem::create_directories(std::filesystem::path(absl::StrCat(folder, "/", path)).parent_path());
    std::ofstream(absl::StrCat(folder, "/", path)) << text << "\n";
  };
  const auto speed = [&](const char* name) {
    const LinkSpeed found = SpeedOfInterface(name, folder);
    return absl::StrCat(found.mbit_per_s, " ", found.text);
  };
  file("eth0/speed", "25000");
  file("virtual/speed", "-1");
  file("wlan0/type", "1");
  file("wlan0/wireless/link", "");
  file("tun0/type", "65534");
  file("tun0/speed", "10");
  file("wg0/type", "65534");
  EXPECT_EQ(speed("eth0"), "25000 25000 Mbit/s");
  EXPECT_EQ(speed("virtual"), "0 ");
  EXPECT_EQ(speed("wlan0"), "100 wireless");
  EXPECT_EQ(speed("tun0"), "100 a tunnel");
  EXPECT_EQ(speed("wg0"), "100 a tunnel");
  EXPECT_EQ(speed("no-such"), "0 ");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep
