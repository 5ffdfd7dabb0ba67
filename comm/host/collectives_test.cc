#include "comm/plan/collectives.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/rank.h"
#include "base/ref.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/pieces.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Matcher>
auto IsRefused(Matcher message) {
  return StatusIs(absl::StatusCode::kInvalidArgument, message);
}

// Rank 1 of 3.
class CollectivesTest : public ::testing::Test {
 protected:
  TensorView F32(size_t at, int64_t count) { return *TensorView::Vector(memory_.data() + at, DType::kF32, count); }
  TensorView I32(size_t at, int64_t count) { return *TensorView::Vector(memory_.data() + at, DType::kI32, count); }
  TensorView EverySecond(size_t at, int64_t count) {
    return *TensorView::Create(memory_.data() + at, DType::kF32, {count}, {2}, DeviceId());
  }
  TensorView OnGpu(int64_t count) {
    return *TensorView::Create(memory_.data(), DType::kF32, {count}, {}, DeviceId{DeviceKind::kCuda, 0});
  }

  std::vector<float> memory_ = std::vector<float>(100);
  testing::LoopbackWorld world_{3};
  Communicator& self_ = *world_.communicator(1);
};

TEST_F(CollectivesTest, AllReduce) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CollectiveRequest request,
                                AllReduceRequest(F32(0, 10), F32(10, 10), ReduceOp::kMax));
  EXPECT_EQ(request.collective, Collective::kAllReduce);
  EXPECT_EQ(request.dtype, DType::kF32);
  EXPECT_EQ(request.op, ReduceOp::kMax);
  EXPECT_EQ(request.count, 10);
  EXPECT_EQ(request.input, memory_.data());
  EXPECT_EQ(request.output, memory_.data() + 10);
  EXPECT_THAT(AllReduceRequest(F32(0, 10), F32(0, 10), ReduceOp::kSum), IsOk()) << "in place";
  EXPECT_THAT(AllReduceRequest(TensorView(), TensorView(), ReduceOp::kSum), IsOk()) << "nothing";
  EXPECT_THAT(AllReduceRequest(F32(0, 0), F32(5, 0), ReduceOp::kSum), IsOk());
}

TEST_F(CollectivesTest, AllReduceRefusals) {
  const auto request = [](const TensorView& input, const TensorView& output, ReduceOp op = ReduceOp::kSum) {
    return AllReduceRequest(input, output, op).status();
  };
  EXPECT_THAT(request(EverySecond(0, 10), F32(50, 10)), IsRefused(AllOf(HasSubstr("input"), HasSubstr("contiguous"))));
  EXPECT_THAT(request(F32(50, 10), EverySecond(0, 10)), IsRefused(AllOf(HasSubstr("output"), HasSubstr("contiguous"))));
  EXPECT_THAT(request(OnGpu(10), F32(50, 10)), IsRefused(AllOf(HasSubstr("input"), HasSubstr("cuda:0"))));
  EXPECT_THAT(request(F32(50, 10), OnGpu(10)), IsRefused(AllOf(HasSubstr("output"), HasSubstr("cuda:0"))));
  EXPECT_THAT(request(F32(0, 10), I32(50, 10)), IsRefused("input is f32 and output is i32"));
  EXPECT_THAT(request(F32(0, 10), F32(50, 9)), IsRefused("input has 10 elements and output has 9"));
  EXPECT_THAT(request(F32(0, 10), F32(9, 10)), IsRefused(HasSubstr("overlap")));
  EXPECT_THAT(request(F32(9, 10), F32(0, 10)), IsRefused(HasSubstr("overlap")));
  EXPECT_THAT(request(F32(0, 10), F32(0, 10), ReduceOp::kXor), IsRefused(AllOf(HasSubstr("f32"), HasSubstr("xor"))));
}

TEST_F(CollectivesTest, Broadcast) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CollectiveRequest request, BroadcastRequest(self_, F32(3, 10), Rank(2)));
  EXPECT_EQ(request.collective, Collective::kBroadcast);
  EXPECT_EQ(request.count, 10);
  EXPECT_EQ(request.root, Rank(2));
  EXPECT_EQ(request.input, memory_.data() + 3);
  EXPECT_EQ(request.output, memory_.data() + 3);
  EXPECT_THAT(BroadcastRequest(self_, F32(0, 10), Rank(3)), IsRefused("root 3 is not a rank of a world of 3"));
  EXPECT_THAT(BroadcastRequest(self_, F32(0, 10), Rank(-1)), IsRefused("root -1 is not a rank of a world of 3"));
  EXPECT_THAT(BroadcastRequest(self_, EverySecond(0, 10), Rank(0)), IsRefused(HasSubstr("contiguous")));
}

TEST_F(CollectivesTest, DevicesTravelWithTheRequest) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CollectiveRequest request, BroadcastRequest(self_, OnGpu(10), Rank(0)));
  EXPECT_EQ(request.device, (DeviceId{DeviceKind::kCuda, 0}));
  EXPECT_THAT(self_.Run(request), IsRefused(AllOf(HasSubstr("on cuda:0"), HasSubstr("for the host alone"))));
  EXPECT_THAT(self_.status(), IsOk());
  EXPECT_THAT(AllReduceRequest(F32(0, 10), OnGpu(10), ReduceOp::kSum),
              IsRefused("input is on host and output is on cuda:0"));
}

TEST_F(CollectivesTest, ReduceLooksAtTheOutputOnTheRootAlone) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CollectiveRequest elsewhere,
                                ReduceRequest(self_, F32(0, 10), TensorView(), ReduceOp::kSum, Rank(0)));
  EXPECT_EQ(elsewhere.collective, Collective::kReduce);
  EXPECT_EQ(elsewhere.root, Rank(0));
  EXPECT_EQ(elsewhere.output, nullptr);
  EXPECT_THAT(ReduceRequest(self_, F32(0, 10), I32(2, 3), ReduceOp::kSum, Rank(0)), IsOk());

  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CollectiveRequest here,
                                ReduceRequest(self_, F32(0, 10), F32(20, 10), ReduceOp::kProd, Rank(1)));
  EXPECT_EQ(here.output, memory_.data() + 20);
  EXPECT_EQ(here.op, ReduceOp::kProd);
  const auto at_root = [&](const TensorView& output) {
    return ReduceRequest(self_, F32(0, 10), output, ReduceOp::kSum, Rank(1)).status();
  };
  EXPECT_THAT(at_root(TensorView()), IsRefused("input has 10 elements and output has 0"));
  EXPECT_THAT(at_root(I32(20, 10)), IsRefused("input is f32 and output is i32"));
  EXPECT_THAT(at_root(F32(5, 10)), IsRefused(HasSubstr("overlap")));
  EXPECT_THAT(at_root(EverySecond(20, 10)), IsRefused(HasSubstr("contiguous")));
  EXPECT_THAT(ReduceRequest(self_, F32(0, 10), F32(20, 10), ReduceOp::kSum, Rank(3)), IsRefused(HasSubstr("root 3")));
  EXPECT_THAT(ReduceRequest(self_, F32(0, 10), TensorView(), ReduceOp::kAnd, Rank(0)), IsRefused(HasSubstr("and")));
  EXPECT_THAT(ReduceRequest(self_, EverySecond(0, 10), TensorView(), ReduceOp::kSum, Rank(0)),
              IsRefused(HasSubstr("contiguous")));
}

