// Opens the store of a URL: serves it, if this rank has to, and connects.

#ifndef TRANSPORT_STORE_STORE_OPEN_H_
#define TRANSPORT_STORE_STORE_OPEN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "transport/net/interface.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/store/rendezvous.h"
#include "transport/store/store.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {

// A rank's access to its world's store. Keys get no prefix: jobs that share a store use different keys.
struct OpenedStore {
  // Only if this process serves. Destroyed last; the store then ends for every rank.
  std::unique_ptr<TcpStoreServer> server;
  std::unique_ptr<Store> store;
};

// Opens the world's store.
//   tcp   rank 0 serves, unless the launcher does (`store_served`); every rank connects and waits for the server until the
//         deadline. The server binds the URL's address, or those addresses of this machine that its host name has. If others can
//         reach none of them (StoreListenAddresses), it binds all addresses, with a warning
//   file  opens or creates the file
//   none  a store in memory, for a world of one
//
// `credentials` are the job's. Where the level is not none and the user has given no secret, they are filled in over tcp: rank 0 draws one,
// which its server hands out to the processes of this user on this machine (secret_handout.h), and the other ranks ask for it there.
// Over a file they stay without.
// ERRORS  ALREADY_EXISTS       rank 0 finds the port taken; says by what
//         NOT_FOUND            the host is unknown
//         DEADLINE_EXCEEDED    no server could be reached
//         FAILED_PRECONDITION  there is no secret, and none can be handed out, since the ranks are on several hosts
//         PERMISSION_DENIED    who answers has another secret or level, or is another user's process
//         All say where the URL came from
absl::StatusOr<OpenedStore> OpenStore(const WorldSpec& world, Credentials* credentials, Deadline deadline);

// The same where the launcher's exchange brings the ranks together: rank 0 serves at `address`, at a port of the system's choice, and
// tells the others, who wait for it, the URL; and, where the level is not none and the user has given no secret, one that it has drawn. An
// `address` that is an error is told in its place. Fills in the world's store_url and the credentials.
// ERRORS  those of OpenExchange and TellAll, which say what to set instead; those of OpenStore
absl::StatusOr<OpenedStore> OpenStoreByExchange(WorldSpec* world, Credentials* credentials,
                                                const absl::StatusOr<SocketAddress>& address, Deadline deadline);

// What rank 0 has told: "tcp://10.0.0.1:4000", and behind a blank the secret, if it has drawn one. Sets the world's store_url and
// store_source, and the credentials' secret and source where the level asks for a secret and there is none. Pure.
// ERRORS  INVALID_ARGUMENT  what stands behind the blank is no secret; the error does not show it
absl::Status TakeExchangedText(const std::string& text, WorldSpec* world, Credentials* credentials);

// The addresses of a host name to listen on: those that this machine has. None if it has none of them (behind NAT, the address
// of a service, an unknown name), or only loopback (127.0.1.1 in /etc/hosts) while other ranks may be on other hosts, where the
// name means something else. Pure.
std::vector<SocketAddress> StoreListenAddresses(const std::vector<SocketAddress>& named,
                                                const std::vector<InterfaceAddress>& machine, bool one_host);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_OPEN_H_
