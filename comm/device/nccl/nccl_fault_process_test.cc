// Ranks that are killed while NCCL works, as processes on one GPU (comm/device/nccl/nccl_processes.h). Skips without a GPU or NCCL.
//
// Method: in the middle of an all-reduce every process all-reduces without a pause, so that whenever the signal
// comes, it comes in the middle. In NCCL's set-up the victim does what every rank does before it, and then nothing
// more. Survivors must be told soon and name the victim, and the same processes must be able to go on with the GPU
// without it.

#include <signal.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/byte_objects.h"
#include "comm/communicator.h"
#include "comm/device/nccl/nccl_peers.h"
#include "comm/device/nccl/nccl_processes.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"
#include "transport/store/store.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 3;
constexpr int kVictim = 1;
constexpr size_t kCount = 4 << 20;
// Far below the 60 s that an operation may take. Aborting takes as long as kernels of several processes take turns.

Deadline Soon() { return Deadline::AfterMs(120'000); }

WorldOptions FaultWorldOptions(const RankProcess& self, Store* store) {
  WorldOptions options = ProcessWorldOptions(self, store);
  options.peer_timeout = std::chrono::seconds(5);
  return options;
}

absl::Status AllReduce(Communicator& self, char* memory) {
  CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, kCount, memory, memory);
  request.device = self.device();
  return self.Run(request);
}

// What is left of the world, and the same GPU.
absl::Status GoOn(const RankProcess& self, Store* store) {
  WorldOptions options = FaultWorldOptions(self, store);
  options.job_id = "survivors";
  options.size = options.local_size = kRanks - 1;
  options.rank = options.local_rank = self.rank() < kVictim ? self.rank() : self.rank() - 1;
  LOCKSTEP_ASSIGN_OR_RETURN(const NcclWorld world, NcclWorld::Create(options));
  LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
  CollectiveCase c;
  c.count = 1000;
  const CaseReference reference(c, options.size);
  CaseRun run(reference, world.communicator->rank(), CaseMemory{device});
  LOCKSTEP_RETURN_IF_ERROR(world.communicator->Run(run.request()));
  const std::string wrong = run.Check();
  return wrong.empty() ? absl::OkStatus() : absl::DataLossError(wrong);
}

// Says "running", then how the all-reduces ended, then how it went on.
LOCKSTEP_RANK_FUNCTION(NcclAllReduces) {
  BeOnAHostOfItsOwn(self);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  absl::Status result;
  {
    LOCKSTEP_ASSIGN_OR_RETURN(const NcclWorld world, NcclWorld::Create(FaultWorldOptions(self, store.get())));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto memory, world.communicator->AllocateOnDevice(kCount * sizeof(float)));
    const Deadline deadline = Soon();
    for (int round = 0; result.ok() && !deadline.passed(); ++round) {
      if (round == 2) LOCKSTEP_RETURN_IF_ERROR(self.Send("running"));
      result = AllReduce(*world.communicator, memory->data());
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(self.Send(result.ToString()));
  return self.Send(GoOn(self, store.get()).ToString());
}

LOCKSTEP_RANK_FUNCTION(NcclSetUp) {
  BeOnAHostOfItsOwn(self);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  absl::Status result;
  {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, World::Create(FaultWorldOptions(self, store.get())));
    LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
    Communicator* const host = world->communicator();
    if (self.rank() == kVictim) {
      // As NcclCommunicator::Create does before it begins with NCCL.
      LOCKSTEP_RETURN_IF_ERROR(AllGatherBytes(host, Encode(ThisNcclPeer(device->id()))).status());
      LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> setup, host->Duplicate());
      std::string id;
      LOCKSTEP_RETURN_IF_ERROR(BroadcastBytes(setup.get(), &id, Rank(0)));
      LOCKSTEP_RETURN_IF_ERROR(self.Send("running"));
      return self.Receive(Soon()).status();
    }
    LOCKSTEP_RETURN_IF_ERROR(self.Send("running"));
    result = NcclCommunicator::Create(host, device, NcclProcessCommunicatorOptions()).status();
  }
  LOCKSTEP_RETURN_IF_ERROR(self.Send(result.ToString()));
  return self.Send(GoOn(self, store.get()).ToString());
}

class NcclFault : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoNccl(); !why.empty()) GTEST_SKIP() << why;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(store_, ServeTestStore());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(
        group_, ProcessGroup::Start(GetParam(), NcclProcessOptions(kRanks, store_->address().ToString())));
  }
  std::string Answer(int rank) {
    const absl::StatusOr<std::string> answer = group_->Receive(rank, Soon());
    return answer.ok() ? *answer : absl::StrCat("no answer: ", answer.status().ToString());
  }

  std::unique_ptr<TcpStoreServer> store_;
  std::unique_ptr<ProcessGroup> group_;
};

INSTANTIATE_TEST_SUITE_P(Killed, NcclFault, ::testing::Values("NcclAllReduces", "NcclSetUp"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(NcclFault, SurvivorsAreToldAndGoOnWithTheGpu) {
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_EQ(Answer(rank), "running");
  ASSERT_THAT(group_->Signal(kVictim, SIGKILL), IsOk());
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kVictim) continue;
    EXPECT_THAT(Answer(rank), AllOf(StartsWith("ABORTED: "), HasSubstr(absl::StrCat("rank ", kVictim, " (host "))));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kVictim) continue;
    EXPECT_EQ(Answer(rank), "OK");
  }
}

}  // namespace
}  // namespace lockstep
