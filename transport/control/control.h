// The control channel: one connection from every rank to the coordinator in rank 0's process, beside the data.
//
// It forms the world: who takes part, where each rank listens for data, and whether all agree on every option that shapes
// what goes over the wire. From then on it detects failures and reports the same failure on every rank. Without it, a
// ring would blame the neighbour, which only waits itself.
//
//   state of a rank    how it is known                              announced to all as
//   dead               its connection closed without a disconnect   ABORTED   "rank 2 (host b, pid 71) died: ..."
//   exited             its process said so as it exited             ABORTED   "rank 2 (host b, pid 71) exited: its process ended ..."
//   cut off            what arrived from it is not what it sent     ABORTED   "rank 2 (host b, pid 71) is cut off: ..."
//   unresponsive       no heartbeat for peer_timeout (SIGSTOP, a    ABORTED   "rank 2 (host b, pid 71) is unresponsive: ..."
//                      frozen or unreachable host)
//   late               heartbeats arrive, but an operation's        DEADLINE_EXCEEDED, naming the operation and which
//                      deadline passed elsewhere                    ranks have not called or not finished it
//   left               disconnected                                 nothing; a rank that still needs it gets an error
//   closed a channel   said so                                      nothing, until another rank goes on there: ABORTED
//                                                                   "rank 2 (host b, pid 71) has closed its communicator"
//
// The coordinator announces only the first failure of a channel, so that all ranks return the same error. Each rank sees
// rank 0's own death as the loss of its connection. A rank that was itself stopped finds the announcement when it wakes.
//
// THREADS  Thread-safe. Each rank has one control thread ("lockstep-ctl"), which owns the connection; rank 0 has one more for the
//          coordinator ("lockstep-coord"). Other threads queue frames and wait for what the control thread has heard; one mutex
//          protects that. The handler runs on the control thread, outside our locks.

#ifndef TRANSPORT_CONTROL_CONTROL_H_
#define TRANSPORT_CONTROL_CONTROL_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/thread.h"
#include "transport/control/control_connection.h"
#include "transport/control/control_coordinator.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/store/store.h"
#include "transport/transport.h"

namespace lockstep {

struct ControlOptions {
  Rank rank;
  int size = 1;
  std::string job_id;
  // Equal on ranks that share a host and its loopback; "" if unknown.
  std::string host_id;
  // Rank 0's process serves the store.
  bool rank_zero_serves = false;
  // What every rank has to prove to the coordinator, and the coordinator to every rank. With a level and no secret, rank 0 draws the job's
  // secret, and the others take it from the store, which then has to be as safe as a secret. The secret is not kept longer than
  // the channel takes to be made, but by rank 0's coordinator.
  Credentials credentials;
  // The number of this rank's attempt at this set-up, equal on ranks that attempt it together. A failure of an earlier attempt
  // does not end a later one.
  int attempt = 0;
  // This rank cannot go on, and creates its channel only to call LeaveBecause. Rank 0 calls Refuse instead.
  bool only_leaves = false;
  // Rank 0: the address that the coordinator binds, port 0. The store gets the address on which it listens.
  SocketAddress coordinator_bind_address;
  // Rank 0, if it has only loopback: why, for the errors of ranks on other hosts, which cannot reach it.
  std::string why_loopback;
  // Rank 0, called now and then until all have joined: OK, or why they cannot join, for example because rank 0's store does
  // not let them in.
  std::function<absl::Status()> hindrance;
  // Rank 0, called on the coordinator's thread until all have joined: what may keep away those who have not, for what is said of them; ""
  // if nothing is known. Unlike a hindrance it ends nothing: whoever reaches a port may have caused it.
  std::function<std::string()> why_missing;
  // Rank 0: how long it stays at most after a failed set-up, so that others can read the reason in the store. For a store
  // that ends with this set-up.
  std::chrono::milliseconds parting{0};
  // All ranks use rank 0's.
  std::chrono::milliseconds peer_timeout{30000};
  // Called at most once a channel, and at most once with kAllChannels.
  std::function<void(const Failure&)> on_failure;
  // Called for every heartbeat, and when the coordinator asks who is late. Must return at once.
  std::function<std::vector<std::pair<ChannelId, Progress>>()> progress;
  // What this rank called as collective `sequence` of a channel. Ranks that called the same return the same text. Empty if it
  // has not called it yet, or no longer knows. When a rank is stuck for a heartbeat, the coordinator asks all ranks, and
  // announces a difference as FAILED_PRECONDITION. Must return at once; may be null.
  std::function<std::string(ChannelId, uint64_t sequence)> called;
};

class ControlChannel {
 public:
  // Connects this rank to the coordinator. Rank 0 starts the coordinator and publishes its address in the store; the
  // others wait for that and connect. The keys are removed afterwards, so that a later world may use the same store and
  // job id. The store is used until Join has returned or the channel was left. All ranks learn of a failure here or in Join:
  // from the coordinator, or from the store if they have not reached it. If rank 0 dies, a rank that had reached it records the death
  // in the store for the ranks that have not.
  // ERRORS  DEADLINE_EXCEEDED    "rank 0 has not appeared"
  //         ALREADY_EXISTS       another process holds our rank; the message names its host and pid. If there are two rank 0s, both
  //                              get it
  //         ABORTED              rank 0 has died, or has not answered for the peer timeout
  //         INVALID_ARGUMENT     an option is out of its range, or the coordinator's address is one that other ranks cannot reach
  //         RESOURCE_EXHAUSTED   this process or the coordinator's has no descriptor left for the channel, or no thread
  //         FAILED_PRECONDITION  the coordinator has another version, job or world size, or is on another host's loopback; or
  //                              the secret was read before this process was forked
  //         PERMISSION_DENIED    the coordinator has another security level. One that does not have our secret is not ours: the
  //                              search goes on
  //         other codes          another rank could not set up; the message names it
  static absl::StatusOr<std::unique_ptr<ControlChannel>> Create(ControlOptions options, Store* store,
                                                                Deadline deadline);

