#include "comm/topology/world_shape.h"

#include <cstdint>
#include <string>
#include <vector>

#include "base/rank.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/control/control_types.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

// One member for each letter, which names its host.
std::vector<Member> MembersOn(const std::string& hosts) {
  std::vector<Member> members;
  for (const char host : hosts) {
    Member member;
    member.rank = Rank(static_cast<int>(members.size()));
    member.host_id = std::string(1, host);
    members.push_back(member);
  }
  return members;
}

TEST(WorldShape, HostsAreNumberedByTheirLowestRanks) {
  EXPECT_THAT(ShapeOf(MembersOn("zazb"), kSharedMemory).topology.host_of_rank, ElementsAre(0, 1, 0, 2));
}

TEST(WorldShape, OneHostHasOnlyLocalLinks) {
  const WorldShape shape = ShapeOf(MembersOn("aaa"), kSharedMemory);
  EXPECT_EQ(shape.network.ranks_per_host, 3);
  EXPECT_EQ(shape.network.Between(0, 2).latency_ns, kSharedMemory.latency_ns);
  EXPECT_EQ(ShapeOf(MembersOn("aaa"), kTcpOnOneHost).network.Between(0, 2).latency_ns, kTcpOnOneHost.latency_ns);
}

TEST(WorldShape, RegularHostsAreSeenAsSuch) {
  EXPECT_EQ(ShapeOf(MembersOn("aabb"), kSharedMemory).network.ranks_per_host, 2);
  EXPECT_EQ(ShapeOf(MembersOn("aabbc"), kSharedMemory).network.ranks_per_host, 2);
  EXPECT_EQ(ShapeOf(MembersOn("abcd"), kSharedMemory).network.ranks_per_host, 1);
  const WorldShape shape = ShapeOf(MembersOn("aabb"), kSharedMemory);
  EXPECT_EQ(shape.network.Between(1, 2).latency_ns, kTcpBetweenHosts.latency_ns);
}

TEST(WorldShape, RanksThatAreDealtOutAreSeenAsSuch) {
  for (const char* hosts : {"abab", "abba"}) {
    const WorldShape shape = ShapeOf(MembersOn(hosts), kSharedMemory);
    EXPECT_EQ(shape.network.ranks_per_host, 2) << hosts;
    EXPECT_TRUE(shape.network.interleaved) << hosts;
    EXPECT_FALSE(PartOf(shape, {Rank(0), Rank(1)}).network.interleaved) << hosts;
  }
  for (const char* hosts : {"aabb", "aabbc", "abcd", "aaa"}) {
    EXPECT_FALSE(ShapeOf(MembersOn(hosts), kSharedMemory).network.interleaved) << hosts;
  }
}

TEST(WorldShape, IrregularHostsCountAsOneRankEach) {
  for (const char* hosts : {"ababa", "abb", "aabbb", "aaba"}) {
    const Network network = ShapeOf(MembersOn(hosts), kSharedMemory).network;
    EXPECT_EQ(network.ranks_per_host, 1) << hosts;
    EXPECT_FALSE(network.interleaved) << hosts;
  }
}

// Ranks that may run on two cores, whichever these are.
TEST(WorldShape, IsCrowdedWhereRanksOutnumberCores) {
  std::vector<Member> members = MembersOn("aaabb");
  EXPECT_EQ(RanksPerCore(members, "a"), 0);
  EXPECT_EQ(ShapeOf(members, kSharedMemory).network.local.message_ns, kSharedMemory.message_ns);
  for (Member& member : members) member.cores = {member.host_id == "a" ? uint64_t{0b101} : uint64_t{0b11}};
  EXPECT_EQ(RanksPerCore(members, "a"), 1.5);
  EXPECT_EQ(RanksPerCore(members, "b"), 1);
  EXPECT_EQ(RanksPerCore(members, "c"), 0);
  const Network network = ShapeOf(members, kSharedMemory).network;
  EXPECT_EQ(network.local.message_ns, 1.5 * kSharedMemory.message_ns);
  EXPECT_EQ(network.remote.message_ns, 1.5 * kTcpBetweenHosts.message_ns);
  EXPECT_EQ(network.local.latency_ns, kSharedMemory.latency_ns);
  // Each may be pinned to a core of its own.
  members.resize(3);
  for (Member& member : members) member.cores = {uint64_t{1} << member.rank.value()};
  EXPECT_EQ(RanksPerCore(members, "a"), 1);
  EXPECT_EQ(ShapeOf(members, kSharedMemory).network.local.message_ns, kSharedMemory.message_ns);
}

TEST(WorldShape, APartHasTheHostsOfItsRanks) {
  const WorldShape world = ShapeOf(MembersOn("aabbcc"), kSharedMemory);
  const WorldShape part = PartOf(world, {Rank(4), Rank(5), Rank(0), Rank(1)});
  EXPECT_THAT(part.topology.host_of_rank, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(part.network.ranks_per_host, 2);
  EXPECT_EQ(part.network.local.latency_ns, kSharedMemory.latency_ns);
  EXPECT_EQ(PartOf(world, {Rank(0), Rank(2), Rank(4)}).network.ranks_per_host, 1);
  EXPECT_THAT(PartOf(WorldShape(), {Rank(3), Rank(1)}).topology.host_of_rank, ElementsAre());
}

}  // namespace
}  // namespace lockstep
