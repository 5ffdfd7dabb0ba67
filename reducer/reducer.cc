#include "reducer/reducer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/host_device.h"
#include "base/log.h"
#include "base/status.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/flatten.h"
#include "reducer/agreement.h"
#include "reducer/broadcast.h"

namespace lockstep {
namespace {

using Clock = StepTimer::Clock;

// Notes travel beside the data and were posted before the mark was sent.
constexpr std::chrono::milliseconds kNotesTimeout{5000};

constexpr size_t kMissingNamed = 20;

// Up to this a sum of ones is exact in a dtype, and says how many ranks have left a note.
double ExactMarks(DType dtype) {
  switch (dtype) {
    case DType::kF8E5M2:
      return 8;
    case DType::kF8E4M3:
      return 16;
    case DType::kBF16:
      return 256;
    case DType::kF16:
      return 2048;
    default:
      return 1 << 24;
  }
}

// A mark of a complex bucket is the real part of its element.
DType MarkDType(DType bucket) {
  if (bucket == DType::kComplex64) return DType::kF32;
  if (bucket == DType::kComplex128) return DType::kF64;
  return bucket;
}

// Whether both strides lead to the same places: what a dimension of one element has does not matter.
bool SamePlaces(absl::Span<const int64_t> shape, absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

absl::Status CheckOptions(const ReducerOptions& options) {
  if (options.bucket_caps_bytes.empty()) return absl::InvalidArgumentError("the list of bucket caps is empty");
  if (!(options.predivide_factor > 0) || !std::isfinite(options.predivide_factor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients cannot be divided by ", options.predivide_factor, " before they are summed"));
  }
  return absl::OkStatus();
}

// So that every bucket begins where its slots may.
size_t RoundedUp(size_t bytes) {
  return (bytes + BucketPlan::kAlignment - 1) / BucketPlan::kAlignment * BucketPlan::kAlignment;
}

// Rank 0 counts its process's reducers and tells the others, so that two reducers of one communicator, at a time or one after
// the other, do not read each other's notes.
absl::StatusOr<uint64_t> AgreeOnFirstTopic(Communicator& communicator) {
  static std::atomic<uint64_t> reducers{0};
  uint64_t topic = reducers.fetch_add(1, std::memory_order_relaxed) << 40;
  CollectiveRequest request;
  request.collective = Collective::kBroadcast;
  request.dtype = DType::kU64;
  request.count = 1;
  request.input = &topic;
  request.output = &topic;
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));
  return topic;
}

}  // namespace

struct Reducer::Bucket {
  const BucketPlan::Bucket* plan = nullptr;
  char* flat = nullptr;
  Bucket* before = nullptr;  // that has the same memory before this one; null where no other has

  // Of this backward.
  std::vector<TensorView> gradients;  // by slot; a default view where there is none
  size_t slots_left = 0;              // not yet copied in or staged
  std::vector<size_t> staged;         // slots that are still to be copied in
  std::vector<Stream*> streams;       // on which their gradients are ready, each once
  std::vector<size_t> missing;        // slots that are still to be filled with zeros
  float mark = 0;                     // to be set where the memory is another bucket's before
  bool full = false;
  bool reduced = false;  // the collective succeeded; written on the collective stream, read after it
  Clock::time_point reduce_started;

  // Kept from step to step.
  std::vector<std::unique_ptr<Event>> stream_events;  // one per entry of `streams`, grown as needed
  std::unique_ptr<Event> copied_in;
  std::unique_ptr<Event> all_reduced;
  std::unique_ptr<Event> copied_out;

  char* Address(size_t elements) const { return flat + elements * SizeOf(plan->dtype); }

