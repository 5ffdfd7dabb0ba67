// DevicePipeline: buckets on a device. Kernels copy in the order of the device's streams. They read the status trailer, and write averages
// only if it allows that. Everything is issued without waiting for data. A thread of ours, lockstep-watch, follows the device and reads
// a copy of each trailer some time after the averages were written.
//
// So a failure reaches the trailer only if it is known when the bucket is launched, or if a hook's communicator failed.
// The watching thread calls the optimizer. No thread follows a captured step: its replays leave a trailer for
// CheckReplays. When a collective fails, the work issued after it runs all the same: unlike on the host, gradients of
// that step are undefined.

#include "reducer/pipeline/bucket_pipeline.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "base/device/host_device.h"
#include "base/error_info.h"
#include "base/status.h"
#include "comm/schedule/schedule.h"
#include "kernels/bucket_kernels.h"
#include "reducer/plan/status_trailer.h"
#include "reducer/report/record.h"

namespace lockstep {
namespace {

class DevicePipeline final : public BucketPipeline {
 public:
  // The kernels outlive it.
  DevicePipeline(const Parts& parts, const kernels::BucketKernels* kernels, Settings settings)
      : BucketPipeline(parts, std::move(settings), /*copies_at_once=*/false), kernels_(kernels) {}
  ~DevicePipeline() override {
    // What is on the streams uses buckets.
    (void)Synchronize(Deadline::Infinite());
    watch_.reset();
    DestroyStreams();
  }

  absl::Status CreateStreams() override {
    LOCKSTEP_RETURN_IF_ERROR(BucketPipeline::CreateStreams());
    LOCKSTEP_ASSIGN_OR_RETURN(watch_, HostDevice()->CreateStream("lockstep-watch"));
    return absl::OkStatus();
  }

