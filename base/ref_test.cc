#include "base/ref.h"

#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

struct Base : RefCounted {
  virtual ~Base() = default;
};

struct Object : Base {
  explicit Object(int* ends_target, int start = 0) : ends(ends_target), value(start) {}
  ~Object() override { ++*ends; }
  int* const ends;
  int value;
};

TEST(Ref, TheLastOneDeletesTheObject) {
  int ends = 0;
  {
    const Ref<Object> first = MakeRef<Object>(&ends, 7);
    Ref<Object> second = first;
    Ref<Object> third = std::move(second);
    EXPECT_EQ(third->value, 7);
    EXPECT_EQ((*first).value, 7);
    EXPECT_TRUE(second == nullptr);  // NOLINT(bugprone-use-after-move): what a move leaves is what is tested
    third = nullptr;
    EXPECT_EQ(ends, 0);
  }
  EXPECT_EQ(ends, 1);
}

TEST(Ref, AssigningDropsWhatWasHeld) {
  int ends_a = 0, ends_b = 0;
  Ref<Object> a = MakeRef<Object>(&ends_a);
  const Ref<Object> b = MakeRef<Object>(&ends_b);
  a = b;
  EXPECT_EQ(ends_a, 1);
  Ref<Object>& self = a;
  a = self;
  EXPECT_EQ(a.get(), b.get());
  EXPECT_EQ(ends_b, 0);
}

TEST(Ref, ABaseHoldsItAsWell) {
  int ends = 0;
  {
    Ref<Object> object = MakeRef<Object>(&ends);
    Ref<Base> copy = object;
    EXPECT_FALSE(object.unique());
    const Ref<Base> moved = std::move(object);
    EXPECT_FALSE(copy.unique());
    copy = nullptr;
    EXPECT_TRUE(moved.unique());
    EXPECT_EQ(ends, 0);
  }
  EXPECT_EQ(ends, 1);
}

TEST(Ref, AnObjectWithoutRefsIsLikeAnyOther) {
  int ends = 0;
  { const Object object(&ends); }
  EXPECT_EQ(ends, 1);
}

// Under ThreadSanitizer this shows that unique() is told of what the other holders did.
TEST(Ref, WhoeverSeesItUniqueMayUseItAgain) {
  int ends = 0;
  {
    const Ref<Object> kept = MakeRef<Object>(&ends);
    std::vector<std::thread> holders;
    for (int round = 0; round < 50; ++round) {
      while (!kept.unique()) std::this_thread::yield();
      kept->value = round;
      holders.emplace_back([given = kept]() mutable {
        EXPECT_GE(given->value, 0);
        given = nullptr;
      });
    }
    for (std::thread& holder : holders) holder.join();
    EXPECT_TRUE(kept.unique());
    EXPECT_EQ(kept->value, 49);
  }
  EXPECT_EQ(ends, 1);
}

}  // namespace
}  // namespace lockstep
