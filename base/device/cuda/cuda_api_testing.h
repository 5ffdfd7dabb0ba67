// CUDA in memory, for tests where there is no GPU.
//
//   FakeCuda cuda;                                     // two devices, in the place of the linked runtime
//   cuda.Fail("cudaEventRecord", kCudaIllegalAddress); // what the next call answers
//   Device* device = CudaDevice(0).value();
//
// A stream is captured by base/device/cuda/cuda_graph_testing.h, and graphs run in the order of the stream that they are launched
// in (base/device/cuda/cuda_capture_testing.h).
//
// Streams and events are the host device's (base/device/host_device.h), so work really runs beside the test, in order. Memory
// is the host's, and CUDA's rules are checked where they are easy to break: a call on the wrong device, in a closure of
// a stream, or with a handle that is no more, answers an error.
//
// Streams are independent of each other unless set_hardware_queues() is called.

#ifndef BASE_DEVICE_CUDA_CUDA_API_TESTING_H_
#define BASE_DEVICE_CUDA_CUDA_API_TESTING_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_capture_testing.h"
#include "base/device/cuda/cuda_graph_testing.h"
#include "base/device/device.h"
#include "base/device/shared_queues_testing.h"
#include "base/mutex.h"

namespace lockstep {

// One at a time; it must outlive all that was made through it. Thread-safe.
class FakeCuda {
 public:
  static constexpr int kLeastPriority = 0;
  static constexpr int kGreatestPriority = -5;

  explicit FakeCuda(int devices = 2);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  // The `nth` call from now (1 is the next) of the function of that name answers `code` and does nothing.
  void Fail(const std::string& function, int code, int nth = 1);
  // Every call that needs a device answers `code` from now on, and no closure runs any more: the device is lost.
  void LoseDevice(int code);

  // How often the function was called.
  int calls(const std::string& function) const;
  // Streams, events and pieces of memory that exist.
  int live() const;
  // Of a stream by its handle.
  int priority(void* stream) const;
  // Whether cudaGetLastError has nothing to tell this thread.
  bool LastErrorIsClear() const;
  // From now on each device has so many queues, which its streams share (base/device/shared_queues_testing.h). Once, before any
  // stream is used.
  void set_hardware_queues(int queues);

  // A kernel, in the order of the stream. Answers CUDA's code; what it does is run on the stream's thread.
  int LaunchKernel(void* stream, std::function<void()> kernel);

 private:
  class Table;  // what the table's functions call

  struct FakeStream {
    std::unique_ptr<Stream> stream;
    int device = 0;
    int priority = 0;
    bool exists = true;
  };
  struct FakeEvent {
    std::unique_ptr<Event> event;
    int device = 0;
    bool exists = true;
  };
  struct Memory {
    CudaPointer pointer;
    size_t bytes = 0;
  };
  struct Graph {
    std::shared_ptr<const FakeGraph> nodes;
    int launches = 0;
    bool exists = true;
  };
  struct Failure {
    std::string function;
    int code = kCudaSuccess;
    int nth = 1;
  };

  std::unique_ptr<Stream> NewStream(int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool lost() const;

  const CudaApi api_;
  const internal::CudaGraphs graphs_api_;
  const int devices_;

  mutable Mutex mu_;
  int lost_ ABSL_GUARDED_BY(mu_) = kCudaSuccess;
  // Of each device; empty where each stream has a queue of its own.
  std::vector<std::unique_ptr<SharedQueues>> hardware_queues_ ABSL_GUARDED_BY(mu_);
  std::vector<Failure> failures_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mu_);
  // By handle. What was destroyed stays until the end: work may still run in it, and using its handle is found out.
  std::map<const void*, std::unique_ptr<FakeStream>> streams_ ABSL_GUARDED_BY(mu_);
  std::map<const void*, std::unique_ptr<FakeEvent>> events_ ABSL_GUARDED_BY(mu_);
  FakeCaptures captures_ ABSL_GUARDED_BY(mu_);
  std::map<const void*, std::unique_ptr<Graph>> graphs_ ABSL_GUARDED_BY(mu_);  // by handle
  // By address.
  std::map<const void*, Memory> memory_ ABSL_GUARDED_BY(mu_);
  // Of (device, thread); the legacy stream's thread is none.
  std::map<std::pair<int, std::thread::id>, FakeStream> default_streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_API_TESTING_H_
