// What each algorithm is for, counted: rounds, messages, blocks, and the order of the fold where it is part of the
// promise. That they are right is proved in schedule_proofs_test.cc.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/verify/schedule_testing.h"
#include "comm/schedule/verify/verifier.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

const int kSizes[] = {2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64};

int Count(const Schedule& schedule, Step::Kind kind) {
  return std::count_if(schedule.steps.begin(), schedule.steps.end(),
                       [kind](const Step& step) { return step.kind == kind; });
}
int Sends(const Schedule& schedule) { return Count(schedule, Step::Kind::kSend); }
int Receives(const Schedule& schedule) {
  return Count(schedule, Step::Kind::kReceive) + Count(schedule, Step::Kind::kReceiveReduce);
}

int FloorLog2(int size) {
  int log = 0;
  while (2 << log <= size) ++log;
  return log;
}
int CeilLog2(int size) { return (1 << FloorLog2(size)) == size ? FloorLog2(size) : FloorLog2(size) + 1; }

// Blocks that are sent to the ranks for which `counts` is true.
template <typename Counts>
int SentBlocks(const Schedule& schedule, Counts counts) {
  int blocks = 0;
  for (const Step& step : schedule.steps) {
    if (step.kind == Step::Kind::kSend && counts(step.peer.value())) blocks += step.source.blocks;
  }
  return blocks;
}
int SentBlocks(const Schedule& schedule) {
  return SentBlocks(schedule, [](int) { return true; });
}
int ReceivedBlocks(const Schedule& schedule) {
  int blocks = 0;
  for (const Step& step : schedule.steps) {
    if (step.kind == Step::Kind::kReceive || step.kind == Step::Kind::kReceiveReduce) blocks += step.target.blocks;
  }
  return blocks;
}

int MessageDepth(const std::vector<Schedule>& all) {
  const absl::StatusOr<Proof> proof = Prove(all, /*in_place=*/true);
  LOCKSTEP_EXPECT_OK(proof);
  return proof.ok() ? proof->message_depth() : -1;
}

std::string Expression(const std::vector<Schedule>& all, int rank, int block) {
  const absl::StatusOr<Proof> proof = Prove(all, /*in_place=*/false);
  LOCKSTEP_EXPECT_OK(proof);
  return proof.ok() ? proof->Expression(Rank(rank), block) : "";
}

TEST(RingAllReduce, TakesTwiceTheRanksLessOneRoundsOfOneBlock) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllReduce, Algorithm::kRing, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(schedule.blocks, size);
      ASSERT_EQ(schedule.scratch_blocks, 0);
      ASSERT_EQ(Sends(schedule), 2 * (size - 1));
      ASSERT_EQ(Count(schedule, Step::Kind::kReceiveReduce), size - 1);
      ASSERT_EQ(Count(schedule, Step::Kind::kReceive), size - 1);
      ASSERT_EQ(Count(schedule, Step::Kind::kCopy), 0) << "out of place needs no copy beforehand";
      const Rank right((schedule.rank.value() + 1) % size), left((schedule.rank.value() + size - 1) % size);
      for (const Step& step : schedule.steps) {
        ASSERT_EQ(step.peer, step.kind == Step::Kind::kSend ? right : left);
        ASSERT_EQ(step.source.blocks + step.target.blocks, step.kind == Step::Kind::kReceiveReduce ? 2 : 1);
      }
    }
    ASSERT_EQ(MessageDepth(all), 2 * (size - 1));
  }
}

// What lets the executor overlap the rounds chunk by chunk.
TEST(RingAllReduce, SendsOnExactlyTheOperandThatArrivedLast) {
  for (int rank = 0; rank < 5; ++rank) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                  BuildSchedule(Collective::kAllReduce, Algorithm::kRing, Rank(rank), 5, Rank(0)));
    for (size_t index = 1; index < schedule.steps.size(); ++index) {
      const Step& step = schedule.steps[index];
      if (step.kind != Step::Kind::kSend) continue;
      ASSERT_EQ(step.after[0], static_cast<int32_t>(index) - 1);
      ASSERT_EQ(step.source, schedule.steps[index - 1].target);
    }
  }
}

