// What ranks say to each other over an endpoint. Pure: bytes in, bytes out.
//
// Two kinds of messages, told apart by their tags, of which 48 bits are used:
//
//   tag       = 1:1 nonce:16 piece:31        a piece of a long message, into memory that waits for it
//             | 0:1 0:7 kind:8 channel:32    a notice: in one slot of up to kOfiSlotBytes
//   notice    = token:u64 number:u32 expected:u32 envelope:32 bytes, and then by kind
//     eager   = payload                      message `number` of the channel, whole
//     announce = bytes:u64                  message `number` of the channel is one of so many bytes: may it come?
//     grant   = bytes:u64 piece:u64 piece_bytes:u32 pieces:u32
//                                            so many pieces of message `number`, which is so long, have memory that
//                                            waits, the first under the tag `piece` and each under the next
//     discard = -                            message `number` is not wanted: take it as received
//     credit  = -                            for `expected` alone
//     closed  = sent:u32                     the channel has ended on this side: nothing of it is sent any more, and
//                                            nothing received that has not been: the first `number` messages. The
//                                            first `sent` messages have left, whatever of them is yet to arrive
//     disconnect = -                        this rank has ended
//     hello   = magic:u32 version:u32 address_bytes:u32 address flight
//                                            somebody who is reached at `address` wants to shake hands
//     welcome = flight                       in answer
//     confirm = flight and, protected, handshake
//                                            who I am, and the token for notices to me
//     answer  = protected: verdict:u32 detail:u64 token:u64
//                                            whether they may come, and the token for notices in return
//     refused = verdict:u32 detail:u64       in answer to a hello of another version
//   handshake = token:u64 world_id:u64 source:u32 world_size:u32 target:u32 chunk_bytes:u32 job_id_bytes:u32
//               provider_bytes:u32 job_id provider
//
// Flights and what is protected are those of a Channel (transport/secure/channel.h) at the world's level; who says hello is the
// side that connects. In these five kinds of notices `token` is a random number that the hello has and its answers repeat, and
// `number` is the rank that the sender claims to be. Nothing else is protected: whoever is on the fabric can read and change
// what ranks send each other.
//
// Numbers are little-endian. `number` counts the messages from one rank to another on a channel, modulo 2^32.
// `expected` is about the messages that come back: the notice's sender has posted receives for all before this number. It
// tells of no more than kOfiUnexpectedMax after the first that has not completed, since a provider may lose what it has no
// room for. A rank may send eager and announce with numbers up to kOfiUnexpectedMax beyond what is expected. A token is a
// random number that a rank hands to one peer in the handshake, and tells that peer's notices from all others: what does not
// begin with one is dropped. A fabric may deliver in another order than things were sent in.
//
// Version 1 had no authentication. Its notices began with token:u32 source:u32, and its hello with magic:u32 version:u32
// token:u32: such a hello is refused, in a refusal that is as it was.

#ifndef TRANSPORT_OFI_WIRE_H_
#define TRANSPORT_OFI_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/rank.h"
#include "transport/transport.h"