TEST_F(CollectivesTest, AllGather) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CollectiveRequest request, AllGatherRequest(self_, F32(0, 4), F32(20, 12)));
  EXPECT_EQ(request.collective, Collective::kAllGather);
  EXPECT_EQ(request.count, 12);
  EXPECT_EQ(request.input, memory_.data());
  EXPECT_EQ(request.output, memory_.data() + 20);
  EXPECT_THAT(AllGatherRequest(self_, F32(24, 4), F32(20, 12)), IsOk()) << "in place";
  EXPECT_THAT(AllGatherRequest(self_, F32(0, 0), F32(20, 0)), IsOk());
  const auto refusal = [&](const TensorView& input, const TensorView& output) {
    return AllGatherRequest(self_, input, output).status();
  };
  EXPECT_THAT(refusal(F32(0, 4), F32(20, 13)),
              IsRefused("output has 13 elements, which is not 3 (world size) x 4 (elements of input)"));
  EXPECT_THAT(refusal(F32(0, 4), F32(20, 4)), IsRefused(HasSubstr("output has 4 elements")));
  EXPECT_THAT(refusal(F32(20, 4), F32(20, 12)),
              IsRefused(HasSubstr("input overlaps output elsewhere than at block 1")));
  EXPECT_THAT(refusal(F32(25, 4), F32(20, 12)), IsRefused(HasSubstr("overlaps")));
  EXPECT_THAT(refusal(F32(18, 4), F32(20, 12)), IsRefused(HasSubstr("overlaps")));
  EXPECT_THAT(refusal(F32(0, 4), I32(20, 12)), IsRefused(HasSubstr("i32")));
  EXPECT_THAT(refusal(EverySecond(0, 4), F32(20, 12)), IsRefused(HasSubstr("input")));
  EXPECT_THAT(refusal(F32(0, 4), EverySecond(20, 12)), IsRefused(HasSubstr("output")));
}

TEST_F(CollectivesTest, ReduceScatter) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CollectiveRequest request,
                                ReduceScatterRequest(self_, F32(20, 12), F32(0, 4), ReduceOp::kMin));
  EXPECT_EQ(request.collective, Collective::kReduceScatter);
  EXPECT_EQ(request.count, 12);
  EXPECT_EQ(request.op, ReduceOp::kMin);
  EXPECT_EQ(request.input, memory_.data() + 20);
  EXPECT_EQ(request.output, memory_.data());
  EXPECT_THAT(ReduceScatterRequest(self_, F32(20, 12), F32(24, 4), ReduceOp::kSum), IsOk()) << "in place";
  const auto refusal = [&](const TensorView& input, const TensorView& output, ReduceOp op = ReduceOp::kSum) {
    return ReduceScatterRequest(self_, input, output, op).status();
  };
  EXPECT_THAT(refusal(F32(20, 11), F32(0, 4)),
              IsRefused("input has 11 elements, which is not 3 (world size) x 4 (elements of output)"));
  EXPECT_THAT(refusal(F32(20, 12), F32(20, 4)),
              IsRefused(HasSubstr("output overlaps input elsewhere than at block 1")));
  EXPECT_THAT(refusal(F32(20, 12), I32(0, 4)), IsRefused(HasSubstr("i32")));
  EXPECT_THAT(refusal(F32(20, 12), F32(0, 4), ReduceOp::kOr), IsRefused(HasSubstr("or")));
  EXPECT_THAT(refusal(EverySecond(20, 12), F32(0, 4)), IsRefused(HasSubstr("input")));
  EXPECT_THAT(refusal(F32(20, 12), EverySecond(0, 4)), IsRefused(HasSubstr("output")));
}

TEST_F(CollectivesTest, BarrierHasNoData) {
  EXPECT_EQ(BarrierRequest().collective, Collective::kBarrier);
  EXPECT_EQ(BarrierRequest().count, 0);
}

const std::vector<int64_t> kCounts = {4, 2, 0};  // of ranks 0, 1, 2

