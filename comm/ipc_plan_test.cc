// Plans are carried out on arrays of the host, all ranks in turn, part by part, and judged by what each rank's output
// holds.

#include "comm/ipc_plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/statusor.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t kUnwritten = -1;

struct World {
  CollectiveRequest request;
  int size = 1;
  IpcSlots slots;
  size_t pair_count_max = 0;
  std::vector<Numbers> inputs, outputs;
  std::vector<Numbers> counts, output_counts;  // of an all-to-all, each rank's own
};

// Sums of int64.
void CarryOut(World* world) {
  std::vector<std::vector<IpcStep>> plans;
  for (int r = 0; r < world->size; ++r) {
    CollectiveRequest request = world->request;
    if (!world->counts.empty()) {
      request.counts = world->counts[r];
      request.output_counts = world->output_counts[r];
      request.count = world->inputs[r].size();
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(plans.emplace_back(),
                                  PlanIpc(request, r, world->size, world->slots, world->pair_count_max));
    ASSERT_EQ(plans[r].size(), plans[0].size()) << "ranks take different numbers of steps";
  }
  const size_t slot_count = world->slots.bytes / sizeof(int64_t);
  std::vector<Numbers> slots(world->size, Numbers(slot_count, kUnwritten));
  const auto copy = [](const Numbers& from, size_t source, Numbers* to, size_t target, size_t count) {
    if (count == 0) return;
    ASSERT_LE(source + count, from.size());
    ASSERT_LE(target + count, to->size());
    std::copy_n(from.begin() + source, count, to->begin() + target);
  };
  for (size_t i = 0; i < plans[0].size(); ++i) {
    for (Numbers& slot : slots) std::fill(slot.begin(), slot.end(), kUnwritten);
    for (int r = 0; r < world->size; ++r) {
      for (const IpcCopy& put : plans[r][i].puts) {
        EXPECT_EQ(put.rank, r);
        copy(world->inputs[r], put.offset, &slots[r], put.slot_offset, put.count);
      }
    }
    // All at once, so that what one writes none may have yet to read.
    std::vector<Numbers> folded = slots;
    for (int r = 0; r < world->size; ++r) {
      const IpcStep& step = plans[r][i];
      if (!step.fold.has_value()) continue;
      Numbers sums(step.fold->count, 0);
      for (const Numbers& slot : slots) {
        for (size_t k = 0; k < sums.size(); ++k) sums[k] += slot[step.fold->slot_offset + k];
      }
      copy(sums, 0, step.two_shots ? &folded[r] : &world->outputs[r],
           step.two_shots ? step.fold->slot_offset : step.fold->offset, sums.size());
    }
    for (int r = 0; r < world->size; ++r) {
      for (const IpcCopy& get : plans[r][i].gets) {
        copy(folded[get.rank], get.slot_offset, &world->outputs[r], get.offset, get.count);
      }
    }
  }
}

// Rank r's elements are 1000 r, 1000 r + 1, ...
Numbers InputOf(int rank, size_t count) {
  Numbers input(count);
  std::iota(input.begin(), input.end(), 1000 * rank);
  return input;
}

World WorldOf(Collective collective, int size, size_t count, IpcSlots slots, int root = 0) {
  World world;
  world.size = size;
  world.slots = slots;
  world.request.collective = collective;
  world.request.dtype = DType::kI64;
  world.request.op = ReduceOp::kSum;
  world.request.root = Rank(root);
  world.request.count = count;
  return world;
}

constexpr IpcSlots kPieces = {1024, 512};
constexpr IpcSlots kOnePiece = {1 << 20, 1 << 20};
constexpr IpcSlots kTwoShots = {1 << 20, 0};

TEST(IpcPlan, AVectorIsReducedInOneShotOrTwo) {
  for (const int size : {1, 2, 3, 5, 8}) {
    for (const size_t count : {0, 1, 5, 64, 65, 127, 128, 129, 1000}) {
      for (const IpcSlots& slots : {kPieces, kOnePiece, kTwoShots}) {
        for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast}) {
          const int root = size - 1;
          World world = WorldOf(collective, size, count, slots, root);
          Numbers sum(count, 0);
          for (int r = 0; r < size; ++r) {
            world.inputs.push_back(InputOf(r, count));
            world.outputs.emplace_back(count, kUnwritten);
            for (size_t k = 0; k < count; ++k) sum[k] += world.inputs[r][k];
          }
          CarryOut(&world);
          for (int r = 0; r < size; ++r) {
            SCOPED_TRACE(::testing::Message()
                         << Name(collective) << " of " << count << " on rank " << r << " of " << size);
            const Numbers unwritten(count, kUnwritten);
            if (collective == Collective::kBroadcast) {
              EXPECT_EQ(world.outputs[r], world.inputs[root]);
            } else if (collective == Collective::kReduce && r != root) {
              EXPECT_EQ(world.outputs[r], unwritten);
            } else {
              EXPECT_EQ(world.outputs[r], sum);
            }
          }
        }
      }
    }
  }
}

