#include "reducer/pipeline/bucket_pipeline.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/status.h"
#include "reducer/report/record.h"

namespace lockstep {
namespace {

// How soon a wait notices that the communicator has ended.
constexpr int kEndNoticedMs = 100;

absl::Status CheckResult(const HookBucket& bucket) {
  const TensorView& result = *bucket.result;
  const bool dtype_fits = IsComplex(bucket.dtype) ? result.dtype() == bucket.dtype : IsFloat(result.dtype());
  if (result.elements() == bucket.elements && result.contiguous() && dtype_fits &&
      result.device() == bucket.plan->device) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("it returned ", result.ToString(), " for a bucket of ",
                                                 bucket.elements, " elements of ", Name(bucket.dtype), " on ",
                                                 Name(bucket.plan->device)));
}

}  // namespace

BucketPipeline::BucketPipeline(const Parts& parts, Settings settings, bool copies_at_once)
    : device_(parts.device),
      communicator_(parts.communicator),
      parameters_(parts.parameters),
      settings_(std::move(settings)),
      copies_at_once_(copies_at_once) {}

absl::Status BucketPipeline::CreateStreams() {
  LOCKSTEP_ASSIGN_OR_RETURN(copy_in_, device_->CreateStream("lockstep-in"));
  LOCKSTEP_ASSIGN_OR_RETURN(collective_, device_->CreateStream("lockstep-coll"));
  if (!settings_.in_place) {
    LOCKSTEP_ASSIGN_OR_RETURN(copy_out_, device_->CreateStream("lockstep-out"));
  }
  if (!settings_.optimizer) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(optimizer_, device_->CreateStream("lockstep-opt"));
  LOCKSTEP_ASSIGN_OR_RETURN(optimized_, device_->CreateEvent());
  return absl::OkStatus();
}

void BucketPipeline::DestroyStreams() {
  copy_in_.reset();
  collective_.reset();
  copy_out_.reset();
  optimizer_.reset();
}

absl::Status BucketPipeline::WaitForOptimizer(Stream& stream) {
  LOCKSTEP_RETURN_IF_ERROR(optimizer_->Record(optimized_.get()));
  return stream.Wait(optimized_.get());
}

