// Ranks that are processes, and share one GPU by memory that they map. Skips without a GPU and where CUDA, asked beforehand, does
// not share memory between processes; linked with a fake of CUDA (tests/with_fake_cuda.cc) it runs here, too, with the same
// memory before all processes and kernels of the host.

#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_api.h"
#include "base/cuda_device.h"
#include "base/cuda_ipc.h"
#include "base/deadline.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/byte_objects.h"
#include "comm/communicator.h"
#include "comm/device_processes.h"
#include "comm/ipc_communicator.h"
#include "comm/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/fold_kernels.h"
#include "kernels/cuda/fold_kernels.h"
#include "tests/communicator_testing.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"
#include "transport/store_tcp_server.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Code = absl::StatusCode;

bool IsFake() { return &TheCudaApi() != &internal::LinkedCudaApi(); }

struct IpcWorld {
  std::unique_ptr<World> world;
  std::unique_ptr<IpcCommunicator> communicator;  // goes first

  static absl::StatusOr<IpcWorld> Create(const WorldOptions& options) {
    IpcWorld made;
    LOCKSTEP_ASSIGN_OR_RETURN(made.world, World::Create(options));
    LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
    IpcOptions ipc;
    ipc.timeout = std::chrono::seconds(60);
    // The largest cases take several pieces.
    ipc.slots = {32 << 10, 4 << 10};
    ipc.kernels = IsFake() ? kernels::HostFoldKernels() : kernels::CudaFoldKernels();
    LOCKSTEP_ASSIGN_OR_RETURN(made.communicator,
                              IpcCommunicator::Create(made.world->communicator(), device, std::move(ipc)));
    return made;
  }
};

// Whether a stream of the device awaits a word that another of its calls has written.
absl::Status TryWord(Device* device) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("trial"));
  LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, device->AllocateOnHost(sizeof(std::atomic<uint32_t>)));
  auto* const word = new (memory) std::atomic<uint32_t>(0);
  absl::Status tried = stream->WriteValue(word, 1);
  if (tried.ok()) tried = stream->AwaitValue(word, 1);
  tried.Update(stream->Synchronize(SoonOnDevice()));
  device->FreeOnHost(memory);
  return tried;
}

constexpr char kPossible[] = "possible";

// Asks CUDA itself whether rank 1 opens memory of rank 0's, and streams await words. Sends why not, or kPossible; whatever
// else goes wrong is an error.
LOCKSTEP_RANK_FUNCTION(IpcIsPossible) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  WorldOptions options = ProcessWorldOptions(self, store.get());
  options.job_id = "possible";
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, World::Create(options));
  LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
  LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, device->Allocate(kCudaIpcGranularity));
  const absl::StatusOr<std::string> exported = ExportCudaMemory(0, memory);
  absl::Status possible = exported.status();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> handles,
                            AllGatherBytes(world->communicator(), exported.ok() ? *exported : ""));
  if (self.rank() == 1 && !handles[0].empty()) {
    const absl::StatusOr<void*> opened = OpenCudaMemory(0, handles[0]);
    possible.Update(opened.status());
    if (opened.ok()) CloseCudaMemory(0, *opened);
  }
  possible.Update(TryWord(device));
  // Nobody frees what another has open.
  LOCKSTEP_RETURN_IF_ERROR(world->communicator()->Run({}));
  device->Free(memory);
  if (!possible.ok() && !absl::IsUnavailable(possible) && !absl::IsUnimplemented(possible)) return possible;
  return self.Send(possible.ok() ? kPossible : possible.ToString());
}

LOCKSTEP_RANK_FUNCTION(IpcEverything) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  LOCKSTEP_ASSIGN_OR_RETURN(IpcWorld world, IpcWorld::Create(ProcessWorldOptions(self, store.get())));
  LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
  Communicator& communicator = *world.communicator;
  LOCKSTEP_RETURN_IF_ERROR(self.Send(communicator.Describe()));
  for (const CollectiveCase& c : DeviceCases(communicator)) {
    LOCKSTEP_RETURN_IF_ERROR(RunDeviceCase(communicator, device, c));
  }
  // Memory that all map is reduced where it is: more than a shot.
  LOCKSTEP_RETURN_IF_ERROR(Annotate(RunOnStreams(communicator, device), "streams"));
  LOCKSTEP_RETURN_IF_ERROR(Annotate(RunParts(communicator, device), "parts"));
  return RunAllCollectives(&communicator);
}

constexpr int kRanks = 3;
constexpr int kVictim = 1;

// Reduces without a pause until that fails. Tells when it has begun, and how it ended.
absl::Status ReduceUntilItFails(RankProcess& self, const WorldOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const IpcWorld world, IpcWorld::Create(options));
  constexpr size_t kCount = 100'000;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<SymmetricBuffer> memory,
                            world.communicator->AllocateOnDevice(kCount * sizeof(float)));
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = DType::kF32;
  request.count = kCount;
  request.input = request.output = memory->data();
  request.device = world.communicator->device();
  LOCKSTEP_RETURN_IF_ERROR(world.communicator->Run(request));
  LOCKSTEP_RETURN_IF_ERROR(self.Send("begun"));
  absl::Status status;
  while (status.ok()) status = world.communicator->Run(request);
  return self.Send(status.ToString());
}