TEST(IpcPlan, AShotIsOnlyForWhatIsNoLargerThanItMayBe) {
  for (const size_t count : {64, 65}) {
    const CollectiveRequest request = WorldOf(Collective::kAllReduce, 2, count, kPieces).request;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<IpcStep> steps, PlanIpc(request, 0, 2, kPieces, 0));
    ASSERT_EQ(steps.size(), 1u);
    EXPECT_EQ(steps[0].two_shots, count == 65);
  }
}

TEST(IpcPlan, BlocksAreMovedPieceByPiece) {
  for (const int size : {1, 2, 3, 8}) {
    for (const bool equal : {true, false}) {
      for (const size_t block : {0, 1, 20, 300}) {
        Numbers counts(size, static_cast<int64_t>(block));
        for (int r = 0; r < size && !equal; ++r) counts[r] = r % 3 == 1 ? 0 : counts[r] + r;
        const auto count = static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
        const auto before = [&](int r) { return std::accumulate(counts.begin(), counts.begin() + r, int64_t{0}); };
        const auto block_of = [&](const Numbers& vector, int r) {
          return Numbers(vector.begin() + before(r), vector.begin() + before(r) + counts[r]);
        };
        const int root = size / 2;
        for (const Collective collective :
             {Collective::kAllGather, Collective::kGather, Collective::kReduceScatter, Collective::kScatter}) {
          SCOPED_TRACE(::testing::Message()
                       << Name(collective) << " of blocks of " << block << ", " << size << " ranks");
          World world = WorldOf(collective, size, count, kPieces, root);
          if (!equal) world.request.counts = counts;
          const bool block_in = collective == Collective::kAllGather || collective == Collective::kGather;
          Numbers sum(count, 0), all;
          for (int r = 0; r < size; ++r) {
            world.inputs.push_back(InputOf(r, block_in ? counts[r] : count));
            world.outputs.emplace_back(block_in ? count : counts[r], kUnwritten);
            all.insert(all.end(), world.inputs[r].begin(), world.inputs[r].end());
            for (size_t k = 0; k < count && !block_in; ++k) sum[k] += world.inputs[r][k];
          }
          CarryOut(&world);
          for (int r = 0; r < size; ++r) {
            if (collective == Collective::kReduceScatter) {
              EXPECT_EQ(world.outputs[r], block_of(sum, r));
            } else if (collective == Collective::kScatter) {
              EXPECT_EQ(world.outputs[r], block_of(world.inputs[root], r));
            } else if (collective == Collective::kAllGather || r == root) {
              EXPECT_EQ(world.outputs[r], all);
            }
          }
        }
      }
    }
  }
}

TEST(IpcPlan, EachPairOfAnAllToAllHasItsOwnCount) {
  for (const int size : {1, 2, 3, 8}) {
    World world = WorldOf(Collective::kAllToAll, size, 0, kPieces);
    const auto pair = [](int source, int target) { return (source + target) % 4 == 3 ? 0 : 7 * source + 11 * target; };
    std::vector<Numbers> expected(size);
    for (int r = 0; r < size; ++r) {
      Numbers to, from;
      for (int other = 0; other < size; ++other) {
        to.push_back(pair(r, other));
        from.push_back(pair(other, r));
        world.pair_count_max = std::max<size_t>(world.pair_count_max, pair(r, other));
      }
      world.counts.push_back(to);
      world.output_counts.push_back(from);
      world.inputs.push_back(InputOf(r, std::accumulate(to.begin(), to.end(), int64_t{0})));
      world.outputs.emplace_back(std::accumulate(from.begin(), from.end(), int64_t{0}), kUnwritten);
    }
    for (int target = 0; target < size; ++target) {
      for (int source = 0; source < size; ++source) {
        const Numbers& counts = world.counts[source];
        const auto begin =
            world.inputs[source].begin() + std::accumulate(counts.begin(), counts.begin() + target, int64_t{0});
        expected[target].insert(expected[target].end(), begin, begin + counts[target]);
      }
    }
    CarryOut(&world);
    EXPECT_EQ(world.outputs, expected) << size << " ranks";
  }
}

TEST(IpcPlan, InPlaceEachRankFoldsItsPartAndGetsTheOthers) {
  for (const int size : {1, 2, 3, 8}) {
    for (const size_t count : {1, 7, 100, 1001}) {
      const CollectiveRequest request = WorldOf(Collective::kAllReduce, size, count, kPieces).request;
      std::vector<int> covered(count, 0);
      for (int r = 0; r < size; ++r) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const IpcStep step, PlanIpcInPlace(request, r, size));
        EXPECT_TRUE(step.puts.empty());
        EXPECT_TRUE(step.two_shots);
        for (size_t k = 0; k < step.fold->count; ++k) ++covered[step.fold->slot_offset + k];
        size_t got = step.fold->count;
        for (const IpcCopy& get : step.gets) {
          EXPECT_NE(get.rank, r);
          EXPECT_EQ(get.offset, get.slot_offset);
          got += get.count;
        }
        EXPECT_EQ(got, count);
      }
      EXPECT_THAT(covered, ::testing::Each(1));
    }
  }
}

}  // namespace
}  // namespace lockstep
