#include "transport/store/store_memory.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lockstep {

MemoryStore::MemoryStore() : map_(std::numeric_limits<size_t>::max()) {}

absl::Status MemoryStore::Set(absl::string_view key, absl::string_view value, Deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, value));
  MutexLock lock(&mu_);
  changed_.SignalAll();
  return map_.Set(key, value);
}

absl::StatusOr<std::string> MemoryStore::Get(absl::string_view key, Deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  MutexLock lock(&mu_);
  return map_.Get(key);
}

absl::StatusOr<std::string> MemoryStore::CompareAndSet(absl::string_view key, absl::string_view expected,
                                                       absl::string_view desired, Deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, expected));
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, desired));
  MutexLock lock(&mu_);
  changed_.SignalAll();
  return map_.CompareAndSet(key, expected, desired);
}

absl::StatusOr<std::string> MemoryStore::Wait(absl::string_view key, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  MutexLock lock(&mu_);
  for (bool in_time = true;;) {
    if (const std::string* const value = map_.Find(key)) return *value;
    if (!in_time) {
      return absl::DeadlineExceededError(
          absl::StrCat("wait for ", DescribeStoreKey(key), ": not there by the deadline"));
    }
    in_time = changed_.WaitUntil(&mu_, deadline);
  }
}

absl::Status MemoryStore::Delete(absl::string_view key, Deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  MutexLock lock(&mu_);
  map_.Delete(key);
  return absl::OkStatus();
}

}  // namespace lockstep