TEST(RingAllReduce, FoldsEachBlockInRingOrderFromItsOwner) {
  const std::vector<Schedule> all = BuildAll(Collective::kAllReduce, Algorithm::kRing, 4);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Expression(all, rank, 0), "(r3+(r2+(r1+r0)))");
    EXPECT_EQ(Expression(all, rank, 2), "(r1+(r0+(r3+r2)))");
  }
}

TEST(RecursiveDoublingAllReduce, TakesLogarithmicallyManyRoundsAndTwoForRanksBeyondAPowerOfTwo) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllReduce, Algorithm::kRecursiveDoubling, size);
    const int rounds = FloorLog2(size), extra = size - (1 << rounds);
    for (const Schedule& schedule : all) {
      const int rank = schedule.rank.value();
      const bool is_folded = rank < 2 * extra && rank % 2 == 0, folds = rank < 2 * extra && rank % 2 == 1;
      ASSERT_EQ(Sends(schedule), is_folded ? 1 : rounds + (folds ? 1 : 0));
      ASSERT_EQ(Receives(schedule), is_folded ? 1 : rounds + (folds ? 1 : 0));
      ASSERT_EQ(schedule.blocks, 1);
      ASSERT_LE(schedule.scratch_blocks, 2);
    }
    ASSERT_EQ(MessageDepth(all), rounds + (extra > 0 ? 2 : 0));
  }
}

TEST(RecursiveDoublingAllReduce, CombinesNeighboursFirst) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(
      const Proof power, Prove(BuildAll(Collective::kAllReduce, Algorithm::kRecursiveDoubling, 4), /*in_place=*/true));
  EXPECT_EQ(power.Expression(Rank(0), 0), "((r0+r1)+(r2+r3))");
  EXPECT_EQ(power.Expression(Rank(3), 0), "((r3+r2)+(r1+r0))");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(
      const Proof folded, Prove(BuildAll(Collective::kAllReduce, Algorithm::kRecursiveDoubling, 6), /*in_place=*/true));
  EXPECT_EQ(folded.Expression(Rank(1), 0), "(((r1+r0)+(r3+r2))+(r4+r5))");
  EXPECT_EQ(folded.Expression(Rank(0), 0), folded.Expression(Rank(1), 0));
}

TEST(BinomialBroadcast, ReachesEveryoneInLogarithmicallyManyRounds) {
  for (int size : kSizes) {
    const int root = size / 3;
    const std::vector<Schedule> all = BuildAll(Collective::kBroadcast, Algorithm::kBinomial, size, root);
    int sends = 0;
    for (const Schedule& schedule : all) {
      ASSERT_EQ(Receives(schedule), schedule.rank.value() == root ? 0 : 1);
      sends += Sends(schedule);
    }
    ASSERT_EQ(sends, size - 1);
    ASSERT_EQ(Sends(all[root]), CeilLog2(size));
    ASSERT_LE(MessageDepth(all), CeilLog2(size));
    ASSERT_EQ(Expression(all, size - 1, 0), "r" + std::to_string(root));
  }
}

TEST(BinomialReduce, HasTheRootReceiveLogarithmicallyManyTimes) {
  for (int size : kSizes) {
    const int root = size - 1;
    const std::vector<Schedule> all = BuildAll(Collective::kReduce, Algorithm::kBinomial, size, root);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(Sends(schedule), schedule.rank.value() == root ? 0 : 1);
      ASSERT_LE(schedule.scratch_blocks, schedule.rank.value() == root ? 0 : 1);
    }
    ASSERT_EQ(Receives(all[root]), CeilLog2(size));
    ASSERT_EQ(MessageDepth(all), CeilLog2(size));
  }
}

TEST(BinomialReduce, SumsInOrderFromTheRoot) {
  const std::vector<Schedule> all = BuildAll(Collective::kReduce, Algorithm::kBinomial, 5, /*root=*/1);
  EXPECT_EQ(Expression(all, 1, 0), "(((r1+r2)+(r3+r4))+r0)");
  EXPECT_EQ(Expression(all, 2, 0), "undefined");
}

