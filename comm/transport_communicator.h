// A communicator over one channel of a transport, with schedules of our own.

#ifndef COMM_TRANSPORT_COMMUNICATOR_H_
#define COMM_TRANSPORT_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "comm/communicator.h"
#include "comm/executor.h"
#include "comm/flight_recorder.h"
#include "comm/progress_engine.h"
#include "comm/selector.h"
#include "transport/control.h"

namespace lockstep {

struct TransportCommunicatorOptions {
  ChannelId channel = 0;
  size_t chunk_bytes = 256 << 10;
  AlgorithmOverrides algorithms;
  bool checked = false;
  std::chrono::milliseconds timeout{1800000};
  size_t flight_records = 256;
  std::string description;  // how the ranks are connected and why
};

class TransportCommunicator : public Communicator, private Executor::Owner, private ProgressEngine::Client {
 public:
  // The engine and the control channel outlive the communicator. Without a control channel (null: ranks that are threads, in
  // tests) a failure is known to this rank alone, and notes are UNIMPLEMENTED.
  TransportCommunicator(ProgressEngine* engine, ControlChannel* control, TransportCommunicatorOptions options);

  // Completes operations in flight with CANCELLED. Waits for no peer.
  ~TransportCommunicator() override;

  Rank rank() const override;
  int size() const override;
  absl::Status Run(const CollectiveRequest& request) override;
  absl::StatusOr<Work> Start(const CollectiveRequest& request) override;
  absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const override;
  absl::Status status() const override;
  void Abort(const std::string& reason) override;
  void PostNote(uint64_t topic, const std::string& text) override;
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitNotes(uint64_t topic, int count,
                                                                       Deadline deadline) override;
  std::string FlightRecords() const override;
  std::string Describe() const override;

  // What the control channel announced for this channel: ends the communicator. Any thread.
  void OnFailure(const absl::Status& status);

  // For heartbeats. Any thread, never blocks.
  Progress progress() const;

  // What this rank called as collective `sequence`, in words that are equal on all ranks that called the same. Empty when it
  // has not, when that was too long ago, or when the communicator is busy: nothing that is worth asking about then. Any
  // thread, never blocks.
  std::string CalledAs(uint64_t sequence) const ABSL_LOCKS_EXCLUDED(mu());

 private:
  struct Call;
  class CallState;

  // Checks, prescales, builds the job and hands it to the executor, which completes `work`. With `background`, which is the
  // same object, nobody need wait for it.
  absl::Status Begin(const CollectiveRequest& request, WorkState* work, std::shared_ptr<WorkState> background = nullptr,
                     bool check = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  absl::StatusOr<std::shared_ptr<const PreparedSchedule>> FindSchedule(const CollectiveRequest& request,
                                                                       Algorithm algorithm)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  absl::Status Prescale(const CollectiveRequest& request, Call* call);
  // `check`: this is the exchange of signatures that precedes a collective in checked mode.
  absl::Status RunUnchecked(const CollectiveRequest& request, bool check = false);
  // Checked mode: gathers all ranks' signatures and compares them.
  absl::Status CompareSignatures(const CollectiveRequest& request);
  Algorithm ChooseAlgorithm(const CollectiveRequest& request) const;
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  void ExpectFailure(const absl::Status& fallback, std::chrono::milliseconds grace) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());

  // Called with the engine's mutex held, which the interfaces cannot name.
  void OnDone(Job* job, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) override;
  void OnOperationFailed(Job* job, const absl::Status& status, Rank peer, const Operation& operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) override;
  Deadline CheckDeadlines() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) override;

  Mutex* mu() const ABSL_LOCK_RETURNED(engine_->mutex()) { return engine_->mutex(); }

  // Constant after construction.
  ProgressEngine* const engine_;
  ControlChannel* const control_;
  const TransportCommunicatorOptions options_;

  // Read by the heartbeat without the lock: each is a number of its own, and a stale one does no harm.
  std::atomic<uint64_t> started_{0};
  std::atomic<uint64_t> completed_{0};  // and all before it

  // Orders whole calls in checked mode, where one call is two collectives.
  Mutex checked_mu_;

  // Guarded by the engine's mutex.
  Executor executor_;
  FlightRecorder recorder_;
  absl::Status status_;
  // Set between a failure noticed here and its announcement; passes when none comes.
  bool failure_expected_ = false;
  absl::Status fallback_;
  Deadline fallback_deadline_ = Deadline::Infinite();
  std::deque<std::unique_ptr<Call>> calls_;
  std::vector<Call*> free_calls_;
  std::map<std::tuple<Collective, Algorithm, Rank>, std::shared_ptr<const PreparedSchedule>> schedules_;
};

}  // namespace lockstep

#endif  // COMM_TRANSPORT_COMMUNICATOR_H_