  void SetMark(float value) {
    const DType dtype = MarkDType(plan->dtype);
    std::memset(Address(plan->mark), 0, SizeOf(plan->dtype));
    if (value != 0) (void)kernels::CastScaled(dtype, Address(plan->mark), DType::kF32, &value, 1, 1.0);
  }
  double Mark() const {
    double value = 0;
    (void)kernels::CastScaled(DType::kF64, &value, MarkDType(plan->dtype), Address(plan->mark), 1, 1.0);
    return value;
  }
  void Clear(size_t slot) {
    std::memset(Address(plan->slots[slot].offset), 0, plan->slots[slot].elements * SizeOf(plan->dtype));
  }
};

absl::StatusOr<std::unique_ptr<Reducer>> Reducer::Create(Communicator* communicator, std::vector<Parameter> parameters,
                                                         ReducerOptions options) {
  // A rank whose own table is bad says so, and the others learn it rather than wait.
  absl::Status local = CheckParameters(parameters);
  local.Update(CheckOptions(options));
  const std::string settings = absl::StrCat("bucket caps ", absl::StrJoin(options.bucket_caps_bytes, ","), " from the ",
                                            options.caps_from == CapsFrom::kFirst ? "first" : "last", ", at most ",
                                            options.buckets_in_memory_max, " in memory, average ",
                                            static_cast<int>(options.average), " factor ", options.predivide_factor);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnParameters(*communicator, local, settings, parameters));
  BucketPlan plan = PlanBuckets(parameters, options.bucket_caps_bytes, options.caps_from);
  std::unique_ptr<Reducer> reducer(
      new Reducer(communicator, std::move(parameters), std::move(options), std::move(plan), HostDevice()));
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnParameters(*communicator, reducer->Allocate(), settings, {}));
  LOCKSTEP_ASSIGN_OR_RETURN(reducer->first_topic_, AgreeOnFirstTopic(*communicator));
  return reducer;
}

Reducer::Reducer(Communicator* communicator, std::vector<Parameter> parameters, ReducerOptions options, BucketPlan plan,
                 Device* device)
    : communicator_(communicator),
      parameters_(std::move(parameters)),
      options_(std::move(options)),
      plan_(std::move(plan)),
      device_(device) {}