TEST(RingReduce, IsAChainThatEndsAtTheRoot) {
  for (int size : kSizes) {
    const int root = size / 2;
    const std::vector<Schedule> all = BuildAll(Collective::kReduce, Algorithm::kRing, size, root);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(Sends(schedule), schedule.rank.value() == root ? 0 : 1);
      ASSERT_EQ(Receives(schedule), schedule.rank.value() == (root + 1) % size ? 0 : 1);
    }
    ASSERT_EQ(MessageDepth(all), size - 1);
  }
  const std::vector<Schedule> all = BuildAll(Collective::kReduce, Algorithm::kRing, 4, /*root=*/3);
  EXPECT_EQ(Expression(all, 3, 0), "(r3+(r2+(r1+r0)))");
}

TEST(RingAllGather, TakesOneTurnOfTheRing) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllGather, Algorithm::kRing, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(schedule.blocks, size);
      ASSERT_EQ(Sends(schedule), size - 1);
      ASSERT_EQ(Receives(schedule), size - 1);
    }
    ASSERT_EQ(MessageDepth(all), size - 1);
    ASSERT_EQ(Expression(all, 0, size - 1), "r" + std::to_string(size - 1));
  }
}

TEST(RingReduceScatter, TakesOneTurnOfTheRingAndTwoBlocksOfScratch) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kReduceScatter, Algorithm::kRing, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(schedule.blocks, size);
      ASSERT_EQ(schedule.scratch_blocks, std::min(2, size - 2));
      ASSERT_EQ(Sends(schedule), size - 1);
      ASSERT_EQ(Count(schedule, Step::Kind::kReceiveReduce), size - 1);
      ASSERT_EQ(schedule.steps.size(), 2 * (size - 1));
    }
    ASSERT_EQ(MessageDepth(all), size - 1);
  }
  const std::vector<Schedule> all = BuildAll(Collective::kReduceScatter, Algorithm::kRing, 3);
  EXPECT_EQ(Expression(all, 0, 0), "(r0+(r2+r1))");
  EXPECT_EQ(Expression(all, 0, 1), "undefined");
}

// The fewest rounds and the fewest bytes at once, for any size.
TEST(HalvingDoublingAllReduce, TakesTwoLogarithmsOfRoundsAndSendsAsLittleAsARing) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllReduce, Algorithm::kHalvingDoubling, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(schedule.blocks, size);
      ASSERT_EQ(schedule.scratch_blocks, 0);
      ASSERT_EQ(SentBlocks(schedule), 2 * (size - 1));
      ASSERT_EQ(ReceivedBlocks(schedule), 2 * (size - 1));
      // A message that passes the end of the vector is two.
      ASSERT_LE(Sends(schedule), 4 * CeilLog2(size));
      ASSERT_EQ(Count(schedule, Step::Kind::kCopy), size % 2);
    }
    ASSERT_LE(MessageDepth(all), 2 * CeilLog2(size));
  }
}

TEST(HalvingDoublingAllReduce, AddsTheFarthestFirst) {
  const std::vector<Schedule> all = BuildAll(Collective::kAllReduce, Algorithm::kHalvingDoubling, 4);
  EXPECT_EQ(Expression(all, 0, 0), "((r0+r2)+(r3+r1))");
  EXPECT_EQ(Expression(all, 3, 0), Expression(all, 0, 0)) << "computed once, and copied";
}

TEST(HalvingDoublingReduceScatter, TakesOneLogarithmOfRounds) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kReduceScatter, Algorithm::kHalvingDoubling, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(SentBlocks(schedule), size - 1);
      ASSERT_EQ(schedule.scratch_blocks, size == 2 ? 0 : (size + 1) / 2);
    }
    ASSERT_LE(MessageDepth(all), CeilLog2(size));
  }
}