TEST_F(CollectivesTest, BlocksOfTheirOwnSizes) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CollectiveRequest gather,
                                AllGatherRequest(self_, F32(20, 2), F32(0, 6), kCounts));
  EXPECT_EQ(gather.count, 6);
  EXPECT_EQ(gather.counts.data(), kCounts.data());
  EXPECT_THAT(AllGatherRequest(self_, F32(4, 2), F32(0, 6), kCounts), IsOk()) << "in place";
  EXPECT_THAT(AllGatherRequest(self_, F32(2, 2), F32(0, 6), kCounts), IsRefused(HasSubstr("at block 1")));
  EXPECT_THAT(AllGatherRequest(self_, F32(20, 3), F32(0, 6), kCounts),
              IsRefused(AllOf(HasSubstr("input has 3 elements"), HasSubstr("counts[1]"))));
  EXPECT_THAT(AllGatherRequest(self_, F32(20, 2), F32(0, 7), kCounts),
              IsRefused(AllOf(HasSubstr("output has 7 elements"), HasSubstr("add up to 6"))));
  EXPECT_THAT(AllGatherRequest(self_, F32(20, 2), F32(0, 6), {4, 2}), IsRefused(HasSubstr("2 entries for 3 ranks")));
  EXPECT_THAT(AllGatherRequest(self_, F32(20, 2), F32(0, 6), {5, 2, -1}), IsRefused(HasSubstr("negative: -1")));
  EXPECT_THAT(ReduceScatterRequest(self_, F32(0, 6), F32(4, 2), ReduceOp::kSum, kCounts), IsOk());
  EXPECT_THAT(ReduceScatterRequest(self_, F32(0, 6), F32(0, 2), ReduceOp::kSum, kCounts),
              IsRefused(HasSubstr("at block 1")));
}

TEST_F(CollectivesTest, GatherAndScatterLookAtTheWholeOnTheRootAlone) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(CollectiveRequest request, GatherRequest(self_, F32(0, 5), TensorView(), Rank(2)));
  EXPECT_EQ(request.collective, Collective::kGather);
  EXPECT_EQ(request.count, 15);
  EXPECT_EQ(request.root, Rank(2));
  EXPECT_EQ(request.output, nullptr);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(request, GatherRequest(self_, F32(0, 5), F32(10, 15), Rank(1)));
  EXPECT_EQ(request.output, memory_.data() + 10);
  EXPECT_THAT(GatherRequest(self_, F32(15, 5), F32(10, 15), Rank(1)), IsOk()) << "in place";
  EXPECT_THAT(GatherRequest(self_, F32(0, 5), F32(10, 14), Rank(1)), IsRefused(HasSubstr("14 elements")));
  EXPECT_THAT(GatherRequest(self_, F32(0, 5), I32(10, 15), Rank(1)), IsRefused(HasSubstr("output is i32")));
  EXPECT_THAT(GatherRequest(self_, F32(0, 5), TensorView(), Rank(3)), IsRefused(HasSubstr("root 3")));

  LOCKSTEP_ASSERT_OK_AND_ASSIGN(request, ScatterRequest(self_, TensorView(), F32(0, 2), Rank(0), kCounts));
  EXPECT_EQ(request.collective, Collective::kScatter);
  EXPECT_EQ(request.count, 6);
  EXPECT_EQ(request.input, nullptr);
  EXPECT_THAT(ScatterRequest(self_, F32(10, 6), F32(14, 2), Rank(1), kCounts), IsOk()) << "in place";
  EXPECT_THAT(ScatterRequest(self_, F32(10, 6), F32(13, 2), Rank(1), kCounts), IsRefused(HasSubstr("at block 1")));
  EXPECT_THAT(ScatterRequest(self_, TensorView(), EverySecond(0, 2), Rank(0)), IsRefused(HasSubstr("contiguous")));
}

TEST_F(CollectivesTest, AllToAll) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(CollectiveRequest request, AllToAllRequest(self_, F32(0, 6), F32(10, 6)));
  EXPECT_EQ(request.collective, Collective::kAllToAll);
  EXPECT_EQ(request.count, 6);
  EXPECT_THAT(AllToAllRequest(self_, F32(0, 6), F32(0, 6)), IsOk()) << "in place";
  EXPECT_THAT(AllToAllRequest(self_, F32(0, 6), F32(1, 6)), IsRefused(HasSubstr("overlap")));
  EXPECT_THAT(AllToAllRequest(self_, F32(0, 7), F32(10, 7)), IsRefused(HasSubstr("multiples of 3")));
  EXPECT_THAT(AllToAllRequest(self_, F32(0, 6), F32(10, 9)), IsRefused(HasSubstr("9")));
  const std::vector<int64_t> from = {1, 2, 3};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(request, AllToAllRequest(self_, F32(0, 6), F32(10, 6), kCounts, from));
  EXPECT_EQ(request.output_counts.data(), from.data());
  EXPECT_THAT(AllToAllRequest(self_, F32(0, 6), F32(10, 7), kCounts, from), IsRefused(HasSubstr("add up to 6 and 6")));
  EXPECT_THAT(AllToAllRequest(self_, F32(0, 6), F32(10, 6), kCounts), IsRefused(HasSubstr("output_counts has 0")));
}

