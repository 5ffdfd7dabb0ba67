#include "transport/control/control_store.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/secure/secret.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStoreTime(5000);
// For calls of the store in a set-up that ends at `deadline`. A store that does not answer must not hold it up much longer.
Deadline StoreDeadline(milliseconds time, Deadline deadline) {
  return Deadline::Earlier(Deadline::After(time), WithGrace(deadline));
}
// Rank 0 may be about to come, and the store may be far away: some round trips of a second.
constexpr milliseconds kTellingTime(5000);
constexpr milliseconds kPause(20);
// Of ranks that change the same record at the same moment.
constexpr int kIterationsMax = 100;

absl::optional<FailureRecord> Fresh(absl::string_view text) {
  absl::StatusOr<FailureRecord> record = DecodeFailureRecord(text);
  if (!record.ok() || std::abs(NowSeconds() - record->seconds) > kFailureSeconds) return absl::nullopt;
  return *std::move(record);
}

// Of whatever version.
bool IsCoordinatorRecord(absl::string_view text) {
  const absl::Status status = DecodeCoordinatorRecord(text).status();
  return status.ok() || absl::IsFailedPrecondition(status);
}

// Of nothing, empty.
absl::StatusOr<std::string> Read(Store* store, const std::string& key, Deadline deadline) {
  absl::StatusOr<std::string> text = store->Get(key, deadline);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

// What stands there may have the secret: a store that cannot delete it is given an empty value.
absl::Status Erase(Store* store, const std::string& key, Deadline deadline) {
  const absl::Status deleted = store->Delete(key, deadline);
  return deleted.ok() ? deleted : store->Set(key, "", deadline);
}

// True when the key had `before` and has `after` now, which may be nothing. An embedder's store may not be able to compare.
bool Replace(Store* store, const std::string& key, const std::string& before, const std::string& after,
             Deadline deadline) {
  if (after.empty()) return Erase(store, key, deadline).ok();
  absl::StatusOr<std::string> stored = store->CompareAndSet(key, before, after, deadline);
  const WipedAtEnd wiped(&stored);
  if (absl::IsUnimplemented(stored.status())) return store->Set(key, after, deadline).ok();
  return stored.ok() && *stored == after;
}

// Replaces the record by the failure, for the ranks in `untold`.
void LeaveFailure(Store* store, const std::string& key, const std::string& record, int attempt,
                  const absl::Status& failure, std::vector<int> untold, Deadline deadline) {
  for (int iteration = 0; iteration < kIterationsMax && !deadline.passed(); ++iteration) {
    absl::StatusOr<std::string> stored = Read(store, key, deadline);
    const WipedAtEnd wiped(&stored);
    if (!stored.ok() || (IsCoordinatorRecord(*stored) && *stored != record)) return;
    // Another rank's failure was to be read by all others; the coordinator has told some of them since.
    if (const absl::optional<FailureRecord> told = Fresh(*stored); told.has_value() && !record.empty()) {
      std::vector<int> both;
      std::set_intersection(untold.begin(), untold.end(), told->untold.begin(), told->untold.end(),
                            std::back_inserter(both));
      untold = std::move(both);
    }
    if (untold.empty() && stored->empty()) return;
    const std::string text = untold.empty() ? "" : EncodeFailureRecord({NowSeconds(), attempt, untold, failure});
    if (Replace(store, key, *stored, text, deadline)) return;
  }
}

void Remove(Store* store, const std::string& key, const std::string& record, Deadline deadline) {
  absl::StatusOr<std::string> stored = store->Get(key, deadline);
  const WipedAtEnd wiped(&stored);
  if (!stored.ok() || *stored != record) return;
  const absl::Status status = Erase(store, key, deadline);
  // Left there it does no harm: the next world asks there first, as after a crash.
  if (!status.ok()) LOCKSTEP_LOG(kInfo) << "cannot remove the coordinator's address: " << status.message();
}

}  // namespace

int64_t NowSeconds() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since_epoch).count();
}

std::string StoreKey(absl::string_view job_id) { return absl::StrCat(kAnyJobKey, "/", job_id); }

std::string AnyJobText(CoordinatorRecord record) {
  record.secret.reset();
  return EncodeCoordinatorRecord(record);
}

Member ThisProcess(Rank rank) {
  char name[256] = "";
  Member self;
  self.rank = rank;
  self.host = gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0' ? "unknown" : name;
  self.pid = getpid();
  return self;
}

