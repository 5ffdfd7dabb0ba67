#include "comm/select/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "comm/schedule/schedule_memory.h"
#include "comm/schedule/stage.h"
#include "comm/select/link_sharing.h"

namespace lockstep {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

// When the first and the last chunk of a step are done.
struct Stream {
  double first = 0;
  double last = 0;
};

Stream Later(const Stream& a, const Stream& b) { return {std::max(a.first, b.first), std::max(a.last, b.last)}; }

std::vector<Schedule> BuildAll(Collective collective, Algorithm algorithm, int size, const Network& network,
                               absl::Span<const int> ranks) {
  Topology topology;
  for (int rank = 0; rank < size; ++rank) topology.host_of_rank.push_back(network.HostOf(rank));
  std::vector<Schedule> schedules;
  for (const int rank : ranks) {
    auto schedule = BuildSchedule(collective, algorithm, Rank(rank), size, Rank(0), topology);
    LOCKSTEP_CHECK(schedule.ok()) << schedule.status();
    schedules.push_back(*std::move(schedule));
  }
  return schedules;
}

bool IsOfPeer(const Operand& operand) { return operand.rank != Operand::kOwn; }

// For each byte of the step.
double WorkByteNs(const Step& step, const Network& network) {
  switch (step.kind) {
    case Step::Kind::kReceiveReduce:
      return network.reduced_byte_ns;
    case Step::Kind::kCopy:
      return network.copied_byte_ns;
    case Step::Kind::kReduceMany:
      return static_cast<double>(step.terms.size() - 1) * network.reduced_byte_ns +
             static_cast<double>(std::count_if(step.terms.begin(), step.terms.end(), &IsOfPeer)) * kPeerByteNs +
             static_cast<double>(step.more_targets.size()) * network.copied_byte_ns / 2;
    case Step::Kind::kSend:
    case Step::Kind::kReceive:
    case Step::Kind::kBarrier:
    case Step::Kind::kShare:
      break;
  }
  return 0;
}

// In shared memory all ranks of a host do alike but the root, and wait for each other in barriers: three stand for all.
double SharedMemoryNs(Collective collective, Algorithm algorithm, int size, double bytes, const Network& network) {
  std::vector<int> ranks = {0, 1, size - 1};
  if (size == 2) ranks.pop_back();
  const std::vector<Schedule> schedules = BuildAll(collective, algorithm, size, network, ranks);
  const double block_bytes = schedules[0].blocks == 0 ? 0 : bytes / schedules[0].blocks;
  std::vector<double> phases;  // for each byte of a block, of the rank that has the most to do
  for (const Schedule& schedule : schedules) {
    size_t phase = 0;
    double byte_ns = 0;
    const auto end_phase = [&] {
      phases.resize(std::max(phases.size(), phase + 1));
      phases[phase] = std::max(phases[phase], byte_ns);
      ++phase;
      byte_ns = 0;
    };
    for (const Step& step : schedule.steps) {
      if (!IsBarrier(step.kind)) {
        byte_ns += SizingOperand(step).blocks * WorkByteNs(step, network);
        continue;
      }
      if (SizingOperand(step).blocks * block_bytes > kShareBytesMax) return kImpossible;
      end_phase();
    }
    end_phase();
  }
  double ns = 0;
  for (const double byte_ns : phases) ns += byte_ns * block_bytes;
  auto barriers = static_cast<double>(phases.size() - 1);
  if (IsStaged(algorithm)) {
    // A barrier after each tick but the last (comm/schedule/stage.h).
    const auto piece_bytes = static_cast<double>(StagePieceBytes(schedules[0].scratch_blocks));
    barriers += std::max(1.0, std::ceil(block_bytes / piece_bytes)) - 1;
  }
  return ns + barriers * BarrierNs(size);
}

}  // namespace

class StepGraph {
 public:
  StepGraph(absl::Span<const Schedule> schedules, const Network& network);

  double Ns(double bytes) const;

 private:
  // The two ends of a rank (see the simulator's model). Each does its steps in list order.
  enum End { kSending, kReceiving, kEnds };

  struct After {
    int32_t node;
    bool chunkwise;
  };
  // What steps have in common that take as long as each other.
  struct Kind {
    bool sends = false;
    bool receives = false;
    bool remote = false;
    float blocks = 0;
    double sharers = 1;  // of a send: comm/select/link_sharing.h
    double work_byte_ns = 0;

