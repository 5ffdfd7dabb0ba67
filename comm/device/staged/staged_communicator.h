// StagedCommunicator: collectives on a device's tensors over any communicator on the host, through memory that both reach. It is used
// where nothing moves tensors from device to device.
//
// It uses a duplicate of the host communicator, so calls on the host and on the device have separate orders. It supports all
// collectives, dtypes and ops of the host communicator; messages on the device are UNIMPLEMENTED. Each piece of a call is a collective
// on the host, so the bits are those of the host's collectives over each piece. If the host communicator is deterministic, these are
// the bits over the whole vector (docs/numerics.md).
//
// Three stages overlap:
//
//   copy in     device -> slot    a stream of the device's, which waits for the call's stream by an event
//   collective  slot              the thread "lockstep-staged"
//   copy out    slot -> device    a stream of the device's, for which the call's stream waits by an event
//
// Calls are executed in the order in which they were issued. They are cut into numbered pieces of one slot each
// (comm/device/staged/staged_plan.h). While one piece is in the collective, the next ones are copied in, as far as there are slots, and
// the last ones are copied out.
//
// Enqueue and Start issue all of a call's work on the device and wait for none of it:
//
//   in    wait for the slot to be emptied; copy to it; write the piece's number to the word `filled`
//   out   await the piece's number in the word `exchanged`; copy from the slot; note it as emptied
//
// The thread awaits `filled`, runs the collective in the slot, stores `exchanged`, and never calls the device. So work on the device
// waits only for the thread and for work that was issued before it, and the thread waits only for work that was issued already. A
// device's queues are first in, first out, and streams may share them, even a single one: no entry ever waits for one behind it in its
// queue. (Closures in streams had that fault: a call was a closure that returned when the call was done, ahead of copies that were
// issued later.) `out` also waits for an event behind the copy in, since CUDA must be told of orders among its own tasks
// (cuStreamWaitValue32).
//
// A device's queue is finite (CUDA's takes about a thousand entries; a piece is four in each stream). Whoever issues more waits in the
// device's call until the thread has executed some. Ranks that are threads of one process and share a device must not share its queues:
// one rank's wait would block another's copy. Streams that are being captured are refused: a graph would repeat the copies, but not
// the collective.

#ifndef COMM_DEVICE_STAGED_STAGED_COMMUNICATOR_H_
#define COMM_DEVICE_STAGED_STAGED_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "comm/communicator.h"
#include "comm/device/device_communicator.h"
#include "comm/device/staged/staged_plan.h"
#include "comm/device/staged/staging.h"
#include "comm/record/flight_recorder.h"
#include "comm/work.h"

namespace lockstep {

struct StagedOptions {
  // The size of a slot, and so of a collective on the host. Large against that collective's latency; small against a bucket, so
  // that the stages overlap. Equal on all ranks.
  size_t chunk_bytes = size_t{1} << 20;
  int slots = 3;  // one for each stage; more even out variations of a stage's time. Equal on all ranks
  std::chrono::milliseconds timeout{1800000};  // of a call that names none
  size_t flight_records = 256;
  std::string reason;  // why calls are staged, for Describe
};

class StagedCommunicator : public DeviceCommunicator {
 public:
  // How many calls may wait.
  static constexpr size_t kWaitingMax = 65536;

  // Collective over `host`.
  // ERRORS  INVALID_ARGUMENT     invalid options
  //         FAILED_PRECONDITION  the ranks' options differ; the message names the ranks
  //         UNAVAILABLE          the device's streams cannot await and write values (base/device/device.h), or another rank, which the
  //                              message names, has an error of its own
  //         RESOURCE_EXHAUSTED   there is no staging memory
  static absl::StatusOr<std::unique_ptr<StagedCommunicator>> Create(HostPart host, Device* device,
                                                                    StagedOptions options = {});

  // Completes calls in flight with CANCELLED, and fails them on the other ranks. Waits for no peer, and for the device 30 s at most.
  ~StagedCommunicator() override;

  absl::Status status() const override;
  // The host communicator's records, those of calls on the device, and those of their pieces. A call is done when the collective of
  // its last piece is.
  std::string FlightRecords() const override ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  absl::Status CheckOnDevice(const DeviceCall& call) override;
  absl::Status IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) override;
  absl::StatusOr<Work> StartOnDevice(absl::Span<const DeviceCall> calls) override;
  absl::StatusOr<std::unique_ptr<Communicator>> MakePart(std::unique_ptr<Communicator> part, int color,
                                                         int key) override;
  std::string DescribeDevice() const override;
  void OnFailure(const absl::Status& status) override;
  void OnLeave() override;

 private:
  struct Call;

  StagedCommunicator(HostPart host, Device* device, StagedOptions options);

  // ---- The thread that issues, one at a time.

  // RESOURCE_EXHAUSTED when that many more calls may not wait, FAILED_PRECONDITION in a forked child.
  absl::Status CheckRoom(size_t calls) const ABSL_LOCKS_EXCLUDED(mu_);
  // Issues collectives whose input is ready, and records `end` behind them. After an error some of them may be issued, and other ranks
  // wait for the rest: the communicator must fail.
  absl::Status IssueUntil(absl::Span<const DeviceCall> calls, Event* end) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status IssueBehind(absl::Span<const DeviceCall> calls, Stream* stream) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status IssueCall(const CollectiveRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<Call> Submit(const CollectiveRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status IssueIn(const Call& call, const char* input, size_t index);
  absl::Status IssueOut(const Call& call, char* output, size_t index);
  // Fails the communicator if a call was issued in part.
  absl::Status FailIfNotOk(const absl::Status& issued);

  // ---- The thread "lockstep-staged".

  void RunThread();
  // Waits for a call. Null at the end.
  std::shared_ptr<Call> AwaitCall() ABSL_LOCKS_EXCLUDED(mu_);
  void Execute(Call* call);
  absl::Status Exchange(Call* call, size_t index);
  absl::Status AwaitFilled(uint64_t number);
  // Sets the call's number of pieces to the largest of any rank.
  absl::Status AgreeOnPieces(Call* call);
  absl::Status RunOnHost(CollectiveRequest request, const Call& call);
  void LetGo(uint64_t number);
  void Note(const Call& call, FlightRecord::State state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant once Create has made it.
  const StagedOptions options_;
  const uint64_t fork_generation_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Communicator> pieces_;  // the duplicate

  // Of the thread that issues.
  std::vector<StagedPiece> issued_;  // by slot
  uint64_t next_number_ = 1;

  // The thread's.
  StagedPiece piece_;

  mutable Mutex mu_;
  CondVar arrived_;
  // Shared with the thread that issues a call: lockstep-staged may drop a call that is still being issued.
  std::deque<std::shared_ptr<Call>> waiting_ ABSL_GUARDED_BY(mu_);
  size_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;  // issued calls whose collectives are not done
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  FlightRecorder recorder_ ABSL_GUARDED_BY(mu_);

  Thread thread_;
};

}  // namespace lockstep

#endif  // COMM_DEVICE_STAGED_STAGED_COMMUNICATOR_H_
