// Where the averages of a backward are written. Finds two parameters with the same memory.
//
// COST a comparison for a range that is where it was before; another one is looked up in an ordered map.

#ifndef REDUCER_PIPELINE_WRITTEN_RANGES_H_
#define REDUCER_PIPELINE_WRITTEN_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/optional.h"
#include "base/device/tensor_view.h"
#include "base/types/dtype.h"

namespace lockstep {

// Externally synchronised.
class WrittenRanges {
 public:
  explicit WrittenRanges(size_t parameters) : ranges_(parameters) {}

  // From now on, what was added may be overwritten.
  void Forget() { ++round_; }

  // A parameter's average goes to `target`, instead of where it went before. RETURNS the parameter that has some of that memory since the
  // last Forget; then nothing was added. Of a tensor with gaps, between which others may lie, only the first element is looked at.
  absl::optional<size_t> Add(size_t parameter, const TensorView& target) {
    if (target.elements() == 0) {
      Remove(parameter);
      return absl::nullopt;
    }
    const auto begin = reinterpret_cast<uintptr_t>(target.data());
    const size_t bytes = target.dense() ? target.bytes() : SizeOf(target.dtype());
    Range& range = ranges_[parameter];
    if (range.begin != begin || range.bytes != bytes || !range.in_map) return AddAnother(parameter, begin, bytes);
    range.round = round_;
    return absl::nullopt;
  }

  // The parameter's average goes to no memory here.
  void Remove(size_t parameter) {
    if (ranges_[parameter].in_map) Drop(map_.find(ranges_[parameter].begin));
  }

 private:
  struct Range {
    uintptr_t begin = 0;
    size_t bytes = 0;
    uint64_t round = 0;   // in which it was added last
    bool in_map = false;  // those that are never overlap
  };
  using Map = std::map<uintptr_t, size_t>;  // begin -> parameter

  absl::optional<size_t> AddAnother(size_t parameter, uintptr_t begin, size_t bytes);
  Map::iterator Drop(Map::iterator at);

  std::vector<Range> ranges_;  // by parameter
  uint64_t round_ = 1;
  Map map_;
  Map::node_type spare_;  // of the range that was dropped last: adding need not allocate
};

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_WRITTEN_RANGES_H_
