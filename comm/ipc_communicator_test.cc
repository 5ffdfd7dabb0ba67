// What IpcCommunicator promises beyond the suite of all communicators. Ranks are threads, over a fake of CUDA.

#include "comm/ipc_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_api.h"
#include "base/cuda_api_testing.h"
#include "base/cuda_device.h"
#include "base/cuda_graph_testing.h"
#include "base/deadline.h"
#include "base/device.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/ipc_testing.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/gate.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class IpcTest : public ::testing::Test {
 protected:
  void Create(int size, const IpcWorlds::Change& change = nullptr) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, IpcWorlds::Create(size, change));
  }
  int size() const { return static_cast<int>(world_->worlds.size()); }
  void OnRanks(const std::function<void(Communicator&)>& body) {
    ::lockstep::testing::RunRanks(size(), [&](int r) { body(*world_->ranks[r]); });
  }
  static Device* device() { return CudaDevice(0).value(); }

  // A sum of `count` floats in place, in memory of the fake device, which is the host's.
  static CollectiveRequest SumOf(char* memory, size_t count) {
    CollectiveRequest request;
    request.collective = Collective::kAllReduce;
    request.dtype = DType::kF32;
    request.count = count;
    request.input = request.output = memory;
    request.device = {DeviceKind::kCuda, 0};
    return request;
  }
  static std::vector<float> FloatsAt(const char* memory, size_t count) {
    const auto* const floats = reinterpret_cast<const float*>(memory);
    return {floats, floats + count};
  }
  // As a test of a rank that waits for another's failure.
  static void AwaitFailure(const Communicator& self) {
    const Deadline deadline = CommTestDeadline();
    while (self.status().ok() && !deadline.passed()) std::this_thread::yield();
  }

  FakeCuda& cuda_ = IpcFakeCuda();
  std::shared_ptr<IpcWorlds> world_;
};

// Any bits at all: folds in any other order, or rounded in between, would differ.
TEST_F(IpcTest, OneShotAndTwoGiveTheSameBits) {
  for (const int size : {2, 3, 8}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E5M2}) {
      CollectiveCase c;
      c.dtype = dtype;
      c.count = 1001;
      c.random_bits = true;
      const CaseReference reference(c, size);
      std::vector<std::vector<char>> outputs;
      for (const IpcSlots& slots : {IpcSlots{1 << 20, 1 << 20}, IpcSlots{1 << 20, 0}, IpcSlots{2048, 0}}) {
        Create(size, [&](int, IpcOptions* options) { options->slots = slots; });
        std::vector<std::vector<char>> of_rank(size);
        OnRanks([&](Communicator& self) {
          CaseRun run(reference, self.rank(), CaseMemory{device()});
          ASSERT_THAT(self.Run(run.request()), IsOk());
          of_rank[self.rank().value()] = run.output();
        });
        EXPECT_THAT(of_rank, Each(of_rank[0]));
        outputs.push_back(of_rank[0]);
      }
      EXPECT_THAT(outputs, Each(outputs[0])) << Name(dtype) << " on " << size << " ranks";
    }
  }
}

TEST_F(IpcTest, ABufferThatAllRanksMapIsReducedWhereItIs) {
  constexpr size_t kCount = 300'001;
  constexpr size_t kOffset = 4096;
  for (const int size : {2, 3}) {
    Create(size);
    std::vector<std::unique_ptr<SymmetricBuffer>> buffers(size);
    OnRanks([&](Communicator& self) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(buffers[self.rank().value()],
                                    self.AllocateOnDevice(kOffset + kCount * sizeof(float)));
      EXPECT_TRUE(buffers[self.rank().value()]->shared());
    });
    const int copies = cuda_.calls("cudaMemcpyAsync");
    OnRanks([&](Communicator& self) {
      char* const memory = buffers[self.rank().value()]->data() + kOffset;
      for (size_t i = 0; i < kCount; ++i)
        reinterpret_cast<float*>(memory)[i] = static_cast<float>(self.rank().value() + 1);
      ASSERT_THAT(self.Run(SumOf(memory, kCount)), IsOk());
      EXPECT_THAT(FloatsAt(memory, kCount), Each(size * (size + 1) / 2));
    });
    // Nothing into slots: each rank copies the others' parts.
    EXPECT_EQ(cuda_.calls("cudaMemcpyAsync") - copies, size * (size - 1));
    // The same memory by one shot, for which it is too small.
    OnRanks([&](Communicator& self) {
      char* const memory = buffers[self.rank().value()]->data();
      *reinterpret_cast<float*>(memory) = 2;
      ASSERT_THAT(self.Run(SumOf(memory, 1)), IsOk());
      EXPECT_THAT(FloatsAt(memory, 1), Each(2 * size));
    });
  }
}

