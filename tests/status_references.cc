// Abseil's counting of a status's references, compiled here for ThreadSanitizer. The system's Abseil is not instrumented: of
// threads that share a status the sanitizer would see only that one reads what another then frees.

#ifdef __SANITIZE_THREAD__

#include <atomic>
#include <cstdint>

#include "absl/status/internal/status_internal.h"
#include "absl/status/status.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

void Status::UnrefNonInlined(uintptr_t rep) {
  status_internal::StatusRep* const shared = RepToPointer(rep);
  if (shared->ref.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
}

ABSL_NAMESPACE_END
}  // namespace absl

#endif  // __SANITIZE_THREAD__
