// StagedPipeline: carries out collectives on a device's tensors by a communicator on the host, in three stages that
// overlap:
//
//   copy in     device -> slot    a stream of the device's, which waits for the call's stream by an event
//   collective  slot              the thread "lockstep-staged"; waits for the copy by an event
//   copy out    slot -> device    a stream of the device's
//
// Calls are carried out in the order in which they were submitted, cut into pieces of a slot each (comm/staged_plan.h).
// While one piece is in the collective, the next ones are copied in, into as many slots as there are, and the last ones
// are copied out; one call's pieces follow on another's without a gap. A call is done once its last piece is copied
// out: the thread "lockstep-done" waits for that, so that the next call's collective, which may wait for a peer, does
// not hold it up.
//
// Neither thread depends on a closure in a stream of the device's: those may be blocked, one by another.

#ifndef COMM_STAGED_PIPELINE_H_
#define COMM_STAGED_PIPELINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "base/thread.h"
#include "comm/communicator.h"
#include "comm/device_work.h"
#include "comm/flight_recorder.h"
#include "comm/staged_plan.h"
#include "comm/staging.h"
#include "comm/work.h"

namespace lockstep {

// One call on its way. Thread-safe as a work.
class StagedOp : public WorkState {
 public:
  // `ready`: recorded in the call's stream, behind what the input waits for; null: the input is there. `left` is the
  // op's own.
  StagedOp(StagedPlan plan, const CollectiveRequest& request, std::unique_ptr<Event> ready, std::unique_ptr<Event> left)
      : plan_(std::move(plan)),
        input_(static_cast<const char*>(request.input)),
        output_(static_cast<char*>(request.output)),
        ready_(std::move(ready)),
        left_(std::move(left)) {}

  Event* ready() const { return ready_.get(); }

  absl::Status Await(Deadline deadline) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class StagedPipeline;

  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const StagedPlan plan_;
  const char* const input_;
  char* const output_;
  const std::unique_ptr<Event> ready_;

  // The pipeline's threads'.
  std::unique_ptr<Event> left_;  // recorded behind the last copy out
  size_t pieces_ = 0;
  bool pieces_agreed_ = false;
  Deadline deadline_ = Deadline::Infinite();  // from the first collective on
  uint64_t sequence_ = 0;
  FlightRecord* record_ = nullptr;  // with that sequence, or another one's by now; the pipeline's mutex guards it

  Mutex mu_;
  CondVar finished_;
};

class StagedPipeline {
 public:
  // How many calls may wait.
  static constexpr size_t kWaitingMax = 65536;

  struct Options {
    std::chrono::milliseconds timeout{1800000};  // of a call that names none
    size_t flight_records = 256;
  };

  // Takes the staging, and a communicator that nobody else uses. `failure` is what ends calls; `fail` is called on the
  // pipeline's threads with why a call failed, and sets it.
  StagedPipeline(std::unique_ptr<Staging> staging, std::unique_ptr<Communicator> communicator,
                 std::shared_ptr<DeviceFailure> failure, std::function<void(const absl::Status&)> fail,
                 Options options);

  // The failure has been set. Completes calls in flight with it, and fails them on the other ranks. Waits for no peer,
  // and for the device 20 s at most.
  ~StagedPipeline();
  StagedPipeline(const StagedPipeline&) = delete;
  StagedPipeline& operator=(const StagedPipeline&) = delete;

  // RESOURCE_EXHAUSTED when so many more may not wait, FAILED_PRECONDITION in a forked child. Whoever submits is alone
  // in doing so.
  absl::Status CheckRoom(size_t calls) const ABSL_LOCKS_EXCLUDED(mu_);
  // There is room.
  void Submit(Ref<StagedOp> op) ABSL_LOCKS_EXCLUDED(mu_);

  // The pipeline's own communicator, for what is not a collective.
  Communicator* communicator() const { return communicator_.get(); }
  size_t slot_bytes() const { return staging_->slot_bytes(); }
  std::string FlightRecords() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Piece {
    Ref<StagedOp> op;
    size_t index = 0;
    Staging::Slot* slot = nullptr;
    StagedPiece* plan = nullptr;
  };

  // The thread "lockstep-staged".
  void Run();
  // Waits for a call or the end; false at the end.
  bool AwaitCall() ABSL_LOCKS_EXCLUDED(mu_);
  Ref<StagedOp> TakeCall() ABSL_LOCKS_EXCLUDED(mu_);
  // Begins to copy in what there are slots for.
  void FillSlots();
  absl::Status CopyIn(Piece* piece);
  void CarryOut(Piece* piece);
  absl::Status Exchange(Piece* piece);
  // All ranks use the largest number of pieces that any has.
  absl::Status AgreeOnPieces(StagedOp* op);
  absl::Status AwaitFilled(const Piece& piece);
  absl::Status CopyOut(const Piece& piece);
  void Leave(Piece* piece) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RunOnHost(CollectiveRequest request, StagedOp* op);

  // The thread "lockstep-done".
  void RunDone();
  Ref<StagedOp> AwaitLeaving() ABSL_LOCKS_EXCLUDED(mu_);
  void Note(const StagedOp& op, FlightRecord::State state) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const std::unique_ptr<Staging> staging_;
  const std::unique_ptr<Communicator> communicator_;
  const std::shared_ptr<DeviceFailure> failure_;  // shared with works, which may outlive this
  const std::function<void(const absl::Status&)> fail_;
  const Options options_;
  const uint64_t fork_generation_;

  // The thread "lockstep-staged"'s.
  std::vector<StagedPiece> plans_;  // one for each slot
  std::deque<Piece> pieces_;        // that have a slot, in their order
  Ref<StagedOp> filling_;           // the call whose pieces come next
  size_t next_index_ = 0;           // of its pieces
  size_t next_slot_ = 0;

  mutable Mutex mu_;
  CondVar arrived_;
  CondVar left_;
  std::deque<Ref<StagedOp>> waiting_ ABSL_GUARDED_BY(mu_);
  std::deque<Ref<StagedOp>> leaving_ ABSL_GUARDED_BY(mu_);
  size_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;  // submitted, and not leaving yet
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool all_left_ ABSL_GUARDED_BY(mu_) = false;
  FlightRecorder recorder_ ABSL_GUARDED_BY(mu_);

  Thread thread_;
  Thread done_thread_;
};

}  // namespace lockstep

#endif  // COMM_STAGED_PIPELINE_H_
