#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "transport/store/store_callback.h"

namespace {

using lockstep::capi::Guard;

// Values at set-up are addresses: one call does.
constexpr size_t kValueBytesUsual = 4096;

const lockstep_store_callbacks& Embedder(void* context) { return static_cast<lockstep_store*>(context)->callbacks; }

int Set(void* context, const std::string& key, absl::string_view value, int64_t timeout_ms) {
  const lockstep_store_callbacks& embedder = Embedder(context);
  return embedder.set(embedder.context, key.c_str(), value.data(), value.size(), timeout_ms);
}

int Get(void* context, const std::string& key, int64_t timeout_ms, std::string* value) {
  const lockstep_store_callbacks& embedder = Embedder(context);
  value->resize(kValueBytesUsual);
  while (true) {
    size_t bytes = 0;
    const lockstep_code code =
        embedder.get(embedder.context, key.c_str(), &(*value)[0], value->size(), &bytes, timeout_ms);
    if (code != LOCKSTEP_OK) return code;
    if (bytes > lockstep::kStoreValueBytesMax) return LOCKSTEP_OUT_OF_RANGE;
    const bool whole = bytes <= value->size();
    value->resize(bytes);
    if (whole) return LOCKSTEP_OK;  // else once more; the value may have grown meanwhile
  }
}

int Remove(void* context, const std::string& key, int64_t timeout_ms) {
  const lockstep_store_callbacks& embedder = Embedder(context);
  return embedder.remove(embedder.context, key.c_str(), timeout_ms);
}

}  // namespace

lockstep_error* lockstep_store_create(const lockstep_store_callbacks* callbacks, lockstep_store** out_store) {
  return Guard([&]() -> absl::Status {
    if (callbacks == nullptr) return lockstep::capi::NullArgument("callbacks");
    if (out_store == nullptr) return lockstep::capi::NullArgument("out_store");
    auto handle = std::make_unique<lockstep_store>();
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(callbacks, "lockstep_store_callbacks", &handle->callbacks));
    lockstep::StoreCallbacks adapted;
    adapted.context = handle.get();
    adapted.set = handle->callbacks.set == nullptr ? nullptr : &Set;
    adapted.get = handle->callbacks.get == nullptr ? nullptr : &Get;
    adapted.remove = handle->callbacks.remove == nullptr ? nullptr : &Remove;
    LOCKSTEP_ASSIGN_OR_RETURN(handle->store, lockstep::CallbackStore::Create(adapted, "the embedder's store"));
    handle->context = lockstep::capi::Context(handle->callbacks.context, handle->callbacks.release);
    *out_store = handle.release();
    return absl::OkStatus();
  });
}

void lockstep_store_destroy(lockstep_store* store) { lockstep::capi::Destroy(store); }
