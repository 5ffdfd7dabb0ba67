#include "reducer/plan/bucket_tail.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/types/dtype.h"
#include "kernels/cpu/cast.h"

namespace lockstep {
int BucketTail::CountMax(DType dtype) {
  switch (dtype) {
    case DType::kF8E5M2:
      return 8;
    case DType::kF8E4M3:
      return 16;
    case DType::kBF16:
      return 256;
    case DType::kF16:
      return 2048;
    default:
      return 1 << 24;
  }
}

void BucketTail::Clear(size_t slots) { std::memset(begin_, 0, Elements(slots) * SizeOf(dtype_)); }

void BucketTail::Set(size_t entry) { (void)kernels::CastScaled(RealOf(dtype_), At(entry), DType::kF32, &one_, 1, 1.0); }

int BucketTail::Count(size_t entry) const {
  double sum = 0;
  (void)kernels::CastScaled(DType::kF64, &sum, RealOf(dtype_), At(entry), 1, 1.0);
  if (sum == 0) return 0;
  // What the reduction has divided may be a little less than whole.
  return std::max(1, static_cast<int>(std::lround(std::min(sum, static_cast<double>(CountMax(dtype_))))));
}

}  // namespace lockstep
