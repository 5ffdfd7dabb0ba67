#include "comm/host/self_communicator.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/ref.h"
#include "base/status.h"
#include "comm/plan/call_plan.h"
#include "comm/point_to_point.h"
#include "comm/record/operation_error.h"
#include "comm/select/selector.h"
#include "kernels/cpu/scale.h"

namespace lockstep {
namespace {

constexpr size_t kMessageTopicsMax = 64;

// What would be refused in a larger world is refused here.
absl::Status Check(const CollectiveRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckOnHost(request.device));
  LOCKSTEP_RETURN_IF_ERROR(CheckRequest(request, Rank(0), /*size=*/1));
  if (request.algorithm == Algorithm::kAuto && (!HasRoot(request.collective) || request.root == Rank(0))) {
    return absl::OkStatus();
  }
  const Algorithm algorithm =
      request.algorithm == Algorithm::kAuto ? Select(request.collective, /*size=*/1, /*bytes=*/0) : request.algorithm;
  return BuildSchedule(request.collective, algorithm, Rank(0), /*size=*/1, request.root).status();
}

absl::Status Copy(const CollectiveRequest& request) {
  if (request.collective == Collective::kBarrier) return absl::OkStatus();
  // The average of one is itself; a premultiplied sum of one still multiplies.
  if (HasReduction(request.collective) && request.op == ReduceOp::kPremulSum) {
    return kernels::Scale(request.dtype, request.output, request.input, request.count, request.factor);
  }
  if (request.output != request.input && request.count > 0) {
    std::memcpy(request.output, request.input, request.count * SizeOf(request.dtype));
  }
  return absl::OkStatus();
}

}  // namespace

// The messages under way. Of its own, because their work may outlive the communicator.
class SelfCommunicator::Mailbox : private PointToPoint::Owner {
 public:
  struct Message : MessageCall {
    Ref<State> state;
    Ref<State> group;  // that this is a member of
    MessageInfo* out_info = nullptr;
  };

  Mailbox() : messages_(nullptr, 0, Rank(0), /*size=*/1, {}, this) {}

  absl::Status Start(std::unique_ptr<Message> message) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (!status_.ok()) return NotStarted(status_, NameOf(*message), {});
    messages_.Start(message.release());
    return absl::OkStatus();
  }

  // Starts the messages of a group and completes `work` when all are done; `error` is that of its other members.
  void StartGroup(std::vector<std::unique_ptr<Message>> messages, const Ref<State>& work, const absl::Status& error)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Everything under way and to come.
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (!status_.ok()) return;
    status_ = status;
    messages_.FailAll(status);
  }

  void Await(const std::atomic<bool>& done, Deadline deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    while (!done.load(std::memory_order_acquire) && changed_.WaitUntil(&mu_, deadline)) {
    }
  }

 private:
  // With mu_ held, which the interface cannot name.
  void OnMessageDone(MessageCall* call, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) override;
  void OnMessageFailed(MessageCall*, const absl::Status&, Rank) override {}  // no lane can break
  void MemberDone(State* group, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  PointToPoint messages_ ABSL_GUARDED_BY(mu_);
};

class SelfCommunicator::State : public WorkState {
 public:
  State() = default;
  // Of a message, or of a group that may have some.
  State(std::shared_ptr<Mailbox> mailbox, Deadline deadline) : mailbox_(std::move(mailbox)), deadline_(deadline) {}

  // Of a group. Guarded by the mailbox's mutex.
  int members_left = 0;
  absl::Status first_error;

