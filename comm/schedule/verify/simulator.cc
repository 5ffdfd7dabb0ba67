#include "comm/schedule/verify/simulator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/plan/prepared_schedule.h"
#include "comm/schedule/schedule_memory.h"
#include "comm/schedule/stage.h"
#include "comm/select/link_sharing.h"

namespace lockstep {
namespace {

// The time of `bytes` bytes of a step that is neither a message nor a barrier.
double WorkNs(const Step& step, double bytes, const Network& network) {
  if (step.kind == Step::Kind::kCopy) return bytes * network.copied_byte_ns;
  double byte_ns = static_cast<double>(step.terms.size() - 1) * network.reduced_byte_ns +
                   static_cast<double>(step.more_targets.size()) * network.copied_byte_ns / 2;
  for (const Operand& term : step.terms) byte_ns += term.rank == Operand::kOwn ? 0 : kPeerByteNs;
  return bytes * byte_ns;
}

// ---- Schedules in shared memory.

std::string Describe(const Schedule& schedule, size_t index) {
  return absl::StrCat("#", index, " (", ToString(schedule.steps[index]), ")");
}

// One rank on its way through its list.
struct Walker {
  const Schedule* schedule;
  size_t at = 0;  // a barrier, or the end
  double now = 0;

  bool done() const { return at == schedule->steps.size(); }

  // Through all that comes before the next barrier.
  absl::Status Walk(double bytes, const Network& network) {
    for (; !done(); ++at) {
      const Step& step = schedule->steps[at];
      const double step_bytes = schedule->blocks == 0 ? 0 : bytes / schedule->blocks * SizingOperand(step).blocks;
      if (!IsBarrier(step.kind)) {
        now += WorkNs(step, step_bytes, network);
        continue;
      }
      if (step_bytes <= kShareBytesMax) break;
      return absl::InvalidArgumentError(absl::StrCat("rank ", schedule->rank.value(), " gives ", step_bytes,
                                                     " bytes in ", Describe(*schedule, at), ", at most ",
                                                     kShareBytesMax, " can be given in a barrier"));
    }
    return absl::OkStatus();
  }
};

// In rounds, as comm/schedule/stage.h has them.
double SimulateStaged(absl::Span<const Schedule> schedules, double bytes, const Network& network) {
  const int size = static_cast<int>(schedules.size());
  const double block_bytes = bytes / schedules[0].blocks;
  const auto piece_bytes = static_cast<double>(StagePieceBytes(schedules[0].scratch_blocks));
  const auto rounds = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(block_bytes / piece_bytes)));
  // Of each rank's phases, for each byte of a piece.
  std::vector<std::vector<double>> byte_ns(size);
  for (int rank = 0; rank < size; ++rank) {
    byte_ns[rank].push_back(0);
    for (const Step& step : schedules[rank].steps) {
      if (IsBarrier(step.kind)) {
        byte_ns[rank].push_back(0);
      } else {
        byte_ns[rank].back() += WorkNs(step, SizingOperand(step).blocks, network);
      }
    }
  }
  const auto phases = static_cast<int64_t>(byte_ns[0].size());
  const auto in_round = [&](int64_t round) {
    if (round < 0 || round >= rounds) return 0.0;
    return std::min(piece_bytes, block_bytes - static_cast<double>(round) * piece_bytes);
  };
  double now = 0;
  for (int64_t tick = 0; tick < rounds + phases - 1; ++tick) {
    double longest = 0;
    for (const std::vector<double>& of_rank : byte_ns) {
      double work = 0;
      for (int64_t phase = 0; phase < phases; ++phase) work += of_rank[phase] * in_round(tick - phase);
      longest = std::max(longest, work);
    }
    now += longest + (tick == 0 ? 0 : BarrierNs(size));
  }
  return now;
}

