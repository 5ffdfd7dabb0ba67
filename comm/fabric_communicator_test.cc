// Collectives by slots on a device that the network reads and writes: who can have them, what they leave behind, and what
// becomes of calls that do not fit. Method: as in comm/fabric_testing.h; the suites have the results.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/poll.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/device_backend.h"
#include "comm/fabric_testing.h"
#include "comm/schedule.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fold_kernels.h"
#include "tests/communicator_testing.h"
#include "tests/gate.h"
#include "tests/guarded_device.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

constexpr DeviceId kGpu = {DeviceKind::kCuda, 0};

// Folds behind a gate.
class StalledKernels : public kernels::FoldKernels {
 public:
  explicit StalledKernels(Gate* gate) : gate_(gate) {}

  absl::Status Load(const Device& device) const override { return guarded_.Load(device); }
  absl::Status Fold(DType dtype, ReduceOp op, void* target, absl::Span<const void* const> sources, size_t count,
                    double factor, Stream& stream) const override {
    LOCKSTEP_RETURN_IF_ERROR(stream.Enqueue([gate = gate_] { return gate->Await(CommTestDeadline()); }));
    return guarded_.Fold(dtype, op, target, sources, count, factor, stream);
  }
  absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor,
                     Stream& stream) const override {
    return guarded_.Scale(dtype, target, source, count, factor, stream);
  }
  absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor, Stream& stream) const override {
    return guarded_.DivideTowardZero(dtype, data, count, divisor, stream);
  }

 private:
  const kernels::FoldKernels& guarded_ = *GuardedFoldKernels();
  Gate* const gate_;
};

// Of a case, on every rank: whatever it says, and "" from those whose results are right.
std::vector<absl::Status> RunCase(FabricWorld* world, const CollectiveCase& c) {
  const int size = static_cast<int>(world->ranks().size());
  const CaseReference reference(c, size);
  std::vector<absl::Status> results(size);
  testing::RunRanks(size, [&](int rank) {
    CaseMemory memory;
    memory.device = &world->device(rank);
    CaseRun run(reference, Rank(rank), memory);
    results[rank] = world->rank(rank)->Run(run.request());
    if (!results[rank].ok()) return;
    EXPECT_EQ(run.Check(), "") << "rank " << rank << ", " << ToString(c);
  });
  return results;
}

TEST(FabricCommunicator, NothingStaysRegisteredAndTheProviderHasNothingToComplainOf) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(3));
  ASSERT_THAT(world->ConnectAll(), IsOk());
  EXPECT_EQ(world->provider().registered_cuda(), 3u) << "the slots of each rank";
  EXPECT_THAT(world->rank(0)->Describe(),
              HasSubstr("fabric: the network reads and writes 3 slots of 1048576 bytes on"));
  CollectiveCase c;
  c.count = 300'000;
  for (const absl::Status& status : RunCase(world.get(), c)) EXPECT_THAT(status, IsOk());
  EXPECT_EQ(world->provider().registered_cuda(), 3u) << "the caller's buffers are not";
  testing::RunRanks(3, [&](int rank) { world->rank(rank) = nullptr; });
  EXPECT_EQ(world->provider().registered_cuda(), 0u);
  EXPECT_THAT(world->provider().complaints(), IsEmpty());
}

// Folded by groups.
TEST(FabricCommunicator, MoreRanksThanAKernelFoldsAtOnce) {
  constexpr int kRanks = 11;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(kRanks));
  ASSERT_THAT(world->ConnectAll(), IsOk());
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kAvg, ReduceOp::kPremulSum}) {
      for (const DType dtype : {DType::kF32, DType::kI64}) {
        if (!IsDefined(dtype, op)) continue;
        CollectiveCase c;
        c.collective = collective;
        c.op = op;
        c.dtype = dtype;
        c.root = 9;
        c.count = HasRoot(collective) || collective == Collective::kAllReduce ? 1000 : 90;
        for (const absl::Status& status : RunCase(world.get(), c)) EXPECT_THAT(status, IsOk()) << ToString(c);
      }
    }
  }
}