// Where a request's vector lies: offsets in memory_ and lengths of its pieces, in elements.
using Places = std::vector<std::pair<ptrdiff_t, size_t>>;

class CoalescedTest : public CollectivesTest {
 protected:
  Places PlacesOf(const Ref<const Pieces>& pieces) {
    Places places;
    for (size_t position = 0; pieces != nullptr && position < pieces->bytes(); position += 4 * places.back().second) {
      const Pieces::Run run = pieces->At(position);
      places.emplace_back(reinterpret_cast<float*>(run.data) - memory_.data(), run.bytes / 4);
    }
    return places;
  }
  // Of pairs of input and output.
  absl::StatusOr<std::vector<CollectiveRequest>> AllReduce(const std::vector<std::pair<TensorView, TensorView>>& list) {
    std::vector<CollectiveRequest> calls;
    for (const auto& [input, output] : list) calls.push_back(AllReduceRequest(input, output, ReduceOp::kMax).value());
    return CoalescedRequests(self_, calls);
  }
};

TEST_F(CoalescedTest, TensorsAreOneVector) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto requests,
                                AllReduce({{F32(0, 5), F32(50, 5)}, {F32(9, 0), F32(9, 0)}, {F32(30, 3), F32(30, 3)}}));
  ASSERT_EQ(requests.size(), 1);
  EXPECT_EQ(requests[0].collective, Collective::kAllReduce);
  EXPECT_EQ(requests[0].op, ReduceOp::kMax);
  EXPECT_EQ(requests[0].count, 8);
  EXPECT_EQ(PlacesOf(requests[0].input_pieces), (Places{{0, 5}, {30, 3}}));
  EXPECT_EQ(PlacesOf(requests[0].output_pieces), (Places{{50, 5}, {30, 3}}));
}

TEST_F(CoalescedTest, BlocksAreThoseOfEachTensor) {
  const std::vector<TensorView> parts = {F32(0, 2), F32(5, 1)};
  const std::vector<TensorView> wholes = {F32(20, 6), F32(40, 3)};
  const Places in_blocks = {{20, 2}, {40, 1}, {22, 2}, {41, 1}, {24, 2}, {42, 1}};
  std::vector<CollectiveRequest> gathers, scatters;
  for (int i = 0; i < 2; ++i) {
    gathers.push_back(AllGatherRequest(self_, parts[i], wholes[i]).value());
    scatters.push_back(ReduceScatterRequest(self_, wholes[i], parts[i], ReduceOp::kSum).value());
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(gathers, CoalescedRequests(self_, gathers));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(scatters, CoalescedRequests(self_, scatters));
  EXPECT_EQ(gathers[0].count, 9);
  EXPECT_EQ(PlacesOf(gathers[0].input_pieces), (Places{{0, 2}, {5, 1}}));
  EXPECT_EQ(PlacesOf(gathers[0].output_pieces), in_blocks);
  EXPECT_EQ(scatters[0].count, 9);
  EXPECT_EQ(PlacesOf(scatters[0].input_pieces), in_blocks);
  EXPECT_EQ(PlacesOf(scatters[0].output_pieces), (Places{{0, 2}, {5, 1}}));
}

TEST_F(CoalescedTest, OneRangeIsAnOrdinaryRequest) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto inputs, AllReduce({{F32(0, 5), F32(50, 5)}, {F32(5, 3), F32(60, 3)}}));
  EXPECT_EQ(inputs[0].input, memory_.data());
  EXPECT_EQ(inputs[0].input_pieces, nullptr);
  EXPECT_EQ(PlacesOf(inputs[0].output_pieces), (Places{{50, 5}, {60, 3}}));
  EXPECT_EQ(inputs[0].output, nullptr);

  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto nothing, AllReduce({{F32(3, 0), F32(7, 0)}, {F32(9, 0), F32(2, 0)}}));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto one,
                                CoalescedRequests(self_, {*AllGatherRequest(self_, F32(0, 2), F32(9, 6))}));
  EXPECT_EQ(one[0].input, memory_.data());
  EXPECT_EQ(one[0].output, memory_.data() + 9);
  for (const CollectiveRequest& request : {nothing[0], one[0]}) {
    EXPECT_EQ(request.input_pieces, nullptr);
    EXPECT_EQ(request.output_pieces, nullptr);
  }
}

