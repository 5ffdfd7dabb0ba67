// What every communicator promises (comm/communicator.h), as a test suite over a factory.
//
//   INSTANTIATE_TEST_SUITE_P(Loopback, CommunicatorConformance, ::testing::Values(CommunicatorFactory{"seed1", &Create}),
//                            CommunicatorFactoryName);
//
// Where all combinations would take too long, a test covers the product of what matters most to it, and varies the rest on the way.
//
// The suite is linked in by //tests:communicator_conformance. Its tests are in communicator_results_conformance.cc (what a call gives),
// communicator_calls_conformance.cc (groups, prepared collectives, messages, parts) and communicator_in_flight_conformance.cc.

#ifndef TESTS_COMMUNICATOR_CONFORMANCE_H_
#define TESTS_COMMUNICATOR_CONFORMANCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
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

// The callbacks of one work: how often they came, and with what.
class Completions {
 public:
  CompletionCallback Expect() {
    MutexLock lock(&mu_);
    return [this, number = expected_++](const absl::Status& status) {
      MutexLock lock(&mu_);
      statuses_.push_back(status);
      numbers_.push_back(number);
      threads_.push_back(std::this_thread::get_id());
      changed_.SignalAll();
    };
  }

  // Waits until each has come. What they got, in their order.
  std::vector<absl::Status> Await() {
    MutexLock lock(&mu_);
    while (statuses_.size() < expected_ && changed_.WaitUntil(&mu_, CommTestDeadline())) {
    }
    std::vector<size_t> numbers = numbers_;
    std::sort(numbers.begin(), numbers.end());
    for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], i) << "called twice, or not at all";
    EXPECT_EQ(numbers.size(), expected_);
    return statuses_;
  }
  std::vector<std::thread::id> threads() {
    MutexLock lock(&mu_);
    return threads_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t expected_ = 0;
  std::vector<absl::Status> statuses_;
  std::vector<size_t> numbers_;
  std::vector<std::thread::id> threads_;
};

}  // namespace lockstep

#endif  // TESTS_COMMUNICATOR_CONFORMANCE_H_
