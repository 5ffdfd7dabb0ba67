// HostPipeline: buckets on the host. The streams are threads. They copy, and know the failures so far and the status
// trailer.

#include "reducer/pipeline/bucket_pipeline.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status.h"
#include "reducer/plan/status_trailer.h"
#include "reducer/report/record.h"
#include "reducer/sparse/sparse_all_gather.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep {
namespace {

class HostPipeline final : public BucketPipeline {
 public:
  HostPipeline(const Parts& parts, Settings settings)
      : BucketPipeline(parts, std::move(settings), /*copies_at_once=*/true) {}
  ~HostPipeline() override {
    // Closures on the streams point to this and to buckets.
    (void)Synchronize(Deadline::Infinite());
    DestroyStreams();
  }

  absl::Status MakeWait(Stream& stream, Bucket& last) override {
    return optimizer_ == nullptr ? stream.Wait(last.copied_out.get()) : WaitForOptimizer(stream);
  }

  absl::Status Synchronize(Deadline deadline) override {
    // All of them: of a bucket that was launched in part, nothing later waits for what is on the earlier streams.
    for (Stream* const stream : {copy_in_.get(), collective_.get(), copy_out(), optimizer_.get()}) {
      if (stream != nullptr) LOCKSTEP_RETURN_IF_ERROR(stream->Synchronize(deadline));
    }
    return absl::OkStatus();
  }

  absl::Status Await(Bucket&, Deadline deadline) override { return Synchronize(deadline); }

 private:
  absl::Status EnqueueCopyIn(Bucket& bucket) override {
    return copy_in_->Enqueue([this, &bucket] {
      RecordOf(bucket).Began(Stage::kCopyIn);
      for (const Stream* stream : bucket.streams) {
        step_.outcome->Fail(Annotate(stream->status(), "the stream of a gradient failed"), bucket.index());
      }
      for (const size_t slot : bucket.staged) step_.outcome->Fail(CopyIn(bucket, slot), bucket.index());
      RecordOf(bucket).Ended(Stage::kCopyIn);
      return absl::OkStatus();
    });
  }

  absl::Status EnqueueBegan(Bucket& bucket) override {
    return collective_->Enqueue([this, &bucket] {
      RecordOf(bucket).Began(Stage::kCollective);
      return absl::OkStatus();
    });
  }

  absl::Status EnqueueSparse(Bucket& bucket) override {
    return collective_->Enqueue([this, &bucket] {
      GatherSparse(bucket);
      return absl::OkStatus();
    });
  }

  absl::Status EnqueueReduction(Bucket& bucket, const CollectiveRequest& request) override {
    const auto before = [this, &bucket] {
      RecordOf(bucket).Began(Stage::kCollective);
      if (settings_.hook != nullptr) FinishHook(bucket, bucket.hooked.status);
      WriteTrailer(bucket);
    };
    const auto done = [this, &bucket](const absl::Status& status) {
      Reduced(bucket, status);
      RecordOf(bucket).Ended(Stage::kCollective);
    };
    return communicator_->Enqueue(request, collective_.get(), before, done);
  }

  absl::Status EnqueueCopyOut(Bucket& bucket) override {
    return copy_out()->Enqueue([this, &bucket] {
      RecordOf(bucket).Began(Stage::kCopyOut);
      step_.outcome->Fail(CopyOut(bucket), bucket.index());
      RecordOf(bucket).Ended(Stage::kCopyOut);
      return absl::OkStatus();
    });
  }

  absl::Status EnqueueEnd(Bucket& bucket) override {
    if (optimizer_ == nullptr) return absl::OkStatus();
    LOCKSTEP_RETURN_IF_ERROR(optimizer_->Wait(bucket.copied_out.get()));
    return optimizer_->Enqueue([this, &bucket] {
      CallOptimizer(bucket, /*stream=*/nullptr);
      return absl::OkStatus();
    });
  }

  // On the streams' threads.
  void WriteTrailer(Bucket& bucket) {
    StatusTrailer trailer = bucket.Trailer(One(bucket));
    trailer.Clear(bucket.slots.size());
    if (step_.outcome->MarksFailed(bucket.index())) trailer.Set(StatusTrailer::kFailed);
    if (step_.joined) trailer.Set(StatusTrailer::kJoined);
    if (!step_.planned) trailer.Set(StatusTrailer::kUnplanned);
    for (size_t s = 0; s < bucket.slots.size(); ++s) {
      if (bucket.slots[s].used) trailer.Set(StatusTrailer::Used(s));
    }
  }

  void GatherSparse(Bucket& bucket) {
    RecordOf(bucket).Began(Stage::kCollective);
    SparseOptions options;
    options.factor = settings_.factors.before_sum;
    options.background = true;
    options.by_holder = true;
    if (step_.joined) options.timeout = kJoinedTimeout;
    auto average = AllGatherSparse(*communicator_, absl::OkStatus(), bucket.sparse, options);
    RecordOf(bucket).bytes +=
        static_cast<int64_t>(bucket.sparse.bytes() + bucket.sparse.indices.size() * sizeof(int64_t));
    if (average.ok()) {
      bucket.sparse_average = *std::move(average);
    } else {
      step_.outcome->Fail(average.status(), bucket.index());
    }
  }

  absl::Status CopyOut(Bucket& bucket) {
    if (bucket.reduced) bucket.ReadTrailer(bucket.Trailer(1));
    bucket.PutBack();
    // Nobody may step on what is not an average.
    if (!bucket.reduced || bucket.failed > 0) return absl::OkStatus();
    const Bucket::Result result = bucket.result();
    const double factor = CopyOutFactor(bucket.joined);
    for (size_t s = 0; s < bucket.slots.size(); ++s) {
      if (!bucket.slots[s].used_anywhere) continue;
      const Parameter& parameter = parameters_[bucket.plan().slots[s].parameter];
      if (bucket.plan().sparse) {
        if (factor == 1) continue;
        LOCKSTEP_ASSIGN_OR_RETURN(bucket.sparse_average, Coalesce(bucket.sparse_average.view(parameter.name), factor));
        continue;
      }
      LOCKSTEP_RETURN_IF_ERROR(bucket.CopyOut(s, result.data, result.dtype, factor, parameter));
    }
    bucket.copied_out_well = true;
    return absl::OkStatus();
  }

  double CopyOutFactor(int joined) const {
    if (!settings_.divide_by_live || joined == 0) return settings_.factors.copy_out;
    const int ranks = communicator_->size();
    return settings_.factors.copy_out * ranks / std::max(1, ranks - joined);
  }
};

}  // namespace

std::unique_ptr<BucketPipeline> MakeHostPipeline(const BucketPipeline::Parts& parts,
                                                 BucketPipeline::Settings settings) {
  return std::make_unique<HostPipeline>(parts, std::move(settings));
}

}  // namespace lockstep