TEST(FabricCommunicator, ANetworkThatDoesNotReachTheDeviceIsSaid) {
  FakeProviderOptions fake = FabricProvider();
  fake.caps &= ~uint64_t{FI_HMEM};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(2, fake));
  for (const FabricWorld::Made& made : world->Connect()) {
    EXPECT_THAT(made.status(), StatusIs(Code::kUnimplemented, HasSubstr("fake does not take memory of a device")));
  }
  // And what can be had instead is.
  testing::RunRanks(2, [&](int rank) {
    DeviceBackendOptions options;
    options.fold_kernels = GuardedFoldKernels();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceCommunicator> made,
                                  MakeDeviceCommunicator(&world->host(rank), &world->device(rank), options));
    EXPECT_THAT(made->Describe(), AllOf(HasSubstr("staged through"),
                                        HasSubstr("fabric: rank 0: libfabric fake does not take memory of a device")));
  });
}

TEST(FabricCommunicator, IsChosenWhereNothingBetterIs) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(2));
  testing::RunRanks(2, [&](int rank) {
    DeviceBackendOptions options;
    options.fold_kernels = GuardedFoldKernels();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceCommunicator> made,
                                  MakeDeviceCommunicator(&world->host(rank), &world->device(rank), options));
    EXPECT_THAT(made->Describe(), AllOf(HasSubstr("fabric: the network reads and writes 3 slots of 4194304 bytes"),
                                        HasSubstr("nccl: rank 0: "), HasSubstr("ipc: rank 0: ")));
  });
}

TEST(FabricCommunicator, WithoutKernelsOrAlikeOptionsThereIsNone) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(2));
  const auto without = world->Connect([](int rank, StagedOptions* options) {
    if (rank == 1) options->kernels = nullptr;
  });
  EXPECT_THAT(without[0].status(), StatusIs(Code::kUnavailable, HasSubstr("rank 1: this program has no kernels")));
  EXPECT_THAT(without[1].status(), StatusIs(Code::kUnavailable, HasSubstr("this program has no kernels")));
  const auto unlike = world->Connect([](int rank, StagedOptions* options) {
    if (rank == 1) options->place = Staging::Place::kOnHost;
  });
  for (const FabricWorld::Made& made : unlike) {
    EXPECT_THAT(made.status(), StatusIs(Code::kFailedPrecondition,
                                        AllOf(HasSubstr("rank 0 by 3 slots of 1048576 bytes on the device"),
                                              HasSubstr("rank 1 by 3 slots of 1048576 bytes on the host"))));
  }
  EXPECT_EQ(world->provider().registered_cuda(), 0u);
  EXPECT_THAT(world->ConnectAll(), IsOk()) << "the hosts' communicators are still good";
}

TEST(FabricCommunicator, CallsThatDifferAreToldApartBeforeAnythingMoves) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(2));
  ASSERT_THAT(world->ConnectAll(), IsOk());
  testing::RunRanks(2, [&](int rank) {
    GuardedDevice& device = world->device(rank);
    void* const memory = device.Allocate(4096).value();
    CollectiveRequest request;
    request.collective = Collective::kAllReduce;
    request.dtype = DType::kF32;
    request.count = rank == 0 ? 100 : 101;
    request.input = request.output = memory;
    request.device = kGpu;
    const absl::Status status = world->rank(rank)->Run(request);
    EXPECT_THAT(status, StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("rank 0 called all_reduce #1 (100 f32 sum"),
                                                                  HasSubstr("rank 1 called all_reduce #1 (101 f32"))));
    device.Free(memory);
  });
}

TEST(FabricCommunicator, AnAllToAllWhoseCountsDoNotFitIsAnErrorOnWhoeverSeesIt) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(2));
  ASSERT_THAT(world->ConnectAll(), IsOk());
  testing::RunRanks(2, [&](int rank) {
    GuardedDevice& device = world->device(rank);
    void* const input = device.Allocate(4096).value();
    void* const output = device.Allocate(4096).value();
    // Rank 0 sends 4 elements, of which rank 1 expects 5.
    const std::vector<int64_t> counts = rank == 0 ? std::vector<int64_t>{1, 4} : std::vector<int64_t>{2, 3};
    const std::vector<int64_t> arriving = rank == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{5, 3};
    CollectiveRequest request;
    request.collective = Collective::kAllToAll;
    request.dtype = DType::kF32;
    request.count = 5;
    request.counts = counts;
    request.output_counts = arriving;
    request.input = input;
    request.output = output;
    request.device = kGpu;
    const absl::Status status = world->rank(rank)->Run(request);
    if (rank == 1) {
      EXPECT_THAT(status,
                  StatusIs(Code::kFailedPrecondition, HasSubstr("rank 0 sent 16 bytes where 20 were expected")));
    }
    device.Free(input);
    device.Free(output);
  });
}

