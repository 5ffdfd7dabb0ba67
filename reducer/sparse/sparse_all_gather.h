// Averages sparse gradients across ranks: each rank's rows are sent to all, and the result is rows.

#ifndef REDUCER_SPARSE_SPARSE_ALL_GATHER_H_
#define REDUCER_SPARSE_SPARSE_ALL_GATHER_H_

#include <chrono>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep {

struct SparseOptions {
  double factor = 1;                     // of this rank's rows, before they are sent: 1/n for an average
  std::chrono::milliseconds timeout{0};  // of each collective; 0: the communicator's
  bool background = false;               // as in CollectiveRequest
  bool by_holder = false;                // likewise
};

// Every rank calls it. Blocks. The result is the same bits on every rank.
//
// Each rank coalesces its rows and multiplies them by the factor. Then rows are summed in rank order (Coalesce). So a
// row has the value of the dense gradient, scaled as it is copied into its bucket and reduced in rank order with one
// rounding. One difference: a -0 stays -0 where the dense sum adds +0 of ranks without the row.
//
// On the wire: three 64-bit numbers of each rank; then, unless no rank has rows, 8 bytes for each row that a rank has,
// and row_elements of the dtype. Every rank gets all of it.
//
// `local` says why this rank has no gradient, or is OK. A rank without a gradient, or with a bad one, takes part with
// no rows and returns its own error. The others return FAILED_PRECONDITION, which quotes the lowest such rank. If
// dtypes, rows or row elements differ, all ranks return the same FAILED_PRECONDITION; if there are more rows than can
// be addressed, RESOURCE_EXHAUSTED. The communicator stays usable.
absl::StatusOr<CoalescedGradient> AllGatherSparse(Communicator& communicator, const absl::Status& local,
                                                  const SparseGradient& gradient, const SparseOptions& options);

}  // namespace lockstep

#endif  // REDUCER_SPARSE_SPARSE_ALL_GATHER_H_
