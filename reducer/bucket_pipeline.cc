#include "reducer/bucket_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "reducer/sparse_all_gather.h"
#include "reducer/step_record.h"

namespace lockstep {
namespace {

absl::Status CheckResult(const HookBucket& bucket) {
  const TensorView& result = *bucket.result;
  const bool dtype_fits = IsComplex(bucket.dtype) ? result.dtype() == bucket.dtype : IsFloat(result.dtype());
  if (result.elements() == bucket.elements && result.contiguous() && dtype_fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("it returned ", result.ToString(), " for a bucket of ",
                                                 bucket.elements, " elements of ", Name(bucket.dtype)));
}

}  // namespace

BucketPipeline::BucketPipeline(Device* device, Communicator* communicator, absl::Span<const Parameter> parameters,
                               StepOutcome* outcome, StepRecorder* recorder, Settings settings)
    : device_(device),
      communicator_(communicator),
      parameters_(parameters),
      outcome_(outcome),
      recorder_(recorder),
      settings_(std::move(settings)) {}

BucketPipeline::~BucketPipeline() {
  // Closures on the streams point to this and to buckets.
  (void)Synchronize(Deadline::Infinite());
  // In the order in which work flows, so that no stream waits for one that is gone.
  copy_in_.reset();
  collective_.reset();
  copy_out_.reset();
  optimizer_.reset();
}

absl::Status BucketPipeline::CreateStreams() {
  LOCKSTEP_ASSIGN_OR_RETURN(copy_in_, device_->CreateStream("lockstep-in"));
  LOCKSTEP_ASSIGN_OR_RETURN(collective_, device_->CreateStream("lockstep-coll"));
  LOCKSTEP_ASSIGN_OR_RETURN(copy_out_, device_->CreateStream("lockstep-out"));
  if (!settings_.optimizer) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(optimizer_, device_->CreateStream("lockstep-opt"));
  LOCKSTEP_ASSIGN_OR_RETURN(optimized_event_, device_->CreateEvent());
  return absl::OkStatus();
}

absl::Status BucketPipeline::CreateEvents(Bucket& bucket) {
  LOCKSTEP_ASSIGN_OR_RETURN(bucket.copied_in, device_->CreateEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(bucket.all_reduced, device_->CreateEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(bucket.copied_out, device_->CreateEvent());
  return absl::OkStatus();
}

absl::Status BucketPipeline::RenewHookCommunicator() {
  if (settings_.hook == nullptr || !settings_.hook->communicates()) return absl::OkStatus();
  hook_communicator_.reset();
  LOCKSTEP_ASSIGN_OR_RETURN(hook_communicator_, communicator_->Duplicate());
  return absl::OkStatus();
}

void BucketPipeline::Begin(const Step& step) {
  step_ = step;
  hook_issue_failed_ = false;
  optimized_.clear();
}

absl::Status BucketPipeline::Launch(Bucket& bucket) {
  if (!bucket.staged.empty() || bucket.before() != nullptr) LOCKSTEP_RETURN_IF_ERROR(Stage(bucket));
  if (bucket.plan().sparse) bucket.TakeSparse(parameters_[bucket.plan().slots[0].parameter]);
  if (settings_.hook != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(EnqueueHook(bucket));
  } else {
    LOCKSTEP_RETURN_IF_ERROR(bucket.plan().sparse ? EnqueueSparse(bucket) : EnqueueReduction(bucket));
  }
  LOCKSTEP_RETURN_IF_ERROR(collective_->Record(bucket.all_reduced.get()));
  LOCKSTEP_RETURN_IF_ERROR(copy_out_->Wait(bucket.all_reduced.get()));
  LOCKSTEP_RETURN_IF_ERROR(copy_out_->Enqueue([this, &bucket] {
    recorder_->Began(Stage::kCopyOut, bucket.index());
    outcome_->Fail(CopyOut(bucket), bucket.index());
    recorder_->Ended(Stage::kCopyOut, bucket.index());
    return absl::OkStatus();
  }));
  LOCKSTEP_RETURN_IF_ERROR(copy_out_->Record(bucket.copied_out.get()));
  return optimizer_ == nullptr ? absl::OkStatus() : EnqueueOptimizer(bucket);
}

absl::Status BucketPipeline::Stage(Bucket& bucket) {
  while (bucket.stream_events.size() < bucket.streams.size()) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Event> event, device_->CreateEvent());
    bucket.stream_events.push_back(std::move(event));
  }
  for (size_t i = 0; i < bucket.streams.size(); ++i) {
    Event* const ready = bucket.stream_events[i].get();
    LOCKSTEP_RETURN_IF_ERROR(bucket.streams[i]->Record(ready));
    LOCKSTEP_RETURN_IF_ERROR(copy_in_->Wait(ready));
  }
  if (bucket.before() != nullptr) LOCKSTEP_RETURN_IF_ERROR(copy_in_->Wait(bucket.before()->copied_out.get()));
  LOCKSTEP_RETURN_IF_ERROR(copy_in_->Enqueue([this, &bucket] {
    recorder_->Began(Stage::kCopyIn, bucket.index());
    for (const Stream* stream : bucket.streams) {
      outcome_->Fail(Annotate(stream->status(), "the stream of a gradient failed"), bucket.index());
    }
    for (const size_t slot : bucket.staged) {
      outcome_->Fail(bucket.CopyIn(slot, settings_.factors.copy_in), bucket.index());
    }
    recorder_->Ended(Stage::kCopyIn, bucket.index());
    return absl::OkStatus();
  }));
  LOCKSTEP_RETURN_IF_ERROR(copy_in_->Record(bucket.copied_in.get()));
  return collective_->Wait(bucket.copied_in.get());
}

void BucketPipeline::WriteTail(Bucket& bucket, float one) {
  BucketTail tail = bucket.Tail(one);
  tail.Clear(bucket.slots.size());
  if (outcome_->Poisons(bucket.index())) tail.Set(BucketTail::kFailed);
  if (step_.joined) tail.Set(BucketTail::kJoined);
  if (!step_.planned) tail.Set(BucketTail::kUnplanned);
  for (size_t s = 0; s < bucket.slots.size(); ++s) {
    if (bucket.slots[s].used) tail.Set(BucketTail::Used(s));
  }
}

absl::Status BucketPipeline::EnqueueAllReduce(Bucket& bucket, size_t begin, size_t end, const AverageFactors& factors) {
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = bucket.plan().wire;
  request.op = factors.op;
  request.factor = factors.premultiply;
  request.count = end - begin;
  request.input = bucket.flat() + begin * SizeOf(request.dtype);
  request.output = bucket.flat() + begin * SizeOf(request.dtype);
  request.background = true;
  if (step_.joined) request.timeout = kJoinedTimeout;
  const int64_t bytes = static_cast<int64_t>(request.count * SizeOf(request.dtype));
  return communicator_->Enqueue(request, collective_.get(), [this, &bucket, bytes](const absl::Status& status) {
    bucket.reduced = status.ok();
    outcome_->FailCommunication(status);
    recorder_->Ended(Stage::kCollective, bucket.index());
    recorder_->Sent(bucket.index(), bytes);
  });
}

absl::Status BucketPipeline::EnqueueReduction(Bucket& bucket) {
  LOCKSTEP_RETURN_IF_ERROR(collective_->Enqueue([this, &bucket] {
    WriteTail(bucket, settings_.factors.one);
    recorder_->Began(Stage::kCollective, bucket.index());
    return absl::OkStatus();
  }));
  return EnqueueAllReduce(bucket, 0, bucket.plan().elements, settings_.factors);
}

absl::Status BucketPipeline::EnqueueSparse(Bucket& bucket) {
  LOCKSTEP_RETURN_IF_ERROR(collective_->Enqueue([this, &bucket] {
    recorder_->Began(Stage::kCollective, bucket.index());
    GatherSparse(bucket);
    WriteTail(bucket, sum_.one);
    return absl::OkStatus();
  }));
  return EnqueueAllReduce(bucket, bucket.plan().tail, bucket.plan().elements, sum_);
}

void BucketPipeline::GatherSparse(Bucket& bucket) {
  SparseOptions options;
  options.factor = settings_.factors.copy_in;
  options.background = true;
  if (step_.joined) options.timeout = kJoinedTimeout;
  auto average = AllGatherSparse(*communicator_, absl::OkStatus(), bucket.sparse, options);
  recorder_->Sent(bucket.index(),
                  static_cast<int64_t>(bucket.sparse.bytes() + bucket.sparse.indices.size() * sizeof(int64_t)));
  if (average.ok()) {
    bucket.sparse_average = *std::move(average);
  } else {
    outcome_->Fail(average.status(), bucket.index());
  }
}

absl::Status BucketPipeline::EnqueueHook(Bucket& bucket) {
  HookBucket& hooked = bucket.hooked;
  hooked = HookBucket();
  hooked.plan = &bucket.plan();
  hooked.index = bucket.index();
  hooked.count = step_.buckets;
  hooked.step = step_.number;
  hooked.dtype = bucket.plan().wire;
  hooked.data = bucket.flat();
  hooked.elements = bucket.plan().tail;
  hooked.communicator = hook_communicator_.get();
  if (bucket.plan().sparse) hooked.sparse = &bucket.sparse;
  if (settings_.opens_steps && bucket.index() == 0) LOCKSTEP_RETURN_IF_ERROR(EnqueueOpening());
  LOCKSTEP_RETURN_IF_ERROR(collective_->Enqueue([this, &bucket] {
    recorder_->Began(Stage::kCollective, bucket.index());
    return absl::OkStatus();
  }));
  // A hook that failed on this rank would meet the others' next one in the middle: it is not issued again in this step.
  if (!hook_issue_failed_) {
    const absl::Status issued = settings_.hook->Issue(hooked, *collective_);
    if (!issued.ok()) {
      hook_issue_failed_ = true;
      FailHook(bucket, issued);
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(collective_->Enqueue([this, &bucket] {
    FinishHook(bucket);
    WriteTail(bucket, sum_.one);
    return absl::OkStatus();
  }));
  return EnqueueAllReduce(bucket, bucket.plan().tail, bucket.plan().elements, sum_);
}

absl::Status BucketPipeline::EnqueueOpening() {
  CollectiveRequest request;
  request.collective = Collective::kBarrier;
  request.background = true;
  if (step_.joined) request.timeout = kJoinedTimeout;
  return communicator_->Enqueue(request, collective_.get(),
                                [this](const absl::Status& status) { outcome_->FailCommunication(status); });
}

void BucketPipeline::FailHook(Bucket& bucket, const absl::Status& status) {
  const std::string text =
      absl::StrCat("hook ", settings_.hook->name(), ", bucket ", bucket.index(), ": ", status.message());
  outcome_->Fail(absl::Status(status.code(), text), bucket.index());
  if (hook_communicator_ == nullptr) return;
  hook_communicator_->Abort(absl::StrCat("rank ", communicator_->rank().value(), ": ", text));
}

void BucketPipeline::FinishHook(Bucket& bucket) {
  HookBucket& hooked = bucket.hooked;
  absl::Status status = hooked.status;
  if (status.ok() && hooked.result.has_value()) status = CheckResult(hooked);
  if (status.ok() && bucket.plan().sparse) {
    absl::StatusOr<CoalescedGradient> left = hooked.sparse_result.has_value()
                                                 ? Coalesce(hooked.sparse_result->view(bucket.sparse.name), 1)
                                                 : Coalesce(bucket.sparse, 1);
    status = left.status();
    if (left.ok()) bucket.sparse_average = *std::move(left);
  }
  if (!status.ok()) FailHook(bucket, status);
}

double BucketPipeline::CopyOutFactor(int joined) const {
  if (!settings_.divide_by_live || joined == 0) return settings_.factors.copy_out;
  const int ranks = communicator_->size();
  return settings_.factors.copy_out * ranks / std::max(1, ranks - joined);
}

absl::Status BucketPipeline::CopyOut(Bucket& bucket) {
  if (!bucket.reduced) return absl::OkStatus();
  const BucketTail tail = bucket.Tail(1);
  // Nobody may step on what is not an average.
  bucket.failed = tail.Count(BucketTail::kFailed);
  bucket.joined = tail.Count(BucketTail::kJoined);
  bucket.unplanned = tail.Count(BucketTail::kUnplanned);
  if (bucket.failed > 0) return absl::OkStatus();
  const char* result = bucket.flat();
  DType dtype = bucket.plan().wire;
  if (bucket.hooked.result.has_value()) {
    result = static_cast<const char*>(bucket.hooked.result->data());
    dtype = bucket.hooked.result->dtype();
  }
  const double factor = CopyOutFactor(bucket.joined);
  for (size_t s = 0; s < bucket.slots.size(); ++s) {
    bucket.slots[s].used_anywhere = tail.Count(BucketTail::Used(s)) > 0;
    if (!bucket.slots[s].used_anywhere) continue;
    const Parameter& parameter = parameters_[bucket.plan().slots[s].parameter];
    if (bucket.plan().sparse) {
      if (factor == 1) continue;
      LOCKSTEP_ASSIGN_OR_RETURN(bucket.sparse_average, Coalesce(bucket.sparse_average.view(parameter.name), factor));
      continue;
    }
    LOCKSTEP_RETURN_IF_ERROR(bucket.CopyOut(s, result, dtype, factor, parameter));
  }
  bucket.copied_out_well = true;
  return absl::OkStatus();
}

absl::Status BucketPipeline::EnqueueOptimizer(Bucket& bucket) {
  LOCKSTEP_RETURN_IF_ERROR(optimizer_->Wait(bucket.copied_out.get()));
  return optimizer_->Enqueue([this, &bucket] {
    recorder_->Began(Stage::kOptimizer, bucket.index());
    outcome_->Fail(Annotate(Optimize(bucket), absl::StrCat("the optimizer, bucket ", bucket.index())), bucket.index());
    recorder_->Ended(Stage::kOptimizer, bucket.index());
    return absl::OkStatus();
  });
}

absl::Status BucketPipeline::Optimize(Bucket& bucket) {
  if (!bucket.copied_out_well || step_.joined) return absl::OkStatus();
  std::vector<size_t> parameters;
  std::vector<TensorView> gradients;
  for (size_t s = 0; s < bucket.slots.size(); ++s) {
    if (!bucket.slots[s].used_anywhere) continue;
    parameters.push_back(bucket.plan().slots[s].parameter);
    gradients.push_back(bucket.slots[s].target);
  }
  optimized_.push_back(bucket.index());
  return settings_.optimizer(
      {bucket.index(), step_.buckets, parameters, gradients, bucket.plan().sparse ? &bucket.sparse_average : nullptr});
}

absl::Status BucketPipeline::MakeWait(Stream& stream, Bucket& last) {
  if (optimizer_ == nullptr) return stream.Wait(last.copied_out.get());
  LOCKSTEP_RETURN_IF_ERROR(optimizer_->Record(optimized_event_.get()));
  return stream.Wait(optimized_event_.get());
}

absl::Status BucketPipeline::Synchronize(Deadline deadline) {
  if (copy_out_ != nullptr) LOCKSTEP_RETURN_IF_ERROR(copy_out_->Synchronize(deadline));
  return optimizer_ == nullptr ? absl::OkStatus() : optimizer_->Synchronize(deadline);
}

}  // namespace lockstep