  absl::Status Await(Deadline deadline) override {
    if (collected()) {
      return absl::FailedPreconditionError(
          "this waits for a call of a group that is still open on this thread: end the group first");
    }
    if (mailbox_ == nullptr) return absl::OkStatus();
    mailbox_->Await(done(), Deadline::Earlier(deadline, deadline_));
    Poll();
    return absl::OkStatus();
  }
  void Poll() override {
    const bool launched = collector_.load(std::memory_order_relaxed) == std::thread::id();
    if (!launched || done().load(std::memory_order_acquire) || !deadline_.passed()) return;
    mailbox_->Fail(absl::DeadlineExceededError("a message of this rank to itself did not finish in time"));
  }
  // Seldom, but while it is waited for at all, for its state is kept until then.
  Deadline next_poll() const override {
    return deadline_.infinite() ? deadline_ : Deadline::After(std::chrono::milliseconds(100));
  }
  // Only the thread itself asks about its own group.
  bool collected() const override { return collector_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  void set_collector(std::thread::id thread) { collector_.store(thread, std::memory_order_relaxed); }

 private:
  const std::shared_ptr<Mailbox> mailbox_;
  const Deadline deadline_ = Deadline::Infinite();
  std::atomic<std::thread::id> collector_{};
};

void SelfCommunicator::Mailbox::OnMessageDone(MessageCall* call, const absl::Status& status) {
  const std::unique_ptr<Message> message(static_cast<Message*>(call));
  if (status.ok() && message->out_info != nullptr) *message->out_info = message->info;
  message->state->set_message(message->info);
  const absl::Status result = status.ok() ? status : OperationError(status, NameOf(*message));
  message->state->Complete(result);
  if (message->group != nullptr) MemberDone(message->group.get(), result);
  changed_.SignalAll();
}

void SelfCommunicator::Mailbox::MemberDone(State* group, const absl::Status& status) {
  group->first_error.Update(status);
  if (--group->members_left == 0) group->Complete(group->first_error);
}

void SelfCommunicator::Mailbox::StartGroup(std::vector<std::unique_ptr<Message>> messages, const Ref<State>& work,
                                           const absl::Status& error) {
  MutexLock lock(&mu_);
  // One more than there are, so that the group is not done before all are started.
  work->members_left = static_cast<int>(messages.size()) + 1;
  for (std::unique_ptr<Message>& message : messages) {
    message->group = work;
    message->state->set_collector({});
    if (status_.ok()) {
      messages_.Start(message.release());
    } else {
      OnMessageDone(message.release(), status_);
    }
  }
  MemberDone(work.get(), error);
}

struct SelfCommunicator::Group {
  struct Member {
    Ref<State> state;
    CollectiveRequest request;
  };
  std::thread::id thread;
  int depth = 1;
  Ref<State> work;
  std::vector<Member> members;
  std::vector<std::unique_ptr<Mailbox::Message>> messages;
  absl::Status refused;
};

class SelfCommunicator::Prepared : public PreparedCollective {
 public:
  Prepared(SelfCommunicator* communicator, const CollectiveRequest& request)
      : communicator_(communicator), request_(request) {
    request_.counts = request_.output_counts = {};
  }
  absl::Status Run() override { return communicator_->Run(request_); }
  absl::Status Start() override {
    LOCKSTEP_ASSIGN_OR_RETURN(work_, communicator_->Call(request_));
    return absl::OkStatus();
  }
  bool done() const override { return work_ == nullptr || work_->done().load(std::memory_order_acquire); }
  absl::Status Wait(Deadline deadline) override {
    return work_ == nullptr ? absl::OkStatus() : Work(work_).Wait(deadline);
  }
  void OnComplete(CompletionCallback callback) override {
    if (work_ == nullptr) return callback(absl::OkStatus());
    Work(work_).OnComplete(std::move(callback));
  }

