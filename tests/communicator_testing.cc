#include "tests/communicator_testing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_info.h"
#include "gmock/gmock.h"
#include "kernels/reference_testing.h"

namespace lockstep {
namespace {

constexpr size_t kGuardBytes = 192;
// Long vectors repeat themselves: they are quick to make, and with a prime period no chunk is like the next.
constexpr size_t kPeriod = 1009;
constexpr char kGuard = static_cast<char>(0xa5);
constexpr char kUnwritten = static_cast<char>(0x5a);

uint32_t Mix(uint32_t value) {
  value ^= value >> 16;
  value *= 0x7feb352du;
  value ^= value >> 15;
  value *= 0x846ca68bu;
  return value ^ (value >> 16);
}

uint32_t Hash(const CollectiveCase& c, int rank, size_t index) {
  return Mix(c.seed * 2654435761u + Mix(static_cast<uint32_t>(index) * 31 + rank));
}

bool IsReal(DType dtype) { return IsFloat(dtype) || IsComplex(dtype); }

// Eight-bit floats hold few integers: there two ranks at a time have something to add.
bool IsNarrow(DType dtype) { return IsFloat(dtype) && SizeOf(dtype) == 1; }
int TermMax(DType dtype) { return IsNarrow(dtype) ? 2 : 4; }

bool IsSigned(DType integer) {
#define LOCKSTEP_DTYPE_INTEGER(number, id, name, Type) \
  if (integer == DType::k##id) return std::is_signed<Type>::value;
#include "base/types/dtypes.inc"
  return false;
}

// The spacing of a float dtype's values from 1 on.
double EpsilonOf(DType dtype) { return std::ldexp(1, -FormatOf(dtype).mantissa_bits); }

// Of the small integers, all that floats here are made of.
uint64_t CodeOf(DType dtype, int value) {
  constexpr int kMax = 4;
  static const auto* const codes = [] {
    auto* const table = new std::array<std::array<uint64_t, 2 * kMax + 1>, kDTypeCount>();
    for (const DType dtype : kAllDTypes) {
      for (int v = -kMax; v <= kMax && IsFloat(dtype); ++v) {
        (*table)[static_cast<int>(dtype)][v + kMax] = kernels::ReferenceEncode(dtype, v);
      }
    }
    return table;
  }();
  return codes->at(static_cast<int>(dtype)).at(value + kMax);
}

void StoreComponent(DType dtype, char* target, int value) {
  const uint64_t code = IsFloat(dtype) ? CodeOf(dtype, value) : static_cast<uint64_t>(int64_t{value});
  std::memcpy(target, &code, SizeOf(dtype));  // little-endian, like everything here
}

double LoadComponent(DType dtype, const char* source) {
  uint64_t code = 0;
  std::memcpy(&code, source, SizeOf(dtype));
  return kernels::ReferenceDecode(dtype, code);
}

// Powers of two and units multiply without rounding.
void StoreFactor(DType dtype, char* target, uint32_t hash) {
  static constexpr int kReal[] = {1, -1, 2, 1};
  if (!IsComplex(dtype)) return StoreComponent(dtype, target, kReal[hash % 4]);
  static constexpr int kUnits[][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, 2}};
  const DType part = RealOf(dtype);
  StoreComponent(part, target, kUnits[hash % 4][0]);
  StoreComponent(part, target + SizeOf(part), kUnits[hash % 4][1]);
}

// Small integers.
void StoreTerm(const CollectiveCase& c, char* target, uint32_t hash, int rank, size_t index, int size) {
  const DType part = RealOf(c.dtype);
  const bool silent = IsNarrow(c.dtype) && (index + rank) % size >= 2;
  const int limit = TermMax(c.dtype);
  for (size_t at = 0; at < SizeOf(c.dtype); at += SizeOf(part)) {
    StoreComponent(part, target + at, silent ? 0 : static_cast<int>(hash % (2 * limit + 1)) - limit);
    hash /= 16;
  }
}

void StoreElement(const CollectiveCase& c, char* target, int rank, size_t index, int size) {
  const uint32_t hash = Hash(c, rank, index);
  if (c.dtype == DType::kBool) {
    *target = static_cast<char>(hash & 1);
  } else if (c.random_bits || (!IsReal(c.dtype) && !(HasReduction(c.collective) && c.op == ReduceOp::kAvg))) {
    for (size_t at = 0; at < SizeOf(c.dtype); at += 4) {
      const uint32_t more = Mix(hash + static_cast<uint32_t>(at));
      std::memcpy(target + at, &more, std::min<size_t>(4, SizeOf(c.dtype) - at));
    }
  } else if (HasReduction(c.collective) && c.op == ReduceOp::kProd) {
    StoreFactor(c.dtype, target, hash);
  } else if (IsInteger(c.dtype)) {  // an average: sums stay in range, and of both signs where there are two
    StoreComponent(c.dtype, target, static_cast<int>(hash % 16) - (IsSigned(c.dtype) ? 8 : 0));
  } else {
    StoreTerm(c, target, hash, rank, index, size);
  }
}

// `count` elements that repeat the first kPeriod, which are there.
void Repeat(size_t count, size_t element_bytes, std::vector<char>* vector) {
  vector->resize(count * element_bytes);
  for (size_t at = kPeriod * element_bytes; at < vector->size();) {
    const size_t bytes = std::min(at, vector->size() - at);
    std::memcpy(vector->data() + at, vector->data(), bytes);
    at += bytes;
  }
}

std::vector<char> Reduced(const CollectiveCase& c, const std::vector<std::vector<char>>& inputs) {
  const int size = static_cast<int>(inputs.size());
  const size_t whole = inputs[0].size() / SizeOf(c.dtype);
  const size_t count = std::min(whole, kPeriod);
  const bool weighted = c.op == ReduceOp::kAvg || c.op == ReduceOp::kPremulSum;
  std::vector<char> result;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<char> term(inputs[rank].begin(), inputs[rank].begin() + count * SizeOf(c.dtype));
    if (weighted && !IsInteger(c.dtype)) {
      const double factor = c.op == ReduceOp::kAvg ? 1.0 / size : FactorOf(rank);
      kernels::ReferenceScale(c.dtype, term.data(), term.data(), count, factor);
    }
    if (rank == 0) {
      result = std::move(term);
    } else {
      const ReduceOp op = weighted ? ReduceOp::kSum : c.op;
      kernels::ReferenceCombine(c.dtype, op, result.data(), result.data(), term.data(), count);
    }
  }
  if (c.op == ReduceOp::kAvg && IsInteger(c.dtype)) {
    kernels::ReferenceDivideTowardZero(c.dtype, result.data(), count, size);
  }
  Repeat(whole, SizeOf(c.dtype), &result);
  return result;
}

bool Equal(const char* a, const char* b, size_t bytes) { return bytes == 0 || std::memcmp(a, b, bytes) == 0; }

// Whether the case's output is there on this rank.
bool HasOutput(const CollectiveCase& c, int rank) {
  if (c.collective == Collective::kReduce || c.collective == Collective::kGather) return rank == c.root;
  return c.collective != Collective::kBarrier;
}

// In place, the one is a block of the other.
bool InputIsBlock(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kGather;
}
bool OutputIsBlock(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kScatter;
}

int64_t SumBefore(const std::vector<int64_t>& counts, int end) {
  return std::accumulate(counts.begin(), counts.begin() + end, int64_t{0});
}

std::vector<int64_t> CountsTo(const CollectiveCase& c, int size, int source) {
  std::vector<int64_t> counts;
  for (int target = 0; target < size; ++target) counts.push_back(PairCount(c, source, target));
  return counts;
}
std::vector<int64_t> CountsFrom(const CollectiveCase& c, int size, int target) {
  std::vector<int64_t> counts;
  for (int source = 0; source < size; ++source) counts.push_back(PairCount(c, source, target));
  return counts;
}

size_t WholeCount(const CollectiveCase& c, int size) {
  if (c.collective == Collective::kBarrier) return 0;
  return IsByRank(c.collective) ? SumBefore(BlockCounts(c, size), size) : c.count;
}

size_t InputBytes(const CollectiveCase& c, int size, int rank) {
  size_t count = WholeCount(c, size);
  if (InputIsBlock(c.collective)) count = BlockCounts(c, size)[rank];
  if (c.collective == Collective::kAllToAll) count = SumBefore(CountsTo(c, size, rank), size);
  return count * SizeOf(c.dtype);
}

size_t OutputBytes(const CollectiveCase& c, int size, int rank) {
  size_t count = WholeCount(c, size);
  if (OutputIsBlock(c.collective)) count = BlockCounts(c, size)[rank];
  if (c.collective == Collective::kAllToAll) count = SumBefore(CountsFrom(c, size, rank), size);
  return count * SizeOf(c.dtype);
}

// What each rank has after an all-to-all.
std::vector<std::vector<char>> Exchanged(const CollectiveCase& c, const std::vector<std::vector<char>>& inputs) {
  const int size = static_cast<int>(inputs.size());
  std::vector<std::vector<char>> outputs(size);
  for (int target = 0; target < size; ++target) {
    for (int source = 0; source < size; ++source) {
      const char* const block = inputs[source].data() + SumBefore(CountsTo(c, size, source), target) * SizeOf(c.dtype);
      outputs[target].insert(outputs[target].end(), block, block + PairCount(c, source, target) * SizeOf(c.dtype));
    }
  }
  return outputs;
}

}  // namespace

