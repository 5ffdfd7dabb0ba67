#include "capi/hook.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/fork.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "capi/collective_options.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/tensor.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "reducer/sparse_gradient.h"

// Owned by the hook, one for each index, used again in each step.
struct lockstep_hook_bucket {
  uint64_t fork_generation = lockstep::ForkGeneration();
  lockstep::HookBucket* bucket = nullptr;
  lockstep_communicator communicator;
  int64_t elements = 0;  // the shapes of what is given out
  std::vector<int64_t> slot_elements;
};

struct lockstep_hook_completion {
  std::shared_ptr<lockstep::HookCompletion> completion;
};

namespace {

using lockstep::CollectiveRequest;
using lockstep::Communicator;
using lockstep::Rank;
using lockstep::ReduceOp;
using lockstep::TensorView;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;
using lockstep::capi::TakeError;
using lockstep::capi::ToTensorView;

// The handles of a reducer's buckets. Used by whichever thread issues hooks, one at a time.
class BucketHandles {
 public:
  explicit BucketHandles(const std::shared_ptr<lockstep::World>* world) : world_(world) {}

  lockstep_hook_bucket* For(lockstep::HookBucket& bucket) {
    while (handles_.size() <= bucket.index) handles_.push_back(std::make_unique<lockstep_hook_bucket>());
    lockstep_hook_bucket* const handle = handles_[bucket.index].get();
    handle->bucket = &bucket;
    handle->communicator.world = *world_;
    handle->communicator.borrowed = bucket.communicator;
    handle->elements = static_cast<int64_t>(bucket.elements);
    handle->slot_elements.clear();
    for (const auto& slot : bucket.plan->slots) handle->slot_elements.push_back(static_cast<int64_t>(slot.elements));
    return handle;
  }

 private:
  const std::shared_ptr<lockstep::World>* const world_;
  std::vector<std::unique_ptr<lockstep_hook_bucket>> handles_;
};

// What the calling thread issues at the moment, inside hook_issue.
struct Issuing {
  const lockstep_hook_bucket* bucket = nullptr;
  lockstep::Stream* stream = nullptr;
};
thread_local Issuing issuing;

class StreamOrderedHook : public lockstep::CommHook {
 public:
  StreamOrderedHook(std::string name, lockstep_hook_function issue, void* context,
                    const std::shared_ptr<lockstep::World>* world)
      : name_(std::move(name)), issue_(issue), context_(context), handles_(world) {}

  std::string name() const override { return name_; }

  absl::Status Issue(lockstep::HookBucket& bucket, lockstep::Stream& stream) override {
    lockstep_hook_bucket* const handle = handles_.For(bucket);
    issuing = {handle, &stream};
    absl::Status issued = TakeError(issue_(context_, handle));
    issuing = {};
    return issued;
  }

 private:
  const std::string name_;
  const lockstep_hook_function issue_;
  void* const context_;
  BucketHandles handles_;
};

absl::Status CheckUsable(const lockstep_hook_bucket* bucket) {
  if (bucket == nullptr) return NullArgument("bucket");
  return lockstep::capi::CheckNotForked(bucket->fork_generation, "bucket");
}

absl::StatusOr<lockstep::Stream*> StreamOf(const lockstep_hook_bucket* bucket) {
  LOCKSTEP_RETURN_IF_ERROR(CheckUsable(bucket));
  if (issuing.bucket == bucket) return issuing.stream;
  return absl::FailedPreconditionError("only hook_issue may enqueue on a bucket's stream, until it returns");
}

// What every collective of a hook does around its own arguments: `build` makes the request.
template <typename Build>
lockstep_error* Enqueue(lockstep_hook_bucket* handle, const lockstep_collective_options* options, Build&& build) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Stream* const stream, StreamOf(handle));
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep_collective_options given, lockstep::capi::ReadCollectiveOptions(options));
    if (given.prepare != 0) return absl::InvalidArgumentError("a hook's collective cannot be prepared");
    lockstep::HookBucket* const bucket = handle->bucket;
    LOCKSTEP_ASSIGN_OR_RETURN(CollectiveRequest request, build(*bucket->communicator));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ApplyOptions(given, &request));
    request.background = true;
    // After a failure on this rank too: the other ranks do not know of it yet, and carry this out. On a device it is told
    // well before the stream comes to it, whose work sets the bucket's status.
    return bucket->communicator->Enqueue(request, stream, [bucket](const absl::Status& status) {
      if (!status.ok()) bucket->status.Update(status);
    });
  });
}

