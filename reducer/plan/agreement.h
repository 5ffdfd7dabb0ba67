// Whether all ranks have the same table of parameters (or other tensors) and settings, found out by collectives and told to
// all of them alike.

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

// Every rank calls it. `local` is what is wrong with this rank's own arguments, or OK. OK when nobody has a complaint. Otherwise a
// rank with a complaint of its own returns it, and all ranks whose arguments were good return the same FAILED_PRECONDITION naming
// the lowest rank that has one, the first difference from rank 0 of a table, or which ranks have which of the settings that differ.
// Those are for people: "average: before; hook: none; ...", named as the embedder knows them. `by_holder` as in CollectiveRequest.
absl::Status AgreeOnParameters(Communicator& communicator, const absl::Status& local, const std::string& settings,
                               absl::Span<const Parameter> parameters, bool by_holder = false);

// The same for tensors without names whose bytes are to be copied from rank to rank: strides are compared too, and a
// tensor of this rank's that is not dense memory on the host or the communicator's device is a complaint
// (INVALID_ARGUMENT). `what` they are for names them in messages.
absl::Status AgreeOnTensors(Communicator& communicator, const absl::Status& local, absl::string_view what,
                            const std::string& settings, absl::Span<const TensorView> tensors);

}  // namespace lockstep

#endif  // REDUCER_PLAN_AGREEMENT_H_
