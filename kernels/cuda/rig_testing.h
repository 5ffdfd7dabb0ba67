// Where the conformance tests run kernels: on a device, or by their bodies on the host.

#ifndef KERNELS_CUDA_RIG_TESTING_H_
#define KERNELS_CUDA_RIG_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/kernel_table.h"

namespace lockstep::kernels::cuda {

// Runs the kernels' bodies on the calling thread, block by block and thread by thread, on memory of the host that is
// said to be a device's: what tests judge without a device. Counts launches, and can refuse large arguments as old
// drivers do.
class HostExecutor final : public Executor {
 public:
  explicit HostExecutor(bool takes_large_arguments = true) : takes_large_arguments_(takes_large_arguments) {}

  DeviceId device() const override { return {DeviceKind::kCuda, 0}; }
  const KernelTable& kernels() const override;
  bool takes_large_arguments() const override { return takes_large_arguments_; }
  absl::Status Launch(KernelFunction kernel, uint32_t blocks, const void* arguments) override;

  size_t launches() const { return launches_; }

 private:
  const bool takes_large_arguments_;
  size_t launches_ = 0;
};

class TestRig {
 public:
  static constexpr size_t kMemoryBytes = size_t{256} << 20;

  virtual ~TestRig() = default;
  TestRig(const TestRig&) = delete;
  TestRig& operator=(const TestRig&) = delete;

  virtual Executor& executor() = 0;
  // From the host to the device or back, in the order of what was launched. Returns when the bytes are there.
  virtual absl::Status Copy(void* target, const void* source, size_t bytes) = 0;

  // Part of kMemoryBytes of the device, aligned to 256 bytes; all of them are given back by Reset. Aborts when there is
  // no more.
  char* Allocate(size_t bytes);
  void Reset() { used_ = 0; }

 protected:
  // kMemoryBytes at `memory`, aligned to 256 bytes.
  TestRig() = default;
  void SetMemory(void* memory) { memory_ = static_cast<char*>(memory); }

 private:
  char* memory_ = nullptr;
  size_t used_ = 0;
};

using MakeTestRig = absl::StatusOr<std::unique_ptr<TestRig>> (*)();

absl::StatusOr<std::unique_ptr<TestRig>> MakeHostRig();
// Device 0, a stream of its own. UNAVAILABLE where there is none.
absl::StatusOr<std::unique_ptr<TestRig>> MakeDeviceRig();

// An array on the device that begins `offset` bytes behind a boundary of 256, with a known pattern on both sides.
class DeviceBytes {
 public:
  DeviceBytes(TestRig& rig, const std::vector<uint8_t>& contents, size_t offset);

  char* data() const { return data_; }
  std::vector<uint8_t> Read() const;
  // Whether what surrounds the array still has its pattern.
  bool GuardsIntact() const;

 private:
  static constexpr size_t kGuard = 128;

  TestRig& rig_;
  const size_t before_;
  const size_t bytes_;
  char* const data_;
};

// Fails the running test with the first place in which they differ, counted in elements of `element_bytes`.
void ExpectSameBytes(const std::vector<uint8_t>& actual, const std::vector<uint8_t>& expected, size_t element_bytes);

}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_RIG_TESTING_H_
