#include "bench/compare_json.h"

#include <nlohmann/json.hpp>

namespace lockstep {
namespace bench {
namespace {

using Json = nlohmann::ordered_json;

const char* Name(ContenderKind kind) {
  switch (kind) {
    case ContenderKind::kLockstep:
      return "lockstep";
    case ContenderKind::kLimit:
      return "limit";
    case ContenderKind::kPeer:
      return "peer";
  }
  return "";
}

Json RatiosJson(const ContestResult& contest, const ContenderResult& contender, size_t size) {
  Json json = Json::object();
  for (const ContenderResult& subject : contest.contenders) {
    if (subject.kind != ContenderKind::kLockstep || &subject == &contender) continue;
    const absl::optional<Quartiles> ratio = RatioOf(subject, contender, size);
    if (!ratio.has_value()) continue;
    json[subject.name] = {{"low", ratio->low}, {"median", ratio->median}, {"high", ratio->high}};
  }
  return json;
}

Json ContenderJson(const ContestResult& contest, const ContenderResult& contender) {
  Json json = {{"name", contender.name},
               {"kind", Name(contender.kind)},
               {"about", contender.about},
               {"congestion_control", contender.congestion_control},
               {"dropped", contender.dropped.empty() ? Json() : Json(contender.dropped)},
               {"sizes", Json::array()}};
  for (size_t size = 0; size < contest.sizes.size(); ++size) {
    const absl::optional<double> seconds = MedianSeconds(contender, size);
    if (!seconds.has_value()) continue;
    Json rounds = Json::array();
    for (const double round : contender.trials[size].seconds) rounds.push_back(round * 1e6);
    json["sizes"].push_back({{"bytes", contest.sizes[size]},
                             {"calls", contender.trials[size].calls},
                             {"median_us", *seconds * 1e6},
                             {"busbw_gbps", BusBandwidth(contest.sizes[size], contest.ranks, *seconds)},
                             {"rounds_us", std::move(rounds)},
                             {"lockstep_ratio", RatiosJson(contest, contender, size)}});
  }
  return json;
}

}  // namespace

std::string ComparisonJson(const ComparisonReport& report) {
  Json json = {{"facts", Json::object()}, {"missing", report.missing}, {"contests", Json::array()}};
  for (const auto& fact : report.facts) json["facts"][fact.first] = fact.second;
  for (const ContestResult& contest : report.contests) {
    Json contenders = Json::array();
    for (const ContenderResult& contender : contest.contenders) {
      contenders.push_back(ContenderJson(contest, contender));
    }
    json["contests"].push_back(
        {{"transport", contest.transport}, {"ranks", contest.ranks}, {"contenders", std::move(contenders)}});
  }
  // What is not UTF-8 (in a fact, or in what a program wrote) is replaced rather than thrown about.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bench
}  // namespace lockstep