absl::Status SaidBy(const Member& self, const absl::Status& status) {
  const std::string saying = absl::StrCat(Describe(self), " could not set up the world: ");
  if (status.ok() || absl::StartsWith(status.message(), saying)) return status;
  return WithFailedRank(Reworded(status, absl::StrCat(saying, status.message())), self.rank.value());
}

void EndSetup(Store* store, const std::string& key, const absl::optional<CoordinatorRecord>& record, int attempt,
              const absl::Status& result, std::vector<int> untold, milliseconds parting, Deadline deadline) {
  deadline = StoreDeadline(kStoreTime, deadline);
  std::string text = record.has_value() ? EncodeCoordinatorRecord(*record) : "";
  const WipedAtEnd wiped(&text);
  if (record.has_value()) Remove(store, kAnyJobKey, AnyJobText(*record), deadline);
  if (result.ok()) return Remove(store, key, text, deadline);
  LeaveFailure(store, key, text, attempt, SaidBy(ThisProcess(Rank(0)), result), std::move(untold), deadline);
  for (const Deadline end = Deadline::After(parting); !end.passed();) {
    absl::StatusOr<std::string> stored = store->Get(key, end);
    const WipedAtEnd stored_wiped(&stored);
    if (!stored.ok() || !Fresh(*stored).has_value()) return;
    std::this_thread::sleep_until(std::min(Deadline::Clock::now() + kPause, end.time()));
  }
}

void TellFailure(Store* store, const std::string& key, Rank rank, int size, int attempt, uint64_t world,
                 const absl::Status& failure, Deadline deadline) {
  deadline = StoreDeadline(kTellingTime, deadline);
  FailureRecord record = {NowSeconds(), attempt, {}, failure};
  for (int other = 0; other < size; ++other) {
    if (other != rank.value()) record.untold.push_back(other);
  }
  for (; !deadline.passed(); std::this_thread::sleep_for(kPause)) {
    absl::StatusOr<std::string> stored = store->Wait(key, deadline);
    const WipedAtEnd wiped(&stored);
    if (!stored.ok()) return;
    if (!IsCoordinatorRecord(*stored)) {
      const absl::optional<FailureRecord> told = Fresh(*stored);
      if (told.has_value() && told->attempt >= attempt) return MarkRead(store, key, rank, deadline);
      continue;  // of an earlier set-up
    }
    const absl::StatusOr<CoordinatorRecord> coordinator = DecodeCoordinatorRecord(*stored);
    if (coordinator.ok() && (coordinator->attempt > attempt || (world != 0 && coordinator->world != world))) return;
    if (Replace(store, key, *stored, EncodeFailureRecord(record), deadline)) return;
  }
}

absl::Status LookForFailure(Store* store, const std::string& key, int attempt, Deadline deadline) {
  absl::StatusOr<std::string> stored = store->Get(key, StoreDeadline(kStoreTime, deadline));
  const WipedAtEnd wiped(&stored);
  const absl::optional<FailureRecord> record = stored.ok() ? FailureFor(Rank(0), *stored) : absl::nullopt;
  return record.has_value() && record->attempt >= attempt ? record->status : absl::OkStatus();
}

absl::optional<FailureRecord> FailureFor(Rank rank, absl::string_view text) {
  absl::optional<FailureRecord> record = Fresh(text);
  if (!record.has_value()) return absl::nullopt;
  const std::vector<int>& untold = record->untold;
  if (!std::binary_search(untold.begin(), untold.end(), rank.value())) return absl::nullopt;
  return record;
}

void MarkRead(Store* store, const std::string& key, Rank rank, Deadline deadline) {
  deadline = StoreDeadline(kStoreTime, deadline);
  for (int iteration = 0; iteration < kIterationsMax && !deadline.passed(); ++iteration) {
    absl::StatusOr<std::string> stored = store->Get(key, deadline);
    const WipedAtEnd wiped(&stored);
    absl::optional<FailureRecord> record = stored.ok() ? FailureFor(rank, *stored) : absl::nullopt;
    if (!record.has_value()) return;
    std::vector<int>& untold = record->untold;
    untold.erase(std::lower_bound(untold.begin(), untold.end(), rank.value()));
    if (Replace(store, key, *stored, untold.empty() ? "" : EncodeFailureRecord(*record), deadline)) return;
  }
}

}  // namespace lockstep::control