std::string ToString(const CollectiveCase& c) {
  return absl::StrCat(Name(c.collective), " by ", Name(c.algorithm), " of ", c.count, " ", Name(c.dtype), " ",
                      Name(c.op), ", root ", c.root, c.unequal ? ", unequal blocks" : "",
                      c.in_place ? ", in place" : ", out of place", c.background ? ", background" : "", ", seed ",
                      c.seed);
}

std::vector<int64_t> BlockCounts(const CollectiveCase& c, int size) {
  std::vector<int64_t> counts(size, c.count);
  for (int r = 0; r < size && c.unequal; ++r) counts[r] = r % 3 == 2 ? 0 : c.count + (5 * r + c.seed) % 7;
  return counts;
}

int64_t PairCount(const CollectiveCase& c, int source, int target) {
  if (!c.unequal) return c.count;
  return (source + target) % 4 == 3 ? 0 : c.count + (3 * source + 5 * target + c.seed) % 7;
}

double FactorOf(int rank) {
  static constexpr double kFactors[] = {1.0, -1.0, 2.0};
  return kFactors[rank % 3];
}

CaseReference::CaseReference(const CollectiveCase& c, int size) : case_(c), size_(size) {
  auto data = std::make_shared<Data>();
  const size_t element = SizeOf(c.dtype);
  for (int rank = 0; rank < size; ++rank) {
    std::vector<char>& input = data->inputs.emplace_back(InputBytes(c, size, rank));
    const size_t count = input.size() / element;
    for (size_t i = 0; i < std::min(count, kPeriod); ++i) StoreElement(c, input.data() + i * element, rank, i, size);
    Repeat(count, element, &input);
  }
  if (c.collective == Collective::kBroadcast || c.collective == Collective::kScatter) {
    data->result = data->inputs[c.root];
  } else if (c.collective == Collective::kAllToAll) {
    data->exchanged = Exchanged(c, data->inputs);
  } else if (InputIsBlock(c.collective)) {
    for (const auto& block : data->inputs) data->result.insert(data->result.end(), block.begin(), block.end());
  } else if (HasReduction(c.collective)) {
    data->result = Reduced(c, data->inputs);
  }
  data_ = std::move(data);
}

