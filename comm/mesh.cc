#include "comm/mesh.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "comm/byte_objects.h"

namespace lockstep {
namespace {

// "dp=2 x tp=4".
std::string ToString(absl::Span<const MeshDimension> dimensions) {
  return absl::StrJoin(dimensions, " x ", [](std::string* out, const MeshDimension& dimension) {
    absl::StrAppend(out, dimension.name, "=", dimension.size);
  });
}

absl::Status Check(absl::Span<const MeshDimension> dimensions, int ranks) {
  int64_t cells = 1;
  for (size_t i = 0; i < dimensions.size(); ++i) {
    const MeshDimension& dimension = dimensions[i];
    if (dimension.name.empty()) return absl::InvalidArgumentError(absl::StrCat("mesh: dimension ", i, " has no name"));
    if (dimension.size < 1) {
      return absl::InvalidArgumentError(absl::StrCat("mesh: '", dimension.name, "' has size ", dimension.size));
    }
    for (size_t k = 0; k < i; ++k) {
      if (dimensions[k].name == dimension.name) {
        return absl::InvalidArgumentError(absl::StrCat("mesh: two dimensions are called '", dimension.name, "'"));
      }
    }
    // Each is at most the number of ranks, so this does not overflow.
    if (cells <= ranks) cells *= dimension.size;
  }
  if (cells == ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("mesh: ", ToString(dimensions), " are not as many cells as the ", ranks, " ranks"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mesh>> Mesh::Create(Communicator* communicator,
                                                   absl::Span<const MeshDimension> dimensions) {
  LOCKSTEP_RETURN_IF_ERROR(Check(dimensions, communicator->size()));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> given, AllGatherBytes(communicator, ToString(dimensions)));
  for (size_t rank = 1; rank < given.size(); ++rank) {
    if (given[rank] == given[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("mesh: rank 0 gives ", given[0], " and rank ", rank, " gives ", given[rank]));
  }
  std::unique_ptr<Mesh> mesh(new Mesh(dimensions));
  mesh->coordinates_.resize(dimensions.size());
  int rest = communicator->rank().value();
  for (size_t i = dimensions.size(); i-- > 0;) {
    mesh->coordinates_[i] = rest % dimensions[i].size;
    rest /= dimensions[i].size;
  }
  int stride = communicator->size();
  for (size_t i = 0; i < dimensions.size(); ++i) {
    stride /= dimensions[i].size;
    // The rank of the line's first cell tells it from the others.
    const int first = communicator->rank().value() - mesh->coordinates_[i] * stride;
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> line, communicator->Split(first, mesh->coordinates_[i]));
    mesh->lines_.push_back(std::move(line));
  }
  return mesh;
}

absl::StatusOr<size_t> Mesh::Find(absl::string_view dimension) const {
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].name != dimension) continue;
    if (lines_[i] != nullptr) return i;
    return absl::FailedPreconditionError(absl::StrCat("mesh: the communicator along '", dimension, "' was taken"));
  }
  return absl::NotFoundError(
      absl::StrCat("mesh: no dimension is called '", dimension, "'; it is ", ToString(dimensions_)));
}

absl::StatusOr<Communicator*> Mesh::Along(absl::string_view dimension) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const size_t index, Find(dimension));
  return lines_[index].get();
}

absl::StatusOr<std::unique_ptr<Communicator>> Mesh::Take(absl::string_view dimension) {
  LOCKSTEP_ASSIGN_OR_RETURN(const size_t index, Find(dimension));
  return std::move(lines_[index]);
}

}  // namespace lockstep
