// A library that looks like NCCL, for tests where there is no GPU: tests/libfake_nccl.so, loaded as NCCL is.
//
// Its ranks are threads of one process. A group of calls becomes a host function in its stream. The function waits for the same calls
// of the other ranks, and then executes them on memory of the host, in rank order (kernels/reference_testing.h). In a capture, a graph
// repeats it: the replays of all ranks' n-th captured groups belong together.
//
// It is never blocking: what a call began is in progress for some queries of the communicator's state. Wrong calls are counted as
// misuse: on a communicator that was destroyed, calls that differ between ranks, operators that are left.

#ifndef TESTS_FAKE_NCCL_H_
#define TESTS_FAKE_NCCL_H_

#include <dlfcn.h>

#include "transport/nccl/nccl_abi.h"

namespace lockstep {

// Thread-safe. The library's own, never destroyed.
class FakeNccl {
 public:
  // Loads the library. For a test whose working directory has its data. Null if it cannot be loaded.
  static constexpr char kPath[] = "tests/libfake_nccl.so";
  static FakeNccl* Load() {
    void* const library = dlopen(kPath, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    return reinterpret_cast<FakeNccl* (*)()>(dlsym(library, "LockstepFakeNccl"))();
  }

  // Restores the state after loading: nothing fails, and counters are 0. Communicators that exist go on.
  virtual void Reset() = 0;

  // What ncclGetVersion says; 22809 at first.
  virtual void set_version(int version) = 0;
  // How to put calls into a stream (cudaLaunchHostFunc), and how to ask whether it is being captured (cudaStreamIsCapturing).
  virtual void set_launch(int (*launch_host_func)(void* stream, void (*function)(void*), void* argument),
                          int (*stream_is_capturing)(void* stream, bool* capturing)) = 0;
  // How often a communicator answers that something is in progress before it is done; 2 at first.
  virtual void set_looks(int looks) = 0;

  // The `nth` call from now (1 is the next) of the function of that name, by any rank, answers `result`.
  virtual void Fail(const char* function, nccl::Result result, int nth) = 0;
  // Communicators of this rank are never ready, as if a peer did not come. -1: no rank's.
  virtual void HangInit(int rank) = 0;
  // The state of every communicator of this rank from now on.
  virtual void FailLater(int rank, nccl::Result result) = 0;

  virtual int calls(const char* function) const = 0;
  virtual int communicators() const = 0;  // that exist
  virtual int operators() const = 0;
  virtual int registrations() const = 0;
  virtual int misuses() const = 0;
  // Of the last communicator that was created.
  virtual nccl::Config last_config() const = 0;

 protected:
  FakeNccl() = default;
  ~FakeNccl() = default;
};

}  // namespace lockstep

#endif  // TESTS_FAKE_NCCL_H_
