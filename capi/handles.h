// What stands behind the handles of the C ABI.

#ifndef CAPI_HANDLES_H_
#define CAPI_HANDLES_H_

#include <cstdint>
#include <memory>

#include "base/fork.h"
#include "capi/lockstep.h"
#include "comm/work.h"
#include "comm/world.h"
#include "reducer/reducer.h"
#include "transport/store.h"

struct lockstep_store {
  uint64_t fork_generation = lockstep::ForkGeneration();
  lockstep_store_callbacks callbacks = {};  // what `store` calls
  std::unique_ptr<lockstep::Store> store;
};

struct lockstep_communicator {
  uint64_t fork_generation = lockstep::ForkGeneration();
  std::unique_ptr<lockstep::World> world;
};

struct lockstep_work {
  uint64_t fork_generation = lockstep::ForkGeneration();
  lockstep::Work work;
};

struct lockstep_reducer {
  uint64_t fork_generation = lockstep::ForkGeneration();
  std::unique_ptr<lockstep::Reducer> reducer;
};

namespace lockstep {
namespace capi {

// Ends a handle. In a forked child what stands behind it waits for threads that are not there: it is left alone.
template <typename Handle>
void Destroy(Handle* handle) {
  if (handle != nullptr && handle->fork_generation == ForkGeneration()) delete handle;
}

}  // namespace capi
}  // namespace lockstep

#endif  // CAPI_HANDLES_H_
