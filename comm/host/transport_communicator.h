// A communicator over two channels of a transport, with schedules of our own: one channel for collectives, one for messages.
//
// Communicators of one process on one world share its transport, engine and control channel. Each has its own order of calls,
// failure and deadlines.

#ifndef COMM_HOST_TRANSPORT_COMMUNICATOR_H_
#define COMM_HOST_TRANSPORT_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "comm/communicator.h"
#include "comm/engine/executor.h"
#include "comm/engine/memory_executor.h"
#include "comm/engine/progress_engine.h"
#include "comm/engine/symmetric_memory.h"
#include "comm/host/channel_registry.h"
#include "comm/host/registered_memory.h"
#include "comm/plan/call_plan.h"
#include "comm/plan/plan_cache.h"
#include "comm/point_to_point.h"
#include "comm/record/flight_recorder.h"
#include "comm/record/operation_error.h"
#include "comm/record/signature.h"
#include "comm/select/selector.h"
#include "comm/topology/world_shape.h"
#include "transport/control/control.h"
#include "transport/shm/shm_transport.h"
#include "transport/shm/symmetric_arena.h"

namespace lockstep {

struct TransportCommunicatorOptions {
  ChannelId channel = 0;  // even; the next is for messages
  // The transport's rank of each rank. Empty: they are the same.
  std::vector<Rank> ranks;
  size_t chunk_bytes = 256 << 10;
  AlgorithmOverrides algorithms;
  bool checked = false;
  bool deterministic = false;  // every reduction is in rank order
  std::chrono::milliseconds timeout{1800000};
  size_t flight_records = 256;
  WorldShape shape;                  // of these ranks
  std::shared_ptr<CostModel> costs;  // of the communicator that this one was split from, if any
  std::string description;           // how the ranks are connected and why
  // See PlaceInWorld; null: unknown.
  std::shared_ptr<const std::vector<int>> launched_as;
  // Of this process's communicators on the world; outlives them. Null: this is the only one, and cannot be split.
  ChannelRegistry* registry = nullptr;
  // The part of the engine's transport by which all ranks that share a host share memory; null unless all of them do.
  ShmTransport* shared_memory = nullptr;
};

class TransportCommunicator : public Communicator,
                              private ChannelRegistry::Member,
                              private Executor::Owner,
                              private PointToPoint::Owner,
                              private ProgressEngine::Client {
 public:
  // The engine and the control channel outlive the communicator. Without a control channel (null: ranks that are threads, in
  // tests) a failure is known to this rank alone, and posted messages are UNIMPLEMENTED.
  TransportCommunicator(ProgressEngine* engine, ControlChannel* control, TransportCommunicatorOptions options);

  // Leaves.
  ~TransportCommunicator() override;

  // Makes the memory of the shared-memory algorithms if all ranks can map it; otherwise does nothing. Collective, to be called once,
  // before anything else. `arena`: a number that only these ranks use. When a rank cannot make the memory, all go on without. After
  // an error some ranks may have it and others not.
  absl::Status ShareMemory(uint32_t arena, Deadline deadline) ABSL_LOCKS_EXCLUDED(mu());
  // Whether ShareMemory made memory.
  bool SharesMemory() const ABSL_LOCKS_EXCLUDED(mu());

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  Rank WorldRank(Rank rank) const override { return TransportRank(rank); }
  absl::Status Run(const CollectiveRequest& request) override;
  absl::StatusOr<Work> Start(const CollectiveRequest& request) override;
  absl::StatusOr<std::unique_ptr<PreparedCollective>> Prepare(const CollectiveRequest& request) override;
  absl::Status StartGroup() override;
  absl::StatusOr<Work> EndGroup() override;
  bool InGroup() const override ABSL_LOCKS_EXCLUDED(mu());
  absl::Status Refuse(const absl::Status& refusal) override ABSL_LOCKS_EXCLUDED(mu());
  absl::StatusOr<Work> StartSend(const SendRequest& request) override;
  absl::StatusOr<Work> StartReceive(const ReceiveRequest& request) override;
  absl::Status Send(const SendRequest& request) override;
  absl::Status Receive(const ReceiveRequest& request) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes) override;
  bool Shares(const void* memory, size_t bytes) const override ABSL_LOCKS_EXCLUDED(mu());
  absl::Status CheckMemory(size_t bytes) override;
  absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const override;
  absl::Status status() const override;
  void Abort(const std::string& reason) override;
  void PostMessage(uint64_t topic, const std::string& text) override;
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                          Deadline deadline) override;
  absl::Status MonitoredBarrier(std::chrono::milliseconds timeout, std::vector<Rank>* missing) override;
  std::string FlightRecords() const override;
  std::string Describe() const override;

  // A failure that the control channel announced for this channel: ends the communicator. Any thread.
  void OnFailure(const absl::Status& status) override;

  // For heartbeats. Any thread, never blocks.
  Progress progress() const override;

  // What this rank called as collective `sequence`, in a text that is equal on all ranks that made the same call. Empty if it made
  // no such call yet, if that was too long ago, or if the communicator is busy. Any thread, never blocks.
  std::string CalledAs(uint64_t sequence) const override ABSL_LOCKS_EXCLUDED(mu());

 private:
  using Plan = std::shared_ptr<const CallPlan>;
  struct Call;
  struct Message;
  struct Group;
  class CallState;
  class Prepared;
  struct AskedArena;

  // The result is valid until the next call.
  absl::StatusOr<const Plan*> FindPlan(const CollectiveRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  // Collective. Errors are the same on all ranks, except DEADLINE_EXCEEDED and that of a communicator that has failed.
  absl::StatusOr<std::unique_ptr<SymmetricArena>> MakeArena(uint32_t arena, size_t bytes, bool huge_pages,
                                                            Deadline deadline) ABSL_LOCKS_EXCLUDED(mu());

  // If this thread has a group open, the call is put into it instead. If `plan` is null, it is found by the request. If `*state` is
  // null, one that nobody holds any more is taken.
  absl::Status RunPlanned(const CollectiveRequest& request, const Plan* plan) ABSL_LOCKS_EXCLUDED(mu());
  absl::Status StartPlanned(const CollectiveRequest& request, const Plan* plan, Ref<CallState>* state)
      ABSL_LOCKS_EXCLUDED(mu());
  // `background`: nobody has to wait for it.
  template <typename Request>
  absl::StatusOr<Ref<CallState>> StartMessage(const Request& request, MessageInfo* info, bool background)
      ABSL_LOCKS_EXCLUDED(mu());

  // A call is prepared, then launched, so that a group can launch all its calls together. Preparing finds the plan and scales the
  // input or copies it aside; it gives up the lock meanwhile. Launching hands the call to the executor, which completes `work`.
  // With `background`, which is the same object, nobody has to wait for it. `check`: this is the exchange of signatures that
  // precedes a collective in checked mode.
  absl::StatusOr<Call*> PrepareCall(const CollectiveRequest& request, const Plan* plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  // The rest of that for a request in pieces.
  absl::Status PreparePieces(const CollectiveRequest& request, Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  // Puts it back into the pool.
  void FreeCall(Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  void LaunchCall(Call* call, const CollectiveRequest& request, CallState* work, Ref<CallState> background, bool check)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  // Executes a launched call in a world of one.
  void CopyAlone(Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  // Reads the clock for a launched call. Sets its deadline and the times of its record.
  void TimeCall(Call* call, std::chrono::milliseconds timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  void LaunchMessage(std::unique_ptr<Message> message, bool background) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  absl::Status RunUnchecked(const CollectiveRequest& request, const Plan* plan, bool check) ABSL_LOCKS_EXCLUDED(mu());
  absl::Status StartUnchecked(const CollectiveRequest& request, const Plan* plan, Ref<CallState>* state)
      ABSL_LOCKS_EXCLUDED(mu());

  // Checked mode: gathers all ranks' signatures and compares them.
  absl::Status CompareSignatures(const CollectiveRequest& request, const Plan* plan) ABSL_LOCKS_EXCLUDED(mu());

  Ref<CallState> TakeState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());

  // Whether this thread has a group open.
  bool Collecting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) { return group_ != nullptr && GroupIsThisThreads(); }
  // REQUIRES  group_ != nullptr
  bool GroupIsThisThreads() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  absl::Status Collect(const CollectiveRequest& request, const Plan* plan, Ref<CallState> state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  absl::Status LaunchGroup(Group* group) ABSL_LOCKS_EXCLUDED(mu());

  void OnLeave() override ABSL_LOCKS_EXCLUDED(mu());

  Rank TransportRank(Rank rank) const { return options_.ranks.empty() ? rank : options_.ranks[rank.value()]; }
  // The first collective in flight; null if there is none.
  const Job* FirstJob() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  // The name of that, else of the first message in flight; empty if there is neither.
  OperationName FirstInFlight() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  // The error of a call on this communicator once it is over.
  absl::Status Over(const OperationName& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) {
    return NotStarted(status_, call, ended_in_);
  }
  void Complete(CallState* work, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  void FailCalls(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  void ExpectFailure(const absl::Status& fallback, std::chrono::milliseconds grace) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  void ReportBroken(const absl::Status& error, const OperationName& operation, Rank peer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());

  // Called with the engine's mutex held; the interfaces cannot annotate it.
  void OnDone(Job* job, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) override;
  void OnOperationFailed(Job* job, const absl::Status& status, Rank peer, const Envelope& expected,
                         const Operation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) override;
  void OnMessageDone(MessageCall* call, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) override;
  void OnMessageFailed(MessageCall* call, const absl::Status& status, Rank peer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) override;
  Deadline CheckDeadlines() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) override;
  bool Poll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) override;

  Mutex* mu() const ABSL_LOCK_RETURNED(engine_->mutex()) { return engine_->mutex(); }

  // Constant after construction.
  ProgressEngine* const engine_;
  ControlChannel* const control_;
  const TransportCommunicatorOptions options_;
  const Rank rank_;
  const int size_;
  const std::vector<Rank> members_;  // the transport's rank of each rank

  // Relaxed: the heartbeat reads them without the lock, they are independent, and a stale value does no harm. All else has the lock.
  std::atomic<uint64_t> started_{0};
  std::atomic<uint64_t> completed_{0};  // this collective and all before it

  std::atomic<uint64_t> monitored_barriers_{0};  // entered so far; relaxed: it only gives numbers

  // Orders whole calls in checked mode, where one call is two collectives.
  Mutex checked_mu_;

  // Shared with buffers, which may outlive the communicator.
  const std::shared_ptr<RegisteredMemory> registered_memory_;

  // Guarded by the engine's mutex.
  Executor executor_;
  PointToPoint messages_;
  // For ranks that share memory, else null. A call is executed by one of the two executors; each has its own order.
  std::shared_ptr<SymmetricMemory> memory_;  // shared with buffers, which may outlive the communicator
  std::unique_ptr<MemoryExecutor> memory_executor_;
  std::string no_memory_;  // why ranks of one host share no memory; else empty
  std::vector<AskedArena*> asked_arenas_;
  FlightRecorder recorder_;
  History history_;
  PlanCache plans_;
  absl::Status status_;
  OperationName ended_in_;  // the operation in flight when status_ became an error
  // True from a failure noticed here to its announcement. If none comes by the deadline, `fallback_` ends the communicator.
  bool failure_expected_ = false;
  absl::Status fallback_;
  Deadline fallback_deadline_ = Deadline::Infinite();
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<Call*> free_calls_;
  // Pool for started calls. A state is used again once nobody else holds it.
  std::vector<Ref<CallState>> states_;
  size_t next_state_ = 0;
  std::unique_ptr<Group> group_;  // the one that is open
};

}  // namespace lockstep

#endif  // COMM_HOST_TRANSPORT_COMMUNICATOR_H_
