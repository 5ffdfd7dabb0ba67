// The comparison of replicas that is called by itself. Reducers do theirs (capi/reducer.cc).

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/reducer_options.h"
#include "comm/communicator.h"
#include "reducer/plan/agreement.h"
#include "reducer/plan/parameter.h"
#include "reducer/replicas/compare_replicas.h"
#include "reducer/replicas/replica_hash.h"

namespace {

using lockstep::Parameter;

absl::Status Check(const lockstep::Communicator& communicator, absl::Span<const Parameter> tensors,
                   const void* const* data) {
  if (!tensors.empty() && data == nullptr) return lockstep::capi::NullArgument("data");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Parameter& tensor = tensors[i];
    const auto view = lockstep::GeometryOf(tensor);
    LOCKSTEP_RETURN_IF_ERROR(lockstep::Annotate(view.status(), lockstep::Describe(i, tensor)));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::CheckAddress(i, tensor, data[i]));
    const bool on_host = tensor.device.kind == lockstep::DeviceKind::kHost;
    if (on_host || (tensor.device == communicator.device() && view->dense())) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        lockstep::Describe(i, tensor), " is neither on the host nor dense memory of the communicator's device"));
  }
  return absl::OkStatus();
}

}  // namespace

lockstep_error* lockstep_check_replicas(lockstep_communicator* communicator, const lockstep_parameter* tensors,
                                        const void* const* data, size_t count) {
  return lockstep::capi::Guard(communicator, [&]() -> absl::Status {
    lockstep::Communicator& ranks = *communicator->get();
    const absl::StatusOr<std::vector<Parameter>> table = lockstep::capi::ToParameters(tensors, count, "tensors");
    // The other ranks are about to compare their tables with this one.
    absl::Status local = table.status();
    if (local.ok()) local = Check(ranks, *table, data);
    const absl::Span<const Parameter> rows = local.ok() ? absl::MakeConstSpan(*table) : absl::Span<const Parameter>();
    LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnParameters(ranks, local, "", rows));
    lockstep::CompareOptions options;
    options.device = ranks.accelerator();
    return lockstep::CompareReplicas(ranks, rows, absl::MakeConstSpan(data, count), options).status();
  });
}
