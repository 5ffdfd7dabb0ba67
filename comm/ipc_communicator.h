// IpcCommunicator: collectives on GPUs of one host over memory that all its ranks map, by kernels and copies that
// read the other ranks' memory. For several processes on one GPU, too, which NCCL refuses.
//
// See comm/device_communicator.h for what it shares with others, comm/ipc_plan.h for what becomes of a call and
// comm/ipc_memory.h for the memory. Thread-safe. Up to 8 ranks. All collectives, dtypes and ops of the host
// communicator; messages on the device are UNIMPLEMENTED. Sums are folded in rank order, so all ranks get the same
// bits, whatever their timing.
//
// Order. No kernel waits for another rank. A call is a number of steps, and a step's parts wait for each other by
// words in host memory that streams write and await (Stream::AwaitValue): all of it is issued at once, by the
// caller's thread, which waits for nobody. (But for an all-to-all with counts, and in checked mode: there ranks
// compare over the host first.) When a call is done on a rank, all ranks have read what they read of that rank.
//
// Buffers. What a rank puts into a call goes through a slot that the others map, piece by piece, but for all-reduces
// in place of more than a shot (IpcSlots) in memory of AllocateOnDevice, at the same place of it on all ranks: those
// are read where they are.
//
// Streams that are being captured are refused: a graph would repeat the numbers of steps that are long past. Ranks
// that are threads of one process need a GPU each: where they share a context, cudaFree of one keeps the others' calls waiting for
// streams that wait for those calls.
//
// Failure. The watchdog (comm/device_watchdog.h) looks whether calls have passed their deadlines and whether the host
// communicator stands. Then it tells the other ranks, and stores into this rank's words what its streams wait for, as
// long as they do: they go on, and what the calls in flight have written is undefined.

#ifndef COMM_IPC_COMMUNICATOR_H_
#define COMM_IPC_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "comm/communicator.h"
#include "comm/device_communicator.h"
#include "comm/device_operations.h"
#include "comm/device_watchdog.h"
#include "comm/ipc_buffers.h"
#include "comm/ipc_memory.h"
#include "comm/ipc_page.h"
#include "comm/ipc_plan.h"
#include "comm/ipc_steps.h"
#include "comm/symmetric_buffer.h"
#include "kernels/fold_kernels.h"

namespace lockstep {

struct IpcOptions {
  // Two shots of a piece that fills a slot move it in parts that are large against a launch, for as many ranks as
  // there may be; and one shot of what is small against the meeting that it saves. Neither was measured. Equal on all
  // ranks.
  IpcSlots slots{size_t{4} << 20, size_t{256} << 10};
  // Ranks compare the collectives that they are about to issue, over the host. Equal on all ranks.
  bool checked = false;
  std::chrono::milliseconds timeout{1800000};  // of calls that name none
  size_t flight_records = 256;
  std::string reason;  // why it is this one, for Describe; may be empty
  // Without which Create is UNAVAILABLE: a program that uses no GPU need not have a GPU's. They outlive the
  // communicator.
  const kernels::FoldKernels* kernels = nullptr;
};

class IpcCommunicator : public DeviceCommunicator, private DeviceWatchdog::Client {
 public:
  // Collective over `host`. UNAVAILABLE, on all ranks, names those on different hosts, the first pair of GPUs without
  // access to each other, and the rank where CUDA does not allow it or streams have no such words; UNIMPLEMENTED says
  // that there are more than 8 ranks, and FAILED_PRECONDITION that their options differ. A borrowed host communicator
  // is still good then.
  static absl::StatusOr<std::unique_ptr<IpcCommunicator>> Create(HostPart host, Device* device, IpcOptions options);

  // Waits for nobody: calls in flight are released, and fail on the other ranks.
  ~IpcCommunicator() override;

  // Those on the device, what ranks compared beforehand, then the host communicator's.
  std::string FlightRecords() const override;

 private:
  IpcCommunicator(HostPart host, Device* device, IpcOptions options);

  // The parts of Create. Collective over the host communicator.
  absl::Status CheckPeers();
  absl::Status SetUp();
  // Whether streams of the device write and await words of the page.
  absl::Status TryWords();

  absl::Status CheckOnDevice(const DeviceCall& call) override;
  absl::Status IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) override;
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateHere(size_t bytes) override;
  absl::StatusOr<std::unique_ptr<Communicator>> MakePart(std::unique_ptr<Communicator> part, int color,
                                                         int key) override;
  std::string DescribeDevice() const override;
  void OnFailure(const absl::Status& status) override;
  bool IdleOnDevice() override { return buffers_->last()->Query(); }
  void Watch() override;

  // Over the host, before anything is issued: what calls the others make, in checked mode; and for each call PlanIpc's
  // pair_count_max.
  absl::Status Agree(absl::Span<const DeviceCall> calls, std::vector<size_t>* pair_counts);
  absl::Status Issue(absl::Span<const DeviceCall> calls, absl::Span<const size_t> pair_counts, Stream* stream);
  // Finds a rank that has told of another call than this.
  absl::Status Compare(const CollectiveRequest& request, const IpcBuffers::Place& place);

  // Constant after construction.
  const IpcOptions options_;
  const uint64_t fork_generation_;
  // Constant after Create.
  std::shared_ptr<IpcPage> page_;        // shared with memory and works, which may outlive this
  std::unique_ptr<IpcMemory> slots_;     // two of each rank
  std::shared_ptr<IpcBuffers> buffers_;  // shared with the buffers
  std::unique_ptr<IpcSteps> steps_;
  std::unique_ptr<Communicator> compare_;  // of the host: of Agree
  bool watched_ = false;

  std::atomic<int> memories_{0};     // that were shared
  std::atomic<bool> failed_{false};  // the page was told before this was set
  uint64_t calls_ = 0;               // by one call at a time

  mutable DeviceOperations operations_;
};

}  // namespace lockstep

#endif  // COMM_IPC_COMMUNICATOR_H_
