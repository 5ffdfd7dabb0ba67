// What an unauthenticated peer sends to a listener: bytes of every kind that a listener must turn away. It does no I/O.

#ifndef TESTS_ATTACK_WRITER_H_
#define TESTS_ATTACK_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"

namespace lockstep {

enum class Attack {
  kSilence,
  kRandomBytes,
  kHalfPreamble,  // and then silence
  kPreambleAndRandomBytes,
  kSlowBytes,   // a handshake's beginning, a byte at a time
  kLongRecord,  // a handshake that does not end
  // Handshakes of versions without authentication.
  kOldStore,
  kOldTcp,
  kOldControl,
  kOldSharedMemory,
  // Preambles that this listener does not take.
  kOtherVersion,
  kOtherPurpose,
  kLevelNone,
  // What a rank has sent to a listener of the same purpose, the same changed, and what it has sent to a listener of another purpose.
  kReplay,
  kMutatedReplay,
  kReplayFromOthers,
  // Handshakes with a secret that does not belong there: the job's own where the world's is needed.
  kAnotherJobsSecret,
  kEndedWorldsSecret,
  kJobsSecret,
  kCount,
};
inline constexpr size_t kAttacks = static_cast<size_t>(Attack::kCount);
// "silence", "random bytes" and so on.
const char* Name(Attack attack);

// What an attacker knows of a job.
struct AttackKnowledge {
  Credentials jobs_secret;          // without a secret: unknown
  Credentials ended_worlds_secret;  // likewise
  // What connecting ranks have sent over connections of this world, from the first byte on.
  std::vector<std::string> streams;
};

// For one connection.
struct AttackBytes {
  std::string bytes;
  bool slowly = false;               // a byte at a time
  std::unique_ptr<Channel> channel;  // takes the answers, where there is one; `bytes` are its Start()
};

class AttackWriter {
 public:
  // The seed is that of all that is random.
  AttackWriter(AttackKnowledge knowledge, uint32_t seed);

  // False for what would be let in rightly, or what this attacker does not know.
  bool Applies(Attack attack, Purpose purpose) const;

  // For a listener of that purpose. REQUIRES  Applies(attack, purpose)
  AttackBytes Write(Attack attack, Purpose purpose);

  // A random number below the limit.
  size_t Below(size_t limit) { return random_() % limit; }

 private:
  std::string RandomBytes(size_t count);
  std::string Replay(Purpose purpose);
  std::string ReplayFromOthers(Purpose purpose);
  std::string Mutated(std::string bytes);
  AttackBytes Connecting(Purpose purpose, const Credentials& credentials);

  const AttackKnowledge knowledge_;
  const Credentials another_jobs_secret_;
  std::mt19937 random_;
};

}  // namespace lockstep

#endif  // TESTS_ATTACK_WRITER_H_