absl::StatusOr<double> SimulateInSharedMemory(absl::Span<const Schedule> schedules, double bytes,
                                              const Network& network) {
  const int size = static_cast<int>(schedules.size());
  if (size > network.ranks_per_host) {
    return absl::InvalidArgumentError(absl::StrCat(Name(schedules[0].algorithm), " is for ranks that share a host: ",
                                                   size, " do not, with ", network.ranks_per_host, " on each"));
  }
  if (IsStaged(schedules[0].algorithm) && size > 1) return SimulateStaged(schedules, bytes, network);
  std::vector<Walker> ranks;
  for (const Schedule& schedule : schedules) ranks.push_back({&schedule});
  while (true) {
    double last = 0;
    for (Walker& rank : ranks) {
      LOCKSTEP_RETURN_IF_ERROR(rank.Walk(bytes, network));
      last = std::max(last, rank.now);
    }
    const auto is_done = [](const Walker& rank) { return rank.done(); };
    const auto waiting = std::find_if_not(ranks.begin(), ranks.end(), is_done);
    if (waiting == ranks.end()) return last;
    if (std::any_of(ranks.begin(), ranks.end(), is_done)) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", waiting->schedule->rank.value(), " waits for ever in ",
                                                        Describe(*waiting->schedule, waiting->at)));
    }
    for (Walker& rank : ranks) {
      rank.now = last + BarrierNs(size);
      ++rank.at;
    }
  }
}

// ---- Schedules of messages.

enum End { kSending, kReceiving, kEnds };

End EndOf(const Step& step) { return step.kind == Step::Kind::kSend ? kSending : kReceiving; }

class Simulator {
 public:
  explicit Simulator(const Network& network) : network_(network) {}

  absl::Status Prepare(absl::Span<const Schedule> schedules);
  // As often as wanted.
  absl::StatusOr<Simulation> Run(double bytes);

 private:
  static constexpr double kUnknown = -1;

  struct StepState {
    double chunk_bytes = 0;
    std::vector<double> complete;  // when each chunk was; kUnknown until then
    std::vector<double> arrived;   // receives: when each chunk was there
  };

  // A message, at the rank that sends it.
  struct Sending {
    int32_t counterpart = 0;  // the receive at the peer
    double sharers = 1;       // of the host's link: see comm/select/link_sharing.h
  };

  // One of a rank's resources: which step it is at, and how far.
  struct Server {
    std::vector<int32_t> steps;
    size_t at = 0;
    int32_t chunk = 0;
    bool busy = false;
    double free_since = 0;
  };

  struct RankState {
    explicit RankState(const Schedule& schedule) : prepared(schedule) {}
    PreparedSchedule prepared;
    std::vector<Sending> sendings;  // by step
    std::vector<StepState> steps;
    std::array<Server, kEnds> servers;
  };

  struct Event {
    enum class Kind { kServed, kArrival };
    double time;
    uint64_t number;  // of equal times, the first made is first
    Kind kind;
    int rank;
    int32_t detail;  // kServed: the server; kArrival: the step
    int32_t chunk;

    bool operator>(const Event& other) const { return std::tie(time, number) > std::tie(other.time, other.number); }
  };

  absl::Status Match();
  void ShareLinks();
  void Begin(double bytes);
  void Push(double time, Event::Kind kind, int rank, int32_t detail, int32_t chunk);
  // When chunk `chunk` of the step may start, as far as the steps that it names are concerned; kUnknown if not yet.
  double ReadyTime(const RankState& rank, int32_t step, int32_t chunk) const;
  void Advance(int rank);
  void TryServer(int rank, End end);
  void Served(int rank, End end);

