#include "tests/test_device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_contexts_testing.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/host_device.h"
#include "base/mutex.h"
#include "tests/fake_device.h"

namespace lockstep::testing {
namespace {

std::string Kind() {
  const char* const kind = std::getenv("DEVICE_UNDER_TEST");
  return kind == nullptr ? "" : kind;
}

Device* FakeDeviceOf(int rank) {
  static auto* const mu = new Mutex;
  static auto* const devices = new std::vector<FakeDevice*>;
  MutexLock lock(mu);
  const int queues = Kind() == "one_queue" ? 1 : 0;
  while (static_cast<int>(devices->size()) <= rank) devices->push_back(new FakeDevice(/*index=*/0, queues));
  return (*devices)[rank];
}

// A fake in the place of a GPU has its own way with ranks.
bool InContexts() { return Kind() == "cuda"; }

// Blocks of a GPU's, which the host reaches: cut off one large one, and kept by size.
class ReachablePool {
 public:
  // Before any rank has something under way.
  void Reserve(Device* device) {
    MutexLock lock(&mu_);
    AddBlock(device, kBlockBytes);
  }
  void* Take(Device* device, size_t bytes) {
    bytes = Rounded(bytes);
    MutexLock lock(&mu_);
    std::vector<void*>& free = free_[bytes];
    if (!free.empty()) {
      void* const memory = free.back();
      free.pop_back();
      return memory;
    }
    if (bytes > left_) AddBlock(device, std::max(bytes, kBlockBytes));
    left_ -= bytes;
    return std::exchange(next_, next_ + bytes);
  }
  void GiveBack(void* memory, size_t bytes) {
    MutexLock lock(&mu_);
    free_[Rounded(bytes)].push_back(memory);
  }

 private:
  static constexpr size_t kBlockBytes = size_t{64} << 20;
  void AddBlock(Device* device, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    next_ = static_cast<char*>(device->AllocateOnHost(bytes).value());
    left_ = bytes;
  }
  static size_t Rounded(size_t bytes) { return std::max<size_t>(256, (bytes + 255) / 256 * 256); }

  Mutex mu_;
  std::map<size_t, std::vector<void*>> free_ ABSL_GUARDED_BY(mu_);
  char* next_ ABSL_GUARDED_BY(mu_) = nullptr;
  size_t left_ ABSL_GUARDED_BY(mu_) = 0;
};

ReachablePool& Pool() {
  static auto* const pool = new ReachablePool;
  return *pool;
}

absl::StatusOr<Device*> FindGpu(int rank) { return InContexts() ? CudaDeviceInContext(rank) : CudaDevice(0); }

Device* GpuOf(int rank) {
  static const absl::Status found = [] {
    const absl::StatusOr<Device*> first = FindGpu(0);
    if (first.ok()) Pool().Reserve(*first);
    return first.status();
  }();
  if (found.ok()) return FindGpu(rank).value();
  // What a test that is skipped says, for a whole program.
  std::printf("[  SKIPPED ] %s\n", found.ToString().c_str());
  std::fflush(stdout);
  std::_Exit(77);
}

thread_local int rank_of_this_thread = 0;

}  // namespace

Device* TestDevice(int rank) {
  const std::string kind = Kind();
  if (OnFakeDevice()) return FakeDeviceOf(rank);
  if (OnGpu()) return GpuOf(rank);
  LOCKSTEP_CHECK(kind.empty()) << "DEVICE_UNDER_TEST is '" << kind << "'; known are fake, one_queue, cuda, fake_nccl";
  return HostDevice();
}

void BecomeTestRank(int rank) {
  rank_of_this_thread = rank;
  if (!InContexts()) return;
  TestDevice(rank);
  LOCKSTEP_CHECK(EnterCudaContext(rank) == 0) << "of rank " << rank;
}

bool OnFakeDevice() { return Kind() == "fake" || Kind() == "one_queue"; }
bool OnGpu() { return InContexts() || ByNccl(); }
bool ByNccl() { return Kind() == "fake_nccl"; }
bool WithHostKernels() { return OnFakeDevice() || ByNccl(); }

void* AllocateReachable(size_t bytes) {
  return OnGpu() ? Pool().Take(TestDevice(rank_of_this_thread), bytes) : HostDevice()->AllocateOnHost(bytes).value();
}

void FreeReachable(void* memory, size_t bytes) {
  if (OnGpu()) {
    Pool().GiveBack(memory, bytes);
  } else {
    HostDevice()->FreeOnHost(memory);
  }
}

void CopyAnywhere(void* target, const void* source, size_t bytes) {
  if (bytes == 0) return;
  if (!OnGpu()) {
    std::memcpy(target, source, bytes);
    return;
  }
  static thread_local const std::unique_ptr<Stream> stream =
      TestDevice(rank_of_this_thread)->CreateStream("copy").value();
  LOCKSTEP_CHECK(stream->Copy(target, source, bytes).ok() && stream->Synchronize(Deadline::AfterMs(30000)).ok());
}

}  // namespace lockstep::testing
