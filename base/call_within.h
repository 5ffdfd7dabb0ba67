// A deadline for a call that cannot be interrupted, such as one of the system's resolver.

#ifndef BASE_CALL_WITHIN_H_
#define BASE_CALL_WITHIN_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread.h"

namespace lockstep {

// Makes `call` on a thread named `name`, and returns its result. Nothing: it has not returned by the deadline. Then the thread is left
// behind, and ends when `call` returns. So `call` uses only what it owns or shares.
// ERRORS  RESOURCE_EXHAUSTED  there is no thread
template <typename Call>
auto CallWithin(Deadline deadline, const std::string& name, Call call)
    -> absl::StatusOr<absl::optional<decltype(call())>> {
  struct Shared {
    Mutex mu;
    CondVar changed;
    absl::optional<decltype(call())> result ABSL_GUARDED_BY(mu);
  };
  const auto shared = std::make_shared<Shared>();
  Thread thread;
  LOCKSTEP_RETURN_IF_ERROR(thread.Start(name, [shared, call = std::move(call)]() mutable {
    auto result = call();
    const MutexLock lock(&shared->mu);
    shared->result = std::move(result);
    shared->changed.SignalAll();
  }));
  absl::optional<decltype(call())> result;
  {
    const MutexLock lock(&shared->mu);
    while (!shared->result.has_value() && shared->changed.WaitUntil(&shared->mu, deadline)) {
    }
    result = std::move(shared->result);
  }
  if (!result.has_value()) thread.Detach();
  return result;
}

}  // namespace lockstep

#endif  // BASE_CALL_WITHIN_H_