 private:
  SelfCommunicator* const communicator_;
  CollectiveRequest request_;
  Ref<State> work_;
};

SelfCommunicator::SelfCommunicator(size_t flight_records, std::chrono::milliseconds timeout)
    : flight_records_(flight_records),
      timeout_(timeout),
      mailbox_(std::make_shared<Mailbox>()),
      recorder_(flight_records) {}

SelfCommunicator::~SelfCommunicator() { SelfCommunicator::OnLeave(); }

void SelfCommunicator::OnLeave() {
  const absl::Status destroyed = absl::CancelledError("the communicator was destroyed");
  mailbox_->Fail(destroyed);
  MutexLock lock(&mu_);
  if (status_.ok()) status_ = destroyed;
  if (group_ == nullptr) return;
  const absl::Status open = absl::FailedPreconditionError(
      absl::StrCat("the communicator was destroyed with a group open: its ",
                   group_->members.size() + group_->messages.size(), " calls were not launched"));
  LOCKSTEP_LOG(kError) << open.message();
  Drop(std::move(group_), open);
}

void SelfCommunicator::Drop(std::unique_ptr<Group> group, const absl::Status& status) {
  group->members.push_back({group->work, {}});
  for (const auto& message : group->messages) group->members.push_back({message->state, {}});
  for (const Group::Member& member : group->members) {
    member.state->set_collector({});
    member.state->Complete(status);
  }
}

absl::Status SelfCommunicator::CarryOut(const CollectiveRequest& request) {
  if (!status_.ok()) return NotStarted(status_, NameOf(request), {});
  LOCKSTEP_RETURN_IF_ERROR(Check(request));
  Signature signature;
  signature.sequence = ++sequence_;
  signature.count = request.count;
  signature.collective = request.collective;
  signature.dtype = request.dtype;
  signature.op = request.op;
  FlightRecord* const record = recorder_.Add(signature, request.count * SizeOf(request.dtype));
  record->started = record->queued;
  const absl::Status result = Copy(request);
  record->state = result.ok() ? FlightRecord::State::kDone : FlightRecord::State::kFailed;
  record->ended = FlightRecord::Clock::now();
  return result;
}

bool SelfCommunicator::Collecting() const { return group_ != nullptr && group_->thread == std::this_thread::get_id(); }

absl::StatusOr<Ref<SelfCommunicator::State>> SelfCommunicator::Call(const CollectiveRequest& request) {
  auto state = MakeRef<State>();
  MutexLock lock(&mu_);
  if (!Collecting()) {
    LOCKSTEP_RETURN_IF_ERROR(CheckHeld(request.by_holder));
    LOCKSTEP_RETURN_IF_ERROR(CarryOut(request));
    state->Complete(absl::OkStatus());
    return state;
  }
  absl::Status status = status_.ok() ? status_ : NotStarted(status_, NameOf(request), {});
  status.Update(CheckHeld(request.by_holder));
  status.Update(Check(request));
  group_->refused.Update(status);
  LOCKSTEP_RETURN_IF_ERROR(status);
  state->set_collector(group_->thread);
  group_->members.push_back({state, request});
  group_->members.back().request.counts = group_->members.back().request.output_counts = {};
  return state;
}

absl::Status SelfCommunicator::Run(const CollectiveRequest& request) {
  {
    MutexLock lock(&mu_);
    if (!Collecting()) {
      LOCKSTEP_RETURN_IF_ERROR(CheckHeld(request.by_holder));
      return CarryOut(request);
    }
  }
  return Call(request).status();
}

absl::StatusOr<Work> SelfCommunicator::Start(const CollectiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(Ref<State> state, Call(request));
  return Work(std::move(state));
}

absl::StatusOr<std::unique_ptr<PreparedCollective>> SelfCommunicator::Prepare(const CollectiveRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(NotStarted(status(), NameOf(request), {}));
  LOCKSTEP_RETURN_IF_ERROR(Check(request));
  return std::make_unique<Prepared>(this, request);
}

absl::Status SelfCommunicator::StartGroup() {
  MutexLock lock(&mu_);
  if (Collecting()) {
    ++group_->depth;
    return absl::OkStatus();
  }
  if (group_ != nullptr) {
    return absl::FailedPreconditionError("another thread has a group open on this communicator");
  }
  LOCKSTEP_RETURN_IF_ERROR(status_);
  group_ = std::make_unique<Group>();
  group_->work = MakeRef<State>(mailbox_, Deadline::Infinite());
  group_->thread = std::this_thread::get_id();
  group_->work->set_collector(group_->thread);
  return absl::OkStatus();
}

absl::StatusOr<Work> SelfCommunicator::EndGroup() {
  MutexLock lock(&mu_);
  if (!Collecting()) return absl::FailedPreconditionError("this thread has no group open on this communicator");
  if (--group_->depth > 0) return Work(group_->work);
  std::unique_ptr<Group> group = std::move(group_);
  absl::Status error = group->refused;
  error.Update(status_);
  if (!error.ok()) {
    Drop(std::move(group),
         Reworded(error, absl::StatusCode::kCancelled, absl::StrCat("the group was not launched: ", error.message())));
    return error;
  }
  for (const Group::Member& member : group->members) {
    const absl::Status status = CarryOut(member.request);
    error.Update(status);
    member.state->set_collector({});
    member.state->Complete(status);
  }
  group->work->set_collector({});
  mailbox_->StartGroup(std::move(group->messages), group->work, error);
  return Work(group->work);
}

absl::StatusOr<Work> SelfCommunicator::StartMessage(const MessageCall& call, MessageInfo* out_info,
                                                    std::chrono::milliseconds timeout) {
  auto message = std::make_unique<Mailbox::Message>();
  static_cast<MessageCall&>(*message) = call;
  message->out_info = out_info;
  const auto state = MakeRef<State>(mailbox_, Deadline::After(timeout.count() > 0 ? timeout : timeout_));
  message->state = state;
  MutexLock lock(&mu_);
  if (Collecting()) group_->refused.Update(status_);
  if (!status_.ok()) return NotStarted(status_, NameOf(call), {});
  if (Collecting()) {
    state->set_collector(group_->thread);
    group_->messages.push_back(std::move(message));
  } else {
    LOCKSTEP_RETURN_IF_ERROR(mailbox_->Start(std::move(message)));
  }
  return Work(state);
}

absl::StatusOr<Work> SelfCommunicator::StartSend(const SendRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckMessage(request, /*size=*/1));
  return StartMessage(ToCall(request), nullptr, request.timeout);
}

