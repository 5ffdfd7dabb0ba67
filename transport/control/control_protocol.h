// The messages of the control channel, and nothing but their bytes: encoding, decoding, cutting a stream into frames.
//
//   frame     = length:u32 type:u8 payload          length counts the type and the payload: 1 to the reader's limit
//   string    = length:u32 byte*
//   list(x)   = count:u32 x*
//   status    = code:u32 string                     an absl::StatusCode, never OK
//   error     = status info:string                  info is what base/error_info.h says of the error
//   address   = string                              "10.0.0.7:4411", "[fe80::1%eth0]:4411"; empty for none
//   member    = rank:u32 host:string host_id:string pid:i64 address shm_address:string ofi_address:string
//               list(word:u64)
//   progress  = channel:u32 started:u64 completed:u64
//   note      = rank:u32 string
//
//   type          direction  payload
//    1 hello      to hub     magic:u32 version:u16 job_id:string rank:u32 size:u32 world:u64 host:string pid:i64
//    2 welcome    to rank    world:u64 peer_timeout_ms:u64 hub:member
//    3 reject     to rank    reason:u8 status
//    4 join       to hub     member list(name:string value:string)
//    5 joined     to rank    list(member)           in rank order
//    6 join failed to rank   error
//    7 give up    to hub                            the sender's deadline for joining has passed
//    8 waiting    to rank    string                 whom everybody waits for
//    9 ping       to rank    nonce:u64              0: a heartbeat; else to be answered with that nonce
//   10 pong       to hub     nonce:u64 list(progress)   0: a heartbeat
//   11 report     to hub     channel:u32 suspect:u32 error     suspect 0xffffffff: nobody
//   12 late       to hub     channel:u32 sequence:u64 operation:string
//   13 failure    to rank    channel:u32 error      channel 0xffffffff: all
//   14 post note  to hub     channel:u32 topic:u64 string
//   15 await notes to hub    request:u64 channel:u32 topic:u64 count:u32
//   16 drop notes to hub     request:u64            the sender waits no longer
//   17 notes      to rank    request:u64 list(note)     in rank order
//   18 goodbye    both
//   19 ask        to rank    channel:u32 sequence:u64
//   20 called     to hub     channel:u32 sequence:u64 string     empty: not called yet, or long ago
//   21 enter barrier to hub  request:u64 channel:u32 sequence:u64 count:u32 timeout_ms:u64    answered by notes: empty ones of the
//                            ranks that have entered; fewer than `count` when somebody's time is up
//   22 closed     to hub     channel:u32 members:u32 started:u64
//   23 exiting    to hub                            the process exits, and nobody has said goodbye
//
// All integers are little-endian. A connection begins with hello, which welcome or reject answers. Every version keeps
// the frame, the first two fields of hello, and reject, so that two versions can tell each other what is wrong.
//
// Pure functions and plain values; FrameReader belongs to one thread.

#ifndef TRANSPORT_CONTROL_CONTROL_PROTOCOL_H_
#define TRANSPORT_CONTROL_CONTROL_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
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
#include "transport/transport.h"

namespace lockstep {
namespace control {

inline constexpr uint32_t kMagic = 0x4354534c;  // "LSTC"
inline constexpr uint16_t kVersion = 3;

// Limits of a frame (its `length`): before the hello was understood, from a rank, from the hub.
inline constexpr size_t kHelloBytesMax = 4096;
inline constexpr size_t kRankFrameBytesMax = size_t{1} << 20;
inline constexpr size_t kHubFrameBytesMax = size_t{16} << 20;
inline constexpr size_t kNoteBytesMax = size_t{64} << 10;
inline constexpr size_t kFrameHeaderBytes = 4;

inline constexpr uint32_t kNoRank = 0xffffffff;

enum class Type : uint8_t {
  kHello = 1,
  kWelcome = 2,
  kReject = 3,
  kJoin = 4,
  kJoined = 5,
  kJoinFailed = 6,
  kGiveUp = 7,
  kWaiting = 8,
  kPing = 9,
  kPong = 10,
  kReport = 11,
  kLate = 12,
  kFailure = 13,
  kPostNote = 14,
  kAwaitNotes = 15,
  kDropNotes = 16,
  kNotes = 17,
  kGoodbye = 18,
  kAsk = 19,
  kCalled = 20,
  kEnterBarrier = 21,
  kClosed = 22,
  kExiting = 23,
};

using ProgressList = std::vector<std::pair<ChannelId, Progress>>;

// Each message lists its fields once, in the order of the grammar; reader and writer both walk them with Fields.

struct Hello {
  static constexpr Type kType = Type::kHello;
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
  static constexpr Type kType = Type::kWelcome;
  uint64_t world = 0;
  uint64_t peer_timeout_ms = 0;  // rank 0's, which all ranks then use
  Member hub;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.world, self.peer_timeout_ms, self.hub);
  }
};

enum class RejectReason : uint8_t {
  kRefused = 0,      // this rank cannot take part in this world
  kOtherWorld = 1,   // the address is stale: another world's hub has it now, or one that this rank has left
  kSetupFailed = 2,  // this world has failed to form
};

struct Reject {
  static constexpr Type kType = Type::kReject;
  RejectReason reason = RejectReason::kRefused;
  absl::Status status;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.reason, self.status);
  }
};

struct Join {
  static constexpr Type kType = Type::kJoin;
  Member member;
  std::vector<AgreedOption> options;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.member, self.options);
  }
};

struct Joined {
  static constexpr Type kType = Type::kJoined;
  std::vector<Member> members;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.members);
  }
};

