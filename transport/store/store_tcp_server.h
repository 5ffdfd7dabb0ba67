// The serving side of the TCP store: one dictionary, one thread, any number of ranks.

#ifndef TRANSPORT_STORE_STORE_TCP_SERVER_H_
#define TRANSPORT_STORE_STORE_TCP_SERVER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/thread.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/secure/refusals.h"

namespace lockstep {

// Serves TcpStoreClients of any number of jobs until it is destroyed. Thread-safe.
//
// Its thread ("lockstep-store") owns every connection and the dictionary; waits are entries in a table, not threads.
// A client is served once it has proved that it has the secret. Until then its connection is one of a bounded number, for a bounded
// time, and the first to go where descriptors run out. Who does not prove it, or breaks the protocol, is disconnected, counted and
// told of in the log; other clients do not notice. A client that does not read its answers is not served until it does.
class TcpStoreServer {
 public:
  struct Options {
    // What clients need. By default nothing, and every one of them is served.
    Credentials credentials;
    // Gives the secret to whoever of the same user asks on this machine (secret_handout.h). REQUIRES  credentials with a secret
    bool hands_out_secret = false;
    // Connections above this are closed at once, with a warning.
    size_t clients_max = 16384;
    // Keys and values together; a request that would go beyond answers RESOURCE_EXHAUSTED. A rank's set-up stores less than 1 KiB.
    size_t bytes_max = size_t{16} << 20;
    // From accepting a connection to the end of its handshake.
    std::chrono::milliseconds handshake_timeout{10000};
  };

  // Listens and starts serving. With port 0 the system chooses: see address(). ALREADY_EXISTS when the port is taken, or the name by
  // which the secret is handed out.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Create(const SocketAddress& address, const Options& options);
  // The same on each of these; at least one.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Create(const std::vector<SocketAddress>& addresses,
                                                                const Options& options);

  // Closes all connections and the listener. Clients that wait get UNAVAILABLE at once. Waits for nobody.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  SocketAddress address() const { return addresses_.front(); }

  // OK, or why it has not been able to accept connections for some time; the clients that wait for one are not notified. If it hands out
  // its secret and a process on another host has asked without one: FAILED_PRECONDITION, from then on.
  absl::Status status() const;

  // Whom it has turned away last for having another secret, or another security level, in words with the address; "" if nobody. Anybody
  // who reaches the port can cause it.
  std::string turned_away() const;

  // Who was turned away.
  const Refusals& refusals() const;

 private:
  class Loop;

  TcpStoreServer(std::unique_ptr<Loop> loop, std::vector<SocketAddress> addresses);

  const std::vector<SocketAddress> addresses_;
  const uint64_t fork_generation_;
  // Belongs to the thread, except the request to stop and what the accessors return.
  std::unique_ptr<Loop> loop_;
  Thread thread_;
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_TCP_SERVER_H_
