#include "transport/control/control.h"

#include <poll.h>

#include <cstdlib>
#include <numeric>
#include <thread>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/clipped.h"
#include "base/error_info.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "transport/control/control_store.h"
#include "transport/secure/channel.h"
#include "transport/secure/secret.h"

namespace lockstep {
namespace {

using control::Connection;
using control::CoordinatorRecord;
using control::FailureRecord;
using control::ThisProcess;
using std::chrono::milliseconds;

// How often a rank that waits says so, and looks whether the address it tries is still the one in the store.
constexpr milliseconds kLogInterval(5000);
constexpr milliseconds kLookAgain(500);
// Between two attempts at an address that turned out to be stale.
constexpr milliseconds kRetryPause(20);
// The same where somebody does not have our secret: finding that out costs both ends something.
constexpr milliseconds kRefusedPause(200);
// A coordinator that does not answer rank 0 within this is taken for dead, and its address is replaced. It may be some round trips of a
// second away.
constexpr milliseconds kProbeTime(5000);
// What stands in the store when a rank comes may be of a set-up that failed, and rank 0 about to try another: it has this long to
// replace it.
constexpr milliseconds kBeliefTime(500);
constexpr size_t kJobIdBytesMax = 512;

// The connection of a rank that the coordinator has welcomed.
struct Welcomed {
  Connection connection;
  control::Welcome welcome;
  std::vector<control::Message> early;  // what came along with the welcome
};

// How an attempt at a coordinator ended.
struct Attempt {
  absl::optional<Welcomed> welcomed;
  absl::Status status;
  // Why one of the two ends refused the other in the handshake.
  Refusal refusal = Refusal::kCount;
  // The coordinator itself said no, and why; otherwise there may be no coordinator of ours at all.
  absl::optional<control::RejectReason> rejected;
  // No process listens there.
  bool refused = false;
  // The connection was made, and rank 0 has sent nothing over it for the peer timeout.
  bool silent = false;
};

// What to show to the coordinator of this record, which may hold the secret. Where neither has one, a secret that nobody else has: it
// still tells whether the other's level is the same.
absl::StatusOr<Credentials> CredentialsFor(const ControlOptions& options, const Store& store,
                                           const CoordinatorRecord& record) {
  Credentials credentials = options.credentials;
  if (credentials.level == SecurityLevel::kNone) return Credentials();
  if (credentials.secret != nullptr) return credentials;
  credentials.secret = record.secret;
  credentials.source = absl::StrCat("the coordinator's address in ", store.Describe());
  if (credentials.secret != nullptr) return credentials;
  LOCKSTEP_ASSIGN_OR_RETURN(credentials.secret, Secret::Draw());
  credentials.source =
      "nowhere, as there is none with its address: LOCKSTEP_SECRET_FILE has to be set on all ranks or on none";
  return credentials;
}

// Connects and introduces this rank. Gives up at the deadline, or when `go_on`, asked every kLookAgain, says no.
Attempt TryCoordinator(const ControlOptions& options, const Store& store, const CoordinatorRecord& record,
                       Deadline deadline, const std::function<bool()>& go_on) {
  Attempt attempt;
  const absl::StatusOr<Credentials> credentials = CredentialsFor(options, store, record);
  if (!credentials.ok()) {
    attempt.status = credentials.status();
    return attempt;
  }
  absl::StatusOr<UniqueFd> socket = StartConnect(record.address, &attempt.refused);
  attempt.status = socket.status();
  if (socket.ok()) attempt.status = FinishConnect(socket->get(), record.address, &attempt.refused);
  // One attempt for as long as it takes: another would begin anew what may take longer than the time between two looks.
  while (absl::IsFailedPrecondition(attempt.status)) {
    if (deadline.passed() || !go_on()) {
      attempt.status = absl::DeadlineExceededError(
          absl::StrCat("connect to ", record.address.ToString(), ": no answer by the deadline"));
      return attempt;
    }
    pollfd entry = {socket->get(), POLLOUT, 0};
    poll(&entry, 1, Deadline::Earlier(deadline, Deadline::After(kLookAgain)).remaining_ms());
    attempt.status = FinishConnect(socket->get(), record.address, &attempt.refused);
  }
  if (!attempt.status.ok()) return attempt;
  const Member self = ThisProcess(options.rank);
  control::Hello hello;
  hello.job_id = options.job_id;
  hello.rank = static_cast<uint32_t>(options.rank.value());
  hello.size = static_cast<uint32_t>(options.size);
  hello.world = record.world;
  hello.host = self.host;
  hello.pid = self.pid;
  Connection connection(*std::move(socket), Channel::Side::kConnects, *credentials);
  connection.Send(hello);

  const std::string where = absl::StrCat("coordinator at ", record.address.ToString());
  for (Deadline answer = Deadline::After(options.peer_timeout);;) {
    connection.Flush();
    std::vector<control::Message> messages;
    const Connection::Input input = connection.Receive(&messages);
    // The answer, or the reason why there will be none.
    connection.Flush();
    if (connection.heard()) answer = Deadline::After(options.peer_timeout);
    if (!messages.empty()) {
      auto* const welcome = std::get_if<control::Welcome>(&messages[0]);
      // With the world's secret if, and only if, there are secrets.
      if (welcome != nullptr && (welcome->secret == nullptr) == (credentials->secret == nullptr)) {
        control::Welcome taken = std::move(*welcome);
        messages.erase(messages.begin());
        attempt.welcomed.emplace(Welcomed{std::move(connection), std::move(taken), std::move(messages)});
        return attempt;
      }
      if (const auto* reject = std::get_if<control::Reject>(&messages[0])) {
        attempt.rejected = reject->reason;
        attempt.status = Annotate(UnpackMessage(reject->status.code(), reject->status.message()), where);
        return attempt;
      }
    }
    if (input == Connection::Input::kRefused || input == Connection::Input::kTampered) {
      attempt.refusal = connection.refusal();
      attempt.status = Annotate(connection.why(), where);
      return attempt;
    }
    if (input != Connection::Input::kOpen || !messages.empty()) {
      attempt.status = absl::UnavailableError(
          absl::StrCat(where, input == Connection::Input::kClosed ? ": connection closed" : ": not our protocol",
                       " during the hello"));
      return attempt;
    }
    attempt.silent = options.rank != Rank(0) && answer.passed();
    if (deadline.passed() || !go_on() || attempt.silent) {
      attempt.status = absl::DeadlineExceededError(absl::StrCat(where, ": no answer"));
      return attempt;
    }
    pollfd entry = {connection.socket(), POLLIN, 0};
    if (connection.wants_to_write()) entry.events |= POLLOUT;
    poll(&entry, 1, Deadline::Earlier(Deadline::Earlier(deadline, answer), Deadline::After(kLookAgain)).remaining_ms());
  }
}

// Puts the address of our coordinator into the store. What stands there may be left over from a world that crashed, or belong
// to a rank 0 that is alive: only asking it tells.
absl::Status Publish(const ControlOptions& options, Store* store, const CoordinatorRecord& record, Deadline deadline) {
  std::string text = control::EncodeCoordinatorRecord(record);
  const WipedAtEnd text_wiped(&text);
  const std::string key = control::StoreKey(options.job_id);
  const std::string attempt = absl::StrCat("publish the coordinator in ", store->Describe());
  for (;;) {
    absl::StatusOr<std::string> before = store->Get(key, deadline);
    if (absl::IsNotFound(before.status())) before = std::string();
    if (!before.ok()) return Annotate(before.status(), attempt);
    const WipedAtEnd before_wiped(&before);
    if (!before->empty()) {
      if (const absl::StatusOr<CoordinatorRecord> other = control::DecodeCoordinatorRecord(*before); other.ok()) {
        const Deadline probe = Deadline::Earlier(deadline, Deadline::After(kProbeTime));
        const Attempt answer = TryCoordinator(options, *store, *other, probe, [] { return true; });
        if (answer.rejected == control::RejectReason::kRefused) return answer.status;
      }
      LOCKSTEP_LOG(kInfo) << "replaces the left-over address of a coordinator in " << store->Describe();
    }
    absl::StatusOr<std::string> after = store->CompareAndSet(key, *before, text, deadline);
    const WipedAtEnd after_wiped(&after);
    // An embedder's store may know no more than set and get; of two rank 0s that start at the same moment the later one
    // then wins.
    if (absl::IsUnimplemented(after.status())) {
      LOCKSTEP_RETURN_IF_ERROR(Annotate(store->Set(key, text, deadline), attempt));
      break;
    }
    if (!after.ok()) return Annotate(after.status(), attempt);
    if (*after == text) break;
    if (deadline.passed()) return absl::DeadlineExceededError(absl::StrCat(attempt, ": another rank 0 interferes"));
  }
  if (record.secret != nullptr) {
    LOCKSTEP_LOG(kInfo) << "the job's secret stands in " << store->Describe() << ": it is as safe as that store";
  }
  // For a hint to others: that it does not stand there is no reason to fail.
  (void)store->Set(control::kAnyJobKey, control::AnyJobText(record), deadline);
  return absl::OkStatus();
}

// A rank that looks for rank 0's coordinator in the store.
class Search {
 public:
  Search(const ControlOptions& options, Store* store, Deadline deadline)
      : options_(options), store_(store), key_(control::StoreKey(options.job_id)), deadline_(deadline) {}

