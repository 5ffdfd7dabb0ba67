// What every communicator promises (comm/communicator.h), as a test suite over a factory.
//
//   INSTANTIATE_TEST_SUITE_P(Loopback, CommunicatorConformance, ::testing::Values(CommunicatorFactory{"seed1", &Create}),
//                            CommunicatorFactoryName);
//
// Where all combinations would take too long, a test covers the product of what matters most to it, and varies the rest on the way.
//
// Here: results. Every dtype, op, count, root and place comes out right, with the same bits on all ranks. What cannot be is refused and
// breaks nothing.

#ifndef TESTS_COMMUNICATOR_CONFORMANCE_H_
#define TESTS_COMMUNICATOR_CONFORMANCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/ranks.h"

namespace lockstep {

class CommunicatorConformance : public ::testing::TestWithParam<CommunicatorFactory> {
 protected:
  using Code = absl::StatusCode;

  // The algorithms that implement some calls here, and the selector's choice where that may be one in shared memory. With symmetric
  // memory only those to which it makes a difference.
  Algorithms AlgorithmsHere(Collective collective) const {
    const bool in_shared_memory = GetParam().shares_memory && size() > 1;
    Algorithms algorithms;
    if (in_shared_memory) algorithms.push_back(Algorithm::kAuto);
    for (const Algorithm algorithm : AlgorithmsFor(collective)) {
      const bool direct = Has(algorithm, algorithms::kDirect);
      if (symmetric() ? direct : !UsesSharedMemory(algorithm) || (in_shared_memory && !direct))
        algorithms.push_back(algorithm);
    }
    return algorithms;
  }

  // Changes the case into one that its algorithm implements. False if there is none.
  bool Fit(CollectiveCase* c) const {
    if (Has(c->algorithm, algorithms::kInline)) {
      if (c->unequal) return false;
      c->count = std::min<size_t>(c->count, kShareBytesMax / SizeOf(c->dtype));
    }
    if (!Has(c->algorithm, algorithms::kDirect) || c->collective == Collective::kBarrier) return true;
    // A premultiplied input goes to memory of the rank's own, unless it fits into the output.
    const bool multiplies = HasReduction(c->collective) && c->op == ReduceOp::kPremulSum;
    if (c->count == 0 || (multiplies && c->collective != Collective::kAllReduce)) return false;
    if (c->collective == Collective::kAllToAll && (c->unequal || c->in_place)) return false;
    return !c->unequal || !HasRoot(c->collective);  // of empty blocks a rank cannot tell where they are
  }

  // Runs `body` with a world of each of these sizes that the factory makes.
  void ForSizes(const std::vector<int>& sizes, const std::function<void()>& body) {
    int worlds = 0;
    for (const int size : sizes) {
      absl::StatusOr<TestCommunicators> created = GetParam().create(size);
      if (absl::IsUnavailable(created.status())) continue;
      ASSERT_THAT(created.status(), IsOk()) << size << " ranks";
      ++worlds;
      world_ = *std::move(created);
      SCOPED_TRACE(absl::StrCat(size, " ranks"));
      body();
      world_ = {};
    }
    if (worlds == 0) GTEST_SKIP() << "no world of these sizes";
  }

  int size() const { return static_cast<int>(world_.ranks.size()); }
  bool symmetric() const { return !world_.symmetric.empty(); }
  static CaseMemory OrdinaryMemoryOf(Rank rank) {
    CaseMemory memory = GetParam().memory;
    if (GetParam().device_of != nullptr) memory.device = GetParam().device_of(rank);
    return memory;
  }
  CaseMemory MemoryOf(Rank rank) {
    CaseMemory memory = OrdinaryMemoryOf(rank);
    if (symmetric()) memory.arena = &world_.symmetric[rank.value()];
    return memory;
  }
  Communicator& communicator(int rank) { return *world_.ranks[rank]; }

  // `body` on a thread for each rank.
  void OnRanks(const std::function<void(Communicator&)>& body) {
    ::lockstep::testing::RunRanks(size(), [&](int rank) { body(communicator(rank)); });
  }

  bool Supported(Collective collective, DType dtype, ReduceOp op) {
    return IsDefined(dtype, op) && communicator(0).Supports(collective, dtype, op).ok();
  }