LOCKSTEP_RANK_FUNCTION(IpcSurvivors) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  WorldOptions options = ProcessWorldOptions(self, store.get());
  options.peer_timeout = std::chrono::seconds(5);
  LOCKSTEP_RETURN_IF_ERROR(ReduceUntilItFails(self, options));
  // What is left of the world goes on in the same processes.
  options.job_id = "survivors";
  options.size = options.local_size = kRanks - 1;
  options.rank = options.local_rank = self.rank() < kVictim ? self.rank() : self.rank() - 1;
  LOCKSTEP_ASSIGN_OR_RETURN(const IpcWorld world, IpcWorld::Create(options));
  CollectiveCase c;
  c.count = 20'000;
  LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
  return RunDeviceCase(*world.communicator, device, c);
}

LOCKSTEP_RANK_FUNCTION(IpcOnHostsOfTheirOwn) {
  setenv("LOCKSTEP_HOST_ID", absl::StrCat("test-host-", self.rank()).c_str(), /*overwrite=*/1);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  return IpcWorld::Create(ProcessWorldOptions(self, store.get())).status();
}

class IpcProcess : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const absl::Status device = CudaDevice(0).status(); !device.ok()) GTEST_SKIP() << device;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(store_, ServeTestStore());
    // Asked once, and before what is tested may fail for reasons of its own.
    static const std::string* const answer = new std::string(Ask());
    if (*answer != kPossible) {
      ASSERT_FALSE(IsFake()) << *answer;
      GTEST_SKIP() << *answer;
    }
  }
  // What IpcIsPossible found; the test has failed where it did not find it out.
  std::string Ask() const {
    const auto group = ProcessGroup::Start("IpcIsPossible", Options(2));
    EXPECT_THAT(group, IsOk());
    if (!group.ok()) return group.status().ToString();
    for (const absl::Status& ended : (*group)->WaitAll(CommTestDeadline())) EXPECT_THAT(ended, IsOk());
    for (int rank = 0; rank < 2; ++rank) {
      const absl::StatusOr<std::string> found = (*group)->Receive(rank, CommTestDeadline());
      EXPECT_THAT(found, IsOk());
      if (found.value_or("") != kPossible) return found.value_or("not found out");
    }
    return kPossible;
  }
  ProcessGroup::Options Options(int size) const {
    ProcessGroup::Options options;
    options.size = size;
    options.arguments = {store_->address().ToString()};
    return options;
  }

  std::unique_ptr<TcpStoreServer> store_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, IpcProcess, ::testing::Values(1, 2, 4));

TEST_P(IpcProcess, CarriesOutEveryCall) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto group, ProcessGroup::Start("IpcEverything", Options(GetParam())));
  const Deadline deadline = Deadline::AfterMs(280'000);
  const std::vector<absl::Status> ended = group->WaitAll(deadline);
  for (const absl::Status& status : ended) EXPECT_THAT(status, IsOk());
  EXPECT_THAT(group->Receive(0, deadline), IsOkAndHolds(HasSubstr("cuda:0: ipc: kernels read")));
}

class IpcProcessFault : public IpcProcess {};

TEST_F(IpcProcessFault, ARankThatIsKilledFailsTheOthersSoonAndTheyGoOn) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto group, ProcessGroup::Start("IpcSurvivors", Options(kRanks)));
  for (int r = 0; r < kRanks; ++r) {
    ASSERT_THAT(group->Receive(r, CommTestDeadline()), IsOkAndHolds("begun"));
  }
  EXPECT_THAT(group->Signal(kVictim, SIGKILL), IsOk());
  for (int r = 0; r < kRanks; ++r) {
    if (r == kVictim) continue;
    // Long before the deadline of a call.
    EXPECT_THAT(group->Receive(r, Deadline::AfterMs(30'000)),
                IsOkAndHolds(AllOf(AnyOf(StartsWith("UNAVAILABLE"), StartsWith("ABORTED")), HasSubstr("rank 1"))));
    EXPECT_THAT(group->Wait(r, CommTestDeadline()), IsOk());
  }
}

TEST_F(IpcProcessFault, RanksOnDifferentHostsAreNamed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto group, ProcessGroup::Start("IpcOnHostsOfTheirOwn", Options(2)));
  for (const absl::Status& status : group->WaitAll(CommTestDeadline())) {
    EXPECT_THAT(status, StatusIs(Code::kUnavailable, HasSubstr("ranks 0 and 1 are on different hosts")));
  }
}

}  // namespace
}  // namespace lockstep