  // Waits for the coordinator to appear and to welcome us. The coordinator's own refusal ends the search, and after a moment another level
  // or a want of descriptors. An address that fails otherwise may be left over from a crashed world, so the store is read again until the
  // deadline.
  absl::StatusOr<Welcomed> Run() {
    for (;;) {
      absl::StatusOr<std::string> text =
          store_->Wait(key_, Deadline::Earlier(deadline_, Deadline::After(kLogInterval)));
      const WipedAtEnd wiped(&text);
      if (!text.ok() && !absl::IsDeadlineExceeded(text.status())) return Annotate(text.status(), "wait for rank 0");
      if (!text.ok()) LOCKSTEP_RETURN_IF_ERROR(CheckStore());
      if (text.ok()) {
        if (absl::optional<absl::StatusOr<Welcomed>> taken = Take(*text)) return *std::move(taken);
        const milliseconds pause = absl::IsPermissionDenied(last_failure_) ? kRefusedPause : kRetryPause;
        std::this_thread::sleep_until(Deadline::Earlier(deadline_, Deadline::After(pause)).time());
      }
      if (deadline_.passed() || next_log_.passed()) {
        if (absl::optional<Welcomed> welcomed = TryNewestCoordinator()) return *std::move(welcomed);
      }
      if (deadline_.passed()) {
        return absl::DeadlineExceededError(absl::StrCat(
            "rank 0 has not appeared in ", store_->Describe(),
            last_failure_.ok() ? "" : "; the address there is of no use: ", last_failure_.message(), other_job_));
      }
      LogNowAndThen();
    }
  }

