// The device for tests that run on any: the host or, by the environment variable DEVICE_UNDER_TEST,
//
//   fake       devices made of the host, which call themselves cuda:0, with kernels of the host
//   one_queue  the same, with one queue for all streams of a device (base/device/shared_queues_testing.h)
//   cuda       the GPU cuda:0, in which each rank has a context of its own; tests that need one say that they are skipped
//              where there is none
//   fake_nccl  a CUDA in memory, with kernels of the host, and ranks reduce by a NCCL in memory, in programs with
//              tests/with_nccl.cc
//
// So one test proves code above devices on the host, over the seams of a device, and on a GPU.

#ifndef TESTS_TEST_DEVICE_H_
#define TESTS_TEST_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"

namespace lockstep {
namespace testing {

// One for each rank: elsewhere ranks are processes, and closures of one device wait for each other. Never destroyed.
Device* TestDevice(int rank);
// Must be called first by a thread that stands for a rank.
void BecomeTestRank(int rank);

inline DeviceId TestDeviceId() { return TestDevice(0)->id(); }
inline bool OnHost() { return TestDeviceId().kind == DeviceKind::kHost; }

// A device made of the host, with the host's kernels.
bool OnFakeDevice();
// On a GPU, or what stands in for one, which all ranks share.
bool OnGpu();
// Whether ranks reduce by NCCL.
bool ByNccl();
// Whether the test's device has the host's kernels.
bool WithHostKernels();

// Memory that the test's device and the host reach, uninitialised and aligned to 256 bytes. Thread-safe.
//
// On a GPU, allocating and freeing wait for what other ranks have in flight. So memory there comes from one large allocation as long as
// that lasts, and freed memory is kept for the next request of its size.
void* AllocateReachable(size_t bytes);
void FreeReachable(void* memory, size_t bytes);

// Copies between any memory that the test's device reaches, and waits for it. Not in a stream's closure. Thread-safe.
void CopyAnywhere(void* target, const void* source, size_t bytes);

template <typename T>
struct ReachableAllocator {
  using value_type = T;
  ReachableAllocator() = default;
  // As containers make allocators of others.
  template <typename U>
  ReachableAllocator(const ReachableAllocator<U>&) {}  // NOLINT(google-explicit-constructor)

  T* allocate(size_t count) { return static_cast<T*>(AllocateReachable(count * sizeof(T))); }
  void deallocate(T* memory, size_t count) { FreeReachable(memory, count * sizeof(T)); }

  template <typename U>
  friend bool operator==(const ReachableAllocator&, const ReachableAllocator<U>&) {
    return true;
  }
  template <typename U>
  friend bool operator!=(const ReachableAllocator&, const ReachableAllocator<U>&) {
    return false;
  }
};

template <typename T>
using ReachableVector = std::vector<T, ReachableAllocator<T>>;

}  // namespace testing
// A gate at which a stream of the test's device waits until the host opens it. It needs no closure: on a GPU the closures of all
// streams run on one thread.
//
// Thread-safe. Must outlive the streams that wait at it, and be open when they are destroyed.
class StreamGate {
 public:
  StreamGate() : word_(new (testing::AllocateReachable(sizeof(Word))) Word(0)) {}
  ~StreamGate() { testing::FreeReachable(word_, sizeof(Word)); }
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  // Work that is enqueued later waits for Open().
  absl::Status HoldUp(Stream& stream) { return stream.AwaitValue(word_, kOpen); }
  void Open() { word_->store(kOpen, std::memory_order_release); }

 private:
  using Word = std::atomic<uint32_t>;
  static constexpr uint32_t kOpen = 1;

  Word* const word_;
};

}  // namespace lockstep

#endif  // TESTS_TEST_DEVICE_H_
