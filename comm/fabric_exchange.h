// FabricExchange: carries out pieces of collectives in slots on a device, by messages that the network's own device reads
// from there and writes there (Communicator::AddDeviceMemory), and by kernels that fold what has come: comm/fabric_plan.h.
// Nothing passes through memory of the host.
//
// The staging's words, and who does what in order of a piece's number:
//
//   in      copies to the slot; scales it, where the op has a factor        (pipeline: `filled`)
//   thread  first messages; stores `scattered`
//   out     awaits `scattered`; folds; writes `folded`
//   thread  awaits `folded`; second messages                               (pipeline: `exchanged`)
//   out     copies from the slot
//
// What the network wrote must be there for kernels that come behind a stream's wait: base/cuda_remote_writes.h.

#ifndef COMM_FABRIC_EXCHANGE_H_
#define COMM_FABRIC_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device.h"
#include "comm/communicator.h"
#include "comm/fabric_plan.h"
#include "comm/staged_exchange.h"
#include "comm/staging.h"
#include "kernels/fold_kernels.h"

namespace lockstep {

class FabricExchange : public StagedExchange {
 public:
  // Staging with FabricSpareBytes behind each slot, on a device; a communicator that nobody else uses. Both are borrowed, and
  // so are the kernels. UNIMPLEMENTED where no network reaches the slots, UNAVAILABLE without kernels for the device, or what
  // the device or the network says.
  static absl::StatusOr<std::unique_ptr<FabricExchange>> Create(Communicator* communicator, Staging* staging,
                                                                const kernels::FoldKernels* kernels);
  // When no message is under way.
  ~FabricExchange() override;

  absl::Status IssueIn(const StagedPiece& piece, char* slot, Stream* in) override;
  absl::Status IssueOut(const StagedPiece& piece, char* slot, uint64_t number, Stream* out) override;
  absl::Status Agree(const Signature& call, Deadline deadline) override;
  absl::Status Run(const StagedPiece& piece, char* slot, uint64_t number, Deadline deadline, Await await) override;
  void LetGo(uint64_t number) override;

 private:
  FabricExchange(Communicator* communicator, Staging* staging, const kernels::FoldKernels* kernels)
      : communicator_(communicator), staging_(staging), kernels_(kernels) {}

  absl::Status Plan(const StagedPiece& piece, char* slot, FabricPlan* plan) const;
  // Carries all of these out together.
  absl::Status Exchange(absl::Span<const FabricMessage> sends, absl::Span<const FabricMessage> receives,
                        Deadline deadline);

  Communicator* const communicator_;
  Staging* const staging_;
  const kernels::FoldKernels* const kernels_;
  bool known_ = false;  // to the communicator: the slots

  FabricPlan issued_;   // whoever issues
  FabricPlan running_;  // the thread
  int64_t next_tag_ = 0;
  std::vector<MessageInfo> arrived_;
};

}  // namespace lockstep

#endif  // COMM_FABRIC_EXCHANGE_H_
