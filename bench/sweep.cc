#include "bench/sweep.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace bench {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr absl::string_view kUnits = "KMGT";

}  // namespace

absl::StatusOr<int64_t> ParseByteCount(absl::string_view text) {
  const auto invalid = [text](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("size '", text, "' ", what));
  };
  absl::string_view digits = text;
  int shift = 0;
  if (!digits.empty()) {
    const size_t unit = kUnits.find(absl::ascii_toupper(digits.back()));
    if (unit != absl::string_view::npos) {
      shift = 10 * static_cast<int>(unit + 1);
      digits.remove_suffix(1);
    }
  }
  const bool number = !digits.empty() &&
                      std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
  if (!number) return invalid("is not a number of bytes with K, M, G or T behind it at most");
  int64_t count = 0;
  if (!absl::SimpleAtoi(digits, &count) || count > kMax >> shift) return invalid("is too large");
  return count << shift;
}

std::string ByteCountText(int64_t bytes) {
  size_t unit = 0;
  while (bytes >= 1024 && bytes % 1024 == 0 && unit < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes) : absl::StrCat(bytes, kUnits.substr(unit - 1, 1));
}

absl::StatusOr<std::vector<int64_t>> SweepSizes(int64_t begin, int64_t end, int64_t factor) {
  if (begin < 0) return absl::InvalidArgumentError(absl::StrCat("sizes begin at ", begin, ", below 0"));
  if (end < begin) return absl::InvalidArgumentError(absl::StrCat("sizes end at ", end, ", before ", begin));
  if (factor < 2) return absl::InvalidArgumentError(absl::StrCat("sizes grow by a factor of ", factor, ", below 2"));
  std::vector<int64_t> sizes;
  for (int64_t size = begin; size <= end; size = size == 0 ? 1 : size * factor) {
    sizes.push_back(size);
    if (size > kMax / factor) break;
  }
  return sizes;
}

}  // namespace bench
}  // namespace lockstep
