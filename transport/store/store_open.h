// From "tcp://host:port" to a store that works: serves it here when that is this rank's part, and connects.

#ifndef TRANSPORT_STORE_STORE_OPEN_H_
#define TRANSPORT_STORE_STORE_OPEN_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "transport/net/interface.h"
#include "transport/net/socket.h"
#include "transport/store/rendezvous.h"
#include "transport/store/store.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {

// A rank's access to its world's store. Keys are as they come: whoever shares the store with others puts a PrefixStore
// before it.
struct OpenedStore {
  // Only where this process serves; goes last, and takes the store away from every rank.
  std::unique_ptr<TcpStoreServer> server;
  std::unique_ptr<Store> store;
};

// tcp: rank 0 serves, unless the launcher does (`store_served`), and every rank connects, waiting for the server until
// the deadline. The server binds the URL's address, or the addresses of this machine that its host name has. Where that is none by
// which others can come (StoreListenAddresses), it binds all addresses, with a warning. file: opens or creates it. A world of one
// without a URL: a store in memory.
//
// Errors: ALREADY_EXISTS when rank 0 finds the port taken, and by what; NOT_FOUND for an unknown host; DEADLINE_EXCEEDED when no
// server could be reached; all say where the URL came from.
absl::StatusOr<OpenedStore> OpenStore(const WorldSpec& world, Deadline deadline);

// Of the addresses of a host name, those to listen on: the machine's own. None where it has none of them (behind NAT, the address of
// a service, an unknown name), or loopback alone (127.0.1.1 in /etc/hosts) and others may have other hosts, to which the name means
// something else. A function of its arguments.
std::vector<SocketAddress> StoreListenAddresses(const std::vector<SocketAddress>& named,
                                                const std::vector<InterfaceAddress>& machine, bool one_host);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_OPEN_H_
