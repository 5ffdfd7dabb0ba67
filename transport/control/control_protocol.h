// The messages of the control channel, and nothing but their bytes: encoding, decoding, cutting a stream into frames.
//
//   frame     = length:u32 type:u8 payload          length counts the type and the payload: 1 to the reader's limit
//   string    = length:u32 byte*
//   list(x)   = count:u32 x*
//   status    = code:u32 string                     an absl::StatusCode, never OK
//   error     = status info:string                  info is what base/error_info.h says of the error
//   address   = string                              "10.0.0.7:4411", "[fe80::1%eth0]:4411"; empty for none
//   member    = rank:u32 host:string host_id:string pid:i64 launched_as:i64 address shm_address:string ofi_address:string
//               list(word:u64)
//   progress  = channel:u32 started:u64 completed:u64
//   posted    = rank:u32 string
//   secret    = string                              of 32 bytes; empty for none
//
//   type              to           payload
//    1 hello          coordinator  magic:u32 version:u16 job_id:string rank:u32 size:u32 world:u64 host:string pid:i64
//    2 welcome        rank         world:u64 peer_timeout_ms:u64 coordinator:member secret
//    3 reject         rank         reason:u8 status
//    4 join           coordinator  member list(name:string value:string)
//    5 joined         rank         list(member)           in rank order
//    6 join failed    rank         error
//    7 give up        coordinator                         the sender's deadline for joining has passed
//    8 waiting        rank         string                 which ranks are missing
//    9 ping           rank         nonce:u64              0: a heartbeat; else to be answered with that nonce
//   10 pong           coordinator  nonce:u64 list(progress)   0: a heartbeat
//   11 report         coordinator  channel:u32 suspect:u32 error     suspect 0xffffffff: nobody
//   12 late           coordinator  channel:u32 sequence:u64 operation:string
//   13 failure        rank         channel:u32 error      channel 0xffffffff: all
//   14 post message   coordinator  channel:u32 topic:u64 string
//   15 await messages coordinator  request:u64 channel:u32 topic:u64 count:u32
//   16 drop messages  coordinator  request:u64            the sender waits no longer
//   17 posted messages rank        request:u64 list(posted)      in rank order
//   18 disconnect     both
//   19 ask            rank         channel:u32 sequence:u64
//   20 called         coordinator  channel:u32 sequence:u64 string     empty: not called yet, or long ago
//   21 enter barrier  coordinator  request:u64 channel:u32 sequence:u64 count:u32 timeout_ms:u64    answered by posted messages:
//                                  empty ones of the ranks that have entered; fewer than `count` after a timeout
//   22 closed         coordinator  channel:u32 members:u32 started:u64
//   23 exiting        coordinator                         the process exits without having disconnected
//
// All integers are little-endian. Frames go through a Channel (transport/secure/channel.h), whose handshake comes first. Then hello, which
// welcome or reject answers. Every version keeps the frame, the first two fields of hello, and reject, so that two versions can
// tell each other what is wrong.
//
// Pure functions and plain values; FrameReader belongs to one thread.

#ifndef TRANSPORT_CONTROL_CONTROL_PROTOCOL_H_
#define TRANSPORT_CONTROL_CONTROL_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/rank.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"
#include "transport/secure/secret.h"
#include "transport/transport.h"

namespace lockstep::control {

inline constexpr uint32_t kMagic = 0x4354534c;  // "LSTC"
inline constexpr uint16_t kVersion = 6;

// Limits of a frame (its `length`): before the hello was understood, from a rank, from the coordinator.
inline constexpr size_t kHelloBytesMax = 4096;
inline constexpr size_t kRankFrameBytesMax = size_t{1} << 20;
inline constexpr size_t kCoordinatorFrameBytesMax = size_t{16} << 20;
inline constexpr size_t kPostedBytesMax = size_t{64} << 10;
inline constexpr size_t kFrameHeaderBytes = 4;

inline constexpr uint32_t kNoRank = 0xffffffff;

using ProgressList = std::vector<std::pair<ChannelId, Progress>>;

// Each message lists its fields once, in the order of the grammar; reader and writer both walk them with Fields.
#define LOCKSTEP_CONTROL_FIELDS(...)             \
  template <typename Self, typename Codec>       \
  static void Fields(Self& self, Codec& codec) { \
    codec(__VA_ARGS__);                          \
  }

struct Hello {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  std::string job_id;
  uint32_t rank = 0;
  uint32_t size = 0;
  uint64_t world = 0;
  std::string host;
  int64_t pid = 0;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.magic, self.version);
    // What follows is this version's own business.
    if (self.magic != kMagic || self.version != kVersion) return codec.IgnoreRest();
    codec(self.job_id, self.rank, self.size, self.world, self.host, self.pid);
  }
};

