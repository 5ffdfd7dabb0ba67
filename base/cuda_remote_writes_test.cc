#include "base/cuda_remote_writes.h"

#include "absl/status/status.h"
#include "base/cuda_api.h"
#include "base/cuda_api_testing.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(CudaRemoteWrites, MustBeInOrderOrFlushed) {
  FakeCuda cuda;
  EXPECT_THAT(CheckCudaRemoteWrites(0), IsOk());
  cuda.set_remote_writes(/*ordered=*/false, /*flushed=*/true);
  EXPECT_THAT(CheckCudaRemoteWrites(0), IsOk());
  cuda.set_remote_writes(/*ordered=*/false, /*flushed=*/false);
  EXPECT_THAT(CheckCudaRemoteWrites(1),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("cuda:1 keeps no order of what a network writes")));
  EXPECT_THAT(CheckCudaRemoteWrites(1000), IsOk()) << "there is no such GPU";
}

TEST(CudaRemoteWrites, WhatCudaSaysIsTold) {
  FakeCuda cuda;
  cuda.Fail("cudaDeviceGetAttribute", kCudaInvalidDevice);
  EXPECT_THAT(CheckCudaRemoteWrites(0).message(), HasSubstr("cudaDevAttrGPUDirectRDMAWritesOrdering"));
}

}  // namespace
}  // namespace lockstep
