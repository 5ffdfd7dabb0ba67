#include "tests/store_conformance.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace lockstep {

TEST_P(StoreConformance, WhatOneClientSetsTheOtherGets) {
  ASSERT_THAT(a_->Set("rank0", "10.0.0.7:4411", Soon()), IsOk());
  EXPECT_THAT(b_->Get("rank0", Soon()), IsOkAndHolds("10.0.0.7:4411"));
  EXPECT_THAT(a_->Get("rank0", Soon()), IsOkAndHolds("10.0.0.7:4411"));
  ASSERT_THAT(b_->Set("rank0", "", Soon()), IsOk());
  EXPECT_THAT(a_->Get("rank0", Soon()), IsOkAndHolds(""));
  EXPECT_FALSE(a_->Describe().empty());
}

TEST_P(StoreConformance, GetOfAMissingKeyIsNotFoundAndNamesIt) {
  EXPECT_THAT(a_->Get("nobody", Soon()), StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr("nobody")));
}

TEST_P(StoreConformance, KeysAndValuesAreBytes) {
  if (!world_.keys_are_bytes) GTEST_SKIP() << "keys are C strings";
  std::string every_byte;
  for (int i = 0; i < 256; ++i) every_byte.push_back(static_cast<char>(i));
  const std::string before("k\0a", 3);
  const std::string after("k\0b", 3);
  ASSERT_THAT(a_->Set(before, every_byte, Soon()), IsOk());
  ASSERT_THAT(a_->Set(after, std::string("\0", 1), Soon()), IsOk());
  ASSERT_THAT(a_->Set(every_byte, "key", Soon()), IsOk());
  ASSERT_THAT(a_->Set("", "the empty key", Soon()), IsOk());
  EXPECT_THAT(b_->Get(before, Soon()), IsOkAndHolds(every_byte));
  EXPECT_THAT(b_->Get(after, Soon()), IsOkAndHolds(std::string("\0", 1)));
  EXPECT_THAT(b_->Get(every_byte, Soon()), IsOkAndHolds("key"));
  EXPECT_THAT(b_->Get("", Soon()), IsOkAndHolds("the empty key"));
  EXPECT_THAT(b_->Get("k", Soon()), StatusIs(absl::StatusCode::kNotFound));
}

TEST_P(StoreConformance, CompareAndSetSetsOnlyWhatWasExpected) {
  if (!world_.compares) GTEST_SKIP() << "no compare-and-set";
  ASSERT_THAT(a_->Set("leader", "a", Soon()), IsOk());
  EXPECT_THAT(b_->CompareAndSet("leader", "x", "b", Soon()), IsOkAndHolds("a"));
  EXPECT_THAT(a_->Get("leader", Soon()), IsOkAndHolds("a"));
  EXPECT_THAT(b_->CompareAndSet("leader", "a", "b", Soon()), IsOkAndHolds("b"));
  EXPECT_THAT(a_->Get("leader", Soon()), IsOkAndHolds("b"));
}

TEST_P(StoreConformance, CompareAndSetWithNothingExpectedCreates) {
  if (!world_.compares) GTEST_SKIP() << "no compare-and-set";
  EXPECT_THAT(a_->CompareAndSet("new", "", "first", Soon()), IsOkAndHolds("first"));
  EXPECT_THAT(b_->CompareAndSet("new", "", "second", Soon()), IsOkAndHolds("first"));
  ASSERT_THAT(a_->Set("empty", "", Soon()), IsOk());
  EXPECT_THAT(b_->CompareAndSet("empty", "", "filled", Soon()), IsOkAndHolds("filled"));
}

TEST_P(StoreConformance, CompareAndSetOfAMissingKeyThatWasExpectedCreatesNothing) {
  if (!world_.compares) GTEST_SKIP() << "no compare-and-set";
  EXPECT_THAT(a_->CompareAndSet("gone", "before", "after", Soon()), IsOkAndHolds(""));
  EXPECT_THAT(b_->Get("gone", Soon()), StatusIs(absl::StatusCode::kNotFound));
}

