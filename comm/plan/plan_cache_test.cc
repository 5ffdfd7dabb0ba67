#include "comm/plan/plan_cache.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/plan/call_plan.h"
#include "comm/schedule/schedule.h"
#include "comm/select/selector.h"
#include "comm/topology/link_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kChunkBytes = 256 * 1024;

PlanCache::Options OptionsFor(int size) {
  PlanCache::Options options;
  options.rank = Rank(1);
  options.size = size;
  options.chunk_bytes = kChunkBytes;
  return options;
}

CollectiveRequest RequestOf(Collective collective, DType dtype, size_t count) {
  CollectiveRequest request;
  request.collective = collective;
  request.dtype = dtype;
  request.count = count;
  return request;
}

// Null when there is none.
std::shared_ptr<const CallPlan> PlanOf(PlanCache& cache, const CollectiveRequest& request, bool shared = false) {
  const auto plan = cache.Find(request, shared);
  LOCKSTEP_EXPECT_OK(plan);
  return plan.ok() ? **plan : nullptr;
}

// kAuto when there is no plan.
Algorithm AlgorithmOf(PlanCache& cache, const CollectiveRequest& request, bool shared = false) {
  const std::shared_ptr<const CallPlan> plan = PlanOf(cache, request, shared);
  return plan != nullptr ? plan->signature.algorithm : Algorithm::kAuto;
}

TEST(PlanCache, GivesLikeCallsTheSamePlan) {
  PlanCache cache(OptionsFor(8));
  CollectiveRequest request = RequestOf(Collective::kAllReduce, DType::kF32, 1024);
  const std::shared_ptr<const CallPlan> first = PlanOf(cache, request, /*shared=*/false);
  ASSERT_NE(first, nullptr);
  std::vector<float> elsewhere(1024);
  request.output = elsewhere.data();
  const std::shared_ptr<const CallPlan> again = PlanOf(cache, request, /*shared=*/false);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(first, again);
  request.count = 1025;
  const std::shared_ptr<const CallPlan> other = PlanOf(cache, request, /*shared=*/false);
  ASSERT_NE(other, nullptr);
  EXPECT_NE(first, other);
}

TEST(PlanCache, TakesOverTheCostsOfALikeWorldAlone) {
  PlanCache::Options options = OptionsFor(8);
  PlanCache parent(options);
  options.costs = parent.costs();
  EXPECT_EQ(PlanCache(options).costs(), parent.costs());
  options.size = 4;
  EXPECT_NE(PlanCache(options).costs(), parent.costs());
  options.size = 8;
  options.shape.network.ranks_per_host = 2;
  EXPECT_NE(PlanCache(options).costs(), parent.costs());
}

TEST(PlanCache, DeterministicChoicesFoldInRankOrderAndRoundOnce) {
  for (Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
    for (int size : {2, 3, 8, 64}) {
      PlanCache::Options options = OptionsFor(size);
      options.deterministic = true;
      PlanCache cache(options);
      for (size_t blocks : {size_t{0}, size_t{1}, size_t{1} << 20}) {
        SCOPED_TRACE(testing::Message() << Name(collective) << ", " << size << " ranks, " << blocks << " per block");
        EXPECT_TRUE(
            ReducesInRankOrder(collective, AlgorithmOf(cache, RequestOf(collective, DType::kF32, blocks * size))));
        const Algorithm narrow = AlgorithmOf(cache, RequestOf(collective, DType::kBF16, blocks * size));
        EXPECT_TRUE(ReducesInRankOrder(collective, narrow));
        EXPECT_TRUE(RoundsOnce(collective, narrow));
      }
    }
  }
}

TEST(PlanCache, DeterminismLeavesCollectivesWithoutReductionAlone) {
  PlanCache::Options options = OptionsFor(8);
  PlanCache free_choice(options);
  options.deterministic = true;
  PlanCache deterministic(options);
  for (size_t count : {size_t{8}, size_t{1} << 22}) {
    const CollectiveRequest request = RequestOf(Collective::kBroadcast, DType::kF32, count);
    EXPECT_EQ(AlgorithmOf(deterministic, request), AlgorithmOf(free_choice, request));
  }
}