// By factors of each rank's own, of which one is none.
TEST_F(IpcTest, APremultipliedSumInABufferThatAllMapGoesThroughSlots) {
  constexpr size_t kCount = 100'000;
  Create(2);
  OnRanks([&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SymmetricBuffer> buffer,
                                  self.AllocateOnDevice(kCount * sizeof(float)));
    auto* const values = reinterpret_cast<float*>(buffer->data());
    std::fill_n(values, kCount, 1.0f);
    CollectiveRequest request = SumOf(buffer->data(), kCount);
    request.op = ReduceOp::kPremulSum;
    request.factor = self.rank() == Rank(0) ? 1 : 10;
    ASSERT_THAT(self.Run(request), IsOk());
    EXPECT_THAT(FloatsAt(buffer->data(), kCount), Each(11.0f));
  });
}

TEST_F(IpcTest, ABufferMayOutliveTheCommunicatorAndAllIsFreedInTheEnd) {
  const int live = cuda_.live();
  Create(2);
  std::vector<std::unique_ptr<SymmetricBuffer>> buffers(2);
  OnRanks([&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(buffers[self.rank().value()], self.AllocateOnDevice(1000));
  });
  world_->ranks.clear();
  buffers[0]->data()[999] = 1;
  buffers.clear();
  world_.reset();
  EXPECT_EQ(cuda_.live(), live);
}

TEST_F(IpcTest, CallsOfSeveralStreamsKeepTheirOrder) {
  Create(3);
  OnRanks([&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> one, device()->CreateStream("one"));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> two, device()->CreateStream("two"));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, device()->AllocateOnHost(2 * sizeof(float)));
    auto* const values = static_cast<float*>(memory);
    values[0] = values[1] = 1;
    constexpr int kRounds = 20;
    for (int round = 0; round < kRounds; ++round) {
      for (int s = 0; s < 2; ++s) {
        const CollectiveRequest request = SumOf(reinterpret_cast<char*>(values + s), 1);
        bool done = false;
        ASSERT_THAT(self.Enqueue(request, s == 0 ? one.get() : two.get(), [&](const absl::Status&) { done = true; }),
                    IsOk());
        EXPECT_TRUE(done);
      }
    }
    EXPECT_THAT(one->Synchronize(CommTestDeadline()), IsOk());
    EXPECT_THAT(two->Synchronize(CommTestDeadline()), IsOk());
    float expected = 1;
    for (int round = 0; round < kRounds; ++round) expected *= 3;
    EXPECT_EQ(values[0], expected);
    EXPECT_EQ(values[1], expected);
    device()->FreeOnHost(memory);
  });
}

// ---- What goes wrong

TEST_F(IpcTest, ADeadlineThatPassesReleasesTheStreamsAndFailsAllRanks) {
  Create(3);
  Gate other_is_in;
  OnRanks([&](Communicator& self) {
    if (self.rank() == Rank(2)) return AwaitFailure(self);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, device()->CreateStream("waits"));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, device()->AllocateOnHost(sizeof(float)));
    CollectiveRequest request = SumOf(static_cast<char*>(memory), 1);
    if (self.rank() == Rank(0)) {
      // Rank 1's call would be refused once this one has failed.
      EXPECT_THAT(other_is_in.Await(CommTestDeadline()), IsOk());
      request.timeout = std::chrono::milliseconds(40);
    }
    ASSERT_THAT(self.Enqueue(request, stream.get(), [](const absl::Status&) {}), IsOk());
    if (self.rank() == Rank(1)) other_is_in.Open();
    EXPECT_THAT(stream->Synchronize(CommTestDeadline()), IsOk()) << "it goes on";
    AwaitFailure(self);
    device()->FreeOnHost(memory);
  });
  OnRanks([&](Communicator& self) {
    EXPECT_THAT(self.status(), StatusIs(AnyOf(Code::kDeadlineExceeded, Code::kAborted),
                                        HasSubstr("all_reduce #1 (1 f32 sum, auto) did not finish within 40 ms")));
    char* const memory = reinterpret_cast<char*>(&world_);
    ExpectErrorOf(Collective::kAllReduce, self.Run(SumOf(memory, 1)), self.status());
  });
}

