#include "transport/control/control_world.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/rank_list.h"
#include "transport/control/control_text.h"

namespace lockstep::control {
namespace {

constexpr std::chrono::milliseconds kSuspectTime(500);
constexpr std::chrono::seconds kWaitingTextInterval(5);
constexpr int kInquiryAnswerTimes = 4;
constexpr size_t kTopicsMax = 64;
constexpr size_t kWaitsPerRankMax = 64;
constexpr size_t kTopicBytesMax = size_t{2} << 20;
constexpr size_t kShortPostedBytes = 64;
constexpr size_t kBarriersMax = 1024;

PostedMessages Compose(const std::set<int>& entered, uint64_t request) {
  PostedMessages messages;
  messages.request = request;
  for (const int rank : entered) messages.messages.emplace_back(Rank(rank), "");
  return messages;
}

// Null when the list does not have the channel.
const Progress* Find(const ProgressList& list, ChannelId channel) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const auto& entry) { return entry.first == channel; });
  return found == list.end() ? nullptr : &found->second;
}

absl::Status HasClosed(const Member& member) {
  return WithFailedRank(absl::AbortedError(absl::StrCat(Describe(member), " has closed its communicator")),
                        member.rank.value());
}

}  // namespace

World::World(Options options, Output* output, TimePoint now)
    : options_(std::move(options)),
      output_(output),
      slots_(options_.size),
      next_waiting_text_(now + kWaitingTextInterval) {
  for (int rank = 0; rank < options_.size; ++rank) slots_[rank].member.rank = Rank(rank);
}

absl::optional<Reject> World::Connect(const Hello& hello) {
  const auto refused = [](std::string text) {
    return Reject{RejectReason::kRefused, absl::FailedPreconditionError(std::move(text))};
  };
  if (hello.version != kVersion) {
    return refused(absl::StrCat("rank 0 speaks control protocol version ", kVersion, ", this rank ", hello.version));
  }
  if (hello.world != options_.world_id) {
    return Reject{RejectReason::kOtherWorld, absl::UnavailableError("another world's coordinator has this address")};
  }
  Member caller;
  caller.rank = Rank(static_cast<int>(hello.rank));
  caller.host = hello.host;
  caller.pid = hello.pid;
  if (hello.job_id != options_.job_id) {
    // Neither learns the other's job id: it may be a secret of another user's.
    other_job_rank_ = Describe(caller);
    return refused(absl::StrCat("another job is here, that of ", Describe(slots_[0].member), ", and not job '",
                                hello.job_id, "'"));
  }
  if (hello.size != static_cast<uint32_t>(options_.size)) {
    const absl::Status differ =
        WithFailedRank(absl::FailedPreconditionError(absl::StrCat(
                           "the world has ", options_.size, " ranks according to ", Describe(slots_[0].member), ", ",
                           hello.size, " according to ", Describe(caller))),
                       caller.rank.value());
    Fail(differ);
    return Reject{RejectReason::kRefused, differ};
  }
  if (hello.rank >= hello.size) {
    return refused(absl::StrCat("there is no rank ", hello.rank, " in a world of ", hello.size));
  }
  Slot& slot = slots_[hello.rank];
  if (slot.state == State::kConnected || slot.state == State::kJoined) {
    if (hello.rank == 0 && phase_ == Phase::kGathering) {
      // Each would wait for ranks that find the other.
      Fail(absl::AlreadyExistsError(
          absl::StrCat("two processes take part as rank 0: ", Describe(slot.member), " and ", Describe(caller))));
      return Reject{RejectReason::kRefused, setup_failure_};
    }
    return Reject{RejectReason::kRefused, absl::AlreadyExistsError(absl::StrCat(
                                              "another process takes part already as ", Describe(slot.member)))};
  }
  // A rank may be back for the next world before rank 0 has taken this one's address out of the store.
  if (slot.state == State::kLeft) {
    return Reject{RejectReason::kOtherWorld,
                  absl::UnavailableError(absl::StrCat(Describe(slot.member), " has left the world that formed there"))};
  }
  if (phase_ == Phase::kFailed) return Reject{RejectReason::kSetupFailed, setup_failure_};
  if (slot.state == State::kDead) {
    return refused(absl::StrCat("the world has formed already, and ", Describe(slot.member), " has died in it"));
  }
  slot.state = State::kConnected;
  slot.member.host = hello.host;
  slot.member.pid = hello.pid;
  return absl::nullopt;
}