bool CaseReference::IsVariant(const CollectiveCase& a, const CollectiveCase& b) {
  return a.collective == b.collective && a.dtype == b.dtype && a.op == b.op && a.root == b.root && a.count == b.count &&
         a.unequal == b.unequal && a.seed == b.seed && a.random_bits == b.random_bits;
}

absl::Span<const char> CaseReference::expected(int rank) const {
  if (!HasOutput(case_, rank)) return {};
  if (case_.collective == Collective::kAllToAll) return data_->exchanged[rank];
  const absl::Span<const char> whole(data_->result);
  if (!OutputIsBlock(case_.collective)) return whole;
  const size_t before = SumBefore(BlockCounts(case_, size_), rank) * SizeOf(case_.dtype);
  return whole.subspan(before, OutputBytes(case_, size_, rank));
}

double CaseReference::tolerance() const {
  // The sign of a zero that a complex product leaves depends on the order of its factors.
  if (case_.op == ReduceOp::kProd && IsComplex(case_.dtype)) return std::numeric_limits<double>::denorm_min();
  const bool power_of_two = (size_ & (size_ - 1)) == 0;
  if (!HasReduction(case_.collective) || case_.op != ReduceOp::kAvg || !IsReal(case_.dtype) || power_of_two) return 0;
  // Every term is rounded when it is scaled, and every sum of terms.
  const int terms = IsNarrow(case_.dtype) ? 2 : size_;
  return terms * EpsilonOf(RealOf(case_.dtype)) * TermMax(case_.dtype) * terms / size_;
}

