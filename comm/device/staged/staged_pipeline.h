// StagedPipeline: carries out collectives on a device's tensors by a communicator on the host, in three stages that
// overlap:
//
//   copy in     device -> slot    a stream of the device's, which waits for the call's stream by an event
//   collective  slot              the thread "lockstep-staged"
//   copy out    slot -> device    a stream of the device's, for which the call's stream waits by an event
//
// Calls are carried out in the order in which they were issued, cut into pieces of a slot each (comm/device/staged/staged_plan.h),
// which are numbered. While one piece is in the collective, the next ones are copied in, into as many slots as there
// are, and the last ones are copied out.
//
// All of a call's work on the device is issued before Issue returns, without waiting for any of it:
//
//   in    wait for the slot to be emptied; copy to it; write the piece's number to the word `filled`
//   out   await the piece's number in the word `exchanged`; copy from the slot; note it as emptied
//
// The thread awaits `filled`, runs the collective in the slot, stores `exchanged`, and never calls the device. So work
// on the device waits only for the thread and for work that was issued before it, and the thread only for work that was
// issued already: streams may share a device's queues, which are first in, first out, down to a single one, and nothing
// is ever at a queue's head that waits for something behind it. Closures in streams had that fault: a call was one that
// returned when the call was done, ahead of copies that were issued later. `out` waits for an event behind the copy in,
// too, since CUDA asks that it be told of orders that its own tasks have (cuStreamWaitValue32).
//
// A device's queue is finite (CUDA's takes about a thousand entries; a piece is four in each stream). Whoever issues
// more waits in the device's call until the thread has carried out some.

#ifndef COMM_DEVICE_STAGED_STAGED_PIPELINE_H_
#define COMM_DEVICE_STAGED_STAGED_PIPELINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "comm/communicator.h"
#include "comm/device/device_communicator.h"
#include "comm/device/device_work.h"
#include "comm/device/staged/staged_plan.h"
#include "comm/device/staged/staging.h"
#include "comm/record/flight_recorder.h"
#include "comm/record/signature.h"

namespace lockstep {

class StagedPipeline {
 public:
  // How many calls may wait.
  static constexpr size_t kWaitingMax = 65536;

  struct Options {
    std::chrono::milliseconds timeout{1800000};  // of a call that names none
    size_t flight_records = 256;
  };

  // Takes the staging, and a communicator that nobody else uses. `failure` is what ends calls; `fail` is called on the
  // pipeline's thread with why a call failed, and sets it.
  StagedPipeline(std::unique_ptr<Staging> staging, std::unique_ptr<Communicator> communicator,
                 std::shared_ptr<DeviceFailure> failure, std::function<void(const absl::Status&)> fail,
                 Options options);

  // The failure has been set. Lets go what waits on the device, and fails calls in flight on the other ranks. Waits for
  // no peer, and for the device 30 s at most.
  ~StagedPipeline();
  StagedPipeline(const StagedPipeline&) = delete;
  StagedPipeline& operator=(const StagedPipeline&) = delete;

  // RESOURCE_EXHAUSTED when so many more may not wait, FAILED_PRECONDITION in a forked child. Whoever issues is alone
  // in doing so.
  absl::Status CheckRoom(size_t calls) const ABSL_LOCKS_EXCLUDED(mu_);
  // Issues collectives, for which there is room, behind what is enqueued in `stream`, which waits for them.
  //
  // After an error some of it may be issued, and other ranks wait for the rest: the communicator is to fail. This goes
  // for IssueUntil, too.
  absl::Status Issue(absl::Span<const DeviceCall> calls, Stream* stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Issues collectives whose input is there, and records `end` behind them.
  absl::Status IssueUntil(absl::Span<const DeviceCall> calls, Event* end) ABSL_LOCKS_EXCLUDED(mu_);

  // The pipeline's own communicator, for what is not a collective.
  Communicator* communicator() const { return communicator_.get(); }
  // A call counts as done once its last piece is through the collective.
  std::string FlightRecords() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // One call on its way.
  struct Call {
    explicit Call(StagedPlan call_plan) : plan(std::move(call_plan)), pieces(plan.pieces()) {}

    uint64_t last() const { return first + plan.pieces() - 1; }

    const StagedPlan plan;
    uint64_t first = 0;  // the number of its first piece on the device

    // The thread's.
    size_t pieces;                             // of all ranks; those beyond this rank's own are not on its device
    Deadline deadline = Deadline::Infinite();  // from the first collective on
    Signature signature;
    // With that signature's sequence, or another one's by now. The pipeline's mutex guards it.
    FlightRecord* record = nullptr;
  };

  // Whoever issues.
  absl::Status IssueCall(const CollectiveRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<Call> Submit(const CollectiveRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status IssueIn(const Call& call, const char* input, size_t index);
  absl::Status IssueOut(const Call& call, char* output, size_t index);

  // The thread "lockstep-staged".
  void Run();
  // Waits for a call or the end, which is null.
  std::shared_ptr<Call> AwaitCall() ABSL_LOCKS_EXCLUDED(mu_);
  void CarryOut(Call* call);
  absl::Status Exchange(Call* call, size_t index);
  absl::Status AwaitFilled(uint64_t number);
  // All ranks use the largest number of pieces that any has.
  absl::Status AgreeOnPieces(Call* call);
  absl::Status RunOnHost(CollectiveRequest request, const Call& call);
  void LetGo(uint64_t number);
  void Note(const Call& call, FlightRecord::State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const std::unique_ptr<Staging> staging_;
  const std::unique_ptr<Communicator> communicator_;
  const std::shared_ptr<DeviceFailure> failure_;  // shared with works, which may outlive this
  const std::function<void(const absl::Status&)> fail_;
  const Options options_;
  const uint64_t fork_generation_;

  // Whoever issues.
  std::vector<StagedPiece> issued_;  // of each slot
  uint64_t next_number_ = 1;

  // The thread's.
  StagedPiece piece_;

  mutable Mutex mu_;
  CondVar arrived_;
  // Shared with whoever issues a call, which the thread may give up while that goes on.
  std::deque<std::shared_ptr<Call>> waiting_ ABSL_GUARDED_BY(mu_);
  size_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;  // issued, and not through the collectives yet
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  FlightRecorder recorder_ ABSL_GUARDED_BY(mu_);

  Thread thread_;
};

}  // namespace lockstep

#endif  // COMM_DEVICE_STAGED_STAGED_PIPELINE_H_
