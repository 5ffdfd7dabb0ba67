#include "reducer/plan/status_trailer.h"

#include <algorithm>
#include <string>

#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/reduce.h"

namespace lockstep {
namespace {

constexpr size_t kSlots = 3;

// A trailer in memory that is full of something else at first.
class Trailer {
 public:
  Trailer(DType dtype, float one)
      : dtype_(dtype),
        memory_(StatusTrailer::Elements(kSlots) * SizeOf(dtype), '\x5A'),
        trailer_(&memory_[0], dtype, one) {
    trailer_.Clear(StatusTrailer::Elements(kSlots));
  }

  StatusTrailer& operator*() { return trailer_; }
  StatusTrailer* operator->() { return &trailer_; }

  // What a reduction does to it: the factor where it comes in, then the sum.
  void Scale(double factor) {
    LOCKSTEP_EXPECT_OK(kernels::CastScaled(dtype_, &memory_[0], dtype_, memory_.data(), elements(), factor));
  }
  void Add(const Trailer& other) {
    auto add = kernels::CombineFor(dtype_, ReduceOp::kSum);
    LOCKSTEP_EXPECT_OK(add);
    (*add)(&memory_[0], memory_.data(), other.memory_.data(), elements());
  }

 private:
  size_t elements() const { return memory_.size() / SizeOf(dtype_); }

  const DType dtype_;
  std::string memory_;
  StatusTrailer trailer_;
};

// The sum of the trailers of so many ranks; all have used slot 0, the first one alone slot 1.
Trailer Reduced(DType dtype, int ranks, float one, double factor) {
  Trailer sum(dtype, one);
  for (int rank = 0; rank < ranks; ++rank) {
    Trailer trailer(dtype, one);
    trailer->Set(StatusTrailer::Used(0));
    if (rank == 0) trailer->Set(StatusTrailer::Used(1));
    trailer.Scale(factor);
    sum.Add(trailer);
  }
  return sum;
}

TEST(StatusTrailer, EntriesAreApart) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    SCOPED_TRACE(Name(dtype));
    const size_t entries[] = {StatusTrailer::kFailed, StatusTrailer::kJoined, StatusTrailer::kUnrequested,
                              StatusTrailer::Used(0), StatusTrailer::Used(1), StatusTrailer::Used(2)};
    ASSERT_EQ(StatusTrailer::Elements(kSlots), std::size(entries));
    for (const size_t set : entries) {
      Trailer trailer(dtype, 1);
      trailer->Set(set);
      for (const size_t entry : entries) EXPECT_EQ(trailer->Count(entry), entry == set ? 1 : 0) << set << ", " << entry;
    }
  }
}

TEST(StatusTrailer, CountsExactlyAsFarAsItsDTypeDoes) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    SCOPED_TRACE(Name(dtype));
    const int ranks = std::min(StatusTrailer::CountMax(dtype), 3000);
    Trailer sum(dtype, 1);
    for (int rank = 1; rank <= ranks; ++rank) {
      sum.Add(Reduced(dtype, 1, 1, 1));
      ASSERT_EQ(sum->Count(StatusTrailer::Used(0)), rank);
    }
    EXPECT_EQ(sum->Count(StatusTrailer::Used(2)), 0);
  }
}

TEST(StatusTrailer, BeyondThatItIsStillNotZero) {
  for (const DType dtype : kNarrowDTypes) {
    SCOPED_TRACE(Name(dtype));
    const int max = StatusTrailer::CountMax(dtype);
    const Trailer one = Reduced(dtype, 1, 1, 1);
    Trailer sum = Reduced(dtype, max, 1, 1);
    sum.Add(one);
    EXPECT_EQ(sum->Count(StatusTrailer::Used(0)), max) << "CountMax may be larger";
    // Where ranks are added up in a tree there may be larger numbers than that.
    const Trailer half = Reduced(dtype, max, 1, 1);
    for (int times = 0; times < 40; ++times) sum.Add(half);
    EXPECT_EQ(sum->Count(StatusTrailer::Used(0)), max);
    EXPECT_EQ(sum->Count(StatusTrailer::Used(2)), 0);
  }
}

// `one` is n where the reduction multiplies by 1/n, as an average does and as a premultiplied sum may.
TEST(StatusTrailer, CountsWhatTheReductionDivides) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    for (int ranks = 1; ranks <= std::min(300, StatusTrailer::CountMax(dtype)); ++ranks) {
      Trailer sum = Reduced(dtype, ranks, static_cast<float>(ranks), 1.0 / ranks);
      ASSERT_EQ(sum->Count(StatusTrailer::Used(0)), ranks) << Name(dtype);
      ASSERT_EQ(sum->Count(StatusTrailer::Used(1)), 1) << Name(dtype) << ", " << ranks << " ranks";
      ASSERT_EQ(sum->Count(StatusTrailer::Used(2)), 0) << Name(dtype) << ", " << ranks << " ranks";
    }
  }
}

TEST(StatusTrailer, CountsWhateverItIsMultipliedBy) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    for (const float factor : {0.25F, 1.5F, 3.0F, 7.0F, 48.0F}) {
      Trailer sum = Reduced(dtype, 3, factor, 1.0 / factor);
      EXPECT_EQ(sum->Count(StatusTrailer::Used(0)), 3) << Name(dtype) << " times " << factor;
      EXPECT_EQ(sum->Count(StatusTrailer::Used(1)), 1) << Name(dtype) << " times " << factor;
    }
  }
}

// The pair of entries shows any two ranks' difference, in every dtype and beyond the count that the dtype can hold.
TEST(StatusTrailer, TellsWhetherHashesDiffer) {
  constexpr size_t kFirst = 3;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    for (const uint32_t other : {0x12345678U, 0x12345679U, 0x92345678U, ~0x12345678U, 0U}) {
      for (const int ranks : {2, 9, 300}) {
        std::string sum((kFirst + StatusTrailer::kHashEntries) * SizeOf(dtype), '\0');
        for (int rank = 0; rank < ranks; ++rank) {
          std::string mine(sum.size(), '\0');
          StatusTrailer trailer(&mine[0], dtype, 1);
          // The last but one has another hash, and the last has none.
          const uint32_t hash = rank == ranks - 2 ? other : 0x12345678U;
          if (rank < ranks - 1) {
            for (const size_t entry : StatusTrailer::EntriesOf(hash, kFirst)) trailer.Set(entry);
          }
          auto add = kernels::CombineFor(dtype, ReduceOp::kSum);
          LOCKSTEP_ASSERT_OK(add);
          (*add)(&sum[0], sum.data(), mine.data(), sum.size() / SizeOf(dtype));
        }
        EXPECT_EQ(StatusTrailer(&sum[0], dtype, 1).HashesDiffer(kFirst), ranks > 2 && other != 0x12345678U)
            << Name(dtype) << " " << other << " " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
