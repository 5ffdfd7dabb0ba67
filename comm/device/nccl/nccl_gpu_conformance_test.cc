// What every communicator promises, by NCCL itself for a world of one. Skips without a GPU or NCCL. Larger worlds are
// processes: nccl_process_test.cc.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/device/nccl/nccl_communicator.h"
#include "comm/device/nccl/nccl_processes.h"
#include "comm/host/self_communicator.h"
#include "gtest/gtest.h"
#include "tests/communicator_conformance.h"
#include "tests/communicator_testing.h"

namespace lockstep {
namespace {

absl::StatusOr<TestCommunicators> Create(int size) {
  if (size != 1) return absl::UnavailableError("NCCL has one rank for each GPU");
  if (const std::string why = WhyNoNccl(); !why.empty()) return absl::UnavailableError(why);
  LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
  std::unique_ptr<Communicator> host = std::make_unique<SelfCommunicator>(16);
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> made =
      NcclCommunicator::Create(std::move(host), device, NcclCommunicatorOptions());
  // Both are there, so this is a failure.
  if (!made.ok()) return absl::InternalError(made.status().message());
  const std::shared_ptr<NcclCommunicator> communicator = *std::move(made);
  return TestCommunicators{communicator, {communicator.get()}};
}

// Null where there is no GPU: then nothing is created either.
Device* TheDevice() { return CudaDevice(0).value_or(nullptr); }

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformance,
                         ::testing::Values(CommunicatorFactory{"OneRank", &Create, false, CaseMemory{TheDevice()}}),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep
