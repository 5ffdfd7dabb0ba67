#include "reducer/sparse/sparse_gradient.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "base/types/bfloat16.h"
#include "kernels/cpu/cast.h"
#include "reducer/plan/plan_testing.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kManyRows = int64_t{1} << 50;  // of which nobody has the memory

template <typename T>
SparseGradient Make(DType dtype, int64_t rows, int64_t row_elements, const std::vector<int64_t>& indices,
                    const std::vector<T>& values) {
  EXPECT_EQ(values.size(), indices.size() * row_elements);
  return {"embedding", dtype, rows, row_elements, indices, values.data()};
}

template <typename T>
std::vector<T> Values(const CoalescedGradient& gradient) {
  std::vector<T> values(gradient.values.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), gradient.values.data(), gradient.values.size());
  return values;
}

TEST(Coalesce, SortsRowsAndSumsTheValuesOfEach) {
  const std::vector<int64_t> indices = {7, 2, 7, 0, 7};
  const std::vector<float> values = {1, 2, 3, 4, 10, 20, 5, 6, 100, 200};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                Coalesce(Make(DType::kF32, kManyRows, 2, indices, values), 1));
  EXPECT_EQ(result.dtype, DType::kF32);
  EXPECT_EQ(result.rows, kManyRows);
  EXPECT_EQ(result.row_elements, 2);
  EXPECT_THAT(result.indices, ElementsAre(0, 2, 7));
  EXPECT_THAT(Values<float>(result), ElementsAre(5, 6, 3, 4, 111, 222));
}

TEST(Coalesce, EqualsADenseSumForRandomRows) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const int64_t rows = 1 + random() % 40;
    const int64_t row_elements = 1 + random() % 5;
    std::vector<int64_t> indices(random() % 60);
    for (int64_t& index : indices) index = random() % rows;
    std::vector<float> values(indices.size() * row_elements);
    for (float& value : values) value = std::ldexp(static_cast<float>(random()), -static_cast<int>(random() % 40));
    // One rounding for each addition, in the order of the rows given.
    std::map<int64_t, std::vector<float>> dense;
    for (size_t i = 0; i < indices.size(); ++i) {
      const auto [row, first] = dense.try_emplace(indices[i], row_elements);
      for (int64_t k = 0; k < row_elements; ++k) {
        const float value = values[i * row_elements + k];
        row->second[k] = first ? value : row->second[k] + value;
      }
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                  Coalesce(Make(DType::kF32, rows, row_elements, indices, values), 0.3));
    std::vector<int64_t> expected_indices;
    std::vector<float> expected;
    for (const auto& [row, sums] : dense) {
      expected_indices.push_back(row);
      for (const float sum : sums) expected.push_back(sum * 0.3F);
    }
    EXPECT_EQ(result.indices, expected_indices);
    EXPECT_EQ(Values<float>(result), expected);
  }
}

TEST(Coalesce, KeepsNarrowFloatsInFloat32UntilTheyAreSummed) {
  // 256 + 1 is no bfloat16: rounded each time, the ones would be lost.
  std::vector<int64_t> indices = {5, 5, 5, 5, 5};
  const std::vector<BFloat16> values = {BFloat16(256.0F), BFloat16(1.0F), BFloat16(1.0F), BFloat16(1.0F),
                                        BFloat16(1.0F)};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                Coalesce(Make(DType::kBF16, 6, 1, indices, values), 0.5));
  EXPECT_EQ(static_cast<float>(Values<BFloat16>(result)[0]), 130);
}

TEST(Coalesce, ScalesAsADenseGradientIsScaled) {
  for (const DType dtype : kFloatDTypes) {
    SCOPED_TRACE(Name(dtype));
    const std::vector<float> numbers = {1, -2.5, 3, 7, 0.3F, 100};
    std::vector<char> values(numbers.size() * SizeOf(dtype));
    LOCKSTEP_ASSERT_OK(kernels::CastScaled(dtype, values.data(), DType::kF32, numbers.data(), numbers.size(), 1));
    std::vector<char> expected(values.size());
    LOCKSTEP_ASSERT_OK(kernels::CastScaled(dtype, expected.data(), dtype, values.data(), numbers.size(), 1.0 / 3));
    const std::vector<int64_t> indices = {0, 8, 9};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                  Coalesce({"embedding", dtype, 10, 2, indices, values.data()}, 1.0 / 3));
    EXPECT_EQ(result.values, expected);
  }
}

