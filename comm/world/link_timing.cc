#include "comm/world/link_timing.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

using Clock = Deadline::Clock;

constexpr size_t kSmallBytes = 8;
constexpr size_t kBulkBytes = kChunkBytes;
constexpr int kBulkMessagesMax = 8;
constexpr int kMessagesMax = 64;  // of one direction in flight
constexpr int kEchoesMax = 256;

// How often a pattern is repeated, and how much of it makes one repetition, where there may be more or less of it.
constexpr int kRepetitionsMin = 3;
constexpr int kRepetitionsMax = 31;
constexpr double kRepetitionNs = 1e6;
constexpr std::chrono::milliseconds kPatternTime{30};

// Costs below these make no difference to any cost in the model, and nothing takes no time.
constexpr double kMessageNsMin = 1;
constexpr double kByteNsMin = 1e-4;

enum class Kind { kEcho, kStream, kBulk };
constexpr std::array<Kind, 3> kKinds = {Kind::kEcho, Kind::kStream, Kind::kBulk};

int CountMin(Kind kind) { return kind == Kind::kStream ? kMessagesMax : 1; }

int CountMax(Kind kind) {
  switch (kind) {
    case Kind::kEcho:
      return kEchoesMax;
    case Kind::kStream:
      return kMessagesMax;
    case Kind::kBulk:
      return kBulkMessagesMax;
  }
  return 0;
}

// What the two sides do: in each round the leader sends some messages there, the follower some back: when it has
// received those of the round, or at once.
struct Pattern {
  size_t bytes = 0;  // of each message
  int rounds = 1;
  int there = 1;
  int back = 1;
  bool at_once = false;
};

constexpr Pattern kRequest = {sizeof(uint32_t)};

Pattern PatternOf(Kind kind, int count) {
  switch (kind) {
    case Kind::kEcho:
      return {kSmallBytes, count};
    case Kind::kStream:
      return {kSmallBytes, 1, count};
    case Kind::kBulk:
      return {kBulkBytes, 1, count, count, true};
  }
  return {};
}

Envelope TimingEnvelope() {
  Envelope envelope = {};
  constexpr char kText[] = "lockstep link timing";
  static_assert(sizeof(kText) <= sizeof(Envelope));
  std::memcpy(envelope.data(), kText, sizeof(kText));
  return envelope;
}

// One side of the patterns. Each stage of it is some receives and sends that are posted together; the next is posted
// when they are all complete.
class Side {
 public:
  enum class Role { kLeader, kFollower };