struct Welcome {
  uint64_t world = 0;
  uint64_t peer_timeout_ms = 0;  // rank 0's, which all ranks then use
  Member coordinator;
  // The world's, for its connections that carry data; null without security. Last, so that encoding leaves no copy of it behind.
  std::shared_ptr<const Secret> secret;
  LOCKSTEP_CONTROL_FIELDS(self.world, self.peer_timeout_ms, self.coordinator, self.secret)
};

enum class RejectReason : uint8_t {
  kRefused = 0,      // this rank cannot take part in this world
  kOtherWorld = 1,   // the address is stale: another world's coordinator has it now, or one that this rank has left
  kSetupFailed = 2,  // this world has failed to form
};

struct Reject {
  RejectReason reason = RejectReason::kRefused;
  absl::Status status;
  LOCKSTEP_CONTROL_FIELDS(self.reason, self.status)
};

struct Join {
  Member member;
  std::vector<AgreedOption> options;
  LOCKSTEP_CONTROL_FIELDS(self.member, self.options)
};

struct Joined {
  std::vector<Member> members;
  LOCKSTEP_CONTROL_FIELDS(self.members)
};

struct JoinFailed {
  absl::Status status;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec.Error(self.status);
  }
};

struct GiveUp {
  LOCKSTEP_CONTROL_FIELDS()
};

struct Waiting {
  std::string text;
  LOCKSTEP_CONTROL_FIELDS(self.text)
};

struct Ping {
  uint64_t nonce = 0;
  LOCKSTEP_CONTROL_FIELDS(self.nonce)
};

struct Pong {
  uint64_t nonce = 0;
  ProgressList progress;
  LOCKSTEP_CONTROL_FIELDS(self.nonce, self.progress)
};

struct Report {
  ChannelId channel = 0;
  uint32_t suspect = kNoRank;
  absl::Status status;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.channel, self.suspect);
    codec.Error(self.status);
  }
};

struct Late {
  ChannelId channel = 0;
  uint64_t sequence = 0;
  std::string operation;
  LOCKSTEP_CONTROL_FIELDS(self.channel, self.sequence, self.operation)
};

struct FailureMessage {
  ChannelId channel = 0;
  absl::Status status;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.channel);
    codec.Error(self.status);
  }
};

struct PostMessage {
  ChannelId channel = 0;
  uint64_t topic = 0;
  std::string text;
  LOCKSTEP_CONTROL_FIELDS(self.channel, self.topic, self.text)
};

struct AwaitMessages {
  uint64_t request = 0;
  ChannelId channel = 0;
  uint64_t topic = 0;
  uint32_t count = 0;
  LOCKSTEP_CONTROL_FIELDS(self.request, self.channel, self.topic, self.count)
};

struct DropMessages {
  uint64_t request = 0;
  LOCKSTEP_CONTROL_FIELDS(self.request)
};

struct PostedMessages {
  uint64_t request = 0;
  std::vector<std::pair<Rank, std::string>> messages;
  LOCKSTEP_CONTROL_FIELDS(self.request, self.messages)
};

struct Disconnect {
  LOCKSTEP_CONTROL_FIELDS()
};

struct Ask {
  ChannelId channel = 0;
  uint64_t sequence = 0;
  LOCKSTEP_CONTROL_FIELDS(self.channel, self.sequence)
};

struct Called {
  ChannelId channel = 0;
  uint64_t sequence = 0;
  std::string text;
  LOCKSTEP_CONTROL_FIELDS(self.channel, self.sequence, self.text)
};