// What the network or the device has no room or no leave for does not end a world that can do without.
TEST(FabricCommunicator, WhatCannotBeRegisteredOrHadIsARefusal) {
  for (const bool without_p2p : {false, true}) {
    FakeProviderOptions fake = FabricProvider();
    if (without_p2p) {
      fake.p2p = false;
    } else {
      fake.cuda_registration_error = FI_EFAULT;  // no module of the kernel's brings the two together
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(2, fake));
    for (const FabricWorld::Made& made : world->Connect()) {
      EXPECT_THAT(made.status(), without_p2p ? StatusIs(Code::kUnimplemented, HasSubstr("FI_HMEM_P2P_REQUIRED"))
                                             : StatusIs(Code::kUnavailable, HasSubstr("fi_mr_regattr")));
    }
    testing::RunRanks(2, [&](int rank) {
      DeviceBackendOptions options;
      options.fold_kernels = GuardedFoldKernels();
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeviceCommunicator> made,
                                    MakeDeviceCommunicator(&world->host(rank), &world->device(rank), options));
      EXPECT_THAT(made->Describe(), AllOf(HasSubstr("staged through"), HasSubstr("fabric: rank 0: ")));
    });
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(2));
  for (const FabricWorld::Made& made :
       world->Connect([](int, StagedOptions* options) { options->chunk_bytes = size_t{1} << 40; })) {
    EXPECT_THAT(made.status(), StatusIs(Code::kUnavailable, HasSubstr("staging memory of 3 x ")));
  }
}

// A call may end between its two rounds of messages, on whose behalf a stream and the thread wait for each other then.
TEST(FabricCommunicator, ACallWhoseFoldDoesNotComeEndsAtItsDeadlineAndLetsGoOfItsStreams) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(2));
  Gate gate;
  StalledKernels stalled(&gate);
  ASSERT_THAT(world->ConnectAll([&](int rank, StagedOptions* options) {
    if (rank == 1) options->kernels = &stalled;
  }),
              IsOk());
  testing::RunRanks(2, [&](int rank) {
    GuardedDevice& device = world->device(rank);
    constexpr size_t kCount = 1 << 20;
    void* const memory = device.Allocate(kCount * sizeof(float)).value();
    CollectiveRequest request;
    request.collective = Collective::kAllReduce;
    request.dtype = DType::kF32;
    request.count = kCount;
    request.input = request.output = memory;
    request.device = kGpu;
    // Rank 0 is in time for the first round, and then waits for what rank 1 folds.
    if (rank == 1) request.timeout = std::chrono::seconds(3);
    absl::StatusOr<Work> work = world->rank(rank)->Start(request);
    ASSERT_THAT(work.status(), IsOk());
    if (rank == 1) {
      // The work itself gives a device that hangs some more time.
      EXPECT_TRUE(PollUntil(CommTestDeadline(), [&] { return !world->rank(1)->status().ok(); }));
      gate.Open();
    }
    const absl::Status ended = work->Wait(CommTestDeadline());
    if (rank == 1) {
      EXPECT_THAT(ended, StatusIs(Code::kDeadlineExceeded, HasSubstr("the device has not folded what came in time")));
    } else {
      EXPECT_THAT(ended, StatusIs(Code::kAborted));
    }
    world->rank(rank) = nullptr;
    device.Free(memory);
  });
  EXPECT_THAT(world->provider().complaints(), IsEmpty());
}

