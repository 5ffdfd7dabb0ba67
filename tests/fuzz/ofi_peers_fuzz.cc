// Rank 0 of two over a provider of libfabric in memory: what is where rank 1 should be says anything. It can shake hands as rank 1
// does, with the world's secret or with another; everything that it says may be changed, come at any time, and be made up.
//
//   input = mode:u8 claims:u8 { event }        mode: bits 0 and 1 the level, bit 2 it has the secret, bit 3 the fabric does not keep order,
//                                              bit 4 the provider refuses now and then
//   event = kind:u8 ...                        kind modulo 8:
//       0 changes:u8 { at:u8 flip:u8 }         it begins a handshake; so is changed what it says in it
//       1 polls:u8                             rank 0 polls, and the other answers handshakes
//       2 notice:u8 channel:u8 token:u8 number:u8 expected:u8 envelope:u8 text     a notice, whose kind is `notice`
//       3 notice:u8 channel:u8 text            bytes of a notice
//       4 channel:u8 bytes:u16                 rank 0 sends
//       5 channel:u8 bytes:u16 reduced:u8      rank 0 receives
//       6 piece:u8 bytes:u16                   a piece of the message that rank 0 has asked for
//       7 bytes:u64 piece:u64 piece_bytes:u32 pieces:u32 number:u8                 it asks for a message of rank 0's

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"
#include "tests/fuzz/fuzz.h"
#include "transport/net/little_endian.h"
#include "transport/ofi/fake_provider.h"
#include "transport/ofi/ofi_testing.h"
#include "transport/ofi/ofi_transport.h"
#include "transport/ofi/wire.h"
#include "transport/secure/channel.h"
#include "transport/secure/refusals.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

constexpr int kChannels = 2;
constexpr size_t kMessageBytesMax = 20'000;
// Messages of more bytes than that are asked for, in pieces of as many.
constexpr uint32_t kPieceBytes = 4096;
constexpr size_t kOperationsMax = 64;

enum Mode : uint8_t { kHasSecret = 4, kScrambles = 8, kRefuses = 16 };

Envelope TheEnvelope() { return {'f', 'u', 'z', 'z'}; }

void Add(void* target, const void* operand, const void* arriving, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t a, b;
    std::memcpy(&a, static_cast<const char*>(operand) + 4 * i, 4);
    std::memcpy(&b, static_cast<const char*>(arriving) + 4 * i, 4);
    a += b;
    std::memcpy(static_cast<char*>(target) + 4 * i, &a, 4);
  }
}
const Reduction kAdd = {DType::kU32, ReduceOp::kSum, &Add};

// A send or a receive of rank 0's.
struct Made {
  Operation operation;  // the first member
  std::vector<char> memory;
  bool receives = false;
  int completions = 0;
  absl::Status status;

  static void OnComplete(Operation* operation, const absl::Status& status) {
    auto* const self = reinterpret_cast<Made*>(operation);
    ++self->completions;
    self->status = status;
  }
};

// What rank 1 says of itself; `wrong` is what it says wrong.
OfiHandshake HandshakeOfRankOne(uint8_t wrong) {
  const WorldIdentity self = TestIdentity(1, 2);
  OfiHandshake handshake;
  handshake.token = 0x1122334455667788;
  handshake.world_id = self.world_id ^ (wrong == 1 ? 1 : 0);
  handshake.source = wrong == 2 ? 0 : wrong == 3 ? 2 : 1;
  handshake.world_size = wrong == 4 ? 3 : 2;
  handshake.target = wrong == 5 ? 1 : 0;
  handshake.chunk_bytes = self.chunk_bytes + (wrong == 6 ? 1 : 0);
  handshake.job_id = self.job_id + (wrong == 7 ? "s" : "");
  handshake.provider = wrong == 8 ? "another" : "fake";
  return handshake;
}
constexpr uint8_t kClaims = 9;

bool OfHandshake(OfiKind kind) { return kind >= OfiKind::kHello && kind <= OfiKind::kAnswer; }

// Whoever is where rank 1 should be.
class Other {
 public:
  Other(const OfiApi* api, SecurityLevel level, bool has_secret, uint8_t wrong)
      : outsider_(api, ""), credentials_(OfiTestCredentials(level, has_secret ? 's' : 'x')), wrong_(wrong) {}

  const OfiOutsider& outsider() const { return outsider_; }
  void Meet(std::string rank_zero) { rank_zero_ = std::move(rank_zero); }
  // Whether rank 0 has accepted it, or has said something that it says to ranks alone.
  bool admitted() const { return admitted_; }

  void Begin(std::string changes) {
    changes_ = std::move(changes);
    connects_ = std::make_unique<Channel>(Purpose::kFabric, Channel::Side::kConnects, credentials_);
    OfiHello hello;
    hello.address = outsider_.name();
    hello.flight = connects_->Start();
    Shake(OfiKind::kHello, ++exchange_, EncodeOfiHello(hello));
  }