  // Runs the cases one after the other on all ranks and checks every output. Where the reference has a tolerance, all ranks must have the
  // same bits.
  void RunCases(const std::vector<CollectiveCase>& cases) {
    std::deque<CaseReference> references;
    for (const CollectiveCase& c : cases) {
      if (!references.empty() && CaseReference::IsVariant(references.back().collective(), c)) {
        references.emplace_back(CaseReference(references.back()), c);
      } else {
        references.emplace_back(c, size());
      }
    }
    std::vector<std::vector<std::vector<char>>> outputs(size());  // by rank, of all-reduces within a tolerance
    OnRanks([&](Communicator& self) {
      for (const CaseReference& reference : references) {
        CaseRun run(reference, self.rank(), MemoryOf(self.rank()));
        const absl::Status status = self.Run(run.request());
        ASSERT_THAT(status, IsOk()) << ToString(reference.collective());
        EXPECT_EQ(run.Check(), "") << "rank " << self.rank() << ": " << ToString(reference.collective());
        const bool compared = reference.collective().collective == Collective::kAllReduce && reference.tolerance() != 0;
        outputs[self.rank().value()].push_back(compared ? run.output() : std::vector<char>());
      }
    });
    for (size_t i = 0; i < references.size(); ++i) {
      for (int rank = 1; rank < size(); ++rank) {
        if (std::max(outputs[rank].size(), outputs[0].size()) <= i) continue;  // of a call that failed
        EXPECT_EQ(outputs[rank][i], outputs[0][i]) << "rank " << rank << ": " << ToString(references[i].collective());
      }
    }
  }

  // Runs `body` on every rank of a world of each of these sizes that the factory makes, which must stay usable.
  void OnRanksOfSizes(const std::vector<int>& sizes, const std::function<void(Communicator&)>& body) {
    ForSizes(sizes, [&] {
      OnRanks(body);
      ExpectUsable();
    });
  }
  // The same with a case's reference.
  void OnRanksOfSizes(const std::vector<int>& sizes, const CollectiveCase& c,
                      const std::function<void(Communicator&, const CaseReference&)>& body) {
    ForSizes(sizes, [&] {
      const CaseReference reference(c, size());
      OnRanks([&](Communicator& self) { body(self, reference); });
      ExpectUsable();
    });
  }

  // A float all-reduce that must succeed: the world is still good.
  void ExpectUsable() { RunCases({OfCount(11)}); }

  static std::vector<bool> BothPlaces(Collective collective) {
    return collective == Collective::kBarrier ? std::vector<bool>{false} : std::vector<bool>{false, true};
  }

  // An all-reduce of so many floats.
  static CollectiveCase OfCount(size_t count, uint32_t seed = 1) {
    CollectiveCase c;
    c.count = count;
    c.seed = seed;
    return c;
  }
  // For a test of what is in flight: one that takes a while, since it has more than a chunk.
  static CollectiveCase Large(uint32_t seed) { return OfCount(140'000, seed); }

  TestCommunicators world_;
};

TEST_P(CommunicatorConformance, TellsWhoItIs) {
  ForSizes({1, 2, 3, 5}, [&] {
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_EQ(communicator(rank).rank(), Rank(rank));
      EXPECT_EQ(communicator(rank).size(), size());
      EXPECT_THAT(communicator(rank).status(), IsOk());
    }
  });
}

TEST_P(CommunicatorConformance, EveryDTypeAndOp) {
  static constexpr size_t kCounts[] = {5, 300, 1, 130, 2, 67};
  ForSizes({1, 2, 3, 5, 8}, [&] {
    std::vector<CollectiveCase> cases;
    for (const Collective collective : kAllCollectives) {
      if (collective == Collective::kBarrier) continue;
      for (const Algorithm algorithm : AlgorithmsHere(collective)) {
        for (const DType dtype : kAllDTypes) {
          for (const ReduceOp op : kAllReduceOps) {
            if (!HasReduction(collective) && op != ReduceOp::kSum) continue;
            if (HasReduction(collective) && !Supported(collective, dtype, op)) continue;
            const uint32_t k = static_cast<uint32_t>(cases.size());
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
    for (const Algorithm algorithm : AlgorithmsHere(Collective::kAllReduce)) {
      for (const DType dtype : kAllDTypes) {
        for (const ReduceOp op : kAllReduceOps) {
          if (!Supported(Collective::kAllReduce, dtype, op)) continue;
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

}  // namespace lockstep

#endif  // TESTS_COMMUNICATOR_CONFORMANCE_H_