// What the exchange is made of.
TEST(FabricCommunicator, MessagesLieInMemoryOfADeviceThatTheNetworkWasToldOf) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<FabricWorld> world, FabricWorld::CreateHosts(2));
  constexpr size_t kBytes = 1000;
  std::vector<char*> memory;
  for (int rank = 0; rank < 2; ++rank) {
    memory.push_back(static_cast<char*>(world->device(rank).Allocate(kBytes).value()));
    ASSERT_THAT(world->host(rank).AddDeviceMemory(memory[rank], kBytes, kGpu), IsOk());
    EXPECT_THAT(world->host(rank).AddDeviceMemory(memory[rank] + 10, 1, kGpu), StatusIs(Code::kInvalidArgument));
    EXPECT_THAT(world->host(rank).AddDeviceMemory(&memory, 8, DeviceId()),
                StatusIs(Code::kInvalidArgument, HasSubstr("where that of a GPU is expected")));
  }
  for (size_t i = 0; i < kBytes; ++i) {
    static_cast<char*>(ReachGuarded(memory[0]))[i] = static_cast<char>(i);
  }
  const auto send = [&](size_t offset, size_t bytes, int target = 1) {
    SendRequest request;
    request.target = Rank(target);
    request.data = memory[0] + offset;
    request.bytes = bytes;
    request.device = kGpu;
    return request;
  };
  EXPECT_THAT(world->host(0).Send(send(1, kBytes)),
              StatusIs(Code::kInvalidArgument, HasSubstr("which the network was not told of")));
  EXPECT_THAT(world->host(0).Send(send(0, 1, 0)), StatusIs(Code::kInvalidArgument, HasSubstr("to itself")));

  testing::RunRanks(2, [&](int rank) {
    if (rank == 0) {
      for (const size_t bytes : {size_t{0}, size_t{1}, kBytes})
        EXPECT_THAT(world->host(0).Send(send(0, bytes)), IsOk());
      // From the host's memory there is no way into a device's.
      SendRequest from_host;
      from_host.target = Rank(1);
      from_host.data = "x";
      from_host.bytes = 1;
      EXPECT_THAT(world->host(0).Send(from_host), IsOk());
      EXPECT_THAT(world->host(0).Send(send(0, 2)), IsOk());
      return;
    }
    ReceiveRequest receive;
    receive.data = memory[1];
    receive.bytes = kBytes;
    receive.device = kGpu;
    MessageInfo info;
    receive.info = &info;
    for (const size_t bytes : {size_t{0}, size_t{1}, kBytes}) {
      EXPECT_THAT(world->host(1).Receive(receive), IsOk());
      EXPECT_EQ(info.bytes, bytes);
    }
    EXPECT_EQ(static_cast<char*>(ReachGuarded(memory[1]))[kBytes - 1], static_cast<char>(kBytes - 1));
    EXPECT_THAT(
        world->host(1).Receive(receive),
        StatusIs(Code::kFailedPrecondition,
                 HasSubstr("sent from the host's memory, and the receive on rank 1 is into a device's memory")));
    EXPECT_THAT(world->host(1).Receive(receive), IsOk()) << "the lane is still good";
  });
  // Nor from the host's to itself, whoever comes first.
  for (const bool receive_first : {true, false}) {
    ReceiveRequest receive;
    receive.data = memory[0];
    receive.bytes = kBytes;
    receive.device = kGpu;
    SendRequest to_self;
    to_self.target = Rank(0);
    to_self.data = "12345678";
    to_self.bytes = 8;
    absl::StatusOr<Work> first =
        receive_first ? world->host(0).StartReceive(receive) : world->host(0).StartSend(to_self);
    absl::StatusOr<Work> second =
        receive_first ? world->host(0).StartSend(to_self) : world->host(0).StartReceive(receive);
    ASSERT_THAT(first.status(), IsOk());
    ASSERT_THAT(second.status(), IsOk());
    absl::StatusOr<Work>& received = receive_first ? first : second;
    EXPECT_THAT(received->Wait(CommTestDeadline()),
                StatusIs(Code::kFailedPrecondition, HasSubstr("sent from the host's memory")));
  }
  for (int rank = 0; rank < 2; ++rank) {
    world->host(rank).ForgetDeviceMemory(memory[rank]);
    world->device(rank).Free(memory[rank]);
  }
  EXPECT_THAT(world->host(0).Send(send(0, 1)), StatusIs(Code::kInvalidArgument));
}

}  // namespace
}  // namespace lockstep
