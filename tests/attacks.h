// Attacks on the listeners of a job by unauthenticated peers, from outside of its processes.
//
// Nothing here knows how a listener works inside. An attack is one connection (attack_writer.h says what is sent over it); it ends when
// the listener closes it or when the attacker leaves.

#ifndef TESTS_ATTACKS_H_
#define TESTS_ATTACKS_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/types/optional.h"
#include "tests/attack_writer.h"
#include "tests/listening_sockets.h"
#include "transport/secure/channel.h"

namespace lockstep {

// Whoever hears more of a listener was admitted. An unauthenticated peer hears at most 235 bytes: a preamble of 8, a flight of the
// handshake of 203, an alert of 24. A peer that is admitted hears at least 249: no alert, and an answer of 16 or more, which becomes a
// record of 22 more. A test compares both with this.
inline constexpr size_t kAnswerBytesMax = 240;

// What is attacked.
struct AttackTarget {
  ListeningSocket socket;
  Purpose purpose = Purpose::kStore;  // that attacks are written for
  std::string listener;               // by which attacks are counted: "store", "libfabric's port"
};

// Tells from outside what listening sockets are for: a listener that hears a preamble of another purpose answers with its own. One that
// does not answer, because its rank does not look after it now, is the transport's. Belongs to one thread.
class AttackTargets {
 public:
  // `transport` is the purpose of TCP listeners that do not answer; `provider`: they are libfabric's own, called "libfabric's port".
  explicit AttackTargets(Purpose transport, bool provider = false) : transport_(transport), provider_(provider) {}

  std::vector<AttackTarget> Find(const std::vector<pid_t>& processes);

 private:
  struct Answer {
    int asks = 0;
    absl::optional<Purpose> purpose;
  };

  // Those that have not answered, and were not asked often enough.
  void Ask(const std::vector<ListeningSocket>& sockets);

  const Purpose transport_;
  const bool provider_;
  std::map<std::string, Answer> answers_;  // by socket
};

// What came of attacks.
struct AttackResults {
  struct Count {
    int64_t connections = 0;
    int64_t turned_away = 0;  // the listener closed the connection; the attacker has left the others
  };
  // Phase, listener, attack.
  using Case = std::tuple<std::string, std::string, Attack>;

  std::map<Case, Count> cases;
  int64_t connections = 0;
  int64_t turned_away = 0;
  int64_t left = 0;  // by the attacker
  int64_t unreachable =
      0;  // nobody listened there any more, or too many waited to be accepted; not among the connections
  int64_t heard_bytes = 0;  // that listeners sent
  // A listener took an attacker for a peer: "127.0.0.1:4000 admitted replay".
  std::vector<std::string> admitted;

  void Add(const AttackResults& other);
};

struct AttackOptions {
  AttackKnowledge knowledge;
  uint32_t seed = 1;       // of everything that is random
  size_t at_once = 64;     // connections at a time; the oldest is left for another
  int64_t per_second = 0;  // connections begun; 0: as many as go
  // How long the last connections may wait to be turned away.
  std::chrono::milliseconds patience{0};
  // What attacks are counted under, asked for each one.
  std::function<std::string()> phase = [] { return std::string(); };
};

// Attacks what `find` returns until `done` is true, which is asked about every 10 ms. Each next attack is one of those that were made
// least often at any target in this phase. `find` is called every now and then, and each time while there are no targets.
AttackResults RunAttacks(const std::function<std::vector<AttackTarget>()>& find, const AttackOptions& options,
                         const std::function<bool(const AttackResults&)>& done);

}  // namespace lockstep

#endif  // TESTS_ATTACKS_H_
