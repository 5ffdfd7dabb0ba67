#include "comm/mesh.h"

#include <cstdint>
#include <utility>

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

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> SplitIntoMesh(Communicator* communicator,
                                                                         absl::Span<const MeshDimension> dimensions) {
  LOCKSTEP_RETURN_IF_ERROR(Check(dimensions, communicator->size()));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> given, AllGatherBytes(communicator, ToString(dimensions)));
  for (size_t rank = 1; rank < given.size(); ++rank) {
    if (given[rank] == given[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("mesh: rank 0 gives ", given[0], " and rank ", rank, " gives ", given[rank]));
  }
  std::vector<std::unique_ptr<Communicator>> lines;
  const int rank = communicator->rank().value();
  int stride = communicator->size();
  for (const MeshDimension& dimension : dimensions) {
    stride /= dimension.size;
    const int coordinate = rank / stride % dimension.size;
    // The rank of the line's first cell tells it from the others.
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> line,
                              communicator->Split(rank - coordinate * stride, coordinate));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace lockstep