struct EnterBarrier {
  uint64_t request = 0;
  ChannelId channel = 0;
  uint64_t sequence = 0;  // counts the channel's monitored barriers
  uint32_t count = 0;     // of ranks that are to enter
  uint64_t timeout_ms = 0;
  LOCKSTEP_CONTROL_FIELDS(self.request, self.channel, self.sequence, self.count, self.timeout_ms)
};

struct Closed {
  ChannelId channel = 0;
  uint32_t members = 0;
  uint64_t started = 0;
  LOCKSTEP_CONTROL_FIELDS(self.channel, self.members, self.started)
};

struct Exiting {
  LOCKSTEP_CONTROL_FIELDS()
};

#undef LOCKSTEP_CONTROL_FIELDS

// In the order of their types on the wire, which begin with 1: append, never reorder.
using Message = std::variant<Hello, Welcome, Reject, Join, Joined, JoinFailed, GiveUp, Waiting, Ping, Pong, Report,
                             Late, FailureMessage, PostMessage, AwaitMessages, DropMessages, PostedMessages, Disconnect,
                             Ask, Called, EnterBarrier, Closed, Exiting>;
static_assert(std::is_same_v<std::variant_alternative_t<3 - 1, Message>, Reject> &&
                  std::is_same_v<std::variant_alternative_t<18 - 1, Message>, Disconnect> &&
                  std::is_same_v<std::variant_alternative_t<23 - 1, Message>, Exiting>,
              "types on the wire");

// A whole frame, its length included.
std::string Encode(const Message& message);

// Decodes a frame without its length: the type and the payload. Allocates at most a small multiple of the frame's bytes.
// ERRORS  INVALID_ARGUMENT  it does not follow the grammar; says where
absl::StatusOr<Message> Decode(absl::string_view frame);

// Whether it is of the type of a hello, and says no more about it.
inline bool IsHello(absl::string_view frame) { return !frame.empty() && frame[0] == '\x01'; }

// Cuts a byte stream into frames. Overwrites what it has returned, which may have been a secret.
class FrameReader {
 public:
  explicit FrameReader(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // For frames whose length has not been looked at yet.
  void set_limit_bytes(size_t limit_bytes) { limit_bytes_ = limit_bytes; }

  void Append(const char* data, size_t bytes) { buffer_.append(data, bytes); }

  // RETURNS  true if there is a whole frame; *frame is then valid until the next call of any method
  // ERRORS   INVALID_ARGUMENT  a length is zero or beyond the limit; the stream is of no use then
  absl::StatusOr<bool> Next(absl::string_view* frame);

 private:
  size_t limit_bytes_;
  std::string buffer_;
  size_t begin_ = 0;  // of what has not been returned yet
};

// What rank 0 puts into the store: the address of its coordinator, the world that it serves, and whose it is.
struct CoordinatorRecord {
  SocketAddress address;
  uint64_t world = 0;
  int64_t pid = 0;
  int attempt = 0;  // ControlOptions::attempt of rank 0
  std::string host;
  // The job's, where rank 0 has drawn it; else null. Whoever can read the record can take part in the job.
  std::shared_ptr<const Secret> secret;
  int64_t seconds = 0;  // since 1970, by the clock of rank 0: when it was written
  std::string host_id;  // HostWord of rank 0's host; empty if unknown
};
// A host id as one word.
std::string HostWord(const std::string& host_id);
// ERRORS of decoding, which never tell what stands there
//   INVALID_ARGUMENT     it is no such record
//   FAILED_PRECONDITION  it is of another version
std::string EncodeCoordinatorRecord(const CoordinatorRecord& record);
absl::StatusOr<CoordinatorRecord> DecodeCoordinatorRecord(absl::string_view text);

// Replaces the coordinator's record if the set-up fails: why, and which ranks have not read it yet. Equal in all versions.
struct FailureRecord {
  int64_t seconds = 0;      // since 1970, by the clock of who wrote it
  int attempt = 0;          // ControlOptions::attempt of who wrote it
  std::vector<int> untold;  // sorted
  absl::Status status;      // names the rank that says so
};
std::string EncodeFailureRecord(const FailureRecord& record);
absl::StatusOr<FailureRecord> DecodeFailureRecord(absl::string_view text);

}  // namespace lockstep::control

#endif  // TRANSPORT_CONTROL_CONTROL_PROTOCOL_H_
