#include "capi/collective_options.h"

#include <chrono>

#include "base/status.h"
#include "capi/error.h"
#include "comm/schedule.h"

namespace lockstep {
namespace capi {

absl::StatusOr<lockstep_collective_options> ReadCollectiveOptions(const lockstep_collective_options* options) {
  lockstep_collective_options given = {};
  LOCKSTEP_RETURN_IF_ERROR(ReadOptions(options, "lockstep_collective_options", &given));
  if (given.timeout_ms < 0) return absl::InvalidArgumentError("timeout_ms is negative");
  return given;
}

absl::Status ApplyOptions(const lockstep_collective_options& given, CollectiveRequest* request) {
  request->timeout = std::chrono::milliseconds(given.timeout_ms);
  request->factor = given.factor;
  if (given.algorithm == nullptr) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(request->algorithm, ParseAlgorithm(given.algorithm));
  return absl::OkStatus();
}

}  // namespace capi
}  // namespace lockstep

void lockstep_collective_options_init(lockstep_collective_options* options) {
  if (options == nullptr) return;
  *options = lockstep_collective_options{};
  options->struct_size = sizeof(*options);
}
