// Mesh: the ranks of a communicator as a grid of named dimensions ("dp" by "tp"), with a communicator for each line of it.
//
// Rank r has the coordinates of the r-th cell in row-major order: the last dimension changes fastest, so its neighbours are
// neighbouring ranks. Along a dimension, a rank shares a communicator with those that differ from it in that coordinate
// alone; its rank there is the coordinate.
//
// Thread-safe, as the communicators are. Owns them; they must be destroyed before the world.

#ifndef COMM_MESH_H_
#define COMM_MESH_H_

#include <memory>
#include <string>
#include <utility>
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
  // Collective over `communicator`; every rank gives the same dimensions. INVALID_ARGUMENT when a name is empty or given twice, a
  // size is not positive, or the sizes do not multiply to the number of ranks; FAILED_PRECONDITION, the same on all ranks,
  // when they give different dimensions.
  static absl::StatusOr<std::unique_ptr<Mesh>> Create(Communicator* communicator,
                                                      absl::Span<const MeshDimension> dimensions);

  absl::Span<const MeshDimension> dimensions() const { return dimensions_; }
  // By dimension, of this rank.
  absl::Span<const int> coordinates() const { return coordinates_; }

  // The communicator of this rank's line along a dimension; NOT_FOUND lists those that there are.
  absl::StatusOr<Communicator*> Along(absl::string_view dimension) const;
  // The same for a caller who is to own it and outlive the mesh: it is not to be had from here any more.
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
