#include "tests/attack_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "base/check.h"

namespace lockstep {
namespace {

constexpr Purpose kPurposes[] = {Purpose::kStore, Purpose::kControl, Purpose::kData, Purpose::kLocal, Purpose::kFabric};

void Append16(uint16_t value, std::string* out) {
  out->push_back(static_cast<char>(value & 0xff));
  out->push_back(static_cast<char>(value >> 8));
}
void Append32(uint32_t value, std::string* out) {
  Append16(static_cast<uint16_t>(value & 0xffff), out);
  Append16(static_cast<uint16_t>(value >> 16), out);
}

std::string Preamble(uint16_t version, Purpose purpose, uint8_t level) {
  std::string preamble = "LKSP";
  Append16(version, &preamble);
  preamble.push_back(static_cast<char>(purpose));
  preamble.push_back(static_cast<char>(level));
  return preamble;
}

// The handshakes of versions without authentication, as docs/wire_formats.md had them.
std::string OldStoreHandshake() { return std::string("LKST\x01\0\0\0", 8); }

std::string OldTcpHandshake() {
  std::string hello = "LKS1";
  Append16(2, &hello);
  Append16(0, &hello);
  Append32(40, &hello);
  for (const uint32_t word : {1, 2, 1, 0, 0, 262144, 7})
    Append32(word, &hello);   // world, source, target, channel, chunk, instance
  Append32(1 << 16, &hello);  // socket 0 of 1
  Append32(0, &hello);
  hello.append(8, '\0');
  return hello;
}

std::string OldControlHandshake() {
  std::string payload = std::string(1, '\x01') + "LSTC";
  Append16(3, &payload);
  Append32(0, &payload);                                              // job
  for (const uint32_t word : {1, 2, 1, 2}) Append32(word, &payload);  // rank, size, world
  Append32(4, &payload);
  payload += "host";
  payload.append(8, '\1');
  std::string frame;
  Append32(static_cast<uint32_t>(payload.size()), &frame);
  return frame + payload;
}

std::string OldSharedMemoryHandshake() {
  std::string hello = "LSMH";
  Append32(1, &hello);
  for (const uint32_t word : {1, 2, 3, 4, 1, 0, 262144, 0}) Append32(word, &hello);
  return hello;
}

// A TLS record that announces more than it brings.
std::string LongRecord() {
  std::string record("\x16\x03\x01\x3f\xff", 5);
  record.append("\x01\0\x3f\xfb\x03\x03", 6);
  return record.append(8192, '\x5a');
}

Credentials SecretOfAnotherJob() {
  auto secret = Secret::Draw();
  LOCKSTEP_CHECK(secret.ok()) << secret.status();
  return {SecurityLevel::kAuthenticate, *std::move(secret), "another job"};
}

// The job's secret is asked for there, else the world's.
bool BelongsToJob(Purpose purpose) { return purpose == Purpose::kStore || purpose == Purpose::kControl; }

}  // namespace

const char* Name(Attack attack) {
  constexpr const char* kNames[] = {"silence",
                                    "random bytes",
                                    "half a preamble",
                                    "a preamble and random bytes",
                                    "slow bytes",
                                    "a record without an end",
                                    "an old store's handshake",
                                    "an old handshake over TCP",
                                    "an old control channel's handshake",
                                    "an old shared memory's handshake",
                                    "another version",
                                    "another purpose",
                                    "level none",
                                    "replay",
                                    "a mutated replay",
                                    "a replay of what was for another listener",
                                    "another job's secret",
                                    "an ended world's secret",
                                    "the job's secret"};
  static_assert(std::size(kNames) == kAttacks);
  return kNames[static_cast<size_t>(attack)];
}

AttackWriter::AttackWriter(AttackKnowledge knowledge, uint32_t seed)
    : knowledge_(std::move(knowledge)), another_jobs_secret_(SecretOfAnotherJob()), random_(seed) {}

bool AttackWriter::Applies(Attack attack, Purpose purpose) const {
  if (attack == Attack::kJobsSecret) return knowledge_.jobs_secret.secret != nullptr && !BelongsToJob(purpose);
  if (attack == Attack::kEndedWorldsSecret) return knowledge_.ended_worlds_secret.secret != nullptr;
  return true;
}

AttackBytes AttackWriter::Write(Attack attack, Purpose purpose) {
  // The store and the control channel know one level, the others two.
  const uint8_t level = BelongsToJob(purpose) ? 1 : static_cast<uint8_t>(1 + Below(2));
  AttackBytes attack_bytes;
  std::string& bytes = attack_bytes.bytes;
  switch (attack) {
    case Attack::kSilence:
    case Attack::kCount:
      break;
    case Attack::kRandomBytes:
      bytes = RandomBytes(1 + Below(2000));
      break;
    case Attack::kHalfPreamble:
      bytes = Preamble(kSecurityVersion, purpose, level).substr(0, 1 + Below(kPreambleBytes - 1));
      break;
    case Attack::kPreambleAndRandomBytes:
      bytes = Preamble(kSecurityVersion, purpose, level) + RandomBytes(1 + Below(2000));
      break;
    case Attack::kSlowBytes:
      bytes = Replay(purpose);
      attack_bytes.slowly = true;
      break;
    case Attack::kLongRecord:
      bytes = Preamble(kSecurityVersion, purpose, level) + LongRecord();
      break;
    case Attack::kOldStore:
      bytes = OldStoreHandshake();
      break;
    case Attack::kOldTcp:
      bytes = OldTcpHandshake();
      break;
    case Attack::kOldControl:
      bytes = OldControlHandshake();
      break;
    case Attack::kOldSharedMemory:
      bytes = OldSharedMemoryHandshake();
      break;
    case Attack::kOtherVersion:
      bytes = Preamble(static_cast<uint16_t>(kSecurityVersion + 1 + Below(1000)), purpose, level);
      break;
    case Attack::kOtherPurpose:
      bytes = Preamble(kSecurityVersion, static_cast<Purpose>(6 + Below(250)), level);
      break;
    case Attack::kLevelNone:
      attack_bytes = Connecting(purpose, Credentials());
      bytes += OldStoreHandshake() + OldTcpHandshake();
      break;
    case Attack::kReplay:
      bytes = Replay(purpose);
      break;
    case Attack::kMutatedReplay:
      bytes = Mutated(Replay(purpose));
      break;
    case Attack::kReplayFromOthers:
      bytes = ReplayFromOthers(purpose);
      break;
    case Attack::kAnotherJobsSecret:
      return Connecting(purpose, another_jobs_secret_);
    case Attack::kEndedWorldsSecret:
      return Connecting(purpose, knowledge_.ended_worlds_secret);
    case Attack::kJobsSecret:
      return Connecting(purpose, knowledge_.jobs_secret);
  }
  return attack_bytes;
}

AttackBytes AttackWriter::Connecting(Purpose purpose, const Credentials& credentials) {
  AttackBytes attack_bytes;
  Credentials own = credentials;
  if (own.secret != nullptr) own.level = Below(2) == 0 ? SecurityLevel::kAuthenticate : SecurityLevel::kEncrypt;
  attack_bytes.channel = std::make_unique<Channel>(purpose, Channel::Side::kConnects, own);
  attack_bytes.bytes = attack_bytes.channel->Start();
  return attack_bytes;
}

std::string AttackWriter::RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random_());
  return bytes;
}