  const Network network_;
  double now_ = 0;
  uint64_t next_number_ = 0;
  std::vector<RankState> ranks_;
  std::vector<double> sent_by_host_, received_by_host_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

absl::Status CheckWorld(absl::Span<const Schedule> schedules, const Network& network) {
  if (schedules.empty()) return absl::InvalidArgumentError("no schedules");
  if (network.ranks_per_host < 1 || network.chunk_bytes < 1 || network.local.latency_ns < 0 ||
      network.local.byte_ns < 0 || network.local.message_ns < 0 || network.remote.message_ns < 0 ||
      network.remote.latency_ns < 0 || network.remote.byte_ns < 0 || network.reduced_byte_ns < 0 ||
      network.copied_byte_ns < 0) {
    return absl::InvalidArgumentError(
        "a network has at least one rank on a host, chunks of at least a byte, and no negative costs");
  }
  const Schedule& first = schedules[0];
  for (size_t r = 0; r < schedules.size(); ++r) {
    const Schedule& schedule = schedules[r];
    if (schedule.size != static_cast<int>(schedules.size()) || schedule.rank.value() != static_cast<int>(r) ||
        schedule.collective != first.collective || schedule.algorithm != first.algorithm ||
        schedule.blocks != first.blocks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "schedule ", r, " of ", schedules.size(), " is that of rank ", schedule.rank.value(), " of ", schedule.size,
          " in ", Name(schedule.collective), " by ", Name(schedule.algorithm), " with ", schedule.blocks, " blocks"));
    }
  }
  return absl::OkStatus();
}

absl::Status Simulator::Prepare(absl::Span<const Schedule> schedules) {
  const int size = static_cast<int>(schedules.size());
  ranks_.reserve(size);
  for (const Schedule& schedule : schedules) {
    RankState& rank = ranks_.emplace_back(schedule);
    for (int i = 0; i < rank.prepared.steps(); ++i) rank.servers[EndOf(rank.prepared.step(i))].steps.push_back(i);
  }
  const int hosts = network_.HostOf(size - 1) + 1;
  sent_by_host_.resize(hosts);
  received_by_host_.resize(hosts);
  LOCKSTEP_RETURN_IF_ERROR(Match());
  ShareLinks();
  return absl::OkStatus();
}

void Simulator::Begin(double bytes) {
  now_ = 0;
  next_number_ = 0;
  std::fill(sent_by_host_.begin(), sent_by_host_.end(), 0);
  std::fill(received_by_host_.begin(), received_by_host_.end(), 0);
  for (RankState& rank : ranks_) {
    const int blocks = rank.prepared.schedule().blocks;
    rank.steps.resize(rank.prepared.steps());
    for (int i = 0; i < rank.prepared.steps(); ++i) {
      const Step& step = rank.prepared.step(i);
      const double step_bytes = blocks == 0 ? 0 : bytes / blocks * SizingOperand(step).blocks;
      const double chunks = std::max(1.0, std::ceil(step_bytes / static_cast<double>(network_.chunk_bytes)));
      StepState& state = rank.steps[i];
      state.chunk_bytes = step_bytes / chunks;
      state.complete.assign(static_cast<size_t>(chunks), kUnknown);
      if (EndOf(step) == kReceiving && IsMessage(step.kind)) state.arrived = state.complete;
    }
    for (Server& server : rank.servers) {
      server.at = 0;
      server.chunk = 0;
      server.busy = false;
      server.free_since = 0;
    }
  }
}

absl::Status Simulator::Match() {
  // By source and target: the receives that no send has been found for, in list order.
  std::map<std::pair<int, int>, std::deque<int32_t>> open;
  const int size = static_cast<int>(ranks_.size());
  for (int r = 0; r < size; ++r) {
    for (int32_t i : ranks_[r].servers[kReceiving].steps) {
      if (!IsMessage(ranks_[r].prepared.step(i).kind)) continue;
      open[{ranks_[r].prepared.step(i).peer.value(), r}].push_back(i);
    }
  }
  for (int r = 0; r < size; ++r) {
    ranks_[r].sendings.resize(ranks_[r].prepared.steps());
    for (int32_t i : ranks_[r].servers[kSending].steps) {
      const Step& send = ranks_[r].prepared.step(i);
      const int peer = send.peer.value();
      std::deque<int32_t>& receives = open[{r, peer}];
      if (receives.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("rank ", peer, " does not receive what rank ", r, " sends in #",
                                                       i, " (", ToString(send), ")"));
      }
      const int32_t counterpart = ranks_[r].sendings[i].counterpart = receives.front();
      receives.pop_front();
      if (SizingOperand(ranks_[peer].prepared.step(counterpart)).blocks != SizingOperand(send).blocks) {
        return absl::InvalidArgumentError(absl::StrCat(
            "what rank ", r, " sends in #", i, " is not as long as what rank ", peer, " receives in #", counterpart));
      }
    }
  }
  for (const auto& [ranks, receives] : open) {
    if (receives.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat("rank ", ranks.first, " does not send what rank ", ranks.second,
                                                   " receives in #", receives.front()));
  }
  return absl::OkStatus();
}

