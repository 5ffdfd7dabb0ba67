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

void StatusTrailer::Clear(size_t slots) { std::memset(begin_, 0, Elements(slots) * SizeOf(dtype_)); }

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
