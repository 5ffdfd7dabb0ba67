#include "transport/store/store_service.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace lockstep {
namespace {

// Of one client at a time: threads of one process, so a handful.
constexpr size_t kWaitsPerClientMax = 4096;

}  // namespace

void StoreService::CarryOut(uint64_t client, const StoreRequest& request, TimePoint now, std::vector<Answer>* answers) {
  absl::StatusOr<absl::optional<std::string>> result = map_.Perform(request);
  absl::Status status = result.status();
  if (status.ok() && !result->has_value()) {
    status = AddWait(client, request, now);
    if (status.ok()) return;
  }
  answers->push_back(
      {client, request.id, status, status.ok() ? std::make_shared<const std::string>(**std::move(result)) : nullptr});
  if (waits_.empty()) return;
  if (request.op == StoreOp::kSet || request.op == StoreOp::kCompareAndSet) AnswerWaits(request.key, answers);
}

absl::Status StoreService::AddWait(uint64_t client, const StoreRequest& request, TimePoint now) {
  if (waits(client) >= kWaitsPerClientMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(DescribeStoreKey(request.key), ": this client has ", waits(client), " waits under way already"));
  }
  if (waits_bytes_ + StoreBytes(request.key, "") > map_.bytes_max()) {
    return absl::ResourceExhaustedError(absl::StrCat(DescribeStoreKey(request.key), ": all clients together have ",
                                                     waits_bytes_, " bytes of waits under way already"));
  }
  waits_bytes_ += StoreBytes(request.key, "");
  ++waits_of_client_[client];
  const bool for_ever = request.timeout_ms == kStoreNoTimeout;
  waits_[std::string(request.key)].push_back(
      {client, request.id, for_ever ? TimePoint::max() : now + std::chrono::milliseconds(int64_t{request.timeout_ms})});
  return absl::OkStatus();
}

void StoreService::AnswerWaits(absl::string_view key, std::vector<Answer>* answers) {
  const auto waits = waits_.find(std::string(key));
  if (waits == waits_.end()) return;
  const std::string* const value = map_.Find(key);
  if (value == nullptr) return;
  const auto body = std::make_shared<const std::string>(*value);
  for (const Wait& wait : waits->second) {
    answers->push_back({wait.client, wait.request, absl::OkStatus(), body});
    Uncount(key, wait);
  }
  waits_.erase(waits);
}

void StoreService::Uncount(absl::string_view key, const Wait& wait) {
  waits_bytes_ -= StoreBytes(key, "");
  const auto count = waits_of_client_.find(wait.client);
  if (--count->second == 0) waits_of_client_.erase(count);
}

void StoreService::Forget(uint64_t client) {
  if (waits(client) == 0) return;
  RemoveWaits([client](const Wait& wait) { return wait.client == client; });
}

void StoreService::DropExpired(TimePoint now) {
  RemoveWaits([now](const Wait& wait) { return wait.expiry <= now; });
}

size_t StoreService::waits(uint64_t client) const {
  const auto count = waits_of_client_.find(client);
  return count == waits_of_client_.end() ? 0 : count->second;
}

template <typename Condition>
void StoreService::RemoveWaits(Condition condition) {
  for (auto entry = waits_.begin(); entry != waits_.end();) {
    std::vector<Wait>& list = entry->second;
    const auto kept =
        std::stable_partition(list.begin(), list.end(), [&](const Wait& wait) { return !condition(wait); });
    for (auto wait = kept; wait != list.end(); ++wait) Uncount(entry->first, *wait);
    list.erase(kept, list.end());
    entry = list.empty() ? waits_.erase(entry) : std::next(entry);
  }
}

}  // namespace lockstep
