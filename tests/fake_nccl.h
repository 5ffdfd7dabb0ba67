// A library that looks like NCCL, for tests where there is no GPU: tests/libfake_nccl.so, loaded as NCCL is.
//
// Its ranks are threads of one process. A group of calls becomes a host function in its stream, which waits for the
// same calls of the other ranks and then carries them out on memory of the host by kernels/reference_testing.h, in rank
// order. In a capture, a graph repeats it: the replays of all ranks' n-th captured groups meet each other. It is
// never blocking: what a call began is under way for some looks at the communicator's state. What it is asked for
// wrongly (a communicator that is no more, calls that differ, operators that are left) is counted as misuse.

#ifndef TESTS_FAKE_NCCL_H_
#define TESTS_FAKE_NCCL_H_

#include <dlfcn.h>

#include "transport/nccl/nccl_abi.h"

namespace lockstep {

// Thread-safe. The library's own, never destroyed.
class FakeNccl {
 public:
  // Loads the library, for a test that runs where its data is.
  static constexpr char kPath[] = "tests/libfake_nccl.so";
  static FakeNccl* Load() {
    void* const library = dlopen(kPath, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    return reinterpret_cast<FakeNccl* (*)()>(dlsym(library, "LockstepFakeNccl"))();
  }

  // As it is when it was loaded: nothing fails, and counters are 0. Communicators that exist go on.
  virtual void Reset() = 0;

  // What ncclGetVersion says; 22809 at first.
  virtual void set_version(int version) = 0;
  // How calls get into a stream: cudaLaunchHostFunc. And whether that is being captured: cudaStreamIsCapturing.
  virtual void set_launch(int (*launch_host_func)(void* stream, void (*function)(void*), void* argument),
                          int (*stream_is_capturing)(void* stream, bool* capturing)) = 0;
  // How often a communicator says that something is under way before it is done; 2 at first.
  virtual void set_looks(int looks) = 0;

  // The `nth` call from now (1 is the next) of the function of that name, by any rank, answers `result`.
  virtual void Fail(const char* function, nccl::Result result, int nth) = 0;
  // Communicators of this rank are never ready: it waits for a peer that does not come. -1: none.
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
