// An embedder's store, for tests.

#ifndef CAPI_STORE_TESTING_H_
#define CAPI_STORE_TESTING_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "capi/lockstep.h"
#include "transport/store/store_memory.h"

namespace lockstep {

// A MemoryStore behind C functions.
inline lockstep_store_callbacks CallbacksOf(MemoryStore* inner) {
  lockstep_store_callbacks callbacks;
  LOCKSTEP_INIT(callbacks);
  callbacks.context = inner;
  callbacks.set = [](void* context, const char* key, const void* value, size_t bytes, int64_t) {
    const absl::string_view text(static_cast<const char*>(value), bytes);
    return static_cast<lockstep_code>(static_cast<MemoryStore*>(context)->Set(key, text, Deadline::Infinite()).code());
  };
  callbacks.get = [](void* context, const char* key, void* buffer, size_t capacity, size_t* out_bytes, int64_t) {
    const absl::StatusOr<std::string> found = static_cast<MemoryStore*>(context)->Get(key, Deadline::Infinite());
    if (found.ok()) {
      *out_bytes = found->size();
      std::memcpy(buffer, found->data(), std::min(capacity, found->size()));
    }
    return static_cast<lockstep_code>(found.status().code());
  };
  callbacks.remove = [](void* context, const char* key, int64_t) {
    return static_cast<lockstep_code>(static_cast<MemoryStore*>(context)->Delete(key, Deadline::Infinite()).code());
  };
  return callbacks;
}

}  // namespace lockstep

#endif  // CAPI_STORE_TESTING_H_
