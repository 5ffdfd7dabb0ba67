// The average of sparse gradients across ranks: each rank's rows are sent to all, and stay rows.

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
// Each rank coalesces what it has and multiplies it by the factor; then rows are summed in rank order (Coalesce). So a
// row has the value that the dense gradient would get, scaled as it is copied into its bucket and reduced by an
// algorithm that reduces in rank order and rounds once; but a -0 stays one where the dense sum has +0 from ranks without
// the row.
//
// On the wire: three 64-bit numbers of each rank; then, unless no rank has rows, 8 bytes for each row that a rank has,
// and row_elements of the dtype. Every rank gets all of it.
//
// `local` is why this rank has no gradient to give, or OK. It takes part with no rows then, as it does when its
// gradient is bad; both are this rank's own error, and FAILED_PRECONDITION on the others, quoting the lowest such rank.
// dtypes, rows or row elements that differ are the same FAILED_PRECONDITION on all ranks, and more rows than can be
// addressed RESOURCE_EXHAUSTED. The communicator stays usable after all of these.
absl::StatusOr<CoalescedGradient> AllGatherSparse(Communicator& communicator, const absl::Status& local,
                                                  const SparseGradient& gradient, const SparseOptions& options);

}  // namespace lockstep

#endif  // REDUCER_SPARSE_SPARSE_ALL_GATHER_H_
