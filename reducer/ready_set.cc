#include "reducer/ready_set.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep {

ReadySet::ReadySet(absl::Span<const Parameter> parameters, absl::Span<const size_t> delayed, const Rules& rules)
    : parameters_(parameters),
      rules_(rules),
      window_(parameters.size(), false),
      counts_(parameters.size(), 0),
      used_before_(parameters.size(), false) {
  for (const Parameter& parameter : parameters) {
    initial_.push_back(parameter.ignored ? State::kIgnored : State::kExpected);
  }
  for (const size_t index : delayed) initial_[index] = State::kDelayed;
  states_ = initial_;
}

absl::Status ReadySet::Begin(absl::optional<absl::Span<const size_t>> unused) {
  if (unused.has_value()) {
    if (rules_.static_graph) {
      return absl::FailedPreconditionError("a static graph knows its unused parameters from its first backward");
    }
    if (!rules_.find_unused) {
      return absl::FailedPreconditionError(
          "unused parameters were named, but the reducer was not made to find them: set find_unused_parameters");
    }
    for (const size_t index : *unused) {
      if (index < parameters_.size()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("unused parameter ", index, " is out of range: there are ", parameters_.size()));
    }
  }
  states_ = initial_;
  order_.clear();
  marks_.assign(parameters_.size(), 0);
  refused_.clear();
  unused_are_known_ = unused.has_value();
  for (const size_t index : unused.value_or(absl::Span<const size_t>())) {
    if (states_[index] == State::kExpected) states_[index] = State::kUnused;
  }
  if (!rules_.static_graph || !counted_) return absl::OkStatus();
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i] == State::kExpected && counts_[i] == 0) states_[i] = State::kUnused;
  }
  return absl::OkStatus();
}

absl::Status ReadySet::Refused(size_t index, const std::string& why) {
  absl::Status error = absl::FailedPreconditionError(absl::StrCat("mark_ready: ", why));
  Refuse(index, error);
  return error;
}

absl::StatusOr<ReadySet::Effect> ReadySet::Mark(size_t index) {
  State& state = states_[index];
  if (state == State::kUnused) {
    return Refused(index, rules_.static_graph
                              ? absl::StrCat("the graph changed: ", Named(index), " was not used in the first backward")
                              : absl::StrCat(Named(index), " was said to be unused in this backward"));
  }
  if (state == State::kReady) {
    return Refused(index,
                   rules_.static_graph
                       ? absl::StrCat("the graph changed: ", Named(index), " was marked more than the ", counts_[index],
                                      " time(s) of the first backward")
                       : absl::StrCat(Named(index), " was marked ready twice in this backward; if it is shared, or ",
                                      "computed again by checkpointing, set static_graph"));
  }
  if (!refused_.empty()) refused_.erase(index);
  window_[index] = true;
  ++marks_[index];
  if (state == State::kDelayed) return Effect::kWaits;
  if (counting()) {
    const auto marked = std::find(order_.rbegin(), order_.rend(), index);
    if (marked != order_.rend()) order_.erase(std::next(marked).base());
    order_.push_back(index);
    return Effect::kWaits;
  }
  if (rules_.static_graph && marks_[index] < counts_[index]) return Effect::kWaits;
  order_.push_back(index);
  state = State::kReady;
  return Effect::kReady;
}

absl::Status ReadySet::MarkUnused(size_t index) {
  if (!rules_.find_unused || rules_.static_graph) {
    return absl::FailedPreconditionError(absl::StrCat("mark_unused: ", Named(index), ": set find_unused_parameters",
                                                      rules_.static_graph ? ", and no static graph" : ""));
  }
  if (states_[index] == State::kReady) {
    return absl::FailedPreconditionError(
        absl::StrCat("mark_unused: ", Named(index), " was marked ready in this backward"));
  }
  if (refused_.count(index) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("mark_unused: a mark of ", Named(index), " was refused"));
  }
  if (states_[index] == State::kExpected) states_[index] = State::kUnused;
  return absl::OkStatus();
}

ReadySet::Rest ReadySet::End(bool accumulates, bool cut_short) {
  Rest rest;
  const bool counting_now = counting() && !cut_short;
  if (counting_now) {
    counts_ = marks_;
    counted_ = refused_.empty();  // else they are counted again
    rest.ready = order_;
  }
  std::vector<bool> used(states_.size(), false);
  for (size_t i = 0; i < states_.size(); ++i) {
    used[i] = marks_[i] > 0;
    if (states_[i] != State::kExpected) continue;
    const bool may_be_unused =
        counting_now || (rules_.find_unused && !rules_.static_graph && !unused_are_known_ && !cut_short);
    if (counting_now && marks_[i] > 0) {
      states_[i] = State::kReady;
    } else if (may_be_unused && refused_.count(i) == 0) {
      states_[i] = State::kUnused;
      rest.unused.push_back(i);
    } else {
      rest.missing.push_back(i);
    }
  }
  const bool may_lack = accumulates && !rules_.static_graph;
  rest.complaint = Complaint(may_lack ? absl::Span<const size_t>() : rest.missing);
  if (!rest.missing.empty()) rest.first_wrong = rest.missing.front();
  if (!refused_.empty()) rest.first_wrong = refused_.begin()->first;
  if (backwards_ > 0 && used != used_before_) varied_ = true;
  used_before_ = std::move(used);
  ++backwards_;
  return rest;
}

std::string ReadySet::Complaint(absl::Span<const size_t> missing) const {
  std::vector<std::string> complaints;
  for (const auto& [index, error] : refused_) {
    if (complaints.size() < kNamed) complaints.push_back(absl::StrCat("a mark was refused (", error, ")"));
  }
  if (refused_.size() > kNamed) complaints.push_back(absl::StrCat("and ", refused_.size() - kNamed, " more were"));
  std::vector<size_t> never_came;
  for (const size_t index : missing) {
    if (refused_.count(index) == 0) never_came.push_back(index);
  }
  if (!never_came.empty()) complaints.push_back(NoGradientCame(never_came));
  return absl::StrJoin(complaints, "; ");
}

std::string ReadySet::NoGradientCame(absl::Span<const size_t> missing) const {
  std::vector<std::string> names;
  for (const size_t index : missing.first(std::min(missing.size(), kNamed))) {
    names.push_back(rules_.static_graph && marks_[index] > 0
                        ? absl::StrCat(Named(index), " after ", marks_[index], " of ", counts_[index], " marks")
                        : Named(index));
  }
  if (missing.size() > kNamed) names.push_back(absl::StrCat("and ", missing.size() - kNamed, " more"));
  return absl::StrCat(
      rules_.static_graph ? "the graph changed: " : "", "no gradient came for ", absl::StrJoin(names, ", "),
      rules_.find_unused || rules_.static_graph ? "" : " (set find_unused_parameters if that is meant)");
}

std::vector<size_t> ReadySet::unused() const {
  std::vector<size_t> unused;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i] == State::kUnused) unused.push_back(i);
  }
  return unused;
}

void ReadySet::EndWindow() {
  for (size_t i = 0; i < window_.size(); ++i) {
    if (initial_[i] != State::kDelayed) window_[i] = false;
  }
}

}  // namespace lockstep