absl::Status Reducer::Allocate() {
  // First, since the other ranks do.
  LOCKSTEP_RETURN_IF_ERROR(AllocateBuckets());
  LOCKSTEP_ASSIGN_OR_RETURN(copy_in_, device_->CreateStream("lockstep-in"));
  LOCKSTEP_ASSIGN_OR_RETURN(collective_, device_->CreateStream("lockstep-coll"));
  LOCKSTEP_ASSIGN_OR_RETURN(copy_out_, device_->CreateStream("lockstep-out"));
  for (const std::unique_ptr<Bucket>& bucket : buckets_) {
    LOCKSTEP_ASSIGN_OR_RETURN(bucket->copied_in, device_->CreateEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(bucket->all_reduced, device_->CreateEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(bucket->copied_out, device_->CreateEvent());
  }
  return absl::OkStatus();
}

absl::Status Reducer::AllocateBuckets() {
  const size_t count = plan_.buckets.size();
  const size_t in_memory =
      options_.buckets_in_memory_max == 0 ? count : std::min(count, options_.buckets_in_memory_max);
  // Of the buckets that take turns with some memory, the largest.
  std::vector<size_t> bytes(in_memory, 0);
  for (size_t b = 0; b < count; ++b) {
    bytes[b % in_memory] = std::max(bytes[b % in_memory], RoundedUp(plan_.buckets[b].bytes()));
  }
  const size_t total = std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> memory = communicator_->Allocate(total);
  if (absl::IsResourceExhausted(memory.status()) || absl::IsUnavailable(memory.status())) {
    LOCKSTEP_LOG(kWarning) << "rank " << communicator_->rank()
                           << ": buckets go over memory that ranks do not share: " << memory.status().message();
    memory = MakePrivateBuffer(total);
  }
  LOCKSTEP_RETURN_IF_ERROR(memory.status());
  memory_ = *std::move(memory);
  std::vector<char*> begins;
  char* begin = memory_->data();
  for (const size_t size : bytes) {
    begins.push_back(begin);
    begin += size;
  }
  for (size_t b = 0; b < count; ++b) {
    auto bucket = std::make_unique<Bucket>();
    bucket->plan = &plan_.buckets[b];
    bucket->flat = begins[b % in_memory];
    if (b >= in_memory) bucket->before = buckets_[b - in_memory].get();
    buckets_.push_back(std::move(bucket));
  }
  return absl::OkStatus();
}

Reducer::~Reducer() {
  // Closures on the streams point to the buckets. Collectives end by their own deadlines, so this does.
  if (copy_out_ != nullptr) (void)copy_out_->Synchronize(Deadline::Infinite());
  // In the order in which work flows, so that no stream waits for one that is gone.
  copy_in_.reset();
  collective_.reset();
  copy_out_.reset();
}

absl::Status Reducer::BeginBackward(const BackwardOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
  bool in_flight = false;
  {
    MutexLock lock(&mu_);
    if (state_ != State::kIdle) {
      return absl::FailedPreconditionError("begin_backward: the last backward was not ended by end_backward");
    }
    in_flight = std::exchange(in_flight_, false);
  }
  // The last step may still be under way in our buckets.
  if (in_flight) LOCKSTEP_RETURN_IF_ERROR(Finish());
  MutexLock lock(&mu_);
  marked_.assign(parameters_.size(), false);
  step_status_ = absl::OkStatus();
  ending_ = false;
  if (!options.sync) {
    state_ = State::kAccumulating;
    return absl::OkStatus();
  }
  state_ = State::kArmed;
  next_bucket_ = 0;
  ++step_;
  timer_.Begin(Clock::now());
  for (const std::unique_ptr<Bucket>& bucket : buckets_) {
    bucket->gradients.assign(bucket->plan->slots.size(), TensorView());
    bucket->slots_left = bucket->plan->slots.size();
    bucket->staged.clear();
    bucket->streams.clear();
    bucket->missing.clear();
    bucket->mark = 0;
    bucket->full = false;
    bucket->reduced = false;
    if (bucket->before == nullptr) bucket->SetMark(0);
  }
  return absl::OkStatus();
}

absl::Status Reducer::CheckGradient(size_t index, const TensorView& gradient) const {
  if (index >= parameters_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("mark_ready: parameter ", index, " is out of range: there are ", parameters_.size()));
  }
  const Parameter& parameter = parameters_[index];
  if (parameter.ignored) {
    return absl::InvalidArgumentError(
        absl::StrCat("mark_ready: ", Describe(index, parameter), " is ignored, as its table says"));
  }
  if (gradient.dtype() == parameter.dtype && gradient.device() == parameter.device &&
      gradient.shape() == absl::MakeConstSpan(parameter.shape)) {
    const bool strides_match = parameter.strides.empty()
                                   ? gradient.contiguous()
                                   : SamePlaces(parameter.shape, gradient.strides(), parameter.strides);
    if (strides_match || gradient.elements() == 0) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("mark_ready: the gradient ", gradient.ToString(), " does not match ",
                                                 Describe(index, parameter), " on ", Name(parameter.device)));
}

absl::Status Reducer::MarkReady(size_t index, const TensorView& gradient, Stream* stream) {
  LOCKSTEP_RETURN_IF_ERROR(CheckGradient(index, gradient));
  const BucketPlan::Location location = plan_.locations[index];
  Bucket& bucket = *buckets_[location.bucket];
  {
    MutexLock lock(&mu_);
    if (state_ == State::kIdle || ending_) {
      return absl::FailedPreconditionError(
          absl::StrCat("mark_ready: ", Describe(index, parameters_[index]), " was marked outside a backward"));
    }
    if (marked_[index]) {
      return absl::FailedPreconditionError(absl::StrCat("mark_ready: ", Describe(index, parameters_[index]),
                                                        " was marked ready twice in this backward; is it shared?"));
    }
    marked_[index] = true;
    if (state_ == State::kAccumulating) return absl::OkStatus();
  }
  bucket.gradients[location.slot] = gradient;
  const bool copies = stream == nullptr && bucket.before == nullptr;
  // While it is hot in cache.
  const absl::Status copied = copies ? CopyIn(bucket, location.slot) : absl::OkStatus();
  bool full = false;
  {
    MutexLock lock(&mu_);
    step_status_.Update(copied);
    if (!copies) bucket.staged.push_back(location.slot);
    if (stream != nullptr) {
      if (std::find(bucket.streams.begin(), bucket.streams.end(), stream) == bucket.streams.end()) {
        bucket.streams.push_back(stream);
      }
    }
    full = --bucket.slots_left == 0;
    bucket.full = full;
  }
  if (full && options_.overlap) LaunchFull();
  return absl::OkStatus();
}

float Reducer::MarkOfOne() const {
  return options_.average == Average::kInCollective ? static_cast<float>(communicator_->size()) : 1;
}

double Reducer::CopyInFactor() const {
  switch (options_.average) {
    case Average::kBefore:
      return 1.0 / communicator_->size();
    case Average::kPredivide:
      return 1 / options_.predivide_factor;
    default:
      return 1;
  }
}

double Reducer::CopyOutFactor() const {
  switch (options_.average) {
    case Average::kAfter:
      return 1.0 / communicator_->size();
    case Average::kPredivide:
      return options_.predivide_factor / communicator_->size();
    default:
      return 1;
  }
}

absl::Status Reducer::CopyIn(Bucket& bucket, size_t slot) {
  const kernels::ViewPiece piece = {&bucket.gradients[slot], bucket.plan->slots[slot].offset};
  return kernels::FlattenViews({&piece, 1}, bucket.flat, bucket.plan->dtype, CopyInFactor());
}

absl::Status Reducer::CopyOut(Bucket& bucket) {
  // Nobody may step on what is not an average.
  if (!bucket.reduced || bucket.Mark() != 0) return absl::OkStatus();
  for (size_t s = 0; s < bucket.plan->slots.size(); ++s) {
    const kernels::ViewPiece piece = {&bucket.gradients[s], bucket.plan->slots[s].offset};
    LOCKSTEP_RETURN_IF_ERROR(kernels::UnflattenViews({&piece, 1}, bucket.flat, bucket.plan->dtype, CopyOutFactor()));
  }
  return absl::OkStatus();
}

void Reducer::LaunchFull() {
  while (true) {
    Bucket* bucket = nullptr;
    {
      MutexLock lock(&mu_);
      if (launching_ || next_bucket_ == buckets_.size() || !buckets_[next_bucket_]->full) return;
      bucket = buckets_[next_bucket_++].get();
      launching_ = true;
      timer_.Launched();
    }
    const absl::Status launched = Launch(*bucket);
    Fail(launched);
    // The others wait for a collective that this rank will never begin.
    if (!launched.ok()) communicator_->Abort(absl::StrCat("a bucket cannot be launched: ", launched.message()));
    MutexLock lock(&mu_);
    launching_ = false;
  }
}

absl::Status Reducer::Stage(Bucket& bucket) {
  while (bucket.stream_events.size() < bucket.streams.size()) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Event> event, device_->CreateEvent());
    bucket.stream_events.push_back(std::move(event));
  }
  for (size_t i = 0; i < bucket.streams.size(); ++i) {
    Event* const ready = bucket.stream_events[i].get();
    LOCKSTEP_RETURN_IF_ERROR(bucket.streams[i]->Record(ready));
    LOCKSTEP_RETURN_IF_ERROR(copy_in_->Wait(ready));
  }
  if (bucket.before != nullptr) LOCKSTEP_RETURN_IF_ERROR(copy_in_->Wait(bucket.before->copied_out.get()));
  LOCKSTEP_RETURN_IF_ERROR(copy_in_->Enqueue([this, &bucket] {
    if (bucket.before != nullptr) bucket.SetMark(bucket.mark);
    for (const size_t slot : bucket.missing) bucket.Clear(slot);
    for (const Stream* stream : bucket.streams) {
      Fail(Annotate(stream->status(), "the stream of a gradient failed"));
    }
    for (const size_t slot : bucket.staged) Fail(CopyIn(bucket, slot));
    return absl::OkStatus();
  }));
  LOCKSTEP_RETURN_IF_ERROR(copy_in_->Record(bucket.copied_in.get()));
  return collective_->Wait(bucket.copied_in.get());
}

