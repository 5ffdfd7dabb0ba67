// Products against the definition, on a host stream everywhere and on a GPU where there is one.

#include "bench/overlap/matmul.h"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_device.h"
#include "base/deadline.h"
#include "base/device.h"
#include "base/host_device.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

struct Sizes {
  uint32_t rows;
  uint32_t columns;
  uint32_t depth;
};

// Less than a tile, tiles exactly, and one more or less than tiles; an element more than the depth of a tile.
constexpr Sizes kSizes[] = {{1, 1, 1},    {1, 65, 3},   {63, 64, 16},   {64, 64, 17},   {65, 63, 15},
                            {64, 128, 1}, {130, 2, 33}, {128, 192, 64}, {200, 137, 100}};

std::vector<float> RandomMatrix(size_t elements, std::mt19937& random) {
  std::vector<float> matrix(elements);
  for (float& value : matrix) value = std::uniform_real_distribution<float>(-1, 1)(random);
  return matrix;
}

// In f64, and the sum of the products' sizes, which bounds how far roundings in f32 may lead away.
struct Expected {
  double value = 0;
  double size = 0;
};
Expected Element(const std::vector<float>& left, const std::vector<float>& right, const Sizes& sizes, size_t row,
                 size_t column) {
  Expected expected;
  for (size_t d = 0; d < sizes.depth; ++d) {
    const double product = double{left[row * sizes.depth + d]} * right[d * sizes.columns + column];
    expected.value += product;
    expected.size += std::abs(product);
  }
  return expected;
}

void IsTheProductOn(Device& device, const Sizes& sizes) {
  SCOPED_TRACE(testing::Message() << sizes.rows << " x " << sizes.depth << " x " << sizes.columns);
  constexpr size_t kBeyond = 100;  // elements behind the product, which stay as they are
  constexpr float kUntouched = 777;
  std::mt19937 random(1);
  const std::vector<float> left = RandomMatrix(size_t{sizes.rows} * sizes.depth, random);
  const std::vector<float> right = RandomMatrix(size_t{sizes.depth} * sizes.columns, random);
  std::vector<float> product(size_t{sizes.rows} * sizes.columns + kBeyond, kUntouched);

  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, device.CreateStream("compute"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory,
                                device.Allocate((left.size() + right.size() + product.size()) * sizeof(float)));
  auto* const left_there = static_cast<float*>(memory);
  float* const right_there = left_there + left.size();
  float* const product_there = right_there + right.size();
  ASSERT_THAT(stream->Copy(left_there, left.data(), left.size() * sizeof(float)), IsOk());
  ASSERT_THAT(stream->Copy(right_there, right.data(), right.size() * sizeof(float)), IsOk());
  ASSERT_THAT(stream->Copy(product_there, product.data(), product.size() * sizeof(float)), IsOk());
  ASSERT_THAT(Matmul(*stream, {left_there, right_there, product_there, sizes.rows, sizes.columns, sizes.depth}),
              IsOk());
  ASSERT_THAT(stream->Copy(product.data(), product_there, product.size() * sizeof(float)), IsOk());
  ASSERT_THAT(stream->Synchronize(Soon()), IsOk());
  device.Free(memory);

  for (size_t row = 0; row < sizes.rows; ++row) {
    for (size_t column = 0; column < sizes.columns; ++column) {
      const Expected expected = Element(left, right, sizes, row, column);
      // Each of `depth` products and sums rounds by half a unit of the last place at most (Higham, Accuracy and Stability of
      // Numerical Algorithms, section 3.1).
      ASSERT_NEAR(product[row * sizes.columns + column], expected.value, expected.size * (sizes.depth + 1) * 6e-8)
          << "row " << row << ", column " << column;
    }
  }
  for (size_t i = product.size() - kBeyond; i < product.size(); ++i) ASSERT_EQ(product[i], kUntouched) << i;
}

TEST(Matmul, IsTheProductOnTheHost) {
  for (const Sizes& sizes : kSizes) IsTheProductOn(*HostDevice(), sizes);
}

TEST(Matmul, IsTheProductOnAGpu) {
  const absl::StatusOr<Device*> device = CudaDevice(0);
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
  ASSERT_THAT(device, IsOk());
  for (const Sizes& sizes : kSizes) IsTheProductOn(**device, sizes);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
