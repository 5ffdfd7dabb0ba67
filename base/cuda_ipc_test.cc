// Over a fake of CUDA, in one process: what is refused and how it is told. Memory before several processes is
// comm/ipc_process_test's.

#include "base/cuda_ipc.h"

#include <string>

#include "absl/status/status.h"
#include "base/cuda_api.h"
#include "base/cuda_api_testing.h"
#include "base/cuda_device.h"
#include "base/device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class CudaIpc : public ::testing::Test {
 protected:
  FakeCuda cuda_;
  Device* const device_ = CudaDevice(0).value();
};

TEST_F(CudaIpc, AGpuReachesItselfAndPeersAndThoseThatThisProcessDoesNotSee) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string first, CudaPciAddress(0));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string second, CudaPciAddress(1));
  EXPECT_NE(first, second);
  EXPECT_THAT(CheckCudaPeer(0, second), IsOk());
  EXPECT_THAT(EnableCudaPeer(0, 1), IsOk());
  cuda_.set_peer_access(false);
  EXPECT_THAT(CheckCudaPeer(0, first), IsOk());
  EXPECT_THAT(CheckCudaPeer(0, second),
              StatusIs(Code::kUnavailable, AllOf(HasSubstr("cuda:0 has no peer access to cuda:1"), HasSubstr(second))));
  EXPECT_THAT(EnableCudaPeer(0, 1), StatusIs(Code::kUnavailable, HasSubstr("cudaDeviceEnablePeerAccess(1, 0)")));
  EXPECT_THAT(EnableCudaPeer(0, 0), IsOk());
  EXPECT_THAT(CheckCudaPeer(0, "0000:7f:00.0"), IsOk());
  EXPECT_TRUE(cuda_.LastErrorIsClear());
}

TEST_F(CudaIpc, APeerThatIsEnabledAlreadyIsNoError) {
  cuda_.Fail("cudaDeviceEnablePeerAccess", kCudaPeerAccessAlreadyEnabled);
  EXPECT_THAT(EnableCudaPeer(0, 1), IsOk());
  EXPECT_TRUE(cuda_.LastErrorIsClear());
}

TEST_F(CudaIpc, WhatCudaDoesNotAllowIsUnavailableInItsWords) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, device_->Allocate(kCudaIpcGranularity));
  cuda_.Fail("cudaIpcGetMemHandle", kCudaNotSupported);
  EXPECT_THAT(ExportCudaMemory(0, memory),
              StatusIs(Code::kUnavailable, AllOf(HasSubstr("cudaIpcGetMemHandle"), HasSubstr("the test asked"))));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string handle, ExportCudaMemory(0, memory));
  // In the process that exported it.
  EXPECT_THAT(OpenCudaMemory(0, handle), StatusIs(Code::kUnavailable, HasSubstr("cudaIpcOpenMemHandle")));
  EXPECT_THAT(OpenCudaMemory(0, "handle"), StatusIs(Code::kInvalidArgument, HasSubstr("6 bytes")));
  EXPECT_THAT(ExportCudaMemory(0, static_cast<char*>(memory) + 256), StatusIs(Code::kUnavailable));
  device_->Free(memory);
  EXPECT_TRUE(cuda_.LastErrorIsClear());
}

}  // namespace
}  // namespace lockstep
