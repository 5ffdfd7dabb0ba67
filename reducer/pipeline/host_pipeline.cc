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
    const size_t bytes = request.count * SizeOf(request.dtype);
    const auto done = [this, &bucket, bytes](const absl::Status& status) {
      Reduced(bucket, status, bytes);
      RecordOf(bucket).Ended(Stage::kCollective);
    };
    return communicator_->Enqueue(request, collective_.get(), before, done);
  }

  absl::Status EnqueueInPieces(Bucket& bucket) override {
    return collective_->Enqueue([this, &bucket] {
      RecordOf(bucket).Began(Stage::kCollective);
      ReduceInPieces(bucket);
      RecordOf(bucket).Ended(Stage::kCollective);
      return absl::OkStatus();
    });
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
    StatusTrailer trailer = bucket.Trailer(bucket.in_pieces() ? 1 : One(bucket));
    trailer.Clear(bucket.slots.size());
    if (step_.outcome->MarksFailed(bucket.index())) trailer.Set(StatusTrailer::kFailed);
    if (step_.joined) trailer.Set(StatusTrailer::kJoined);
    if (!step_.requested) trailer.Set(StatusTrailer::kUnrequested);
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

  // Whether all that the bucket reads and writes lies in memory that the ranks share, as it is sent.
  bool Shares(const Bucket& bucket) const {
    const AverageFactors& factors = settings_.factors_in_place;
    const BucketPlan::Bucket& plan = bucket.plan();
    if (plan.sparse || plan.dtype != plan.wire || factors.copy_in != 1 || factors.copy_out != 1 ||
        bucket.slots.size() > Pieces::kSharedMax) {
      return false;
    }
    const auto shares = [this, &plan](const TensorView& tensor) {
      return tensor.elements() == 0 ||
             (tensor.dtype() == plan.wire && tensor.dense() && communicator_->Shares(tensor.data(), tensor.bytes()));
    };
    return std::all_of(bucket.slots.begin(), bucket.slots.end(), [&shares](const Bucket::Slot& slot) {
      if (!slot.used || !shares(slot.gradient)) return false;
      if (slot.target.data() == nullptr) return slot.gradient.elements() == 0;
      return slot.target.data() == slot.gradient.data() || shares(slot.target);
    });
  }

  void ReduceInPieces(Bucket& bucket) {
    step_.outcome->Fail(bucket.SetAside(parameters_), bucket.index());
    WriteTrailer(bucket);
    float& elsewhere = bucket.own_trailer.back();
    elsewhere = Shares(bucket) ? 0 : 1;
    CollectiveRequest request = AllReduceFor(bucket);
    request.dtype = DType::kF32;
    request.count = bucket.own_trailer.size();
    request.input = request.output = bucket.own_trailer.data();
    const absl::Status told = communicator_->Run(request);
    Reduced(bucket, told, request.count * sizeof(float));
    if (!told.ok()) return;
    bucket.ReadTrailer(bucket.Trailer(1));
    // The same on all ranks: nobody writes to a gradient, nor steps on one, if some rank has failed.
    if (bucket.failed > 0) return;
    const absl::Status averaged =
        bucket.plan().sparse ? AverageSparse(bucket) : AverageInPieces(bucket, /*shared=*/elsewhere == 0);
    bucket.copied_out_well = bucket.reduced && averaged.ok();
    step_.outcome->Fail(averaged, bucket.index());
  }

  absl::Status AverageInPieces(Bucket& bucket, bool shared) {
    const BucketPlan::Bucket& plan = bucket.plan();
    const AverageFactors& factors = plan.dtype == plan.wire ? settings_.factors_in_place : settings_.factors;
    const absl::Status found = bucket.FindPieces(factors.copy_in, CopyOutFactor(factors, bucket.joined), parameters_);
    CollectiveRequest request = AllReduceFor(bucket);
    request.dtype = plan.wire;
    request.op = factors.op;
    request.factor = factors.premultiply;
    request.input_pieces = bucket.gradients_in_pieces;
    request.output_pieces = bucket.averages_in_pieces;
    request.shared_pieces = shared;
    const size_t bytes = request.input_pieces->bytes();
    request.count = bytes / SizeOf(plan.wire);
    Reduced(bucket, communicator_->Run(request), bytes);
    return found;
  }

  absl::Status AverageSparse(Bucket& bucket) {
    const double factor = CopyOutFactor(settings_.factors, bucket.joined);
    if (!bucket.slots[0].used_anywhere || factor == 1) return absl::OkStatus();
    const Parameter& parameter = parameters_[bucket.plan().slots[0].parameter];
    LOCKSTEP_ASSIGN_OR_RETURN(bucket.sparse_average, Coalesce(bucket.sparse_average.view(parameter.name), factor));
    return absl::OkStatus();
  }

  absl::Status CopyOut(Bucket& bucket) {
    if (bucket.reduced) bucket.ReadTrailer(bucket.Trailer(1));
    bucket.PutBack();
    // Nobody may step on what is not an average.
    if (!bucket.reduced || bucket.failed > 0) return absl::OkStatus();
    const Bucket::Result result = bucket.result();
    const double factor = CopyOutFactor(settings_.factors, bucket.joined);
    if (bucket.plan().sparse) LOCKSTEP_RETURN_IF_ERROR(AverageSparse(bucket));
    for (size_t s = 0; s < bucket.slots.size() && !bucket.plan().sparse; ++s) {
      if (!bucket.slots[s].used_anywhere) continue;
      const Parameter& parameter = parameters_[bucket.plan().slots[s].parameter];
      LOCKSTEP_RETURN_IF_ERROR(bucket.CopyOut(s, result.data, result.dtype, factor, parameter));
    }
    bucket.copied_out_well = true;
    return absl::OkStatus();
  }

  double CopyOutFactor(const AverageFactors& factors, int joined) const {
    if (!settings_.divide_by_live || joined == 0) return factors.copy_out;
    const int ranks = communicator_->size();
    return factors.copy_out * ranks / std::max(1, ranks - joined);
  }
};

}  // namespace

std::unique_ptr<BucketPipeline> MakeHostPipeline(const BucketPipeline::Parts& parts,
                                                 BucketPipeline::Settings settings) {
  return std::make_unique<HostPipeline>(parts, std::move(settings));
}

}  // namespace lockstep
