// Attacks on the handshake of a rank over libfabric, in notices from an endpoint that is no rank's. The bytes of attack_writer.h are the
// flight in a hello.

#ifndef TESTS_FABRIC_ATTACKS_H_
#define TESTS_FABRIC_ATTACKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/attack_writer.h"
#include "tests/attacks.h"
#include "transport/net/socket.h"
#include "transport/ofi/ofi_testing.h"

namespace lockstep {

// Over provider tcp, where an endpoint's address is that of its listening socket. Belongs to one thread. To be destroyed while the rank
// lives: a message that fails aborts the process.
class FabricAttacks {
 public:
  // Posts a hello and a confirm for every attack that applies, and a notice of each kind with random bytes.
  // ERRORS  UNAVAILABLE  there is no libfabric
  static absl::StatusOr<std::unique_ptr<FabricAttacks>> Begin(const SocketAddress& rank,
                                                              const AttackKnowledge& knowledge, uint32_t seed);

  // Goes on. True once the rank has taken all of it.
  bool Poll();
  // Adds them under the listener "fabric". REQUIRES  Poll() has returned true
  void AddTo(const std::string& phase, AttackResults* results) const;

 private:
  FabricAttacks(const OfiApi* api, const SocketAddress& rank);
  void Post(const AttackKnowledge& knowledge, uint32_t seed);
  void Send(OfiKind kind, uint64_t exchange, const std::string& payload);

  struct Exchange {
    Attack attack;
    std::unique_ptr<Channel> channel;
  };

  const std::string rank_;  // as a transport says its address
  OfiOutsider outsider_;
  std::map<uint64_t, Exchange> exchanges_;
  size_t heard_ = 0;
  int64_t heard_bytes_ = 0;
  std::vector<std::string> admitted_;
};

// The flights in hellos that were sent over TCP: what to replay to another rank, or once more.
std::vector<std::string> FabricFlightsIn(absl::string_view stream);

}  // namespace lockstep

#endif  // TESTS_FABRIC_ATTACKS_H_