// The one that was released writes what it should have written once it is done, and the others must not take that for
// a result.
TEST_F(IpcTest, NobodyTakesWhatAReleasedRankWritesForAResult) {
  for (int round = 0; round < 10; ++round) {
    Create(3);
    Gate two_are_in;
    OnRanks([&](Communicator& self) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, device()->AllocateOnHost(400'000));
      const CollectiveRequest request = SumOf(static_cast<char*>(memory), 100'000);
      if (self.rank() == Rank(2)) {
        EXPECT_THAT(two_are_in.Await(CommTestDeadline()), IsOk());
        self.Abort("enough");
      } else {
        absl::StatusOr<Work> work = self.Start(request);
        two_are_in.Open();
        EXPECT_THAT(work.ok() ? work->Wait(CommTestDeadline()) : work.status(), StatusIs(Code::kAborted));
        // The next call's result, too.
        EXPECT_THAT(self.Run(request), StatusIs(Code::kAborted));
      }
      world_->ranks[self.rank().value()].reset();
      device()->FreeOnHost(memory);
    });
  }
}

TEST_F(IpcTest, AFailureOfTheHostCommunicatorReleasesTheStreams) {
  Create(2);
  Gate started;
  OnRanks([&](Communicator& self) {
    const int r = self.rank().value();
    if (r == 0) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, device()->AllocateOnHost(sizeof(float)));
      absl::StatusOr<Work> work = self.Start(SumOf(static_cast<char*>(memory), 1));
      started.Open();
      ASSERT_THAT(work.status(), IsOk());
      EXPECT_THAT(work->Wait(CommTestDeadline()),
                  StatusIs(Code::kAborted, HasSubstr("rank 1 aborted the communicator: enough")));
      device()->FreeOnHost(memory);
    } else {
      EXPECT_THAT(started.Await(CommTestDeadline()), IsOk());
      world_->worlds[r]->communicator()->Abort("enough");
    }
  });
}

TEST_F(IpcTest, CallsThatDifferAreFoundByTheLaterOne) {
  Create(2);
  OnRanks([&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, device()->AllocateOnHost(2 * sizeof(float)));
    EXPECT_THAT(self.Run(SumOf(static_cast<char*>(memory), self.rank() == Rank(0) ? 1 : 2)),
                StatusIs(AnyOf(Code::kFailedPrecondition, Code::kAborted), HasSubstr("make different calls")));
    device()->FreeOnHost(memory);
  });
}

TEST_F(IpcTest, BuffersInDifferentPlacesOfMappedMemoryAreFound) {
  constexpr size_t kBytes = 400'000;
  Create(2);
  OnRanks([&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SymmetricBuffer> buffer, self.AllocateOnDevice(kBytes + 256));
    char* const memory = buffer->data() + (self.rank() == Rank(0) ? 0 : 256);
    EXPECT_THAT(self.Run(SumOf(memory, kBytes / sizeof(float))),
                StatusIs(AnyOf(Code::kFailedPrecondition, Code::kAborted), HasSubstr("make different calls")));
  });
}

TEST_F(IpcTest, WhatItCannotCarryOutIsRefusedAndBreaksNothing) {
  Create(2);
  OnRanks([&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const data, device()->AllocateOnHost(64));
    char* const memory = static_cast<char*>(data);
    SendRequest send;
    send.target = Rank(0);
    send.device = device()->id();
    EXPECT_THAT(self.Send(send), StatusIs(Code::kUnimplemented, HasSubstr("copy them to the host")));
    EXPECT_THAT(self.Run(SumOf(memory + 1, 1)), StatusIs(Code::kInvalidArgument, HasSubstr("aligned to 4 bytes")));
    CollectiveRequest exchange = SumOf(memory, 4);
    exchange.collective = Collective::kAllToAll;
    const std::vector<int64_t> counts = {2, 2};
    exchange.counts = exchange.output_counts = counts;
    EXPECT_THAT(self.Run(exchange), StatusIs(Code::kInvalidArgument, HasSubstr("in place")));
    CollectiveRequest elsewhere = SumOf(memory, 1);
    elsewhere.device.index = 1;
    EXPECT_THAT(self.Run(elsewhere), StatusIs(Code::kInvalidArgument, HasSubstr("made for cuda:0")));
    *reinterpret_cast<float*>(memory) = 1;
    EXPECT_THAT(self.Run(SumOf(memory, 1)), IsOk());
    EXPECT_EQ(*reinterpret_cast<float*>(memory), 2);
    device()->FreeOnHost(data);
  });
}