TEST(Coalesce, SumsComplexNumbers) {
  using Complex = std::complex<double>;
  const std::vector<int64_t> indices = {1, 0, 1};
  const std::vector<Complex> values = {{1, 2}, {3, 4}, {10, 20}};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                Coalesce(Make(DType::kComplex128, 2, 1, indices, values), 2));
  EXPECT_THAT(Values<Complex>(result), ElementsAre(Complex(6, 8), Complex(22, 44)));
}

TEST(Coalesce, TakesValuesOfAnyAlignment) {
  const std::vector<double> values = {1, 2, 3, 4};
  std::vector<char> memory(1 + values.size() * sizeof(double));
  std::memcpy(memory.data() + 1, values.data(), values.size() * sizeof(double));
  const std::vector<int64_t> indices = {9, 4, 9, 4};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                Coalesce({"embedding", DType::kF64, 10, 1, indices, memory.data() + 1}, 1));
  EXPECT_THAT(Values<double>(result), ElementsAre(6, 4));
}

TEST(Coalesce, OfItsOwnResultChangesNothing) {
  const std::vector<int64_t> indices = {4, 4, 2};
  const std::vector<float> values = {-0.0F, -0.0F, std::numeric_limits<float>::infinity()};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient once, Coalesce(Make(DType::kF32, 5, 1, indices, values), 1));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient again, Coalesce(once.view("embedding"), 1));
  EXPECT_EQ(again.indices, once.indices);
  EXPECT_EQ(again.values, once.values);
}

TEST(Coalesce, OfNoRowsIsNone) {
  for (const int64_t rows : {int64_t{0}, int64_t{1}, kManyRows}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                  Coalesce({"embedding", DType::kF32, rows, 8, {}, nullptr}, 0.5));
    EXPECT_EQ(result.rows, rows);
    EXPECT_THAT(result.indices, IsEmpty());
    EXPECT_THAT(result.values, IsEmpty());
  }
}

TEST(Coalesce, OfRowsWithoutElementsKeepsTheirIndices) {
  const std::vector<int64_t> indices = {3, 1, 3};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                Coalesce({"embedding", DType::kF32, 4, 0, indices, nullptr}, 0.5));
  EXPECT_THAT(result.indices, ElementsAre(1, 3));
  EXPECT_THAT(result.values, IsEmpty());
}

TEST(CheckSparseGradient, NamesParameterPositionAndValueOfAnIndexThatIsNoRow) {
  const std::vector<float> values(6);
  for (const int64_t bad : {int64_t{-1}, int64_t{100}, std::numeric_limits<int64_t>::min(), kManyRows}) {
    const std::vector<int64_t> indices = {0, 99, bad};
    const SparseGradient gradient = Make(DType::kF32, 100, 2, indices, values);
    const auto refused =
        InvalidArgument("'embedding' (f32, 100 rows of 2)", absl::StrCat("the index at position 2 is ", bad, ","));
    EXPECT_THAT(CheckSparseGradient(gradient), refused);
    EXPECT_THAT(Coalesce(gradient, 1).status(), refused);
  }
  const std::vector<int64_t> first = {0};
  EXPECT_THAT(CheckSparseGradient({"embedding", DType::kF32, 0, 1, first, values.data()}),
              InvalidArgument("the index at position 0 is 0"));
}

TEST(CheckSparseGradient, RefusesWhatIsNoGradient) {
  const std::vector<float> values(6);
  const std::vector<int64_t> indices = {0, 1};
  EXPECT_THAT(CheckSparseGradient({"e", DType::kI32, 4, 3, indices, values.data()}),
              InvalidArgument("floats or complex"));
  EXPECT_THAT(CheckSparseGradient({"e", DType::kBool, 4, 3, indices, values.data()}),
              InvalidArgument("floats or complex"));
  EXPECT_THAT(CheckSparseGradient({"e", DType::kF32, -4, 3, indices, values.data()}), InvalidArgument("negative"));
  EXPECT_THAT(CheckSparseGradient({"e", DType::kF32, 4, -3, indices, values.data()}), InvalidArgument("negative"));
  EXPECT_THAT(CheckSparseGradient({"e", DType::kF32, 4, 3, indices, nullptr}), InvalidArgument("no values"));
  EXPECT_THAT(CheckSparseGradient({"e", DType::kF32, 4, int64_t{1} << 60, indices, values.data()}),
              InvalidArgument("more bytes than there are addresses"));
  EXPECT_THAT(CheckSparseGradient({"e", DType::kF32, 4, int64_t{1} << 62, indices, values.data()}),
              InvalidArgument("more bytes than there are addresses"));
}

}  // namespace
}  // namespace lockstep::testing