std::string Difference(DType dtype, absl::Span<const char> expected, const char* actual, double tolerance) {
  if (expected.empty() || std::memcmp(expected.data(), actual, expected.size()) == 0) return "";
  const DType part = RealOf(dtype);
  const size_t bytes = SizeOf(part);
  for (size_t at = 0; at < expected.size(); at += bytes) {
    if (std::memcmp(expected.data() + at, actual + at, bytes) == 0) continue;
    if (!IsFloat(part)) return absl::StrCat("byte ", at, " of ", expected.size(), " differs");
    const double want = LoadComponent(part, expected.data() + at);
    const double have = LoadComponent(part, actual + at);
    if (!(std::fabs(want - have) <= tolerance) || tolerance == 0) {
      return absl::StrCat("component ", at / bytes, " of ", expected.size() / bytes, " is ", have, ", not ", want);
    }
  }
  return "";
}

char* CaseArena::Take(size_t bytes) {
  if (taken_ == 0) begin_ = 0;
  if (bytes > bytes_ - begin_) return nullptr;
  ++taken_;
  return data_ + std::exchange(begin_, begin_ + bytes);
}

GuardedBuffer::GuardedBuffer(size_t bytes, size_t alignment, CaseMemory memory) : size_(bytes) {
  const size_t all = bytes + 2 * kGuardBytes;
  if (char* const taken = memory.arena == nullptr ? nullptr : memory.arena->Take(all); taken != nullptr) {
    bytes_ = {taken, [arena = memory.arena](char*) { arena->GiveBack(); }};
  } else if (Device* const device = memory.device; device != nullptr) {
    const absl::StatusOr<void*> allocated = device->AllocateOnHost(all);
    LOCKSTEP_CHECK(allocated.ok()) << allocated.status();
    bytes_ = {static_cast<char*>(*allocated), [device](char* data) { device->FreeOnHost(data); }};
  } else {
    bytes_ = {new char[all], [](char* data) { delete[] data; }};
  }
  std::memset(bytes_.get(), kGuard, all);
  const size_t misalignment = reinterpret_cast<uintptr_t>(bytes_.get()) % (2 * alignment);
  begin_ = kGuardBytes / 2 + (3 * alignment - misalignment) % (2 * alignment);
  std::memset(data(), kUnwritten, bytes);
}

bool GuardedBuffer::GuardsIntact() const {
  const char* const all = bytes_.get();
  const char* const data = all + begin_;
  const auto intact = [](char byte) { return byte == kGuard; };
  return std::all_of(all, data, intact) && std::all_of(data + size_, all + size_ + 2 * kGuardBytes, intact);
}

