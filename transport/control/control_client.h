// A rank's end of the control channel: the ControlChannel over a connection that the coordinator has welcomed.
//
// Its thread ("lockstep-ctl") owns the connection. Other threads queue frames and wait for what the thread has heard;
// one mutex protects that, and no callback runs under it.

#ifndef TRANSPORT_CONTROL_CONTROL_CLIENT_H_
#define TRANSPORT_CONTROL_CONTROL_CLIENT_H_

#include <chrono>
#include <cstdint>
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
#include "base/thread.h"
#include "transport/control/control.h"
#include "transport/control/control_connection.h"
#include "transport/control/control_coordinator.h"
#include "transport/control/control_protocol.h"
#include "transport/wakeup.h"

namespace lockstep {
namespace control {

class Client final : public ControlChannel {
 public:
  struct Setup {
    ControlOptions options;
    Welcome welcome;
    SocketAddress local_address;
    // Rank 0's: ends after its own client has.
    std::unique_ptr<Coordinator> coordinator;
    // Rank 0's. Called once: when Join has ended, or when the channel is left before that. Removes the coordinator's address from the
    // store. If the set-up has failed, puts the reason there for `untold`, the ranks to which the coordinator has not told it.
    std::function<void(const absl::Status& result, std::vector<int> untold)> end_setup;
    // Rank 0's. Called now and then by Join: OK, or why the world cannot form.
    std::function<absl::Status()> hindrance;
  };

  Client(Setup setup, Connection connection, Wakeup wakeup);
  ~Client() override;

  // Starts the thread. `early` holds the messages that came along with the welcome.
  // REQUIRES  called before anything but Leave
  // ERRORS    RESOURCE_EXHAUSTED  the thread cannot start
  absl::Status Start(std::vector<Message> early);

  SocketAddress local_address() const override { return local_address_; }
  absl::StatusOr<std::vector<Member>> Join(const Member& self, absl::Span<const AgreedOption> options,
                                           Deadline deadline) override;
  uint64_t world_id() const override { return world_id_; }
  void Report(ChannelId channel, const absl::Status& status, Rank suspect) override;
  void Report(ChannelId channel, const absl::Status& status) override;
  void ReportLate(ChannelId channel, uint64_t sequence, const std::string& operation) override;
  void CloseChannel(ChannelId channel, int members, uint64_t started) override;
  absl::Status AwaitFailure(ChannelId channel, const absl::Status& fallback, Deadline deadline) override;
  void PostMessage(ChannelId channel, uint64_t topic, const std::string& text) override;
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(ChannelId channel, uint64_t topic, int count,
                                                                          Deadline deadline) override;
  absl::StatusOr<std::vector<Rank>> EnterBarrier(ChannelId channel, uint64_t sequence, int count,
                                                 std::chrono::milliseconds timeout) override;
  void Leave() override;
  void LeaveBecause(const absl::Status& why) override;

  // For the exit of the process. TellExit tells the coordinator and returns at once; no callback runs afterwards. AwaitExitTold
  // waits until the coordinator has told all ranks, or cannot. Neither blocks on a lock beyond the deadline.
  void TellExit(Deadline deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitExitTold(Deadline deadline) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using MessageList = std::vector<std::pair<Rank, std::string>>;
  enum class CoordinatorState { kUp, kLeft, kLost };

  // The thread.
  void Loop(std::vector<Message> early);
  void WaitForInput(Deadline::Clock::time_point until);
  void SendQueued();
  void ReadFromCoordinator();
  void Handle(Message message);
  void SendPong(uint64_t nonce);
  void LoseCoordinator(absl::string_view how);
  void Deliver(ChannelId channel, const absl::Status& status);
  void DeliverKept();
  // True when it is the channel's first failure.
  bool RecordLocked(ChannelId channel, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Any thread.
  void Post(const Message& message) ABSL_LOCKS_EXCLUDED(mu_);
  void PostLocked(const Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Keeps a report for this rank's own handler, if the coordinator has left or leaves before it answers: nobody announces it then.
  void KeepLocked(ChannelId channel, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The posted messages that answer `request`. The channel's failure otherwise, or DEADLINE_EXCEEDED.
  absl::StatusOr<MessageList> AwaitAnswer(uint64_t request, ChannelId channel, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::vector<Member>> AwaitJoined(Deadline deadline);
  // Reports what keeps the world from forming, if rank 0 learns of something. Returns when Join has an answer, or at the
  // deadline.
  void WatchForHindrances(Deadline deadline);
  absl::optional<absl::Status> FailureLocked(ChannelId channel) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool forked() const;

  // Constant after construction.
  const ControlOptions options_;
  const uint64_t world_id_;
  const std::chrono::milliseconds peer_timeout_;  // rank 0's
  const SocketAddress local_address_;
  const uint64_t fork_generation_;
  const Wakeup wakeup_;

  // The thread's own.
  Connection connection_;
  Deadline::Clock::time_point last_heard_;

  // Join's own, and Leave's where it was not called.
  std::function<void(const absl::Status& result, std::vector<int> untold)> end_setup_;
  std::function<absl::Status()> hindrance_;

  Mutex mu_;
  CondVar changed_;
  std::vector<Connection::Frame> queued_ ABSL_GUARDED_BY(mu_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
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
  std::map<uint64_t, absl::optional<MessageList>> requests_ ABSL_GUARDED_BY(mu_);  // of AwaitAnswer calls under way

  std::unique_ptr<Coordinator> coordinator_;
  Thread thread_;
};

}  // namespace control
}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_CLIENT_H_
