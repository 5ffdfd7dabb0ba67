#include "transport/store/store_memory.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/store/store.h"

namespace lockstep {
namespace {

constexpr size_t kShownBytesMax = 80;

std::string Shown(absl::string_view bytes) {
  if (bytes.size() <= kShownBytesMax) return absl::StrCat("'", absl::CHexEscape(bytes), "'");
  return absl::StrCat("'", absl::CHexEscape(bytes.substr(0, kShownBytesMax)), "...' (", bytes.size(), " bytes)");
}

}  // namespace

std::string DescribeStoreKey(absl::string_view key) { return absl::StrCat("key ", Shown(key)); }

absl::Status CheckStoreKey(absl::string_view key) {
  if (key.size() <= kStoreKeyBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(DescribeStoreKey(key), ": a key has at most ", kStoreKeyBytesMax, " bytes"));
}

absl::Status CheckStoreValue(absl::string_view key, absl::string_view value) {
  if (value.size() <= kStoreValueBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(DescribeStoreKey(key), ": a value has at most ", kStoreValueBytesMax,
                                                 " bytes, this one ", value.size()));
}

const std::string* StoreMap::Find(absl::string_view key) const {
  const auto found = values_.find(std::string(key));
  return found == values_.end() ? nullptr : &found->second;
}

absl::Status StoreMap::Set(absl::string_view key, absl::string_view value) {
  const std::string* const before = Find(key);
  const size_t freed = before == nullptr ? 0 : key.size() + before->size();
  const size_t bytes = bytes_ - freed + key.size() + value.size();
  if (bytes > bytes_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(DescribeStoreKey(key), ": the store holds at most ", bytes_max_, " bytes and has ", bytes_));
  }
  values_.insert_or_assign(std::string(key), std::string(value));
  bytes_ = bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::string> StoreMap::Get(absl::string_view key) const {
  const std::string* const value = Find(key);
  if (value == nullptr) return absl::NotFoundError(absl::StrCat(DescribeStoreKey(key), " is not in the store"));
  return *value;
}

absl::StatusOr<std::string> StoreMap::CompareAndSet(absl::string_view key, absl::string_view expected,
                                                    absl::string_view desired) {
  const std::string* const value = Find(key);
  const absl::string_view before = value == nullptr ? absl::string_view() : absl::string_view(*value);
  if (before != expected) return std::string(before);
  LOCKSTEP_RETURN_IF_ERROR(Set(key, desired));
  return std::string(desired);
}

void StoreMap::Delete(absl::string_view key) {
  const auto found = values_.find(std::string(key));
  if (found == values_.end()) return;
  bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
}

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