  // For rank 0, when it fails before it can create its channel: leaves the reason in the store for the ranks that wait there.
  // Blocks until they have read it, at most for `parting`. `deadline` is the set-up's.
  static void Refuse(const ControlOptions& options, Store* store, const absl::Status& why, Deadline deadline);

  // For a rank 0 whose store another process serves. If that process is another rank 0 of this job, this fails its set-up. Needs the
  // rank, size, job id and credentials of `options`.
  // RETURNS  ALREADY_EXISTS if there is another rank 0; never OK
  static absl::Status MeetOther(const ControlOptions& options, Store* store, Deadline deadline);

  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  // The local address of this rank's connection to the coordinator, with port 0; for rank 0 the coordinator's own. A good
  // address for the data listener.
  SocketAddress local_address() const { return local_address_; }

  // Tells the coordinator who we are and what must agree. Returns when all ranks have done so.
  // RETURNS  all members, by rank
  // ERRORS   the same on all ranks that take part:
  //          DEADLINE_EXCEEDED    the earliest deadline of any rank has passed; lists the ranks still missing. If the
  //                               coordinator does not answer, five seconds later
  //          FAILED_PRECONDITION  options differ; names each with the value of each rank ("chunk_bytes: 262144 on ranks 0-2,
  //                               65536 on rank 3")
  absl::StatusOr<std::vector<Member>> Join(const Member& self, absl::Span<const AgreedOption> options,
                                           Deadline deadline);

  // What the connections that carry the world's data have to prove: the level of the options, and a secret that rank 0 has drawn for
  // this world and told its ranks over the channel. Known once Create has returned. No secret at level none.
  const Credentials& world_credentials() const { return world_credentials_; }

  // A number that only the ranks of this world have. It tells stale connections apart. Known once Create has returned.
  uint64_t world_id() const { return world_id_; }

  // Reports that a channel failed here, with the reason. Returns at once. The coordinator announces the first report of a
  // channel to all. If `suspect` is a rank (a data connection to it broke), the coordinator first waits up to half a second.
  // If that rank turns out to be dead or to have left, it announces that instead. Before the world has formed, a report on
  // all channels fails the set-up of all ranks. Once the coordinator has left, only this rank's own handler runs.
  void Report(ChannelId channel, const absl::Status& status, absl::optional<Rank> suspect = absl::nullopt);

