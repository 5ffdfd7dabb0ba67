// Converts the reducer's table and options from the C ABI.

#ifndef CAPI_REDUCER_OPTIONS_H_
#define CAPI_REDUCER_OPTIONS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capi/lockstep.h"
#include "comm/world/world.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"

namespace lockstep::capi {

// Errors name the parameter, and `name` the argument.
absl::StatusOr<std::vector<Parameter>> ToParameters(const lockstep_parameter* parameters, size_t count,
                                                    const std::string& name = "parameters");

// INVALID_ARGUMENT for a value that its field does not have, and for fields that exclude each other. `world` as in capi/hook.h.
absl::StatusOr<ReducerOptions> ToReducerOptions(const lockstep_reducer_options& given,
                                                const std::shared_ptr<World>* world);

}  // namespace lockstep::capi

#endif  // CAPI_REDUCER_OPTIONS_H_
