#include "comm/schedule/verify/memory_simulator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/plan/prepared_schedule.h"
#include "comm/schedule/schedule_memory.h"
#include "comm/schedule/stage.h"
#include "comm/select/barrier_costs.h"

namespace lockstep {
namespace {

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

}  // namespace

double WorkNs(const Step& step, double bytes, const Network& network) {
  switch (step.kind) {
    case Step::Kind::kCopy:
      return bytes * network.copied_byte_ns;
    case Step::Kind::kReduceMany:
      return bytes * (static_cast<double>(step.terms.size() - 1) * network.reduced_byte_ns +
                      static_cast<double>(step.more_targets.size()) * network.copied_byte_ns / 2);
    case Step::Kind::kSend:
    case Step::Kind::kReceive:
    case Step::Kind::kReceiveReduce:
    case Step::Kind::kReduce:
    case Step::Kind::kBarrier:
    case Step::Kind::kShare:
      break;
  }
  return bytes * network.reduced_byte_ns;
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

}  // namespace lockstep
