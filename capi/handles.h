// What stands behind the handles of the C ABI.

#ifndef CAPI_HANDLES_H_
#define CAPI_HANDLES_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/fork.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"
#include "comm/world/world.h"
#include "reducer/buffers/buffers.h"
#include "reducer/reducer.h"
#include "transport/store/store.h"

namespace lockstep::capi {

// A context of the embedder. Its destructor releases it, after the library's last call with it.
class Context {
 public:
  Context() = default;
  Context(void* context, lockstep_release release) : context_(context), release_(release) {}
  Context(Context&& other) noexcept { *this = std::move(other); }
  Context& operator=(Context&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(release_, other.release_);
    return *this;
  }
  ~Context() {
    if (release_ != nullptr) release_(context_);
  }

 private:
  void* context_ = nullptr;
  lockstep_release release_ = nullptr;
};

}  // namespace lockstep::capi

struct lockstep_store {
  uint64_t fork_generation = lockstep::ForkGeneration();
  std::unique_ptr<lockstep::Store> store;
};

// Handles may be destroyed in any order. What is made from a communicator's handle (a work, a reducer, a buffer set) shares ownership
// of the communicator. When the handle is destroyed, the communicator ends: its peers are told, and its other owners return CANCELLED
// or FAILED_PRECONDITION. The world ends with the last handle of any of its communicators, and is destroyed with their last owner.
struct lockstep_communicator {
  ~lockstep_communicator() {
    if (ranks != nullptr && ranks.use_count() > 1) ranks->Leave();
  }
  lockstep::Communicator* get() const { return borrowed != nullptr ? borrowed.get() : ranks.get(); }
  // For what is made from this.
  std::shared_ptr<lockstep::Communicator> Share() const { return borrowed != nullptr ? borrowed : ranks; }

  uint64_t fork_generation = lockstep::ForkGeneration();
  // Destroyed from the last to the first.
  std::shared_ptr<void> open;              // shared by all handles of the world's communicators: closes the world
  std::shared_ptr<lockstep::World> world;  // shared by the communicator of all ranks and its subgroups
  std::shared_ptr<lockstep::Communicator> ranks;     // of all ranks, or a subgroup; null if it is borrowed
  std::shared_ptr<lockstep::Communicator> borrowed;  // a hook's, which does not end with this handle
  lockstep_hook_bucket* hook_bucket = nullptr;  // of a stream-ordered hook: its collectives run on this bucket's stream
  lockstep::capi::Streams streams;
};

struct lockstep_memory {
  uint64_t fork_generation = lockstep::ForkGeneration();
  std::unique_ptr<lockstep::SymmetricBuffer> buffer;
};

struct lockstep_work {
  lockstep_work(std::shared_ptr<lockstep::Communicator> ranks, lockstep::Work operation)
      : communicator(std::move(ranks)), work(std::move(operation)) {}

  uint64_t fork_generation = lockstep::ForkGeneration();
  const std::shared_ptr<lockstep::Communicator> communicator;  // which a wait drives
  lockstep::Work work;
};

struct lockstep_prepared {
  uint64_t fork_generation = lockstep::ForkGeneration();
  std::shared_ptr<lockstep::Communicator> communicator;  // outlives the collective
  std::unique_ptr<lockstep::PreparedCollective> collective;
};

struct lockstep_reducer {
  uint64_t fork_generation = lockstep::ForkGeneration();
  // Outlive the reducer, which calls with them.
  lockstep::capi::Context hook;
  lockstep::capi::Context optimizer;
  lockstep::capi::Context drift;
  lockstep::capi::Context buffer_hook;
  std::shared_ptr<lockstep::World> world;  // its communicator's, for subgroups that a buffer hook makes
  std::shared_ptr<lockstep::Communicator> communicator;
  lockstep::capi::Streams streams;  // outlives the reducer, which uses them
  std::unique_ptr<lockstep::Reducer> reducer;
  size_t replica_count = 0;
  // What was last returned for each parameter: the caller borrows shape and strides.
  std::vector<lockstep::TensorView> averages;
  std::vector<lockstep::TensorView> views;
};

// Only memory, so a forked child may use it.
struct lockstep_fresh_buffers {
  lockstep::FreshBuffers buffers;
};

namespace lockstep::capi {

// In how many calls of reducers' callbacks this thread is: hook_issue, hook_start, functions of hook_bucket_run, optimizer_step, on_drift.
int& Callbacks();

// Counts the call in Callbacks(). RETURNS what the callback returns
template <typename Callback>
auto InCallback(Callback&& callback) {
  struct Scope {
    Scope() { ++Callbacks(); }
    ~Scope() { --Callbacks(); }
  } scope;
  return callback();
}

// Destroys a handle. Does nothing in a forked child, where the destructors would wait for threads that do not exist.
template <typename Handle>
void Destroy(Handle* handle) {
  if (handle != nullptr && handle->fork_generation == ForkGeneration()) delete handle;
}

template <typename Handle>
absl::Status CheckHandle(const Handle* handle, const char* argument, const char* name) {
  if (handle == nullptr) return NullArgument(argument);
  return CheckNotForked(handle->fork_generation, name);
}

inline absl::Status CheckUsable(const lockstep_communicator* communicator) {
  return CheckHandle(communicator, "communicator", "communicator");
}

inline absl::Status CheckUsable(const lockstep_work* work) { return CheckHandle(work, "work", "work handle"); }

inline absl::Status CheckUsable(const lockstep_prepared* prepared) {
  return CheckHandle(prepared, "prepared", "prepared collective");
}

// The reducer may have lost its communicator.
inline absl::Status CheckReducer(const lockstep_reducer* reducer) {
  LOCKSTEP_RETURN_IF_ERROR(CheckHandle(reducer, "reducer", "reducer"));
  if (Callbacks() == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a hook, optimizer_step or on_drift must not call a reducer: it is called by one");
}

inline absl::Status CheckUsable(const lockstep_reducer* reducer) {
  LOCKSTEP_RETURN_IF_ERROR(CheckReducer(reducer));
  if (!reducer->communicator->left()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the reducer's communicator was destroyed: the reducer can only be given another communicator, or destroyed");
}

// Guard() for a body that needs the handle.
template <typename Handle, typename Body>
lockstep_error* Guard(Handle* handle, Body&& body) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(handle));
    return body();
  });
}

inline absl::StatusOr<Stream*> FindStream(lockstep_reducer& reducer, const lockstep_stream* stream) {
  return reducer.streams.Find(stream, reducer.reducer->device());
}

}  // namespace lockstep::capi

#endif  // CAPI_HANDLES_H_
