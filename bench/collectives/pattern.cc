#include "bench/collectives/pattern.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "base/types/bfloat16.h"
#include "base/types/float16.h"
#include "base/types/float8.h"

namespace lockstep {
namespace bench {
namespace {

// All integers from 0 to this are elements of the dtype.
int64_t ExactIntegersMax(DType dtype) {
  if (dtype == DType::kBool) return 1;
  // Of integers as many as the smallest signed one has, and of all the wider ones as many as a float.
  const int64_t float32_max = FormatOf(DType::kF32).whole_max();
  if (!IsFloat(dtype)) return SizeOf(dtype) == 1 ? 127 : SizeOf(dtype) == 2 ? 32767 : float32_max;
  return std::min(FormatOf(dtype).whole_max(), float32_max);
}

// All powers of two up to 2^this are, too.
constexpr int kTwosMax = 6;

bool IsPowerOfTwo(int number) { return (number & (number - 1)) == 0; }

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// From 0 to max. Squares, because a linear sequence would repeat after max + 1 elements, which may be a power of two.
int64_t Varied(int64_t index, int rank, int64_t max) { return (index * index + 7 * rank) % 1009 % (max + 1); }

// One rank's element, before an average's scaling. `max` is what the sum over all ranks may reach.
int64_t Summand(int64_t index, int rank, int ranks, int64_t max) {
  const int64_t each_max = max / ranks;
  if (each_max > 0) return Varied(index, rank, each_max);
  // More ranks than that: most have 0.
  return (index + rank) % CeilDivide(ranks, max) == 0 ? 1 : 0;
}

int64_t Value(ReduceOp op, int64_t index, int rank, int ranks, int64_t max) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return Summand(index, rank, ranks, max);
    case ReduceOp::kPremulSum:
      return Summand(index, rank, ranks, max / 2);
    case ReduceOp::kProd:
      if (max == 1) break;  // bool
      return (index + rank) % CeilDivide(ranks, kTwosMax) == 0 ? 2 : 1;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kAnd:
    case ReduceOp::kOr:
    case ReduceOp::kXor:
      break;
  }
  return Varied(index, rank, max);
}

int64_t Combine(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return a + b;
    case ReduceOp::kProd:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kAnd:
      return a & b;
    case ReduceOp::kOr:
      return a | b;
    case ReduceOp::kXor:
      return a ^ b;
  }
  LOCKSTEP_CHECK(false) << Name(op);
  return 0;
}

template <typename T>
void Store(T value, void* target) {
  std::memcpy(target, &value, sizeof(value));
}

void StoreElement(DType dtype, int64_t value, void* target) {
  const float real = static_cast<float>(value);
  switch (dtype) {
#define LOCKSTEP_DTYPE_INTEGER(number, id, name, Type) \
  case DType::k##id:                                   \
    return Store(static_cast<Type>(value), target);
#define LOCKSTEP_DTYPE_BOOL(...) LOCKSTEP_DTYPE_INTEGER(__VA_ARGS__)
#define LOCKSTEP_DTYPE_NARROW(number, id, name, Type, ...) \
  case DType::k##id:                                       \
    return Store(Type(real), target);
#define LOCKSTEP_DTYPE_FLOAT(number, id, name, Type, ...) \
  case DType::k##id:                                      \
    return Store(static_cast<Type>(value), target);
#define LOCKSTEP_DTYPE_COMPLEX(number, id, name, Part, part) \
  case DType::k##id:                                         \
    return Store(std::complex<Part>(static_cast<Part>(value)), target);
#include "base/types/dtypes.inc"
  }
}

}  // namespace

absl::StatusOr<Pattern> Pattern::Create(DType dtype, ReduceOp op, int ranks) {
  LOCKSTEP_RETURN_IF_ERROR(CheckDefined(dtype, op));
  const bool scaled = op == ReduceOp::kAvg && !IsInteger(dtype);
  if (scaled && !IsPowerOfTwo(ranks)) {
    return absl::InvalidArgumentError(absl::StrCat("the average of ", Name(dtype), " over ", ranks,
                                                   " ranks rounds, so wrong elements could not be told; choose a power "
                                                   "of two or another op"));
  }
  Pattern pattern(dtype, SizeOf(dtype));
  const int64_t max = ExactIntegersMax(dtype);
  std::vector<int64_t> result;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> values(kPeriod);
    for (int64_t i = 0; i < kPeriod; ++i) values[i] = Value(op, i, rank, ranks, max);
    if (rank == 0) {
      result = values;
    } else {
      // bool's sum is or: more than 1 is 1.
      const int64_t most = dtype == DType::kBool ? 1 : std::numeric_limits<int64_t>::max();
      for (int64_t i = 0; i < kPeriod; ++i) result[i] = std::min(most, Combine(op, result[i], values[i]));
    }
    // The average multiplies its inputs by 1 / ranks, which leaves the summands meant here.
    if (scaled) {
      for (int64_t& value : values) value *= ranks;
    }
    pattern.inputs_.push_back(pattern.MakeTile(values));
  }
  if (op == ReduceOp::kAvg && IsInteger(dtype)) {
    for (int64_t& value : result) value /= ranks;
  }
  if (op == ReduceOp::kPremulSum) {
    for (int64_t& value : result) value *= static_cast<int64_t>(kFactor);
  }
  pattern.result_ = pattern.MakeTile(result);
  return pattern;
}

Pattern::Tile Pattern::MakeTile(const std::vector<int64_t>& values) const {
  Tile tile(2 * kPeriod * element_bytes_);
  for (int64_t i = 0; i < 2 * kPeriod; ++i) StoreElement(dtype_, values[i % kPeriod], tile.data() + i * element_bytes_);
  return tile;
}

void Pattern::FillInput(Rank rank, int64_t begin, void* target, size_t count) const {
  const char* const source = inputs_[rank.value()].data() + begin % kPeriod * element_bytes_;
  for (size_t done = 0; done < count; done += kPeriod) {
    const size_t elements = std::min<size_t>(kPeriod, count - done);
    std::memcpy(static_cast<char*>(target) + done * element_bytes_, source, elements * element_bytes_);
  }
}

uint64_t Pattern::CountWrong(const Tile& tile, int64_t begin, const void* data, size_t count) const {
  const char* const expected = tile.data() + begin % kPeriod * element_bytes_;
  uint64_t wrong = 0;
  for (size_t done = 0; done < count; done += kPeriod) {
    const size_t elements = std::min<size_t>(kPeriod, count - done);
    const char* const found = static_cast<const char*>(data) + done * element_bytes_;
    if (std::memcmp(found, expected, elements * element_bytes_) == 0) continue;
    for (size_t i = 0; i < elements; ++i) {
      if (std::memcmp(found + i * element_bytes_, expected + i * element_bytes_, element_bytes_) != 0) ++wrong;
    }
  }
  return wrong;
}

uint64_t Pattern::CountWrongInput(Rank rank, int64_t begin, const void* data, size_t count) const {
  return CountWrong(inputs_[rank.value()], begin, data, count);
}

uint64_t Pattern::CountWrongResult(int64_t begin, const void* data, size_t count) const {
  return CountWrong(result_, begin, data, count);
}

}  // namespace bench
}  // namespace lockstep
