// Messages between pairs of ranks: whatever a peer sends on its lane, while this rank sends and receives.
//
//   input = steps:u8 { step } lane          lane: what the peer sends, headers and payloads one behind the other
//   step  = kind:u8 tag:u8 bytes:u32        kind modulo 4: 0 send | 1 receive | 2 receive from any | 3 the peer's next bytes arrive

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>

#include "comm/point_to_point.h"
#include "tests/fuzz/fuzz.h"
#include "transport/net/little_endian.h"
#include "transport/posting.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

constexpr size_t kStepsMax = 16;
constexpr size_t kBytesMax = 200'000;
constexpr ChannelId kChannel = 7;

// One peer, rank 1, which sends the bytes of a lane. Sends are over at once.
class Lane final : public Transport {
 public:
  explicit Lane(absl::string_view bytes) : bytes_(bytes) {}

  const char* name() const override { return "lane"; }
  Rank rank() const override { return Rank(0); }
  int size() const override { return 2; }
  std::string DescribePeer(Rank peer) const override { return "rank 1"; }
  void Send(Rank, ChannelId, const Envelope&, const void* data, size_t bytes, Operation* operation) override {
    // Read, so that a sanitizer sees whether it is there.
    const auto* const begin = static_cast<const unsigned char*>(data);
    sent_ += std::count(begin, begin + bytes, 0);
    operation->complete(operation, status_);
  }
  void Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
               Operation* operation) override {
    if (!status_.ok()) return operation->complete(operation, status_);
    FillReceive(operation, source, channel, expected, sink);
    receives_.Push(operation);
  }
  // Completes one receive. False when none waits.
  bool Progress() override {
    if (receives_.empty()) return false;
    Operation* const operation = receives_.Pop();
    const Sink& sink = operation->internal.sink;
    if (sink.bytes > bytes_.size()) {
      bytes_ = {};
      operation->complete(operation, absl::UnavailableError("connection closed by peer"));
      return true;
    }
    if (sink.bytes > 0) std::memcpy(sink.target, bytes_.data(), sink.bytes);
    bytes_.remove_prefix(sink.bytes);
    operation->complete(operation, absl::OkStatus());
    return true;
  }
  void WaitForEvent(Deadline) override {}
  void Wake() override {}
  void AbortChannel(ChannelId, const absl::Status& status) override {
    status_ = status;
    receives_.CompleteAll(status);
  }
  void Abort(const absl::Status& status) override { AbortChannel(kChannel, status); }
  absl::Status Close(Deadline) override { return absl::OkStatus(); }
  PeerCounters counters(Rank) const override { return {}; }

 private:
  absl::string_view bytes_;
  OperationQueue receives_;
  absl::Status status_;
  size_t sent_ = 0;
};

struct Call {
  MessageCall call;
  std::vector<char> memory;
  int completions = 0;
  absl::Status status;
};

class Owner final : public PointToPoint::Owner {
 public:
  void OnMessageDone(MessageCall* call, const absl::Status& status) override {
    for (Call& each : calls) {
      if (&each.call != call) continue;
      ++each.completions;
      each.status = status;
      return;
    }
    LOCKSTEP_CHECK(false) << "a call that nobody made is done";
  }
  void OnMessageFailed(MessageCall*, const absl::Status& status, Rank peer) override {
    LOCKSTEP_CHECK(!status.ok() && peer == Rank(1));
    failure.Update(status);
  }

  std::deque<Call> calls;
  absl::Status failure;
};

std::string Move(int kind, int tag, size_t bytes) {
  std::string step;
  AppendLittleEndian(&step, static_cast<uint8_t>(kind), static_cast<uint8_t>(tag), static_cast<uint32_t>(bytes));
  return step;
}

// As comm/point_to_point.h: kind:u8 zero:u8[7] tag:i64 id:u64 bytes:u64.
std::string Header(int kind, int64_t tag, uint64_t id, uint64_t bytes) {
  std::string header;
  AppendLittleEndian(&header, static_cast<uint64_t>(kind), static_cast<uint64_t>(tag), id, bytes);
  return header;
}

std::string Seed(const std::vector<std::string>& steps, const std::string& lane) {
  std::string seed(1, static_cast<char>(steps.size()));
  for (const std::string& step : steps) seed += step;
  return seed + lane;
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const std::string arrive = Move(3, 0, 0);
  return {
      // Eager messages, expected and not.
      Seed({Move(1, 5, 10), arrive, arrive, Move(2, 255, 10), arrive, arrive, Move(1, 6, 4)},
           Header(1, 5, 0, 10) + "0123456789" + Header(1, 6, 0, 4) + "0123" + Header(1, 7, 0, 0)),
      // Announced, accepted, refused.
      Seed({Move(1, 5, 100), arrive, arrive, arrive, Move(1, 5, 1), arrive},
           Header(2, 5, 1, 100) + Header(5, 0, 1, 100) + std::string(100, 'x') + Header(2, 5, 2, 100)),
      // This rank's own long messages.
      Seed({Move(0, 5, 100'000), Move(0, 5, 100'000), Move(0, 5, 10), Move(1, 5, 1), arrive, arrive, arrive},
           Header(3, 0, 1, 0) + Header(4, 0, 2, 5) + Header(6, 0, 0, 138)),
  };
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: nothing else is here
  fuzz::Input input(data, size);
  const size_t steps = input.Take<uint8_t>() % (kStepsMax + 1);
  const std::string of_steps(input.Take(steps * 6));
  Lane lane(input.Rest());
  Owner owner;
  const fuzz::Allocations allocations;
  PointToPoint messages(&lane, kChannel, Rank(0), 2, {}, &owner);
  size_t own_bytes = 0;
  for (fuzz::Input step(reinterpret_cast<const uint8_t*>(of_steps.data()), of_steps.size()); !step.empty();) {
    const int kind = step.Take<uint8_t>() % 4;
    const auto tag = step.Take<uint8_t>();
    const size_t bytes = step.Take<uint32_t>() % kBytesMax;
    if (kind == 3) {
      (void)lane.Progress();
      continue;
    }
    if (!owner.failure.ok()) break;  // the owner ends the channel
    Call& made = owner.calls.emplace_back();
    made.memory.resize(bytes);
    own_bytes += bytes;
    made.call.send = kind == 0;
    made.call.peer = kind == 2 ? kAnySource : Rank(1);
    made.call.tag = kind == 2 || (kind == 1 && tag == 255) ? kAnyTag : tag;
    made.call.data = made.memory.data();
    made.call.bytes = bytes;
    messages.Start(&made.call);
  }
  while (owner.failure.ok() && lane.Progress()) {
  }
  messages.FailAll(absl::CancelledError("the end"));
  LOCKSTEP_CHECK(messages.calls().empty());
  for (const Call& made : owner.calls) {
    LOCKSTEP_CHECK(made.completions == 1) << ToString(made.call) << ": " << made.completions << " completions";
    fuzz::CheckCode(made.status, {Code::kCancelled, Code::kFailedPrecondition});
    if (made.status.ok() && !made.call.send) LOCKSTEP_CHECK(made.call.info.bytes <= made.call.bytes);
  }
  // A header announces up to kEagerBytesMax before they are there; the next one comes behind them.
  LOCKSTEP_CHECK(allocations.bytes() <= own_bytes + 64 * size + 3 * PointToPoint::kEagerBytesMax + 65536)
      << allocations.bytes() << " bytes allocated for " << size;
  return 0;
}
