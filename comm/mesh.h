// Mesh: the ranks of a communicator as a grid of named dimensions ("dp" by "tp"), with a communicator for each line of it.
//
// Rank r has the coordinates of the r-th cell in row-major order: the last dimension changes fastest. A line along a dimension is the
// ranks that differ in that coordinate alone. They share a communicator, in which a rank's number is its coordinate.
//
// Thread-safe, as the communicators are. Owns them; destroy it before the world.

#ifndef COMM_MESH_H_
#define COMM_MESH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "comm/communicator.h"

namespace lockstep {

struct MeshDimension {
  std::string name;
  int size = 1;
};

class Mesh {
 public:
  // Makes this rank's communicators. Collective over `communicator`.
  // REQUIRES  every rank gives the same dimensions
  // ERRORS    INVALID_ARGUMENT     a name is empty or given twice, a size is not positive, or the sizes do not multiply to the
  //                                number of ranks
  //           FAILED_PRECONDITION  the ranks gave different dimensions; the same error on all of them
  static absl::StatusOr<std::unique_ptr<Mesh>> Create(Communicator* communicator,
                                                      absl::Span<const MeshDimension> dimensions);

  absl::Span<const MeshDimension> dimensions() const { return dimensions_; }
  // This rank's, by dimension.
  absl::Span<const int> coordinates() const { return coordinates_; }

  // The communicator of this rank's line along a dimension. NOT_FOUND for an unknown name, listing the known ones.
  absl::StatusOr<Communicator*> Along(absl::string_view dimension) const;
  // Moves that communicator to the caller. It may outlive the mesh, which then no longer has it.
  absl::StatusOr<std::unique_ptr<Communicator>> Take(absl::string_view dimension);

 private:
  explicit Mesh(absl::Span<const MeshDimension> dimensions) : dimensions_(dimensions.begin(), dimensions.end()) {}

  absl::StatusOr<size_t> Find(absl::string_view dimension) const;

  const std::vector<MeshDimension> dimensions_;
  std::vector<int> coordinates_;
  std::vector<std::unique_ptr<Communicator>> lines_;  // by dimension
};

}  // namespace lockstep

#endif  // COMM_MESH_H_
