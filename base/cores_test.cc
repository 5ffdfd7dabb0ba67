#include "base/cores.h"

#include <sched.h>

#include <thread>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(Cores, AreThoseOfTheAffinityMask) {
  const CoreSet all = CoresOfThisThread();
  ASSERT_GE(CountCores(all), 1);
  int last = -1;
  for (size_t word = 0; word < all.size(); ++word) {
    for (int bit = 0; bit < 64; ++bit) {
      if ((all[word] >> bit) & 1) last = static_cast<int>(word) * 64 + bit;
    }
  }
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    const CoreSet pinned = CoresOfThisThread();
    EXPECT_EQ(CountCores(pinned), 1);
    ASSERT_EQ(pinned.size(), static_cast<size_t>(last / 64 + 1));
    EXPECT_EQ(pinned.back(), uint64_t{1} << (last % 64));
  }).join();
}

TEST(Cores, AddUp) {
  CoreSet cores;
  EXPECT_EQ(CountCores(cores), 0);
  AddCores({0b01}, &cores);
  AddCores({0b11, 0b1}, &cores);
  AddCores({}, &cores);
  EXPECT_EQ(cores, (CoreSet{0b11, 0b1}));
  EXPECT_EQ(CountCores(cores), 3);
}

}  // namespace
}  // namespace lockstep
