// Averages of floats and complex numbers by every algorithm that reduces in rank order and rounds once: the bits are those
// of the reference, which scales each input, rounds it to the dtype and folds. In shared memory the inputs are scaled as they
// are folded, by messages before; nobody is to see the difference.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference_testing.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

constexpr size_t kBytes = size_t{4} << 20;  // an input and an output
// Of the wider dtypes some rounds over the stage (comm/schedule/stage.h).
constexpr size_t kLargeBlock = 20'011;

constexpr Collective kReducing[] = {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter};

// Numbers that are rounded wherever they can be.
std::vector<char> Input(DType dtype, int rank, size_t count) {
  const DType part = RealOf(dtype);
  std::vector<char> input(count * SizeOf(dtype));
  std::mt19937 random(static_cast<uint32_t>(rank));
  for (size_t at = 0; at < input.size(); at += SizeOf(part)) {
    const double value = (static_cast<double>(random()) / 0x1p31 - 1) * 3;
    const uint64_t code = kernels::ReferenceEncode(part, value);
    std::memcpy(input.data() + at, &code, SizeOf(part));
  }
  return input;
}

// The average, over all ranks, each of which has `count` elements.
std::vector<char> Expected(DType dtype, int size, size_t count) {
  std::vector<std::vector<char>> scaled;
  std::vector<const void*> terms;
  for (int rank = 0; rank < size; ++rank) {
    scaled.push_back(Input(dtype, rank, count));
    kernels::ReferenceScale(dtype, scaled.back().data(), scaled.back().data(), count, 1.0 / size);
  }
  for (const std::vector<char>& term : scaled) terms.push_back(term.data());
  std::vector<char> expected(count * SizeOf(dtype));
  kernels::ReferenceReduceMany(dtype, ReduceOp::kSum, expected.data(), terms.data(), terms.size(), count);
  return expected;
}

// In `memory`, which all ranks map.
void ExpectAverage(Communicator& self, char* memory, CollectiveRequest request, bool in_place,
                   const std::vector<char>& expected) {
  SCOPED_TRACE(::testing::Message() << Name(request.collective) << " by " << Name(request.algorithm) << " of "
                                    << request.count << " " << Name(request.dtype) << " over " << self.size()
                                    << " ranks" << (in_place ? ", in place" : "") << ", on rank "
                                    << self.rank().value());
  const std::vector<char> input = Input(request.dtype, self.rank().value(), request.count);
  const bool blocks = request.collective == Collective::kReduceScatter;
  const size_t bytes = blocks ? input.size() / self.size() : input.size();
  const size_t begin = blocks ? bytes * self.rank().value() : 0;
  char* const output = memory + (in_place ? begin : kBytes / 2);
  std::copy(input.begin(), input.end(), memory);
  request.op = ReduceOp::kAvg;
  request.root = Rank(1);
  request.input = memory;
  request.output = output;
  ASSERT_THAT(self.Run(request), IsOk());
  if (request.collective == Collective::kReduce && self.rank() != request.root) return;
  EXPECT_TRUE(std::equal(output, output + bytes, expected.begin() + static_cast<ptrdiff_t>(begin)));
  if (!in_place) {
    EXPECT_TRUE(std::equal(input.begin(), input.end(), memory)) << "the input was changed";
  }
}

TEST(AverageInSharedMemory, HasTheBitsOfScaledInputsFoldedInRankOrder) {
  for (const int size : {2, 3, 4}) {
    MemoryStore store;
    std::vector<WorldOrError> worlds = CreateWorlds(&store, size);
    for (const WorldOrError& world : worlds) LOCKSTEP_ASSERT_OK(world);
    std::vector<std::unique_ptr<SymmetricBuffer>> buffers(size);
    testing::RunRanks(size, [&](int rank) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(buffers[rank], (*worlds[rank])->communicator()->Allocate(kBytes));
    });
    for (const DType dtype : kFloatAndComplexDTypes) {
      for (const size_t count : {kShareBytesMax / SizeOf(dtype), kLargeBlock * size}) {
        const std::vector<char> expected = Expected(dtype, size, count);
        testing::RunRanks(size, [&](int rank) {
          ASSERT_NE(buffers[rank], nullptr);
          ASSERT_TRUE(buffers[rank]->shared());
          for (const Collective collective : kReducing) {
            if (collective == Collective::kReduceScatter && count % size != 0) continue;
            for (const Algorithm algorithm : AlgorithmsFor(collective)) {
              if (!ReducesInRankOrder(collective, algorithm) || !RoundsOnce(collective, algorithm)) continue;
              if (algorithm == Algorithm::kInline && count * SizeOf(dtype) > kShareBytesMax) continue;
              CollectiveRequest request;
              request.collective = collective;
              request.algorithm = algorithm;
              request.dtype = dtype;
              request.count = count;
              for (const bool in_place : {false, true}) {
                ExpectAverage(*(*worlds[rank])->communicator(), buffers[rank]->data(), request, in_place, expected);
              }
            }
          }
        });
      }
    }
    // Closed by all ranks, as they were made.
    testing::RunRanks(size, [&](int rank) { buffers[rank].reset(); });
  }
}

}  // namespace
}  // namespace lockstep
