#include "reducer/pipeline/written_ranges.h"

#include <iterator>
#include <utility>

namespace lockstep {

WrittenRanges::Map::iterator WrittenRanges::Drop(Map::iterator at) {
  ranges_[at->second].in_map = false;
  const Map::iterator next = std::next(at);
  spare_ = map_.extract(at);
  return next;
}

absl::optional<size_t> WrittenRanges::AddAnother(size_t parameter, uintptr_t begin, size_t bytes) {
  Remove(parameter);
  Map::iterator at = map_.upper_bound(begin);
  if (at != map_.begin()) {
    const Map::iterator before = std::prev(at);
    if (begin - before->first < ranges_[before->second].bytes) at = before;
  }
  // What lies here from earlier rounds is there no longer.
  while (at != map_.end() && (at->first <= begin || at->first - begin < bytes)) {
    if (ranges_[at->second].round == round_) return at->second;
    at = Drop(at);
  }
  ranges_[parameter] = {begin, bytes, round_, /*in_map=*/true};
  if (spare_.empty()) {
    map_.emplace(begin, parameter);
  } else {
    spare_.key() = begin;
    spare_.mapped() = parameter;
    map_.insert(std::move(spare_));
  }
  return absl::nullopt;
}

}  // namespace lockstep
