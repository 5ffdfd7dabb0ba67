#include "capi/hook.h"

#include <atomic>
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
#include "base/device/device.h"
#include "base/fork.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/tensor.h"
#include "comm/communicator.h"
#include "reducer/sparse/sparse_gradient.h"

// Owned by the hook, one for each index, used again in each step; and by a completion that is not called yet.
struct lockstep_hook_bucket {
  uint64_t fork_generation = lockstep::ForkGeneration();
  // To a hook_start whose completion is not called yet. Cleared with release: the hook's use of the handle comes before the next one.
  std::atomic<bool> lent{false};
  lockstep::HookBucket* bucket = nullptr;
  lockstep_communicator communicator;
  int64_t elements = 0;  // the shapes of what is given out
  std::vector<int64_t> slot_elements;
};

struct lockstep_hook_completion {
  std::shared_ptr<lockstep::HookCompletion> completion;
  std::shared_ptr<lockstep_hook_bucket> bucket;  // whose communicator may be called late
};

// Where lookup by argument finds it.
static absl::Status CheckUsable(const lockstep_hook_bucket* bucket) {
  return lockstep::capi::CheckHandle(bucket, "bucket", "bucket");
}

namespace {

using lockstep::capi::Guard;
using lockstep::capi::InCallback;
using lockstep::capi::NullArgument;
using lockstep::capi::TakeError;
using lockstep::capi::ToTensorView;

// The handles of a reducer's buckets. Used by whichever thread issues hooks, one at a time.
class BucketHandles {
 public:
  explicit BucketHandles(const std::shared_ptr<lockstep::World>* world) : world_(world) {}

  std::shared_ptr<lockstep_hook_bucket> For(lockstep::HookBucket& bucket, bool stream_ordered) {
    if (handles_.size() <= bucket.index) handles_.resize(bucket.index + 1);
    std::shared_ptr<lockstep_hook_bucket>& handle = handles_[bucket.index];
    // Not the handle of a step that failed, whose hook is not done yet.
    if (handle == nullptr || handle->lent.load(std::memory_order_acquire)) {
      handle = std::make_shared<lockstep_hook_bucket>();
    }
    handle->lent.store(!stream_ordered, std::memory_order_relaxed);  // the completion that clears it is made later
    handle->bucket = &bucket;
    handle->communicator.world = *world_;
    // A part goes before its world.
    handle->communicator.borrowed = std::shared_ptr<lockstep::Communicator>(
        bucket.communicator.get(), [world = *world_, part = bucket.communicator](void*) mutable { part.reset(); });
    handle->communicator.hook_bucket = stream_ordered ? handle.get() : nullptr;
    handle->elements = static_cast<int64_t>(bucket.elements);
    handle->slot_elements.clear();
    for (const auto& slot : bucket.plan->slots) handle->slot_elements.push_back(static_cast<int64_t>(slot.elements));
    return handle;
  }

 private:
  const std::shared_ptr<lockstep::World>* const world_;
  std::vector<std::shared_ptr<lockstep_hook_bucket>> handles_;
};

// What the calling thread issues at the moment, inside hook_issue.
struct Issuing {
  const lockstep_hook_bucket* bucket = nullptr;
  lockstep::Stream* stream = nullptr;
  const void* stream_handle = nullptr;  // as the hook was given it
};
thread_local Issuing issuing;

class StreamOrderedHook : public lockstep::CommHook {
 public:
  StreamOrderedHook(std::string name, lockstep_hook_issue issue, void* context,
                    const std::shared_ptr<lockstep::World>* world)
      : name_(std::move(name)), issue_(issue), context_(context), handles_(world) {}

  std::string name() const override { return name_; }

  absl::Status Issue(lockstep::HookBucket& bucket, lockstep::Stream& stream) override {
    lockstep_hook_bucket* const handle = handles_.For(bucket, /*stream_ordered=*/true).get();
    const lockstep_stream given = lockstep::capi::ToStream(stream);
    issuing = {handle, &stream, given.handle};
    absl::Status issued =
        InCallback([&] { return TakeError(issue_(context_, handle, &handle->communicator, &given)); });
    issuing = {};
    return issued;
  }

 private:
  const std::string name_;
  const lockstep_hook_issue issue_;
  void* const context_;
  BucketHandles handles_;
};

absl::StatusOr<lockstep::Stream*> StreamOf(const lockstep_hook_bucket* bucket) {
  LOCKSTEP_RETURN_IF_ERROR(CheckUsable(bucket));
  if (issuing.bucket == bucket) return issuing.stream;
  return absl::FailedPreconditionError("only hook_issue may enqueue on a bucket's stream, until it returns");
}

// A vector in the bucket, which borrows its one extent.
lockstep_tensor VectorAt(const lockstep::HookBucket& bucket, size_t offset, const int64_t* elements) {
  lockstep_tensor tensor = {};
  tensor.data = static_cast<char*>(bucket.data) + offset * lockstep::SizeOf(bucket.dtype);
  tensor.shape = elements;
  tensor.dimensions = 1;
  tensor.dtype = lockstep::capi::FromDType(bucket.dtype);
  tensor.device_kind = static_cast<int32_t>(bucket.plan->device.kind);
  tensor.device_index = bucket.plan->device.index;
  return tensor;
}

}  // namespace