absl::Status Reducer::Launch(Bucket& bucket) {
  if (!bucket.staged.empty() || bucket.before != nullptr) LOCKSTEP_RETURN_IF_ERROR(Stage(bucket));
  LOCKSTEP_RETURN_IF_ERROR(collective_->Enqueue([this, &bucket] {
    MarkIfFailed(bucket);
    bucket.reduce_started = Clock::now();
    return absl::OkStatus();
  }));
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = bucket.plan->dtype;
  request.op = options_.average == Average::kInCollective ? ReduceOp::kAvg : ReduceOp::kSum;
  request.count = bucket.plan->elements;
  request.input = bucket.flat;
  request.output = bucket.flat;
  request.background = true;
  LOCKSTEP_RETURN_IF_ERROR(
      communicator_->Enqueue(request, collective_.get(), [this, &bucket](const absl::Status& status) {
        bucket.reduced = status.ok();
        MutexLock lock(&mu_);
        step_status_.Update(status);
        timer_.Reduced(bucket.reduce_started, Clock::now(), bucket.plan->bytes());
      }));
  LOCKSTEP_RETURN_IF_ERROR(collective_->Record(bucket.all_reduced.get()));
  LOCKSTEP_RETURN_IF_ERROR(copy_out_->Wait(bucket.all_reduced.get()));
  LOCKSTEP_RETURN_IF_ERROR(copy_out_->Enqueue([this, &bucket] {
    Fail(CopyOut(bucket));
    return absl::OkStatus();
  }));
  return copy_out_->Record(bucket.copied_out.get());
}