  // Answers what it has heard of handshakes.
  void Answer() {
    const std::deque<OfiOutsider::Heard>& heard = outsider_.heard();
    for (; answered_ < heard.size(); ++answered_) {
      const OfiOutsider::Heard& one = heard[answered_];
      if (!OfHandshake(one.kind)) admitted_ = true;
      if (one.kind == OfiKind::kHello) AnswerHello(one);
      if (one.kind == OfiKind::kWelcome && one.notice.token == exchange_) AnswerWelcome(one);
      if (one.kind == OfiKind::kConfirm) AnswerConfirm(one);
      if (one.kind == OfiKind::kAnswer && one.notice.token == exchange_) TakeAnswer(one);
      if (one.kind == OfiKind::kGrant && one.payload.size() >= kOfiGrantBytes) {
        asked_ = DecodeOfiGrant(reinterpret_cast<const unsigned char*>(one.payload.data()));
      }
    }
  }

  void Say(uint8_t kind, uint8_t channel, const std::string& bytes) {
    outsider_.Say(rank_zero_, OfiNoticeTag(static_cast<OfiKind>(kind), channel % kChannels), bytes);
  }
  void Say(uint8_t kind, uint8_t channel, OfiNotice notice, uint8_t token, absl::string_view payload) {
    notice.token = token % 4 == 0 ? token_ : token % 4 == 1 ? exchange_ : token % 4 == 2 ? hello_exchange_ : token;
    std::string bytes(kOfiNoticeBytes, '\0');
    EncodeOfiNotice(notice, reinterpret_cast<unsigned char*>(&bytes[0]));
    Say(kind, channel, bytes.append(payload.data(), payload.size()));
  }
  void SendPiece(uint8_t piece, size_t bytes) {
    const uint64_t tag = kOfiPieceTag | ((asked_.piece + piece) & (kOfiPieceTag - 1));
    outsider_.Say(rank_zero_, tag, std::string(bytes, 'p'));
  }

 private:
  void Shake(OfiKind kind, uint64_t exchange, std::string payload) {
    for (fuzz::Input changes(reinterpret_cast<const uint8_t*>(changes_.data()), changes_.size()); !changes.empty();) {
      const size_t at = changes.Take<uint8_t>() % std::max<size_t>(payload.size(), 1);
      const auto flip = changes.Take<uint8_t>();
      if (!payload.empty()) payload[at] = static_cast<char>(payload[at] ^ flip);
    }
    OfiNotice notice;
    notice.token = exchange;
    notice.number = 1;
    outsider_.Say(rank_zero_, kind, notice, payload);
  }

  // Whether the channel is ready. An error ends it.
  static bool Receive(std::unique_ptr<Channel>* channel, absl::string_view flight, std::string* plain,
                      std::string* to_send) {
    if (!(*channel)->Receive(flight, plain, to_send).ok()) *channel = nullptr;
    return *channel != nullptr && (*channel)->ready();
  }

  void AnswerHello(const OfiOutsider::Heard& heard) {
    OfiHello hello;
    LOCKSTEP_CHECK(DecodeOfiHello(heard.payload, &hello) && heard.notice.number == 0);
    hello_exchange_ = heard.notice.token;
    listens_ = std::make_unique<Channel>(Purpose::kFabric, Channel::Side::kListens, credentials_);
    (void)listens_->Start();
    std::string plain, to_send;
    (void)Receive(&listens_, hello.flight, &plain, &to_send);
    Shake(OfiKind::kWelcome, hello_exchange_, to_send);
  }
  void AnswerConfirm(const OfiOutsider::Heard& heard) {
    if (listens_ == nullptr || heard.notice.token != hello_exchange_) return;
    std::string plain, to_send;
    OfiHandshake handshake;
    if (!Receive(&listens_, heard.payload, &plain, &to_send) || !DecodeOfiHandshake(plain, &handshake)) return;
    token_ = handshake.token;
    OfiAnswer answer;
    answer.token = HandshakeOfRankOne(0).token;
    answer.refusal.verdict = static_cast<OfiVerdict>(wrong_);
    listens_->Send(EncodeOfiAnswer(answer), &to_send);
    Shake(OfiKind::kAnswer, hello_exchange_, to_send);
  }
  void AnswerWelcome(const OfiOutsider::Heard& heard) {
    std::string plain, to_send;
    if (connects_ == nullptr || connects_->ready()) return;
    if (!Receive(&connects_, heard.payload, &plain, &to_send)) return;
    connects_->Send(EncodeOfiHandshake(HandshakeOfRankOne(wrong_)), &to_send);
    Shake(OfiKind::kConfirm, exchange_, to_send);
  }
  void TakeAnswer(const OfiOutsider::Heard& heard) {
    std::string plain, to_send;
    OfiAnswer answer;
    if (connects_ == nullptr || !connects_->ready()) return;
    if (!Receive(&connects_, heard.payload, &plain, &to_send) || !DecodeOfiAnswer(plain, &answer)) return;
    if (answer.refusal.verdict != OfiVerdict::kAccepted) return;
    admitted_ = true;
    token_ = answer.token;
  }

