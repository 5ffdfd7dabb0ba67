#include "comm/world/link_measurement.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"
#include "comm/world/link_timing.h"
#include "comm/world/setup_topics.h"
#include "kernels/cpu/reduce.h"

namespace lockstep {
namespace {

constexpr size_t kHostsMax = 8;

// How long the coordinator may take to announce what was reported to it.
constexpr std::chrono::milliseconds kAnnouncementGrace{5000};

// The processor's part. It works piece by piece on a vector that its fastest caches do not hold, as collectives do.
constexpr size_t kPieceBytes = kChunkBytes;
constexpr size_t kPieces = 32;

constexpr size_t kNumbers = 8;
using Numbers = std::array<double, kNumbers>;

Numbers NumbersOf(const MeasuredCosts& costs) {
  return {costs.local.latency_ns, costs.local.byte_ns,     costs.local.message_ns, costs.remote.latency_ns,
          costs.remote.byte_ns,   costs.remote.message_ns, costs.reduced_byte_ns,  costs.copied_byte_ns};
}

MeasuredCosts CostsOfNumbers(const Numbers& numbers) {
  return {{numbers[0], numbers[1], numbers[2]}, {numbers[3], numbers[4], numbers[5]}, numbers[6], numbers[7]};
}

bool Measured(const LinkCosts& link) { return link.latency_ns > 0; }

// As few digits as were kept, but never an exponent.
std::string Text(double cost) { return absl::StrFormat("%.15g", cost); }

std::string DescribeLink(absl::string_view name, const LinkCosts& link) {
  if (!Measured(link)) return "";
  return absl::StrCat(name, " ", Text(link.latency_ns), " ns + ", Text(link.byte_ns), " ns/B + ", Text(link.message_ns),
                      " ns a message; ");
}

// The median time that `work`, called with the offset of each piece of a vector, takes for a byte.
template <typename Work>
double ByteNs(const Work& work) {
  std::array<double, kPieces> times;
  for (size_t piece = 0; piece < kPieces; ++piece) {
    const auto begin = Deadline::Clock::now();
    work(piece * kPieceBytes);
    times[piece] = std::chrono::duration<double, std::nano>(Deadline::Clock::now() - begin).count();
  }
  std::nth_element(times.begin(), times.begin() + kPieces / 2, times.end());
  return times[kPieces / 2] / kPieceBytes;
}

absl::Status MeasureProcessor(MeasuredCosts* costs) {
  LOCKSTEP_ASSIGN_OR_RETURN(const CombineFunction combine, kernels::CombineFor(DType::kF32, ReduceOp::kSum));
  std::vector<char> vector(kPieces * kPieceBytes), copied(kPieces * kPieceBytes);
  const std::vector<char> arrived(kPieceBytes);
  costs->reduced_byte_ns = ByteNs([&](size_t offset) {
    combine(vector.data() + offset, vector.data() + offset, arrived.data(), kPieceBytes / sizeof(float));
  });
  // Volatile, so that a copy that nobody reads is made.
  void* (*volatile copy)(void*, const void*, size_t) = &std::memcpy;
  costs->copied_byte_ns =
      ByteNs([&](size_t offset) { copy(copied.data() + offset, vector.data() + offset, kPieceBytes); });
  return absl::OkStatus();
}

// This rank's part in a pair. An error is told to every rank, so that none waits for a message that will not come.
absl::Status MeasurePair(ProgressEngine* engine, ControlChannel* control, ChannelId channel, const MeasuredPair& pair,
                         Deadline deadline, MeasuredCosts* costs) {
  const bool leads = engine->transport()->rank() == pair.leader;
  LinkSide side;
  side.engine = engine;
  side.channel = channel;
  side.peer = leads ? pair.follower : pair.leader;
  side.deadline = deadline;
  side.explain = [&](const absl::Status& error) {
    const absl::Status told =
        Annotate(error, absl::StrCat("measure the link between ranks ", pair.leader.value(), " and ",
                                     pair.follower.value(), pair.local ? " of one host" : " of two hosts"));
    control->Report(channel, told, side.peer);
    return control->AwaitFailure(channel, told, Deadline::After(kAnnouncementGrace));
  };
  if (!leads) return FollowLinkTiming(side);
  LOCKSTEP_ASSIGN_OR_RETURN(const LinkCosts link, TimeLink(side));
  (pair.local ? costs->local : costs->remote) = link;
  return absl::OkStatus();
}

}  // namespace

std::vector<MeasuredPair> PairsToMeasure(const Topology& topology) {
  std::map<int32_t, std::vector<Rank>> first_two;  // by host: numbered in the order of their lowest ranks
  for (size_t rank = 0; rank < topology.host_of_rank.size(); ++rank) {
    std::vector<Rank>& ranks = first_two[topology.host_of_rank[rank]];
    if (ranks.size() < 2) ranks.push_back(Rank(static_cast<int>(rank)));
  }
  std::vector<MeasuredPair> pairs;
  std::vector<Rank> firsts;
  for (const auto& [host, ranks] : first_two) {
    if (firsts.size() == kHostsMax) break;
    firsts.push_back(ranks.front());
    if (ranks.size() == 2) pairs.push_back({ranks[0], ranks[1], true});
  }
  for (size_t host = 0; host + 1 < firsts.size(); host += 2) pairs.push_back({firsts[host], firsts[host + 1], false});
  return pairs;
}

std::string EncodeMeasuredCosts(const MeasuredCosts& costs) {
  return absl::StrJoin(NumbersOf(costs), " ",
                       [](std::string* out, double number) { absl::StrAppendFormat(out, "%.1e", number); });
}

absl::StatusOr<MeasuredCosts> DecodeMeasuredCosts(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  Numbers numbers = {};
  bool good = words.size() == kNumbers;
  for (size_t i = 0; good && i < kNumbers; ++i) {
    good = absl::SimpleAtod(words[i], &numbers[i]) && numbers[i] >= 0 && numbers[i] <= 1e15;
  }
  if (!good) return absl::InternalError(absl::StrCat("'", text, "' is no text of measured costs"));
  return CostsOfNumbers(numbers);
}

MeasuredCosts Slowest(const MeasuredCosts& a, const MeasuredCosts& b) {
  Numbers most = NumbersOf(a);
  const Numbers others = NumbersOf(b);
  for (size_t i = 0; i < kNumbers; ++i) most[i] = std::max(most[i], others[i]);
  return CostsOfNumbers(most);
}

void Apply(const MeasuredCosts& costs, Network* network) {
  if (Measured(costs.local)) network->local = costs.local;
  if (Measured(costs.remote)) network->remote = costs.remote;
  if (costs.reduced_byte_ns > 0) network->reduced_byte_ns = costs.reduced_byte_ns;
  if (costs.copied_byte_ns > 0) network->copied_byte_ns = costs.copied_byte_ns;
}

std::string Describe(const MeasuredCosts& costs) {
  return absl::StrCat("links measured: ", DescribeLink("local", costs.local), DescribeLink("remote", costs.remote),
                      Text(costs.reduced_byte_ns), " ns/B reduced, ", Text(costs.copied_byte_ns),
                      " ns/B copied; not built in");
}

absl::StatusOr<MeasuredCosts> MeasureLinks(ProgressEngine* engine, ControlChannel* control, ChannelId channel,
                                           const Topology& topology, Deadline deadline) {
  const Rank self = engine->transport()->rank();
  MeasuredCosts mine;
  std::set<Rank> leaders;
  for (const MeasuredPair& pair : PairsToMeasure(topology)) {
    leaders.insert(pair.leader);
    if (pair.leader != self && pair.follower != self) continue;
    LOCKSTEP_RETURN_IF_ERROR(MeasurePair(engine, control, channel, pair, deadline, &mine));
  }
  if (leaders.count(self) > 0) {
    LOCKSTEP_RETURN_IF_ERROR(MeasureProcessor(&mine));
    control->PostMessage(channel, kMeasurementTopic, EncodeMeasuredCosts(mine));
  }
  const auto posted = control->AwaitMessages(channel, kMeasurementTopic, static_cast<int>(leaders.size()), deadline);
  if (!posted.ok()) {
    // What was announced says it better.
    return control->AwaitFailure(channel, Annotate(posted.status(), "wait for the ranks that measure links"),
                                 Deadline::Now());
  }
  MeasuredCosts slowest;
  for (const auto& [rank, text] : *posted) {
    LOCKSTEP_ASSIGN_OR_RETURN(const MeasuredCosts costs, DecodeMeasuredCosts(text));
    slowest = Slowest(slowest, costs);
  }
  return slowest;
}

}  // namespace lockstep
