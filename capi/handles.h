// What stands behind the handles of the C ABI.

#ifndef CAPI_HANDLES_H_
#define CAPI_HANDLES_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/fork.h"
#include "base/tensor_view.h"
#include "capi/error.h"
#include "capi/lockstep.h"
#include "capi/streams.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"
#include "comm/world.h"
#include "reducer/buffers.h"
#include "reducer/reducer.h"
#include "transport/store.h"

namespace lockstep {
namespace capi {

// A context of the embedder's, released when the library has made its last call with it.
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

}  // namespace capi
}  // namespace lockstep

struct lockstep_store {
  uint64_t fork_generation = lockstep::ForkGeneration();
  lockstep::capi::Context context;          // outlives `store`
  lockstep_store_callbacks callbacks = {};  // what `store` calls
  std::unique_ptr<lockstep::Store> store;
};

struct lockstep_communicator {
  // The world goes on for as long as there are parts of it, but not its communicator of all ranks.
  ~lockstep_communicator() {
    if (borrowed == nullptr && part == nullptr && world != nullptr && world.use_count() > 1) world->CloseCommunicator();
  }
  lockstep::Communicator* get() const {
    if (borrowed != nullptr) return borrowed;
    return part != nullptr ? part.get() : world->communicator();
  }

  uint64_t fork_generation = lockstep::ForkGeneration();
  std::shared_ptr<lockstep::World> world;        // shared by the communicator of all ranks and its parts
  std::unique_ptr<lockstep::Communicator> part;  // null: all ranks
  lockstep::Communicator* borrowed = nullptr;    // a hook's, which belongs to its reducer
  lockstep_hook_bucket* hook_bucket = nullptr;   // a stream-ordered hook's: collectives go on this bucket's stream
  lockstep::capi::Streams streams;
};

struct lockstep_memory {
  uint64_t fork_generation = lockstep::ForkGeneration();
  std::unique_ptr<lockstep::SymmetricBuffer> buffer;
};

struct lockstep_work {
  explicit lockstep_work(lockstep::Work operation) : work(std::move(operation)) {}

  uint64_t fork_generation = lockstep::ForkGeneration();
  lockstep::Work work;
};

struct lockstep_prepared {
  uint64_t fork_generation = lockstep::ForkGeneration();
  std::unique_ptr<lockstep::PreparedCollective> collective;
};

struct lockstep_reducer {
  uint64_t fork_generation = lockstep::ForkGeneration();
  // Of hook, optimizer and buffer hook; they outlive the reducer, which calls these.
  lockstep::capi::Context hook;
  lockstep::capi::Context optimizer;
  lockstep::capi::Context buffer_hook;
  std::shared_ptr<lockstep::World> world;  // its communicator's, for parts that a buffer hook makes
  lockstep::capi::Streams streams;         // outlives the reducer, which uses them
  std::unique_ptr<lockstep::Reducer> reducer;
  // By parameter, what was last given out, whose shapes the caller borrows.
  std::vector<lockstep::TensorView> averages;
  std::vector<lockstep::TensorView> views;
};

// Memory alone: a forked child has it too.
struct lockstep_fresh_buffers {
  lockstep::FreshBuffers buffers;
};

namespace lockstep {
namespace capi {

// Ends a handle. In a forked child what stands behind it waits for threads that are not there: it is left alone.
template <typename Handle>
void Destroy(Handle* handle) {
  if (handle != nullptr && handle->fork_generation == ForkGeneration()) delete handle;
}

inline absl::Status CheckUsable(const lockstep_communicator* communicator) {
  if (communicator == nullptr) return NullArgument("communicator");
  return CheckNotForked(communicator->fork_generation, "communicator");
}

inline absl::Status CheckUsable(const lockstep_reducer* reducer) {
  if (reducer == nullptr) return NullArgument("reducer");
  return CheckNotForked(reducer->fork_generation, "reducer");
}

inline absl::StatusOr<Stream*> FindStream(lockstep_reducer& reducer, const lockstep_stream* stream) {
  return reducer.streams.Find(stream, reducer.reducer->device());
}

}  // namespace capi
}  // namespace lockstep

#endif  // CAPI_HANDLES_H_