TEST_P(StoreConformance, CompareAndSetHasOneWinner) {
  if (!world_.compares) GTEST_SKIP() << "no compare-and-set";
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> winners{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t, &winners] {
      const std::string mine = absl::StrCat("thread ", t);
      const absl::StatusOr<std::string> stored = (t % 2 == 0 ? a_ : b_)->CompareAndSet("winner", "", mine, Soon());
      if (stored.ok() && *stored == mine) ++winners;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(winners, 1);
}

// Within a client and across two, each of which has several requests under way.
TEST_P(StoreConformance, CompareAndSetOfManyThreadsLosesNothing) {
  if (!world_.compares) GTEST_SKIP() << "no compare-and-set";
  constexpr int kThreads = 4;
  constexpr int kWins = 50;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t, &failures] {
      // Each number has one winner: an attempt says who, or which number stands.
      std::string sum;
      for (int wins = 0; wins < kWins;) {
        const std::string mine = absl::StrCat(std::atoi(sum.c_str()) + 1, " by ", t);
        const absl::StatusOr<std::string> stored = (t % 2 == 0 ? a_ : b_)->CompareAndSet("sum", sum, mine, Soon());
        if (!stored.ok()) {
          ++failures;
          return;
        }
        if (*stored == mine) ++wins;
        sum = *stored;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_THAT(a_->Get("sum", Soon()), IsOkAndHolds(testing::StartsWith(absl::StrCat(kThreads * kWins, " by "))));
}

TEST_P(StoreConformance, WaitReturnsAtOnceWhatIsThere) {
  ASSERT_THAT(a_->Set("there", "value", Soon()), IsOk());
  EXPECT_THAT(b_->Wait("there", Soon()), IsOkAndHolds("value"));
}

TEST_P(StoreConformance, WaitEndsWhenAnotherClientSetsOrSwaps) {
  for (const std::string key : {"set", "swap"}) {
    if (key == "swap" && !world_.compares) continue;
    absl::StatusOr<std::string> value = absl::UnknownError("not run");
    std::thread waiter([&] { value = b_->Wait(key, Soon()); });
    EXPECT_THAT(key == "set" ? a_->Set(key, "1", Soon()) : a_->CompareAndSet(key, "", "1", Soon()).status(), IsOk());
    waiter.join();
    EXPECT_THAT(value, IsOkAndHolds("1")) << key;
  }
}

TEST_P(StoreConformance, WaitMeetsItsDeadlineAndNamesTheKey) {
  EXPECT_THAT(a_->Wait("rank7", Deadline::AfterMs(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::HasSubstr("rank7")));
  EXPECT_THAT(a_->Wait("rank7", Deadline::Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::HasSubstr("rank7")));
  // The client is as good as before, and an answer that came too late disturbs nothing.
  ASSERT_THAT(b_->Set("rank7", "late", Soon()), IsOk());
  EXPECT_THAT(a_->Wait("rank7", Soon()), IsOkAndHolds("late"));
}

TEST_P(StoreConformance, AWaitDoesNotKeepOtherThreadsOfTheClientFromWorking) {
  absl::StatusOr<std::string> first = absl::UnknownError("not run");
  absl::StatusOr<std::string> second = absl::UnknownError("not run");
  std::thread waits_first([&] { first = a_->Wait("first", Soon()); });
  std::thread waits_second([&] { second = a_->Wait("second", Soon()); });
  EXPECT_THAT(a_->Set("other", "done", Soon()), IsOk());
  EXPECT_THAT(a_->Get("other", Soon()), IsOkAndHolds("done"));
  EXPECT_THAT(a_->Set("second", "2", Soon()), IsOk());
  waits_second.join();
  EXPECT_THAT(a_->Set("first", "1", Soon()), IsOk());
  waits_first.join();
  EXPECT_THAT(first, IsOkAndHolds("1"));
  EXPECT_THAT(second, IsOkAndHolds("2"));
}

TEST_P(StoreConformance, DeleteRemovesAndMayBeRepeated) {
  ASSERT_THAT(a_->Set("temporary", "x", Soon()), IsOk());
  EXPECT_THAT(b_->Delete("temporary", Soon()), IsOk());
  EXPECT_THAT(a_->Get("temporary", Soon()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(a_->Delete("temporary", Soon()), IsOk());
  EXPECT_THAT(a_->Wait("temporary", Deadline::AfterMs(5)), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_P(StoreConformance, ValuesUpToTheLimitArriveWhole) {
  std::string big(kStoreValueBytesMax, '\0');
  for (size_t i = 0; i < big.size(); i += 61) big[i] = static_cast<char>(i >> 8);
  ASSERT_THAT(a_->Set("big", big, Soon()), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string arrived, b_->Get("big", Soon()));
  EXPECT_TRUE(arrived == big);  // not EXPECT_EQ: nobody wants to read all of it twice
}

TEST_P(StoreConformance, LimitsAreCheckedAndNameTheKey) {
  const std::string too_big(kStoreValueBytesMax + 1, 'x');
  EXPECT_THAT(
      a_->Set("over", too_big, Soon()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               testing::AllOf(testing::HasSubstr("over"), testing::HasSubstr(absl::StrCat(kStoreValueBytesMax)))));
  EXPECT_THAT(a_->CompareAndSet("over", "", too_big, Soon()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(a_->CompareAndSet("over", too_big, "", Soon()), StatusIs(absl::StatusCode::kInvalidArgument));

  const std::string long_key(kStoreKeyBytesMax + 1, 'k');
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument,
                                testing::AllOf(testing::HasSubstr("kkkk"), testing::HasSubstr("1024")));
  EXPECT_THAT(a_->Set(long_key, "", Soon()), invalid);
  EXPECT_THAT(a_->Get(long_key, Soon()), invalid);
  EXPECT_THAT(a_->CompareAndSet(long_key, "", "", Soon()), invalid);
  EXPECT_THAT(a_->Wait(long_key, Soon()), invalid);
  EXPECT_THAT(a_->Delete(long_key, Soon()), invalid);
}

TEST_P(StoreConformance, ManyKeysStayApart) {
  for (int i = 0; i < 200; ++i) {
    ASSERT_THAT((i % 2 == 0 ? a_ : b_)->Set(absl::StrCat("key", i), absl::StrCat("value", i), Soon()), IsOk());
  }
  Store* const late = NewClient();
  ASSERT_NE(late, nullptr);
  for (int i = 0; i < 200; ++i) {
    EXPECT_THAT(late->Get(absl::StrCat("key", i), Soon()), IsOkAndHolds(absl::StrCat("value", i)));
  }
}

}  // namespace lockstep