TEST(OneShot, TakesOneRound) {
  for (Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    for (int size : kSizes) {
      const std::vector<Schedule> all = BuildAll(collective, Algorithm::kOneShot, size);
      for (const Schedule& schedule : all) {
        ASSERT_EQ(Sends(schedule), size - 1);
        ASSERT_EQ(SentBlocks(schedule), size - 1);
        ASSERT_LE(Count(schedule, Step::Kind::kReduceMany), 1);
      }
      ASSERT_EQ(MessageDepth(all), 1);
    }
  }
  const std::vector<Schedule> reduce = BuildAll(Collective::kReduce, Algorithm::kOneShot, 5, /*root=*/3);
  EXPECT_EQ(MessageDepth(reduce), 1);
  EXPECT_EQ(Receives(reduce[3]), 4);
  EXPECT_EQ(Expression(reduce, 3, 0), "(r0+r1+r2+r3+r4)");
  EXPECT_EQ(Expression(BuildAll(Collective::kReduceScatter, Algorithm::kOneShot, 3), 1, 1), "(r0+r1+r2)");
}

TEST(TwoShotAllReduce, TakesTwoRoundsOfOneBlockToEveryRank) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllReduce, Algorithm::kTwoShot, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(Sends(schedule), 2 * (size - 1));
      ASSERT_EQ(SentBlocks(schedule), 2 * (size - 1));
      // Two ranks have nothing to collect.
      ASSERT_EQ(schedule.scratch_blocks, size == 2 ? 0 : size - 1);
      ASSERT_EQ(Count(schedule, Step::Kind::kReduceMany), size == 2 ? 0 : 1);
    }
    ASSERT_EQ(MessageDepth(all), 2);
  }
  const std::vector<Schedule> four = BuildAll(Collective::kAllReduce, Algorithm::kTwoShot, 4);
  for (int block = 0; block < 4; ++block) EXPECT_EQ(Expression(four, 2, block), "(r0+r1+r2+r3)");
}

TEST(Chain, PassesTheVectorAlong) {
  for (int size : kSizes) {
    const int root = size / 2;
    const std::vector<Schedule> all_reduce = BuildAll(Collective::kAllReduce, Algorithm::kChain, size);
    const std::vector<Schedule> reduce = BuildAll(Collective::kReduce, Algorithm::kChain, size, root);
    const std::vector<Schedule> broadcast = BuildAll(Collective::kBroadcast, Algorithm::kChain, size, root);
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_LE(Sends(all_reduce[rank]), 2);
      ASSERT_LE(Sends(reduce[rank]), 1);
      ASSERT_LE(Sends(broadcast[rank]), 1);
      ASSERT_EQ(Receives(broadcast[rank]), rank == root ? 0 : 1);
    }
    ASSERT_EQ(MessageDepth(all_reduce), 2 * (size - 1));
    ASSERT_EQ(MessageDepth(reduce), root == size - 1 ? size - 1 : size);
    ASSERT_EQ(MessageDepth(broadcast), size - 1);
  }
}

TEST(ScatterAllGatherBroadcast, SendsEveryRankEachBlockOnce) {
  for (int size : kSizes) {
    const int root = size - 1;
    const std::vector<Schedule> all = BuildAll(Collective::kBroadcast, Algorithm::kScatterAllGather, size, root);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(schedule.blocks, size);
      ASSERT_EQ(ReceivedBlocks(schedule), schedule.rank.value() == root ? 0 : size);
      ASSERT_LE(SentBlocks(schedule), 2 * (size - 1));
    }
    ASSERT_LE(MessageDepth(all), CeilLog2(size) + size - 1);
  }
}

TEST(BruckAllGather, TakesOneLogarithmOfRounds) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllGather, Algorithm::kBruck, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(ReceivedBlocks(schedule), size - 1);
      ASSERT_LE(Sends(schedule), 2 * CeilLog2(size));
      ASSERT_EQ(schedule.scratch_blocks, 0) << "blocks go straight to their places";
    }
    ASSERT_LE(MessageDepth(all), CeilLog2(size));
  }
}

TEST(BruckAllToAll, TakesOneLogarithmOfMessages) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllToAll, Algorithm::kBruck, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(Sends(schedule), CeilLog2(size));
      for (const Step& step : schedule.steps) ASSERT_LE(step.source.blocks, (size + 1) / 2);
    }
    ASSERT_LE(MessageDepth(all), CeilLog2(size));
  }
}

