#include "bench/compare_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "bench/sweep.h"

namespace lockstep {
namespace bench {
namespace {

constexpr int kTimeWidth = 14;
constexpr int kRatioWidth = 20;

std::string KindText(ContenderKind kind) {
  switch (kind) {
    case ContenderKind::kLockstep:
      return "";
    case ContenderKind::kLimit:
      return "limit: ";
    case ContenderKind::kPeer:
      return "peer: ";
  }
  return "";
}

size_t Rounds(const ContestResult& contest) {
  size_t rounds = 0;
  for (const ContenderResult& contender : contest.contenders) {
    for (const Trial& trial : contender.trials) rounds = std::max(rounds, trial.seconds.size());
  }
  return rounds;
}

std::string TimeText(double seconds) {
  const double us = seconds * 1e6;
  if (us >= 10'000) return absl::StrFormat("%.0f", us);
  return us >= 100 ? absl::StrFormat("%.1f", us) : absl::StrFormat("%.2f", us);
}

std::string Heading(const ContestResult& contest) {
  std::string text = absl::StrFormat(
      "#\n# %s, %d ranks: all_reduce, f32 sum in place. Calls are timed one by one, each on a vector just rewritten; "
      "time "
      "of the slowest rank, median of %d rounds.\n",
      TransportText(contest.transport), contest.ranks, Rounds(contest));
  for (const ContenderResult& contender : contest.contenders) {
    absl::StrAppendFormat(&text, "#   %-14s %s%s", contender.name, KindText(contender.kind), contender.about);
    if (!contender.congestion_control.empty() && contender.congestion_control != "none") {
      absl::StrAppend(&text, "; its connections used ", contender.congestion_control);
    }
    absl::StrAppend(&text, "\n");
  }
  for (const ContenderResult& contender : contest.contenders) {
    if (contender.dropped.empty()) continue;
    absl::StrAppend(&text, "# dropped: ", contender.name, " ", contender.dropped, "\n");
  }
  return text;
}

std::string Times(const ContestResult& contest) {
  std::string text = absl::StrFormat("#\n# time (us)\n#%9s", "size");
  for (const ContenderResult& contender : contest.contenders) {
    absl::StrAppendFormat(&text, "  %*s", kTimeWidth, contender.name);
  }
  absl::StrAppend(&text, "\n");
  for (size_t size = 0; size < contest.sizes.size(); ++size) {
    absl::StrAppendFormat(&text, "%10s", ByteCountText(contest.sizes[size]));
    for (const ContenderResult& contender : contest.contenders) {
      const absl::optional<double> seconds = MedianSeconds(contender, size);
      absl::StrAppendFormat(&text, "  %*s", kTimeWidth, seconds.has_value() ? TimeText(*seconds) : "-");
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

bool HasTimes(const ContenderResult& contender) {
  return std::any_of(contender.trials.begin(), contender.trials.end(),
                     [](const Trial& trial) { return !trial.seconds.empty(); });
}

std::string Ratios(const ContestResult& contest, const ContenderResult& subject) {
  std::string text = absl::StrFormat(
      "#\n# time of %s / time of the other in the same round: median [quartiles]; below 1 %s is faster; * the fastest "
      "peer\n"
      "#%9s",
      subject.name, subject.name, "size");
  for (const ContenderResult& contender : contest.contenders) {
    if (&contender != &subject) absl::StrAppendFormat(&text, "  %*s", kRatioWidth, contender.name);
  }
  absl::StrAppend(&text, "\n");
  for (size_t size = 0; size < contest.sizes.size(); ++size) {
    const ContenderResult* const fastest = FastestPeer(contest, size);
    absl::StrAppendFormat(&text, "%10s", ByteCountText(contest.sizes[size]));
    for (const ContenderResult& contender : contest.contenders) {
      if (&contender == &subject) continue;
      const absl::optional<Quartiles> ratio = RatioOf(subject, contender, size);
      const std::string cell = ratio.has_value() ? absl::StrFormat("%.2f [%.2f-%.2f]%s", ratio->median, ratio->low,
                                                                   ratio->high, &contender == fastest ? "*" : " ")
                                                 : "- ";
      absl::StrAppendFormat(&text, "  %*s", kRatioWidth, cell);
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace

std::string ComparisonFactsText(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string text;
  for (const auto& fact : facts) absl::StrAppend(&text, "# ", fact.first, ": ", fact.second, "\n");
  return text;
}

std::string ContestTable(const ContestResult& contest) {
  std::string text = Heading(contest) + Times(contest);
  for (const ContenderResult& contender : contest.contenders) {
    if (contender.kind != ContenderKind::kLockstep || !HasTimes(contender)) continue;
    absl::StrAppend(&text, Ratios(contest, contender));
  }
  return text;
}

}  // namespace bench
}  // namespace lockstep
