#include "transport/control/control.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/control/control_store.h"

namespace lockstep {
namespace {

using control::Connection;
using control::Message;
using Clock = Deadline::Clock;
using std::chrono::milliseconds;

// What Join waits beyond its deadline for the coordinator to say the same to all ranks.
constexpr milliseconds kVerdictTime(5000);
constexpr milliseconds kHindranceInterval(250);
constexpr size_t kChannelsPerPong = 4096;
// Calls of AwaitMessages that ended at their deadlines, whose answers are kept. The coordinator keeps 64 waits of a rank.
constexpr size_t kOpenWaitsMax = 16;
constexpr size_t kTextBytesMax = size_t{64} << 10;

// How long all of a process's clients may hold up its exit.
constexpr milliseconds kExitTime(300);
constexpr milliseconds kLockPause(1);

// False when somebody has held it for so long.
bool LockBy(Mutex* mu, Deadline deadline) ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true, mu) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  while (!mu->TryLock()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kLockPause);
  }
  return true;
}

// Messages keep their place on the wire however long a caller's text is.
absl::Status Shortened(const absl::Status& status) {
  if (status.message().size() <= kTextBytesMax) return status;
  return Reworded(status, status.message().substr(0, kTextBytesMax));
}

// The clients of this process. They tell the coordinator when it exits: a rank that exits without destroying its communicator
// has not died. In exit() other threads still run, and any of them may hold a lock; a forked child has none of this.
class ExitNotifier {
 public:
  // Never destroyed: whatever exit() calls may come to it.
  static ExitNotifier& Get() {
    static ExitNotifier* const notifier = new ExitNotifier;
    return *notifier;
  }

  void Add(ControlChannel* client) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    clients_.push_back(client);
  }
  void Remove(ControlChannel* client) ABSL_LOCKS_EXCLUDED(mu_) {
    // The parent may have held the lock.
    if (fork_generation_ != ForkGeneration()) return;
    MutexLock lock(&mu_);
    clients_.erase(std::remove(clients_.begin(), clients_.end(), client), clients_.end());
  }

 private:
  ExitNotifier() : fork_generation_(ForkGeneration()) {
    // Without it, a rank that exits is said to have died.
    if (std::atexit([] { Get().Tell(); }) != 0) LOCKSTEP_LOG(kInfo) << "control channel: no room for an exit handler";
  }

  void Tell() ABSL_LOCKS_EXCLUDED(mu_) {
    if (fork_generation_ != ForkGeneration()) return;
    const Deadline deadline = Deadline::After(kExitTime);
    if (!LockBy(&mu_, deadline)) return;
    for (ControlChannel* client : clients_) client->TellExit(deadline);
    for (ControlChannel* client : clients_) client->AwaitExitTold(deadline);
    mu_.Unlock();
  }

  const uint64_t fork_generation_;
  Mutex mu_;
  std::vector<ControlChannel*> clients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

ControlChannel::ControlChannel(Setup setup, Connection connection)
    : options_(std::move(setup.options)),
      world_id_(setup.welcome.world),
      world_credentials_{options_.credentials.level, std::move(setup.welcome.secret),
                         absl::StrCat("the coordinator, ", Describe(setup.welcome.coordinator))},
      peer_timeout_(setup.welcome.peer_timeout_ms),
      local_address_(std::move(setup.local_address)),
      fork_generation_(ForkGeneration()),
      last_heard_(Clock::now()),
      store_(setup.store),
      setup_deadline_(setup.deadline),
      connection_(std::move(connection)),
      coordinator_member_(std::move(setup.welcome.coordinator)),
      coordinator_(std::move(setup.coordinator)) {
  ExitNotifier::Get().Add(this);
}

ControlChannel::~ControlChannel() {
  ExitNotifier::Get().Remove(this);
  Leave();
}

absl::Status ControlChannel::Start(std::vector<Message> early) {
  return thread_.Start("lockstep-ctl", [this, early = std::move(early)]() mutable { Loop(std::move(early)); });
}

bool ControlChannel::forked() const { return fork_generation_ != ForkGeneration(); }

// ---- Calls, on any thread.

void ControlChannel::Post(const Message& message) {
  if (forked()) return;
  MutexLock lock(&mu_);
  PostLocked(message);
}

void ControlChannel::PostLocked(const Message& message) {
  if (coordinator_state_ != CoordinatorState::kUp || leaving_) return;
  // If the socket does not take it all, the thread sends the rest with the next heartbeat at the latest.
  if (!connection_.Queue(Connection::MakeFrame(message))) {
    LOCKSTEP_LOG(kWarning) << "control channel: rank 0 does not read; dropped messages";
  }
  connection_.Flush();
}

