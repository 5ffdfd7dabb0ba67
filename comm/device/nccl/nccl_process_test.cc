// NCCL itself, with ranks that are processes on one GPU (comm/device/nccl/nccl_processes.h). Skips without a GPU or NCCL.
//
// Method: every rank runs the same cases. Memory of the device, streams of the caller's, groups, messages and subgroups have a case
// each. Buffers of cases are in pinned memory, which kernels reach by address, so that inputs and outputs are made and judged as
// everywhere else (tests/communicator_testing.h).

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/device/nccl/nccl_processes.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

Deadline SoonOnDevice() { return Deadline::AfterMs(60'000); }

// Every collective, dtype and op that the communicator has, in and out of place, with equal and unequal blocks, by
// turns.
std::vector<CollectiveCase> DeviceCases(const Communicator& self) {
  static constexpr size_t kCounts[] = {5, 300, 1, 0, 20'000, 67};
  std::vector<CollectiveCase> cases;
  for (const Collective collective : kAllCollectives) {
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllReduceOps) {
        if (!HasReduction(collective) && (op != ReduceOp::kSum || dtype != DType::kBF16)) continue;
        if (HasReduction(collective) && !self.Supports(collective, dtype, op).ok()) continue;
        for (int turn = 0; turn < (HasReduction(collective) ? 1 : 8); ++turn) {
          const uint32_t k = static_cast<uint32_t>(cases.size());
          CollectiveCase c;
          c.collective = collective;
          c.dtype = dtype;
          c.op = op;
          c.root = static_cast<int>(k % self.size());
          c.count = kCounts[k % std::size(kCounts)];
          c.in_place = k / 2 % 2 == 1 && collective != Collective::kBarrier;
          c.unequal = k % 2 == 1 && IsByRank(collective) && !(c.in_place && collective == Collective::kAllToAll);
          c.seed = k;
          cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

absl::Status RunDeviceCase(Communicator& self, Device* device, const CollectiveCase& c) {
  const CaseReference reference(c, self.size());
  CaseRun run(reference, self.rank(), CaseMemory{device});
  LOCKSTEP_RETURN_IF_ERROR(Annotate(self.Run(run.request()), ToString(c)));
  const std::string wrong = run.Check();
  return wrong.empty() ? absl::OkStatus() : absl::DataLossError(absl::StrCat(ToString(c), ": ", wrong));
}

// An all-reduce of ones in memory of the device, in the order of the stream, `rounds` times over.
absl::Status SumInStream(Communicator& self, Device* device, Stream& stream, char* memory, int rounds) {
  constexpr size_t kCount = 10'000;
  auto* const ones = static_cast<float*>(device->AllocateOnHost(kCount * sizeof(float)).value());
  std::fill_n(ones, kCount, 1.0f);
  CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, kCount, memory, memory);
  request.device = device->id();
  float expected = 1;
  LOCKSTEP_RETURN_IF_ERROR(stream.Copy(memory, ones, kCount * sizeof(float)));
  for (int round = 0; round < rounds; ++round) {
    bool done = false;
    LOCKSTEP_RETURN_IF_ERROR(
        self.Enqueue(request, &stream, [&done](const absl::Status& status) { done = status.ok(); }));
    if (!done) return absl::InternalError("not done when Enqueue returned");
    expected *= static_cast<float>(self.size());
  }
  LOCKSTEP_RETURN_IF_ERROR(stream.Copy(ones, memory, kCount * sizeof(float)));
  LOCKSTEP_RETURN_IF_ERROR(stream.Synchronize(SoonOnDevice()));
  LOCKSTEP_RETURN_IF_ERROR(self.status());
  const bool right = std::all_of(ones, ones + kCount, [expected](float sum) { return sum == expected; });
  device->FreeOnHost(ones);
  return right ? absl::OkStatus() : absl::DataLossError(absl::StrCat("sums of ", rounds, " rounds are wrong"));
}

absl::Status RunOnStreams(Communicator& self, Device* device) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<SymmetricBuffer> memory, self.AllocateOnDevice(1 << 16));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> own, device->CreateStream("own"));
  LOCKSTEP_RETURN_IF_ERROR(Annotate(SumInStream(self, device, *own, memory->data(), 3), "own stream"));
  for (const unsigned long handle : {0ul, kCudaLegacyStream, kCudaPerThreadStream}) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> borrowed,
                              device->BorrowStream(reinterpret_cast<void*>(handle)));
    LOCKSTEP_RETURN_IF_ERROR(
        Annotate(SumInStream(self, device, *borrowed, memory->data(), 3), absl::StrCat("borrowed stream ", handle)));
  }
  return absl::OkStatus();
}

absl::Status RunParts(Communicator& self, Device* device) {
  const int rank = self.rank().value();
  // Rank 0 is in none where there are others.
  const int color = rank == 0 && self.size() > 1 ? -1 : rank % 2;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> part, self.Split(color, -rank));
  if ((part == nullptr) != (color < 0)) return absl::InternalError("a part where there should be none, or none");
  CollectiveCase c;
  c.count = 1000;
  if (part != nullptr) LOCKSTEP_RETURN_IF_ERROR(RunDeviceCase(*part, device, c));
  return RunDeviceCase(self, device, c);
}

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
  CollectiveRequest sum = MakeRequest(Collective::kAllReduce, DType::kI32, 1, &numbers[2], &numbers[3]);
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
