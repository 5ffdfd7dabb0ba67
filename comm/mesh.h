// Meshes: the ranks of a communicator as a grid of named dimensions ("dp" by "tp"), with a communicator for each line of it.
//
// Rank r has the coordinates of the r-th cell in row-major order: the last dimension changes fastest. A line along a dimension is the
// ranks that differ in that coordinate alone. They share a communicator, in which a rank's number is its coordinate.

#ifndef COMM_MESH_H_
#define COMM_MESH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/communicator.h"

namespace lockstep {

struct MeshDimension {
  std::string name;
  int size = 1;
};

// Makes the communicators of this rank's lines, by dimension. Collective over `communicator`.
// REQUIRES  every rank gives the same dimensions
// ERRORS    INVALID_ARGUMENT     a name is empty or given twice, a size is not positive, or the sizes do not multiply to the
//                                number of ranks
//           FAILED_PRECONDITION  the ranks gave different dimensions; the same error on all of them
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> SplitIntoMesh(Communicator* communicator,
                                                                         absl::Span<const MeshDimension> dimensions);

}  // namespace lockstep

#endif  // COMM_MESH_H_