absl::StatusOr<std::vector<Member>> ControlChannel::Join(const Member& self, absl::Span<const AgreedOption> options,
                                                         Deadline deadline) {
  if (forked()) return absl::FailedPreconditionError("the control channel belongs to the parent process");
  if (self.rank != options_.rank) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options_.rank.value(), " cannot join as ", Describe(self)));
  }
  control::Join join;
  join.member = self;
  join.options.assign(options.begin(), options.end());
  if (control::Encode(join).size() > control::kRankFrameBytesMax) {
    return absl::InvalidArgumentError("member and options are too long for a message to the coordinator");
  }
  {
    MutexLock lock(&mu_);
    if (join_called_) return absl::FailedPreconditionError("Join was called before");
    if (leaving_) return absl::FailedPreconditionError("the control channel was left");
    join_called_ = true;
    PostLocked(join);
  }
  absl::StatusOr<std::vector<Member>> joined = AwaitJoined(deadline);
  std::vector<int> untold;
  if (record_.has_value()) {
    MutexLock lock(&mu_);
    if (!leaving_) untold = coordinator_->untold();  // else it may have gone
  } else if (options_.rank != Rank(0) && lost_in_setup()) {
    control::TellFailure(store_, control::StoreKey(options_.job_id), options_.rank, options_.size, options_.attempt,
                         world_id_, control::SaidBy(control::ThisProcess(options_.rank), joined.status()), deadline);
  }
  EndSetup(std::exchange(record_, absl::nullopt), joined.status(), std::move(untold));
  return joined;
}

void ControlChannel::WatchForHindrances(Deadline deadline) {
  if (options_.rank != Rank(0)) return;
  for (absl::Status status; status.ok() && !deadline.passed();) {
    const Deadline look = Deadline::Earlier(deadline, Deadline::After(kHindranceInterval));
    {
      MutexLock lock(&mu_);
      while (!joined_.has_value() && !leaving_ && changed_.WaitUntil(&mu_, look)) {
      }
      if (joined_.has_value() || leaving_) return;
    }
    status = LookForHindrance();
    Report(kAllChannels, status);
  }
}

absl::Status ControlChannel::LookForHindrance() {
  if (options_.hindrance != nullptr) LOCKSTEP_RETURN_IF_ERROR(options_.hindrance());
  const absl::Status told =
      control::LookForFailure(store_, control::StoreKey(options_.job_id), options_.attempt, setup_deadline_);
  if (told.ok() || options_.why_loopback.empty()) return told;
  return absl::Status(told.code(), absl::StrCat(told.message(), "; ", options_.why_loopback));
}

void ControlChannel::EndSetup(const absl::optional<control::CoordinatorRecord>& record, const absl::Status& result,
                              std::vector<int> untold) {
  if (!record.has_value()) return;
  control::EndSetup(store_, control::StoreKey(options_.job_id), record, options_.attempt, result, std::move(untold),
                    options_.parting, setup_deadline_);
}

absl::StatusOr<std::vector<Member>> ControlChannel::AwaitJoined(Deadline deadline) {
  WatchForHindrances(deadline);
  MutexLock lock(&mu_);
  while (!joined_.has_value() && !leaving_) {
    if (!changed_.WaitUntil(&mu_, deadline)) break;
  }
  if (!joined_.has_value() && !leaving_) {
    // The coordinator decides, so that all ranks return the same.
    PostLocked(control::GiveUp{});
    const Deadline verdict = Deadline::After(kVerdictTime);
    while (!joined_.has_value() && !leaving_) {
      if (!changed_.WaitUntil(&mu_, verdict)) break;
    }
  }
  if (joined_.has_value()) return *joined_;
  if (leaving_) return absl::CancelledError("the control channel was left while joining");
  return WithFailedRank(absl::DeadlineExceededError(absl::StrCat(
                            "the world did not form in time: ", Describe(coordinator_member_), " does not answer",
                            waiting_text_.empty() ? "" : absl::StrCat("; ", waiting_text_))),
                        0);
}

void ControlChannel::Report(ChannelId channel, const absl::Status& status, absl::optional<Rank> suspect) {
  if (status.ok() || forked()) return;
  const uint32_t suspected = suspect.has_value() ? static_cast<uint32_t>(suspect->value()) : control::kNoRank;
  MutexLock lock(&mu_);
  PostLocked(control::Report{channel, suspected, Shortened(status)});
  if (!suspect.has_value()) return KeepLocked(channel, status);
  // What the coordinator would say of a suspect that has left. Another suspect may only have followed rank 0.
  const std::string left = absl::StrCat(Describe(coordinator_member_), " has closed its communicator");
  KeepLocked(channel, suspect == Rank(0) ? WithFailedRank(Reworded(status, absl::StatusCode::kAborted, left), 0)
                                         : Reworded(status, absl::StrCat(status.message(), "; ", left)));
}

