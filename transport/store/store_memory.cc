#include "transport/store/store_memory.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lockstep {

const std::string* StoreMap::Find(absl::string_view key) const {
  const auto found = values_.find(std::string(key));
  return found == values_.end() ? nullptr : &found->second;
}

absl::Status StoreMap::Set(absl::string_view key, absl::string_view value) {
  const std::string* const before = Find(key);
  const size_t freed = before == nullptr ? 0 : StoreBytes(key, *before);
  const size_t bytes = bytes_ - freed + StoreBytes(key, value);
  if (bytes > bytes_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(DescribeStoreKey(key), ": the store holds at most ", bytes_max_, " bytes and has ", bytes_));
  }
  values_.insert_or_assign(std::string(key), std::string(value));
  bytes_ = bytes;
  return absl::OkStatus();
}

void StoreMap::Delete(absl::string_view key) {
  const auto found = values_.find(std::string(key));
  if (found == values_.end()) return;
  bytes_ -= StoreBytes(found->first, found->second);
  values_.erase(found);
}

absl::StatusOr<absl::optional<std::string>> StoreMap::Perform(const StoreCall& call) {
  const std::string* const value = Find(call.key);
  switch (call.op) {
    case StoreOp::kSet:
      LOCKSTEP_RETURN_IF_ERROR(Set(call.key, call.first));
      return std::string();
    case StoreOp::kGet:
      if (value == nullptr)
        return absl::NotFoundError(absl::StrCat(DescribeStoreKey(call.key), " is not in the store"));
      return *value;
    case StoreOp::kCompareAndSet: {
      const std::string before = value == nullptr ? "" : *value;
      if (before != call.first) return before;
      LOCKSTEP_RETURN_IF_ERROR(Set(call.key, call.second));
      return std::string(call.second);
    }
    case StoreOp::kDelete:
      Delete(call.key);
      return std::string();
    case StoreOp::kWait:
      break;
  }
  if (value == nullptr) return absl::optional<std::string>();
  return *value;
}

absl::StatusOr<std::string> MemoryStore::Perform(const StoreCall& call, Deadline deadline) {
  MutexLock lock(&mu_);
  for (bool in_time = true;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(absl::optional<std::string> result, map_.Perform(call));
    if (result.has_value()) {
      if (call.op == StoreOp::kSet || call.op == StoreOp::kCompareAndSet) changed_.SignalAll();
      return *std::move(result);
    }
    if (!in_time) {
      return absl::DeadlineExceededError(
          absl::StrCat("wait for ", DescribeStoreKey(call.key), ": not there by the deadline"));
    }
    in_time = changed_.WaitUntil(&mu_, deadline);
  }
}

}  // namespace lockstep