  // `link` is borrowed.
  Side(const LinkSide& link, Role role) : link_(link), role_(role), arrived_(kBufferBytes), sent_(kBufferBytes) {
    for (Unit& unit : units_) {
      unit.complete = &OnComplete;
      unit.side = this;
    }
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  absl::Status Run(const Pattern& pattern);

  // Ends the channel, and with it what is in flight, which is this object's. Returns the error, explained.
  absl::Status Fail(const absl::Status& error);

  // The exchange that precedes each pattern: the leader's `count`, or what it was.
  absl::StatusOr<uint32_t> Request(uint32_t count) {
    StoreLittleEndian<uint32_t>(count, sent_.data());
    LOCKSTEP_RETURN_IF_ERROR(Run(kRequest));
    return LoadLittleEndian<uint32_t>(arrived_.data());
  }

 private:
  struct Unit : Operation {
    Side* side = nullptr;
  };
  static constexpr size_t kBufferBytes = kBulkMessagesMax * kBulkBytes;
  static_assert(kMessagesMax * kSmallBytes <= kBufferBytes && kBulkMessagesMax <= kMessagesMax);

  static void OnComplete(Operation* operation, const absl::Status& status);
  void PostStages();
  void Post(int receives, int sends);

  const LinkSide& link_;
  const Role role_;
  const Envelope envelope_ = TimingEnvelope();

  // Set with release, so that Drive, which loads it with acquire, is followed by what was received. Relaxed where the engine's mutex,
  // with which it is set, is held.
  std::atomic<bool> done_{false};

  // Guarded by the engine's mutex while something is in flight.
  std::vector<unsigned char> arrived_;
  std::vector<unsigned char> sent_;
  std::array<Unit, 2 * kMessagesMax> units_;
  Pattern pattern_;
  int stage_ = 0;
  int stages_ = 0;
  int pending_ = 0;
  bool posting_ = false;
  absl::Status status_;
};

absl::Status Side::Run(const Pattern& pattern) {
  {
    MutexLock lock(link_.engine->mutex());
    pattern_ = pattern;
    stage_ = 0;
    stages_ = role_ == Role::kLeader || pattern.at_once ? pattern.rounds : 2 * pattern.rounds;
    done_.store(false, std::memory_order_relaxed);
    PostStages();
  }
  link_.engine->Drive(done_, link_.deadline, /*spin=*/true);
  absl::Status status;
  {
    MutexLock lock(link_.engine->mutex());
    if (!done_.load(std::memory_order_relaxed)) {
      status_ = absl::DeadlineExceededError(absl::StrCat("rank ", link_.peer.value(), " did not go on in time"));
    }
    status = status_;
  }
  return status.ok() ? status : Fail(status);
}

absl::Status Side::Fail(const absl::Status& error) {
  const absl::Status explained = link_.explain ? link_.explain(error) : error;
  MutexLock lock(link_.engine->mutex());
  link_.engine->transport()->AbortChannel(link_.channel, explained);
  return explained;
}

void Side::OnComplete(Operation* operation, const absl::Status& status) {
  Side* const self = static_cast<Unit*>(operation)->side;
  --self->pending_;
  if (self->status_.ok()) self->status_ = status;
  self->PostStages();
}

void Side::PostStages() {
  // What completes while it is posted ends up here again.
  if (posting_) return;
  posting_ = true;
  while (pending_ == 0 && stage_ < stages_ && status_.ok()) {
    const int stage = stage_++;
    if (role_ == Role::kLeader) {
      Post(pattern_.back, pattern_.there);
    } else if (pattern_.at_once) {
      Post(pattern_.there, pattern_.back);
    } else {
      stage % 2 == 0 ? Post(pattern_.there, 0) : Post(0, pattern_.back);
    }
  }
  posting_ = false;
  if (pending_ == 0 || !status_.ok()) done_.store(true, std::memory_order_release);
}

void Side::Post(int receives, int sends) {
  pending_ = receives + sends;
  Transport* const transport = link_.engine->transport();
  Unit* unit = units_.data();
  for (int i = 0; i < receives; ++i) {
    Sink sink;
    sink.target = arrived_.data() + i * pattern_.bytes;
    sink.bytes = pattern_.bytes;
    transport->Receive(link_.peer, link_.channel, envelope_, sink, unit++);
  }
  for (int i = 0; i < sends; ++i) {
    transport->Send(link_.peer, link_.channel, envelope_, sent_.data() + i * pattern_.bytes, pattern_.bytes, unit++);
  }
}

// Patterns of one kind, timed.
struct Timed {
  int count = 0;
  double median_ns = 0;
};

absl::StatusOr<double> TimeOnce(Side* leader, Kind kind, int count) {
  LOCKSTEP_RETURN_IF_ERROR(leader->Request(count).status());
  const Clock::time_point begin = Clock::now();
  LOCKSTEP_RETURN_IF_ERROR(leader->Run(PatternOf(kind, count)));
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

absl::StatusOr<Timed> Time(Side* leader, Kind kind) {
  Timed timed;
  timed.count = CountMin(kind);
  // The first time connections are made and windows open; the second tells how many fill the time of a repetition.
  LOCKSTEP_RETURN_IF_ERROR(TimeOnce(leader, kind, timed.count).status());
  LOCKSTEP_ASSIGN_OR_RETURN(const double short_ns, TimeOnce(leader, kind, timed.count));
  const double fitting = timed.count * kRepetitionNs / std::max(short_ns, 1.0);
  timed.count = static_cast<int>(std::clamp<double>(fitting, timed.count, CountMax(kind)));

  const Clock::time_point end = Clock::now() + kPatternTime;
  std::vector<double> times;
  while (times.size() < kRepetitionsMin || (times.size() < kRepetitionsMax && Clock::now() < end)) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double ns, TimeOnce(leader, kind, timed.count));
    times.push_back(ns);
  }
  LOCKSTEP_RETURN_IF_ERROR(leader->Request(0).status());
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  timed.median_ns = *middle;
  return timed;
}

}  // namespace

LinkCosts CostsOf(const LinkTimes& times) {
  LinkCosts costs;
  const double one_way_ns = times.echo_round_ns / 2;
  const double beyond_ns = times.stream_ns - times.echo_round_ns;
  // A message of its own takes no longer than one that is waited for.
  costs.message_ns = std::clamp(beyond_ns / (times.stream_messages - 1), kMessageNsMin,
                                std::max(kMessageNsMin, one_way_ns - kMessageNsMin));
  costs.latency_ns = std::max(one_way_ns - costs.message_ns, kMessageNsMin);
  const double bulk_message_ns = times.bulk_ns / times.bulk_messages - costs.message_ns;
  costs.byte_ns = std::max(bulk_message_ns / times.bulk_message_bytes, kByteNsMin);
  return costs;
}

absl::StatusOr<LinkCosts> TimeLink(const LinkSide& leader) {
  Side side(leader, Side::Role::kLeader);
  LOCKSTEP_ASSIGN_OR_RETURN(const Timed echo, Time(&side, Kind::kEcho));
  LOCKSTEP_ASSIGN_OR_RETURN(const Timed stream, Time(&side, Kind::kStream));
  LOCKSTEP_ASSIGN_OR_RETURN(const Timed bulk, Time(&side, Kind::kBulk));
  LinkTimes times;
  times.echo_round_ns = echo.median_ns / echo.count;
  times.stream_ns = stream.median_ns;
  times.stream_messages = stream.count;
  times.bulk_ns = bulk.median_ns;
  times.bulk_messages = bulk.count;
  times.bulk_message_bytes = kBulkBytes;
  return CostsOf(times);
}

absl::Status FollowLinkTiming(const LinkSide& follower) {
  Side side(follower, Side::Role::kFollower);
  for (const Kind kind : kKinds) {
    while (true) {
      LOCKSTEP_ASSIGN_OR_RETURN(const uint32_t count, side.Request(0));
      if (count == 0) break;
      if (count > static_cast<uint32_t>(CountMax(kind))) {
        return side.Fail(
            absl::InternalError(absl::StrCat("rank ", follower.peer.value(), " asks for ", count, " messages")));
      }
      LOCKSTEP_RETURN_IF_ERROR(side.Run(PatternOf(kind, static_cast<int>(count))));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
