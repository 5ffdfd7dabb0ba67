// The sizes that a table has a row for.

#ifndef BENCH_SWEEP_H_
#define BENCH_SWEEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace bench {

// "8", "64K", "25M", "1G": powers of 1024, as nccl-tests reads them. INVALID_ARGUMENT for anything else, and for what
// does not fit in 63 bits.
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);

// 67108864 -> "64M"; what no power of 1024 divides stays a plain number.
std::string ByteCountText(int64_t bytes);

// begin, begin x factor, ... as far as `end`, which may be the last one. INVALID_ARGUMENT for a negative begin, an end
// before it, a factor below 2. A begin of 0 is followed by 1.
absl::StatusOr<std::vector<int64_t>> SweepSizes(int64_t begin, int64_t end, int64_t factor);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_SWEEP_H_
