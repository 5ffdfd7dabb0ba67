// Unauthenticated peers: they find the ports of a job, and do there what a stranger on the network, or another process of this machine,
// may do. For tests and for bench/stranger.
//
// Nothing here knows how a listener works inside. A visit is one connection and one attack; it ends when the listener closes it or when
// the stranger leaves.

#ifndef TESTS_STRANGER_H_
#define TESTS_STRANGER_H_

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/net/socket.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"

namespace lockstep {

// ---- Where a job listens.

// A listening socket of this machine. Regular value type.
struct Door {
  int family = 0;    // AF_INET, AF_INET6 or AF_UNIX
  int type = 0;      // SOCK_STREAM or SOCK_SEQPACKET
  std::string name;  // "127.0.0.1:4000"; of the abstract namespace "@lockstep-0123456789abcdef"

  friend bool operator<(const Door& a, const Door& b) { return a.name < b.name; }
  friend bool operator==(const Door& a, const Door& b) { return a.name == b.name; }
};

// The doors of these processes, as /proc tells, each once. A socket on all addresses is named by the loopback address. Doors of
// processes that have ended, or whose descriptors this user may not see, are left out.
std::vector<Door> DoorsOf(const std::vector<pid_t>& processes);

// An address of the loopback interface where nobody listened a moment ago.
absl::StatusOr<SocketAddress> FreeAddress();

// ---- What strangers do.

enum class Attack {
  kSilence,
  kRandomBytes,
  kHalfPreamble,  // and then silence
  kPreambleAndRandomBytes,
  kSlowBytes,   // a preamble and a handshake's beginning, a byte at a time
  kLongRecord,  // a handshake that does not end
  kOldStore,    // greetings of earlier versions
  kOldTcp,
  kOldControl,
  kOldSharedMemory,
  kOtherVersion,
  kOtherPurpose,
  kLevelNone,
  kMutatedCapture,
  kReplay,
  kSecretOfOthers,  // another job's, or an ended world's
  kCount,
};
// "silence", "random bytes" and so on.
const char* Name(Attack attack);

// What strangers have got hold of.
struct Loot {
  // A secret, and the purposes for which it opens no door of the job.
  struct Key {
    Credentials credentials;
    std::vector<Purpose> purposes;
  };
  std::vector<Key> keys;
  // What connecting ranks have sent over connections, from the first byte on. Empty: attacks that need one use a client's first flight
  // under a key of their own.
  std::vector<std::string> captures;
};

// A secret that nobody else has, for all purposes.
Loot::Key KeyOfAnotherJob();

// What came of visits.
struct Tally {
  std::array<int64_t, static_cast<size_t>(Attack::kCount)> visits = {};
  int64_t turned_away = 0;  // the listener closed the connection
  int64_t left = 0;         // the stranger left first
  int64_t unreachable =
      0;  // no connection: nobody listens there any more, or too many wait to be accepted. Not among the visits
  int64_t heard_bytes = 0;  // of what listeners said
  // A listener took the stranger for a peer: "127.0.0.1:4000 let replay in".
  std::vector<std::string> admitted;

  int64_t total() const;
  void Add(const Tally& other);
};

struct RaidOptions {
  Loot loot;
  uint32_t seed = 1;       // of everything that is random
  size_t at_once = 64;     // connections at a time; the oldest is left for another
  int64_t per_second = 0;  // visits begun; 0: as many as go
  // How long the last visits may wait to be turned away.
  std::chrono::milliseconds patience{0};
};

// Visits doors in turn, each time with an attack by chance, until there were `visits`, or until `stop` says true, asked about every 10 ms.
// `find` is asked for the doors every now and then, and every time while there are none. Over IPv4's loopback strangers come from
// 127.0.0.1 and three other addresses.
Tally Raid(
    const std::function<std::vector<Door>()>& find, int64_t visits, const RaidOptions& options,
    const std::function<bool()>& stop = [] { return false; });

// ---- What the job says of it.

// How many of each kind a log says were turned away.
std::map<Refusal, int64_t> RefusalsIn(absl::string_view log);

}  // namespace lockstep

#endif  // TESTS_STRANGER_H_