void Simulator::ShareLinks() {
  LinkSharing sharing;
  const auto for_remote_sends = [&](auto visit) {
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
      const int host = network_.HostOf(r);
      for (int32_t i : ranks_[r].servers[kSending].steps) {
        const Step& step = ranks_[r].prepared.step(i);
        if (network_.HostOf(step.peer.value()) != host) visit(host, r, i, step);
      }
    }
  };
  for_remote_sends([&](int host, int rank, int32_t, const Step& step) {
    sharing.Add(host, step.round, rank, SizingOperand(step).blocks);
  });
  for_remote_sends([&](int host, int rank, int32_t i, const Step& step) {
    ranks_[rank].sendings[i].sharers = sharing.Sharers(host, step.round, rank);
  });
}

absl::StatusOr<Simulation> Simulator::Run(double bytes) {
  Begin(bytes);
  const int size = static_cast<int>(ranks_.size());
  for (int r = 0; r < size; ++r) Advance(r);
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    switch (event.kind) {
      case Event::Kind::kServed:
        Served(event.rank, static_cast<End>(event.detail));
        break;
      case Event::Kind::kArrival:
        ranks_[event.rank].steps[event.detail].arrived[event.chunk] = now_;
        break;
    }
    Advance(event.rank);
  }
  for (int r = 0; r < size; ++r) {
    for (const Server& server : ranks_[r].servers) {
      if (server.at == server.steps.size()) continue;
      const int32_t step = server.steps[server.at];
      return absl::FailedPreconditionError(absl::StrCat("in list order, rank ", r, " waits for ever in #", step, " (",
                                                        ToString(ranks_[r].prepared.step(step)), ")"));
    }
  }
  Simulation result;
  result.ns = now_;
  result.remote_sent_bytes = *std::max_element(sent_by_host_.begin(), sent_by_host_.end());
  result.remote_received_bytes = *std::max_element(received_by_host_.begin(), received_by_host_.end());
  return result;
}

void Simulator::Push(double time, Event::Kind kind, int rank, int32_t detail, int32_t chunk) {
  events_.push({time, next_number_++, kind, rank, detail, chunk});
}

double Simulator::ReadyTime(const RankState& rank, int32_t index, int32_t chunk) const {
  const Step& step = rank.prepared.step(index);
  double ready = 0;
  for (size_t k = 0; k < step.after.size(); ++k) {
    const StepState& earlier = rank.steps[step.after[k]];
    // As in the executor: an earlier step with fewer chunks has to be complete as a whole.
    const bool chunkwise =
        rank.prepared.links(index).chunkwise[k] && chunk < static_cast<int32_t>(earlier.complete.size());
    const double complete = chunkwise ? earlier.complete[chunk] : earlier.complete.back();
    if (complete == kUnknown) return kUnknown;
    ready = std::max(ready, complete);
  }
  return ready;
}

void Simulator::Advance(int rank) {
  for (int end = 0; end < kEnds; ++end) TryServer(rank, static_cast<End>(end));
}

