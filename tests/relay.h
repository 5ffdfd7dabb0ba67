// A relay between two processes, controlled by an attacker: passes on what they say to each other, and does one thing wrong.

#ifndef TESTS_RELAY_H_
#define TESTS_RELAY_H_

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "base/fork.h"
#include "base/thread.h"
#include "transport/net/socket.h"

namespace lockstep {

enum class RelayFault {
  kNone,
  kDrop,     // a record is not passed on
  kRepeat,   // it is passed on twice
  kReorder,  // it is passed on behind the next one
  kFlip,     // a bit of it is another one
  kCut,      // half of it is passed on, and both connections are closed
};
// "none", "drop" and so on.
const char* Name(RelayFault fault);

// One thread, which ends with it. A connection's preamble is record 0 of its direction, TLS's records (RFC 8446, 5.1) are the others.
class Relay {
 public:
  struct Options {
    RelayFault fault = RelayFault::kNone;
    // Which record of every connection it is about.
    bool from_client = true;
    int record = 1;
  };

  // Listens on the loopback interface. `target` is asked for a connection for each one that comes.
  static absl::StatusOr<std::unique_ptr<Relay>> Create(const SocketAddress& target, const Options& options);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  const SocketAddress& address() const { return address_; }
  // How often it has done it.
  int faults() const { return faults_; }

 private:
  class Direction;
  struct Pair;

  Relay(const SocketAddress& target, const Options& options, UniqueFd listener, const SocketAddress& address);
  void Run();

  const SocketAddress target_;
  const Options options_;
  const UniqueFd listener_;
  const SocketAddress address_;
  std::atomic<bool> stop_{false};
  std::atomic<int> faults_{0};
  Thread thread_;
};

}  // namespace lockstep

#endif  // TESTS_RELAY_H_