TEST(PairwiseAllToAll, SendsEveryBlockOnceNearestRankFirst) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllToAll, Algorithm::kPairwise, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(Sends(schedule), size - 1);
      ASSERT_EQ(SentBlocks(schedule), size - 1);
      ASSERT_EQ(schedule.scratch_blocks, 0);
      ASSERT_EQ(schedule.steps[0].peer.value(), (schedule.rank.value() + 1) % size);
    }
    ASSERT_EQ(MessageDepth(all), 1);
  }
}

TEST(LinearGatherAndScatter, MoveEveryBlockOnce) {
  for (int size : kSizes) {
    const int root = size / 2;
    const std::vector<Schedule> gather = BuildAll(Collective::kGather, Algorithm::kLinear, size, root);
    const std::vector<Schedule> scatter = BuildAll(Collective::kScatter, Algorithm::kLinear, size, root);
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_EQ(SentBlocks(gather[rank]), rank == root ? 0 : 1);
      ASSERT_EQ(ReceivedBlocks(scatter[rank]), rank == root ? 0 : 1);
    }
    ASSERT_EQ(SentBlocks(scatter[root]), size - 1);
    ASSERT_EQ(MessageDepth(gather), 1);
    ASSERT_EQ(MessageDepth(scatter), 1);
  }
}

TEST(BinomialGatherAndScatter, HaveTheRootTalkToLogarithmicallyManyRanks) {
  for (int size : kSizes) {
    const int root = size / 2;
    const std::vector<Schedule> gather = BuildAll(Collective::kGather, Algorithm::kBinomial, size, root);
    const std::vector<Schedule> scatter = BuildAll(Collective::kScatter, Algorithm::kBinomial, size, root);
    ASSERT_EQ(ReceivedBlocks(gather[root]), size - 1);
    ASSERT_EQ(SentBlocks(scatter[root]), size - 1);
    // One message more where a subtree passes the end of the vector.
    ASSERT_LE(Receives(gather[root]), CeilLog2(size) + 1);
    ASSERT_LE(Sends(scatter[root]), CeilLog2(size) + 1);
    ASSERT_LE(MessageDepth(gather), CeilLog2(size));
    ASSERT_LE(MessageDepth(scatter), CeilLog2(size));
  }
}

// What one host sends to all others, in blocks.
int SentByHost(const std::vector<Schedule>& all, const std::vector<int32_t>& host_of_rank, int32_t host) {
  int blocks = 0;
  for (const Schedule& schedule : all) {
    if (host_of_rank[schedule.rank.value()] != host) continue;
    blocks += SentBlocks(schedule, [&](int peer) { return host_of_rank[peer] != host; });
  }
  return blocks;
}

TEST(TwoLevelAllReduce, MovesEachByteOverTheLinkOfTwoHostsOnce) {
  for (int ranks_per_host : {1, 2, 3, 8}) {
    const Topology topology = Consecutive(2 * ranks_per_host, ranks_per_host);
    const std::vector<Schedule> all =
        BuildAll(Collective::kAllReduce, Algorithm::kTwoLevel, 2 * ranks_per_host, 0, topology);
    // As many blocks as the vector has, each way.
    EXPECT_EQ(SentByHost(all, topology.host_of_rank, 0), all[0].blocks);
    EXPECT_EQ(SentByHost(all, topology.host_of_rank, 1), all[0].blocks);
    // All ranks of a host share that equally.
    for (const Schedule& schedule : all) {
      const int host = topology.host_of_rank[schedule.rank.value()];
      EXPECT_EQ(SentBlocks(schedule, [&](int peer) { return topology.host_of_rank[peer] != host; }),
                schedule.blocks / ranks_per_host);
    }
  }
}

