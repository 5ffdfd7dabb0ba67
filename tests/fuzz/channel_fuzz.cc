// The handshake of every connection: bytes of an unauthenticated peer, or those of a real handshake, changed on their way.
//
//   input = mode:u8 cut:u8 rest          mode: bits 0 and 1 the level, bit 2 changes; rest is what such a peer says, or
//   rest  = { flight:u8 at:u16 flip:u8 } what is changed in which of the three flights

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tests/fuzz/fuzz.h"
#include "transport/secure/channel.h"

namespace lockstep {
namespace {

Credentials Ours(SecurityLevel level) {
  Credentials credentials;
  credentials.level = level;
  if (level != SecurityLevel::kNone) credentials.secret = *Secret::FromBytes(std::string(Secret::kBytes, 's'));
  return credentials;
}

// In pieces, none of them more than is wanted until the channel is ready.
absl::Status Feed(Channel* channel, absl::string_view bytes, size_t cut, std::string* to_send) {
  std::string plain;
  absl::Status status;
  const size_t size = bytes.size();
  const fuzz::Allocations allocations;  // OpenSSL's own are not counted
  for (size_t taken = 0; !bytes.empty() && status.ok();) {
    const size_t piece = std::min({bytes.size(), cut, channel->wanted()});
    LOCKSTEP_CHECK(channel->ready() || taken + piece <= kHandshakeBytesMax);
    status = channel->Receive(bytes.substr(0, piece), &plain, to_send);
    taken += piece;
    bytes.remove_prefix(piece);
  }
  LOCKSTEP_CHECK(allocations.bytes() <= 4 * size + 16384) << allocations.bytes() << " bytes allocated for " << size;
  fuzz::CheckCode(status, {absl::StatusCode::kPermissionDenied, absl::StatusCode::kDataLoss,
                           absl::StatusCode::kUnavailable, absl::StatusCode::kResourceExhausted});
  if (absl::IsPermissionDenied(status)) LOCKSTEP_CHECK(channel->refusal() != Refusal::kCount);
  return status;
}

void HearAnybody(SecurityLevel level, size_t cut, absl::string_view said) {
  for (const auto side : {Channel::Side::kConnects, Channel::Side::kListens}) {
    Channel channel(Purpose::kData, side, Ours(level));
    std::string to_send = channel.Start();
    (void)Feed(&channel, said, cut, &to_send);
    LOCKSTEP_CHECK(level == SecurityLevel::kNone || !channel.ready()) << "a peer without the secret is through";
  }
}

void ShakeHandsOverATamperedWire(SecurityLevel level, size_t cut, fuzz::Input changes) {
  std::map<std::pair<int, size_t>, uint8_t> flips;
  while (!changes.empty()) {
    const int flight = changes.Take<uint8_t>() % 3;
    const size_t at = changes.Take<uint16_t>() % 600;
    // The version in the header of a first record is not looked at (RFC 8446, 5.1).
    const uint8_t flip = changes.Take<uint8_t>();
    if (flight == 2 || at != kPreambleBytes + 2) flips[{flight, at}] ^= flip;
  }
  bool changed = false;
  const auto carry = [&](int flight, std::string bytes) {
    for (const auto& [place, flip] : flips) {
      if (place.first != flight || place.second >= bytes.size() || flip == 0) continue;
      bytes[place.second] = static_cast<char>(bytes[place.second] ^ flip);
      changed = true;
    }
    return bytes;
  };
  Channel connects(Purpose::kData, Channel::Side::kConnects, Ours(level));
  Channel listens(Purpose::kData, Channel::Side::kListens, Ours(level));
  std::string to_listener = connects.Start(), to_connecting;
  if (!Feed(&listens, carry(0, to_listener), cut, &to_connecting).ok()) return;
  to_listener.clear();
  if (!Feed(&connects, carry(1, to_connecting), cut, &to_listener).ok()) return;
  (void)Feed(&listens, carry(2, to_listener), cut, &to_connecting);
  const bool both = connects.ready() && listens.ready();
  LOCKSTEP_CHECK(both != changed) << (both ? "a change went unnoticed" : "nothing was changed");
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  std::vector<std::string> seeds;
  for (const char level : {'\0', '\1', '\2'}) {
    const auto mode = static_cast<SecurityLevel>(level);
    seeds.push_back(std::string(1, level) + '\x40' +
                    Channel(Purpose::kData, Channel::Side::kConnects, Ours(mode)).Start());
    seeds.push_back(std::string(1, static_cast<char>(level | 4)) + '\xff');
    seeds.push_back(std::string(1, static_cast<char>(level | 4)) + std::string("\xff\1\x40\0\1", 5));
  }
  return seeds;
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::fuzz::Input input(data, size);
  const uint8_t mode = input.Take<uint8_t>();
  const size_t cut = std::max<size_t>(input.Take<uint8_t>(), 1);
  const auto level = static_cast<lockstep::SecurityLevel>((mode & 3) % 3);
  if ((mode & 4) != 0) {
    lockstep::ShakeHandsOverATamperedWire(level, cut, input);
  } else {
    lockstep::HearAnybody(level, cut, input.Rest());
  }
  return 0;
}