void ControlChannel::ReportLate(ChannelId channel, uint64_t sequence, const std::string& operation) {
  if (forked()) return;
  MutexLock lock(&mu_);
  PostLocked(control::Late{channel, sequence, operation.substr(0, kTextBytesMax)});
  KeepLocked(channel, absl::DeadlineExceededError(
                          absl::StrCat(operation, " did not finish in time; who is late is not known since ",
                                       Describe(coordinator_member_), " has closed its communicator")));
}

void ControlChannel::CloseChannel(ChannelId channel, int members, uint64_t started) {
  Post(control::Closed{channel, static_cast<uint32_t>(members), started});
}

void ControlChannel::KeepLocked(ChannelId channel, const absl::Status& status) {
  kept_.emplace(channel, status);
  changed_.SignalAll();
}

void ControlChannel::DeliverKept() {
  std::map<ChannelId, absl::Status> kept;
  {
    MutexLock lock(&mu_);
    if (!has_kept()) return;
    kept.swap(kept_);
  }
  for (const auto& [channel, status] : kept) Deliver(channel, status);
}

absl::optional<absl::Status> ControlChannel::FailureLocked(ChannelId channel) const {
  for (const ChannelId key : {channel, kAllChannels}) {
    const auto found = failures_.find(key);
    if (found != failures_.end()) return found->second;
  }
  return absl::nullopt;
}

absl::Status ControlChannel::AwaitFailure(ChannelId channel, const absl::Status& fallback, Deadline deadline) {
  if (forked()) return fallback;
  MutexLock lock(&mu_);
  for (bool in_time = true;; in_time = changed_.WaitUntil(&mu_, deadline)) {
    if (const absl::optional<absl::Status> failure = FailureLocked(channel)) return *failure;
    if (!in_time || leaving_ || coordinator_state_ != CoordinatorState::kUp) return fallback;
  }
}

void ControlChannel::PostMessage(ChannelId channel, uint64_t topic, const std::string& text) {
  Post(control::PostMessage{channel, topic, text.substr(0, control::kPostedBytesMax)});
}

absl::StatusOr<ControlChannel::MessageList> ControlChannel::AwaitMessages(ChannelId channel, uint64_t topic, int count,
                                                                          Deadline deadline) {
  if (forked()) return absl::FailedPreconditionError("the control channel belongs to the parent process");
  MutexLock lock(&mu_);
  const Wait wait = {channel, topic, static_cast<uint32_t>(std::max(count, 0))};
  const auto found =
      std::find_if(open_waits_.begin(), open_waits_.end(), [&](const auto& open) { return open.first == wait; });
  uint64_t request = 0;
  if (found != open_waits_.end()) {
    request = found->second;
    open_waits_.erase(found);
  } else {
    request = ++last_request_;
    PostLocked(control::AwaitMessages{request, channel, topic, wait.count});
  }
  absl::StatusOr<MessageList> messages = AwaitAnswer(request, channel, deadline);
  if (!absl::IsDeadlineExceeded(messages.status()) || count < 1) return messages;
  if (const absl::optional<absl::Status> failure = FailureLocked(channel)) return *failure;
  // The answer may be on its way: a caller that asks again and again, each time for less than the round trip, must get it.
  requests_.try_emplace(request);
  open_waits_.emplace_back(wait, request);
  if (open_waits_.size() > kOpenWaitsMax) {
    PostLocked(control::DropMessages{open_waits_.front().second});
    requests_.erase(open_waits_.front().second);
    open_waits_.pop_front();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("fewer than ", count, " messages on topic ", topic, " of channel ", channel));
}

absl::StatusOr<std::vector<Rank>> ControlChannel::EnterBarrier(ChannelId channel, uint64_t sequence, int count,
                                                               milliseconds timeout) {
  if (forked()) return absl::FailedPreconditionError("the control channel belongs to the parent process");
  MutexLock lock(&mu_);
  const uint64_t request = ++last_request_;
  PostLocked(control::EnterBarrier{request, channel, sequence, static_cast<uint32_t>(count),
                                   static_cast<uint64_t>(timeout.count())});
  const Deadline deadline = Deadline::After(std::min(timeout, milliseconds::max() - kVerdictTime) + kVerdictTime);
  LOCKSTEP_ASSIGN_OR_RETURN(const MessageList messages, AwaitAnswer(request, channel, deadline));
  std::vector<Rank> entered;
  for (const auto& [rank, text] : messages) entered.push_back(rank);
  return entered;
}

