#include "transport/control/control_text.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/rank_list.h"

namespace lockstep::control {
namespace {

// So that thousands of ranks, or one huge value, still make a message that can be read.
constexpr size_t kGroupsMax = 8;
constexpr size_t kValueCharactersMax = 100;

std::string Shorten(const std::string& value) {
  if (value.empty()) return "\"\"";
  if (value.size() <= kValueCharactersMax) return value;
  return absl::StrCat(value.substr(0, kValueCharactersMax), "...");
}

// A group of one is named in full.
std::string Who(const std::vector<const Member*>& group) {
  if (group.size() == 1) return Describe(*group[0]);
  std::vector<int> ranks;
  for (const Member* member : group) ranks.push_back(member->rank.value());
  return RankList(ranks);
}

// Called texts with the ranks that called them, by the lowest rank. By rank; empty: unknown.
std::vector<std::pair<std::vector<int>, absl::string_view>> GroupByCall(absl::Span<const std::string> called) {
  std::map<absl::string_view, std::vector<int>> ranks_of;
  for (size_t rank = 0; rank < called.size(); ++rank) {
    if (!called[rank].empty()) ranks_of[called[rank]].push_back(static_cast<int>(rank));
  }
  std::vector<std::pair<std::vector<int>, absl::string_view>> groups;
  for (auto& [text, ranks] : ranks_of) groups.emplace_back(std::move(ranks), text);
  std::sort(groups.begin(), groups.end());
  return groups;
}

// Where a rank that has not called the operation is instead.
std::string Whereabouts(const Progress& progress, bool plural) {
  const char* const they = plural ? "they " : "it ";
  if (progress.started > progress.completed) {
    return absl::StrCat(they, plural ? "are" : "is", " still in #", progress.completed + 1);
  }
  if (progress.completed == 0) return absl::StrCat(they, plural ? "have" : "has", " completed none");
  return absl::StrCat(they, "last completed #", progress.completed);
}

}  // namespace

std::string OptionDifferences(absl::Span<const std::vector<AgreedOption>* const> by_rank) {
  // For each option the ranks that have each value. Ordered maps, so that the text is the same from run to run.
  std::map<std::string, std::map<std::string, std::vector<int>>> seen;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const auto& [name, value] : *by_rank[rank]) seen[name][value].push_back(static_cast<int>(rank));
  }
  std::vector<std::string> differences;
  for (auto& [name, values] : seen) {
    std::vector<std::pair<std::vector<int>, std::string>> groups;  // sorts by the lowest rank
    std::vector<bool> has(by_rank.size(), false);
    for (auto& [value, ranks] : values) {
      for (const int rank : ranks) has[rank] = true;
      ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
      groups.emplace_back(std::move(ranks), Shorten(value));
    }
    std::vector<int> without;
    for (size_t rank = 0; rank < has.size(); ++rank) {
      if (!has[rank]) without.push_back(static_cast<int>(rank));
    }
    if (!without.empty()) groups.emplace_back(std::move(without), "not set");
    if (groups.size() == 1) continue;

    std::sort(groups.begin(), groups.end());
    std::vector<std::string> parts;
    for (size_t i = 0; i < groups.size() && i < kGroupsMax; ++i) {
      parts.push_back(absl::StrCat(groups[i].second, " on ", RankList(groups[i].first)));
    }
    if (groups.size() > kGroupsMax) parts.push_back(absl::StrCat("and ", groups.size() - kGroupsMax, " more values"));
    differences.push_back(absl::StrCat(name, ": ", absl::StrJoin(parts, ", ")));
  }
  return absl::StrJoin(differences, "; ");
}

std::string UnreachableText(absl::Span<const Member* const> by_rank) {
  const auto listens = [](const Member& member) { return member.data_address.length() != 0; };
  for (const Member* const member : by_rank) {
    if (!listens(*member) || !member->data_address.loopback()) continue;
    for (const Member* const other : by_rank) {
      if (!listens(*other) || other->data_address.loopback() || other->host_id == member->host_id) continue;
      return absl::StrCat(Describe(*member), " listens on loopback (", member->data_address.ToString(), "), where ",
                          Describe(*other), ", on another host, cannot reach it: see LOCKSTEP_INTERFACE");
    }
  }
  return "";
}

