#include "transport/secure/refusals.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace lockstep {

void Refusals::Note(Refusal kind, absl::string_view peer, absl::string_view what, Clock::time_point now) {
  if (kind == Refusal::kCount) kind = Refusal::kBroken;
  uint64_t left_out = 0;
  {
    MutexLock lock(&mu_);
    Kind& noted = kinds_[static_cast<size_t>(kind)];
    ++noted.count;
    const bool anew = now - std::exchange(noted.seen_at, now) >= kPauseMax || noted.count == 1;
    if (now - noted.told_at < noted.pause) {
      ++noted.untold;
      return;
    }
    left_out = std::exchange(noted.untold, 0);
    noted.told_at = now;
    noted.pause = anew ? kPauseMin : std::min(2 * noted.pause, kPauseMax);
  }
  // The kind is told in the same words by all listeners; what a Channel says of a refusal has them already.
  const absl::string_view text = Text(kind);
  std::string line = absl::StrCat(listener_, ": turned away ", peer, ": ");
  if (!absl::StrContains(what, text)) absl::StrAppend(&line, "it ", text, what.empty() ? "" : ": ");
  absl::StrAppend(&line, what);
  if (left_out > 0) absl::StrAppend(&line, " (and ", left_out, " more since the last such line)");
  if (kind == Refusal::kGaveUp || kind == Refusal::kUnfinished) {
    LOCKSTEP_LOG(kInfo) << line;
  } else {
    LOCKSTEP_LOG(kWarning) << line;
  }
}

Refusals::~Refusals() {
  const std::string text = Describe();
  if (!text.empty()) LOCKSTEP_LOG(kInfo) << listener_ << " ends: " << text;
}

uint64_t Refusals::count(Refusal kind) const {
  MutexLock lock(&mu_);
  return kinds_[static_cast<size_t>(kind)].count;
}

uint64_t Refusals::total() const {
  MutexLock lock(&mu_);
  uint64_t sum = 0;
  for (const Kind& kind : kinds_) sum += kind.count;
  return sum;
}

std::string Refusals::Describe() const {
  MutexLock lock(&mu_);
  std::string text;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i].count == 0) continue;
    absl::StrAppend(&text, text.empty() ? "turned away " : ", ", kinds_[i].count, " (", Text(static_cast<Refusal>(i)),
                    ")");
  }
  return text;
}

}  // namespace lockstep
