#include "reducer/bucket_filler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lockstep {

void BucketFiller::Begin(const Step& step, size_t launch_end) {
  step_ = step;
  for (const std::unique_ptr<Bucket>& bucket : step_.buckets) bucket->Reset();
  next_ = 0;
  launch_end_.store(launch_end, std::memory_order_relaxed);
}

BucketFiller::Filling BucketFiller::Fill(size_t index, const GradientRef& gradient) {
  const BucketPlan::Location location = step_.plan->locations[index];
  Bucket& bucket = *step_.buckets[location.bucket];
  Bucket::Slot& slot = bucket.slots[location.slot];
  slot.used = true;
  slot.gradient = gradient.data;
  slot.target = gradient.target;
  slot.rows = gradient.rows;
  slot.keeps = bucket.SumAt(location.slot) != nullptr && slot.target.data() != bucket.SumAt(location.slot);
  return Stage(index, gradient.stream);
}

BucketFiller::Filling BucketFiller::Stage(size_t index, Stream* stream) {
  const BucketPlan::Location location = step_.plan->locations[index];
  Bucket& bucket = *step_.buckets[location.bucket];
  // While it is hot in cache.
  const bool copies = stream == nullptr && bucket.before() == nullptr && !bucket.plan().sparse && !bucket.in_pieces() &&
                      step_.pipeline->copies_at_once();
  const bool lies_ready = stream == nullptr && bucket.in_pieces();
  if (!copies && !lies_ready) bucket.staged.push_back(location.slot);
  if (stream != nullptr && stream->is_callers()) {
    // Whoever launches the bucket may be another thread, whose own stream is another.
    step_.outcome->Fail(step_.pipeline->MarkPoint(bucket, *stream), bucket.index());
  } else if (stream != nullptr &&
             std::find(bucket.streams.begin(), bucket.streams.end(), stream) == bucket.streams.end()) {
    bucket.streams.push_back(stream);
  }
  return {&bucket, location.slot, copies || (lies_ready && step_.pipeline->saves_at_once())};
}

bool BucketFiller::Complete(const Filling& filling) {
  Bucket& bucket = *filling.bucket;
  if (filling.copies) step_.outcome->Fail(step_.pipeline->CopyIn(bucket, filling.slot), bucket.index());
  if (!bucket.FillOne()) return false;
  step_.record->buckets[bucket.index()].ready = StepClock::now();
  bucket.SetFull();
  return true;
}

void BucketFiller::LaunchFull() {
  // The count orders the launches: whoever takes it to zero has seen what all the others wrote before theirs.
  if (launchers_.fetch_add(1, std::memory_order_acq_rel) != 0) return;
  int seen = 1;
  while (seen > 0) {
    while (next_ < launch_end_.load(std::memory_order_relaxed) && step_.buckets[next_]->full()) {
      if (!Launch(*step_.buckets[next_++])) next_ = step_.buckets.size();
    }
    seen = launchers_.fetch_sub(seen, std::memory_order_acq_rel) - seen;
  }
}

void BucketFiller::GiveUp(const absl::Status& why) {
  if (next_ == step_.buckets.size()) return;
  step_.outcome->Fail(why, next_);
  step_.pipeline->GiveUpHook(why);
  for (size_t b = next_; b < step_.buckets.size(); ++b) {
    step_.buckets[b]->Reset();
    for (const BucketPlan::Slot& slot : step_.buckets[b]->plan().slots) Complete(Stage(slot.parameter, nullptr));
  }
  OpenAll();
  LaunchFull();
}

bool BucketFiller::Launch(Bucket& bucket) {
  step_.record->buckets[bucket.index()].launched = StepClock::now();
  const absl::Status launched = InBucket(bucket, step_.pipeline->Launch(bucket));
  step_.outcome->FailCommunication(launched);
  if (!launched.ok()) bucket.written = Bucket::Written::kParts;
  // The others wait for a collective that this rank will never begin; but nobody waits for what is only captured.
  if (!launched.ok() && !step_.captured) {
    step_.communicator->Abort(absl::StrCat("a bucket cannot be launched: ", launched.message()));
  }
  return launched.ok() || !step_.captured;
}

}  // namespace lockstep
