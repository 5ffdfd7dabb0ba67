#include "reducer/plan/bucket_tail.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/reduce.h"

namespace lockstep {
namespace {

constexpr size_t kSlots = 3;

// A tail in memory that is full of something else at first.
class Tail {
 public:
  Tail(DType dtype, float one)
      : dtype_(dtype), memory_(BucketTail::Elements(kSlots) * SizeOf(dtype), '\x5A'), tail_(&memory_[0], dtype, one) {
    tail_.Clear(kSlots);
  }

  BucketTail& operator*() { return tail_; }
  BucketTail* operator->() { return &tail_; }

  // What a reduction does to it: the factor where it comes in, then the sum.
  void Scale(double factor) {
    LOCKSTEP_EXPECT_OK(kernels::CastScaled(dtype_, &memory_[0], dtype_, memory_.data(), elements(), factor));
  }
  void Add(const Tail& other) {
    auto add = kernels::CombineFor(dtype_, ReduceOp::kSum);
    LOCKSTEP_EXPECT_OK(add);
    (*add)(&memory_[0], memory_.data(), other.memory_.data(), elements());
  }

 private:
  size_t elements() const { return memory_.size() / SizeOf(dtype_); }

  const DType dtype_;
  std::string memory_;
  BucketTail tail_;
};

// The sum of the tails of so many ranks; all have used slot 0, the first one alone slot 1.
Tail Reduced(DType dtype, int ranks, float one, double factor) {
  Tail sum(dtype, one);
  for (int rank = 0; rank < ranks; ++rank) {
    Tail tail(dtype, one);
    tail->Set(BucketTail::Used(0));
    if (rank == 0) tail->Set(BucketTail::Used(1));
    tail.Scale(factor);
    sum.Add(tail);
  }
  return sum;
}

TEST(BucketTail, EntriesAreApart) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    SCOPED_TRACE(Name(dtype));
    const size_t entries[] = {BucketTail::kFailed, BucketTail::kJoined, BucketTail::kUnplanned,
                              BucketTail::Used(0), BucketTail::Used(1), BucketTail::Used(2)};
    ASSERT_EQ(BucketTail::Elements(kSlots), std::size(entries));
    for (const size_t set : entries) {
      Tail tail(dtype, 1);
      tail->Set(set);
      for (const size_t entry : entries) EXPECT_EQ(tail->Count(entry), entry == set ? 1 : 0) << set << ", " << entry;
    }
  }
}

TEST(BucketTail, ClearingLeavesNothing) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    Tail tail(dtype, 1);
    for (size_t entry = 0; entry < BucketTail::Elements(kSlots); ++entry) tail->Set(entry);
    tail->Clear(kSlots);
    for (size_t entry = 0; entry < BucketTail::Elements(kSlots); ++entry) EXPECT_EQ(tail->Count(entry), 0);
  }
}

TEST(BucketTail, CountsExactlyAsFarAsItsDTypeDoes) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    SCOPED_TRACE(Name(dtype));
    const int ranks = std::min(BucketTail::CountMax(dtype), 3000);
    Tail sum(dtype, 1);
    for (int rank = 1; rank <= ranks; ++rank) {
      sum.Add(Reduced(dtype, 1, 1, 1));
      ASSERT_EQ(sum->Count(BucketTail::Used(0)), rank);
    }
    EXPECT_EQ(sum->Count(BucketTail::Used(2)), 0);
  }
}

TEST(BucketTail, BeyondThatItIsStillNotZero) {
  for (const DType dtype : kNarrowDTypes) {
    SCOPED_TRACE(Name(dtype));
    const int max = BucketTail::CountMax(dtype);
    const Tail one = Reduced(dtype, 1, 1, 1);
    Tail sum = Reduced(dtype, max, 1, 1);
    sum.Add(one);
    EXPECT_EQ(sum->Count(BucketTail::Used(0)), max) << "CountMax may be larger";
    // Where ranks are added up in a tree there may be larger numbers than that.
    const Tail half = Reduced(dtype, max, 1, 1);
    for (int times = 0; times < 40; ++times) sum.Add(half);
    EXPECT_EQ(sum->Count(BucketTail::Used(0)), max);
    EXPECT_EQ(sum->Count(BucketTail::Used(2)), 0);
  }
}

// `one` is n where the reduction multiplies by 1/n, as an average does and as a premultiplied sum may.
TEST(BucketTail, CountsWhatTheReductionDivides) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    for (int ranks = 1; ranks <= std::min(300, BucketTail::CountMax(dtype)); ++ranks) {
      Tail sum = Reduced(dtype, ranks, static_cast<float>(ranks), 1.0 / ranks);
      ASSERT_EQ(sum->Count(BucketTail::Used(0)), ranks) << Name(dtype);
      ASSERT_EQ(sum->Count(BucketTail::Used(1)), 1) << Name(dtype) << ", " << ranks << " ranks";
      ASSERT_EQ(sum->Count(BucketTail::Used(2)), 0) << Name(dtype) << ", " << ranks << " ranks";
    }
  }
}

TEST(BucketTail, CountsWhateverItIsMultipliedBy) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    for (const float factor : {0.25F, 1.5F, 3.0F, 7.0F, 48.0F}) {
      Tail sum = Reduced(dtype, 3, factor, 1.0 / factor);
      EXPECT_EQ(sum->Count(BucketTail::Used(0)), 3) << Name(dtype) << " times " << factor;
      EXPECT_EQ(sum->Count(BucketTail::Used(1)), 1) << Name(dtype) << " times " << factor;
    }
  }
}

}  // namespace
}  // namespace lockstep