 private:
  // The result of what the store holds; nothing if that is of no use.
  absl::optional<absl::StatusOr<Welcomed>> Take(const std::string& text) {
    if (text.empty()) return absl::nullopt;  // what a store that cannot delete has of an earlier set-up
    if (absl::optional<FailureRecord> failure = control::FailureFor(options_.rank, text); failure.has_value()) {
      const bool earlier = failure->attempt < options_.attempt;
      last_failure_ = failure->status;
      if (!earlier && !believe_.passed()) return absl::nullopt;
      control::MarkRead(store_, key_, options_.rank, deadline_);
      if (earlier) return absl::nullopt;
      return failure->status;
    }
    const absl::StatusOr<CoordinatorRecord> record = control::DecodeCoordinatorRecord(text);
    last_failure_ = record.status();
    if (absl::IsFailedPrecondition(record.status())) return Fail(record.status());
    if (!record.ok()) return absl::nullopt;
    if (options_.only_leaves && record->attempt > options_.attempt) return absl::CancelledError("a later attempt");
    tried_world_ = record->world;
    Deadline overruled = Deadline::Infinite();
    Attempt attempt = TryCoordinator(options_, *store_, *record, deadline_, [&] {
      LogNowAndThen();
      absl::StatusOr<std::string> now =
          store_->Get(key_, Deadline::Earlier(deadline_, Deadline::After(options_.peer_timeout)));
      const WipedAtEnd wiped(&now);
      if (!now.ok() && !absl::IsNotFound(now.status())) return true;
      if (now.ok() && *now == text) return true;
      if (now.ok() && control::DecodeCoordinatorRecord(*now).ok()) return false;
      // It was removed, or a failure stands there: the coordinator has told us of it, or is about to; one that is dead does not.
      overruled = Deadline::Earlier(overruled, Deadline::After(kProbeTime));
      return !overruled.passed();
    });
    if (attempt.welcomed.has_value()) return *std::move(attempt.welcomed);
    if (attempt.rejected.has_value() && attempt.rejected != control::RejectReason::kOtherWorld) return attempt.status;
    last_failure_ = attempt.status;
    Member rank_zero = ThisProcess(Rank(0));
    rank_zero.host = record->host;
    rank_zero.pid = record->pid;
    const auto gone = [&](absl::string_view how) {
      return WithFailedRank(
          absl::AbortedError(absl::StrCat(Describe(rank_zero), " ", how, " before the world had formed")), 0);
    };
    if (attempt.silent) return Fail(gone(control::SilenceText(options_.peer_timeout)), record->world);
    // No other address makes that better, if this is not one that rank 0 is about to replace.
    if ((absl::IsResourceExhausted(attempt.status) || attempt.refusal == Refusal::kOtherLevel) && believe_.passed()) {
      return Fail(attempt.status);
    }
    // A coordinator listens before its address is told: nobody is there, or not on this machine.
    const std::string host = ThisProcess(options_.rank).host;
    const bool other_host = record->host != host || record->host_id != control::HostWord(options_.host_id);
    if (record->address.loopback() && other_host && believe_.passed()) {
      return Fail(absl::FailedPreconditionError(absl::StrCat(Describe(rank_zero), " listens on loopback (",
                                                             record->address.ToString(), "), which host ",
                                                             Clipped(host), " cannot reach: see LOCKSTEP_INTERFACE")));
    }
    // Rank 0 may have died in a set-up before this, and be about to come again. It has the peer timeout for that, unless its address
    // is too old to be of this set-up.
    if (!attempt.refused) return absl::nullopt;
    if (record->world != dead_world_) {
      dead_world_ = record->world;
      const bool recent = std::abs(control::NowSeconds() - record->seconds) <= recent_seconds_;
      dead_ = recent ? Deadline::After(options_.peer_timeout) : Deadline::Infinite();
    }
    if (!dead_.passed()) return absl::nullopt;
    return Fail(gone(absl::StrCat("died: no process listens at ", record->address.ToString(), " any more,")),
                record->world);
  }