TEST_F(IpcTest, AStreamThatIsBeingCapturedIsRefused) {
  Create(1);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, device()->CreateStream("captured"));
  ASSERT_EQ(BeginCapture(stream->native()), kCudaSuccess);
  char memory[4] = {};
  EXPECT_THAT(world_->ranks[0]->Enqueue(SumOf(memory, 0), stream.get(), [](const absl::Status&) {}),
              StatusIs(Code::kFailedPrecondition, HasSubstr("is being captured")));
  void* graph = nullptr;
  EXPECT_EQ(EndCapture(stream->native(), &graph), kCudaSuccess);
  EXPECT_EQ(DestroyGraph(graph), kCudaSuccess);
  EXPECT_THAT(world_->ranks[0]->status(), IsOk());
}

// ---- Set-up

class IpcSetUp : public IpcTest {
 protected:
  void TearDown() override { cuda_.set_peer_access(true); }

  // What each rank is told. The host communicators must still be good.
  std::vector<absl::Status> Refusals(int size, const IpcWorlds::Change& change = nullptr, bool own_devices = false) {
    world_ = IpcWorlds::CreateHosts(size).value();
    std::vector<absl::Status> refusals;
    for (const IpcWorlds::Made& made : world_->Connect(change, own_devices)) refusals.push_back(made.status());
    ::lockstep::testing::RunRanks(size,
                                  [&](int r) { EXPECT_THAT(world_->worlds[r]->communicator()->Run({}), IsOk()); });
    return refusals;
  }
};

TEST_F(IpcSetUp, GpusReachEachOther) {
  world_ = IpcWorlds::CreateHosts(2).value();
  for (IpcWorlds::Made& made : world_->Connect(nullptr, /*own_devices=*/true)) {
    ASSERT_THAT(made.status(), IsOk());
    EXPECT_THAT((*made)->Describe(), HasSubstr(": ipc: kernels read the other ranks' memory on this host"));
    world_->ranks.push_back(*std::move(made));
  }
  OnRanks([&](Communicator& self) {
    CollectiveRequest barrier;
    barrier.device = self.device();
    EXPECT_THAT(self.Run(barrier), IsOk());
  });
}

TEST_F(IpcSetUp, GpusWithoutPeerAccessAreNamed) {
  IpcFakeCuda().set_peer_access(false);
  const std::vector<absl::Status> refusals = Refusals(2, nullptr, /*own_devices=*/true);
  EXPECT_THAT(refusals[0],
              StatusIs(Code::kUnavailable, HasSubstr("rank 0 to rank 1: cuda:0 has no peer access to cuda:1")));
  EXPECT_THAT(refusals[1],
              StatusIs(Code::kUnavailable, HasSubstr("rank 1 to rank 0: cuda:1 has no peer access to cuda:0")));
}

TEST_F(IpcSetUp, StreamsThatCannotAwaitWordsAreARefusal) {
  cuda_.Fail("cuStreamWriteValue32", kCudaNotSupported);
  const std::vector<absl::Status> refusals = Refusals(2);
  EXPECT_THAT(refusals, ::testing::Contains(StatusIs(Code::kUnimplemented, HasSubstr("await words of host memory"))));
  EXPECT_THAT(refusals, ::testing::Contains(StatusIs(Code::kUnavailable, HasSubstr("await words of host memory"))));
}

TEST_F(IpcSetUp, NoMemoryOnOneRankIsTold) {
  cuda_.Fail("cudaMalloc", kCudaOutOfMemory);
  const std::vector<absl::Status> refusals = Refusals(2);
  EXPECT_THAT(refusals, ::testing::Contains(StatusIs(Code::kResourceExhausted)));
  EXPECT_THAT(refusals, ::testing::Contains(StatusIs(Code::kUnavailable, HasSubstr("rank"))));
}

TEST_F(IpcSetUp, OptionsThatDifferOrCannotBe) {
  EXPECT_THAT(Refusals(2, [](int rank, IpcOptions* options) { options->slots.bytes = 4096 * (1 + rank); }),
              Each(StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("4096"), HasSubstr("8192")))));
  EXPECT_THAT(Refusals(2, [](int, IpcOptions* options) { options->slots.bytes = 1000; }),
              Each(StatusIs(Code::kInvalidArgument, HasSubstr("slots of 1000 bytes"))));
}

TEST_F(IpcSetUp, MoreThanEightRanksAreTooMany) {
  EXPECT_THAT(Refusals(9), Each(StatusIs(Code::kUnimplemented, HasSubstr("at most 8"))));
}

}  // namespace
}  // namespace lockstep
