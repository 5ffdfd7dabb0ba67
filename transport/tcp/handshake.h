// What begins each connection of the TCP transport, over the channel that protects it (transport/secure/channel.h). Pure: bytes in,
// bytes out.
//
//   hello      = hello_prefix hello_body                                   connecting rank -> listening rank
//   prefix     = magic:u32 version:u16 reserved:u16 body_bytes:u32         the same in every version
//   body       = world_id:u64 source:u32 target:u32 channel:u32 chunk_bytes:u32 instance:u32
//                socket:u16 sockets:u16 job_id_bytes:u16 records:u16 job_id
//   answer     = magic:u32 version:u16 verdict:u16 detail:u32 kernel_tls:u32  back; the same in every version
//
// Little-endian. Reserved fields are 0 and not looked at. After an answer of kAccepted both ranks send messages
// (transport/link/link.h), and no longer over the channel: as they are if `records` is 0; in the kernel's TLS records
// (transport/tcp/kernel_tls.h) if it is 2 and the answer's kernel_tls is 1; else in records of our own
// (transport/link/record_stream.h). Otherwise both sides close.

#ifndef TRANSPORT_TCP_HANDSHAKE_H_
#define TRANSPORT_TCP_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/rank.h"
#include "transport/posting.h"
#include "transport/transport.h"

namespace lockstep {

// 1 had a connection for each direction, 2 no channel.
inline constexpr uint16_t kTcpProtocolVersion = 3;
inline constexpr uint32_t kHelloMagic = 0x31534b4c;   // "LKS1"
inline constexpr uint32_t kAnswerMagic = 0x41534b4c;  // "LKSA"
inline constexpr size_t kHelloPrefixBytes = 12;
inline constexpr size_t kHelloBodyBytesMax = 4096;
inline constexpr size_t kAnswerBytes = 16;
inline constexpr size_t kJobIdBytesMax = 1024;

// Who connects to whom, and under which assumptions.
struct Hello {
  std::string job_id;
  uint64_t world_id = 0;
  Rank source;
  Rank target;
  ChannelId channel = 0;
  uint32_t chunk_bytes = 0;
  // A random number of the source's transport: tells a second connection of the same process, which crossed another,
  // from one of a second process that claims its rank.
  uint32_t instance = 0;
  // Which of the connection's sockets this is, and of how many.
  uint16_t socket = 0;
  uint16_t sockets = 1;
  // Whether the source takes it that messages travel in records.
  bool records = false;
  // With records: whether the source can have the kernel's TLS in their place.
  bool kernel_tls = false;
};

// The numbers are part of the wire format: append, never reorder.
enum class Verdict : uint16_t {
  kAccepted = 0,
  kOtherVersion = 1,  // answer.version says which the listener speaks
  kMalformed = 2,
  kOtherJob = 3,
  kOtherWorld = 4,
  kOtherRank = 5,       // detail: the listener's rank
  kNoSuchRank = 6,      // detail: the listener's world size
  kOtherChunkSize = 7,  // detail: the listener's chunk size
  kDuplicate = 8,       // this rank is connected on this channel already
  kOtherRecords = 9,    // detail: whether the listener takes it that messages travel in records
  kAborted = 10,        // the listener gave the channel up
  kCrossed = 11,        // the listener is connecting too, and its connection is the one that counts
  kOtherSockets = 12,   // detail: the listener's number of sockets
};

struct Answer {
  uint16_t version = kTcpProtocolVersion;
  Verdict verdict = Verdict::kAccepted;
  uint32_t detail = 0;      // with kAccepted: the listener's instance
  bool kernel_tls = false;  // with kAccepted: whether both ranks have it, so that messages travel so
};

// The whole hello, prefix included. The job id is at most kJobIdBytesMax long.
std::string EncodeHello(const Hello& hello);

// The first kHelloPrefixBytes of a hello.
struct HelloPrefix {
  bool ours = false;  // whether the magic is right: if not, an unauthenticated peer
  uint16_t version = 0;
  uint32_t body_bytes = 0;  // as claimed: not checked against kHelloBodyBytesMax
};
HelloPrefix DecodeHelloPrefix(const unsigned char* bytes);

// False when the body is not well-formed: lengths that do not add up to its size, ranks beyond an int, a socket that is
// none of as many, records that are none of the three.
bool DecodeHelloBody(absl::string_view body, Hello* hello);

// The verdict of the listening rank, which is `self`, uses `sockets` for each connection and takes it that messages travel in records or
// not, on a decoded hello, as far as it follows from the hello alone.
Answer JudgeHello(const Hello& hello, const WorldIdentity& self, int sockets, bool records);

// What the key of a connection's records is bound to, beside the handshake: the context for Channel::Export, for records that `from` sends,
// of our own or the kernel's.
std::string RecordContext(const Hello& hello, Rank from, bool kernel_tls);

void EncodeAnswer(const Answer& answer, unsigned char* target);
// False when these bytes are no answer of ours.
bool DecodeAnswer(const unsigned char* bytes, Answer* answer);

// Why the peer turned `hello` away, for the connecting rank: FAILED_PRECONDITION; UNAVAILABLE for kAborted and
// kCrossed.
absl::Status RejectionStatus(const Answer& answer, const Hello& hello);

// The same for whoever turned it away: "it says that it is rank 1, as which another process is connected already: ...".
std::string RefusalText(const Answer& answer, const Hello& hello);

}  // namespace lockstep

#endif  // TRANSPORT_TCP_HANDSHAKE_H_
