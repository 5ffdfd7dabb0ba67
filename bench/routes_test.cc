#include "bench/routes.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

TEST(RoutesIn, NamesEachRouteToOthersOnce) {
  const std::string description =
      "2 hosts\n"
      "rank 0 (here) over itself\n"
      "rank 1 (host a) over shm\n"
      "rank 2 (host a) over shm\n"
      "rank 10 (host b) over tcp 10.0.0.1:4411\n";
  EXPECT_EQ(RoutesIn(description, Rank(0)), "shm, tcp 10.0.0.1:4411");
}

TEST(RoutesIn, TakesARankForItselfByItsWholeNumber) {
  EXPECT_EQ(RoutesIn("rank 1 over shm\nrank 10 over tcp\n", Rank(1)), "tcp");
  EXPECT_EQ(RoutesIn("one rank: collectives are copies", Rank(0)), "none");
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
