#include "reducer/pipeline/gradient_claims.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fork.h"
#include "base/types/dtype.h"

namespace lockstep {

GradientClaims::Table& GradientClaims::TableOfProcess() {
  static std::atomic<Table*> table{nullptr};  // never freed
  Table* found = table.load(std::memory_order_acquire);
  while (found == nullptr || found->fork_generation != ForkGeneration()) {
    auto* const made = new Table{ForkGeneration(), {}, {}, {}};
    if (table.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
    delete made;
  }
  return *found;
}

GradientClaims::GradientClaims(absl::Span<const Parameter> parameters)
    : parameters_(parameters), table_(TableOfProcess()), ranges_(parameters.size()) {
  for (size_t p = 0; p < parameters.size(); ++p) {
    for (Range& range : ranges_[p]) {
      range.owner = this;
      range.parameter = p;
    }
    for (size_t i = 0; i < kWritten; ++i) ranges_[p][i].writes = true;
  }
}

GradientClaims::~GradientClaims() {
  if (table_.fork_generation != ForkGeneration()) return;
  MutexLock lock(&table_.mu);
  for (Ranges& ranges : ranges_) {
    for (Range& range : ranges) Drop(range);
  }
}

GradientClaims::Memories GradientClaims::MemoriesOf(const TensorView& gradient, const TensorView& target,
                                                    const Memory& view) {
  const auto memory = [](const TensorView& tensor) {
    if (tensor.elements() == 0) return Memory();
    return Memory{reinterpret_cast<uintptr_t>(tensor.data()), tensor.dense() ? tensor.bytes() : SizeOf(tensor.dtype())};
  };
  // Most marks have one tensor as both.
  Memories memories = {memory(target), view, &gradient == &target ? Memory() : memory(gradient)};
  const auto merge = [&memories](size_t from, size_t into) {
    Memory &a = memories[into], &b = memories[from];
    if (b.bytes == 0 || a.begin >= b.end() || b.begin >= a.end()) return;
    const uintptr_t end = std::max(a.end(), b.end());
    a.begin = std::min(a.begin, b.begin);
    a.bytes = end - a.begin;
    b = Memory();
  };
  merge(2, 1);
  merge(2, 0);
  merge(1, 0);
  return memories;
}

absl::InlinedVector<GradientClaims::Range*, 4> GradientClaims::Overlapping(const Memory& memory) const {
  absl::InlinedVector<Range*, 4> found;
  if (memory.bytes == 0) return found;
  auto at = table_.map.upper_bound(memory.begin);
  if (at != table_.map.begin() && std::prev(at)->second->end() > memory.begin) --at;
  for (; at != table_.map.end() && at->first < memory.end(); ++at) found.push_back(at->second);
  for (Range* const other : table_.overlaps) {
    if (other->begin < memory.end() && memory.begin < other->end()) found.push_back(other);
  }
  return found;
}

bool GradientClaims::Holds(const Range& range, bool ordered) const {
  if (range.owner == this) return range.round == round_ || range.round == kUntilTaken;
  const GradientClaims& other = *range.owner;
  if (range.checked_only || range.round <= other.ended_) return false;
  for (const auto& [round, end] : other.issued_) {
    if (round == range.round) return !ordered && !end->Query();
  }
  return true;
}

absl::Status GradientClaims::Conflict(size_t parameter, const Range& other) const {
  return absl::InvalidArgumentError(absl::StrCat(
      Describe(parameter, parameters_[parameter]), " shares memory with ",
      Describe(other.parameter, other.owner->parameters_[other.parameter]),
      other.owner == this ? " in this backward" : " of another reducer, whose backward has not ended",
      ": gradient memory has one owner at a time. A weight that is shared is one parameter, and others have memory of ",
      "their own until end_backward"));
}

absl::Status GradientClaims::Claim(size_t parameter, const TensorView& gradient, const TensorView& target,
                                   const void* view, Until until, bool ordered) {
  const size_t view_bytes = view == nullptr ? 0 : parameters_[parameter].bytes();
  const Memories wanted = MemoriesOf(gradient, target, {reinterpret_cast<uintptr_t>(view), view_bytes});
  MutexLock lock(&table_.mu);
  Ranges& ranges = ranges_[parameter];
  bool moves[kWritten + 1];
  for (size_t i = 0; i <= kWritten; ++i) {
    const bool placed = ranges[i].place != Range::kNowhere;
    moves[i] = wanted[i].bytes == 0
                   ? placed
                   : wanted[i].begin != ranges[i].begin || wanted[i].bytes != ranges[i].bytes || !placed;
    if (!moves[i]) continue;  // no other claim covers it, or it would not be placed
    for (const Range* const other : Overlapping(wanted[i])) {
      const bool own = other->owner == this && other->parameter == parameter;
      const bool writes = ranges[i].writes || other->writes;
      if (!own && writes && Holds(*other, ordered)) return Conflict(parameter, *other);
    }
  }
  for (size_t i = 0; i <= kWritten; ++i) {
    if (moves[i]) Drop(ranges[i]);
  }
  for (size_t i = 0; i <= kWritten; ++i) {
    ranges[i].checked_only = until == Until::kChecked;
    ranges[i].round = until == Until::kTaken ? kUntilTaken : round_;
    if (!moves[i]) continue;
    static_cast<Memory&>(ranges[i]) = wanted[i];
    if (wanted[i].bytes > 0) Place(ranges[i]);
  }
  return absl::OkStatus();
}

void GradientClaims::Place(Range& range) {
  bool shared = false;
  for (Range* const other : Overlapping(range)) {
    if (!range.writes && !other->writes && Holds(*other, /*ordered=*/false)) {
      shared = true;
    } else {
      Drop(*other);
    }
  }
  range.place = shared ? Range::kInOverlaps : Range::kInMap;
  if (shared) {
    table_.overlaps.push_back(&range);
  } else if (spare_.empty()) {
    table_.map.emplace(range.begin, &range);
  } else {
    spare_.key() = range.begin;
    spare_.mapped() = &range;
    table_.map.insert(std::move(spare_));
  }
}

void GradientClaims::Drop(Range& range) {
  if (range.place == Range::kInMap) spare_ = table_.map.extract(range.begin);
  if (range.place == Range::kInOverlaps) {
    table_.overlaps.erase(std::find(table_.overlaps.begin(), table_.overlaps.end(), &range));
  }
  range.place = Range::kNowhere;
}

void GradientClaims::Overwrite(size_t parameter, const void* view) {
  MutexLock lock(&table_.mu);
  for (const Range* const other : Overlapping({reinterpret_cast<uintptr_t>(view), parameters_[parameter].bytes()})) {
    if (other->owner == this || !Holds(*other, /*ordered=*/false)) continue;
    other->owner->overwritten_ = absl::FailedPreconditionError(
        absl::StrCat("the gradient of ", Describe(other->parameter, other->owner->parameters_[other->parameter]),
                     " was overwritten by another reducer: it is memory of that reducer's bucket, for ",
                     Describe(parameter, parameters_[parameter]), ", which was not marked there"));
  }
}

absl::Status GradientClaims::TakeOverwritten() {
  MutexLock lock(&table_.mu);
  return std::exchange(overwritten_, absl::OkStatus());
}

void GradientClaims::Release(size_t parameter) {
  MutexLock lock(&table_.mu);
  for (Range& range : ranges_[parameter]) Drop(range);
}

void GradientClaims::Take(size_t parameter) {
  MutexLock lock(&table_.mu);
  for (Range& range : ranges_[parameter]) {
    if (range.round == kUntilTaken) range.round = round_;
  }
}

uint64_t GradientClaims::NextRound() {
  MutexLock lock(&table_.mu);
  return round_++;
}

void GradientClaims::Issued(uint64_t round, const Event* end) {
  MutexLock lock(&table_.mu);
  issued_[issued_[0].second != nullptr] = {round, end};
}

void GradientClaims::Ended(uint64_t round) {
  MutexLock lock(&table_.mu);
  ended_ = std::max(ended_, round);
  for (auto& [number, end] : issued_) {
    if (number <= ended_) end = nullptr;
  }
}

}  // namespace lockstep