  absl::Status CreateEvents(Bucket& bucket) override {
    LOCKSTEP_RETURN_IF_ERROR(BucketPipeline::CreateEvents(bucket));
    LOCKSTEP_ASSIGN_OR_RETURN(bucket.told, device_->CreateEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(bucket.told_trailer, DeviceMemory::AllocateOnHost(device_, bucket.trailer_bytes()));
    LOCKSTEP_ASSIGN_OR_RETURN(bucket.followed, HostDevice()->CreateEvent());
    return absl::OkStatus();
  }

  // With an optimizer, blocks until the last bucket is reduced: only then is the work enqueued that the stream waits
  // for.
  absl::Status MakeWait(Stream& stream, Bucket& last) override {
    // For the last trailer, too: nothing of ours goes on behind what ends a capture, and a graph that is launched next
    // uses the buckets.
    if (optimizer_ == nullptr) return stream.Wait(ReleasedBy(last));
    LOCKSTEP_RETURN_IF_ERROR(watch_->Synchronize(Deadline::Infinite()));
    return WaitForOptimizer(stream);
  }

  absl::Status Synchronize(Deadline deadline) override {
    if (watch_ != nullptr) LOCKSTEP_RETURN_IF_ERROR(watch_->Synchronize(deadline));
    // What was issued of a bucket that could not be launched whole, nobody follows; it may use gradients all the same.
    for (Stream* const stream : {copy_in_.get(), copy_out()}) {
      if (stream == nullptr) continue;
      const absl::Status ended = stream->Synchronize(deadline);
      if (absl::IsDeadlineExceeded(ended)) return ended;
    }
    return optimizer_ == nullptr ? absl::OkStatus() : optimizer_->Synchronize(deadline);
  }

  absl::Status Await(Bucket& last, Deadline deadline) override {
    return optimizer_ == nullptr ? last.followed->Synchronize(deadline) : Synchronize(deadline);
  }

  Event* ReleasedBy(Bucket& bucket) override { return bucket.told.get(); }

 private:
  absl::Status EnqueueCopyIn(Bucket& bucket) override {
    RecordOf(bucket).Began(Stage::kCopyIn);
    for (const Stream* stream : bucket.streams) {
      step_.outcome->Fail(Annotate(stream->status(), "the stream of a gradient failed"), bucket.index());
    }
    std::vector<kernels::BucketPiece> pieces;
    for (const size_t s : bucket.staged) {
      const Bucket::Slot& slot = bucket.slots[s];
      if (slot.keeps) step_.outcome->Fail(EnqueueKeep(bucket, s), bucket.index());
      if (slot.used && bucket.InPlace(s) && settings_.factors.copy_in == 1) continue;
      const BucketPlan::Slot& planned = bucket.plan().slots[s];
      if (planned.elements == 0) continue;
      pieces.push_back({slot.used ? &slot.gradient : nullptr, planned.offset, planned.elements});
    }
    std::vector<kernels::BucketEntry> entries;
    // With a hook, the trailer comes behind the hook.
    if (settings_.hook == nullptr) entries = TrailerEntries(bucket);
    return kernels_->Gather(pieces, entries, bucket.flat(), bucket.plan().wire, settings_.factors.copy_in, *copy_in_);
  }

  absl::Status EnqueueBegan(Bucket&) override { return absl::OkStatus(); }
  absl::Status EnqueueSparse(Bucket& bucket) override {
    return absl::UnimplementedError(
        absl::StrCat("bucket ", bucket.index(), ": sparse gradients on ", Name(device_->id())));
  }

  absl::Status EnqueueReduction(Bucket& bucket, const CollectiveRequest& request) override {
    if (settings_.hook != nullptr) {
      FinishHook(bucket, absl::OkStatus());  // what becomes of it in the stream is not known yet
      LOCKSTEP_RETURN_IF_ERROR(EnqueueTrailer(bucket));
    }
    const size_t bytes = request.count * SizeOf(request.dtype);
    return communicator_->Enqueue(request, collective_.get(), [this, &bucket, bytes](const absl::Status& status) {
      Reduced(bucket, status, bytes);
    });
  }

  absl::Status EnqueueCopyOut(Bucket& bucket) override {
    const Bucket::Result result = bucket.result();
    std::vector<kernels::BucketPiece> pieces;
    for (size_t s = 0; s < bucket.slots.size(); ++s) {
      const BucketPlan::Slot& planned = bucket.plan().slots[s];
      // A rank without inputs has no use for averages.
      if (planned.elements == 0 || (step_.joined && !bucket.slots[s].used)) continue;
      if (const absl::Status found = FindTarget(bucket, s); !found.ok()) {
        step_.outcome->Fail(found, bucket.index());
        continue;
      }
      const TensorView& target = bucket.slots[s].target;
      const bool there = target.data() == static_cast<const void*>(result.data + planned.offset * SizeOf(result.dtype));
      if (there && settings_.factors.copy_out == 1 && !settings_.divide_by_live) continue;
      pieces.push_back({&target, planned.offset, planned.elements, StatusTrailer::Used(s)});
    }
    if (pieces.empty()) return absl::OkStatus();
    kernels::BucketGate gate;
    gate.trailer = bucket.flat() + bucket.plan().trailer * SizeOf(bucket.plan().wire);
    gate.dtype = bucket.plan().wire;
    gate.count_max = StatusTrailer::CountMax(gate.dtype);
    gate.closed_by = StatusTrailer::kFailed;
    gate.divide_by_live = settings_.divide_by_live;
    gate.joined = StatusTrailer::kJoined;
    gate.ranks = communicator_->size();
    LOCKSTEP_RETURN_IF_ERROR(
        kernels_->Spread(pieces, result.data, result.dtype, settings_.factors.copy_out, gate, *copy_out()));
    // The average has replaced what was kept, or there is none.
    for (size_t s = 0; s < bucket.slots.size(); ++s) {
      if (!bucket.slots[s].keeps) continue;
      const Parameter& parameter = parameters_[bucket.plan().slots[s].parameter];
      LOCKSTEP_RETURN_IF_ERROR(copy_out()->Copy(bucket.ViewAt(s), bucket.slots[s].spare.data(), parameter.bytes()));
      Bucket::Slot& slot = bucket.slots[s];
      if (slot.target.data() == slot.spare.data()) slot.target = DenseView(parameter, bucket.ViewAt(s));
    }
    return absl::OkStatus();
  }

  absl::Status EnqueueEnd(Bucket& bucket) override {
    const char* const trailer = bucket.flat() + bucket.plan().trailer * SizeOf(bucket.plan().wire);
    const bool captured = step_.replayed_trailer != nullptr;
    const bool last = bucket.index() + 1 == step_.buckets;
    if (!captured || last) {
      char* const target = captured ? step_.replayed_trailer : bucket.told_trailer.data();
      LOCKSTEP_RETURN_IF_ERROR(copy_out()->Copy(target, trailer, bucket.trailer_bytes()));
    }
    LOCKSTEP_RETURN_IF_ERROR(copy_out()->Record(bucket.told.get()));
    if (captured) return absl::OkStatus();
    if (optimizer_ != nullptr) LOCKSTEP_RETURN_IF_ERROR(optimizer_->Wait(bucket.copied_out.get()));
    LOCKSTEP_RETURN_IF_ERROR(watch_->Enqueue([this, &bucket, step = step_] {
      Follow(bucket, step);
      return absl::OkStatus();
    }));
    return watch_->Record(bucket.followed.get());
  }

  std::vector<kernels::BucketEntry> TrailerEntries(Bucket& bucket) {
    const float one = One(bucket);
    std::vector<kernels::BucketEntry> entries(StatusTrailer::Elements(bucket.slots.size()));
    for (size_t e = 0; e < entries.size(); ++e) entries[e].index = bucket.plan().trailer + e;
    if (step_.outcome->MarksFailed(bucket.index())) entries[StatusTrailer::kFailed].value = one;
    if (step_.joined) entries[StatusTrailer::kJoined].value = one;
    if (!step_.requested) entries[StatusTrailer::kUnrequested].value = one;
    for (size_t s = 0; s < bucket.slots.size(); ++s) {
      if (bucket.slots[s].used) entries[StatusTrailer::Used(s)].value = one;
    }
    return entries;
  }

  // On the copy-in stream: what the slot keeps, into its spare memory.
  absl::Status EnqueueKeep(Bucket& bucket, size_t s) {
    const Parameter& parameter = parameters_[bucket.plan().slots[s].parameter];
    const absl::StatusOr<char*> spare = bucket.Spare(s, device_, parameter);
    bucket.slots[s].keeps = spare.ok();
    return spare.ok() ? copy_in_->Copy(*spare, bucket.ViewAt(s), parameter.bytes()) : spare.status();
  }

  // Where the slot's average goes: spare memory if no target was marked, or if the gradient in the view may have to stay.
  absl::Status FindTarget(Bucket& bucket, size_t s) {
    Bucket::Slot& slot = bucket.slots[s];
    if (slot.target.data() != nullptr) return absl::OkStatus();
    const Parameter& parameter = parameters_[bucket.plan().slots[s].parameter];
    char* memory = slot.keeps ? nullptr : bucket.ViewAt(s);
    if (memory == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(memory, bucket.Spare(s, device_, parameter));
    }
    slot.target = DenseView(parameter, memory);
    return absl::OkStatus();
  }

  // Behind a hook: the trailer, to which the stream adds whether the hook failed.
  absl::Status EnqueueTrailer(Bucket& bucket) {
    const DType wire = bucket.plan().wire;
    LOCKSTEP_RETURN_IF_ERROR(kernels_->Gather({}, TrailerEntries(bucket), bucket.flat(), wire, 1, *collective_));
    LOCKSTEP_RETURN_IF_ERROR(collective_->Enqueue([this, &bucket] {
      LookAtHook(bucket);
      return absl::OkStatus();
    }));
    char* const failed = bucket.flat() + (bucket.plan().trailer + StatusTrailer::kFailed) * SizeOf(wire);
    return collective_->Copy(failed, bucket.told_trailer.data(), SizeOf(wire));
  }

  // In a closure of the stream, behind the hook: whether it failed, for the trailer.
  void LookAtHook(Bucket& bucket) {
    if (!bucket.hooked.status.ok()) {
      FailHook(bucket, bucket.hooked.status);
    } else if (hook_communicator_ != nullptr) {
      const absl::Status status = hook_communicator_->status();
      if (!status.ok()) step_.outcome->Fail(HookFailure(bucket, status), bucket.index());
    }
    static_assert(StatusTrailer::kFailed == 0, "it is the first entry that is copied");
    StatusTrailer trailer(bucket.told_trailer.data(), bucket.plan().wire, One(bucket));
    trailer.Clear(bucket.slots.size());
    if (step_.outcome->MarksFailed(bucket.index())) trailer.Set(StatusTrailer::kFailed);
  }

  // On the watching thread, while the next step may have begun.
  void Follow(Bucket& bucket, const Step& step) {
    BucketRecord& record = step.record->buckets[bucket.index()];
    // Collectives end by their own deadlines, and with them what waits for them here.
    absl::Status status = bucket.copied_in->Synchronize(Deadline::Infinite());
    record.Ended(Stage::kCopyIn);
    record.Began(Stage::kCollective);
    status.Update(bucket.all_reduced->Synchronize(Deadline::Infinite()));
    record.Ended(Stage::kCollective);
    record.Began(Stage::kCopyOut);
    status.Update(bucket.told->Synchronize(Deadline::Infinite()));
    record.Ended(Stage::kCopyOut);
    for (const Stream* stream : {copy_in_.get(), collective_.get(), copy_out()}) status.Update(stream->status());
    // What failed on the way says so itself, and it alone knows more than that something did.
    if (const absl::Status told = communicator_->status(); !told.ok()) {
      // It may be about a collective that this one is made of.
      const std::string name = Name(Collective::kAllReduce);
      ErrorInfo info = GetErrorInfo(told);
      if (info.collective != name) info.sequence.reset();
      info.collective = name;
      const bool named = absl::StartsWith(told.message(), name);
      status = WithErrorInfo(absl::Status(told.code(), absl::StrCat(named ? "" : name + ": ", told.message())), info);
    }
    status = InBucket(bucket, status);
    step.outcome->FailCommunication(status);
    if (!status.ok()) bucket.reduced = false;
    if (bucket.reduced) {
      bucket.ReadTrailer(StatusTrailer(bucket.told_trailer.data(), bucket.plan().wire, 1));
      bucket.copied_out_well = bucket.failed == 0;
    }
    if (optimizer_ != nullptr) CallOptimizer(bucket, optimizer_.get());
  }

  const kernels::BucketKernels* const kernels_;
  std::unique_ptr<Stream> watch_;  // of the host; constant once created
};

}  // namespace

std::unique_ptr<BucketPipeline> MakeDevicePipeline(const BucketPipeline::Parts& parts,
                                                   const kernels::BucketKernels* kernels,
                                                   BucketPipeline::Settings settings) {
  return std::make_unique<DevicePipeline>(parts, kernels, std::move(settings));
}

}  // namespace lockstep