  // Whether the store answers. A wait for rank 0 alone does not tell.
  absl::Status CheckStore() {
    const absl::Status asked =
        store_->Get(control::kAnyJobKey, Deadline::Earlier(deadline_, Deadline::After(options_.peer_timeout))).status();
    if (!absl::IsDeadlineExceeded(asked) || deadline_.passed()) return absl::OkStatus();
    const absl::Status silent =
        absl::AbortedError(absl::StrCat(options_.rank_zero_serves ? "rank 0, which serves the store, " : "the store ",
                                        control::SilenceText(options_.peer_timeout), ": ", asked.message()));
    return options_.rank_zero_serves ? WithFailedRank(silent, 0) : silent;
  }

  // Tries the store's own host: a coordinator of another job, which refuses us and says so, or our own.
  absl::optional<Welcomed> TryNewestCoordinator() {
    const Deadline end = deadline_.passed() ? control::WithGrace(deadline_) : Deadline::After(kProbeTime);
    const absl::StatusOr<std::string> text = store_->Get(control::kAnyJobKey, end);
    const absl::StatusOr<CoordinatorRecord> record =
        text.ok() ? control::DecodeCoordinatorRecord(*text) : text.status();
    if (!record.ok()) return absl::nullopt;
    Attempt attempt;
    // Here no secret comes with the address.
    const Credentials& own = options_.credentials;
    const bool can_ask = own.level == SecurityLevel::kNone || own.secret != nullptr;
    if (can_ask) {
      attempt = TryCoordinator(options_, *store_, *record, end, [] { return true; });
    }
    if (attempt.rejected == control::RejectReason::kRefused) {
      other_job_ = absl::StrCat("; ", attempt.status.message());
    } else if (record->world != tried_world_ && (!can_ask || attempt.refusal != Refusal::kCount)) {
      other_job_ = absl::StrCat("; there is a rank 0 (host ", Clipped(record->host), ", pid ", record->pid,
                                "), of another job, or with another secret or level");
    }
    return std::move(attempt.welcomed);
  }

