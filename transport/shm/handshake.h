// What two processes of one host say to each other over unix sockets (docs/wire_formats.md), behind a handshake whose flights are messages
// (transport/secure/channel.h). Pure: bytes in, bytes out.
//
//   hello   = magic:u32 version:u16 zero:u16 world_id:u64 nonce:u64 source:u32 target:u32 chunk_bytes:u32
//             job_id_bytes:u32 job_id                        with the descriptors of the source's doorbell: page, event
//   answer  = magic:u32 version:u16 zero:u16 code:u32 text_bytes:u32 text             back; code is absl::StatusCode
//   notice  = kind:u32 channel:u32 cells:u32 ring_bytes:u32 bytes:u64                 source to target, after answers
//
//   kind 1 mailbox   the source sends on this channel through the memory that comes with it
//   kind 2 closed    the source gave this channel up, both ways
//   kind 3 arena     the source's part of symmetric arena `channel`, of `bytes`, comes with it; of 0 bytes: it has none
//   kind 4 mapped    of arena `channel`; `bytes` is 1 if the source has mapped all parts, and 0 if it cannot
//
// Each is one message of a SOCK_SEQPACKET socket. Little-endian, as on every connection of ours.

#ifndef TRANSPORT_SHM_HANDSHAKE_H_
#define TRANSPORT_SHM_HANDSHAKE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/rank.h"
#include "transport/posting.h"
#include "transport/shm/mailbox.h"

namespace lockstep {

// Covers the layout of mailboxes and arenas too. 1 had no handshake.
inline constexpr uint16_t kShmProtocolVersion = 2;
inline constexpr size_t kShmJobIdBytesMax = 1024;

// Where a rank is met: "lockstep-4f1c22aa90ee1b07/9d0c5e6a77b3f218/effffffd", the name of its socket, its nonce and its user namespace
// (transport/secure/user.h), both in hex.
struct ShmAddress {
  std::string name;
  uint64_t nonce = 0;
  uint64_t user_namespace = 0;

  std::string ToString() const;
  // INVALID_ARGUMENT for any other text.
  static absl::StatusOr<ShmAddress> Parse(absl::string_view text);
};

struct ShmHello {
  std::string job_id;
  uint64_t world_id = 0;
  // The target's, from its address: a process that does not know it was not told of this rank.
  uint64_t nonce = 0;
  Rank source;
  Rank target;
  uint32_t chunk_bytes = 0;
};

// What the target compares a hello with.
struct ShmExpectation : WorldIdentity {
  uint64_t nonce = 0;
};

enum class ShmNoticeKind : uint32_t { kMailbox = 1, kClosed = 2, kArena = 3, kMapped = 4 };

struct ShmNotice {
  ShmNoticeKind kind = ShmNoticeKind::kMailbox;
  uint32_t channel = 0;
  MailboxGeometry geometry;
  uint64_t bytes = 0;
};

std::string EncodeHello(const ShmHello& hello);
// FAILED_PRECONDITION when it is of another version; INVALID_ARGUMENT when it is no hello.
absl::StatusOr<ShmHello> DecodeHello(absl::string_view bytes);
// OK, or FAILED_PRECONDITION saying what does not fit.
absl::Status JudgeHello(const ShmHello& hello, const ShmExpectation& expected);

// Texts longer than a message are cut.
std::string EncodeAnswer(const absl::Status& answer);
// What the peer answered; FAILED_PRECONDITION when these bytes are no answer.
absl::Status DecodeAnswer(absl::string_view bytes);

std::string EncodeNotice(const ShmNotice& notice);
// INVALID_ARGUMENT when it is none, or its geometry is impossible.
absl::StatusOr<ShmNotice> DecodeNotice(absl::string_view bytes);

}  // namespace lockstep

#endif  // TRANSPORT_SHM_HANDSHAKE_H_