bool World::Handle(int rank, Message message, TimePoint now) {
  if (auto* pong = std::get_if<Pong>(&message)) {
    HandlePong(rank, std::move(*pong), now);
  } else if (auto* called = std::get_if<Called>(&message)) {
    HandleCalled(rank, std::move(*called));
  } else if (auto* join = std::get_if<Join>(&message)) {
    if (slots_[rank].state == State::kJoined) return false;
    HandleJoin(rank, std::move(*join));
  } else if (std::holds_alternative<GiveUp>(message)) {
    if (phase_ == Phase::kGathering) {
      const auto missing =
          std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.state != State::kJoined; });
      FailSetup(
          WithFailedRank(absl::DeadlineExceededError(absl::StrCat("the world did not form in time: ", MissingText())),
                         static_cast<int>(missing - slots_.begin())));
    }
  } else if (auto* report = std::get_if<Report>(&message)) {
    HandleReport(rank, *report, now);
  } else if (auto* late = std::get_if<Late>(&message)) {
    HandleLate(*late, now);
  } else if (auto* closed = std::get_if<Closed>(&message)) {
    HandleClosed(rank, *closed);
  } else if (auto* post = std::get_if<PostMessage>(&message)) {
    Send(messages_.Post(rank, *post));
  } else if (auto* await = std::get_if<AwaitMessages>(&message)) {
    if (absl::optional<PostedMessages> messages = messages_.Await(rank, *await))
      output_->Send(rank, *std::move(messages));
  } else if (auto* drop = std::get_if<DropMessages>(&message)) {
    messages_.Drop(rank, drop->request);
  } else if (auto* enter = std::get_if<EnterBarrier>(&message)) {
    Send(barriers_.Enter(rank, *enter, now));
  } else if (std::holds_alternative<Disconnect>(message)) {
    Left(rank);
  } else if (std::holds_alternative<Exiting>(message)) {
    Gone(rank, "exited: its process ended without destroying its communicator");
  } else {
    return false;
  }
  return true;
}

void World::Send(const std::vector<Answer>& answers) {
  for (const Answer& answer : answers) output_->Send(answer.rank, answer.messages);
}

void World::HandleJoin(int rank, Join join) {
  if (phase_ != Phase::kGathering || !alive(rank)) return;
  Slot& slot = slots_[rank];
  slot.state = State::kJoined;
  slot.member = std::move(join.member);
  slot.member.rank = Rank(rank);
  slot.options = std::move(join.options);
  if (++joined_count_ == options_.size) FormOrFail();
}

void World::FormOrFail() {
  std::vector<const std::vector<AgreedOption>*> options;
  std::vector<const Member*> members;
  for (const Slot& slot : slots_) {
    options.push_back(&slot.options);
    members.push_back(&slot.member);
  }
  const std::string differences = OptionDifferences(options);
  if (!differences.empty()) {
    std::vector<std::vector<AgreedOption>> given;
    for (const Slot& slot : slots_) given.push_back(slot.options);
    return FailSetup(
        WithFailedRank(absl::FailedPreconditionError(absl::StrCat("options differ between ranks: ", differences)),
                       lockstep::OddOne(given)));
  }
  if (const std::string unreachable = UnreachableText(members); !unreachable.empty()) {
    return FailSetup(absl::FailedPreconditionError(unreachable));
  }
  phase_ = Phase::kFormed;
  Joined joined;
  for (Slot& slot : slots_) {
    joined.members.push_back(slot.member);
    slot.options = {};
  }
  output_->SendToAll(joined);
}