  // Reports that an operation's deadline passed. The coordinator asks all ranks how far they are, and announces
  // DEADLINE_EXCEEDED with `operation` and the ranks that have not started or not finished collective `sequence`.
  void ReportLate(ChannelId channel, uint64_t sequence, const std::string& operation);

  // Says that this rank has ended its use of a channel of `members` ranks in good order, after `started` collectives. Returns
  // at once. If another rank has called more collectives on it, the coordinator announces ABORTED, naming this rank, after a
  // heartbeat or two. If all ranks end it after the same number, it announces nothing.
  void CloseChannel(ChannelId channel, int members, uint64_t started);

  // Waits until the deadline for a failure of the channel (or of all).
  // RETURNS  the announced failure, or `fallback` if there was none
  absl::Status AwaitFailure(ChannelId channel, const absl::Status& fallback, Deadline deadline);

  // Posts a text of at most 64 KiB at the coordinator under a topic. Returns at once. Other ranks read it when something in the
  // data tells them to. The coordinator keeps the newest 64 topics.
  void PostMessage(ChannelId channel, uint64_t topic, const std::string& text);
  // Waits until the topic has `count` messages. If a call ends at its deadline, the next call with the same arguments continues its wait
  // and gets its answer. So repeated short waits succeed however long an answer takes.
  // RETURNS  all of them, in rank order
  // ERRORS   the channel's failure; DEADLINE_EXCEEDED
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(ChannelId channel, uint64_t topic, int count,
                                                                          Deadline deadline);

  // Enters monitored barrier number `sequence` of the channel, which `count` ranks are to enter.
  // RETURNS  the ranks that had entered when it ended, in rank order: all, or fewer if a waiting rank's timeout passed.
  //          All ranks get the same list, even those that enter later
  // ERRORS   the channel's failure; DEADLINE_EXCEEDED if the coordinator does not answer within the timeout and five seconds
  absl::StatusOr<std::vector<Rank>> EnterBarrier(ChannelId channel, uint64_t sequence, int count,
                                                 std::chrono::milliseconds timeout);

  // Disconnects and closes. Waits for no peer, with one exception: after a failure, rank 0 waits until the other ranks' systems have the
  // announcement, at most two seconds. No callback runs afterwards. A callback must not call it. The destructor calls it.
  void Leave();

  // Leaves because this rank cannot go on with the set-up. The set-up then fails on all ranks with `why`.
  void LeaveBecause(const absl::Status& why);

