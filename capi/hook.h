// The embedder's hook: callbacks of the C ABI as a CommHook.

#ifndef CAPI_HOOK_H_
#define CAPI_HOOK_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "capi/lockstep.h"
#include "comm/communicator.h"
#include "comm/world/world.h"
#include "reducer/pipeline/comm_hook.h"

namespace lockstep {
namespace capi {

// Of options whose hook is LOCKSTEP_HOOK_CALLBACK. INVALID_ARGUMENT unless exactly one of the two functions is there, and for a
// negative timeout. `world` is that of the reducer's communicator as it changes, for parts made of the hook's; it outlives the hook.
absl::StatusOr<std::shared_ptr<CommHook>> MakeCallbackHook(const lockstep_reducer_options& options,
                                                           const std::shared_ptr<World>* world);

// What a collective on the communicator of a stream-ordered hook does: enqueues it on the bucket's stream. FAILED_PRECONDITION
// unless `stream` is the one that hook_issue was given, on its thread and before it returns.
absl::Status EnqueueForHook(lockstep_hook_bucket* bucket, const lockstep_stream* stream, CollectiveRequest request);

}  // namespace capi
}  // namespace lockstep

#endif  // CAPI_HOOK_H_