namespace lockstep {

inline constexpr uint32_t kOfiProtocolVersion = 2;
inline constexpr uint32_t kOfiMagic = 0x314f4b4c;  // "LKO1", the same in all versions
inline constexpr size_t kOfiSlotBytes = 8192;
inline constexpr size_t kOfiNoticeBytes = 48;
// A payload of up to this many bytes is sent without being asked for.
inline constexpr size_t kOfiEagerBytesMax = kOfiSlotBytes - kOfiNoticeBytes;
inline constexpr size_t kOfiJobIdBytesMax = 1024;
inline constexpr size_t kOfiAddressBytesMax = 1024;
// How many messages of a channel may wait at a rank that has posted no receive for them.
inline constexpr uint32_t kOfiUnexpectedMax = 32;

// Part of the wire format: append, never reorder.
enum class OfiKind : uint8_t {
  kEager = 1,
  kAnnounce = 2,
  kGrant = 3,
  kDiscard = 4,
  kCredit = 5,
  kClosed = 6,
  kDisconnect = 7,
  kHello = 8,
  kWelcome = 9,
  kRefused = 10,
  kConfirm = 11,
  kAnswer = 12,
};

inline constexpr uint64_t kOfiPieceTag = uint64_t{1} << 47;
inline constexpr uint64_t kOfiNoticeIgnore = kOfiPieceTag - 1;  // all notices match a receive with tag 0

constexpr uint64_t OfiNoticeTag(OfiKind kind, ChannelId channel) { return static_cast<uint64_t>(kind) << 32 | channel; }
constexpr OfiKind OfiKindOf(uint64_t tag) { return static_cast<OfiKind>(tag >> 32 & 0xff); }
constexpr ChannelId OfiChannelOf(uint64_t tag) { return static_cast<ChannelId>(tag); }

struct OfiNotice {
  uint64_t token = 0;
  uint32_t number = 0;
  uint32_t expected = 0;
  Envelope envelope = {};
};
void EncodeOfiNotice(const OfiNotice& notice, unsigned char* target);
OfiNotice DecodeOfiNotice(const unsigned char* source);

struct OfiGrant {
  uint64_t bytes = 0;
  uint64_t piece = 0;
  uint32_t piece_bytes = 0;
  uint32_t pieces = 0;
};
inline constexpr size_t kOfiGrantBytes = 24;
void EncodeOfiGrant(const OfiGrant& grant, unsigned char* target);
OfiGrant DecodeOfiGrant(const unsigned char* source);

struct OfiHello {
  uint32_t version = kOfiProtocolVersion;
  uint32_t old_token = 0;  // of version 1, which has nothing of what follows
  std::string address;
  std::string flight;
};
std::string EncodeOfiHello(const OfiHello& hello);
// False when these bytes are no hello of ours, of whatever version.
bool DecodeOfiHello(absl::string_view bytes, OfiHello* hello);

struct OfiHandshake {
  uint64_t token = 0;
  uint64_t world_id = 0;
  uint32_t source = 0;
  uint32_t world_size = 0;
  uint32_t target = 0;
  uint32_t chunk_bytes = 0;
  std::string job_id;
  std::string provider;
};
std::string EncodeOfiHandshake(const OfiHandshake& handshake);
bool DecodeOfiHandshake(absl::string_view bytes, OfiHandshake* handshake);

// Part of the wire format: append, never reorder.
enum class OfiVerdict : uint32_t {
  kAccepted = 0,
  kOtherVersion = 1,  // detail: the version of whoever refuses
  kOtherJob = 2,
  kOtherWorld = 3,
  kOtherRank = 4,       // detail: the rank of whoever refuses
  kOtherWorldSize = 5,  // detail: the world size of whoever refuses; the next three likewise
  kOtherChunkSize = 6,
  kOtherProvider = 7,
  kDuplicate = 8,   // another process has this rank, or is where this rank is known to be
  kNoSuchRank = 9,  // detail: the world size of whoever refuses; the source is outside of it, or is who refuses
  kGone = 10,       // whoever refuses has lost this rank, or given it up
};

struct OfiRefusal {
  OfiVerdict verdict = OfiVerdict::kAccepted;
  uint64_t detail = 0;
};
inline constexpr size_t kOfiRefusalBytes = 12;
void EncodeOfiRefusal(const OfiRefusal& refusal, unsigned char* target);
OfiRefusal DecodeOfiRefusal(const unsigned char* source);

struct OfiAnswer {
  OfiRefusal refusal;
  uint64_t token = 0;  // 0 unless accepted
};
std::string EncodeOfiAnswer(const OfiAnswer& answer);
bool DecodeOfiAnswer(absl::string_view bytes, OfiAnswer* answer);

// What a rank that would itself send `own` says to `handshake` from a peer that its notices say to be `source`.
OfiRefusal CheckOfiHandshake(const OfiHandshake& handshake, uint32_t source, const OfiHandshake& own);

// Why the peer refused a rank that sent `own`: FAILED_PRECONDITION.
absl::Status OfiRefusalStatus(const OfiRefusal& refusal, const OfiHandshake& own);

// Returns the name of an endpoint from the hexadecimal text in which ranks exchange it. If the text is not hexadecimal, returns "",
// which no provider takes for a name. (Abseil's own function changed its signature between the releases that we build with.)
std::string DecodeOfiName(absl::string_view hex);

}  // namespace lockstep

#endif  // TRANSPORT_OFI_WIRE_H_
