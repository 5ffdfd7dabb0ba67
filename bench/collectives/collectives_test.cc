#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "bench/collectives/case.h"
#include "comm/host/self_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference_testing.h"

namespace lockstep::bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kCount = 2 * Pattern::kPeriod + 7;

// What the ranks' inputs come to when they are added in this order, with each partial sum rounded to the dtype.
std::vector<char> Sum(const Pattern& pattern, DType dtype, const std::vector<int>& order) {
  std::vector<char> sum(kCount * SizeOf(dtype));
  std::vector<char> input(sum.size());
  pattern.FillInput(Rank(order[0]), 0, sum.data(), kCount);
  for (size_t k = 1; k < order.size(); ++k) {
    pattern.FillInput(Rank(order[k]), 0, input.data(), kCount);
    kernels::ReferenceCombine(dtype, ReduceOp::kSum, sum.data(), sum.data(), input.data(), kCount);
  }
  return sum;
}

TEST(Pattern, TheSumIsExactInAnyOrderForEveryDType) {
  for (const DType dtype : kAllDTypes) {
    for (const int ranks : {1, 2, 3, 4, 8, 9, 64}) {
      const Pattern pattern(dtype, ranks);
      std::vector<int> order(ranks);
      std::iota(order.begin(), order.end(), 0);
      EXPECT_EQ(pattern.CountWrongSum(0, Sum(pattern, dtype, order).data(), kCount), 0) << Name(dtype) << ranks;
      std::reverse(order.begin(), order.end());
      EXPECT_EQ(pattern.CountWrongSum(0, Sum(pattern, dtype, order).data(), kCount), 0) << Name(dtype) << ranks;
    }
  }
}

TEST(Pattern, AMissingRankIsSeen) {
  const Pattern pattern(DType::kF32, 2);
  std::vector<float> alone(kCount);
  pattern.FillInput(Rank(0), 0, alone.data(), kCount);
  EXPECT_GT(pattern.CountWrongSum(0, alone.data(), kCount), kCount / 2);
}

TEST(Pattern, CountsEachWrongElementOnce) {
  const Pattern pattern(DType::kI32, 1);
  std::vector<int32_t> data(kCount);
  pattern.FillInput(Rank(0), 0, data.data(), kCount);  // of one rank, the sum
  EXPECT_EQ(pattern.CountWrongSum(0, data.data(), kCount), 0);
  for (const size_t index : {size_t{0}, size_t{Pattern::kPeriod - 1}, size_t{Pattern::kPeriod}, kCount - 1}) {
    data[index] += 1 << 16;
  }
  EXPECT_EQ(pattern.CountWrongSum(0, data.data(), kCount), 4);
  EXPECT_EQ(pattern.CountWrongSum(0, data.data(), 0), 0);
}

TEST(Pattern, ABlockInTheWrongPlaceIsSeen) {
  const Pattern pattern(DType::kU8, 2);
  for (int64_t distance = 1; distance < int64_t{1} << 40; distance *= 2) {
    uint8_t data[64];
    pattern.FillInput(Rank(1), distance, data, sizeof(data));
    EXPECT_EQ(pattern.CountWrongInput(Rank(1), distance, data, sizeof(data)), 0) << distance;
    EXPECT_GT(pattern.CountWrongInput(Rank(1), 0, data, sizeof(data)), 32) << distance;
  }
}

std::vector<std::string> Names(absl::string_view text) {
  std::vector<std::string> names;
  const absl::StatusOr<std::vector<Operation>> operations = ParseOperations(text);
  EXPECT_THAT(operations, IsOk());
  for (const Operation& operation : *operations) names.push_back(Name(operation));
  return names;
}

TEST(ParseOperations, TakesAllOrNamesInTheirOrder) {
  EXPECT_THAT(Names("all"), ElementsAre("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "barrier",
                                        "gather", "scatter", "all_to_all", "send_receive"));
  EXPECT_THAT(Names("send_receive,reduce,all_gather"), ElementsAre("send_receive", "reduce", "all_gather"));
}

TEST(ParseOperations, ListsTheKnownNamesForAWrongOne) {
  for (const char* text : {"", "allreduce", "all_reduce,", "all,reduce", "all_reduce_v"}) {
    EXPECT_THAT(ParseOperations(text),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("all_reduce"), HasSubstr("send_receive"))))
        << text;
  }
}

constexpr int64_t kBytes = 4000;

// One rank's case of kBytes, filled.
struct Fixture {
  explicit Fixture(const CaseKind& kind)
      : pattern(kind.dtype, 1),
        measured(kind, SizeOfCase(kind, 1, kBytes), &communicator, &pattern, first.get(), second.get()) {
    measured.Fill();
  }

  SelfCommunicator communicator{16};
  Pattern pattern;
  std::shared_ptr<char> first = MakeVector(kBytes, nullptr).value();
  std::shared_ptr<char> second = MakeVector(kBytes, nullptr).value();
  Case measured;
};

TEST(Case, OfACorrectCommunicatorNothingIsWrong) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<Operation> operations, ParseOperations("all"));
  for (const Operation& operation : operations) {
    for (const bool in_place : {false, true}) {
      if (in_place && (!operation.has_data() || operation.messages)) continue;
      CaseKind kind;
      kind.operation = operation;
      kind.in_place = in_place;
      Fixture fixture(kind);
      ASSERT_THAT(fixture.measured.Run(7), IsOk()) << Name(operation);
      EXPECT_EQ(fixture.measured.CountWrong(), 0) << Name(operation) << (in_place ? " in place" : "");
    }
  }
}

TEST(Case, WithoutACallTheWholeOutputIsWrong) {
  for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce,
                                      Collective::kAllGather, Collective::kReduceScatter}) {
    CaseKind kind;
    kind.operation.collective = collective;
    Fixture fixture(kind);
    EXPECT_EQ(fixture.measured.CountWrong(), kBytes / 4) << Name(collective);
  }
}

TEST(Case, OneWrongElementIsCounted) {
  Fixture fixture({});
  ASSERT_THAT(fixture.measured.Run(1), IsOk());
  fixture.second.get()[kBytes - 1] ^= 1;  // of the output
  EXPECT_EQ(fixture.measured.CountWrong(), 1);
  fixture.first.get()[0] ^= 1;  // an input that the call should have left alone
  EXPECT_EQ(fixture.measured.CountWrong(), 2);
}

TEST(SizeOfCase, IsDivisibleWhereRanksHaveBlocks) {
  CaseKind kind;
  CaseSize size = SizeOfCase(kind, 3, 1023);
  EXPECT_EQ(size.count, 255);
  EXPECT_EQ(size.own_count, 255);
  EXPECT_EQ(size.bytes, 1020);
  kind.operation.collective = Collective::kAllGather;
  size = SizeOfCase(kind, 4, 1023);
  EXPECT_EQ(size.count, 252);
  EXPECT_EQ(size.own_count, 63);
  EXPECT_EQ(size.bytes, 1008);
  EXPECT_EQ(SizeOfCase(kind, 4, 8).bytes, 0);
  kind.operation.collective = Collective::kBarrier;
  EXPECT_EQ(SizeOfCase(kind, 4, 1023).bytes, 0);
}

}  // namespace
}  // namespace lockstep::bench