std::string MismatchText(absl::Span<const std::string> called) {
  std::vector<std::string> parts;
  for (const auto& [ranks, text] : GroupByCall(called))
    parts.push_back(absl::StrCat(RankList(ranks), " called ", text));
  return absl::StrCat("the ranks' collectives differ: ", absl::StrJoin(parts, "; "));
}

int OddOne(absl::Span<const std::string> called) {
  std::vector<int> ranks;
  std::vector<absl::string_view> texts;
  for (size_t rank = 0; rank < called.size(); ++rank) {
    if (called[rank].empty()) continue;
    ranks.push_back(static_cast<int>(rank));
    texts.push_back(called[rank]);
  }
  return ranks[lockstep::OddOne(texts)];
}

LateReport DescribeLate(absl::string_view operation, uint64_t sequence, absl::Span<const LateRank> ranks) {
  // Keyed by where the rank is instead, so that each place makes one sentence.
  using Position = std::pair<uint64_t, uint64_t>;  // completed, started
  std::map<Position, std::vector<const Member*>> not_called;
  std::map<Position, std::vector<const Member*>> silent;
  std::vector<const Member*> left;
  std::vector<const Member*> unaware;
  std::vector<int> waiting;
  std::vector<int> done;
  for (const LateRank& rank : ranks) {
    const Position position = {rank.progress.completed, rank.progress.started};
    switch (rank.state) {
      case LateRank::State::kLeft:
        left.push_back(rank.member);
        break;
      case LateRank::State::kUnaware:
        unaware.push_back(rank.member);
        break;
      case LateRank::State::kSilent:
        silent[position].push_back(rank.member);
        break;
      case LateRank::State::kAnswered:
        if (rank.progress.started < sequence) {
          not_called[position].push_back(rank.member);
        } else {
          (rank.progress.completed < sequence ? waiting : done).push_back(rank.member->rank.value());
        }
    }
  }

  std::vector<std::string> sentences;
  absl::optional<int> first;
  const auto blame = [&](const std::vector<const Member*>& group, std::string what) {
    if (!first.has_value()) first = group[0]->rank.value();
    sentences.push_back(absl::StrCat(Who(group), what));
  };
  const auto add_positions = [&](const auto& groups, const char* one, const char* many, const char* had) {
    size_t count = 0;
    for (const auto& [position, group] : groups) {
      if (++count > kGroupsMax) {
        sentences.push_back(absl::StrCat("and so on at ", groups.size() - kGroupsMax, " more places"));
        break;
      }
      const bool plural = group.size() > 1;
      blame(group,
            absl::StrCat(plural ? many : one, " (", had, Whereabouts({position.second, position.first}, plural), ")"));
    }
  };
  if (!left.empty()) {
    blame(left, left.size() == 1 ? " has closed its communicator" : " have closed their communicators");
  }
  add_positions(silent, " does not answer", " do not answer", "when last heard, ");
  add_positions(not_called, " has not called it", " have not called it", "");
  // Usually they take no part in this channel. When nobody else is behind, they may be what everybody waits for.
  if (sentences.empty() && !unaware.empty() && (!waiting.empty() || done.empty())) {
    blame(unaware, absl::StrCat(unaware.size() == 1 ? " has" : " have", " not opened this communicator, or",
                                unaware.size() == 1 ? " takes" : " take", " no part in it"));
  }
  if (!waiting.empty()) {
    sentences.push_back(
        absl::StrCat(RankList(waiting), waiting.size() == 1 ? " has called it and waits" : " have called it and wait"));
  }
  if (!done.empty()) {
    sentences.push_back(absl::StrCat(RankList(done), done.size() == 1 ? " has" : " have", " completed it"));
  }
  return {absl::StrCat(operation, " did not finish in time: ", absl::StrJoin(sentences, "; ")), first};
}

}  // namespace lockstep::control
