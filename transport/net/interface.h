// Which local address to bind and to tell the peers.

#ifndef TRANSPORT_NET_INTERFACE_H_
#define TRANSPORT_NET_INTERFACE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/net/socket.h"

namespace lockstep {

struct InterfaceAddress {
  std::string name;  // "eth0"
  SocketAddress address;
  bool up = false;
  int prefix_length = 0;  // of the network that it is in; 0: unknown
};

// Whether `address` is in the network that the interface has by this address.
bool SameNetwork(const InterfaceAddress& interface, const SocketAddress& address);

// The machine's addresses, as getifaddrs tells them.
absl::StatusOr<std::vector<InterfaceAddress>> ListInterfaceAddresses();

struct InterfaceChoice {
  InterfaceAddress chosen;
  std::vector<std::string> rejected;  // "docker0 172.17.0.1: not in 10.0.0.0/8", one line each
};

// Where the ranks of a world are, as far as one of them knows before it has met the others.
enum class WorldHosts { kOne, kSeveral, kUnknown };

// Chooses by `selection` (the option `interface`, or LOCKSTEP_INTERFACE): a comma-separated list of
//   eth            names that begin with this      =eth0        exactly this name
//   ^docker        not names that begin with this  ^=docker0    not exactly this name
//   10.0.0.0/8     addresses inside (v4 or v6)     ^10.0.0.0/8  not these
// Positive entries are alternatives, in order of preference. Without any: any interface that is up, link-local last. Then
// loopback is chosen only in a world on one host, and where the hosts are not known if nothing else is there. Pure: a
// function of its arguments.
// ERRORS  NOT_FOUND         lists every candidate and why it was rejected
//         INVALID_ARGUMENT  an entry cannot be parsed
absl::StatusOr<InterfaceChoice> ChooseInterface(const std::vector<InterfaceAddress>& candidates,
                                                absl::string_view selection, WorldHosts hosts);

}  // namespace lockstep

#endif  // TRANSPORT_NET_INTERFACE_H_