TEST(TwoLevelAllReduce, SendsTheLeastBetweenManyHostsInLogarithmicallyManyRounds) {
  for (int hosts : {3, 4, 5, 8, 11}) {
    for (int ranks_per_host : {1, 2, 4}) {
      const Topology topology = RoundRobin(hosts * ranks_per_host, hosts);
      const std::vector<Schedule> all =
          BuildAll(Collective::kAllReduce, Algorithm::kTwoLevel, hosts * ranks_per_host, 0, topology);
      for (int host = 0; host < hosts; ++host) {
        ASSERT_EQ(SentByHost(all, topology.host_of_rank, host), 2 * all[0].blocks / hosts * (hosts - 1));
      }
      ASSERT_LE(MessageDepth(all), 2 * CeilLog2(hosts) + (ranks_per_host > 1 ? 2 : 0));
    }
  }
}

TEST(TwoLevelAllReduce, OfHostsOfDifferentSizesHasASliceForEachRankOfTheSmallest) {
  const Topology topology = {{0, 0, 0, 1, 1, 2, 2, 2, 2}};
  const std::vector<Schedule> all = BuildAll(Collective::kAllReduce, Algorithm::kTwoLevel, 9, 0, topology);
  EXPECT_EQ(all[0].blocks, 2 * 3);
  for (int host : {0, 1, 2}) EXPECT_EQ(SentByHost(all, topology.host_of_rank, host), 2 * 6 / 3 * 2);
  // The third rank of host 0 owns nothing: it hands its terms in, and gets the results.
  EXPECT_EQ(SentBlocks(all[2]), 6);
  EXPECT_EQ(ReceivedBlocks(all[2]), 6);
  // Host by host, in local rank order inside.
  EXPECT_EQ(Expression(all, 0, 0), "(((r0+r1+r2)+(r3+r4))+(r5+r6+r7+r8))");
}

TEST(TwoLevelBroadcast, ReachesEveryOtherHostOnce) {
  const Topology topology = Strewn(40, 6);
  const std::vector<Schedule> all = BuildAll(Collective::kBroadcast, Algorithm::kTwoLevel, 40, /*root=*/11, topology);
  int sent = 0;
  for (const Schedule& schedule : all) {
    const int host = topology.host_of_rank[schedule.rank.value()];
    sent += SentBlocks(schedule, [&](int peer) { return topology.host_of_rank[peer] != host; });
  }
  EXPECT_EQ(sent, 5);
  EXPECT_LE(MessageDepth(all), 3 + 5);
}

TEST(TwoLevelAllGather, BringsEachBlockToEveryOtherHostOnce) {
  const Topology topology = Strewn(40, 6);
  const std::vector<Schedule> all = BuildAll(Collective::kAllGather, Algorithm::kTwoLevel, 40, 0, topology);
  for (const Schedule& schedule : all) {
    const int host = topology.host_of_rank[schedule.rank.value()];
    EXPECT_EQ(SentBlocks(schedule, [&](int peer) { return topology.host_of_rank[peer] != host; }), 5);
  }
  EXPECT_EQ(MessageDepth(all), 2);
}

TEST(TwoLevelReduceScatter, SendsEachBlockToTheHostOfItsOwnerOnceFromEveryOther) {
  const Topology topology = Strewn(40, 6);
  const std::vector<Schedule> all = BuildAll(Collective::kReduceScatter, Algorithm::kTwoLevel, 40, 0, topology);
  for (int host = 0; host < 6; ++host) {
    const int own =
        static_cast<int>(std::count(topology.host_of_rank.begin(), topology.host_of_rank.end(), host * 1000));
    EXPECT_EQ(SentByHost(all, topology.host_of_rank, host * 1000), 40 - own);
  }
  EXPECT_EQ(MessageDepth(all), 2);
  // The hosts' terms in local rank order, host by host.
  EXPECT_EQ(Expression(BuildAll(Collective::kReduceScatter, Algorithm::kTwoLevel, 5, 0, {{0, 0, 0, 1, 1}}), 1, 1),
            "(r0+r1+r2+(r3+r4))");
}

TEST(DisseminationBarrier, TakesLogarithmicallyManyRoundsWithoutPayload) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kBarrier, Algorithm::kDissemination, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(schedule.blocks, 0);
      ASSERT_EQ(Sends(schedule), CeilLog2(size));
      ASSERT_EQ(Receives(schedule), CeilLog2(size));
      for (const Step& step : schedule.steps) ASSERT_EQ(step.source.blocks + step.target.blocks, 0);
    }
    ASSERT_EQ(MessageDepth(all), CeilLog2(size));
  }
}