struct JoinFailed {
  static constexpr Type kType = Type::kJoinFailed;
  absl::Status status;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec.Error(self.status);
  }
};

struct GiveUp {
  static constexpr Type kType = Type::kGiveUp;
  template <typename Self, typename Codec>
  static void Fields(Self&, Codec&) {}
};

struct Waiting {
  static constexpr Type kType = Type::kWaiting;
  std::string text;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.text);
  }
};

struct Ping {
  static constexpr Type kType = Type::kPing;
  uint64_t nonce = 0;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.nonce);
  }
};

struct Pong {
  static constexpr Type kType = Type::kPong;
  uint64_t nonce = 0;
  ProgressList progress;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.nonce, self.progress);
  }
};

struct Report {
  static constexpr Type kType = Type::kReport;
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
  static constexpr Type kType = Type::kLate;
  ChannelId channel = 0;
  uint64_t sequence = 0;
  std::string operation;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.channel, self.sequence, self.operation);
  }
};

struct FailureMessage {
  static constexpr Type kType = Type::kFailure;
  ChannelId channel = 0;
  absl::Status status;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.channel);
    codec.Error(self.status);
  }
};

struct PostNote {
  static constexpr Type kType = Type::kPostNote;
  ChannelId channel = 0;
  uint64_t topic = 0;
  std::string text;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.channel, self.topic, self.text);
  }
};

struct AwaitNotes {
  static constexpr Type kType = Type::kAwaitNotes;
  uint64_t request = 0;
  ChannelId channel = 0;
  uint64_t topic = 0;
  uint32_t count = 0;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.request, self.channel, self.topic, self.count);
  }
};

struct DropNotes {
  static constexpr Type kType = Type::kDropNotes;
  uint64_t request = 0;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.request);
  }
};

struct Notes {
  static constexpr Type kType = Type::kNotes;
  uint64_t request = 0;
  std::vector<std::pair<Rank, std::string>> notes;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.request, self.notes);
  }
};

struct Goodbye {
  static constexpr Type kType = Type::kGoodbye;
  template <typename Self, typename Codec>
  static void Fields(Self&, Codec&) {}
};

struct Ask {
  static constexpr Type kType = Type::kAsk;
  ChannelId channel = 0;
  uint64_t sequence = 0;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.channel, self.sequence);
  }
};

struct Called {
  static constexpr Type kType = Type::kCalled;
  ChannelId channel = 0;
  uint64_t sequence = 0;
  std::string text;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.channel, self.sequence, self.text);
  }
};

struct EnterBarrier {
  static constexpr Type kType = Type::kEnterBarrier;
  uint64_t request = 0;
  ChannelId channel = 0;
  uint64_t sequence = 0;  // counts the channel's monitored barriers
  uint32_t count = 0;     // of ranks that are to enter
  uint64_t timeout_ms = 0;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.request, self.channel, self.sequence, self.count, self.timeout_ms);
  }
};

struct Closed {
  static constexpr Type kType = Type::kClosed;
  ChannelId channel = 0;
  uint32_t members = 0;
  uint64_t started = 0;
  template <typename Self, typename Codec>
  static void Fields(Self& self, Codec& codec) {
    codec(self.channel, self.members, self.started);
  }
};

struct Exiting {
  static constexpr Type kType = Type::kExiting;
  template <typename Self, typename Codec>
  static void Fields(Self&, Codec&) {}
};

using Message = std::variant<Hello, Welcome, Reject, Join, Joined, JoinFailed, GiveUp, Waiting, Ping, Pong, Report,
                             Late, FailureMessage, PostNote, AwaitNotes, DropNotes, Notes, Goodbye, Ask, Called,
                             EnterBarrier, Closed, Exiting>;

// A whole frame, its length included.
std::string Encode(const Message& message);

// `frame` is what the length counts: the type and the payload. INVALID_ARGUMENT says what does not follow the grammar.
// Never allocates more than a small multiple of the frame's bytes.
absl::StatusOr<Message> Decode(absl::string_view frame);

// Cuts a byte stream into frames.
class FrameReader {
 public:
  explicit FrameReader(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // For frames whose length has not been looked at yet.
  void set_limit_bytes(size_t limit_bytes) { limit_bytes_ = limit_bytes; }

  void Append(const char* data, size_t bytes) { buffer_.append(data, bytes); }

  // True when there is a whole frame; *frame then holds until the next call of anything here. INVALID_ARGUMENT when a
  // length is zero or beyond the limit: nothing sensible can follow on this stream.
  absl::StatusOr<bool> Next(absl::string_view* frame);

 private:
  size_t limit_bytes_;
  std::string buffer_;
  size_t begin_ = 0;  // of what has not been returned yet
};

// What rank 0 puts into the store: where its hub is, which world it serves, and whose it is.
struct HubRecord {
  SocketAddress address;
  uint64_t world = 0;
  int64_t pid = 0;
  int attempt = 0;  // ControlOptions::attempt of rank 0
  std::string host;
};
std::string EncodeHubRecord(const HubRecord& record);
absl::StatusOr<HubRecord> DecodeHubRecord(absl::string_view text);

// What stands in its place once it is known that there will be no world: why, and which ranks have not read it yet. The same in
// every version.
struct FailureRecord {
  int64_t seconds = 0;      // since 1970, by the clock of who wrote it
  int attempt = 0;          // ControlOptions::attempt of who wrote it
  std::vector<int> untold;  // sorted
  absl::Status status;      // names the rank that says so
};
std::string EncodeFailureRecord(const FailureRecord& record);
absl::StatusOr<FailureRecord> DecodeFailureRecord(absl::string_view text);

}  // namespace control
}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_PROTOCOL_H_