void Simulator::TryServer(int index, End end) {
  RankState& rank = ranks_[index];
  Server& server = rank.servers[end];
  if (server.busy || server.at == server.steps.size()) return;
  const int32_t number = server.steps[server.at];
  const Step& step = rank.prepared.step(number);
  const StepState& state = rank.steps[number];
  const double ready = ReadyTime(rank, number, server.chunk);
  if (ready == kUnknown) return;
  const double bytes = state.chunk_bytes;
  double complete = 0;
  switch (end) {
    case kSending: {
      const LinkCosts& link = network_.Between(index, step.peer.value());
      const int source_host = network_.HostOf(index), target_host = network_.HostOf(step.peer.value());
      if (source_host != target_host) {
        sent_by_host_[source_host] += bytes;
        received_by_host_[target_host] += bytes;
      }
      complete = now_ + link.message_ns + bytes * link.byte_ns * rank.sendings[number].sharers;
      break;
    }
    case kReceiving: {
      if (!IsMessage(step.kind)) {
        complete = now_ + WorkNs(step, bytes, network_);
        break;
      }
      const double arrived = state.arrived[server.chunk];
      if (arrived == kUnknown) return;
      const LinkCosts& link = network_.Between(index, step.peer.value());
      complete = std::max(arrived, std::max(ready, server.free_since) + link.message_ns + bytes * link.byte_ns);
      if (step.kind == Step::Kind::kReceiveReduce) complete += bytes * network_.reduced_byte_ns;
      break;
    }
    case kEnds:
      break;
  }
  server.busy = true;
  Push(complete, Event::Kind::kServed, index, end, 0);
}

// The chunk that the server was at is complete.
void Simulator::Served(int index, End end) {
  RankState& rank = ranks_[index];
  Server& server = rank.servers[end];
  const int32_t number = server.steps[server.at];
  const Step& step = rank.prepared.step(number);
  StepState& state = rank.steps[number];
  state.complete[server.chunk] = now_;
  if (end == kSending) {
    const int peer = step.peer.value();
    Push(now_ + network_.Between(index, peer).latency_ns, Event::Kind::kArrival, peer,
         rank.sendings[number].counterpart, server.chunk);
  }
  server.busy = false;
  server.free_since = now_;
  if (++server.chunk < static_cast<int32_t>(state.complete.size())) return;
  server.chunk = 0;
  ++server.at;
}

}  // namespace

absl::StatusOr<std::vector<Simulation>> Simulate(absl::Span<const Schedule> schedules, absl::Span<const int64_t> sizes,
                                                 const Network& network) {
  LOCKSTEP_RETURN_IF_ERROR(CheckWorld(schedules, network));
  for (int64_t bytes : sizes) {
    if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("a vector of ", bytes, " bytes"));
  }
  std::vector<Simulation> simulations(sizes.size());
  if (UsesSharedMemory(schedules[0].algorithm)) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(simulations[i].ns,
                                SimulateInSharedMemory(schedules, static_cast<double>(sizes[i]), network));
    }
    return simulations;
  }
  Simulator simulator(network);
  LOCKSTEP_RETURN_IF_ERROR(simulator.Prepare(schedules));
  for (size_t i = 0; i < sizes.size(); ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(simulations[i], simulator.Run(static_cast<double>(sizes[i])));
  }
  return simulations;
}

absl::StatusOr<Simulation> Simulate(absl::Span<const Schedule> schedules, int64_t bytes, const Network& network) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Simulation> simulations,
                            Simulate(schedules, absl::MakeConstSpan(&bytes, 1), network));
  return simulations.front();
}

absl::StatusOr<Simulation> Simulate(Collective collective, Algorithm algorithm, int size, int64_t bytes,
                                    const Network& network) {
  Topology topology;
  for (int rank = 0; rank < size; ++rank) topology.host_of_rank.push_back(rank / std::max(network.ranks_per_host, 1));
  std::vector<Schedule> schedules;
  schedules.reserve(std::max(size, 0));
  for (int rank = 0; rank < size; ++rank) {
    LOCKSTEP_ASSIGN_OR_RETURN(schedules.emplace_back(),
                              BuildSchedule(collective, algorithm, Rank(rank), size, Rank(0), topology));
  }
  return Simulate(schedules, bytes, network);
}

}  // namespace lockstep
