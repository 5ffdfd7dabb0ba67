// Whether the link that a rank uses is much slower than another one to the same peer, by what the kernel reports of the two interfaces.
//
// Nothing is measured. Drivers of Ethernet and InfiniBand report the speed that was negotiated. Drivers of Wi-Fi and of tunnels
// report none, or a constant; both kinds are recognised by their entries in /sys/class/net and count as slow. The speed of a virtual
// machine's interface is often unknown. It is then not compared.

#ifndef TRANSPORT_NET_LINK_SPEED_H_
#define TRANSPORT_NET_LINK_SPEED_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "transport/net/interface.h"
#include "transport/net/socket.h"

namespace lockstep {

struct LinkSpeed {
  int mbit_per_s = 0;  // 0: unknown
  std::string text;    // "1000 Mbit/s", "wireless", "a tunnel"; empty if the speed is unknown
};

// `folder` stands for /sys/class/net.
LinkSpeed SpeedOfInterface(const std::string& name, const std::string& folder = "/sys/class/net");

// Looks for an interface of this machine that is ten times as fast as the one that has the address `own`, and that is in one network with
// one of the peer's addresses. An address that this machine has too does not lead to the peer: each host has its own docker0.
// RETURNS  "wlan0 192.168.1.7 (wireless), while eth0 10.0.0.7 (10000 Mbit/s) leads there too: set LOCKSTEP_INTERFACE=eth0 on all ranks";
//          "" if no interface is
std::string FasterInterface(const std::vector<InterfaceAddress>& machine, const SocketAddress& own,
                            const std::vector<SocketAddress>& peer,
                            const std::function<LinkSpeed(const std::string& interface)>& speed);

}  // namespace lockstep

#endif  // TRANSPORT_NET_LINK_SPEED_H_