void World::FailSetup(const absl::Status& status) {
  phase_ = Phase::kFailed;
  setup_failure_ = status;
  output_->SendToAll(JoinFailed{status});
}

void World::Fail(const absl::Status& status) {
  if (phase_ == Phase::kGathering) FailSetup(status);
}

std::string World::MissingText() const {
  std::vector<int> missing;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (slots_[rank].state != State::kJoined) missing.push_back(rank);
  }
  std::string text =
      absl::StrCat(RankList(missing), " of ", options_.size, missing.size() == 1 ? " has" : " have", " not joined");
  if (!other_job_rank_.empty()) absl::StrAppend(&text, "; ", other_job_rank_, " came with another job id");
  const std::string why = options_.why_missing != nullptr ? options_.why_missing() : "";
  if (!why.empty()) absl::StrAppend(&text, "; ", why);
  return text;
}

void World::HandlePong(int rank, Pong pong, TimePoint now) {
  Slot& slot = slots_[rank];
  slot.progress.swap(pong.progress);
  if (!closings_.empty()) {
    for (const auto& [channel, progress] : slot.progress) CheckClosed(rank, channel, progress);
  }
  if (pong.nonce == 0) {
    const ProgressList& before = pong.progress;
    for (const auto& [channel, progress] : slot.progress) {
      const Progress* const then = Find(before, channel);
      if (then != nullptr && then->started > then->completed && then->completed == progress.completed) {
        Inquire(channel, progress.completed + 1, now);
      }
    }
  }
  if (pong.nonce <= slot.answered || pong.nonce > last_nonce_ || !alive(rank)) return;
  for (auto& [channel, poll] : polls_) {
    if (poll.nonce > slot.answered && poll.nonce <= pong.nonce) --poll.missing;
  }
  slot.answered = pong.nonce;
  AnnouncePolls(TimePoint::min());
}

void World::Inquire(ChannelId channel, uint64_t sequence, TimePoint now) {
  if (phase_ != Phase::kFormed || failed(channel)) return;
  const auto [found, added] = inquiries_.try_emplace({channel, sequence});
  Inquiry& inquiry = found->second;
  if (added) {
    inquiry.called.resize(slots_.size());
  } else if (now < inquiry.asked + options_.answer_time) {
    return;
  }
  inquiry.asked = now;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (alive(rank) && inquiry.called[rank].empty()) output_->Send(rank, Ask{channel, sequence});
  }
}

void World::HandleCalled(int rank, Called called) {
  const auto found = inquiries_.find({called.channel, called.sequence});
  if (found == inquiries_.end() || called.text.empty()) return;
  std::vector<std::string>& texts = found->second.called;
  texts[rank] = std::move(called.text);
  const bool differ = std::any_of(texts.begin(), texts.end(),
                                  [&](const std::string& text) { return !text.empty() && text != texts[rank]; });
  if (!differ) return;
  ErrorInfo info;
  info.failed_rank = OddOne(texts);
  Announce(called.channel, WithErrorInfo(absl::FailedPreconditionError(MismatchText(texts)), info));
}

void World::HandleReport(int rank, const Report& report, TimePoint now) {
  // A rank that cannot go on, or took rank 0 for dead while the world gathered.
  if (phase_ == Phase::kGathering && report.channel == kAllChannels) return FailSetup(report.status);
  if (phase_ != Phase::kFormed || failed(report.channel)) return;
  const bool suspected = report.suspect < slots_.size() && static_cast<int>(report.suspect) != rank;
  if (!suspected) return Announce(report.channel, report.status);
  const Slot& suspect = slots_[report.suspect];
  // Its death would have failed all channels.
  const auto closing = closings_.find(report.channel);
  const bool closed = closing != closings_.end() && closing->second.started.count(suspect.member.rank.value()) > 0;
  if (closed || suspect.state == State::kLeft) return Announce(report.channel, HasClosed(suspect.member));
  // Several ranks may lose connections for one cause: the first report stands, all suspects are watched.
  const auto [found, added] = reports_.try_emplace(report.channel);
  PendingReport& pending = found->second;
  if (added) {
    pending.status = report.status;
    pending.due = now + kSuspectTime;
  }
  pending.suspects.push_back(static_cast<int>(report.suspect));
}

