// A connection's protection: the handshake that begins it, and what is said over it afterwards. Bytes in, bytes out: it does no I/O and
// never waits.
//
//   connection = preamble handshake protected*           each way
//   preamble   = "LKSP" version:u16 purpose:u8 level:u8  little-endian, the same in every version; compared as a whole
//   handshake  = TLS 1.3 (RFC 8446) with an external pre-shared key (psk_dhe_ke, X25519, AES-256-GCM with SHA-384), without certificates
//                and tickets. Client is who connects. Its preamble and first flight come at once
//   protected  = TLS records
//
// The pre-shared key is HKDF-Expand(secret, "lockstep 1 <purpose> <level>"): neither another listener's nor another level's handshake
// can be passed on to this one. At level none there is the preamble alone, and bytes are as they are. The store and the control channel
// know none and authenticate alone, since all of theirs is encrypted: which of the two levels data has, ranks compare over control.
//
// The connecting side is sure that the listener has the secret when the channel is ready; the listener, that the connecting side has,
// likewise: nothing that comes before was looked at but by OpenSSL, by a comparison of eight bytes, and for the lengths of records.

#ifndef TRANSPORT_SECURE_CHANNEL_H_
#define TRANSPORT_SECURE_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "transport/secure/credentials.h"

namespace lockstep {

// What a connection is for. The numbers are part of the wire format.
enum class Purpose : uint8_t { kStore = 1, kControl = 2, kData = 3, kLocal = 4, kFabric = 5 };

// "store", "control", "data", "local", "fabric".
const char* Name(Purpose purpose);

// Why a peer was turned away.
enum class Refusal {
  kNotOurs,       // does not speak this protocol
  kOldProtocol,   // a version of Lockstep without authentication
  kOtherVersion,  // of the preamble
  kOtherPurpose,  // found the listener of something else
  kOtherLevel,
  kNoSecret,    // does not have the secret
  kBroken,      // not TLS, or not what TLS allows
  kTooLong,     // more than a handshake needs
  kSilent,      // not through in time
  kGaveUp,      // closed the connection before it was through
  kUnfinished,  // was not through when the listener ended
  kCrowded,     // made way for others
  kOtherUser,   // of this machine
  kOtherWorld,  // has the secret, and no place in this world
  kCount,
};
// "does not have the secret" and so on.
const char* Text(Refusal refusal);

inline constexpr size_t kPreambleBytes = 8;
inline constexpr uint16_t kSecurityVersion = 1;
// What is taken from a peer until the channel is ready, the preamble included.
inline constexpr size_t kHandshakeBytesMax = 4096;
// Then there is a new key. RFC 8446 (5.5) allows 2^24.5.
inline constexpr size_t kTlsRecordsPerKey = size_t{1} << 16;

// Belongs to one thread at a time.
class Channel {
 public:
  enum class Side { kConnects, kListens };

  // Keeps the secret until the channel is ready.
  Channel(Purpose purpose, Side side, const Credentials& credentials);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // What the connecting side sends first: call once, before Receive. "" on the listening side, which need not call it.
  std::string Start();

  // Takes what has arrived. Appends to `to_send` what is to be sent, and to `plain` what the peer has said over the channel.
  // ERRORS  PERMISSION_DENIED  refusal() says why; `to_send` may have something that tells the peer, best sent before closing
  //         RESOURCE_EXHAUSTED the listener has said that it has no descriptor for this connection
  //         DATA_LOSS          once ready: what has arrived is not what the peer sent
  //         UNAVAILABLE        once ready: the peer said that it says no more
  absl::Status Receive(absl::string_view arrived, std::string* plain, std::string* to_send);

  // How many bytes to read next for Receive, so as to take nothing that comes behind the next piece of the protocol. At least 1. Until
  // the channel is ready, all pieces together are at most kHandshakeBytesMax. At level none, once it is ready, there are no pieces: the
  // caller knows what it waits for.
  size_t wanted() const;

  // True once the peer has proved that it has the secret, and Send may be called.
  bool ready() const { return state_ == State::kReady; }
  // Why Receive refused the peer; kCount if it did not.
  Refusal refusal() const { return refusal_; }
  // On the listening side: what tells the peer's first flight from all others, once that has turned out to be made with the secret, or
  // to be a copy of one that was. Empty before, and at level none.
  absl::string_view first_flight() const { return first_flight_; }

  // Appends `plain` to `to_send`, protected. When ready. Nothing after an error of Receive.
  void Send(absl::string_view plain, std::string* to_send);

  // Bytes that both ends of this connection derive alike and nobody else can: TLS's exporter (RFC 8446, 7.5). When ready, and not at
  // level none.
  void Export(absl::string_view label, absl::string_view context, void* out, size_t bytes) const;

 private:
  enum class State { kPreamble, kHandshake, kReady, kRefused };
  struct Tls;

  absl::Status TakePreamble(absl::string_view* arrived, std::string* to_send);
  absl::Status Refuse(Refusal refusal, absl::string_view why);
  absl::Status RefuseSecret();
  absl::Status Shake(std::string* to_send);
  absl::Status Open(std::string* plain);
  void Drain(std::string* to_send);
  void NoteRecords(absl::string_view arrived);
  bool secured() const { return credentials_.level != SecurityLevel::kNone; }

  const Purpose purpose_;
  const Side side_;
  Credentials credentials_;  // the secret until ready
  State state_ = State::kPreamble;
  Refusal refusal_ = Refusal::kCount;
  std::string preamble_;    // what has come of the peer's
  size_t taken_ = 0;        // bytes, until ready
  size_t header_have_ = 0;  // of a TLS record's header of 5 bytes, of which the last two are its length
  unsigned char header_[5] = {};
  size_t record_left_ = 0;    // of the record that header_ begins
  size_t records_ = 0;        // at least, under the key that Send has now
  std::string first_flight_;  // its random number
  std::unique_ptr<Tls> tls_;
};

// What a listener without a free descriptor says in place of its preamble: its preamble with level 255.
std::string NoDescriptorsPreamble(Purpose purpose);

// Takes the connecting side of a channel over a non-blocking socket until it is ready, by the deadline.
// ERRORS  PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAVAILABLE (the peer closed), DEADLINE_EXCEEDED
absl::Status ShakeHands(int socket, Channel* channel, Deadline deadline);

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_CHANNEL_H_
