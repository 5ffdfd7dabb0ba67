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

namespace lockstep::capi {

// The hook of options with LOCKSTEP_HOOK_CALLBACK. *world is the world of the reducer's present communicator, for subgroups that the
// hook makes; `world` outlives the hook.
// ERRORS  INVALID_ARGUMENT  neither or both of the two functions are there, or the timeout is negative
absl::StatusOr<std::shared_ptr<CommHook>> MakeCallbackHook(const lockstep_reducer_options& options,
                                                           const std::shared_ptr<World>* world);

// Enqueues a collective on the communicator of a stream-ordered hook on its bucket's stream.
// ERRORS  FAILED_PRECONDITION  `stream` is not the one that hook_issue was given, or this is not its thread, or it has returned
absl::Status EnqueueForHook(lockstep_hook_bucket* bucket, const lockstep_stream* stream, CollectiveRequest request);

}  // namespace lockstep::capi

#endif  // CAPI_HOOK_H_
