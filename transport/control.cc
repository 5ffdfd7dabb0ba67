#include "transport/control.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/control_client.h"
#include "transport/control_connection.h"
#include "transport/control_hub.h"
#include "transport/control_protocol.h"
#include "transport/wakeup.h"

namespace lockstep {
namespace {

using control::Connection;
using control::HubRecord;
using std::chrono::milliseconds;

// How often a rank that waits says so, and looks whether the address it tries is still the one in the store.
constexpr milliseconds kLogInterval(5000);
constexpr milliseconds kLookAgain(500);
// Between two attempts at an address that turned out to be stale.
constexpr milliseconds kRetryPause(20);
// A hub that does not answer rank 0 within this is taken for dead, and its address is replaced.
constexpr milliseconds kProbeTime(1000);
constexpr milliseconds kWithdrawTime(5000);
constexpr size_t kJobIdBytesMax = 512;

std::string StoreKey(const std::string& job_id) { return absl::StrCat("control/", job_id); }

std::string HostName() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "unknown";
  return name;
}

Member Self(Rank rank) {
  Member self;
  self.rank = rank;
  self.host = HostName();
  self.pid = getpid();
  return self;
}

uint64_t NewWorldId() {
  std::random_device random;
  uint64_t id = 0;
  while (id == 0) id = uint64_t{random()} << 32 | random();
  return id;
}

// The connection of a rank that the hub has welcomed.
struct Greeted {
  Connection connection;
  control::Welcome welcome;
  std::vector<control::Message> early;  // what came along with the welcome
};

// How an attempt at a hub ended.
struct Attempt {
  absl::optional<Greeted> greeted;
  absl::Status status;
  // The hub itself said no, and why; otherwise there may be no hub of ours at all.
  absl::optional<control::RejectReason> rejected;
};

// Connects and introduces this rank. Gives up at the deadline, or when `go_on`, asked every kLookAgain, says no.
Attempt TryHub(const ControlOptions& options, const HubRecord& record, Deadline deadline,
               const std::function<bool()>& go_on) {
  Attempt attempt;
  absl::StatusOr<UniqueFd> socket = absl::UnavailableError("");
  do {
    socket = Connect(record.address, Deadline::Earlier(deadline, Deadline::After(kLookAgain)), false);
  } while (absl::IsDeadlineExceeded(socket.status()) && !deadline.passed() && go_on());
  if (!socket.ok()) {
    attempt.status = socket.status();
    return attempt;
  }
  const Member self = Self(options.rank);
  control::Hello hello;
  hello.job_id = options.job_id;
  hello.rank = static_cast<uint32_t>(options.rank.value());
  hello.size = static_cast<uint32_t>(options.size);
  hello.world = record.world;
  hello.host = self.host;
  hello.pid = self.pid;
  Connection connection(*std::move(socket), control::kHubFrameBytesMax);
  connection.Queue(std::make_shared<const std::string>(control::Encode(hello)));

  const std::string where = absl::StrCat("control hub at ", record.address.ToString());
  for (;;) {
    connection.Flush();
    std::vector<control::Message> messages;
    const Connection::Input input = connection.Receive(&messages);
    if (!messages.empty()) {
      if (auto* welcome = std::get_if<control::Welcome>(&messages[0])) {
        control::Welcome taken = std::move(*welcome);
        messages.erase(messages.begin());
        attempt.greeted.emplace(Greeted{std::move(connection), std::move(taken), std::move(messages)});
        return attempt;
      }
      if (const auto* reject = std::get_if<control::Reject>(&messages[0])) {
        attempt.rejected = reject->reason;
        attempt.status = Annotate(reject->status, where);
        return attempt;
      }
    }
    if (input != Connection::Input::kOpen || !messages.empty()) {
      attempt.status = absl::UnavailableError(
          absl::StrCat(where, input == Connection::Input::kClosed ? ": connection closed" : ": not our protocol",
                       " during the hello"));
      return attempt;
    }
    if (deadline.passed() || !go_on()) {
      attempt.status = absl::DeadlineExceededError(absl::StrCat(where, ": no answer"));
      return attempt;
    }
    pollfd entry = {connection.socket(), POLLIN, 0};
    if (connection.wants_to_write()) entry.events |= POLLOUT;
    poll(&entry, 1, Deadline::Earlier(deadline, Deadline::After(kLookAgain)).remaining_ms());
  }
}

// Puts the address of our hub into the store. What stands there may be left over from a world that crashed, or belong
// to a rank 0 that is alive: only asking it tells.
absl::Status Publish(const ControlOptions& options, Store* store, const std::string& record, Deadline deadline) {
  const std::string key = StoreKey(options.job_id);
  const std::string attempt = absl::StrCat("publish the control hub in ", store->Describe());
  for (;;) {
    absl::StatusOr<std::string> before = store->Get(key, deadline);
    if (absl::IsNotFound(before.status())) before = std::string();
    if (!before.ok()) return Annotate(before.status(), attempt);
    if (!before->empty()) {
      if (const absl::StatusOr<HubRecord> other = control::DecodeHubRecord(*before); other.ok()) {
        const Deadline probe = Deadline::Earlier(deadline, Deadline::After(kProbeTime));
        const Attempt answer = TryHub(options, *other, probe, [] { return true; });
        if (answer.rejected == control::RejectReason::kRefused) return answer.status;
      }
      LOCKSTEP_LOG(kInfo) << "replaces the left-over address of a control hub in " << store->Describe();
    }
    const absl::StatusOr<std::string> after = store->CompareAndSet(key, *before, record, deadline);
    // An embedder's store may know no more than set and get; of two rank 0s that start at the same moment the later one
    // then wins.
    if (absl::IsUnimplemented(after.status())) return Annotate(store->Set(key, record, deadline), attempt);
    if (!after.ok()) return Annotate(after.status(), attempt);
    if (*after == record) return absl::OkStatus();
    if (deadline.passed()) return absl::DeadlineExceededError(absl::StrCat(attempt, ": another rank 0 interferes"));
  }
}

// Takes the address out again, unless a later world has put its own there.
void Withdraw(Store* store, const std::string& key, const std::string& record) {
  const Deadline deadline = Deadline::After(kWithdrawTime);
  const absl::StatusOr<std::string> standing = store->Get(key, deadline);
  if (!standing.ok() || *standing != record) return;
  const absl::Status status = store->Delete(key, deadline);
  // Left standing it does no harm: the next world asks there first, as after a crash.
  if (!status.ok()) LOCKSTEP_LOG(kInfo) << "cannot remove the control hub's address: " << status.message();
}

// Waits for rank 0's hub to appear in the store and to welcome us. Any failure of an address that is not the hub's own
// refusal may mean that a crashed world left it there, so the store is read again until the deadline.
absl::StatusOr<Greeted> FindHub(const ControlOptions& options, Store* store, Deadline deadline) {
  const std::string key = StoreKey(options.job_id);
  absl::Status last_failure;
  Deadline next_log = Deadline::After(kLogInterval);
  const auto log_now_and_then = [&] {
    if (!next_log.passed()) return;
    next_log = Deadline::After(kLogInterval);
    LOCKSTEP_LOG(kInfo) << "rank " << options.rank << " waits for rank 0 to appear in " << store->Describe()
                        << (last_failure.ok() ? "" : "; ") << last_failure.message();
  };
  for (;;) {
    const absl::StatusOr<std::string> text =
        store->Wait(key, Deadline::Earlier(deadline, Deadline::After(kLogInterval)));
    if (!text.ok() && !absl::IsDeadlineExceeded(text.status())) {
      return Annotate(text.status(), absl::StrCat("wait for rank 0 in ", store->Describe()));
    }
    if (text.ok()) {
      const absl::StatusOr<HubRecord> record = control::DecodeHubRecord(*text);
      if (absl::IsFailedPrecondition(record.status())) return record.status();
      last_failure = record.status();
      if (record.ok()) {
        Attempt attempt = TryHub(options, *record, deadline, [&] {
          log_now_and_then();
          const absl::StatusOr<std::string> now = store->Get(key, deadline);
          return now.ok() ? *now == *text : !absl::IsNotFound(now.status());
        });
        if (attempt.greeted.has_value()) return *std::move(attempt.greeted);
        if (attempt.rejected.has_value() && attempt.rejected != control::RejectReason::kOtherWorld) {
          return attempt.status;
        }
        last_failure = attempt.status;
      }
      if (!deadline.passed()) std::this_thread::sleep_for(kRetryPause);
    }
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank 0 has not appeared in ", store->Describe(),
                       last_failure.ok() ? "" : "; the address there is of no use: ", last_failure.message()));
    }
    log_now_and_then();
  }
}

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
  const SocketAddress& address = options.hub_bind_address;
  if (options.rank == Rank(0) && (address.length() == 0 || address.wildcard())) {
    return absl::InvalidArgumentError("hub_bind_address must be an address that the other ranks can reach");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlChannel>> ControlChannel::Create(ControlOptions options, Store* store,
                                                                       Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(Check(options));
  LOCKSTEP_ASSIGN_OR_RETURN(Wakeup wakeup, Wakeup::Create());
  control::Client::Setup setup;
  absl::optional<Greeted> greeted;
  std::string record_text;
  if (options.rank == Rank(0)) {
    control::Hub::Options hub_options;
    hub_options.bind_address = options.hub_bind_address;
    hub_options.size = options.size;
    hub_options.job_id = options.job_id;
    hub_options.world_id = NewWorldId();
    hub_options.peer_timeout = options.peer_timeout;
    hub_options.self = Self(options.rank);
    LOCKSTEP_ASSIGN_OR_RETURN(setup.hub, control::Hub::Start(hub_options));
    const HubRecord record = {setup.hub->address(), hub_options.world_id, hub_options.self.pid, hub_options.self.host};
    // Rank 0 takes its seat before anybody else can know of the hub.
    Attempt attempt = TryHub(options, record, deadline, [] { return true; });
    if (!attempt.greeted.has_value()) return Annotate(attempt.status, "rank 0 cannot reach its own hub");
    greeted = *std::move(attempt.greeted);
    record_text = control::EncodeHubRecord(record);
    setup.withdraw = [store, key = StoreKey(options.job_id), record_text] { Withdraw(store, key, record_text); };
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(greeted, FindHub(options, store, deadline));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress local, LocalAddress(greeted->connection.socket()));
  setup.local_address = local.WithPort(0);
  setup.options = options;
  setup.welcome = std::move(greeted->welcome);
  setup.early = std::move(greeted->early);
  auto client = std::make_unique<control::Client>(std::move(setup), std::move(greeted->connection), std::move(wakeup));
  // Published once heartbeats flow: asking after an older hub may take longer than the peer timeout.
  if (options.rank == Rank(0)) LOCKSTEP_RETURN_IF_ERROR(Publish(options, store, record_text, deadline));
  return client;
}

}  // namespace lockstep
