// NcclCommunicator: a communicator for a GPU whose collectives there are NCCL's, over a host communicator of the same
// ranks.
//
// See comm/device/device_communicator.h for what it shares with others, and comm/device/nccl/nccl_plan.h for how calls map to NCCL's.
// Thread-safe.
//
// - NCCL chooses its own algorithms: the algorithm that a request names is checked, then ignored. Results may differ
//   between ranks and between runs, so a deterministic communicator is UNIMPLEMENTED.
// - A call on a stream returns when NCCL has put it there. The first one that involves a peer waits until the peer makes
//   it, too. So all ranks must issue the calls of all their communicators in one order.
// - NCCL does not compare calls. Except in checked mode, ranks that make different ones wait until the deadline, or get
//   wrong data.
// - Messages on the device have no tag (0, or any at the receiver), name their source, and are equally long on both sides.
//   They are in one order with the collectives, and a send waits for its receive. Two ranks that exchange messages do so
//   in a group.
// - An in-place all-to-all copies its input first.
// - All-reduces, and other calls that need no memory of ours, may be captured. A repetition has neither deadline nor
//   flight record: whoever launches a graph knows when it is late. NCCL's errors are still noticed.
//
// Failure. One thread of the process (comm/device/device_watchdog.h) asks NCCL for errors. It also checks whether operations have
// passed their deadlines, which count from the call, and whether the host communicator has failed. A failure ends both
// communicators: NCCL's kernels leave the GPU, streams go on with what is behind them, and all ranks are told over the
// host communicator. If the host communicator reports the loss of a rank, its error is used instead of NCCL's. Collectives that were
// under way leave their output undefined.

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
  // Ranks compare the collectives that they are about to issue over the host communicator. A difference is FAILED_PRECONDITION on
  // all of them, and nothing is issued. Equal on all ranks.
  bool checked = false;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);       // of calls that name none
  std::chrono::milliseconds setup_timeout = std::chrono::minutes(2);  // of creation, and of each split
  size_t flight_records = 256;
  std::shared_ptr<const std::vector<int>> launched_as;  // see PlaceInWorld; null: unknown
};

class NcclCommunicator : public DeviceCommunicator, private DeviceWatchdog::Client {
 public:
  // Collective over `host`. A borrowed host communicator is still good after an error.
  // ERRORS  UNAVAILABLE, FAILED_PRECONDITION  NCCL cannot join these ranks (comm/device/nccl/nccl_peers.h); the same on all of them
  //         UNIMPLEMENTED                     it is to be deterministic
  //         NCCL's                            its communicator could not be made; on all ranks, naming the one where it failed
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(HostPart host, Device* device,
                                                                  const NcclCommunicatorOptions& options);

  // Aborts collectives that are under way. Waits for no peer.
  ~NcclCommunicator() override;

  absl::Status CanCapture() const override { return absl::OkStatus(); }
  absl::StatusOr<void*> NcclHandle() const override;
  // For buffers on the device. On the host more may be supported.
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
  // Fills calls_. Copies that must come first are issued in the stream.
  absl::Status Plan(absl::Span<const DeviceCall> calls, Stream* stream);
  // At least this much memory of ours. `stream` waits until it is free.
  absl::StatusOr<char*> TakeScratch(size_t bytes, Stream* stream);
  // Notes the calls after their launch.
  absl::Status Note(absl::Span<const DeviceCall> calls, Stream* stream, Deadline deadline,
                    std::chrono::milliseconds timeout);

  // Constant after construction.
  const NcclCommunicatorOptions options_;
  const NcclLibrary* const library_;
  const std::shared_ptr<NcclComm> comm_;        // shared with registered memory, which may outlive this
  const std::unique_ptr<Communicator> checks_;  // on the host, for checked mode; else null
  const uint64_t fork_generation_;

  // Only in IssueOnDevice, which one thread at a time is in.
  std::vector<NcclCall> calls_;
  std::vector<void*> scratch_;           // the last one is current; calls issued before may still use the others
  size_t scratch_bytes_ = 0;             // of the last one
  bool scratch_used_ = false;            // by calls_
  std::unique_ptr<Event> scratch_free_;  // recorded behind its last user
  // Used instead of per-thread default streams, which NCCL would take for those of its own threads.
  std::unique_ptr<Stream> bridge_;
  std::unique_ptr<Event> bridge_event_;

  // Only in Watch.
  absl::Status polled_;  // NCCL's error, until the host communicator reports its own or verdict_until_ has passed
  Deadline verdict_until_ = Deadline::Infinite();

  mutable DeviceOperations operations_;
};

}  // namespace lockstep

#endif  // COMM_DEVICE_NCCL_NCCL_COMMUNICATOR_H_
