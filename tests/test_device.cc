#include "tests/test_device.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/cuda_device.h"
#include "base/host_device.h"
#include "base/mutex.h"
#include "tests/fake_device.h"

namespace lockstep {
namespace testing {
namespace {

std::string Kind() {
  const char* const kind = std::getenv("LOCKSTEP_TEST_DEVICE");
  return kind == nullptr ? "" : kind;
}

Device* FakeDeviceOf(int rank) {
  static auto* const mu = new Mutex;
  static auto* const devices = new std::vector<FakeDevice*>;
  MutexLock lock(mu);
  while (static_cast<int>(devices->size()) <= rank) devices->push_back(new FakeDevice);
  return (*devices)[rank];
}

Device* Gpu() {
  // Ranks as threads have more streams than there are queues otherwise, and one that waits would hold up others.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  absl::StatusOr<Device*> device = CudaDevice(0);
  if (device.ok()) return *device;
  // What a test that is skipped says, for a whole program.
  std::printf("[  SKIPPED ] %s\n", device.status().ToString().c_str());
  std::fflush(stdout);
  std::_Exit(77);
}

}  // namespace

Device* TestDevice(int rank) {
  const std::string kind = Kind();
  if (kind == "fake") return FakeDeviceOf(rank);
  if (kind == "cuda") {
    static Device* const gpu = Gpu();
    return gpu;
  }
  LOCKSTEP_CHECK(kind.empty()) << "LOCKSTEP_TEST_DEVICE is '" << kind << "'; known are fake, cuda";
  return HostDevice();
}

}  // namespace testing
}  // namespace lockstep