  OfiOutsider outsider_;
  const Credentials credentials_;
  const uint8_t wrong_;
  std::string rank_zero_;
  std::string changes_;
  uint64_t exchange_ = 1000;  // of a handshake that it began
  uint64_t hello_exchange_ = 0;
  std::unique_ptr<Channel> connects_, listens_;
  uint64_t token_ = 0;  // of rank 0's, once it knows it
  OfiGrant asked_;
  size_t answered_ = 0;
  bool admitted_ = false;
};

class RankZero {
 public:
  explicit RankZero(std::unique_ptr<OfiTransport> transport) : transport_(std::move(transport)) {}

  OfiTransport* transport() const { return transport_.get(); }
  size_t allocated() const { return allocated_; }
  const std::deque<Made>& operations() const { return operations_; }

  void Post(bool receives, ChannelId channel, size_t bytes, bool reduced) {
    if (operations_.size() >= kOperationsMax) return;
    Made& made = operations_.emplace_back();
    made.receives = receives;
    made.memory.resize(bytes / 4 * 4);  // whole elements
    made.operation.complete = &Made::OnComplete;
    Sink sink;
    sink.target = made.memory.data();
    sink.bytes = made.memory.size();
    sink.operand = made.memory.data();
    sink.reduction = reduced ? &kAdd : nullptr;
    Count([&] {
      if (receives) {
        transport_->Receive(Rank(1), channel, TheEnvelope(), sink, &made.operation);
      } else {
        transport_->Send(Rank(1), channel, TheEnvelope(), made.memory.data(), made.memory.size(), &made.operation);
      }
    });
  }

  void Poll(int polls) {
    Count([&] {
      while (polls-- > 0) (void)transport_->Progress();
    });
  }

  // Every call has ended when this returns.
  void End() {
    transport_->Abort(absl::CancelledError("the end"));
    transport_ = nullptr;
  }

 private:
  template <typename Call>
  void Count(Call call) {
    const fuzz::Allocations allocations;
    call();
    allocated_ += allocations.bytes();
  }

  std::deque<Made> operations_;
  std::unique_ptr<OfiTransport> transport_;
  size_t allocated_ = 0;
};

std::string Event(std::initializer_list<int> bytes, absl::string_view text = "") {
  std::string event;
  for (const int byte : bytes) event += static_cast<char>(byte);
  return event.append(text.data(), text.size());
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const auto notice = [](OfiKind kind, int number, int expected, const std::string& payload = "") {
    return Event({2, static_cast<int>(kind), 0, 0, number, expected, 0}, Text(payload));
  };
  const std::string begin = Event({0, 0}), poll = Event({1, 4}), polls = poll + poll + poll;
  const std::string sends = Event({4, 0, 100, 0}), sends_long = Event({4, 0, 0, 0x40});
  const std::string receives = Event({5, 0, 100, 0, 0}), receives_long = Event({5, 0, 0, 0x40, 1});
  std::string eight;
  AppendLittleEndian(&eight, uint64_t{0x4000});
  std::string grant(1, '\7');
  AppendLittleEndian(&grant, uint64_t{0x4000}, uint64_t{77}, uint32_t{4096}, uint32_t{4}, uint8_t{0});
  std::vector<std::string> seeds;
  for (const int mode : {0, 1, 5, 6, 5 | kScrambles | kRefuses}) {
    const std::string head = Event({mode, 0});
    seeds.push_back(head + begin + polls + receives + notice(OfiKind::kEager, 0, 4, std::string(100, 'x')) + polls);
    seeds.push_back(head + sends + sends_long + polls + Event({1, 63}) + grant + polls +
                    notice(OfiKind::kDiscard, 1, 9) + polls);
    seeds.push_back(head + begin + polls + receives_long + notice(OfiKind::kAnnounce, 0, 1, eight) + polls +
                    Event({6, 0, 0, 16}) + Event({6, 1, 0, 16}) + polls + notice(OfiKind::kClosed, 0, 1, "\1") + polls);
    seeds.push_back(head + begin + polls + notice(OfiKind::kEager, 0, 1, "early") + notice(OfiKind::kCredit, 0, 9) +
                    notice(OfiKind::kDisconnect, 0, 0) + polls + receives);
  }
  seeds.push_back(Event({5, 1}) + begin + polls);
  seeds.push_back(Event({5, 0}) + Event({0, 1, 60, 1}) + polls + begin + polls);
  seeds.push_back(Event({1, 0}) + Event({3, static_cast<int>(OfiKind::kHello), 0}, Text(std::string(60, 'h'))) + poll);
  return seeds;
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;       // NOLINT: nothing else is here
  SetLogLevel(LogLevel::kError);  // not a line for each that is turned away
  fuzz::Input input(data, size);
  const auto mode = input.Take<uint8_t>();
  const uint8_t wrong = input.Take<uint8_t>() % kClaims;
  const auto level = static_cast<SecurityLevel>((mode & 3) % 3);
  FakeProviderOptions how;
  how.scramble = mode & kScrambles;
  how.refusals = mode & kRefuses ? 3 : 0;
  FakeProvider fake(how);
  Other other(&fake.api(), level, mode & kHasSecret, wrong);
  OfiTransportOptions options = OfiTestOptions(0, 2);
  options.api = &fake.api();
  options.credentials = OfiTestCredentials(level);
  options.piece_bytes = kPieceBytes;
  options.staging_bytes = kPieceBytes;
  options.staging_pieces = 4;
  RankZero zero(*OfiTransport::Create(options));
  LOCKSTEP_CHECK(zero.transport()->SetPeers({zero.transport()->address(), other.outsider().address()}).ok());
  other.Meet(zero.transport()->address());

  size_t events = 0;
  bool sends = false;
  for (; !input.empty(); ++events) {
    const int kind = input.Take<uint8_t>() % 8;
    if (kind == 0) other.Begin(std::string(input.Take(2 * (input.Take<uint8_t>() % 4))));
    if (kind == 1) {
      zero.Poll(input.Take<uint8_t>() % 64 + 1);
      other.Answer();
    }
    if (kind == 2) {
      const auto notice_kind = input.Take<uint8_t>();
      const auto channel = input.Take<uint8_t>();
      const auto token = input.Take<uint8_t>();
      OfiNotice notice;
      notice.number = input.Take<uint8_t>();
      notice.expected = input.Take<uint8_t>();
      if (input.Take<uint8_t>() % 8 != 1) notice.envelope = TheEnvelope();
      other.Say(notice_kind, channel, notice, token, input.TakeText());
    }
    if (kind == 3) {
      const auto notice_kind = input.Take<uint8_t>();
      const auto channel = input.Take<uint8_t>();
      other.Say(notice_kind, channel, std::string(input.TakeText()));
    }
    if (kind == 4 || kind == 5) {
      const ChannelId channel = input.Take<uint8_t>() % kChannels;
      const size_t bytes = input.Take<uint16_t>() % kMessageBytesMax;
      zero.Post(kind == 5, channel, bytes, kind == 5 && input.Take<uint8_t>() % 2 == 1);
      sends |= kind == 4;
    }
    if (kind == 6) {
      const auto piece = input.Take<uint8_t>();
      other.SendPiece(piece, std::min<size_t>(input.Take<uint16_t>(), 2 * kPieceBytes));
    }
    if (kind == 7) {
      unsigned char grant[kOfiGrantBytes] = {};
      const absl::string_view given = input.Take(kOfiGrantBytes);
      std::copy(given.begin(), given.end(), grant);
      OfiNotice notice;
      notice.number = input.Take<uint8_t>();
      notice.expected = notice.number + 1;
      notice.envelope = TheEnvelope();
      other.Say(static_cast<uint8_t>(OfiKind::kGrant), 0, notice, 0,
                {reinterpret_cast<const char*>(grant), sizeof(grant)});
    }
  }
  zero.Poll(8);
  other.Answer();

  // At level none whoever says the right words is admitted; who listens is not asked who it is.
  const bool may_be = level == SecurityLevel::kNone || (mode & kHasSecret && (wrong == 0 || sends));
  LOCKSTEP_CHECK(may_be || !other.admitted()) << "admitted";
  // What one event makes it allocate has a bound: a slot for a notice, room for slots of a few pieces, texts.
  LOCKSTEP_CHECK(zero.allocated() <= (size_t{2} << 20) + 64 * size + 32768 * events)
      << zero.allocated() << " bytes allocated for " << size;
  zero.End();
  for (const Made& made : zero.operations()) {
    LOCKSTEP_CHECK(made.completions == 1) << made.completions << " completions";
    // INTERNAL: the provider's own, of a piece that is too long.
    fuzz::CheckCode(made.status, {Code::kCancelled, Code::kUnavailable, Code::kFailedPrecondition, Code::kDataLoss,
                                  Code::kPermissionDenied, Code::kResourceExhausted, Code::kInternal});
    LOCKSTEP_CHECK(may_be || !made.status.ok()) << "a message of somebody who was not admitted";
  }
  LOCKSTEP_CHECK(fake.complaints().empty()) << fake.complaints().front();
  return 0;
}