absl::Status BucketPipeline::CreateEvents(Bucket& bucket) {
  LOCKSTEP_ASSIGN_OR_RETURN(bucket.copied_in, device_->CreateEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(bucket.all_reduced, device_->CreateEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(bucket.copied_out, device_->CreateEvent());
  return absl::OkStatus();
}

absl::Status BucketPipeline::RenewHookCommunicator() {
  if (settings_.hook == nullptr || !settings_.hook->communicates()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(hook_communicator_, communicator_->Duplicate());
  return absl::OkStatus();
}

void BucketPipeline::GiveUpHook(const absl::Status& why) {
  hook_issue_failed_ = true;
  if (hook_communicator_ != nullptr) hook_communicator_->Abort(std::string(why.message()));
}

absl::Status BucketPipeline::AwaitOrEnd(Bucket* last, Deadline deadline) {
  while (true) {
    const bool hook_may_hang = hook_communicator_ != nullptr && hook_communicator_->status().ok();
    const Deadline slice = hook_may_hang ? Deadline::Earlier(deadline, Deadline::AfterMs(kEndNoticedMs)) : deadline;
    const absl::Status status = last == nullptr ? Synchronize(slice) : Await(*last, slice);
    if (!absl::IsDeadlineExceeded(status) || !slice.passed() || deadline.passed()) return status;
    // Not before: a reducer that has nothing under way ends its hook's communicator as any other.
    const absl::Status over = communicator_->status();
    if (!over.ok()) hook_communicator_->Abort(absl::StrCat("the reducer's communicator has ended: ", over.message()));
  }
}

void BucketPipeline::Begin(const Step& step) {
  step_ = step;
  hook_issue_failed_ = false;
  stepped_.clear();
  if (hook_communicator_ != nullptr) hook_communicator_->SetTimeout(communicator_->timeout());  // it may have changed
}

absl::Status BucketPipeline::Launch(Bucket& bucket) {
  if (!bucket.staged.empty() || bucket.before() != nullptr) LOCKSTEP_RETURN_IF_ERROR(Stage(bucket));
  if (bucket.plan().sparse) bucket.TakeSparse(parameters_[bucket.plan().slots[0].parameter]);
  if (settings_.hook != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(EnqueueHook(bucket));
  } else if (bucket.plan().sparse) {
    LOCKSTEP_RETURN_IF_ERROR(EnqueueSparse(bucket));
  }
  LOCKSTEP_RETURN_IF_ERROR(bucket.in_pieces() ? EnqueueInPieces(bucket) : EnqueueAllReduce(bucket));
  if (!bucket.in_pieces() || copy_out() != collective_.get()) {
    LOCKSTEP_RETURN_IF_ERROR(collective_->Record(bucket.all_reduced.get()));
    LOCKSTEP_RETURN_IF_ERROR(copy_out()->Wait(bucket.all_reduced.get()));
  }
  if (!bucket.in_pieces()) LOCKSTEP_RETURN_IF_ERROR(EnqueueCopyOut(bucket));
  LOCKSTEP_RETURN_IF_ERROR(copy_out()->Record(bucket.copied_out.get()));
  return EnqueueEnd(bucket);
}

absl::Status BucketPipeline::CopyIn(Bucket& bucket, size_t slot) const {
  const Parameter& parameter = parameters_[bucket.plan().slots[slot].parameter];
  if (Saves()) LOCKSTEP_RETURN_IF_ERROR(bucket.Save(slot, device_, parameter, /*stream=*/nullptr));
  return bucket.CopyIn(slot, settings_.factors.copy_in, parameter);
}

absl::Status BucketPipeline::Restore(absl::Span<const std::unique_ptr<Bucket>> buckets) {
  if (copies_at_once_) {
    for (const auto& bucket : buckets) LOCKSTEP_RETURN_IF_ERROR(bucket->Restore(/*stream=*/nullptr));
    return absl::OkStatus();
  }
  // The pipeline's streams may have an error.
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_->CreateStream("lockstep-back"));
  for (const auto& bucket : buckets) LOCKSTEP_RETURN_IF_ERROR(bucket->Restore(stream.get()));
  return stream->Synchronize(Deadline::Infinite());
}

absl::Status BucketPipeline::MarkPoint(Bucket& bucket, Stream& stream) const {
  if (bucket.points == bucket.stream_events.size()) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Event> event, device_->CreateEvent());
    bucket.stream_events.push_back(std::move(event));
  }
  return stream.Record(bucket.stream_events[bucket.points++].get());
}

absl::Status BucketPipeline::Stage(Bucket& bucket) {
  // What their threads have marked already stands before that.
  for (Stream* const stream : bucket.streams) LOCKSTEP_RETURN_IF_ERROR(MarkPoint(bucket, *stream));
  for (size_t i = 0; i < bucket.points; ++i) LOCKSTEP_RETURN_IF_ERROR(copy_in_->Wait(bucket.stream_events[i].get()));
  if (bucket.index() == 0 && step_.after != nullptr) LOCKSTEP_RETURN_IF_ERROR(copy_in_->Wait(step_.after));
  if (bucket.before() != nullptr) LOCKSTEP_RETURN_IF_ERROR(copy_in_->Wait(ReleasedBy(*bucket.before())));
  LOCKSTEP_RETURN_IF_ERROR(EnqueueCopyIn(bucket));
  LOCKSTEP_RETURN_IF_ERROR(copy_in_->Record(bucket.copied_in.get()));
  return collective_->Wait(bucket.copied_in.get());
}

absl::Status BucketPipeline::EnqueueAllReduce(Bucket& bucket) {
  const bool trailer_alone = ReducesTrailerAlone(bucket);
  const size_t begin = trailer_alone ? bucket.plan().trailer : 0;
  const AverageFactors& factors = trailer_alone ? sum_ : settings_.factors;
  CollectiveRequest request = AllReduceFor(bucket);
  request.dtype = bucket.plan().wire;
  request.op = factors.op;
  request.factor = factors.premultiply;
  request.count = bucket.plan().elements - begin;
  request.input = bucket.flat() + begin * SizeOf(request.dtype);
  request.output = bucket.flat() + begin * SizeOf(request.dtype);
  return EnqueueReduction(bucket, request);
}

CollectiveRequest BucketPipeline::AllReduceFor(const Bucket& bucket) const {
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.device = bucket.plan().device;
  request.background = true;
  request.by_holder = true;
  if (step_.joined) request.timeout = kJoinedTimeout;
  return request;
}