    friend bool operator==(const Kind& a, const Kind& b) {
      return a.sends == b.sends && a.receives == b.receives && a.remote == b.remote && a.blocks == b.blocks &&
             a.sharers == b.sharers && a.work_byte_ns == b.work_byte_ns;
    }
  };
  struct Node {
    int32_t kind;        // in kinds_
    int32_t end;         // which end of which rank does it
    int32_t sent;        // a receive's: the node that sends
    int32_t afters_end;  // in afters_, from that of the node before
  };
  // What a chunk of a step costs.
  struct ChunkCosts {
    double ready_ns = 0;  // before a receive may be done with it
    double work_ns = 0;
    double chunk_ns = 0;  // what it keeps the end busy for
    double latency_ns = 0;
    double more_chunks = 0;  // behind the first
  };

  int32_t KindOf(const Kind& kind);
  ChunkCosts CostsOf(const Kind& kind, double block_bytes) const;

  static End EndOf(const Step& step) { return step.kind == Step::Kind::kSend ? kSending : kReceiving; }

  const Network network_;
  int blocks_;
  int ranks_;
  std::vector<Kind> kinds_;  // few
  std::vector<Node> nodes_;
  std::vector<After> afters_;
};

StepGraph::StepGraph(absl::Span<const Schedule> schedules, const Network& network)
    : network_(network), blocks_(schedules[0].blocks), ranks_(static_cast<int>(schedules.size())) {
  LinkSharing sharing;
  const auto leaves = [&](int rank, const Step& step) {
    return network.HostOf(rank) != network.HostOf(step.peer.value());
  };
  const bool shares = network.ranks_per_host > 1;
  for (int rank = 0; shares && rank < ranks_; ++rank) {
    for (const Step& step : schedules[rank].steps) {
      if (step.kind != Step::Kind::kSend || !leaves(rank, step)) continue;
      sharing.Add(network.HostOf(rank), step.round, rank, SizingOperand(step).blocks);
    }
  }
  // Each end goes as far as it can, until all are through.
  std::vector<std::vector<int32_t>> node_of(ranks_);
  std::vector<std::array<std::vector<int32_t>, kEnds>> lists(ranks_);
  std::vector<std::array<size_t, kEnds>> at(ranks_);
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::vector<Step>& steps = schedules[rank].steps;
    node_of[rank].assign(steps.size(), -1);
    for (size_t i = 0; i < steps.size(); ++i) lists[rank][EndOf(steps[i])].push_back(static_cast<int32_t>(i));
  }
  struct Lane {
    std::vector<int32_t> sent;  // nodes
    size_t received = 0;
  };
  absl::flat_hash_map<std::pair<int, int>, Lane> lanes;  // by sender and receiver
  std::deque<int> going;
  for (int rank = 0; rank < ranks_; ++rank) going.push_back(rank);
  const auto advance = [&](int rank, int end) {
    const std::vector<int32_t>& list = lists[rank][end];
    bool moved = false;
    for (size_t& next = at[rank][end]; next < list.size(); ++next) {
      const Step& step = schedules[rank].steps[list[next]];
      const auto is_open = [&](int32_t earlier) { return node_of[rank][earlier] < 0; };
      if (std::any_of(step.after.begin(), step.after.end(), is_open)) return moved;
      Node node = {0, rank * kEnds + end, -1, 0};
      Kind kind;
      kind.blocks = static_cast<float>(SizingOperand(step).blocks);
      kind.work_byte_ns = WorkByteNs(step, network);
      const auto number = static_cast<int32_t>(nodes_.size());
      if (IsMessage(step.kind)) {
        const int peer = step.peer.value();
        kind.remote = leaves(rank, step);
        if (end == kSending) {
          kind.sends = true;
          if (shares && kind.remote) kind.sharers = sharing.Sharers(network.HostOf(rank), step.round, rank);
          lanes[{rank, peer}].sent.push_back(number);
          going.push_back(peer);
        } else {
          Lane& lane = lanes[{peer, rank}];
          if (lane.received == lane.sent.size()) return moved;
          kind.receives = true;
          node.sent = lane.sent[lane.received++];
        }
      }
      for (const int32_t earlier : step.after) {
        afters_.push_back({node_of[rank][earlier], IsChunkwise(step, schedules[rank].steps[earlier])});
      }
      node.afters_end = static_cast<int32_t>(afters_.size());
      node.kind = KindOf(kind);
      node_of[rank][list[next]] = number;
      nodes_.push_back(node);
      moved = true;
    }
    return moved;
  };
  while (!going.empty()) {
    const int rank = going.front();
    going.pop_front();
    bool moved = true;
    while (moved) {
      const bool received = advance(rank, kReceiving);
      moved = advance(rank, kSending) || received;
    }
  }
  size_t steps = 0;
  for (const Schedule& schedule : schedules) steps += schedule.steps.size();
  LOCKSTEP_CHECK(nodes_.size() == steps) << "in list order, " << ToString(schedules[0]) << " waits for ever";
}

