#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "reducer/reducer.h"
#include "reducer/sparse/sparse_gradient.h"

using lockstep::capi::FindStream;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;

lockstep_error* lockstep_reducer_mark_ready_sparse(lockstep_reducer* reducer, size_t index, const int64_t* rows,
                                                   size_t row_count, const lockstep_tensor* values,
                                                   const lockstep_stream* stream) {
  return Guard(reducer, [&]() -> absl::Status {
    const auto on = FindStream(*reducer, stream);
    const auto view = lockstep::capi::ToTensorView(values, "values");
    absl::Status read = rows == nullptr && row_count > 0 ? NullArgument("rows") : absl::OkStatus();
    read.Update(on.status());
    read.Update(view.status());
    if (!read.ok()) return reducer->reducer->RefuseMark(index, read);
    return reducer->reducer->MarkReadySparse(index, absl::MakeConstSpan(rows, row_count), *view, *on);
  });
}

lockstep_error* lockstep_reducer_averaged_rows(lockstep_reducer* reducer, size_t index, const int64_t** out_rows,
                                               const void** out_values, size_t* out_row_count, int32_t* out_used) {
  return Guard(reducer, [&]() -> absl::Status {
    if (out_rows == nullptr) return NullArgument("out_rows");
    if (out_values == nullptr) return NullArgument("out_values");
    if (out_row_count == nullptr) return NullArgument("out_row_count");
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::CoalescedGradient* const average,
                              reducer->reducer->SparseAverageOf(index));
    const bool used = average != nullptr;
    *out_rows = used ? average->indices.data() : nullptr;
    *out_values = used ? average->values.data() : nullptr;
    *out_row_count = used ? average->indices.size() : 0;
    if (out_used != nullptr) *out_used = used ? 1 : 0;
    return absl::OkStatus();
  });
}