// Of every receive of every rank: the round in which its message is sent. By rank, by step.
std::vector<std::vector<int32_t>> RoundsOfArrivals(const std::vector<Schedule>& all) {
  std::map<std::pair<int, int>, std::deque<int32_t>> sent;  // by source and target, in list order
  for (const Schedule& schedule : all) {
    for (const Step& step : schedule.steps) {
      if (step.kind != Step::Kind::kSend) continue;
      sent[{schedule.rank.value(), step.peer.value()}].push_back(step.round);
    }
  }
  std::vector<std::vector<int32_t>> rounds;
  for (const Schedule& schedule : all) {
    std::vector<int32_t>& of_rank = rounds.emplace_back(schedule.steps.size(), -1);
    for (size_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& step = schedule.steps[i];
      if (step.kind != Step::Kind::kReceive && step.kind != Step::Kind::kReceiveReduce) continue;
      std::deque<int32_t>& from_peer = sent.at({step.peer.value(), schedule.rank.value()});
      of_rank[i] = from_peer.front();
      from_peer.pop_front();
    }
  }
  return rounds;
}

// Those that may share a host's link (Step::round).
TEST(Rounds, AreLaterThanThoseOfAllMessagesThatAreWaitedFor) {
  for (const Collective collective : AllCollectives()) {
    for (const Algorithm algorithm : AlgorithmsFor(collective)) {
      if (UsesSharedMemory(algorithm)) continue;
      for (const int size : kSizes) {
        for (const int ranks_per_host : {size, 1, 2, 4, 5}) {
          // The others know no hosts.
          if (ranks_per_host != size && algorithm != Algorithm::kTwoLevel) break;
          for (const int root : {0, size / 2, size - 1}) {
            const std::vector<Schedule> all =
                BuildAll(collective, algorithm, size, root, Consecutive(size, ranks_per_host));
            const std::vector<std::vector<int32_t>> arrivals = RoundsOfArrivals(all);
            for (int rank = 0; rank < size; ++rank) {
              std::vector<int32_t> latest(arrivals[rank]);  // of what each step waits for, its own arrival among them
              for (size_t i = 0; i < latest.size(); ++i) {
                const Step& step = all[rank].steps[i];
                for (const int32_t earlier : step.after) latest[i] = std::max(latest[i], latest[earlier]);
                if (step.kind != Step::Kind::kSend) continue;
                ASSERT_GT(step.round, latest[i]) << "#" << i << " of " << ToString(all[rank]);
              }
            }
            if (!HasRoot(collective)) break;
          }
        }
      }
    }
  }
}

std::set<int32_t> RoundsOf(const Schedule& schedule) {
  std::set<int32_t> rounds;
  for (const Step& step : schedule.steps) {
    if (step.kind == Step::Kind::kSend) rounds.insert(step.round);
  }
  return rounds;
}

// A rank's part depends on its distance from the root, and so do its rounds.
TEST(Rounds, AreThoseOfTheRankAsFarFromAnotherRoot) {
  for (const Collective collective : AllCollectives()) {
    if (!HasRoot(collective)) continue;
    for (const Algorithm algorithm : AlgorithmsFor(collective)) {
      // Chains that fold begin at rank 0, whatever the root; two levels have hosts, which do not turn with the root.
      const bool turns = !(collective == Collective::kReduce && algorithm == Algorithm::kChain);
      if (UsesSharedMemory(algorithm) || !turns) continue;
      for (const int size : kSizes) {
        const std::vector<Schedule> from_first = BuildAll(collective, algorithm, size);
        const int root = size / 2;
        const std::vector<Schedule> from_other = BuildAll(collective, algorithm, size, root);
        for (int rank = 0; rank < size; ++rank) {
          ASSERT_EQ(RoundsOf(from_first[rank]), RoundsOf(from_other[(rank + root) % size]))
              << Name(collective) << " by " << Name(algorithm) << ", rank " << rank << " of " << size;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
