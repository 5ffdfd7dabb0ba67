// Results: every dtype, op, count, root and place comes out right, with the same bits on all ranks. What cannot be is refused and breaks
// nothing.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/communicator_conformance.h"

namespace lockstep {
namespace {

TEST_P(CommunicatorConformance, TellsWhoItIs) {
  ForSizes({1, 2, 3, 5}, [&] {
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_EQ(communicator(rank).rank(), Rank(rank));
      EXPECT_EQ(communicator(rank).size(), size());
      EXPECT_THAT(communicator(rank).status(), IsOk());
    }
  });
}

// In a world of eight every fifth of the dtypes and ops, which is where the time would go.
bool IsLeftOut(int size, uint32_t number) { return size == 8 && number % 5 != 0; }

TEST_P(CommunicatorConformance, EveryDTypeAndOp) {
  static constexpr size_t kCounts[] = {5, 300, 1, 130, 2, 67};
  ForSizes({1, 2, 3, 5, 8}, [&] {
    std::vector<CollectiveCase> cases;
    uint32_t number = 0;
    for (const Collective collective : kAllCollectives) {
      if (collective == Collective::kBarrier) continue;
      for (const Algorithm algorithm : AlgorithmsHere(collective)) {
        for (const DType dtype : kAllDTypes) {
          for (const ReduceOp op : kAllReduceOps) {
            if (!HasReduction(collective) && op != ReduceOp::kSum) continue;
            if (HasReduction(collective) && !Supported(collective, dtype, op)) continue;
            const uint32_t k = number++;
            if (IsLeftOut(size(), k)) continue;
            CollectiveCase c;
            c.collective = collective;
            c.algorithm = algorithm;
            c.dtype = dtype;
            c.op = op;
            c.root = static_cast<int>(k % size());
            c.count = kCounts[k % std::size(kCounts)];
            c.in_place = k / std::size(kCounts) % 2 == 1;
            c.seed = k;
            if (Fit(&c)) cases.push_back(c);
          }
        }
      }
    }
    RunCases(cases);
  });
}

TEST_P(CommunicatorConformance, EveryCountRootAndPlace) {
  ForSizes({1, 2, 3, 4, 5, 8}, [&] {
    std::vector<CollectiveCase> cases;
    for (const Collective collective : kAllCollectives) {
      for (const Algorithm algorithm : AlgorithmsHere(collective)) {
        for (const size_t count : {0, 1, 2, 5, 1000}) {
          for (const bool in_place : BothPlaces(collective)) {
            for (int root = 0; root < (HasRoot(collective) ? size() : 1); ++root) {
              CollectiveCase c;
              c.collective = collective;
              c.algorithm = algorithm;
              c.dtype = cases.size() % 2 == 0 ? DType::kF32 : DType::kU8;
              c.root = root;
              c.count = count;
              c.in_place = in_place;
              c.background = cases.size() % 7 == 0;
              c.seed = static_cast<uint32_t>(cases.size());
              if (CollectiveCase equal = c; Fit(&equal)) cases.push_back(equal);
              if (!IsByRank(collective) || NeedsEqualBlocks(collective, algorithm)) continue;
              c.unequal = true;
              c.in_place = in_place && collective != Collective::kAllToAll;  // its output is of another length
              if (Fit(&c)) cases.push_back(c);
            }
          }
        }
      }
    }
    RunCases(cases);
  });
}

TEST_P(CommunicatorConformance, VectorsOfManyChunks) {
  ForSizes({1, 2, 5}, [&] {
    for (const Collective collective : kAllCollectives) {
      std::vector<CollectiveCase> cases;
      for (const Algorithm algorithm : AlgorithmsHere(collective)) {
        for (const bool in_place : BothPlaces(collective)) {
          CollectiveCase c;
          c.collective = collective;
          c.algorithm = algorithm;
          c.root = size() - 1;
          c.count = 300'001;
          if (IsByRank(collective)) c.count /= size();
          c.unequal = IsByRank(collective) && !in_place && !NeedsEqualBlocks(collective, algorithm);
          c.in_place = in_place;
          c.background = in_place;
          if (Fit(&c)) cases.push_back(c);
        }
      }
      RunCases(cases);
    }
  });
}

// Any bits at all, so that sums round, overflow and meet NaN.
TEST_P(CommunicatorConformance, EveryRankGetsTheSameBits) {
  ForSizes({2, 3, 4, 5, 8}, [&] {
    std::deque<CaseReference> references;
    uint32_t number = 0;
    for (const Algorithm algorithm : AlgorithmsHere(Collective::kAllReduce)) {
      for (const DType dtype : kAllDTypes) {
        for (const ReduceOp op : kAllReduceOps) {
          if (!Supported(Collective::kAllReduce, dtype, op) || IsLeftOut(size(), number++)) continue;
          CollectiveCase c;
          c.algorithm = algorithm;
          c.dtype = dtype;
          c.op = op;
          c.count = 777;
          c.random_bits = true;
          if (Fit(&c)) references.emplace_back(c, size());
        }
      }
    }
    std::vector<std::vector<std::vector<char>>> outputs(size());
    OnRanks([&](Communicator& self) {
      for (const CaseReference& reference : references) {
        CaseRun run(reference, self.rank(), MemoryOf(self.rank()));
        ASSERT_THAT(self.Run(run.request()), IsOk()) << ToString(reference.collective());
        outputs[self.rank().value()].push_back(run.output());
      }
    });
    for (int rank = 0; rank < size(); ++rank) {
      ASSERT_EQ(outputs[rank].size(), references.size());
      for (size_t i = 0; i < references.size(); ++i) {
        EXPECT_EQ(outputs[rank][i], outputs[0][i]) << "rank " << rank << ": " << ToString(references[i].collective());
      }
    }
  });
}

// The reference shares no rule with these: written out by hand.
TEST_P(CommunicatorConformance, AnIntegerAverageIsRoundedTowardZero) {
  OnRanksOfSizes({1, 2, 3, 4}, [&](Communicator& self) {
    // Sums: -1, 1, -(size + 1), size + 1, -2 size + 1.
    const bool first = self.rank() == Rank(0);
    const int n = size();
    const std::vector<int8_t> input = {static_cast<int8_t>(first ? -1 : 0), static_cast<int8_t>(first ? 1 : 0),
                                       static_cast<int8_t>(first ? -2 : -1), static_cast<int8_t>(first ? 2 : 1),
                                       static_cast<int8_t>(first ? -1 : -2)};
    std::vector<int8_t> output(input.size());
    CollectiveRequest request =
        MakeRequest(Collective::kAllReduce, DType::kI8, input.size(), input.data(), output.data());
    request.op = ReduceOp::kAvg;
    ASSERT_THAT(self.Run(request), IsOk());
    const bool alone = n == 1;
    EXPECT_THAT(output, ::testing::ElementsAre(alone ? -1 : 0, alone ? 1 : 0, alone ? -2 : -1, alone ? 2 : 1, -1));
  });
}

TEST_P(CommunicatorConformance, UndefinedPairsAreRefusedAndBreakNothing) {
  OnRanksOfSizes({1, 3}, [&](Communicator& self) {
    std::vector<char> input(64 * 16), output(64 * 16);
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
      for (const DType dtype : kAllDTypes) {
        for (const ReduceOp op : kAllReduceOps) {
          if (IsDefined(dtype, op)) continue;
          EXPECT_THAT(self.Supports(collective, dtype, op), StatusIs(Code::kInvalidArgument));
          for (const double factor : {1.0, 2.0}) {
            CollectiveRequest request = MakeRequest(collective, dtype, size(), input.data(), output.data());
            request.op = op;
            request.factor = factor;
            EXPECT_THAT(self.Run(request), StatusIs(Code::kInvalidArgument)) << Name(dtype) << " " << Name(op);
            EXPECT_THAT(self.Start(request).status(), StatusIs(Code::kInvalidArgument));
          }
        }
      }
    }
  });
}

TEST_P(CommunicatorConformance, WrongRootsAndAlgorithmsAreRefusedAndBreakNothing) {
  OnRanksOfSizes({1, 2}, [&](Communicator& self) {
    float value = 1;
    CollectiveRequest request = MakeRequest(Collective::kBroadcast, DType::kF32, 1, &value, &value);
    request.root = Rank(size());
    EXPECT_THAT(self.Run(request), StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("root")));
    request.root = Rank(-1);
    EXPECT_THAT(self.Run(request), StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("root")));
    request.root = Rank(0);
    request.algorithm = Algorithm::kDissemination;
    EXPECT_THAT(self.Run(request), StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("dissemination")));
  });
}

}  // namespace
}  // namespace lockstep