int32_t StepGraph::KindOf(const Kind& kind) {
  // Steps of one kind come in rows, so the last one is looked at first.
  for (size_t i = kinds_.size(); i-- > 0;) {
    if (kinds_[i] == kind) return static_cast<int32_t>(i);
  }
  kinds_.push_back(kind);
  return static_cast<int32_t>(kinds_.size() - 1);
}

StepGraph::ChunkCosts StepGraph::CostsOf(const Kind& kind, double block_bytes) const {
  const double step_bytes = block_bytes * kind.blocks;
  const double chunks = std::max(1.0, std::ceil(step_bytes / static_cast<double>(network_.chunk_bytes)));
  const double chunk_bytes = step_bytes / chunks;
  const LinkCosts& link = kind.remote ? network_.remote : network_.local;
  ChunkCosts costs;
  costs.more_chunks = chunks - 1;
  costs.work_ns = chunk_bytes * kind.work_byte_ns;
  costs.chunk_ns = costs.work_ns;
  if (kind.sends) costs.chunk_ns = link.message_ns + chunk_bytes * link.byte_ns * kind.sharers;
  if (kind.receives) {
    costs.latency_ns = link.latency_ns;
    costs.ready_ns = link.message_ns + chunk_bytes * link.byte_ns;
    costs.chunk_ns += costs.ready_ns;
  }
  return costs;
}

double StepGraph::Ns(double bytes) const {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const double block_bytes = blocks_ == 0 ? 0 : bytes / blocks_;
  std::vector<ChunkCosts> costs_of;
  for (const Kind& kind : kinds_) costs_of.push_back(CostsOf(kind, block_bytes));
  std::vector<double> busy_until(ranks_ * kEnds, kNever);
  std::vector<Stream> done(nodes_.size());
  double last = 0;
  int32_t after = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const ChunkCosts& costs = costs_of[node.kind];
    Stream ready;
    for (; after < node.afters_end; ++after) {
      const Stream& earlier = done[afters_[after].node];
      ready = Later(ready, afters_[after].chunkwise ? earlier : Stream{earlier.last, earlier.last});
    }
    double& busy = busy_until[node.end];
    Stream now;
    if (node.sent >= 0) {
      const Stream& left = done[node.sent];
      now.first = std::max(left.first + costs.latency_ns, std::max(ready.first, busy) + costs.ready_ns) + costs.work_ns;
      now.last = std::max(left.last + costs.latency_ns + costs.work_ns, ready.last + costs.chunk_ns);
    } else {
      now = {std::max(ready.first, busy) + costs.chunk_ns, ready.last + costs.chunk_ns};
    }
    now.last = std::max(now.last, now.first + costs.more_chunks * costs.chunk_ns);
    done[i] = now;
    busy = now.last;
    last = std::max(last, now.last);
  }
  return last;
}

CostModel::CostModel(int size, const Network& network) : size_(size), network_(network) {}
CostModel::~CostModel() = default;

// What is followed at least of a larger world.
constexpr int kFollowedHosts = 8;
constexpr int kFollowedLocals = 8;