void World::HandleLate(const Late& late, TimePoint now) {
  if (phase_ != Phase::kFormed || failed(late.channel) || polls_.count(late.channel) > 0) return;
  LatePoll& poll = polls_[late.channel];
  poll.nonce = ++last_nonce_;
  poll.sequence = late.sequence;
  poll.operation = late.operation;
  poll.due = now + options_.answer_time;
  for (const Slot& slot : slots_) poll.missing += slot.state == State::kJoined;
  output_->SendToAll(Ping{poll.nonce});
}

void World::HandleClosed(int rank, const Closed& closed) {
  if (phase_ != Phase::kFormed || failed(closed.channel)) return;
  Closing& closing = closings_[closed.channel];
  closing.members = closed.members;
  closing.started[rank] = closed.started;
  if (closing.started.size() >= closing.members) {
    closings_.erase(closed.channel);
    return;
  }
  Explain(rank, {closed.channel});
  for (int other = 0; other < options_.size; ++other) {
    const Progress* const progress = Find(slots_[other].progress, closed.channel);
    if (progress != nullptr) CheckClosed(other, closed.channel, *progress);
  }
}

void World::CheckClosed(int rank, ChannelId channel, const Progress& progress) {
  const auto closing = closings_.find(channel);
  if (closing == closings_.end() || closing->second.started.count(rank) > 0) return;
  for (const auto& [closer, started] : closing->second.started) {
    if (progress.started > started) return Announce(channel, HasClosed(slots_[closer].member));
  }
}

void World::Explain(int rank, const std::vector<ChannelId>& channels) {
  for (const ChannelId channel : channels) {
    const auto pending = reports_.find(channel);
    if (pending == reports_.end()) continue;
    const std::vector<int>& suspects = pending->second.suspects;
    if (std::find(suspects.begin(), suspects.end(), rank) == suspects.end()) continue;
    Announce(channel, HasClosed(slots_[rank].member));
  }
}

void World::Left(int rank) {
  if (!alive(rank)) return;
  Slot& slot = slots_[rank];
  slot.state = State::kLeft;
  messages_.Forget(rank);
  barriers_.Forget(rank);
  if (phase_ == Phase::kGathering) {
    return FailSetup(WithFailedRank(
        absl::AbortedError(absl::StrCat(Describe(slot.member), " left before the world had formed")), rank));
  }
  // Announcing erases the report: collect first.
  std::vector<ChannelId> reported;
  for (const auto& [channel, pending] : reports_) reported.push_back(channel);
  Explain(rank, reported);
  StopWaitingFor(rank);
}

void World::Gone(int rank, absl::string_view how) {
  if (!alive(rank)) return;
  Slot& slot = slots_[rank];
  slot.state = State::kDead;
  messages_.Forget(rank);
  barriers_.Forget(rank);
  const std::string text = absl::StrCat(Describe(slot.member), " ", how);
  if (phase_ == Phase::kGathering)
    return FailSetup(WithFailedRank(absl::AbortedError(absl::StrCat(text, " before the world had formed")), rank));
  if (phase_ == Phase::kFormed) Announce(kAllChannels, WithFailedRank(absl::AbortedError(text), rank));
  StopWaitingFor(rank);
}

void World::StopWaitingFor(int rank) {
  for (auto& [channel, poll] : polls_) {
    if (poll.nonce > slots_[rank].answered) --poll.missing;
  }
  AnnouncePolls(TimePoint::min());
}

bool World::failed(ChannelId channel) const {
  return failures_.count(kAllChannels) > 0 || failures_.count(channel) > 0;
}