// Where nothing was heard of that purpose: the first flight that a rank of an ended world would have sent, or else one of another job.
std::string AttackWriter::Replay(Purpose purpose) {
  std::vector<const std::string*> fitting;
  for (const std::string& stream : knowledge_.streams) {
    const bool fits = absl::StartsWith(stream, "LKSP") && stream.size() > kPreambleBytes;
    if (fits && stream[6] == static_cast<char>(purpose)) fitting.push_back(&stream);
  }
  if (!fitting.empty()) return *fitting[Below(fitting.size())];
  const bool ended = knowledge_.ended_worlds_secret.secret != nullptr;
  return Connecting(purpose, ended ? knowledge_.ended_worlds_secret : another_jobs_secret_).bytes;
}

std::string AttackWriter::ReplayFromOthers(Purpose purpose) {
  Purpose other = purpose;
  while (other == purpose) other = kPurposes[Below(std::size(kPurposes))];
  std::string bytes = Replay(other);
  // Some say that it is for this listener.
  if (Below(2) == 0) bytes[6] = static_cast<char>(purpose);
  return bytes;
}

// Some places of it changed, a piece of it repeated, left out or moved.
std::string AttackWriter::Mutated(std::string bytes) {
  if (bytes.empty()) return bytes;
  // Mostly where the handshake is.
  const auto place = [&] { return Below(Below(4) == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 400)); };
  for (size_t times = 1 + Below(4); times > 0 && !bytes.empty(); --times) {
    const size_t at = place();
    const size_t count = std::min(bytes.size() - at, 1 + Below(32));
    switch (Below(5)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
        break;
      case 1:
        bytes.replace(at, count, RandomBytes(count));
        break;
      case 2:
        bytes.insert(at, bytes.substr(at, count));
        break;
      case 3:
        bytes.erase(at, count);
        break;
      case 4:
        bytes.resize(at);
        break;
    }
  }
  return bytes;
}

}  // namespace lockstep
