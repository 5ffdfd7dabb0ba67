// Linked into a test of what is above devices, this has its ranks reduce by memory that they map
// (comm/ipc_communicator.h): on a CUDA in memory, where DEVICE_UNDER_TEST is fake_cuda.

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "base/cuda_api_testing.h"
#include "base/device.h"
#include "comm/communicator.h"
#include "comm/ipc_communicator.h"
#include "comm/ipc_page.h"
#include "kernels/cpu/fold_kernels.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

absl::StatusOr<std::unique_ptr<Communicator>> Make(Communicator* host, Device* device,
                                                   std::chrono::milliseconds timeout) {
  if (host->size() > kIpcRanksMax) return testing::MakeStagedTestCommunicator(host, device, timeout);
  IpcOptions options;
  options.timeout = timeout;
  options.kernels = kernels::HostFoldKernels();
  return IpcCommunicator::Create(host, device, options);
}

[[maybe_unused]] const bool chosen = [] {
  if (!testing::ByIpc()) return false;
  new FakeCuda;  // for the rest of the process
  testing::ReplaceTestCommunicators(&Make);
  return true;
}();

}  // namespace
}  // namespace lockstep
