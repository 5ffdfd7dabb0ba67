#include "transport/secure/half_open.h"

#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <string>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

const HalfOpen::Clock::time_point kStart{};

TEST(HalfOpenTest, TheOldestOfTheAddressWithTheMostMakesWay) {
  HalfOpen half_open(HalfOpen::Bound::kListener, 4, 0, milliseconds(10));
  EXPECT_FALSE(half_open.Add(1, "honest", kStart).has_value());
  EXPECT_FALSE(half_open.Add(2, "flood", kStart).has_value());
  EXPECT_FALSE(half_open.Add(3, "flood", kStart).has_value());
  EXPECT_FALSE(half_open.Add(4, "other", kStart).has_value());
  EXPECT_EQ(half_open.Add(5, "flood", kStart), 2u);
  EXPECT_TRUE(half_open.Remove(2));
  EXPECT_FALSE(half_open.Remove(2));
  EXPECT_EQ(half_open.Add(6, "flood", kStart), 3u);
  EXPECT_TRUE(half_open.Remove(3));
  EXPECT_EQ(half_open.size(), 4u);
}

TEST(HalfOpenTest, AmongEqualsTheOldestMakesWay) {
  HalfOpen half_open(HalfOpen::Bound::kListener, 2, 0, milliseconds(10));
  (void)half_open.Add(1, "a", kStart);
  (void)half_open.Add(2, "b", kStart);
  EXPECT_EQ(half_open.ToEvict(kStart), 1u);
  EXPECT_EQ(half_open.Add(3, "c", kStart), 1u);
  EXPECT_TRUE(half_open.Remove(1));
  EXPECT_EQ(half_open.ToEvict(kStart), 2u);
}

// Where all descriptors are taken by those who mean it, the last to come has to wait, and no two push out each other for ever.
TEST(HalfOpenTest, WhoHasBegunWellStaysForASecond) {
  HalfOpen half_open(HalfOpen::Bound::kListener, 2, 0, milliseconds(5000));
  (void)half_open.Add(1, "a", kStart);
  half_open.BegunWell(1, "one", kStart);
  EXPECT_FALSE(half_open.ToEvict(kStart).has_value());
  (void)half_open.Add(2, "b", kStart);
  EXPECT_EQ(half_open.ToEvict(kStart), 2u) << "the younger one has shown nothing";
  half_open.BegunWell(2, "two", kStart);
  EXPECT_EQ(half_open.Add(3, "c", kStart), 3u) << "there is room for two, and they stay";
  EXPECT_TRUE(half_open.Remove(3));
  half_open.BegunWell(1, "one", kStart + milliseconds(900));
  EXPECT_EQ(half_open.ToEvict(kStart + milliseconds(1000)), 1u) << "what it says later gives it no more time";
}

TEST(HalfOpenTest, ARecordedFirstFlightIsWorthNothing) {
  HalfOpen half_open(HalfOpen::Bound::kListener, 3, 0, milliseconds(5000));
  (void)half_open.Add(1, "a", kStart);
  half_open.BegunWell(1, "recorded", kStart);
  EXPECT_TRUE(half_open.Remove(1));
  for (const uint64_t id : {2, 3, 4}) {
    EXPECT_FALSE(half_open.Add(id, "replays", kStart).has_value());
    half_open.BegunWell(id, "recorded", kStart);
  }
  EXPECT_EQ(half_open.Add(5, "honest", kStart), 2u);
  EXPECT_TRUE(half_open.Remove(2));
  half_open.BegunWell(5, "", kStart);
  EXPECT_EQ(half_open.Add(6, "replays", kStart), 3u);
}

// First flights that were recorded at other listeners look like those of who means it.
TEST(HalfOpenTest, AnAddressThatHasAllPlacesKeepsOutNoOther) {
  HalfOpen half_open(HalfOpen::Bound::kListener, 4, 0, milliseconds(5000));
  for (const uint64_t id : {1, 2, 3, 4}) {
    EXPECT_FALSE(half_open.Add(id, "replays", kStart).has_value());
    half_open.BegunWell(id, std::to_string(id), kStart);
  }
  EXPECT_EQ(half_open.Add(5, "replays", kStart), 5u);
  EXPECT_TRUE(half_open.Remove(5));
  EXPECT_EQ(half_open.Add(6, "honest", kStart), 1u);
  EXPECT_TRUE(half_open.Remove(1));
}

// One host may have all addresses of a /64. An IPv4 address in IPv6's form is one host's.
TEST(HalfOpenTest, AddressesOfASubnetCountAsOne) {
  HalfOpen half_open(HalfOpen::Bound::kListener, 4, 0, milliseconds(10));
  (void)half_open.Add(1, "2001:db8:0:1::1", kStart);
  (void)half_open.Add(2, "2001:db8:0:2::1", kStart);
  (void)half_open.Add(3, "2001:db8:0:2:ffff::2", kStart);
  (void)half_open.Add(4, "::ffff:10.0.0.1", kStart);
  EXPECT_EQ(half_open.Add(5, "::ffff:10.0.0.2", kStart), 2u);
  EXPECT_TRUE(half_open.Remove(2));
  EXPECT_EQ(half_open.Add(6, "fe80::1%eth0", kStart), 1u) << "all are alone";
  EXPECT_TRUE(half_open.Remove(1));
  EXPECT_EQ(half_open.Add(7, "fe80::2%eth0", kStart), 6u);
  EXPECT_TRUE(half_open.Remove(6));
  EXPECT_EQ(half_open.Add(8, "fe80::3%eth1", kStart), 3u) << "on another link";
}

TEST(HalfOpenTest, OnlyThoseThatHaveBegunWellHaveThePlacesBeyond) {
  HalfOpen half_open(HalfOpen::Bound::kListener, 2, 2, milliseconds(5000));
  (void)half_open.Add(1, "silent", kStart);
  (void)half_open.Add(2, "silent", kStart);
  EXPECT_EQ(half_open.Add(3, "honest", kStart), 1u);
  EXPECT_TRUE(half_open.Remove(1));
  half_open.BegunWell(3, "three", kStart);
  EXPECT_FALSE(half_open.Add(4, "honest", kStart).has_value());
  half_open.BegunWell(4, "four", kStart);
  EXPECT_FALSE(half_open.Add(5, "silent", kStart).has_value());
  EXPECT_EQ(half_open.Add(6, "silent", kStart), 2u);
  EXPECT_TRUE(half_open.Remove(2));
  EXPECT_EQ(half_open.size(), 4u);
}

TEST(HalfOpenTest, ThoseThatHaveBegunWellMakeNoWayForTheOthersAfterTheirSecondEither) {
  HalfOpen half_open(HalfOpen::Bound::kListener, 2, 2, milliseconds(5000));
  for (const uint64_t id : {1, 2}) {
    (void)half_open.Add(id, "honest", kStart);
    half_open.BegunWell(id, std::to_string(id), kStart);
  }
  const auto later = kStart + milliseconds(2000);
  (void)half_open.Add(3, "a", later);
  (void)half_open.Add(4, "b", later);
  EXPECT_EQ(half_open.Add(5, "c", later), 3u);
  EXPECT_TRUE(half_open.Remove(3));
  EXPECT_EQ(half_open.ToEvict(later), 1u) << "where a descriptor is needed, any may go";
}

// What the parent had is not the child's.
TEST(HalfOpenTest, AForkedChildBeginsAnew) {
  const size_t most = HalfOpen::MostForThisProcess();
  HalfOpen inherited(HalfOpen::Bound::kProcess, 8 * most, 0, milliseconds(5000));
  for (uint64_t id = 1; id <= 4 * most; ++id) (void)inherited.Add(id, "outsider", kStart);
  const auto all_find_room = [] {
    HalfOpen own(HalfOpen::Bound::kProcess, 8, 0, milliseconds(5000));
    bool room = true;
    for (uint64_t id = 1; id <= 8; ++id) room &= !own.Add(id, "honest", kStart).has_value();
    return room;
  };
  EXPECT_FALSE(all_find_room());
  const pid_t child = fork();
  if (child == 0) {
    (void)inherited.Remove(1);
    _exit(all_find_room() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// A process may have many worlds: silent connections at each of their listeners must not add up to all of its descriptors.
TEST(HalfOpenTest, AllListenersOfAProcessAreBoundedTogether) {
  const size_t most = HalfOpen::MostForThisProcess();
  std::deque<HalfOpen> listeners;
  uint64_t id = 0;
  // Fills one. How many it keeps.
  const auto fill = [&] {
    HalfOpen& added = listeners.emplace_back(HalfOpen::Bound::kProcess, most, 0, milliseconds(5000));
    for (size_t i = 0; i < 2 * most; ++i) {
      const auto evicted = added.Add(++id, "outsider", kStart);
      if (evicted.has_value()) (void)added.Remove(*evicted);
    }
    return added.size();
  };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(fill(), most);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(fill(), 4u);
  HalfOpen memory(HalfOpen::Bound::kListener, most, 0, milliseconds(5000));
  for (size_t i = 0; i < most; ++i) EXPECT_FALSE(memory.Add(++id, "outsider", kStart).has_value());
  // What makes room.
  HalfOpen& last = listeners.back();
  listeners.pop_front();
  listeners.pop_front();
  for (size_t i = last.size(); i < most; ++i) EXPECT_FALSE(last.Add(++id, "honest", kStart).has_value());
}

TEST(HalfOpenTest, EachHasItsTime) {
  HalfOpen half_open(HalfOpen::Bound::kListener, 10, 0, milliseconds(10));
  EXPECT_EQ(half_open.next_expiry(), HalfOpen::Clock::time_point::max());
  (void)half_open.Add(1, "a", kStart);
  (void)half_open.Add(2, "a", kStart + milliseconds(5));
  EXPECT_EQ(half_open.next_expiry(), kStart + milliseconds(10));
  EXPECT_FALSE(half_open.Expired(kStart + milliseconds(9)).has_value());
  EXPECT_EQ(half_open.Expired(kStart + milliseconds(10)), 1u);
  EXPECT_TRUE(half_open.Remove(1));
  EXPECT_FALSE(half_open.Expired(kStart + milliseconds(10)).has_value());
  EXPECT_EQ(half_open.Expired(kStart + milliseconds(15)), 2u);
  EXPECT_TRUE(half_open.Remove(2));
  EXPECT_FALSE(half_open.ToEvict(kStart).has_value());
}

TEST(HalfOpenTest, ThisProcessMayHaveSome) {
  EXPECT_GE(HalfOpen::MostForThisProcess(), 4u);
  EXPECT_LE(HalfOpen::MostForThisProcess(), 1024u);
}

}  // namespace
}  // namespace lockstep
