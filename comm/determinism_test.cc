// A deterministic communicator: the bits of a reduction follow from the inputs alone. The same vectors are reduced with other
// chunks, by other algorithms, whole and in pieces as buckets would, for sizes 2 to 9, and every result is compared with one
// that is folded in rank order by hand, or with the first.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/schedule.h"
#include "comm/transport_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::lockstep::testing::LoopbackWorld;
using ::testing::HasSubstr;

constexpr size_t kCount = 1003;

TransportCommunicatorOptions Deterministic(size_t chunk_bytes) {
  TransportCommunicatorOptions options;
  options.deterministic = true;
  options.chunk_bytes = chunk_bytes;
  return options;
}

// Floats of very different sizes and both signs, so that every other order of adding gives other bits.
std::vector<float> AwkwardFloats(int rank) {
  std::mt19937 random(17 * rank + 5);
  std::vector<float> values(kCount);
  for (float& value : values) {
    const float mantissa = 1 + static_cast<float>(random() % 8388608) / 8388608;
    value = std::ldexp(random() % 2 == 0 ? mantissa : -mantissa, static_cast<int>(random() % 24) - 12);
  }
  return values;
}

// As bytes of the dtype: those of the floats, cut to its width. Every bit pattern is a value.
std::vector<char> Input(DType dtype, int rank) {
  const std::vector<float> floats = AwkwardFloats(rank);
  std::vector<char> bytes(kCount * SizeOf(dtype));
  for (size_t i = 0; i < kCount; ++i) {
    const double wide = floats[i];
    uint32_t bits = 0;
    std::memcpy(&bits, &floats[i], sizeof(bits));
    const uint16_t half = dtype == DType::kF16 ? static_cast<uint16_t>(0x3c00 ^ (bits >> 13 & 0x8fff)) : bits >> 16;
    const void* const source = dtype == DType::kF64   ? static_cast<const void*>(&wide)
                               : dtype == DType::kF32 ? static_cast<const void*>(&floats[i])
                                                      : static_cast<const void*>(&half);
    std::memcpy(bytes.data() + i * SizeOf(dtype), source, SizeOf(dtype));
  }
  return bytes;
}

// Rank 0's result of an all-reduce, in pieces of so many elements; that of the other ranks must be the same.
std::vector<char> AllReduce(LoopbackWorld* world, DType dtype, ReduceOp op, Algorithm algorithm, size_t piece) {
  std::vector<std::vector<char>> outputs(world->size());
  world->Run([&](Communicator& self) {
    const std::vector<char> input = Input(dtype, self.rank().value());
    std::vector<char> output(input.size());
    for (size_t begin = 0; begin < kCount; begin += piece) {
      CollectiveRequest request;
      request.collective = Collective::kAllReduce;
      request.algorithm = algorithm;
      request.dtype = dtype;
      request.op = op;
      request.count = std::min(piece, kCount - begin);
      request.input = input.data() + begin * SizeOf(dtype);
      request.output = output.data() + begin * SizeOf(dtype);
      ASSERT_THAT(self.Run(request), IsOk());
    }
    outputs[self.rank().value()] = output;
  });
  for (const std::vector<char>& output : outputs) EXPECT_EQ(output, outputs[0]);
  return outputs[0];
}

TEST(Determinism, ResultsDependOnNeitherChunksNorAlgorithmsNorBuckets) {
  for (int size = 2; size <= 9; ++size) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProd}) {
        std::vector<char> first;
        for (const size_t chunk_bytes : {64, 1024, 262'144}) {
          LoopbackWorld world(size, {}, Deterministic(chunk_bytes));
          for (const Algorithm algorithm :
               {Algorithm::kAuto, Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kChain}) {
            const bool narrow = SizeOf(dtype) < sizeof(float);
            if (algorithm == Algorithm::kChain && narrow) continue;  // rounds at every rank
            for (const size_t piece : {kCount, size_t{100}}) {
              const std::vector<char> result = AllReduce(&world, dtype, op, algorithm, piece);
              if (first.empty()) first = result;
              ASSERT_EQ(result, first) << size << " ranks, " << Name(dtype) << " " << Name(op) << ", "
                                       << Name(algorithm) << ", chunks of " << chunk_bytes << ", pieces of " << piece;
            }
          }
        }
      }
    }
  }
}

TEST(Determinism, TheResultIsTheFoldInRankOrder) {
  for (int size = 2; size <= 9; ++size) {
    std::vector<float> expected = AwkwardFloats(0);
    std::vector<float> backwards = AwkwardFloats(size - 1);
    for (int rank = 1; rank < size; ++rank) {
      const std::vector<float> next = AwkwardFloats(rank), previous = AwkwardFloats(size - 1 - rank);
      for (size_t i = 0; i < kCount; ++i) {
        expected[i] += next[i];
        backwards[i] += previous[i];
      }
    }
    if (size > 2) {
      EXPECT_NE(expected, backwards) << "the inputs must tell orders apart";
    }
    LoopbackWorld world(size, {}, Deterministic(4096));
    const std::vector<char> result = AllReduce(&world, DType::kF32, ReduceOp::kSum, Algorithm::kAuto, kCount);
    EXPECT_EQ(std::memcmp(result.data(), expected.data(), result.size()), 0) << size << " ranks";
  }
}

TEST(Determinism, AnAlgorithmThatCannotKeepItIsRefused) {
  LoopbackWorld world(3, {}, Deterministic(4096));
  world.Run([](Communicator& self) {
    std::vector<float> data(10, 1.0f);
    CollectiveRequest request;
    request.collective = Collective::kAllReduce;
    request.dtype = DType::kF32;
    request.count = data.size();
    request.input = data.data();
    request.output = data.data();
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling, Algorithm::kHalvingDoubling}) {
      request.algorithm = algorithm;
      EXPECT_THAT(self.Run(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in rank order")));
    }
    request.algorithm = Algorithm::kChain;
    EXPECT_THAT(self.Run(request), IsOk());
    request.dtype = DType::kBF16;
    EXPECT_THAT(self.Run(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chain")));
    // What reduces nothing may go as it likes.
    request.collective = Collective::kAllGather;
    request.algorithm = Algorithm::kRing;
    request.count = 9;
    std::vector<char> output(100);
    request.output = output.data();
    EXPECT_THAT(self.Run(request), IsOk());
  });
}

}  // namespace
}  // namespace lockstep
