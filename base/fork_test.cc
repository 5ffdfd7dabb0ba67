#include "base/fork.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "base/deadline.h"
#include "base/fork_testing.h"
#include "base/thread.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

int NewDescriptor() {
  const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(descriptor, 0);
  return descriptor;
}

bool IsOpen(int descriptor) { return fcntl(descriptor, F_GETFD) != -1; }

Deadline Soon() { return Deadline::AfterMs(20000); }

TEST(ForkTest, ChildHasTheNextGeneration) {
  const uint64_t parents = ForkGeneration();
  EXPECT_EQ(RunInForkedChild([&] { return ForkGeneration() == parents + 1 ? 0 : 1; }, Soon()), 0);
  EXPECT_EQ(ForkGeneration(), parents);
  const auto grandchild = [&] {
    return RunInForkedChild([&] { return ForkGeneration() == parents + 2 ? 0 : 1; }, Soon());
  };
  EXPECT_EQ(RunInForkedChild(grandchild, Soon()), 0);
}

TEST(ForkTest, ChildClosesOwnedDescriptorsAndNoOthers) {
  const UniqueFd owned(NewDescriptor());
  const int other = NewDescriptor();
  EXPECT_EQ(RunInForkedChild([&] { return IsOpen(owned.get()) ? 1 : IsOpen(other) ? 0 : 2; }, Soon()), 0);
  EXPECT_TRUE(IsOpen(owned.get()));
  EXPECT_TRUE(IsOpen(other));
  close(other);
}

TEST(ForkTest, ChildsOwnDescriptorSurvivesTheParentsObject) {
  UniqueFd parents(NewDescriptor());
  const auto child = [&] {
    // The kernel gives out the number that the handler closed.
    const UniqueFd childs(NewDescriptor());
    if (childs.get() != parents.get()) return 1;
    parents.reset();
    if (parents.valid()) return 2;
    return IsOpen(childs.get()) ? 0 : 3;
  };
  EXPECT_EQ(RunInForkedChild(child, Soon()), 0);
}

TEST(ForkTest, RegistrationDuringForksLeavesNoChildStuck) {
  std::atomic<bool> stop{false};
  Thread busy("registers", [&] {
    while (!stop) UniqueFd(NewDescriptor()).reset();
  });
  const auto child = [] {
    UniqueFd(NewDescriptor()).reset();
    return 0;
  };
  for (int i = 0; i < 50; ++i) ASSERT_EQ(RunInForkedChild(child, Soon()), 0) << "fork " << i;
  stop = true;
}

TEST(UniqueFdTest, ClosesAtTheEndOfItsLife) {
  int descriptor = -1;
  {
    const UniqueFd owner(NewDescriptor());
    ASSERT_TRUE(owner.valid());
    descriptor = owner.get();
    EXPECT_TRUE(IsOpen(descriptor));
  }
  EXPECT_FALSE(IsOpen(descriptor));
}

TEST(UniqueFdTest, MovesAndAssignsWithoutLeaking) {
  UniqueFd first(NewDescriptor());
  const int first_descriptor = first.get();
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT: what a moved-from owner is
  EXPECT_EQ(second.get(), first_descriptor);
  const int third_descriptor = NewDescriptor();
  second = UniqueFd(third_descriptor);
  EXPECT_FALSE(IsOpen(first_descriptor));
  EXPECT_TRUE(IsOpen(third_descriptor));
  second.reset();
  second.reset();
  EXPECT_FALSE(IsOpen(third_descriptor));
}

TEST(UniqueFdTest, NegativeNumbersAreNoDescriptor) {
  UniqueFd none(-1);
  EXPECT_FALSE(none.valid());
  none.reset();
  EXPECT_FALSE(UniqueFd().valid());
}

}  // namespace
}  // namespace lockstep