  // For the exit of the process. TellExit tells the coordinator and returns at once; no callback runs afterwards. AwaitExitTold
  // waits until the coordinator has told all ranks, or cannot. Neither blocks on a lock beyond the deadline.
  void TellExit(Deadline deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitExitTold(Deadline deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // For Create, as the next two: what a channel is made of.
  struct Setup {
    ControlOptions options;
    control::Welcome welcome;
    SocketAddress local_address;
    // Rank 0's: ends after its own client has.
    std::unique_ptr<control::Coordinator> coordinator;
    Store* store = nullptr;
    Deadline deadline = Deadline::Infinite();  // of the set-up
  };
  ControlChannel(Setup setup, control::Connection connection);
  // For Create: starts the thread. `early` holds the messages that came along with the welcome.
  // REQUIRES  called before anything but Leave
  // ERRORS    RESOURCE_EXHAUSTED  the thread cannot start
  absl::Status Start(std::vector<control::Message> early);
  // For Create: rank 0's record is in the store. Join removes it when it ends, or Leave if Join was not called.
  void SetPublished(control::CoordinatorRecord record) { record_ = std::move(record); }

 private:
  using MessageList = std::vector<std::pair<Rank, std::string>>;
  enum class CoordinatorState { kUp, kLeft, kLost };
  // The arguments of AwaitMessages.
  struct Wait {
    ChannelId channel;
    uint64_t topic;
    uint32_t count;
    bool operator==(const Wait& other) const {
      return channel == other.channel && topic == other.topic && count == other.count;
    }
  };

  // The thread.
  void Loop(std::vector<control::Message> early);
  void ReadFromCoordinator();
  void Handle(control::Message message);
  void SendPong(uint64_t nonce);
  void LoseCoordinator(absl::string_view how);
  void Deliver(ChannelId channel, const absl::Status& status);
  void DeliverKept();
  // True when it is the channel's first failure.
  bool RecordLocked(ChannelId channel, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Any thread.
  void Send(const control::Message& message) ABSL_LOCKS_EXCLUDED(mu_);
  void Post(const control::Message& message) ABSL_LOCKS_EXCLUDED(mu_);
  void PostLocked(const control::Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Keeps a report for this rank's own handler, if the coordinator has left or leaves before it answers: nobody announces it then.
  void KeepLocked(ChannelId channel, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool has_kept() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return coordinator_state_ == CoordinatorState::kLeft && !kept_.empty();
  }
  // The posted messages that answer `request`. The channel's failure otherwise, or DEADLINE_EXCEEDED.
  absl::StatusOr<MessageList> AwaitAnswer(uint64_t request, ChannelId channel, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::vector<Member>> AwaitJoined(Deadline deadline);
  // Rank 0: OK, or why the world cannot form.
  absl::Status LookForHindrance();
  // Reports what keeps the world from forming, if rank 0 learns of something. Returns when Join has an answer, or at the
  // deadline.
  void WatchForHindrances(Deadline deadline);
  // Takes `record` out of the store. If the set-up has failed, puts the reason there for `untold`, the ranks to which the
  // coordinator has not told it. Does nothing without a record.
  void EndSetup(const absl::optional<control::CoordinatorRecord>& record, const absl::Status& result,
                std::vector<int> untold);
  absl::optional<absl::Status> FailureLocked(ChannelId channel) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool forked() const;
  // The coordinator was lost before the world had formed.
  bool lost_in_setup() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return coordinator_state_ == CoordinatorState::kLost && (!joined_.has_value() || !joined_->ok());
  }

  // Constant after construction.
  const ControlOptions options_;
  const uint64_t world_id_;
  const Credentials world_credentials_;
  const std::chrono::milliseconds peer_timeout_;  // rank 0's
  const SocketAddress local_address_;
  const uint64_t fork_generation_;

  // The thread's own.
  Deadline::Clock::time_point last_heard_;

  // Join's own, and Leave's where it was not called.
  Store* const store_;
  const Deadline setup_deadline_;
  // Rank 0's, from its publication in the store to the end of the set-up.
  absl::optional<control::CoordinatorRecord> record_;

  Mutex mu_;
  CondVar changed_;
  control::Connection connection_ ABSL_GUARDED_BY(mu_);
  std::map<ChannelId, absl::Status> kept_ ABSL_GUARDED_BY(mu_);  // see KeepLocked
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  bool exiting_ ABSL_GUARDED_BY(mu_) = false;
  CoordinatorState coordinator_state_ ABSL_GUARDED_BY(mu_) = CoordinatorState::kUp;
  Member coordinator_member_ ABSL_GUARDED_BY(mu_);
  bool join_called_ ABSL_GUARDED_BY(mu_) = false;
  absl::optional<absl::StatusOr<std::vector<Member>>> joined_ ABSL_GUARDED_BY(mu_);
  std::string waiting_text_ ABSL_GUARDED_BY(mu_);
  std::map<ChannelId, absl::Status> failures_ ABSL_GUARDED_BY(mu_);  // kAllChannels is one of its keys
  uint64_t last_request_ ABSL_GUARDED_BY(mu_) = 0;
  // Of calls of AwaitAnswer and of open_waits_.
  std::map<uint64_t, absl::optional<MessageList>> requests_ ABSL_GUARDED_BY(mu_);
  std::deque<std::pair<Wait, uint64_t>> open_waits_ ABSL_GUARDED_BY(mu_);  // with their requests, the oldest first

  std::unique_ptr<control::Coordinator> coordinator_;
  Thread thread_;
};

}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_H_
