// From "tcp://host:port" to a store that works: serves it here when that is this rank's part, and connects.

#ifndef TRANSPORT_STORE_OPEN_H_
#define TRANSPORT_STORE_OPEN_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "transport/rendezvous.h"
#include "transport/store.h"
#include "transport/store_tcp_server.h"

namespace lockstep {

// A rank's access to its world's store. Keys are as they come: whoever shares the store with others puts a PrefixStore
// before it.
struct OpenedStore {
  // Only where this process serves; goes last, and takes the store away from every rank.
  std::unique_ptr<TcpStoreServer> server;
  std::unique_ptr<Store> store;
};

// tcp: rank 0 serves, unless the launcher does (`store_served`), and every rank connects, waiting for the server until
// the deadline. The server binds the URL's address. For a host name that is every address of the machine (what the name
// means here may differ from what it means elsewhere: 127.0.1.1, a service's address), but for "localhost"; likewise,
// with a warning, for an address that this machine does not have (behind NAT). file: opens or creates it. A world of
// one without a URL: a store in memory.
//
// Errors: ALREADY_EXISTS when rank 0 finds the port taken; NOT_FOUND for an unknown host; DEADLINE_EXCEEDED when no
// server could be reached; all say where the URL came from.
absl::StatusOr<OpenedStore> OpenStore(const WorldSpec& world, Deadline deadline);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_OPEN_H_