void BucketPipeline::Reduced(Bucket& bucket, const absl::Status& status, size_t bytes) {
  bucket.reduced = status.ok();
  step_.outcome->FailCommunication(InBucket(bucket, status));
  RecordOf(bucket).bytes += static_cast<int64_t>(bytes);
}

absl::Status InBucket(const Bucket& bucket, const absl::Status& status, absl::string_view what) {
  if (status.ok()) return status;
  ErrorInfo info;
  info.bucket = static_cast<int64_t>(bucket.index());
  return WithErrorInfo(Annotate(status, absl::StrCat(what, "bucket ", bucket.index())), info);
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
  hooked.elements = bucket.plan().trailer;
  hooked.communicator = hook_communicator_;
  hooked.reducers = communicator_;
  hooked.fail = [this, &bucket](const absl::Status& status) { FailHook(bucket, status); };
  if (bucket.plan().sparse) hooked.sparse = &bucket.sparse;
  if (settings_.barrier_first && bucket.index() == 0) LOCKSTEP_RETURN_IF_ERROR(EnqueueBarrier());
  LOCKSTEP_RETURN_IF_ERROR(EnqueueBegan(bucket));
  // A hook that failed on this rank would meet the others' next one in the middle: it is not issued again in this step.
  if (!hook_issue_failed_) {
    const absl::Status issued = settings_.hook->Issue(hooked, *collective_);
    if (!issued.ok()) {
      hook_issue_failed_ = true;
      FailHook(bucket, issued);
    }
  }
  return absl::OkStatus();
}

absl::Status BucketPipeline::EnqueueBarrier() {
  CollectiveRequest request;
  request.collective = Collective::kBarrier;
  request.device = device_->id();
  request.background = true;
  request.by_holder = true;
  if (step_.joined) request.timeout = kJoinedTimeout;
  return communicator_->Enqueue(request, collective_.get(),
                                [this](const absl::Status& status) { step_.outcome->FailCommunication(status); });
}

absl::Status BucketPipeline::HookFailure(const Bucket& bucket, const absl::Status& status) const {
  return InBucket(bucket, status, absl::StrCat("hook ", settings_.hook->name(), ", "));
}

void BucketPipeline::FailHook(Bucket& bucket, const absl::Status& status) {
  const absl::Status failure = HookFailure(bucket, status);
  step_.outcome->Fail(failure, bucket.index());
  if (hook_communicator_ == nullptr) return;
  hook_communicator_->Abort(absl::StrCat("rank ", communicator_->rank().value(), ": ", failure.message()));
}

void BucketPipeline::FinishHook(Bucket& bucket, absl::Status status) {
  HookBucket& hooked = bucket.hooked;
  if (status.ok() && hooked.result.has_value()) status = CheckResult(hooked);
  if (status.ok() && bucket.plan().sparse) {
    absl::StatusOr<CoalescedGradient> left = hooked.sparse_result.has_value()
                                                 ? Coalesce(hooked.sparse_result->view(bucket.sparse.name), 1)
                                                 : Coalesce(bucket.sparse, 1);
    status = left.status();
    if (left.ok()) bucket.sparse_average = *std::move(left);
  }
  if (status.ok()) return;
  hooked.result.reset();  // on a device what is behind it is issued all the same
  FailHook(bucket, status);
}

void BucketPipeline::CallOptimizer(Bucket& bucket, Stream* stream) {
  RecordOf(bucket).Began(Stage::kOptimizer);
  step_.outcome->Fail(InBucket(bucket, Optimize(bucket, stream), "the optimizer, "), bucket.index());
  RecordOf(bucket).Ended(Stage::kOptimizer);
}

absl::Status BucketPipeline::Optimize(Bucket& bucket, Stream* stream) {
  if (!bucket.copied_out_well || step_.joined) return absl::OkStatus();
  std::vector<size_t> parameters;
  std::vector<TensorView> gradients;
  for (size_t s = 0; s < bucket.slots.size(); ++s) {
    if (!bucket.slots[s].used_anywhere) continue;
    const size_t index = bucket.plan().slots[s].parameter;
    parameters.push_back(index);
    gradients.push_back(parameters_[index].elements() == 0 ? DenseView(parameters_[index], nullptr)
                                                           : bucket.slots[s].target);
  }
  stepped_.push_back(bucket.index());
  return settings_.optimizer({bucket.index(), step_.buckets, parameters, gradients,
                              bucket.plan().sparse ? &bucket.sparse_average : nullptr, stream});
}

}  // namespace lockstep