void World::Announce(ChannelId channel, const absl::Status& status) {
  if (failed(channel)) return;
  failures_[channel] = status;
  if (channel == kAllChannels) {
    reports_.clear();
    polls_.clear();
    closings_.clear();
    inquiries_.clear();
  } else {
    reports_.erase(channel);
    polls_.erase(channel);
    closings_.erase(channel);
    inquiries_.erase(inquiries_.lower_bound({channel, 0}), inquiries_.upper_bound({channel, UINT64_MAX}));
  }
  output_->SendToAll(FailureMessage{channel, status});
}

void World::AnnouncePolls(TimePoint now) {
  // Announcing erases the poll: collect first.
  std::vector<std::pair<ChannelId, LatePoll>> ended;
  for (const auto& [channel, poll] : polls_) {
    if (poll.missing <= 0 || now >= poll.due) ended.emplace_back(channel, poll);
  }
  for (const auto& [channel, poll] : ended) AnnounceLate(channel, poll);
}

void World::AnnounceLate(ChannelId channel, const LatePoll& poll) {
  std::vector<LateRank> ranks;
  for (const Slot& slot : slots_) {
    LateRank rank;
    rank.member = &slot.member;
    const Progress* const known = Find(slot.progress, channel);
    if (known != nullptr) rank.progress = *known;
    if (slot.state == State::kLeft) {
      rank.state = LateRank::State::kLeft;
    } else if (known == nullptr) {
      rank.state = LateRank::State::kUnaware;
    } else if (slot.answered < poll.nonce) {
      rank.state = LateRank::State::kSilent;
    }
    ranks.push_back(rank);
  }
  ErrorInfo info;
  const LateReport late = DescribeLate(poll.operation, poll.sequence, ranks);
  info.failed_rank = late.first;
  Announce(channel, WithErrorInfo(absl::DeadlineExceededError(late.text), info));
}

void World::Tick(TimePoint now) {
  if (phase_ == Phase::kGathering && now >= next_waiting_text_) {
    next_waiting_text_ = now + kWaitingTextInterval;
    output_->SendToAll(Waiting{MissingText()});
  }
  AnnounceDue(now);
  Send(barriers_.Expire(now));
  // Whoever is still stuck has asked again since.
  for (auto it = inquiries_.begin(); it != inquiries_.end();) {
    it = now > it->second.asked + kInquiryAnswerTimes * options_.answer_time ? inquiries_.erase(it) : std::next(it);
  }
}

void World::AnnounceDue(TimePoint now) {
  std::vector<std::pair<ChannelId, absl::Status>> due_reports;
  for (const auto& [channel, pending] : reports_) {
    if (now >= pending.due) due_reports.emplace_back(channel, pending.status);
  }
  for (const auto& [channel, status] : due_reports) Announce(channel, status);
  AnnouncePolls(now);
}

World::TimePoint World::next_event() const {
  TimePoint next = phase_ == Phase::kGathering ? next_waiting_text_ : TimePoint::max();
  next = std::min(next, barriers_.next_event());
  for (const auto& [channel, pending] : reports_) next = std::min(next, pending.due);
  for (const auto& [channel, poll] : polls_) next = std::min(next, poll.due);
  return next;
}

void World::Close() { AnnounceDue(TimePoint::max()); }

bool World::alive(int rank) const {
  return slots_[rank].state == State::kConnected || slots_[rank].state == State::kJoined;
}

std::vector<Answer> MessageBoard::Post(int rank, const PostMessage& post) {
  const Key key = {post.channel, post.topic};
  const auto [found, added] = topics_.try_emplace(key);
  if (added) {
    age_.push_back(key);
    if (age_.size() > kTopicsMax) {
      topics_.erase(age_.front());
      age_.pop_front();
    }
  }
  Topic& topic = found->second;
  std::string& text = topic.texts[rank];
  topic.bytes -= text.size();
  text = post.text.substr(0, topic.bytes + post.text.size() > kTopicBytesMax ? kShortPostedBytes : kPostedBytesMax);
  topic.bytes += text.size();

  std::vector<Answer> answers;
  const auto over = [&](const Wait& wait) {
    if (wait.await.channel != post.channel || wait.await.topic != post.topic || topic.texts.size() < wait.await.count) {
      return false;
    }
    answers.push_back({wait.rank, Compose(topic, wait.await.request)});
    return true;
  };
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), over), waits_.end());
  return answers;
}

