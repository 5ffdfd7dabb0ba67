// Compares tables of parameters (or other tensors) and settings across ranks.

#ifndef REDUCER_PLAN_AGREEMENT_H_
#define REDUCER_PLAN_AGREEMENT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "comm/communicator.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

// Collective. `local` is the error in this rank's own arguments, or OK. RETURNS OK if no rank has an error and all are
// equal. Otherwise a rank with an error of its own returns that. All others return the same FAILED_PRECONDITION: it
// names the lowest rank with an error, the first difference from rank 0's table, or the settings that differ and the
// ranks that have them. `settings` are for people: "average: before; hook: none; ...", named as the embedder knows
// them. `by_holder` as in CollectiveRequest. `what` says which table differs, if it is not that of the gradients.
absl::Status AgreeOnParameters(Communicator& communicator, const absl::Status& local, const std::string& settings,
                               absl::Span<const Parameter> parameters, bool by_holder = false,
                               absl::string_view what = "");

// The same for tensors without names whose bytes are to be copied between ranks. Strides are compared, too. A tensor of
// this rank that is not dense memory of the host or of the communicator's device is INVALID_ARGUMENT. `what` names the
// tensors in messages.
absl::Status AgreeOnTensors(Communicator& communicator, const absl::Status& local, absl::string_view what,
                            const std::string& settings, absl::Span<const TensorView> tensors);

}  // namespace lockstep

#endif  // REDUCER_PLAN_AGREEMENT_H_