TEST_F(CoalescedTest, OnADeviceTheCallsStayApart) {
  std::vector<CollectiveRequest> calls;
  for (size_t at : {0, 50}) {
    const DeviceId device = {DeviceKind::kCuda, 0};
    const TensorView tensor = *TensorView::Create(memory_.data() + at, DType::kF32, {5}, {}, device);
    calls.push_back(BroadcastRequest(self_, tensor, Rank(2)).value());
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto requests, CoalescedRequests(self_, calls));
  ASSERT_EQ(requests.size(), 2);
  EXPECT_EQ(requests[1].input, memory_.data() + 50);
  calls[1].input = calls[1].output = memory_.data() + 4;
  EXPECT_THAT(CoalescedRequests(self_, calls).status(), IsRefused("tensor 0 and tensor 1 of the list overlap"));
}

TEST_F(CoalescedTest, Refusals) {
  const TensorView on_gpu = *TensorView::Create(memory_.data() + 50, DType::kF32, {9}, {}, {DeviceKind::kCuda, 0});
  EXPECT_THAT(AllReduce({{F32(0, 5), F32(0, 5)}, {F32(9, 2), F32(9, 2)}, {I32(50, 9), I32(50, 9)}}).status(),
              IsRefused("tensor 0 is f32 and tensor 2 is i32: a list has one dtype"));
  EXPECT_THAT(AllReduce({{F32(0, 5), F32(0, 5)}, {on_gpu, on_gpu}}).status(),
              IsRefused("tensor 0 is on host and tensor 1 is on cuda:0: a list is in one place"));
  EXPECT_THAT(AllReduce({{F32(0, 5), F32(20, 5)}, {F32(4, 5), F32(30, 5)}}).status(),
              IsRefused("input 0 and input 1 of the list overlap"));
  EXPECT_THAT(AllReduce({{F32(0, 5), F32(20, 5)}, {F32(15, 9), F32(30, 9)}}).status(),
              IsRefused("input 1 and output 0 of the list overlap"));
  EXPECT_THAT(AllReduce({{F32(0, 5), F32(20, 5)}, {F32(9, 5), F32(24, 5)}}).status(),
              IsRefused("output 0 and output 1 of the list overlap"));
  EXPECT_THAT(AllReduce({{F32(40, 9), F32(40, 9)}, {F32(10, 40), F32(50, 40)}, {F32(0, 1), F32(1, 1)}}).status(),
              IsRefused("input 1 and tensor 0 of the list overlap"));
  // In place of its own block, in another's.
  EXPECT_THAT(CoalescedRequests(self_, {*AllGatherRequest(self_, F32(23, 3), F32(20, 9)),
                                        *AllGatherRequest(self_, F32(28, 1), F32(50, 3))})
                  .status(),
              IsRefused("tensor 0 and input 1 of the list overlap"));
  EXPECT_THAT(AllReduce({{F32(0, 5), F32(5, 5)}, {F32(10, 5), F32(15, 5)}, {F32(2, 0), F32(7, 0)}}), IsOk());
}

}  // namespace
}  // namespace lockstep