namespace lockstep::capi {

int& Callbacks() {
  static thread_local int callbacks = 0;
  return callbacks;
}

absl::StatusOr<std::shared_ptr<CommHook>> MakeCallbackHook(const lockstep_reducer_options& options,
                                                           const std::shared_ptr<World>* world) {
  if ((options.hook_issue == nullptr) == (options.hook_start == nullptr)) {
    return absl::InvalidArgumentError("LOCKSTEP_HOOK_CALLBACK takes one of hook_issue and hook_start");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto given, ReadTimeout(options.hook_timeout_ms, "hook_timeout_ms"));
  const std::string name = options.hook_name == nullptr ? "callback" : options.hook_name;
  void* const context = options.hook_context;
  if (options.hook_issue != nullptr) {
    return std::make_shared<StreamOrderedHook>(name, options.hook_issue, context, world);
  }
  constexpr std::chrono::milliseconds kTimeout{1800000};
  const auto handles = std::make_shared<BucketHandles>(world);
  const lockstep_hook_start start = options.hook_start;
  return std::shared_ptr<CommHook>(
      MakeHostCompletedHook(name, given.count() == 0 ? kTimeout : given,
                            [handles, start, context](HookBucket& bucket, std::shared_ptr<HookCompletion> completion) {
                              const auto handle = handles->For(bucket, /*stream_ordered=*/false);
                              auto* const told = new lockstep_hook_completion{std::move(completion), handle};
                              InCallback([&] { start(context, handle.get(), &handle->communicator, told); });
                            }));
}

absl::Status EnqueueForHook(lockstep_hook_bucket* handle, const lockstep_stream* stream, CollectiveRequest request) {
  LOCKSTEP_ASSIGN_OR_RETURN(Stream* const on, StreamOf(handle));
  if (stream == nullptr || stream->handle != issuing.stream_handle) {
    return absl::FailedPreconditionError("a collective of a hook_issue goes on the stream that it was given");
  }
  HookBucket* const bucket = handle->bucket;
  request.background = true;
  // The caller's arrays go when the hook returns, which is before the stream comes to the call. They live as long as `done` does.
  std::vector<int64_t> counts(request.counts.begin(), request.counts.end());
  std::vector<int64_t> output_counts(request.output_counts.begin(), request.output_counts.end());
  request.counts = counts;
  request.output_counts = output_counts;
  // After a failure on this rank too: the other ranks do not know of it yet, and carry this out. On a device it is told
  // well before the stream comes to it, whose work sets the bucket's status.
  auto done = [bucket, counts = std::move(counts),
               output_counts = std::move(output_counts)](const absl::Status& status) {
    if (!status.ok()) bucket->status.Update(status);
  };
  return bucket->communicator->Enqueue(request, on, std::move(done));
}

}  // namespace lockstep::capi

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
  return Guard(bucket, [&]() -> absl::Status {
    if (out_tensor == nullptr) return NullArgument("out_tensor");
    *out_tensor = VectorAt(*bucket->bucket, 0, &bucket->elements);
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_hook_bucket_gradient(const lockstep_hook_bucket* bucket, size_t slot, size_t* out_parameter,
                                              lockstep_tensor* out_tensor) {
  return Guard(bucket, [&]() -> absl::Status {
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

lockstep_error* lockstep_hook_bucket_set_result(lockstep_hook_bucket* bucket, const lockstep_tensor* result) {
  return Guard(bucket, [&]() -> absl::Status {
    // On a device the copy of the averages is issued when hook_issue returns, and does not wait for hook_start.
    if (bucket->bucket->plan->device.kind != lockstep::DeviceKind::kHost && issuing.bucket != bucket) {
      return absl::FailedPreconditionError("a result on a device is set by hook_issue, before it returns");
    }
    LOCKSTEP_ASSIGN_OR_RETURN(bucket->bucket->result, ToTensorView(result, "result"));
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_hook_bucket_rows(const lockstep_hook_bucket* bucket, const int64_t** out_rows,
                                          const void** out_values, size_t* out_row_count, int32_t* out_sparse) {
  return Guard(bucket, [&]() -> absl::Status {
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

lockstep_error* lockstep_hook_bucket_set_rows(lockstep_hook_bucket* bucket, const int64_t* rows, const void* values,
                                              size_t row_count) {
  return Guard(bucket, [&]() -> absl::Status {
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

lockstep_error* lockstep_hook_bucket_run(lockstep_hook_bucket* bucket, lockstep_hook_function function, void* context) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Stream* const stream, StreamOf(bucket));
    if (function == nullptr) return NullArgument("function");
    return stream->Enqueue([bucket, function, context]() {
      absl::Status& status = bucket->bucket->status;
      if (status.ok()) status = InCallback([&] { return TakeError(function(context, bucket)); });
      return absl::OkStatus();
    });
  });
}

void lockstep_hook_complete(lockstep_hook_completion* completion, lockstep_error* error) {
  const absl::Status status = TakeError(error);
  if (completion == nullptr) return;
  completion->bucket->lent.store(false, std::memory_order_release);
  completion->completion->Done(status);
  delete completion;
}
