// In checked mode a reducer looks whether gradients are where they say, before a kernel does.

#include <vector>

#include "comm/device/device_communicator.h"
#include "comm/device/nccl/nccl_testing.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/reducer_capture_testing.h"
#include "tests/fake_cuda_kernels.h"

namespace lockstep {
namespace testing {
namespace {

class ReducerPointers : public NcclTest {
 protected:
  static void SetUpTestSuite() {
    static const auto* const kernels = new FakeCudaKernels(NcclFakes::Get().cuda);
    ReplaceKernelsForTesting(kernels);
  }
};

TEST_F(ReducerPointers, MemoryOfTheHostIsNoGradientOfADevice) {
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
  });
}

}  // namespace
}  // namespace testing
}  // namespace lockstep
