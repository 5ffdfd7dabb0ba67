#include "kernels/cuda/rig_testing.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_device.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/elements_inl.h"
#include "kernels/cuda/hash_inl.h"
#include "kernels/cuda/table_inl.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr uint8_t kPattern = 0xA5;
constexpr int kTimeoutMs = 60000;

using HostKernel = void (*)(uint32_t blocks, const void* arguments);

template <typename Body>
void RunGrid(uint32_t blocks, const void* arguments) {
  const auto& of_body = *static_cast<const typename Body::Arguments*>(arguments);
  for (uint32_t block = 0; block < blocks; ++block) {
    for (uint32_t thread = 0; thread < kThreads; ++thread) Body::Run(of_body, block, thread);
  }
}

template <typename Body>
struct HostEntry {
  static KernelFunction Function() { return reinterpret_cast<KernelFunction>(&RunGrid<Body>); }
};

class HostRig final : public TestRig {
 public:
  HostRig() : memory_(std::aligned_alloc(kAlignment, kMemoryBytes)) { SetMemory(memory_); }
  ~HostRig() override { std::free(memory_); }

  Executor& executor() override { return executor_; }
  absl::Status Copy(void* target, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, bytes);
    return absl::OkStatus();
  }

 private:
  HostExecutor executor_;
  void* const memory_;
};

class DeviceRig final : public TestRig {
 public:
  DeviceRig(Device& device, std::unique_ptr<Stream> stream, StreamExecutor executor, void* memory)
      : device_(device), stream_(std::move(stream)), executor_(executor), memory_(memory) {
    SetMemory(memory);
  }
  ~DeviceRig() override { device_.Free(memory_); }

  Executor& executor() override { return executor_; }
  absl::Status Copy(void* target, const void* source, size_t bytes) override {
    LOCKSTEP_RETURN_IF_ERROR(stream_->Copy(target, source, bytes));
    return stream_->Synchronize(Deadline::AfterMs(kTimeoutMs));
  }

 private:
  Device& device_;
  const std::unique_ptr<Stream> stream_;
  StreamExecutor executor_;
  void* const memory_;
};

}  // namespace

const KernelTable& HostExecutor::kernels() const {
  static const KernelTable table = [] {
    KernelTable kernels = {};
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) AddTransfersTo<HostEntry, id>(kernels);
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
    kernels.hash = HostEntry<Hash>::Function();
    return kernels;
  }();
  return table;
}

absl::Status HostExecutor::Launch(KernelFunction kernel, uint32_t blocks, const void* arguments) {
  ++launches_;
  reinterpret_cast<HostKernel>(kernel)(blocks, arguments);
  return absl::OkStatus();
}

char* TestRig::Allocate(size_t bytes) {
  char* const begin = memory_ + used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  LOCKSTEP_CHECK(used_ <= kMemoryBytes) << "a test wants " << used_ << " bytes";
  return begin;
}

absl::StatusOr<std::unique_ptr<TestRig>> MakeHostRig() { return std::make_unique<HostRig>(); }

absl::StatusOr<std::unique_ptr<TestRig>> MakeDeviceRig() {
  LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device->CreateStream("kernels"));
  LOCKSTEP_ASSIGN_OR_RETURN(StreamExecutor executor, StreamExecutor::Create(*stream));
  LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, device->Allocate(TestRig::kMemoryBytes));
  return std::make_unique<DeviceRig>(*device, std::move(stream), executor, memory);
}

DeviceBytes::DeviceBytes(TestRig& rig, const std::vector<uint8_t>& contents, size_t offset)
    : rig_(rig),
      before_(kAlignment + offset),
      bytes_(contents.size()),
      data_(rig.Allocate(before_ + bytes_ + kGuard) + before_) {
  std::vector<uint8_t> all(before_ + bytes_ + kGuard, kPattern);
  std::copy(contents.begin(), contents.end(), all.begin() + before_);
  EXPECT_TRUE(rig_.Copy(data_ - before_, all.data(), all.size()).ok());
}

std::vector<uint8_t> DeviceBytes::Read() const {
  std::vector<uint8_t> contents(bytes_);
  const absl::Status status = rig_.Copy(contents.data(), data_, bytes_);
  EXPECT_TRUE(status.ok()) << status;
  return contents;
}

bool DeviceBytes::GuardsIntact() const {
  std::vector<uint8_t> all(before_ + bytes_ + kGuard);
  const absl::Status status = rig_.Copy(all.data(), data_ - before_, all.size());
  EXPECT_TRUE(status.ok()) << status;
  const auto is_pattern = [](uint8_t byte) { return byte == kPattern; };
  return std::all_of(all.begin(), all.begin() + before_, is_pattern) &&
         std::all_of(all.begin() + before_ + bytes_, all.end(), is_pattern);
}

void ExpectSameBytes(const std::vector<uint8_t>& actual, const std::vector<uint8_t>& expected, size_t element_bytes) {
  ASSERT_EQ(actual.size(), expected.size());
  const auto ends = std::mismatch(actual.begin(), actual.end(), expected.begin());
  if (ends.first == actual.end()) return;
  const size_t element = (ends.first - actual.begin()) / element_bytes;
  uint64_t is = 0;
  uint64_t should_be = 0;
  const size_t shown = std::min<size_t>(element_bytes, sizeof(is));
  std::memcpy(&is, actual.data() + element * element_bytes, shown);
  std::memcpy(&should_be, expected.data() + element * element_bytes, shown);
  ADD_FAILURE() << "element " << element << " of " << actual.size() / element_bytes << " is 0x" << std::hex << is
                << " and should be 0x" << should_be;
}

}  // namespace lockstep::kernels::cuda
