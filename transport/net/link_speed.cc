#include "transport/net/link_speed.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

// What Wi-Fi and tunnels count as: ten of them are Gigabit Ethernet.
constexpr int kSlowMbit = 100;
constexpr int kMuchFaster = 10;

// Values of /sys/class/net/NAME/type: ARPHRD_PPP, _TUNNEL, _TUNNEL6, _SIT, _IPGRE, _IP6GRE, _NONE (tun, WireGuard).
constexpr int kTunnels[] = {512, 768, 769, 776, 778, 823, 65534};

}  // namespace

LinkSpeed SpeedOfInterface(const std::string& name, const std::string& folder) {
  const std::string entry = absl::StrCat(folder, "/", name, "/");
  int type = 0, mbit = 0;
  std::ifstream(entry + "type") >> type;
  // Reading fails if the interface is down or has no speed; "-1" is unknown as well.
  if (!(std::ifstream(entry + "speed") >> mbit)) mbit = 0;
  if (std::find(std::begin(kTunnels), std::end(kTunnels), type) != std::end(kTunnels)) return {kSlowMbit, "a tunnel"};
  if (mbit > 0) return {mbit, absl::StrCat(mbit, " Mbit/s")};
  struct stat wireless = {};
  if (stat((entry + "wireless").c_str(), &wireless) == 0) return {kSlowMbit, "wireless"};
  return {};
}

std::string FasterInterface(const std::vector<InterfaceAddress>& machine, const SocketAddress& own,
                            const std::vector<SocketAddress>& peer,
                            const std::function<LinkSpeed(const std::string& interface)>& speed) {
  const auto has = [&](const SocketAddress& address) {
    return std::find_if(machine.begin(), machine.end(),
                        [&](const auto& entry) { return entry.address.WithPort(0) == address.WithPort(0); });
  };
  const auto used = has(own);
  if (used == machine.end() || used->address.loopback()) return "";
  const LinkSpeed used_speed = speed(used->name);
  if (used_speed.mbit_per_s == 0) return "";
  const InterfaceAddress* best = nullptr;
  LinkSpeed best_speed;
  for (const InterfaceAddress& other : machine) {
    if (!other.up || other.name == used->name || other.address.loopback()) continue;
    const bool leads_there = std::any_of(peer.begin(), peer.end(), [&](const SocketAddress& address) {
      return SameNetwork(other, address) && has(address) == machine.end();
    });
    if (!leads_there) continue;
    const LinkSpeed other_speed = speed(other.name);
    if (other_speed.mbit_per_s < kMuchFaster * used_speed.mbit_per_s) continue;
    if (best == nullptr || other_speed.mbit_per_s > best_speed.mbit_per_s) {
      best = &other;
      best_speed = other_speed;
    }
  }
  if (best == nullptr) return "";
  return absl::StrCat(used->name, " ", used->address.HostString(), " (", used_speed.text, "), while ", best->name, " ",
                      best->address.HostString(), " (", best_speed.text,
                      ") leads there too: set LOCKSTEP_INTERFACE=", best->name, " on all ranks");
}

}  // namespace lockstep
