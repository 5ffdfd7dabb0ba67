// NCCL itself, with ranks that are processes on one GPU (comm/device/nccl/nccl_processes.h). Skips without a GPU or NCCL.
//
// Method: every rank carries out the same cases (comm/device/device_processes.h). Memory of the device, streams of the caller's,
// groups, messages and parts have a case each.

#include <cstdint>
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
#include "comm/communicator.h"
#include "comm/device/device_processes.h"
#include "comm/device/nccl/nccl_processes.h"
#include "comm/schedule/schedule.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// Everybody sends a number to the next, in a group with an all-reduce.
absl::Status RunGroup(Communicator& self, Device* device) {
  auto* const numbers = static_cast<int32_t*>(device->AllocateOnHost(4 * sizeof(int32_t)).value());
  const int rank = self.rank().value();
  numbers[0] = numbers[2] = rank + 1;
  numbers[1] = numbers[3] = 0;
  LOCKSTEP_RETURN_IF_ERROR(self.StartGroup());
  SendRequest send;
  send.target = Rank((rank + 1) % self.size());
  send.data = &numbers[0];
  send.bytes = sizeof(int32_t);
  send.device = device->id();
  LOCKSTEP_RETURN_IF_ERROR(self.StartSend(send).status());
  ReceiveRequest receive;
  receive.source = Rank((rank + self.size() - 1) % self.size());
  receive.data = &numbers[1];
  receive.bytes = sizeof(int32_t);
  receive.device = device->id();
  LOCKSTEP_RETURN_IF_ERROR(self.StartReceive(receive).status());
  CollectiveRequest sum;
  sum.collective = Collective::kAllReduce;
  sum.dtype = DType::kI32;
  sum.count = 1;
  sum.input = &numbers[2];
  sum.output = &numbers[3];
  sum.device = device->id();
  LOCKSTEP_RETURN_IF_ERROR(self.Start(sum).status());
  LOCKSTEP_ASSIGN_OR_RETURN(Work work, self.EndGroup());
  LOCKSTEP_RETURN_IF_ERROR(work.Wait(SoonOnDevice()));
  const bool right = numbers[1] == receive.source.value() + 1 && numbers[3] == self.size() * (self.size() + 1) / 2;
  const std::string got = absl::StrCat("received ", numbers[1], ", summed ", numbers[3]);
  device->FreeOnHost(numbers);
  return right ? absl::OkStatus() : absl::DataLossError(got);
}

LOCKSTEP_RANK_FUNCTION(NcclEverything) {
  BeOnAHostOfItsOwn(self);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  LOCKSTEP_ASSIGN_OR_RETURN(NcclWorld world, NcclWorld::Create(ProcessWorldOptions(self, store.get())));
  LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
  Communicator& communicator = *world.communicator;
  LOCKSTEP_RETURN_IF_ERROR(self.Send(communicator.Describe()));
  for (const CollectiveCase& c : DeviceCases(communicator))
    LOCKSTEP_RETURN_IF_ERROR(RunDeviceCase(communicator, device, c));
  LOCKSTEP_RETURN_IF_ERROR(Annotate(RunOnStreams(communicator, device), "streams"));
  LOCKSTEP_RETURN_IF_ERROR(Annotate(RunGroup(communicator, device), "group"));
  LOCKSTEP_RETURN_IF_ERROR(Annotate(RunParts(communicator, device), "parts"));
  // The host's collectives go on beside.
  return RunAllCollectives(&communicator);
}

// Without a host of its own.
LOCKSTEP_RANK_FUNCTION(NcclOnOneHost) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  return NcclWorld::Create(ProcessWorldOptions(self, store.get())).status();
}

class NcclProcess : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoNccl(); !why.empty()) GTEST_SKIP() << why;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(store_, ServeTestStore());
  }
  ProcessGroup::Options Options(int size) const { return NcclProcessOptions(size, store_->address().ToString()); }

  std::unique_ptr<TcpStoreServer> store_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, NcclProcess, ::testing::Values(1, 2, 4));

TEST_P(NcclProcess, CarriesOutEveryCall) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto group, ProcessGroup::Start("NcclEverything", Options(GetParam())));
  const Deadline deadline = Deadline::AfterMs(280'000);
  for (const absl::Status& status : group->WaitAll(deadline)) EXPECT_THAT(status, IsOk());
  EXPECT_THAT(group->Receive(0, deadline), IsOkAndHolds(HasSubstr("cuda:0: NCCL 2.")));
}

class NcclProcessRefusal : public NcclProcess {};

TEST_F(NcclProcessRefusal, TwoRanksOnOneGpuOfOneHostAreToldWhatToDo) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto group, ProcessGroup::Start("NcclOnOneHost", Options(2)));
  for (const absl::Status& status : group->WaitAll(SoonOnDevice())) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 ::testing::AllOf(HasSubstr("ranks 0 and 1"), HasSubstr("NCCL_HOSTID"))));
  }
}

}  // namespace
}  // namespace lockstep