TEST(PlanCache, RefusesANamedAlgorithmThatIsNotDeterministic) {
  PlanCache::Options options = OptionsFor(8);
  options.deterministic = true;
  CollectiveRequest request = RequestOf(Collective::kAllReduce, DType::kF32, 64);
  request.algorithm = Algorithm::kRing;
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("ring cannot carry out this all_reduce"), HasSubstr("f32 in rank order")));
  PlanCache by_call(options);
  EXPECT_THAT(by_call.Find(request, /*shared=*/false), refused);
  request.algorithm = Algorithm::kAuto;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(options.algorithms, ParseAlgorithmOverrides("all_reduce:ring"));
  PlanCache by_override(options);
  EXPECT_THAT(by_override.Find(request, /*shared=*/false), refused);
  request.algorithm = Algorithm::kTwoShot;
  EXPECT_EQ(AlgorithmOf(by_override, request), Algorithm::kTwoShot) << "the call goes before the override";
}

TEST(PlanCache, UnequalBlocksGetAnAlgorithmThatCanDoThem) {
  constexpr int kSize = 8;
  PlanCache::Options options = OptionsFor(kSize);
  std::vector<int64_t> counts(kSize, 1);
  counts[3] = 5;
  for (Collective collective : {Collective::kAllGather, Collective::kReduceScatter, Collective::kGather}) {
    for (Algorithm named : AlgorithmsFor(collective)) {
      // An override that cannot is no more than a preference here.
      options.algorithms.by_collective[static_cast<int>(collective)] = named;
      PlanCache cache(options);
      CollectiveRequest request = RequestOf(collective, DType::kF32, 12);
      request.counts = counts;
      const Algorithm chosen = AlgorithmOf(cache, request);
      EXPECT_FALSE(NeedsEqualBlocks(collective, chosen)) << Name(collective) << " by " << Name(chosen);
      if (!NeedsEqualBlocks(collective, named) && !UsesSharedMemory(named)) {
        EXPECT_EQ(chosen, named);
      }
    }
  }
}

TEST(PlanCache, WhatLiesInSharedMemoryGoesDirectly) {
  PlanCache::Options options = OptionsFor(4);
  options.shape.network = MakeNetwork(kSharedMemory, kTcpBetweenHosts, /*ranks_per_host=*/4);
  PlanCache cache(options);
  for (size_t count : {size_t{16}, size_t{1024}, size_t{1} << 22}) {
    const CollectiveRequest request = RequestOf(Collective::kAllReduce, DType::kF32, count);
    EXPECT_EQ(AlgorithmOf(cache, request, /*shared=*/true), Algorithm::kDirect);
    EXPECT_FALSE(UsesSharedMemory(AlgorithmOf(cache, request)));
  }
  CollectiveRequest named = RequestOf(Collective::kAllReduce, DType::kF32, 16);
  named.algorithm = Algorithm::kDirect;
  EXPECT_THAT(cache.Find(named, /*shared=*/false),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("communicator's allocator")));
}

TEST(PlanCache, WhereMemoryIsSharedOrdinaryBuffersGoInlineAndOverTheStage) {
  PlanCache::Options options = OptionsFor(4);
  options.shape.network = MakeNetwork(kSharedMemory, kTcpBetweenHosts, /*ranks_per_host=*/4);
  PlanCache without(options), with(options);
  with.AllowSharedMemory();
  const CollectiveRequest six = RequestOf(Collective::kAllReduce, DType::kF32, 6);
  const CollectiveRequest seven = RequestOf(Collective::kAllReduce, DType::kF32, 7);
  const CollectiveRequest six_each = RequestOf(Collective::kAllGather, DType::kF32, 24);
  EXPECT_EQ(AlgorithmOf(with, six), Algorithm::kInline);
  EXPECT_EQ(AlgorithmOf(with, six_each), Algorithm::kInline);
  EXPECT_EQ(AlgorithmOf(with, seven), Algorithm::kStaged);
  EXPECT_EQ(AlgorithmOf(with, RequestOf(Collective::kAllReduce, DType::kF32, 1 << 20)), Algorithm::kStagedTwoShot);
  // Messages let a rank that only sends go ahead.
  EXPECT_FALSE(UsesSharedMemory(AlgorithmOf(with, RequestOf(Collective::kBroadcast, DType::kF32, 1 << 20))));
  EXPECT_FALSE(UsesSharedMemory(AlgorithmOf(without, six)));
  CollectiveRequest named = seven;
  named.algorithm = Algorithm::kStaged;
  EXPECT_THAT(with.Find(named, /*shared=*/true), IsOk());
  EXPECT_THAT(without.Find(named, /*shared=*/true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the ranks do not share memory")));
  named.algorithm = Algorithm::kInline;
  EXPECT_THAT(with.Find(named, /*shared=*/false), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("24 bytes")));
}

}  // namespace
}  // namespace lockstep
