// What the options of a collective call say, read and taken over into a request.

#ifndef CAPI_COLLECTIVE_OPTIONS_H_
#define CAPI_COLLECTIVE_OPTIONS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "capi/lockstep.h"
#include "comm/communicator.h"

namespace lockstep {
namespace capi {

// NULL is all defaults. INVALID_ARGUMENT for a struct that was not initialised or a negative timeout; UNIMPLEMENTED for a stream and
// for a field of a newer version.
absl::StatusOr<lockstep_collective_options> ReadCollectiveOptions(const lockstep_collective_options* options);

// Timeout, factor and algorithm. INVALID_ARGUMENT for an algorithm that there is not.
absl::Status ApplyOptions(const lockstep_collective_options& given, CollectiveRequest* request);

}  // namespace capi
}  // namespace lockstep

#endif  // CAPI_COLLECTIVE_OPTIONS_H_
