// The communicator of a world of one: every collective is at most a copy, and a message is one from this rank to itself. No
// transport and no thread; the one thing that is ever waited for is a message that another thread has yet to send.

#ifndef COMM_HOST_SELF_COMMUNICATOR_H_
#define COMM_HOST_SELF_COMMUNICATOR_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "comm/communicator.h"
#include "comm/point_to_point.h"
#include "comm/record/flight_recorder.h"

namespace lockstep {

class SelfCommunicator : public Communicator {
 public:
  // `timeout`: of a message, where the request names none.
  explicit SelfCommunicator(size_t flight_records, std::chrono::milliseconds timeout = std::chrono::minutes(30));
  // Leaves.
  ~SelfCommunicator() override;

  Rank rank() const override { return Rank(0); }
  int size() const override { return 1; }
  absl::Status Run(const CollectiveRequest& request) override;
  absl::StatusOr<Work> Start(const CollectiveRequest& request) override;
  absl::StatusOr<std::unique_ptr<PreparedCollective>> Prepare(const CollectiveRequest& request) override;
  absl::Status StartGroup() override;
  absl::StatusOr<Work> EndGroup() override;
  absl::StatusOr<Work> StartSend(const SendRequest& request) override;
  absl::StatusOr<Work> StartReceive(const ReceiveRequest& request) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;
  absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const override;
  absl::Status MonitoredBarrier(std::chrono::milliseconds, std::vector<Rank>* missing) override {
    if (missing != nullptr) missing->clear();
    return status();
  }
  absl::Status status() const override;
  void Abort(const std::string& reason) override;
  void PostMessage(uint64_t topic, const std::string& text) override;
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                          Deadline deadline) override;
  std::string FlightRecords() const override;
  std::string Describe() const override { return "one rank: collectives are copies"; }

 private:
  class State;
  class Prepared;
  class Mailbox;
  struct Group;

  // Checks and carries out; the group, if there is one, has ended.
  absl::Status CarryOut(const CollectiveRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A call of this thread's: into its open group, or carried out at once.
  absl::StatusOr<Ref<State>> Call(const CollectiveRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Work> StartMessage(const MessageCall& call, MessageInfo* out_info, std::chrono::milliseconds timeout)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Completes the group's calls without launching them.
  static void Drop(std::unique_ptr<Group> group, const absl::Status& status);
  bool Collecting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Completes messages in flight with CANCELLED.
  void OnLeave() override ABSL_LOCKS_EXCLUDED(mu_);

  const size_t flight_records_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<Mailbox> mailbox_;  // shared with the work of messages, which may outlive this

  // Guarded by mu_, which is taken before the mailbox's.
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  FlightRecorder recorder_ ABSL_GUARDED_BY(mu_);
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<Group> group_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::string> notes_ ABSL_GUARDED_BY(mu_);  // by topic, the newest 64
};

}  // namespace lockstep

#endif  // COMM_HOST_SELF_COMMUNICATOR_H_
