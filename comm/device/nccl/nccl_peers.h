// Whether NCCL can join ranks: what each rank tells the others, and the decision, which is the same on all.

#ifndef COMM_DEVICE_NCCL_NCCL_PEERS_H_
#define COMM_DEVICE_NCCL_NCCL_PEERS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device/device.h"

namespace lockstep {

struct NcclPeer {
  std::string error;        // why this rank cannot; empty when it can
  int version = 0;          // of its NCCL, 22809
  std::string host;         // as NCCL tells hosts apart
  std::string gpu;          // on its host: the PCI address
  bool shares_gpu = false;  // its NCCL has been told that ranks share GPUs (NCCL_MULTI_RANK_GPU_ENABLE, from 2.30.3)
};

// This process: loads NCCL and asks the device.
NcclPeer ThisNcclPeer(DeviceId device);

// To and from what ranks send each other.
std::string Encode(const NcclPeer& peer);
absl::StatusOr<NcclPeer> DecodeNcclPeer(absl::string_view text);

// Decides. `peers` are in rank order.
// ERRORS  UNAVAILABLE          a rank cannot; names it and its reason
//         FAILED_PRECONDITION  names ranks whose versions differ, or ranks on one GPU, which NCCL refuses, with what to do about it
absl::Status CheckNcclPeers(const std::vector<NcclPeer>& peers);

}  // namespace lockstep

#endif  // COMM_DEVICE_NCCL_NCCL_PEERS_H_