  void LogNowAndThen() {
    if (!next_log_.passed()) return;
    next_log_ = Deadline::After(kLogInterval);
    const std::string text =
        absl::StrCat("rank ", options_.rank.value(), " waits for rank 0 to appear in ", store_->Describe(),
                     last_failure_.ok() ? "" : "; ", last_failure_.message(), other_job_);
    // Somebody else's coordinator, or one that was left over, or our own.
    if (absl::IsPermissionDenied(last_failure_)) {
      LOCKSTEP_LOG(kWarning) << text;
    } else {
      LOCKSTEP_LOG(kInfo) << text;
    }
  }

  // Tells the other ranks why this rank cannot reach the coordinator, of `world` if that is not 0.
  absl::Status Fail(const absl::Status& why, uint64_t world = 0) {
    control::TellFailure(store_, key_, options_.rank, options_.size, options_.attempt, world,
                         control::SaidBy(ThisProcess(options_.rank), why), deadline_);
    return why;
  }

  const ControlOptions& options_;
  Store* const store_;
  const std::string key_;
  const Deadline deadline_;
  // An address that is no older may be of this set-up: rank 0 may have waited for that long before it died.
  const int64_t recent_seconds_ = std::max<int64_t>(control::kFailureSeconds, deadline_.remaining_ms() / 1000);
  const Deadline believe_ = Deadline::After(kBeliefTime);
  Deadline next_log_ = Deadline::After(kLogInterval);
  absl::Status last_failure_;             // of the address in the store
  uint64_t tried_world_ = 0;              // the world of that address
  uint64_t dead_world_ = 0;               // the last one where no process listened
  Deadline dead_ = Deadline::Infinite();  // when that world counts as dead
  std::string other_job_;
};

absl::Status Check(const ControlOptions& options) {
  if (options.size < 1 || options.rank.value() < 0 || options.rank.value() >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no rank ", options.rank.value(), " in a world of ", options.size));
  }
  if (options.job_id.size() > kJobIdBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job id has ", options.job_id.size(), " bytes; at most ", kJobIdBytesMax, " are allowed"));
  }
  if (options.peer_timeout <= milliseconds(0)) return absl::InvalidArgumentError("peer_timeout must be positive");
  if (options.credentials.secret != nullptr && !options.credentials.secret->usable()) {
    return absl::FailedPreconditionError(
        "the secret was read before this process was forked, and is not there any more: it has to be read again");
  }
  const SocketAddress& address = options.coordinator_bind_address;
  if (options.rank == Rank(0) && (address.length() == 0 || address.wildcard())) {
    return absl::InvalidArgumentError("coordinator_bind_address must be an address that the other ranks can reach");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ControlChannel>> MakeClient(ControlChannel::Setup setup, Welcomed welcomed) {
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress local, LocalAddress(welcomed.connection.socket()));
  setup.local_address = local.WithPort(0);
  setup.welcome = std::move(welcomed.welcome);
  setup.options.credentials.secret.reset();
  auto client = std::make_unique<ControlChannel>(std::move(setup), std::move(welcomed.connection));
  const absl::Status started = client->Start(std::move(welcomed.early));
  if (started.ok()) return client;
  client->LeaveBecause(started);
  return started;
}

absl::StatusOr<std::unique_ptr<ControlChannel>> CreateOfRankZero(const ControlOptions& options, Store* store,
                                                                 Deadline deadline) {
  ControlChannel::Setup setup;
  setup.options = options;
  setup.deadline = deadline;
  control::Coordinator::Options coordinator_options;
  coordinator_options.bind_address = options.coordinator_bind_address;
  coordinator_options.size = options.size;
  coordinator_options.job_id = options.job_id;
  LOCKSTEP_ASSIGN_OR_RETURN(coordinator_options.world_id, RandomNumber());
  coordinator_options.peer_timeout = options.peer_timeout;
  coordinator_options.self = ThisProcess(options.rank);
  coordinator_options.why_missing = options.why_missing;
  CoordinatorRecord record;
  record.world = coordinator_options.world_id;
  record.pid = coordinator_options.self.pid;
  record.attempt = options.attempt;
  record.host = coordinator_options.self.host;
  record.seconds = control::NowSeconds();
  record.host_id = control::HostWord(options.host_id);
  if (options.credentials.level != SecurityLevel::kNone) {
    LOCKSTEP_ASSIGN_OR_RETURN(coordinator_options.world_secret, Secret::Draw());
    if (options.credentials.secret == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(record.secret, Secret::Draw());
    }
    LOCKSTEP_ASSIGN_OR_RETURN(coordinator_options.credentials, CredentialsFor(options, *store, record));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(setup.coordinator, control::Coordinator::Start(coordinator_options));
  record.address = setup.coordinator->address();
  // Rank 0 takes its slot before anybody else can know of the coordinator.
  Attempt attempt =
      TryCoordinator(options, *store, record, deadline, [&setup] { return setup.coordinator->status().ok(); });
  LOCKSTEP_RETURN_IF_ERROR(setup.coordinator->status());
  if (!attempt.welcomed.has_value()) return Annotate(attempt.status, "rank 0 cannot reach its own coordinator");
  setup.store = store;
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<ControlChannel> client,
                            MakeClient(std::move(setup), *std::move(attempt.welcomed)));
  // Published once heartbeats flow: asking after an older coordinator may take longer than the peer timeout.
  LOCKSTEP_RETURN_IF_ERROR(Publish(options, store, record, deadline));
  client->SetPublished(std::move(record));
  return client;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlChannel>> ControlChannel::Create(ControlOptions options, Store* store,
                                                                       Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(Check(options));
  if (options.rank == Rank(0)) {
    absl::StatusOr<std::unique_ptr<ControlChannel>> channel = CreateOfRankZero(options, store, deadline);
    if (!channel.ok()) Refuse(options, store, channel.status(), deadline);
    return channel;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(Welcomed welcomed, Search(options, store, deadline).Run());
  ControlChannel::Setup setup;
  setup.options = std::move(options);
  setup.store = store;
  setup.deadline = deadline;
  return MakeClient(std::move(setup), std::move(welcomed));
}

absl::Status ControlChannel::MeetOther(const ControlOptions& options, Store* store, Deadline deadline) {
  absl::StatusOr<std::string> text = store->Wait(control::StoreKey(options.job_id), deadline);
  const WipedAtEnd wiped(&text);
  LOCKSTEP_RETURN_IF_ERROR(text.status());
  LOCKSTEP_ASSIGN_OR_RETURN(const CoordinatorRecord record, control::DecodeCoordinatorRecord(*text));
  return TryCoordinator(options, *store, record, deadline, [] { return true; }).status;
}

void ControlChannel::Refuse(const ControlOptions& options, Store* store, const absl::Status& why, Deadline deadline) {
  // Another process has this place, and the others a rank 0.
  if (absl::IsAlreadyExists(why)) return;
  std::vector<int> others(options.size - 1);
  std::iota(others.begin(), others.end(), 1);
  control::EndSetup(store, control::StoreKey(options.job_id), absl::nullopt, options.attempt, why, std::move(others),
                    options.parting, deadline);
}

}  // namespace lockstep
