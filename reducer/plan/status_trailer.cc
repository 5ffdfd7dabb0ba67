#include "reducer/plan/status_trailer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/types/dtype.h"
#include "kernels/cpu/cast.h"

namespace lockstep {

int StatusTrailer::CountMax(DType dtype) {
  const int64_t float32_max = FormatOf(DType::kF32).whole_max();
  return static_cast<int>(IsFloat(dtype) ? std::min(FormatOf(dtype).whole_max(), float32_max) : float32_max);
}

void StatusTrailer::Clear(size_t entries) { std::memset(begin_, 0, entries * SizeOf(dtype_)); }

std::array<size_t, StatusTrailer::kHashEntries / 2> StatusTrailer::EntriesOf(uint32_t hash, size_t first) {
  std::array<size_t, kHashEntries / 2> entries;
  for (size_t bit = 0; bit < entries.size(); ++bit) entries[bit] = first + 2 * bit + (hash >> bit & 1);
  return entries;
}

bool StatusTrailer::HashesDiffer(size_t first) const {
  for (size_t entry = first; entry < first + kHashEntries; entry += 2) {
    if (Count(entry) > 0 && Count(entry + 1) > 0) return true;
  }
  return false;
}

void StatusTrailer::Set(size_t entry) {
  (void)kernels::CastScaled(RealOf(dtype_), At(entry), DType::kF32, &one_, 1, 1.0);
}

int StatusTrailer::Count(size_t entry) const {
  double sum = 0;
  (void)kernels::CastScaled(DType::kF64, &sum, RealOf(dtype_), At(entry), 1, 1.0);
  if (sum == 0) return 0;
  // What the reduction has divided may be a little less than whole.
  return std::max(1, static_cast<int>(std::lround(std::min(sum, static_cast<double>(CountMax(dtype_))))));
}

}  // namespace lockstep