void Reducer::MarkIfFailed(Bucket& bucket) {
  std::string note;
  uint64_t step = 0;
  {
    MutexLock lock(&mu_);
    if (step_status_.ok()) return;
    note = std::string(step_status_.message());
    step = step_;
  }
  communicator_->PostNote(first_topic_ + step, note);
  bucket.SetMark(MarkOfOne());
}

void Reducer::Fail(const absl::Status& status) {
  if (status.ok()) return;
  MutexLock lock(&mu_);
  step_status_.Update(status);
}

std::string Reducer::FillMissing() {
  std::vector<std::string> names;
  size_t missing = 0;
  bool marking = false;
  MutexLock lock(&mu_);
  for (const std::unique_ptr<Bucket>& bucket : buckets_) {
    for (size_t s = 0; s < bucket->plan->slots.size(); ++s) {
      const BucketPlan::Slot& slot = bucket->plan->slots[s];
      if (marked_[slot.parameter]) continue;
      if (++missing <= kMissingNamed) names.push_back(Describe(slot.parameter, parameters_[slot.parameter]));
      bucket->before == nullptr ? bucket->Clear(s) : bucket->missing.push_back(s);
    }
    // Everything from the first hole on is not launched yet, the last bucket among it: the one whose mark is counted.
    marking = marking || bucket->slots_left > 0;
    if (marking && bucket->before == nullptr) bucket->SetMark(MarkOfOne());
    if (marking) bucket->mark = MarkOfOne();
    bucket->full = true;
  }
  if (missing == 0) return "";
  if (missing > kMissingNamed) names.push_back(absl::StrCat("and ", missing - kMissingNamed, " more"));
  return absl::StrCat("no gradient came for ", absl::StrJoin(names, ", "));
}

absl::Status Reducer::EndBackward(Stream* stream) {
  uint64_t step = 0;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kIdle || ending_) {
      return absl::FailedPreconditionError("end_backward: no backward was begun");
    }
    if (state_ == State::kAccumulating) {
      state_ = State::kIdle;
      return absl::OkStatus();
    }
    ending_ = true;
    step = step_;
    timer_.EndCalled(Clock::now());
  }
  const std::string missing = FillMissing();
  // Before the mark is sent, so that whoever sees the mark finds the note.
  if (!missing.empty()) communicator_->PostNote(first_topic_ + step, missing);
  LaunchFull();

  const bool in_flight = stream != nullptr && missing.empty();
  const absl::Status result = in_flight ? stream->Wait(buckets_.back()->copied_out.get()) : Finish();
  MutexLock lock(&mu_);
  in_flight_ = in_flight;
  state_ = State::kIdle;
  return result;
}

absl::Status Reducer::Finish() {
  // Collectives end by their own deadlines, so this does.
  LOCKSTEP_RETURN_IF_ERROR(copy_out_->Synchronize(Deadline::Infinite()));
  uint64_t step = 0;
  {
    MutexLock lock(&mu_);
    timer_.End();
    if (!step_status_.ok()) return step_status_;
    step = step_;
  }
  const double sum = std::min(buckets_.back()->Mark(), ExactMarks(buckets_.back()->plan->dtype));
  if (sum == 0) return absl::OkStatus();
  // Divided by the collective, they may be a little less than whole.
  const int marks = std::max(1, static_cast<int>(std::lround(sum)));
  const auto notes = communicator_->AwaitNotes(first_topic_ + step, marks, Deadline::After(kNotesTimeout));
  std::string text = absl::StrCat("backward ", step, " is incomplete: ");
  if (notes.ok()) {
    absl::StrAppend(&text, absl::StrJoin(*notes, "; ", [](std::string* out, const auto& note) {
      absl::StrAppend(out, "rank ", note.first.value(), ": ", note.second);
    }));
  } else {
    absl::StrAppend(&text, "gradients never came on ", marks, " rank(s), whose notes did not arrive (",
                    notes.status().message(), ")");
  }
  absl::StrAppend(&text, ". No gradient of the buckets concerned was changed; the next step may be tried.");
  return absl::FailedPreconditionError(text);
}

absl::Status Reducer::Broadcast(absl::Span<const TensorView> tensors, Rank root) {
  return BroadcastCoalesced(*communicator_, tensors, root);
}

ReducerStatistics Reducer::statistics() const {
  MutexLock lock(&mu_);
  return timer_.last();
}

}  // namespace lockstep