CaseRun::CaseRun(const CaseReference& reference, Rank rank, CaseMemory memory)
    : reference_(reference),
      rank_(rank.value()),
      input_(reference.input(rank_).size(), SizeOf(reference.collective().dtype), memory),
      output_(OutputBytes(reference.collective(), reference.size(), rank_), SizeOf(reference.collective().dtype),
              memory) {
  const CollectiveCase& c = reference.collective();
  const int size = reference.size();
  const std::vector<char>& input = reference.input(rank_);
  const bool all_to_all = c.collective == Collective::kAllToAll;
  if (memory.device != nullptr) request_.device = memory.device->id();
  request_.collective = c.collective;
  request_.dtype = c.dtype;
  request_.op = c.op;
  request_.root = Rank(c.root);
  request_.count = all_to_all ? input.size() / SizeOf(c.dtype) : WholeCount(c, size);
  if (c.unequal && IsByRank(c.collective)) {
    counts_ = all_to_all ? CountsTo(c, size, rank_) : BlockCounts(c, size);
    if (all_to_all) output_counts_ = CountsFrom(c, size, rank_);
    request_.counts = counts_;
    request_.output_counts = output_counts_;
  }
  request_.factor = FactorOf(rank_);
  request_.algorithm = c.algorithm;
  request_.background = c.background;
  request_.timeout = std::chrono::milliseconds(60'000);
  request_.input = input_.data();
  request_.output = output_.data();
  std::copy(input.begin(), input.end(), input_.data());
  const bool from_root = c.collective == Collective::kBroadcast || c.collective == Collective::kScatter;
  if (from_root && rank_ != c.root && !c.in_place) request_.input = nullptr;
  if (!HasOutput(c, rank_) && c.collective == Collective::kGather) request_.output = nullptr;
  if (!c.in_place || !HasOutput(c, rank_) || (c.collective == Collective::kScatter && rank_ != c.root)) return;
  const size_t before = IsByRank(c.collective) ? SumBefore(BlockCounts(c, size), rank_) * SizeOf(c.dtype) : 0;
  if (InputIsBlock(c.collective)) {
    char* const block = output_.data() + before;
    std::copy(input.begin(), input.end(), block);
    request_.input = block;
  } else {
    request_.output = input_.data() + (OutputIsBlock(c.collective) ? before : 0);
  }
}

std::string CaseRun::Check() {
  const CollectiveCase& c = reference_.collective();
  if (!input_.GuardsIntact()) return "memory around the input was written";
  if (!output_.GuardsIntact()) return "memory around the output was written";
  const char* const output = static_cast<const char*>(request_.output);
  const absl::Span<const char> expected = reference_.expected(rank_);
  const std::string difference = Difference(c.dtype, expected, output, reference_.tolerance());
  if (!difference.empty()) return absl::StrCat("output: ", difference);
  const bool in_input = output >= input_.data() && output < input_.data() + input_.size();
  const bool output_used = HasOutput(c, rank_) && !in_input;
  const std::vector<char> unwritten(output_.size(), kUnwritten);
  if (!output_used && !Equal(unwritten.data(), output_.data(), unwritten.size())) {
    return "the output of a rank that has none was written";
  }
  // The input is unchanged wherever it is not the output.
  const std::vector<char>& before = reference_.input(rank_);
  const bool shared = in_input && !expected.empty();
  const size_t output_begin = shared ? output - input_.data() : before.size();
  const size_t output_end = shared ? output_begin + expected.size() : before.size();
  if (!Equal(before.data(), input_.data(), output_begin) ||
      !Equal(before.data() + output_end, input_.data() + output_end, before.size() - output_end)) {
    return "the input was changed";
  }
  return "";
}

std::vector<char> CaseRun::output() const {
  const char* const begin = static_cast<const char*>(request_.output);
  return std::vector<char>(begin, begin + OutputBytes(reference_.collective(), reference_.size(), rank_));
}

void ExpectErrorOf(Collective collective, const absl::Status& error, const absl::Status& ended) {
  EXPECT_EQ(error.code(), ended.code()) << error << "; " << ended;
  const std::string text(error.message());
  const ErrorInfo info = GetErrorInfo(error);
  EXPECT_EQ(info.collective, Name(collective)) << error;
  EXPECT_EQ(info.failed_rank, GetErrorInfo(ended).failed_rank) << error;
  if (info.sequence.has_value()) {
    EXPECT_THAT(text, ::testing::StartsWith(absl::StrCat(Name(collective), " #", *info.sequence)));
  } else {
    EXPECT_THAT(text, ::testing::StartsWith(Name(collective)));
    EXPECT_THAT(text, ::testing::HasSubstr(": the communicator has ended"));
  }
  // Where the cause begins with the collective's name that is not said twice.
  constexpr size_t kTailCharacters = 20;
  const std::string cause(ended.message());
  EXPECT_THAT(text, ::testing::EndsWith(cause.substr(cause.size() - std::min(cause.size(), kTailCharacters))));
}

}  // namespace lockstep
