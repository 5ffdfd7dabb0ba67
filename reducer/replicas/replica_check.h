// ReplicaCheck: in each step of a reducer, finds out whether the ranks' replicas are still equal.
//
//   step n        each rank hashes a slice of its replica (ReplicaHash). The status trailer of the last bucket compares the hashes
//                 (reducer/plan/status_trailer.h), so no message is added, and no rank waits.
//   later         if the hashes differ, the first step that begins after step n is known to be over on every rank compares the replicas
//                 (CompareReplicas). That step waits for it. If it leaves tensors out, which may be those that differ, later steps compare
//                 again.
//
// A comparison finds all differences, so those that the next cycle of slices shows are known. If some persist, they are reported in the
// cycle after that.
//
// THREADS  Externally synchronised.

#ifndef REDUCER_REPLICAS_REPLICA_CHECK_H_
#define REDUCER_REPLICAS_REPLICA_CHECK_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "comm/communicator.h"
#include "kernels/bucket_kernels.h"
#include "reducer/plan/parameter.h"
#include "reducer/replicas/replica_hash.h"

namespace lockstep {

// Gets the error of CompareReplicas. RETURNS OK to continue, or an error: then the step begins on no rank.
using OnDrift = std::function<absl::Status(const absl::Status& drift)>;

class ReplicaCheck {
 public:
  // Local. on_drift: null logs the first drift as a warning, on rank 0. The other arguments are as of ReplicaHash::Create; the
  // communicator outlives this.
  static absl::StatusOr<std::unique_ptr<ReplicaCheck>> Create(Communicator* communicator,
                                                              std::vector<Parameter> tensors, OnDrift on_drift,
                                                              Device* device, const kernels::BucketKernels* kernels);

  // Step `step` is about to begin, and this rank holds the communicator. Steps before `known_until` are over on every rank. Collective if
  // hashes have differed in one of these. `data` as in ReplicaHash::Next; timeout as in CompareOptions.
  // RETURNS  the hash that this step compares
  // ERRORS   of ReplicaHash::Check, on this rank, which may call again; of on_drift, ReplicaHash::Next or the communicator: the step does
  //          not begin
  absl::StatusOr<absl::optional<uint32_t>> BeginStep(uint64_t step, uint64_t known_until,
                                                     absl::Span<const void* const> data, Stream* stream,
                                                     std::chrono::milliseconds timeout);

  // Notes that the ranks had different hashes in step `step`, which has ended.
  void HashesDiffered(uint64_t step);

 private:
  ReplicaCheck() = default;

  Communicator* communicator_ = nullptr;
  std::vector<Parameter> tensors_;
  OnDrift on_drift_;
  Device* device_ = nullptr;
  std::unique_ptr<ReplicaHash> hash_;
  uint64_t differed_in_ = 0;  // the step; 0: none that was not looked into
  uint64_t quiet_until_ = 0;  // differences of steps before this one are known
  bool warned_ = false;
};

}  // namespace lockstep

#endif  // REDUCER_REPLICAS_REPLICA_CHECK_H_