absl::StatusOr<Work> SelfCommunicator::StartReceive(const ReceiveRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckMessage(request, /*size=*/1));
  return StartMessage(ToCall(request), request.info, request.timeout);
}

absl::StatusOr<std::unique_ptr<Communicator>> SelfCommunicator::Split(int color, int) {
  LOCKSTEP_RETURN_IF_ERROR(CheckHeld(/*by_holder=*/false));
  LOCKSTEP_RETURN_IF_ERROR(status());
  if (color < 0) return nullptr;
  return std::make_unique<SelfCommunicator>(flight_records_, timeout_);
}

absl::Status SelfCommunicator::Supports(Collective collective, DType dtype, ReduceOp op) const {
  return HasReduction(collective) ? CheckDefined(dtype, op) : absl::OkStatus();
}

absl::Status SelfCommunicator::status() const {
  MutexLock lock(&mu_);
  return status_;
}

void SelfCommunicator::Abort(const std::string& reason) {
  MutexLock lock(&mu_);
  if (!status_.ok()) return;
  status_ = WithFailedRank(absl::AbortedError(absl::StrCat("rank 0 aborted the communicator: ", reason)), 0);
  mailbox_->Fail(status_);
}

void SelfCommunicator::PostMessage(uint64_t topic, const std::string& text) {
  MutexLock lock(&mu_);
  notes_[topic] = text;
  if (notes_.size() > kMessageTopicsMax) notes_.erase(notes_.begin());
}

absl::StatusOr<std::vector<std::pair<Rank, std::string>>> SelfCommunicator::AwaitMessages(uint64_t topic, int count,
                                                                                          Deadline deadline) {
  MutexLock lock(&mu_);
  std::vector<std::pair<Rank, std::string>> notes;
  if (const auto it = notes_.find(topic); it != notes_.end()) notes.emplace_back(Rank(0), it->second);
  if (static_cast<int>(notes.size()) < count) {
    return absl::DeadlineExceededError(absl::StrCat("there are ", notes.size(), " messages, not ", count));
  }
  return notes;
}

std::string SelfCommunicator::FlightRecords() const {
  MutexLock lock(&mu_);
  return recorder_.ToString(SIZE_MAX);
}

}  // namespace lockstep
