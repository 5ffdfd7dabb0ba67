// Over the fake CUDA and the fake NCCL: steps that are issued before the one before them is done, and pointers that are checked.

#include <atomic>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/device/cuda/cuda_api_testing.h"
#include "comm/device/device_communicator.h"
#include "comm/device/nccl/nccl_testing.h"
#include "kernels/bucket_kernels.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/reducer_capture_testing.h"
#include "tests/fake_cuda_kernels.h"
#include "tests/gate.h"

namespace lockstep::testing {
namespace {

// Holds up the copies of the first step's averages until a gradient of another step is copied in, or has not been for a while.
class HeldKernels : public FakeCudaKernels {
 public:
  explicit HeldKernels(FakeCuda* cuda) : FakeCudaKernels(cuda), cuda_(cuda) {}

  absl::Status Gather(absl::Span<const kernels::BucketPiece> pieces, absl::Span<const kernels::BucketEntry> entries,
                      void* flat, DType flat_dtype, double factor, Stream& stream) const override {
    const bool first = first_;
    cuda_->LaunchKernel(stream.native(), [this, first] {
      if (!first && !copied_out_) early_ = true;
      if (!first) copied_in_.Open();
    });
    return FakeCudaKernels::Gather(pieces, entries, flat, flat_dtype, factor, stream);
  }
  absl::Status Spread(absl::Span<const kernels::BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                      const kernels::BucketGate& gate, Stream& stream) const override {
    if (first_) {
      cuda_->LaunchKernel(stream.native(), [this] {
        (void)copied_in_.Await(Deadline::AfterMs(100));
        copied_out_ = true;
      });
    }
    return FakeCudaKernels::Spread(pieces, flat, flat_dtype, factor, gate, stream);
  }

  // What is launched from now on is of another step.
  void EndFirstStep() { first_ = false; }
  bool early() const { return early_; }

 private:
  FakeCuda* const cuda_;
  std::atomic<bool> first_{true};
  mutable std::atomic<bool> copied_out_{false};
  mutable std::atomic<bool> early_{false};
  mutable Gate copied_in_;
};

class ReducerAhead : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    static const auto* const kernels = new FakeCudaKernels(fakes_.cuda);
    ReplaceKernelsForTesting(kernels);
  }
};

TEST_F(ReducerAhead, BucketsAreNotFilledBeforeTheLastStepHasLeftThem) {
  static auto* const kernels = new HeldKernels(fakes_.cuda);
  ReplaceKernelsForTesting(kernels);
  Create(1);
  {
    ReducerOptions options = CapturingRank::Options();
    options.bucket_caps_bytes = {size_t{1} << 20};  // one bucket
    CapturingRank rank(this->rank(0), options);
    rank.Compute(0);
    LOCKSTEP_ASSERT_OK(rank.Backward({}));
    kernels->EndFirstStep();
    // On a stream that waits for nothing.
    const auto other = fakes_.device->CreateStream("other").value();
    LOCKSTEP_ASSERT_OK(rank.Begin());
    for (const size_t index : rank.order()) {
      LOCKSTEP_EXPECT_OK(rank.Mark(index, other.get()));
    }
    LOCKSTEP_EXPECT_OK(rank.End(other.get()));
    LOCKSTEP_EXPECT_OK(other->Synchronize(Deadline::AfterMs(60'000)));
  }
  EXPECT_FALSE(kernels->early());
}

TEST_F(ReducerAhead, ManyStepsComeOutRightWhilePlansChange) {
  Create(2);
  OnRanks([](Communicator& self) {
    ReducerOptions options = CapturingRank::Options();
    options.replan = true;
    CapturingRank rank(self, options);
    for (int step = 0; step < 60; ++step) {
      if (step == 30) {
        LOCKSTEP_EXPECT_OK(rank.reducer().RequestReplan());
      }
      LOCKSTEP_EXPECT_OK(rank.Begin());
      for (const size_t index : rank.order()) {
        LOCKSTEP_EXPECT_OK(rank.ComputeOn(rank.stream(), index, step % 2));
        rank.MarkAll({index});
      }
      // Some ranks wait for the end of some steps: plans change at the same one on all of them.
      const bool waits = step % 3 == self.rank().value();
      LOCKSTEP_EXPECT_OK(rank.End(waits ? nullptr : &rank.stream()));
      LOCKSTEP_EXPECT_OK(rank.Synchronize());
      rank.ExpectAverages(step % 2);
    }
  });
}

TEST_F(ReducerAhead, AStepIsCapturedOnceTheLastOneIsOver) {
  Create(2);
  OnRanks([](Communicator& self) {
    CapturingRank rank(self);
    rank.Compute(0);
    for (int step = 0; step < 2; ++step) LOCKSTEP_EXPECT_OK(rank.Backward({}));
    void* const graph = rank.CaptureStep();
    rank.Replay(graph, 1);
    rank.Compute(2);
    LOCKSTEP_EXPECT_OK(rank.Backward({}));
    EXPECT_EQ(LaunchGraph(graph, rank.stream().native()), 0);
    LOCKSTEP_EXPECT_OK(rank.Backward({}));
    LOCKSTEP_EXPECT_OK(rank.Synchronize());
    LOCKSTEP_EXPECT_OK(rank.reducer().CheckReplays());
    EXPECT_THAT(rank.reducer().AverageOf(0), IsOk());
    EXPECT_EQ(rank.reducer().statistics().steps, 5);
  });
}

// In checked mode a reducer looks whether gradients are where they say, before a kernel does.
TEST_F(ReducerAhead, MemoryOfTheHostIsNoGradientOfADevice) {
  Create(2);
  OnRanks([](Communicator& self) {
    static_cast<DeviceCommunicator&>(self).CheckPointers();
    CapturingRank rank(self);
    rank.Compute(0);
    LOCKSTEP_ASSERT_OK(rank.Begin());
    std::vector<float> on_host(90);
    const TensorView gradient = rank.Gradient(2);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(
        const TensorView claimed,
        TensorView::Create(on_host.data(), DType::kF32, gradient.shape(), gradient.strides(), self.device()));
    const auto refused = InvalidArgument("mark_ready: the gradient of parameter 2 'p2'", "cuda:0");
    EXPECT_THAT(rank.reducer().MarkReady(2, claimed, &rank.stream()), refused);
    const auto target_refused = InvalidArgument("the target of parameter 2");
    EXPECT_THAT(rank.reducer().MarkReady(2, gradient, claimed, &rank.stream()), target_refused);

    // It is still to come. The bucket waits for others, so nothing is issued: the fake NCCL's buckets are memory of the host.
    LOCKSTEP_EXPECT_OK(rank.reducer().MarkReady(2, gradient, &rank.stream()));
    // The destructor issues them, so the communicator ends: not while the other rank is still making its reducer.
    CollectiveRequest barrier;
    barrier.by_holder = true;
    (void)self.Run(barrier);
  });
}

}  // namespace
}  // namespace lockstep::testing