absl::StatusOr<ControlChannel::MessageList> ControlChannel::AwaitAnswer(uint64_t request, ChannelId channel,
                                                                        Deadline deadline) {
  absl::optional<MessageList>& messages = requests_[request];
  absl::Status failure;
  while (!messages.has_value() && failure.ok()) {
    if (const absl::optional<absl::Status> announced = FailureLocked(channel)) {
      failure = *announced;
    } else if (leaving_) {
      failure = absl::CancelledError("the control channel was left while waiting for the coordinator's answer");
    } else if (coordinator_state_ != CoordinatorState::kUp) {
      failure = WithFailedRank(
          absl::AbortedError(absl::StrCat(Describe(coordinator_member_), " has closed its communicator")), 0);
    } else if (!changed_.WaitUntil(&mu_, deadline) && !messages.has_value()) {
      failure = absl::DeadlineExceededError("the coordinator has not answered in time");
    }
  }
  absl::optional<MessageList> received = std::move(messages);
  requests_.erase(request);
  if (received.has_value()) return *std::move(received);
  return failure;
}

void ControlChannel::Leave() {
  absl::optional<control::CoordinatorRecord> record;
  absl::Status why = absl::AbortedError("it left before the world had formed");
  if (!forked()) {
    MutexLock lock(&mu_);
    if (!join_called_) record = std::exchange(record_, absl::nullopt);
    if (const auto reported = kept_.find(kAllChannels); reported != kept_.end()) why = reported->second;
    PostLocked(control::Disconnect{});
    leaving_ = true;
    // Wakes the thread, which reads nothing any more.
    shutdown(connection_.socket(), SHUT_RD);
    changed_.SignalAll();
  }
  thread_.Join();
  if (!forked()) {
    MutexLock lock(&mu_);
    connection_.FinishWriting();
  }
  std::vector<int> untold;
  if (record.has_value()) untold = coordinator_->untold();
  // After our own disconnect, so that the coordinator's world sees rank 0 leave before the coordinator goes.
  coordinator_.reset();
  // Without the coordinator, whose descriptors others may need to come and read it.
  EndSetup(record, why, std::move(untold));
}

void ControlChannel::LeaveBecause(const absl::Status& why) {
  Report(kAllChannels, control::SaidBy(control::ThisProcess(options_.rank), why));
  Leave();
}

void ControlChannel::TellExit(Deadline deadline) {
  if (forked()) return;
  if (!LockBy(&mu_, deadline)) return;
  exiting_ = true;
  PostLocked(control::Exiting{});
  mu_.Unlock();
}

void ControlChannel::AwaitExitTold(Deadline deadline) {
  if (forked()) return;
  if (!LockBy(&mu_, deadline)) return;
  while (coordinator_state_ == CoordinatorState::kUp && !leaving_ && failures_.count(kAllChannels) == 0) {
    if (joined_.has_value() && !joined_->ok()) break;
    if (!changed_.WaitUntil(&mu_, deadline)) break;
  }
  mu_.Unlock();
}

// ---- The thread.

