// Compares all of the ranks' replicas, and finds where they differ.

#ifndef REDUCER_REPLICAS_COMPARE_REPLICAS_H_
#define REDUCER_REPLICAS_COMPARE_REPLICAS_H_

#include <chrono>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "comm/communicator.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

struct CompareOptions {
  // On a device: reads memory in the order of this stream. Null: the memory is ready, and `device` makes a stream.
  Stream* stream = nullptr;
  Device* device = nullptr;
  bool by_holder = false;                // as in CollectiveRequest
  std::chrono::milliseconds timeout{0};  // of each collective; 0: the communicator's
};

// Collective; blocks. Compares the bytes of each tensor between the ranks that have it. Its elements are compared in the order of its
// memory (row-major if that has gaps), so gaps do not count, and NaN and -0 are compared as bits.
//
// `data` has the address of each tensor, on the host or on options.device; null or an empty list: this rank does not have it, and takes
// part all the same. REQUIRES  the table is the same on all ranks (AgreeOnParameters), and nothing writes the tensors meanwhile
//
// RETURNS  whether every rank has every tensor, and they are equal
// ERRORS   DATA_LOSS  some tensor differs: the same text on every rank. It names how many do, the ranks that differ from the majority, the
//                     first such tensor and its first element that differs, and what each rank has there. As data, the error has that
//                     tensor as its parameter and the lowest of those ranks as failed_rank.
//          the communicator's
// COST     a pass over the tensors, and an all-gather of 8 bytes per tensor. If they differ, a few more of at most 4 KiB per rank.
absl::StatusOr<bool> CompareReplicas(Communicator& communicator, absl::Span<const Parameter> tensors,
                                     absl::Span<const void* const> data, const CompareOptions& options);

}  // namespace lockstep

#endif  // REDUCER_REPLICAS_COMPARE_REPLICAS_H_
