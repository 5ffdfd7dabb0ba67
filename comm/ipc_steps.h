// IpcSteps: issues a rank's part of calls over memory that all ranks reach (comm/ipc_plan.h), step by step, in the
// order of streams.
//
// A step has a number, cyclic in 32 bits. Streams write it into the words of the page that the other ranks' streams
// await: `ready` when a rank has come to the meeting of that number, `done` when it has read what it reads of others
// up to there. When a call is done on a rank, all ranks are through with it, so calls leave nothing behind but the
// numbers.

#ifndef COMM_IPC_STEPS_H_
#define COMM_IPC_STEPS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "comm/communicator.h"
#include "comm/ipc_buffers.h"
#include "comm/ipc_memory.h"
#include "comm/ipc_page.h"
#include "comm/ipc_plan.h"
#include "kernels/fold_kernels.h"

namespace lockstep {

class IpcSteps {
 public:
  // So that what others still read is not overwritten by the next step.
  static constexpr size_t kSlots = 2;

  // `slot_memory` has kSlots slots of each rank. It and the kernels are borrowed.
  IpcSteps(int rank, int size, std::shared_ptr<IpcPage> page, const IpcMemory* slot_memory, const IpcSlots& slots,
           const kernels::FoldKernels* kernels);
  IpcSteps(const IpcSteps&) = delete;
  IpcSteps& operator=(const IpcSteps&) = delete;

  // Whether a buffer that all map is reduced where it is, rather than through slots.
  bool IsReducedInPlace(const CollectiveRequest& request) const;

  // One call at a time, in the same order on all ranks; `stream` comes behind the calls before. At `place`, where
  // that is one, the call is reduced in place. `pair_count`: PlanIpc's. An error may come when a part is issued.
  absl::Status Issue(const CollectiveRequest& request, const IpcBuffers::Place& place, size_t pair_count,
                     Stream* stream);

  // Stores what this rank's streams wait for. Any thread. To be repeated until they are through: another rank's
  // stream may write an earlier number over what was stored.
  void Release();

 private:
  // With the ranks' slots at these addresses.
  absl::Status IssueStep(const CollectiveRequest& request, const IpcStep& step, absl::Span<char* const> slots,
                         Stream* stream);
  absl::Status Fold(const CollectiveRequest& request, const IpcStep& step, absl::Span<char* const> slots,
                    Stream* stream);

  // All ranks come to this point before any goes on.
  absl::Status Meet(Stream* stream);
  absl::Status TellDone(Stream* stream);
  absl::Status AwaitDone(uint32_t number, Stream* stream);

  const int rank_;
  const int size_;
  const std::shared_ptr<IpcPage> page_;  // shared with the communicator
  const IpcMemory* const slot_memory_;
  const IpcSlots slots_;
  const kernels::FoldKernels* const kernels_;

  // The last one that was issued. Written by one call at a time; released before a stream awaits it, acquired by
  // Release.
  std::atomic<uint32_t> number_{0};
};

}  // namespace lockstep

#endif  // COMM_IPC_STEPS_H_