void ControlChannel::Loop(std::vector<Message> early) {
  for (Message& message : early) Handle(std::move(message));
  const milliseconds interval = control::HeartbeatInterval(peer_timeout_);
  const milliseconds stall_limit = control::StallLimit(peer_timeout_);
  auto last_iteration = Clock::now();
  auto next_beat = last_iteration;
  for (;;) {
    DeliverKept();
    pollfd socket = {-1, POLLIN, 0};
    {
      MutexLock lock(&mu_);
      while (!leaving_ && coordinator_state_ != CoordinatorState::kUp && !has_kept()) {
        changed_.WaitUntil(&mu_, Deadline::Infinite());
      }
      if (leaving_) break;
      if (coordinator_state_ != CoordinatorState::kUp) continue;
      connection_.Flush();
      socket.fd = connection_.socket();
      if (connection_.wants_to_write()) socket.events |= POLLOUT;
    }
    const auto left = std::chrono::ceil<milliseconds>(next_beat - Clock::now()).count();
    poll(&socket, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    const auto now = Clock::now();
    // We were stopped: the coordinator's silence is our own doing.
    if (now - last_iteration > stall_limit) last_heard_ = now;
    last_iteration = now;
    ReadFromCoordinator();
    if (now >= next_beat) {
      next_beat = now + interval;
      if ((socket.events & POLLOUT) == 0) SendPong(0);
      if (now - last_heard_ > peer_timeout_) LoseCoordinator(control::SilenceText(peer_timeout_));
    }
  }
}

void ControlChannel::ReadFromCoordinator() {
  std::vector<Message> messages;
  Connection::Input input = Connection::Input::kOpen;
  {
    MutexLock lock(&mu_);
    if (leaving_) return;
    input = connection_.Receive(&messages);
    if (connection_.heard()) last_heard_ = Clock::now();
  }
  for (Message& message : messages) Handle(std::move(message));
  if (input != Connection::Input::kOpen) LoseCoordinator(control::EndText(input));
}

void ControlChannel::Send(const Message& message) {
  MutexLock lock(&mu_);
  connection_.Send(message);
}

void ControlChannel::Handle(Message message) {
  if (const auto* failure = std::get_if<control::FailureMessage>(&message)) {
    return Deliver(failure->channel, failure->status);
  }
  if (const auto* ping = std::get_if<control::Ping>(&message)) {
    if (ping->nonce != 0) SendPong(ping->nonce);
    return;
  }
  if (const auto* ask = std::get_if<control::Ask>(&message)) {
    control::Called called{ask->channel, ask->sequence, ""};
    if (options_.called != nullptr) called.text = options_.called(ask->channel, ask->sequence);
    Send(called);
    return;
  }
  MutexLock lock(&mu_);
  if (auto* joined = std::get_if<control::Joined>(&message)) {
    if (joined_.has_value() || joined->members.size() != static_cast<size_t>(options_.size)) return;
    coordinator_member_ = joined->members[0];
    joined_ = std::move(joined->members);
  } else if (const auto* failed = std::get_if<control::JoinFailed>(&message)) {
    if (!joined_.has_value()) joined_ = failed->status;
  } else if (auto* waiting = std::get_if<control::Waiting>(&message)) {
    const std::string text = absl::StrCat("waiting for the world to form: ", waiting->text);
    if (options_.rank == Rank(0)) {
      LOCKSTEP_LOG(kWarning) << text;
    } else {
      LOCKSTEP_LOG(kInfo) << text;
    }
    waiting_text_ = std::move(waiting->text);
  } else if (auto* messages = std::get_if<control::PostedMessages>(&message)) {
    const auto found = requests_.find(messages->request);
    if (found != requests_.end()) found->second = std::move(messages->messages);
  } else if (std::holds_alternative<control::Disconnect>(message)) {
    coordinator_state_ = CoordinatorState::kLeft;
    if (!joined_.has_value()) {
      joined_ = absl::AbortedError(absl::StrCat(Describe(coordinator_member_), " left before the world had formed"));
    }
  }
  changed_.SignalAll();
}

void ControlChannel::SendPong(uint64_t nonce) {
  control::Pong pong;
  pong.nonce = nonce;
  if (options_.progress != nullptr) pong.progress = options_.progress();
  if (pong.progress.size() > kChannelsPerPong) pong.progress.resize(kChannelsPerPong);
  Send(pong);
}

void ControlChannel::LoseCoordinator(absl::string_view how) {
  absl::Status status;
  bool news = false;
  {
    MutexLock lock(&mu_);
    if (coordinator_state_ != CoordinatorState::kUp) return;
    coordinator_state_ = CoordinatorState::kLost;
    const bool formed = joined_.has_value() && joined_->ok();
    status = WithFailedRank(absl::AbortedError(absl::StrCat(Describe(coordinator_member_), " ", how,
                                                            formed ? "" : " before the world had formed")),
                            0);
    if (!joined_.has_value()) joined_ = status;
    // In one step with the state: nobody may find the coordinator gone without the reason.
    news = formed && RecordLocked(kAllChannels, status) && !exiting_;
    changed_.SignalAll();
  }
  // If rank 0 is only stopped it finds this when it wakes up, and says what everybody else says.
  Send(control::Report{kAllChannels, control::kNoRank, status});
  if (news && options_.on_failure != nullptr) options_.on_failure(Failure{kAllChannels, status});
}

void ControlChannel::Deliver(ChannelId channel, const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (!RecordLocked(channel, status)) return;
    changed_.SignalAll();
    if (exiting_) return;
  }
  if (options_.on_failure != nullptr) options_.on_failure(Failure{channel, status});
}

bool ControlChannel::RecordLocked(ChannelId channel, const absl::Status& status) {
  return failures_.count(kAllChannels) == 0 && failures_.emplace(channel, status).second;
}

}  // namespace lockstep