// A vector in the bucket, which borrows its one extent.
lockstep_tensor VectorAt(const lockstep::HookBucket& bucket, size_t offset, const int64_t* elements) {
  lockstep_tensor tensor = {};
  tensor.data = static_cast<char*>(bucket.data) + offset * lockstep::SizeOf(bucket.dtype);
  tensor.shape = elements;
  tensor.dimensions = 1;
  tensor.dtype = static_cast<int32_t>(bucket.dtype);
  tensor.device_kind = static_cast<int32_t>(bucket.plan->device.kind);
  tensor.device_index = bucket.plan->device.index;
  return tensor;
}

}  // namespace

namespace lockstep {
namespace capi {

absl::StatusOr<std::shared_ptr<CommHook>> MakeCallbackHook(const lockstep_reducer_options& options,
                                                           const std::shared_ptr<World>* world) {
  if ((options.hook_issue == nullptr) == (options.hook_start == nullptr)) {
    return absl::InvalidArgumentError("LOCKSTEP_HOOK_CALLBACK takes one of hook_issue and hook_start");
  }
  if (options.hook_timeout_ms < 0) return absl::InvalidArgumentError("hook_timeout_ms is negative");
  const std::string name = options.hook_name == nullptr ? "callback" : options.hook_name;
  void* const context = options.hook_context;
  if (options.hook_issue != nullptr) {
    return std::make_shared<StreamOrderedHook>(name, options.hook_issue, context, world);
  }
  constexpr std::chrono::milliseconds kTimeout{1800000};
  const std::chrono::milliseconds given(options.hook_timeout_ms);
  const auto handles = std::make_shared<BucketHandles>(world);
  const lockstep_hook_start start = options.hook_start;
  return std::shared_ptr<CommHook>(
      MakeHostCompletedHook(name, given.count() == 0 ? kTimeout : given,
                            [handles, start, context](HookBucket& bucket, std::shared_ptr<HookCompletion> completion) {
                              start(context, handles->For(bucket), new lockstep_hook_completion{std::move(completion)});
                            }));
}

}  // namespace capi
}  // namespace lockstep

size_t lockstep_hook_bucket_index(const lockstep_hook_bucket* bucket) {
  return bucket == nullptr ? 0 : bucket->bucket->index;
}

size_t lockstep_hook_bucket_count(const lockstep_hook_bucket* bucket) {
  return bucket == nullptr ? 0 : bucket->bucket->count;
}

int64_t lockstep_hook_bucket_step(const lockstep_hook_bucket* bucket) {
  return bucket == nullptr ? 0 : static_cast<int64_t>(bucket->bucket->step);
}

size_t lockstep_hook_bucket_gradient_count(const lockstep_hook_bucket* bucket) {
  return bucket == nullptr ? 0 : bucket->slot_elements.size();
}

lockstep_error* lockstep_hook_bucket_tensor(const lockstep_hook_bucket* bucket, lockstep_tensor* out_tensor) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(bucket));
    if (out_tensor == nullptr) return NullArgument("out_tensor");
    *out_tensor = VectorAt(*bucket->bucket, 0, &bucket->elements);
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_hook_bucket_gradient(const lockstep_hook_bucket* bucket, size_t slot, size_t* out_parameter,
                                              lockstep_tensor* out_tensor) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(bucket));
    const auto& slots = bucket->bucket->plan->slots;
    if (slot >= slots.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("gradient ", slot, " is out of range: the bucket has ", slots.size()));
    }
    if (out_parameter != nullptr) *out_parameter = slots[slot].parameter;
    if (out_tensor == nullptr) return absl::OkStatus();
    *out_tensor = VectorAt(*bucket->bucket, slots[slot].offset, &bucket->slot_elements[slot]);
    return absl::OkStatus();
  });
}

lockstep_communicator* lockstep_hook_bucket_communicator(const lockstep_hook_bucket* bucket) {
  return bucket == nullptr ? nullptr : &const_cast<lockstep_hook_bucket*>(bucket)->communicator;
}

