// NcclCommunicator: a communicator for a GPU whose collectives there are NCCL's, over a host communicator of the same
// ranks.
//
// See comm/device/device_communicator.h for what it shares with others, and comm/device/nccl/nccl_plan.h for what becomes of a call.
// Thread-safe.
//
// - NCCL chooses its own algorithms: what a request names is looked at and then counts for nothing. Results need not
//   be the same on all ranks, nor from run to run: a deterministic communicator is UNIMPLEMENTED.
// - A call on a stream returns when NCCL has put it there. The first one that involves a peer waits until the peer has
//   come as far; so ranks issue the calls of all their communicators in one order.
// - NCCL does not compare calls: but in checked mode, ranks that make different ones wait until the deadline, or get
//   wrong data.
// - Messages on the device have no tag (0, or any at the receiver), name their source, and are as long on both sides.
//   They go in one order with the collectives, and a send waits for its receive. Two ranks that exchange messages do so
//   in a group.
// - An in-place all-to-all copies its input first.
// - All-reduces, and what else needs no memory of ours, may be captured. A repetition has neither deadline nor flight
//   record: whoever launches a graph knows when it is late. NCCL's errors are noticed all the same.
//
// Failure. One thread of the process (comm/device/device_watchdog.h) asks NCCL for errors, looks whether operations have
// passed their deadlines, which count from the call, and whether the host communicator still stands. Whatever fails
// ends both: NCCL's kernels leave the GPU, streams go on with what is behind them, and all ranks hear of it over the
// host communicator, whose words for the loss of a rank go before NCCL's own. What the collectives that were under
// way have written is undefined.

#ifndef COMM_DEVICE_NCCL_NCCL_COMMUNICATOR_H_
#define COMM_DEVICE_NCCL_NCCL_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/device/device_communicator.h"
#include "comm/device/device_operations.h"
#include "comm/device/device_watchdog.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "transport/nccl/nccl_abi.h"
#include "transport/nccl/nccl_comm.h"
#include "transport/nccl/nccl_library.h"

namespace lockstep {

struct NcclCommunicatorOptions {
  NcclCommOptions nccl;
  bool deterministic = false;
  // Ranks compare the collectives that they are about to issue, over the host: a difference is FAILED_PRECONDITION on
  // all of them, and nothing is issued. Equal on all ranks.
  bool checked = false;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);       // of calls that name none
  std::chrono::milliseconds setup_timeout = std::chrono::minutes(2);  // of creation, and of each split
  size_t flight_records = 256;
};

class NcclCommunicator : public DeviceCommunicator, private DeviceWatchdog::Client {
 public:
  // Collective over `host`. UNAVAILABLE and FAILED_PRECONDITION are the same on all ranks and say why they cannot be
  // joined by NCCL (comm/device/nccl/nccl_peers.h), UNIMPLEMENTED when it is to be deterministic; a borrowed host communicator is
  // still good then. It also is when creating NCCL's own communicator fails: on all ranks, naming the one where it
  // did.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(HostPart host, Device* device,
                                                                  const NcclCommunicatorOptions& options);

  // Waits for nobody: collectives that are under way are aborted.
  ~NcclCommunicator() override;

  absl::Status CanCapture() const override { return absl::OkStatus(); }
  absl::StatusOr<void*> NcclHandle() const override;
  // On the device; on the host more may be supported.
  absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const override;
  // Those on the device, then the host communicator's.
  std::string FlightRecords() const override;

 private:
  NcclCommunicator(HostPart host, Device* device, const NcclCommunicatorOptions& options, const NcclLibrary* library,
                   std::shared_ptr<NcclComm> comm, std::unique_ptr<Communicator> checks);

  // Collective over `host`.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Make(HostPart host, Device* device,
                                                                const NcclCommunicatorOptions& options,
                                                                const NcclLibrary* library,
                                                                std::shared_ptr<NcclComm> comm);
  // Collective over `host`: NCCL's communicator of ranks that can be joined.
  static absl::StatusOr<std::shared_ptr<NcclComm>> Connect(Communicator* host, const NcclLibrary* library, int device,
                                                           const NcclCommunicatorOptions& options);

  absl::Status CheckOnDevice(const DeviceCall& call) override;
  absl::Status IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) override;
  absl::StatusOr<std::unique_ptr<Communicator>> MakePart(std::unique_ptr<Communicator> part, int color,
                                                         int key) override;
  std::string DescribeDevice() const override;
  void OnFailure(const absl::Status& status) override;
  bool IdleOnDevice() override { return operations_.Idle(); }
  void Watch() override;

  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateHere(size_t bytes) override;

  // In checked mode, before anything is issued.
  absl::Status Compare(absl::Span<const DeviceCall> calls);
  absl::Status Launch(absl::Span<const DeviceCall> calls, Stream* stream);
  // Into calls_; what has to be copied beforehand is issued in the stream.
  absl::Status Plan(absl::Span<const DeviceCall> calls, Stream* stream);
  // At least this much memory of ours, which is free once `stream` gets there.
  absl::StatusOr<char*> TakeScratch(size_t bytes, Stream* stream);
  // After the launch.
  absl::Status Note(absl::Span<const DeviceCall> calls, Stream* stream, Deadline deadline,
                    std::chrono::milliseconds timeout);

  // Constant after construction.
  const NcclCommunicatorOptions options_;
  const NcclLibrary* const library_;
  const std::shared_ptr<NcclComm> comm_;        // shared with registered memory, which may outlive this
  const std::unique_ptr<Communicator> checks_;  // of the host; null but in checked mode
  const uint64_t fork_generation_;

  // Only in IssueOnDevice, of which there is one at a time.
  std::vector<NcclCall> calls_;
  std::vector<void*> scratch_;           // the last one is used; those before it may be, by what was issued with them
  size_t scratch_bytes_ = 0;             // of the last one
  bool scratch_used_ = false;            // by calls_
  std::unique_ptr<Event> scratch_free_;  // recorded behind what last worked in it
  // In the place of per-thread default streams: NCCL would take them for those of its own threads.
  std::unique_ptr<Stream> bridge_;
  std::unique_ptr<Event> bridge_event_;

  // Only in Watch.
  absl::Status polled_;  // what NCCL said, while the host communicator has time for a verdict
  Deadline verdict_until_ = Deadline::Infinite();

  mutable DeviceOperations operations_;
};

}  // namespace lockstep

#endif  // COMM_DEVICE_NCCL_NCCL_COMMUNICATOR_H_
