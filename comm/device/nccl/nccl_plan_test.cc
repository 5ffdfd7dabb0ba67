// What the fake of NCCL does not show: how factors are encoded, and what NCCL has not. That calls do what they should, for every
// collective, dtype, op and many worlds, is the conformance suite's to prove (nccl_conformance_test.cc).

#include "comm/device/nccl/nccl_plan.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference_testing.h"
#include "transport/nccl/nccl_abi.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using Code = absl::StatusCode;

std::vector<NcclCall> Plan(const CollectiveRequest& request, int rank, int size) {
  std::vector<NcclCall> calls;
  AppendNcclCalls(request, Rank(rank), size, &calls);
  return calls;
}

TEST(NcclSupportsTest, OnlyWhatNcclHasNoEquivalentOfIsUnimplemented) {
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllReduceOps) {
        const absl::Status supported = NcclSupports(collective, dtype, op, /*has_float8=*/true);
        if (!IsDefined(dtype, op)) {
          EXPECT_THAT(supported, StatusIs(Code::kInvalidArgument)) << Name(dtype) << " " << Name(op);
          continue;
        }
        const bool bitwise = op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
        const bool is_float8 = dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
        const bool is_missing = (dtype == DType::kBool ? op == ReduceOp::kXor : bitwise) ||
                                (IsComplex(dtype) && op == ReduceOp::kProd) ||
                                (is_float8 && (op == ReduceOp::kAvg || op == ReduceOp::kPremulSum));
        EXPECT_EQ(supported.code(), is_missing ? Code::kUnimplemented : Code::kOk) << Name(dtype) << " " << Name(op);
      }
    }
  }
  EXPECT_THAT(NcclSupports(Collective::kAllReduce, DType::kF8E4M3, ReduceOp::kSum, /*has_float8=*/false),
              StatusIs(Code::kUnimplemented, HasSubstr("NCCL has no sum of f8e4m3 before 2.24")));
  EXPECT_THAT(NcclSupports(Collective::kAllGather, DType::kF8E4M3, ReduceOp::kSum, /*has_float8=*/false), IsOk());
}

TEST(NcclPlanTest, AFactorIsEncodedAsTheElementsAre) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    float data[4] = {};
    CollectiveRequest request = MakeRequest(Collective::kAllReduce, dtype, 2, data, data);
    request.op = ReduceOp::kPremulSum;
    request.factor = -0.375;
    const std::vector<NcclCall> calls = Plan(request, 0, 2);
    ASSERT_THAT(calls, SizeIs(1));
    EXPECT_TRUE(calls[0].scaled);
    EXPECT_EQ(calls[0].count, IsComplex(dtype) ? 4u : 2u);
    const DType part = RealOf(dtype);
    uint64_t code = 0;
    std::memcpy(&code, calls[0].factor.data(), SizeOf(part));
    EXPECT_EQ(kernels::ReferenceDecode(part, code), -0.375) << Name(dtype);
  }
}

TEST(NcclPlanTest, OnlyAPremultipliedSumHasAFactor) {
  float data[4] = {};
  CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, 4, data, data);
  request.op = ReduceOp::kAvg;
  request.factor = 3;
  EXPECT_FALSE(Plan(request, 0, 2)[0].scaled);
  EXPECT_EQ(Plan(request, 0, 2)[0].op, nccl::kAvg);
}

}  // namespace
}  // namespace lockstep
