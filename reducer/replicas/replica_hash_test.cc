#include "reducer/replicas/replica_hash.h"

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/device/host_device.h"
#include "reducer/plan/plan_testing.h"

namespace lockstep::testing {
namespace {

Parameter Tensor(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides = {}) {
  return MakeParameter("", dtype, std::move(shape), std::move(strides));
}

TEST(CutIntoSlices, CoversEveryElementOnceInOneOr61SlicesOfSimilarSize) {
  std::mt19937_64 random(7);
  const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kComplex128, DType::kU8, DType::kI64};
  for (int model = 0; model < 300; ++model) {
    SCOPED_TRACE(model);
    std::vector<Parameter> tensors;
    for (size_t t = random() % 20; t > 0; --t) {
      tensors.push_back(Tensor(dtypes[random() % 5], {static_cast<int64_t>(random() % (1 << random() % 20))}));
    }
    size_t total = 0;
    for (const Parameter& tensor : tensors) total += tensor.bytes();
    const auto slices = CutIntoSlices(tensors);
    EXPECT_EQ(slices.size(), total == 0 ? 0 : total <= 16 << 10 ? 1 : 61);
    std::vector<int64_t> next(tensors.size(), 0);
    for (const auto& slice : slices) {
      size_t bytes = 0;
      for (const TensorRange& range : slice) {
        EXPECT_EQ(range.first, next[range.tensor]);
        EXPECT_GT(range.count, 0);
        next[range.tensor] += range.count;
        bytes += range.count * SizeOf(tensors[range.tensor].dtype);
      }
      EXPECT_LE(bytes, (slices.size() == 1 ? total : total / 61) + 16);
    }
    for (size_t t = 0; t < tensors.size(); ++t) EXPECT_EQ(next[t], tensors[t].elements());
  }
}

// A bit is changed, or a gap, and the change is taken back.
TEST(ReplicaHash, SeesEachBitOnceInACycleAndNoGaps) {
  const std::vector<Parameter> table = {
      Tensor(DType::kF32, {100, 70}), Tensor(DType::kBF16, {30, 20}, {1, 30}),
      Tensor(DType::kF64, {}),        Tensor(DType::kF32, {50, 40}, {64, 1}),
      Tensor(DType::kF32, {0}),       Tensor(DType::kU8, {40001}),
  };
  std::vector<std::string> memory = {
      std::string(28000, 'a'), std::string(1200, 'b'), std::string(8, 'c'), std::string(49 * 256 + 160, 'd'), "",
      std::string(40001, 'e')};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto hash, ReplicaHash::Create(table, HostDevice(), nullptr));
  ASSERT_EQ(hash->slices(), 61);
  const auto cycle = [&] {
    std::vector<const void*> data;
    for (const std::string& bytes : memory) data.push_back(bytes.data());
    std::vector<uint32_t> hashes;
    for (uint64_t step = 0; step < hash->slices(); ++step) {
      hashes.push_back(hash->Next(step, data, nullptr).value().value());
    }
    return hashes;
  };
  const std::vector<uint32_t> before = cycle();
  std::mt19937_64 random(7);
  for (int change = 0; change < 3000; ++change) {
    size_t tensor = random() % memory.size();
    if (memory[tensor].empty()) continue;
    const size_t byte = random() % memory[tensor].size();
    const char bit = static_cast<char>(1 << random() % 8);
    const bool in_gap = tensor == 3 && byte % 256 >= 160;
    memory[tensor][byte] ^= bit;
    const std::vector<uint32_t> after = cycle();
    int different = 0;
    for (size_t s = 0; s < after.size(); ++s) different += after[s] != before[s];
    EXPECT_EQ(different, in_gap ? 0 : 1) << "tensor " << tensor << ", byte " << byte;
    memory[tensor][byte] ^= bit;
  }
}

TEST(ReplicaHash, LeavesOutWhatHasNoAddress) {
  const std::vector<Parameter> table = {Tensor(DType::kF32, {4}), Tensor(DType::kF32, {4})};
  const float a[5] = {1, 2, 3, 4};
  float b[4] = {5, 6, 7, 8};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto hash, ReplicaHash::Create(table, HostDevice(), nullptr));
  const auto of = [&](std::vector<const void*> data) { return hash->Next(1, data, nullptr).value(); };
  EXPECT_EQ(of({}), absl::nullopt);
  EXPECT_EQ(of({nullptr, nullptr}), absl::nullopt);
  const auto both = of({a, b});
  const auto alone = of({a, nullptr});
  EXPECT_TRUE(of({reinterpret_cast<const char*>(a) + 1, nullptr}).has_value()) << "at any address";
  EXPECT_TRUE(both.has_value() && alone.has_value() && *both != *alone);
  b[2] = 0;
  EXPECT_NE(of({a, b}), both);
  EXPECT_EQ(of({a, nullptr}), alone);
  EXPECT_THAT(hash->Check(std::vector<const void*>{a}, nullptr), InvalidArgument("1 addresses for 2 tensors"));
}

}  // namespace
}  // namespace lockstep::testing
