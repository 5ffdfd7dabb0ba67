// The proof of all schedules that this library makes: every collective, every algorithm, in place and out of place, for
// every size up to 64 and for some as large as comm/schedule/algorithms.inc says. What the verifier refuses is in verifier_test.cc.
//
// A test of its own for each row, so that --test_filter can name one, or leave out the large worlds: docs/contributing.md.

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/verify/schedule_testing.h"
#include "comm/schedule/verify/verifier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int kSmall = 17, kSizeMax = 64;

std::string Describe(Collective collective, Algorithm algorithm, int size, int root, bool in_place) {
  return Name(collective) + " by " + Name(algorithm) + ", " + std::to_string(size) + " ranks, root " +
         std::to_string(root) + (in_place ? ", in place" : "");
}

// Both ways; what is said about the order of the fold must be true of every block of every rank.
void ExpectProved(Collective collective, Algorithm algorithm, int size, int root = 0, const Topology& topology = {}) {
  const std::vector<Schedule> all = BuildAll(collective, algorithm, size, root, topology);
  for (bool in_place : {false, true}) {
    SCOPED_TRACE(Describe(collective, algorithm, size, root, in_place));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, in_place));
    if (ReducesInRankOrder(collective, algorithm)) {
      ASSERT_TRUE(proof.reduces_in_rank_order());
    }
    if (RoundsOnce(collective, algorithm)) {
      ASSERT_TRUE(proof.rounds_once());
    }
  }
}

// Every root up to 17 ranks; above, roots at the ends, in the middle and next to powers of two, since a schedule depends
// on its root through the distance from it, and through the end of the vector that lies between.
std::vector<int> Roots(Collective collective, int size) {
  if (!HasRoot(collective)) return {0};
  std::vector<int> roots = {0, 1, size / 2, 31, 32, size - 1};
  if (size <= 17) {
    roots.clear();
    for (int root = 0; root < size; ++root) roots.push_back(root);
  }
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  while (roots.back() >= size) roots.pop_back();
  return roots;
}

// A row of the table.
struct Shipped {
  Collective collective;
  Algorithm algorithm;
  int proved;  // ranks

  bool by_hosts() const { return Has(algorithm, algorithms::kByHosts); }
};
constexpr Shipped kShipped[] = {
#define LOCKSTEP_SCHEDULE(collective, id, properties, proved) {Collective::k##collective, Algorithm::k##id, proved},
#include "comm/schedule/algorithms.inc"
};

std::string TestName(const ::testing::TestParamInfo<Shipped>& info) {
  return Name(info.param.collective) + "_by_" + Name(info.param.algorithm);
}

class ShippedSchedules : public ::testing::TestWithParam<Shipped> {
 protected:
  static void ExpectProvedForSizes(int first, int last) {
    const Shipped& shipped = GetParam();
    for (int size = first; size <= last; ++size) {
      for (int root : Roots(shipped.collective, size)) ExpectProved(shipped.collective, shipped.algorithm, size, root);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(ShippedSchedules, AreProvedInSmallWorlds) { ExpectProvedForSizes(1, kSmall); }

TEST_P(ShippedSchedules, AreProvedForEverySizeUpTo64) { ExpectProvedForSizes(kSmall + 1, kSizeMax); }

// Both ways up to 255 ranks; beyond, in place, where more can go wrong. Where hosts matter they have eight ranks, the last one fewer.
TEST_P(ShippedSchedules, AreProvedInLargeWorlds) {
  const Shipped& shipped = GetParam();
  const auto hosts = [&](int size) { return shipped.by_hosts() ? Consecutive(size, 8) : Topology(); };
  for (const int size : {100, 127, 128, 255}) {
    ExpectProved(shipped.collective, shipped.algorithm, size, /*root=*/0, hosts(size));
  }
  for (const int size : {512, 1000, 2048, 4096}) {
    if (size > shipped.proved) break;
    SCOPED_TRACE(Describe(shipped.collective, shipped.algorithm, size, /*root=*/0, /*in_place=*/true));
    LOCKSTEP_EXPECT_OK(
        Verify(BuildAll(shipped.collective, shipped.algorithm, size, /*root=*/0, hosts(size)), /*in_place=*/true));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShippedSchedules, ::testing::ValuesIn(kShipped), TestName);

std::vector<Shipped> ShippedByHosts() {
  std::vector<Shipped> found;
  std::copy_if(std::begin(kShipped), std::end(kShipped), std::back_inserter(found),
               [](const Shipped& shipped) { return shipped.by_hosts(); });
  return found;
}

class SchedulesByHosts : public ::testing::TestWithParam<Shipped> {
 protected:
  static void ExpectProvedForSizes(int first, int last);
};

// As many ranks on each host, in order or dealt out, for every number of hosts that allows it; and hosts of all sizes, their ranks
// strewn over the world.
void SchedulesByHosts::ExpectProvedForSizes(int first, int last) {
  for (int size = first; size <= last; ++size) {
    std::vector<Topology> layouts;
    for (int hosts = 1; hosts <= size; ++hosts) {
      if (size % hosts != 0) continue;
      layouts.push_back(Consecutive(size, size / hosts));
      layouts.push_back(RoundRobin(size, hosts));
    }
    for (int hosts = 2; hosts < size; hosts += 1 + hosts / 2) layouts.push_back(Strewn(size, hosts));
    for (const Topology& layout : layouts) {
      for (const int root : Roots(GetParam().collective, size)) {
        ExpectProved(GetParam().collective, GetParam().algorithm, size, root, layout);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(SchedulesByHosts, AreProvedOnEveryLayoutOfHostsInSmallWorlds) { ExpectProvedForSizes(1, kSmall); }

TEST_P(SchedulesByHosts, AreProvedOnEveryLayoutOfHosts) { ExpectProvedForSizes(kSmall + 1, kSizeMax); }

TEST_P(SchedulesByHosts, AreProvedForManyHosts) {
  ExpectProved(GetParam().collective, GetParam().algorithm, 250, 7, Strewn(250, 37));
}

INSTANTIATE_TEST_SUITE_P(All, SchedulesByHosts, ::testing::ValuesIn(ShippedByHosts()), TestName);

// The other side of ExpectProved: what is not said is not true either, at some size.
TEST(ReducesInRankOrder, IsSaidOfAllAlgorithmsOfWhichItIsTrue) {
  for (Collective collective : AllCollectives()) {
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      bool reduces_in_rank_order = true, rounds_once = true;
      for (int size : {3, 4, 5, 6, 9}) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(
            const Proof proof, Prove(BuildAll(collective, algorithm, size, /*root=*/1, Consecutive(size, 2)), true));
        reduces_in_rank_order = reduces_in_rank_order && proof.reduces_in_rank_order();
        rounds_once = rounds_once && proof.rounds_once();
      }
      EXPECT_EQ(ReducesInRankOrder(collective, algorithm), reduces_in_rank_order)
          << Name(collective) << " by " << Name(algorithm);
      EXPECT_EQ(RoundsOnce(collective, algorithm), rounds_once) << Name(collective) << " by " << Name(algorithm);
    }
  }
}

TEST(ReducesInRankOrder, HasAnAlgorithmForEveryReduction) {
  for (Collective collective : AllCollectives()) {
    const Algorithms known = AlgorithmsFor(collective);
    const bool some = std::any_of(known.begin(), known.end(), [&](Algorithm algorithm) {
      return ReducesInRankOrder(collective, algorithm) && RoundsOnce(collective, algorithm);
    });
    EXPECT_EQ(some, HasReduction(collective)) << Name(collective);
  }
}

}  // namespace
}  // namespace lockstep