const CostModel::Followed& CostModel::Follow(Collective collective, Algorithm algorithm, Network network) {
  const auto key = std::make_pair(collective, algorithm);
  const auto found = followed_.find(key);
  if (found != followed_.end()) return found->second;
  // What three ranks of a world tell of it.
  int64_t steps = 0;
  const auto look_at = [&](int size) {
    Facts facts;
    facts.size = size;
    steps = 0;
    for (const Schedule& schedule : BuildAll(collective, algorithm, size, network, {0, size / 2, size - 1})) {
      double moved = 0;
      for (const Step& step : schedule.steps) moved += SizingOperand(step).blocks;
      facts.blocks = std::max(1, schedule.blocks);
      facts.moved = std::max(facts.moved, moved);
      steps = std::max(steps, size * static_cast<int64_t>(schedule.steps.size()));
    }
    return facts;
  };
  const auto follow = [&](const Facts& facts) {
    std::vector<int> ranks(facts.size);
    for (int rank = 0; rank < facts.size; ++rank) ranks[rank] = rank;
    const std::vector<Schedule> schedules = BuildAll(collective, algorithm, facts.size, network, ranks);
    return World{facts, std::make_unique<StepGraph>(schedules, network)};
  };
  Followed followed;
  followed.self = look_at(size_);
  const bool crosses = size_ > network.ranks_per_host;
  if (steps <= kStepsMax || (crosses && network.ranks_per_host > 1 && size_ <= kFollowedHosts * kFollowedLocals)) {
    followed.worlds.push_back(follow(followed.self));
  } else {
    // Whole hosts, as wide as the budget allows, that have as much of the link to share.
    if (network.ranks_per_host > kFollowedLocals && crosses) {
      network.remote.byte_ns *= static_cast<double>(network.ranks_per_host) / kFollowedLocals;
      network.ranks_per_host = kFollowedLocals;
    }
    // A power of two of them: as many as the budget allows, but no fewer than 2, 4 and 8.
    const int unit = crosses ? network.ranks_per_host : 1;
    int units = kFollowedHosts;
    while (4 * units * unit <= size_ && (look_at(2 * units * unit), steps <= kStepsMax)) units *= 2;
    for (const int part : {units / 4, units / 2, units}) followed.worlds.push_back(follow(look_at(part * unit)));
  }
  return followed_.emplace(key, std::move(followed)).first->second;
}

void CostModel::Prepare() {
  for (int c = 0; c < kCollectiveCount; ++c) {
    const Algorithms choices = ChoicesFor(static_cast<Collective>(c));
    if (choices.size() == 1) continue;
    for (const Algorithm algorithm : choices) Ns(static_cast<Collective>(c), algorithm, 0);
  }
}

double CostModel::Ns(Collective collective, Algorithm algorithm, int64_t bytes) {
  LOCKSTEP_CHECK(size_ >= 1 && bytes >= 0) << size_ << " ranks, " << bytes << " bytes";
  const auto vector_bytes = static_cast<double>(bytes);
  if (algorithm == Algorithm::kAuto || !CheckAlgorithm(collective, algorithm).ok()) return kImpossible;
  if (size_ == 1) return collective == Collective::kBarrier ? 0 : vector_bytes * network_.copied_byte_ns;
  if (UsesSharedMemory(algorithm)) {
    if (size_ > network_.ranks_per_host) return kImpossible;
    return SharedMemoryNs(collective, algorithm, size_, vector_bytes, network_);
  }
  Network network = network_;
  if (network.interleaved && !Has(algorithm, algorithms::kByHosts) && size_ > network.ranks_per_host) {
    network.remote.byte_ns *= network.ranks_per_host;
    network.ranks_per_host = 1;
  }
  const Followed& followed = Follow(collective, algorithm, network);
  if (followed.worlds.size() == 1) return followed.worlds[0].graph->Ns(vector_bytes);
  // A block is as large in the smaller worlds, so what a step costs is the same. In the first two worlds the logarithm alone is
  // fitted; what then is missing in the third goes by the blocks that a rank moves.
  const auto ns = [&](int i) {
    const World& world = followed.worlds[i];
    return world.graph->Ns(vector_bytes * world.facts.blocks / followed.self.blocks);
  };
  const auto fit = [&](const Facts& at, double first, double second) {
    const double begin = std::log2(followed.worlds[0].facts.size), end = std::log2(followed.worlds[1].facts.size);
    return first + (second - first) * (std::log2(at.size) - begin) / (end - begin);
  };
  const double first = ns(0), second = ns(1);
  const auto left_of_moved = [&](const Facts& at) {
    return at.moved - fit(at, followed.worlds[0].facts.moved, followed.worlds[1].facts.moved);
  };
  const Facts& third = followed.worlds[2].facts;
  const double fitted = fit(followed.self, first, second);
  if (std::abs(left_of_moved(third)) <= 0.01 * third.moved) return fitted;
  const double last = ns(2);
  const double more = (last - fit(third, first, second)) * left_of_moved(followed.self) / left_of_moved(third);
  return std::max(last, fitted + more);
}

}  // namespace lockstep
