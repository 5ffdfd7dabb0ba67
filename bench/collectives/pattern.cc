#include "bench/collectives/pattern.h"

#include <algorithm>
#include <complex>
#include <cstring>

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
  switch (dtype) {
    case DType::kBool:
      return 1;
    case DType::kF8E5M2:
      return 8;
    case DType::kF8E4M3:
      return 16;
    case DType::kU8:
    case DType::kI8:
      return 127;
    case DType::kBF16:
      return 256;
    case DType::kF16:
      return 2048;
    default:
      return int64_t{1} << 24;
  }
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

// bool's sum is or, its product and, its minimum and maximum likewise.
int64_t CombineBool(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kAnd:
      return a & b;
    case ReduceOp::kXor:
      return a ^ b;
    default:
      return a | b;
  }
}

template <typename T>
void Store(T value, void* target) {
  std::memcpy(target, &value, sizeof(value));
}

void StoreElement(DType dtype, int64_t value, void* target) {
  const float real = static_cast<float>(value);
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
      return Store(static_cast<uint8_t>(value), target);
    case DType::kI32:
    case DType::kU32:
      return Store(static_cast<uint32_t>(value), target);
    case DType::kI64:
    case DType::kU64:
      return Store(value, target);
    case DType::kF16:
      return Store(Float16(real), target);
    case DType::kBF16:
      return Store(BFloat16(real), target);
    case DType::kF32:
      return Store(real, target);
    case DType::kF64:
      return Store(static_cast<double>(value), target);
    case DType::kF8E4M3:
      return Store(Float8E4M3(real), target);
    case DType::kF8E5M2:
      return Store(Float8E5M2(real), target);
    case DType::kComplex64:
      return Store(std::complex<float>(real), target);
    case DType::kComplex128:
      return Store(std::complex<double>(static_cast<double>(value)), target);
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
      const auto combine = dtype == DType::kBool ? &CombineBool : &Combine;
      for (int64_t i = 0; i < kPeriod; ++i) result[i] = combine(op, result[i], values[i]);
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

void Pattern::Fill(const Tile& tile, int64_t begin, void* target, size_t count) const {
  const char* const source = tile.data() + begin % kPeriod * element_bytes_;
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

void Pattern::FillInput(Rank rank, int64_t begin, void* target, size_t count) const {
  Fill(inputs_[rank.value()], begin, target, count);
}

void Pattern::FillResult(int64_t begin, void* target, size_t count) const { Fill(result_, begin, target, count); }

uint64_t Pattern::CountWrongInput(Rank rank, int64_t begin, const void* data, size_t count) const {
  return CountWrong(inputs_[rank.value()], begin, data, count);
}

uint64_t Pattern::CountWrongResult(int64_t begin, const void* data, size_t count) const {
  return CountWrong(result_, begin, data, count);
}

}  // namespace bench
}  // namespace lockstep