absl::optional<PostedMessages> MessageBoard::Await(int rank, const AwaitMessages& await) {
  const auto found = topics_.find({await.channel, await.topic});
  if (await.count == 0 && found == topics_.end()) return Compose(Topic(), await.request);
  if (found != topics_.end() && found->second.texts.size() >= await.count) {
    return Compose(found->second, await.request);
  }
  const auto ours = [rank](const Wait& wait) { return wait.rank == rank; };
  if (std::count_if(waits_.begin(), waits_.end(), ours) < kWaitsPerRankMax) waits_.push_back({rank, await});
  return absl::nullopt;
}

void MessageBoard::Drop(int rank, uint64_t request) {
  const auto dropped = [=](const Wait& wait) { return wait.rank == rank && wait.await.request == request; };
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), dropped), waits_.end());
}

void MessageBoard::Forget(int rank) {
  const auto ours = [rank](const Wait& wait) { return wait.rank == rank; };
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), ours), waits_.end());
}

PostedMessages MessageBoard::Compose(const Topic& topic, uint64_t request) {
  PostedMessages messages;
  messages.request = request;
  for (const auto& [rank, text] : topic.texts) messages.messages.emplace_back(Rank(rank), text);
  return messages;
}

std::vector<Answer> Barriers::Enter(int rank, const EnterBarrier& enter, TimePoint now) {
  const Key key = {enter.channel, enter.sequence};
  const auto [found, added] = barriers_.try_emplace(key);
  Barrier& barrier = found->second;
  if (added) {
    barrier.count = enter.count;
    age_.push_back(key);
    if (age_.size() > kBarriersMax) Remove(age_.front());
  }
  std::vector<Answer> answers;
  if (barrier.over) {
    answers.push_back({rank, Compose(barrier.entered, enter.request)});
    barrier.late.insert(rank);
  } else {
    barrier.entered.insert(rank);
    barrier.waiting[rank] = enter.request;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(TimePoint::max() - now).count();
    if (enter.timeout_ms < static_cast<uint64_t>(left)) {
      barrier.due = std::min(barrier.due, now + std::chrono::milliseconds(enter.timeout_ms));
    }
    if (barrier.entered.size() >= barrier.count) answers = End(&barrier);
  }
  // Nobody can come any more.
  if (barrier.entered.size() + barrier.late.size() >= barrier.count) Remove(key);
  return answers;
}

std::vector<Answer> Barriers::Expire(TimePoint now) {
  std::vector<Answer> answers;
  for (auto& [key, barrier] : barriers_) {
    if (barrier.over || now < barrier.due) continue;
    const std::vector<Answer> of_one = End(&barrier);
    answers.insert(answers.end(), of_one.begin(), of_one.end());
  }
  return answers;
}

Barriers::TimePoint Barriers::next_event() const {
  TimePoint next = TimePoint::max();
  for (const auto& [key, barrier] : barriers_) {
    if (!barrier.over) next = std::min(next, barrier.due);
  }
  return next;
}

void Barriers::Forget(int rank) {
  for (auto& [key, barrier] : barriers_) barrier.waiting.erase(rank);
}

std::vector<Answer> Barriers::End(Barrier* barrier) {
  std::vector<Answer> answers;
  for (const auto& [rank, request] : barrier->waiting) answers.push_back({rank, Compose(barrier->entered, request)});
  barrier->waiting.clear();
  barrier->over = true;
  return answers;
}

void Barriers::Remove(const Key& key) {
  const Key removed = key;  // which may be one of those that go
  barriers_.erase(removed);
  age_.erase(std::find(age_.begin(), age_.end(), removed));
}

}  // namespace lockstep::control