lockstep_error* lockstep_hook_set_result(lockstep_hook_bucket* bucket, const lockstep_tensor* result) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(bucket));
    LOCKSTEP_ASSIGN_OR_RETURN(bucket->bucket->result, ToTensorView(result, "result"));
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_hook_bucket_rows(const lockstep_hook_bucket* bucket, const int64_t** out_rows,
                                          const void** out_values, size_t* out_row_count, int32_t* out_sparse) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(bucket));
    if (out_rows == nullptr) return NullArgument("out_rows");
    if (out_values == nullptr) return NullArgument("out_values");
    if (out_row_count == nullptr) return NullArgument("out_row_count");
    const lockstep::SparseGradient none;
    const lockstep::SparseGradient* const sparse = bucket->bucket->sparse;
    const lockstep::SparseGradient& given = sparse == nullptr ? none : *sparse;
    *out_rows = given.indices.data();
    *out_values = given.values;
    *out_row_count = given.indices.size();
    if (out_sparse != nullptr) *out_sparse = sparse == nullptr ? 0 : 1;
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_hook_set_rows(lockstep_hook_bucket* bucket, const int64_t* rows, const void* values,
                                       size_t row_count) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(bucket));
    if (bucket->bucket->sparse == nullptr) {
      return absl::FailedPreconditionError("the bucket is not that of a sparse parameter");
    }
    if (rows == nullptr && row_count > 0) return NullArgument("rows");
    lockstep::SparseGradient left = *bucket->bucket->sparse;
    left.indices = absl::MakeConstSpan(rows, row_count);
    left.values = values;
    LOCKSTEP_ASSIGN_OR_RETURN(bucket->bucket->sparse_result, lockstep::Coalesce(left, 1));
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_hook_all_reduce(lockstep_hook_bucket* bucket, const lockstep_tensor* input,
                                         const lockstep_tensor* output, lockstep_reduce_op op,
                                         const lockstep_collective_options* options) {
  return Enqueue(bucket, options, [&](const Communicator&) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    LOCKSTEP_ASSIGN_OR_RETURN(const ReduceOp reduce_op, lockstep::capi::ToReduceOp(op));
    return lockstep::AllReduceRequest(in, out, reduce_op);
  });
}

lockstep_error* lockstep_hook_broadcast(lockstep_hook_bucket* bucket, const lockstep_tensor* tensor, int32_t root,
                                        const lockstep_collective_options* options) {
  return Enqueue(bucket, options, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView view, ToTensorView(tensor, "tensor"));
    return lockstep::BroadcastRequest(ranks, view, Rank(root));
  });
}

lockstep_error* lockstep_hook_all_gather(lockstep_hook_bucket* bucket, const lockstep_tensor* input,
                                         const lockstep_tensor* output, const lockstep_collective_options* options) {
  return Enqueue(bucket, options, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    return lockstep::AllGatherRequest(ranks, in, out);
  });
}

lockstep_error* lockstep_hook_reduce_scatter(lockstep_hook_bucket* bucket, const lockstep_tensor* input,
                                             const lockstep_tensor* output, lockstep_reduce_op op,
                                             const lockstep_collective_options* options) {
  return Enqueue(bucket, options, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    LOCKSTEP_ASSIGN_OR_RETURN(const ReduceOp reduce_op, lockstep::capi::ToReduceOp(op));
    return lockstep::ReduceScatterRequest(ranks, in, out, reduce_op);
  });
}

lockstep_error* lockstep_hook_all_to_all(lockstep_hook_bucket* bucket, const lockstep_tensor* input,
                                         const lockstep_tensor* output, const lockstep_collective_options* options) {
  return Enqueue(bucket, options, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    return lockstep::AllToAllRequest(ranks, in, out);
  });
}

lockstep_error* lockstep_hook_run(lockstep_hook_bucket* bucket, lockstep_hook_function function, void* context) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Stream* const stream, StreamOf(bucket));
    if (function == nullptr) return NullArgument("function");
    return stream->Enqueue([bucket, function, context]() {
      absl::Status& status = bucket->bucket->status;
      if (status.ok()) status = TakeError(function(context, bucket));
      return absl::OkStatus();
    });
  });
}

void lockstep_hook_complete(lockstep_hook_completion* completion, lockstep_error* error) {
  const absl::Status status = TakeError(error);
  if (completion == nullptr) return;
  completion->completion->Done(status);
  delete completion;
}
