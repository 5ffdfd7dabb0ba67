#include "tests/stranger.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/status.h"

namespace lockstep {
namespace {

using Clock = Deadline::Clock;

constexpr Purpose kPurposes[] = {Purpose::kStore, Purpose::kControl, Purpose::kData, Purpose::kLocal, Purpose::kFabric};

// ---- Doors

// A socket of the kernel's, by which descriptors and tables are matched.
using Inode = std::string;

std::set<Inode> SocketsOf(pid_t process) {
  std::set<Inode> inodes;
  const std::string folder = absl::StrCat("/proc/", process, "/fd");
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return inodes;
  while (const dirent* entry = readdir(entries)) {
    char target[64];
    const ssize_t bytes = readlink(absl::StrCat(folder, "/", entry->d_name).c_str(), target, sizeof(target));
    absl::string_view text(target, bytes < 0 ? 0 : static_cast<size_t>(bytes));
    if (absl::ConsumePrefix(&text, "socket:[") && absl::ConsumeSuffix(&text, "]")) inodes.emplace(text);
  }
  closedir(entries);
  return inodes;
}

// The words of each line of a table, but the heading.
std::vector<std::vector<std::string>> ReadTable(const std::string& path) {
  std::vector<std::vector<std::string>> rows;
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) rows.push_back(absl::StrSplit(line, ' ', absl::SkipEmpty()));
  return rows;
}

// "0100007F:0FA0": words of the address in the machine's order, as %08X prints them.
absl::optional<SocketAddress> ParseKernelAddress(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  std::string bytes = absl::HexStringToBytes(parts.first);
  const std::string port = absl::HexStringToBytes(parts.second);
  for (size_t word = 0; word + 4 <= bytes.size(); word += 4) std::reverse(&bytes[word], &bytes[word] + 4);
  if (port.size() != 2) return absl::nullopt;
  if (bytes.size() == 4) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    std::memcpy(&address.sin_addr, bytes.data(), 4);
    std::memcpy(&address.sin_port, port.data(), 2);
    if (address.sin_addr.s_addr == htonl(INADDR_ANY)) address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return SocketAddress::From(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  if (bytes.size() != 16) return absl::nullopt;
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  std::memcpy(&address.sin6_addr, bytes.data(), 16);
  std::memcpy(&address.sin6_port, port.data(), 2);
  if (IN6_IS_ADDR_UNSPECIFIED(&address.sin6_addr)) address.sin6_addr = in6addr_loopback;
  return SocketAddress::From(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

// ---- Attacks

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

// The greetings of versions without authentication, as docs/wire_formats.md had them.
std::string OldStoreHello() { return std::string("LKST\x01\0\0\0", 8); }

std::string OldTcpHello() {
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

std::string OldControlHello() {
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

std::string OldSharedMemoryHello() {
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

// ---- One visit

// More than a listener says to somebody whom it does not know: its preamble, its flight of the handshake, an alert.
constexpr size_t kAnswerBytesMax = 512;

// What a stranger says, all at once or slowly, or the connecting side of a channel.
struct Script {
  std::string bytes;
  bool slowly = false;
  std::unique_ptr<Channel> channel;
};

class Playwright {
 public:
  Playwright(const Loot& loot, uint32_t seed) : loot_(loot), random_(seed) {
    if (loot_.keys.empty()) loot_.keys.push_back(KeyOfAnotherJob());
  }

  size_t Below(size_t limit) { return random_() % limit; }

  // A listener that is spoken to says what it is for, in a preamble.
  void Learn(const Door& door, absl::string_view answer) {
    if (answer.size() < kPreambleBytes || !absl::StartsWith(answer, "LKSP")) return;
    for (const Purpose purpose : kPurposes) {
      if (static_cast<char>(purpose) == answer[6]) purposes_[door.name] = purpose;
    }
  }

  Script Write(Attack attack, const Door& door) {
    const Purpose purpose = PurposeOf(door);
    // The store and the control channel know one level, the others two.
    const uint8_t level =
        purpose == Purpose::kStore || purpose == Purpose::kControl ? 1 : static_cast<uint8_t>(1 + Below(2));
    Script script;
    switch (attack) {
      case Attack::kSilence:
      case Attack::kCount:
        break;
      case Attack::kRandomBytes:
        script.bytes = RandomBytes(1 + Below(2000));
        break;
      case Attack::kHalfPreamble:
        script.bytes = Preamble(kSecurityVersion, purpose, level).substr(0, 1 + Below(kPreambleBytes - 1));
        break;
      case Attack::kPreambleAndRandomBytes:
        script.bytes = Preamble(kSecurityVersion, purpose, level) + RandomBytes(1 + Below(2000));
        break;
      case Attack::kSlowBytes:
        script.bytes = Capture(purpose);
        script.slowly = true;
        break;
      case Attack::kLongRecord:
        script.bytes = Preamble(kSecurityVersion, purpose, level) + LongRecord();
        break;
      case Attack::kOldStore:
        script.bytes = OldStoreHello();
        break;
      case Attack::kOldTcp:
        script.bytes = OldTcpHello();
        break;
      case Attack::kOldControl:
        script.bytes = OldControlHello();
        break;
      case Attack::kOldSharedMemory:
        script.bytes = OldSharedMemoryHello();
        break;
      case Attack::kOtherVersion:
        script.bytes = Preamble(static_cast<uint16_t>(kSecurityVersion + 1 + Below(1000)), purpose, level);
        break;
      case Attack::kOtherPurpose:
        script.bytes = Preamble(kSecurityVersion, static_cast<Purpose>(6 + Below(250)), level);
        break;
      case Attack::kLevelNone:
        script.channel = std::make_unique<Channel>(purpose, Channel::Side::kConnects, Credentials());
        script.bytes = script.channel->Start() + OldStoreHello() + OldTcpHello();
        break;
      case Attack::kMutatedCapture:
        script.bytes = Mutated(Capture(purpose));
        break;
      case Attack::kReplay:
        script.bytes = Capture(purpose);
        break;
      case Attack::kSecretOfOthers: {
        const Loot::Key& key = loot_.keys[Below(loot_.keys.size())];
        const bool fits = std::count(key.purposes.begin(), key.purposes.end(), purpose) > 0;
        Credentials credentials = key.credentials;
        credentials.level = Below(2) == 0 ? SecurityLevel::kAuthenticate : SecurityLevel::kEncrypt;
        script.channel = std::make_unique<Channel>(fits ? purpose : key.purposes[Below(key.purposes.size())],
                                                   Channel::Side::kConnects, credentials);
        script.bytes = script.channel->Start();
        break;
      }
    }
    return script;
  }

 private:
  std::string RandomBytes(size_t count) {
    std::string bytes(count, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

  // Mostly the door's, so that attacks get behind the preamble.
  Purpose PurposeOf(const Door& door) {
    const auto known = purposes_.find(door.name);
    if (known != purposes_.end() && Below(8) != 0) return known->second;
    return kPurposes[Below(std::size(kPurposes))];
  }

  // One of that purpose, if there is one.
  std::string Capture(Purpose purpose) {
    std::vector<const std::string*> fitting;
    for (const std::string& capture : loot_.captures) {
      const bool fits = capture.size() >= kPreambleBytes && capture[6] == static_cast<char>(purpose);
      if (fits) fitting.push_back(&capture);
    }
    if (!fitting.empty()) return *fitting[Below(fitting.size())];
    if (!loot_.captures.empty()) return loot_.captures[Below(loot_.captures.size())];
    return Channel(purpose, Channel::Side::kConnects, KeyOfAnotherJob().credentials).Start();
  }

  // Some places of it changed, a piece of it repeated, left out or moved.
  std::string Mutated(std::string bytes) {
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

  Loot loot_;
  std::mt19937 random_;
  std::map<std::string, Purpose> purposes_;  // of doors
};

absl::StatusOr<UniqueFd> Knock(const Door& door, size_t stranger) {
  UniqueFd socket(::socket(door.family, door.type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  int connected = 0;
  if (door.family == AF_UNIX) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const size_t bytes = std::min(door.name.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, door.name.data(), bytes);
    address.sun_path[0] = '\0';  // written as @
    connected = connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + bytes));
  } else {
    const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(door.name);
    if (!address.ok()) return address.status();
    if (address->family() == AF_INET && address->loopback()) {
      sockaddr_in own = {};
      own.sin_family = AF_INET;
      own.sin_addr.s_addr = htonl(static_cast<uint32_t>(INADDR_LOOPBACK + stranger % 4));
      const int one = 1;
      (void)setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
      (void)bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own));
    }
    // What is closed first by the stranger leaves nothing behind.
    const linger reset = {1, 0};
    (void)setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    connected = connect(socket.get(), address->get(), address->length());
  }
  if (connected != 0 && errno != EINPROGRESS) return ErrnoStatus(errno, absl::StrCat("connect to ", door.name));
  return socket;
}

class Visit {
 public:
  Visit(UniqueFd socket, const Door& door, Attack attack, Script script)
      : socket_(std::move(socket)), door_(door), attack_(attack), script_(std::move(script)) {}

  pollfd interest() const {
    const bool writes = !connected_ || (sent_ < script_.bytes.size() && !script_.slowly);
    return {socket_.get(), static_cast<int16_t>(POLLIN | (writes ? POLLOUT : 0)), 0};
  }

  // Goes on as far as it can.
  void Go(int16_t events) {
    if (!connected_) {
      int error = 0;
      socklen_t bytes = sizeof(error);
      if ((events & (POLLOUT | POLLERR | POLLHUP)) == 0) return;
      (void)getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
      connected_ = error == 0;
      unreachable_ = over_ = error != 0;
      if (over_) return;
    }
    Say();
    if ((events & (POLLIN | POLLERR | POLLHUP)) != 0) Hear();
  }

  bool over() const { return over_; }
  bool unreachable() const { return unreachable_; }
  const Door& door() const { return door_; }
  const std::string& answer() const { return answer_; }  // its beginning
  bool connected() const { return connected_; }
  Clock::duration age() const { return Clock::now() - begin_; }
  Attack attack() const { return attack_; }
  size_t answered() const { return answered_; }  // bytes
  // Why it looks as if the listener took the stranger for a peer; empty if not.
  std::string admitted() const {
    if (!admitted_ && answered_ <= kAnswerBytesMax) return "";
    return absl::StrCat(door_.name, " let ", Name(attack_), " in, after an answer of ", answered_, " bytes");
  }

 private:
  void Say() {
    if (sent_ >= script_.bytes.size()) return;
    const auto now = Clock::now();
    if (script_.slowly && now < next_byte_) return;
    next_byte_ = now + std::chrono::milliseconds(50);
    const size_t bytes = script_.slowly ? 1 : script_.bytes.size() - sent_;
    const ssize_t sent = send(socket_.get(), script_.bytes.data() + sent_, bytes, MSG_NOSIGNAL);
    if (sent > 0) sent_ += static_cast<size_t>(sent);
    // Nobody hears the rest; what the listener had to say may still be read.
    if (sent < 0 && errno != EAGAIN) sent_ = script_.bytes.size();
  }

  void Hear() {
    char bytes[4096];
    for (;;) {
      const ssize_t count = recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) {
        over_ = true;
        return;
      }
      answered_ += static_cast<size_t>(count);
      answer_.append(bytes, std::min(static_cast<size_t>(count), kPreambleBytes - answer_.size()));
      if (script_.channel == nullptr || refused_) continue;
      std::string plain;
      std::string answer;
      refused_ = !script_.channel->Receive(absl::string_view(bytes, static_cast<size_t>(count)), &plain, &answer).ok();
      admitted_ = admitted_ || script_.channel->ready();
      (void)send(socket_.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  UniqueFd socket_;
  const Door door_;
  const Attack attack_;
  Script script_;
  bool connected_ = false;
  bool over_ = false;
  bool unreachable_ = false;
  bool refused_ = false;
  bool admitted_ = false;
  size_t sent_ = 0;
  size_t answered_ = 0;
  std::string answer_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_byte_;
};

void Note(const Visit& visit, Tally* tally) {
  if (visit.unreachable()) {
    ++tally->unreachable;
    return;
  }
  ++tally->visits[static_cast<size_t>(visit.attack())];
  ++(visit.over() ? tally->turned_away : tally->left);
  tally->heard_bytes += static_cast<int64_t>(visit.answered());
  if (const std::string admitted = visit.admitted(); !admitted.empty()) tally->admitted.push_back(admitted);
}

constexpr int kPollMs = 10;
constexpr std::chrono::milliseconds kLookAgain(100);
// Before a stranger makes room for another: time enough for most listeners to answer.
constexpr std::chrono::milliseconds kStay(100);

// Lets all of them go on, and takes out those that are over.
void GoOn(std::deque<std::unique_ptr<Visit>>* visits, int wait_ms, Playwright* playwright, Tally* tally) {
  std::vector<pollfd> sockets;
  for (const auto& visit : *visits) sockets.push_back(visit->interest());
  (void)poll(sockets.data(), sockets.size(), wait_ms);
  for (size_t i = 0; i < visits->size(); ++i) (*visits)[i]->Go(sockets[i].revents);
  const auto over = [&](const std::unique_ptr<Visit>& visit) {
    if (!visit->over()) return false;
    playwright->Learn(visit->door(), visit->answer());
    Note(*visit, tally);
    return true;
  };
  visits->erase(std::remove_if(visits->begin(), visits->end(), over), visits->end());
}

}  // namespace

std::vector<Door> DoorsOf(const std::vector<pid_t>& processes) {
  std::set<Door> doors;
  for (const pid_t process : processes) {
    const std::set<Inode> own = SocketsOf(process);
    const auto is_own = [&](const std::string& inode) { return own.count(inode) > 0; };
    for (const char* table : {"tcp", "tcp6"}) {
      // sl local remote state queues timer retransmits uid timeout inode ...; state 0A is LISTEN.
      for (const auto& row : ReadTable(absl::StrCat("/proc/", process, "/net/", table))) {
        if (row.size() < 10 || row[3] != "0A" || !is_own(row[9])) continue;
        const absl::optional<SocketAddress> address = ParseKernelAddress(row[1]);
        if (address.has_value()) doors.insert({address->family(), SOCK_STREAM, address->ToString()});
      }
    }
    // number references protocol flags type state inode path; flag 0x10000 is that of listeners.
    for (const auto& row : ReadTable(absl::StrCat("/proc/", process, "/net/unix"))) {
      if (row.size() < 8 || row[3] != "00010000" || row[7][0] != '@' || !is_own(row[6])) continue;
      doors.insert({AF_UNIX, row[4] == "0005" ? SOCK_SEQPACKET : SOCK_STREAM, row[7]});
    }
  }
  return std::vector<Door>(doors.begin(), doors.end());
}

absl::StatusOr<SocketAddress> FreeAddress() {
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress any, SocketAddress::Parse("127.0.0.1:0"));
  LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(any));
  return LocalAddress(listener.get());
}

const char* Name(Attack attack) {
  constexpr const char* kNames[] = {"silence",
                                    "random bytes",
                                    "half a preamble",
                                    "a preamble and random bytes",
                                    "slow bytes",
                                    "a record without an end",
                                    "an old store's greeting",
                                    "an old greeting over TCP",
                                    "an old control channel's greeting",
                                    "an old shared memory's greeting",
                                    "another version",
                                    "another purpose",
                                    "level none",
                                    "a mutated capture",
                                    "replay",
                                    "a secret of others"};
  static_assert(std::size(kNames) == static_cast<size_t>(Attack::kCount));
  return kNames[static_cast<size_t>(attack)];
}

Loot::Key KeyOfAnotherJob() {
  auto secret = Secret::Draw();
  LOCKSTEP_CHECK(secret.ok()) << secret.status();
  return {{SecurityLevel::kAuthenticate, *std::move(secret), "another job"},
          {std::begin(kPurposes), std::end(kPurposes)}};
}

int64_t Tally::total() const {
  int64_t sum = 0;
  for (const int64_t count : visits) sum += count;
  return sum;
}

void Tally::Add(const Tally& other) {
  for (size_t i = 0; i < visits.size(); ++i) visits[i] += other.visits[i];
  turned_away += other.turned_away;
  left += other.left;
  unreachable += other.unreachable;
  heard_bytes += other.heard_bytes;
  admitted.insert(admitted.end(), other.admitted.begin(), other.admitted.end());
}

Tally Raid(const std::function<std::vector<Door>()>& find, int64_t visits, const RaidOptions& options,
           const std::function<bool()>& stop) {
  Tally tally;
  Playwright playwright(options.loot, options.seed);
  std::deque<std::unique_ptr<Visit>> under_way;  // oldest first
  std::vector<Door> doors;
  Clock::time_point look_again = Clock::now();
  const auto leave_oldest = [&] {
    if (under_way.front()->connected()) Note(*under_way.front(), &tally);
    under_way.pop_front();
  };
  const auto begin = Clock::now();
  // How many more may begin now: a few between looks at those under way.
  const auto allowed = [&](int64_t begun) {
    const int64_t left = visits - tally.total() - static_cast<int64_t>(under_way.size());
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    const auto due = static_cast<int64_t>(elapsed.count() * static_cast<double>(options.per_second)) + 1;
    const int64_t few = 16;
    const bool full = under_way.size() >= options.at_once && under_way.front()->age() < kStay;
    return doors.empty() || full ? 0 : std::min({left, few, options.per_second == 0 ? few : due - begun});
  };
  int64_t begun = 0;
  while (tally.total() + static_cast<int64_t>(under_way.size()) < visits && !stop()) {
    if (doors.empty() || Clock::now() >= look_again) {
      const auto looked_at = Clock::now();
      doors = find();
      // A long table of connections takes long to read.
      look_again = Clock::now() + std::max<Clock::duration>(kLookAgain, 10 * (Clock::now() - looked_at));
    }
    const int64_t end = begun + allowed(begun);
    for (; begun < end; ++begun) {
      if (under_way.size() >= options.at_once) leave_oldest();
      const Door& door = doors[static_cast<size_t>(begun) % doors.size()];
      const auto attack = static_cast<Attack>(playwright.Below(static_cast<size_t>(Attack::kCount)));
      absl::StatusOr<UniqueFd> socket = Knock(door, playwright.Below(4));
      if (!socket.ok()) {
        ++tally.unreachable;
        continue;
      }
      under_way.push_back(std::make_unique<Visit>(*std::move(socket), door, attack, playwright.Write(attack, door)));
    }
    GoOn(&under_way, allowed(begun) > 0 ? 0 : kPollMs, &playwright, &tally);
  }
  const Deadline deadline = Deadline::After(options.patience);
  while (!under_way.empty() && !deadline.passed() && !stop()) GoOn(&under_way, kPollMs, &playwright, &tally);
  while (!under_way.empty()) leave_oldest();
  return tally;
}

std::map<Refusal, int64_t> RefusalsIn(absl::string_view log) {
  std::map<Refusal, int64_t> counts;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    if (!absl::StrContains(line, ": turned away ")) continue;
    int64_t more = 0;
    if (const size_t at = line.rfind(" (and "); at != absl::string_view::npos) {
      const absl::string_view number = line.substr(at + 6, line.find(' ', at + 6) - at - 6);
      if (!absl::SimpleAtoi(number, &more)) more = 0;
    }
    for (int kind = 0; kind < static_cast<int>(Refusal::kCount); ++kind) {
      if (!absl::StrContains(line, Text(static_cast<Refusal>(kind)))) continue;
      counts[static_cast<Refusal>(kind)] += 1 + more;
      break;
    }
  }
  return counts;
}

}  // namespace lockstep
