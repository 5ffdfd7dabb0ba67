// Staged collectives on a GPU. Ranks are threads of this process, over loopback, and share the GPU, each in a context of its own: as
// processes do (base/device/cuda/cuda_contexts_testing.h).

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_contexts_testing.h"
#include "base/device/device.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/device/staged/staged_communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_conformance.h"
#include "tests/communicator_testing.h"
#include "tests/ranks.h"
#include "tests/staged_worlds.h"

namespace lockstep {
namespace {

using ::lockstep::testing::RunRanks;
using ::lockstep::testing::StagedWorld;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

absl::StatusOr<Device*> GpuOf(Rank rank) { return CudaDeviceInContext(rank.value()); }

constexpr int kRanksMax = 4;

StagedOptions Chunks(size_t chunk_bytes) {
  StagedOptions options;
  options.chunk_bytes = chunk_bytes;
  options.timeout = std::chrono::milliseconds(60'000);
  return options;
}

// ---- The whole conformance suite, on pinned memory that the GPU copies

CommunicatorFactory Factory(const std::string& name, const StagedOptions& options) {
  CommunicatorFactory factory;
  factory.name = name;
  factory.device_of = [](Rank rank) { return GpuOf(rank).value(); };
  factory.create = [options](int size) -> absl::StatusOr<TestCommunicators> {
    LOCKSTEP_RETURN_IF_ERROR(GpuOf(Rank(0)).status());
    if (size > kRanksMax) return absl::UnavailableError("more contexts than are worth their time");
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<StagedWorld> world,
                              StagedWorld::Create(
                                  size, [](int rank) { return GpuOf(Rank(rank)).value(); }, options));
    LOCKSTEP_RETURN_IF_ERROR(world->FirstError());
    TestCommunicators communicators{world, {}};
    for (int rank = 0; rank < size; ++rank) communicators.ranks.push_back(world->rank(rank).get());
    return communicators;
  };
  return factory;
}

INSTANTIATE_TEST_SUITE_P(StagedGpu, CommunicatorConformance,
                         ::testing::Values(Factory("Whole", Chunks(1 << 20)), Factory("Pieces", Chunks(64 << 10))),
                         CommunicatorFactoryName);

// ---- Memory of the GPU

// The buffers of a case on the GPU, copied there and back in a stream's order; on the host they are pinned, so that no
// copy holds up the caller.
class OnGpu {
 public:
  OnGpu(const CaseReference& reference, Rank rank)
      : device_(GpuOf(rank).value()), run_(reference, rank, CaseMemory{device_}), request_(run_.request()) {
    input_bytes_ = request_.input == nullptr ? 0 : reference.input(rank.value()).size();
    output_bytes_ = reference.expected(rank.value()).size();
    request_.device = device_->id();
    request_.input = input_ = Take(input_bytes_);
    // In place where the case is.
    output_ =
        run_.request().output == run_.request().input && output_bytes_ == input_bytes_ ? input_ : Take(output_bytes_);
    request_.output = output_;
  }
  ~OnGpu() {
    for (void* memory : memory_) device_->Free(memory);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  const CollectiveRequest& request() const { return request_; }
  absl::Status CopyIn(Stream* stream) { return stream->Copy(input_, run_.request().input, input_bytes_); }
  absl::Status CopyOut(Stream* stream) { return stream->Copy(run_.request().output, output_, output_bytes_); }
  std::string Check() { return run_.Check(); }

 private:
  void* Take(size_t bytes) {
    memory_.push_back(device_->Allocate(bytes).value());
    return memory_.back();
  }

  Device* const device_;
  CaseRun run_;
  CollectiveRequest request_;
  size_t input_bytes_ = 0;
  size_t output_bytes_ = 0;
  void* input_ = nullptr;
  void* output_ = nullptr;
  std::vector<void*> memory_;
};

class StagedGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status gpu = GpuOf(Rank(0)).status();
    if (absl::IsUnavailable(gpu)) GTEST_SKIP() << gpu;
    ASSERT_THAT(gpu, IsOk());
  }

  void Make(int size, const StagedOptions& options = Chunks(256 << 10)) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, StagedWorld::Create(
                                              size, [](int rank) { return GpuOf(Rank(rank)).value(); }, options));
    ASSERT_THAT(world_->FirstError(), IsOk());
  }

  static void Ignore(const absl::Status&) {}
  static std::unique_ptr<Stream> NewStream(int rank) { return GpuOf(Rank(rank)).value()->CreateStream("test").value(); }

  void Start(int rank, OnGpu* c, Stream* stream) {
    ASSERT_THAT(c->CopyIn(stream), IsOk());
    ASSERT_THAT(world_->rank(rank)->Enqueue(c->request(), stream, Ignore), IsOk());
  }
  // Copy there, collective, copy back.
  void StartWhole(int rank, OnGpu* c, Stream* stream) {
    Start(rank, c, stream);
    ASSERT_THAT(c->CopyOut(stream), IsOk());
  }

  std::unique_ptr<StagedWorld> world_;
};

CollectiveCase SumOf(size_t count, uint32_t seed) {
  CollectiveCase c;
  c.count = count;
  c.seed = seed;
  c.in_place = seed % 2 == 0;
  return c;
}

// All of it issued before any of it need be done.
TEST_F(StagedGpu, EveryCollectiveOnMemoryOfTheGpuInAStreamsOrder) {
  for (const int size : {1, 2}) {
    Make(size);
    std::deque<CaseReference> references;
    for (const Collective collective : kAllCollectives) {
      if (collective == Collective::kBarrier) continue;
      for (const size_t count : {0, 7, 1000, 500'003}) {
        CollectiveCase c;
        c.collective = collective;
        c.count = count;
        c.root = size - 1;
        c.unequal = IsByRank(collective) && count == 1000;
        c.seed = static_cast<uint32_t>(references.size());
        references.emplace_back(c, size);
      }
    }
    RunRanks(size, [&](int r) {
      const std::unique_ptr<Stream> stream = NewStream(r);
      std::deque<OnGpu> cases;
      for (const CaseReference& reference : references) {
        StartWhole(r, &cases.emplace_back(reference, Rank(r)), stream.get());
      }
      ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
      for (size_t i = 0; i < cases.size(); ++i) {
        EXPECT_EQ(cases[i].Check(), "") << ToString(references[i].collective());
      }
      EXPECT_THAT(world_->rank(r)->status(), IsOk());
    });
  }
}

// More streams than the GPU has queues: none may hold up the pipeline's own. A world of one, whose order is that of one
// process.
TEST_F(StagedGpu, ManyStreamsEachWithACollective) {
  constexpr int kStreams = 40;
  Make(1);
  std::deque<CaseReference> references;
  for (int i = 0; i < kStreams; ++i) references.emplace_back(SumOf(300'000 + i, i), 1);
  std::vector<std::unique_ptr<Stream>> streams;
  std::deque<OnGpu> cases;
  for (const CaseReference& reference : references) {
    StartWhole(0, &cases.emplace_back(reference, Rank(0)), streams.emplace_back(NewStream(0)).get());
  }
  for (auto& stream : streams) ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
  for (OnGpu& c : cases) EXPECT_EQ(c.Check(), "");
  EXPECT_THAT(world_->rank(0)->status(), IsOk());
}

// As a reducer's buckets: copied in on one stream, reduced on another, copied out on a third.
TEST_F(StagedGpu, BucketsOverThreeStreams) {
  constexpr int kBuckets = 8;
  Make(2, Chunks(1 << 20));
  std::deque<CaseReference> references;
  for (int i = 0; i < kBuckets; ++i) references.emplace_back(SumOf(1'500'000, i), 2);
  RunRanks(2, [&](int r) {
    const auto in = NewStream(r), collective = NewStream(r), out = NewStream(r);
    std::vector<std::unique_ptr<Event>> events;
    const auto behind = [&](Stream* earlier, Stream* later) {
      events.push_back(GpuOf(Rank(r)).value()->CreateEvent().value());
      ASSERT_THAT(earlier->Record(events.back().get()), IsOk());
      ASSERT_THAT(later->Wait(events.back().get()), IsOk());
    };
    std::deque<OnGpu> cases;
    for (const CaseReference& reference : references) {
      OnGpu& c = cases.emplace_back(reference, Rank(r));
      ASSERT_THAT(c.CopyIn(in.get()), IsOk());
      behind(in.get(), collective.get());
      ASSERT_THAT(world_->rank(r)->Enqueue(c.request(), collective.get(), Ignore), IsOk());
      behind(collective.get(), out.get());
      ASSERT_THAT(c.CopyOut(out.get()), IsOk());
    }
    ASSERT_THAT(out->Synchronize(CommTestDeadline()), IsOk());
    for (OnGpu& c : cases) EXPECT_EQ(c.Check(), "");
  });
}

// Any bits at all: the GPU's tensors end with those of the host's collective, piece for piece.
TEST_F(StagedGpu, ThePiecesBitsAreTheHosts) {
  Make(2, Chunks(1 << 20));
  CollectiveCase c = SumOf(200'000, 1);  // one piece
  c.random_bits = true;
  const CaseReference reference(c, 2);
  RunRanks(2, [&](int r) {
    const std::unique_ptr<Stream> stream = NewStream(r);
    OnGpu on_gpu(reference, Rank(r));
    CaseRun on_host(reference, Rank(r));
    Start(r, &on_gpu, stream.get());
    ASSERT_THAT(world_->rank(r)->Run(on_host.request()), IsOk());
    std::vector<char> output(on_host.output().size());
    ASSERT_THAT(stream->Copy(output.data(), on_gpu.request().output, output.size()), IsOk());
    ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    EXPECT_EQ(output, on_host.output());
  });
}

TEST_F(StagedGpu, RunWaitsForNoStream) {
  Make(2);
  const CaseReference reference(SumOf(400'000, 1), 2);
  RunRanks(2, [&](int r) {
    const std::unique_ptr<Stream> stream = NewStream(r);
    OnGpu c(reference, Rank(r));
    ASSERT_THAT(c.CopyIn(stream.get()), IsOk());
    ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    ASSERT_THAT(world_->rank(r)->Run(c.request()), IsOk());
    ASSERT_THAT(c.CopyOut(stream.get()), IsOk());
    ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    EXPECT_EQ(c.Check(), "");
  });
}

TEST_F(StagedGpu, AfterAnAbortStreamsGoOnAndTheGpuIsGood) {
  Make(2);
  const CaseReference reference(SumOf(400'000, 1), 2);
  {
    const std::unique_ptr<Stream> stream = NewStream(0);
    OnGpu c(reference, Rank(0));
    Start(0, &c, stream.get());
    world_->rank(0)->Abort("enough");
    EXPECT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    EXPECT_THAT(world_->rank(0)->status(), StatusIs(Code::kAborted, HasSubstr("enough")));
  }
  world_ = nullptr;
  Make(2);
  RunRanks(2, [&](int r) {
    const std::unique_ptr<Stream> stream = NewStream(r);
    OnGpu c(reference, Rank(r));
    StartWhole(r, &c, stream.get());
    ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    EXPECT_EQ(c.Check(), "");
  });
}

TEST_F(StagedGpu, DestroyedWithACallInFlightItLetsTheStreamGoOn) {
  Make(2);
  const CaseReference reference(SumOf(400'000, 1), 2);
  const std::unique_ptr<Stream> stream = NewStream(0);
  OnGpu c(reference, Rank(0));
  Start(0, &c, stream.get());
  world_->rank(0) = nullptr;
  EXPECT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
}

TEST_F(StagedGpu, BuffersThatAreNotWhereCallsSayAreFoundOutWhereThatIsChecked) {
  Make(2);
  RunRanks(2, [&](int r) {
    StagedCommunicator& self = *world_->rank(r);
    self.CheckPointers();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Communicator> part, self.Duplicate());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SymmetricBuffer> on_gpu, self.AllocateOnDevice(8));
    std::vector<char> on_host(8);
    CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kU8, 8, on_gpu->data(), on_host.data());
    request.device = self.device();
    EXPECT_THAT(self.Run(request), StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("output"), HasSubstr("of host"))));
    EXPECT_THAT(part->Run(request), StatusIs(Code::kInvalidArgument));
    request.device = DeviceId();
    EXPECT_THAT(self.Run(request),
                StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("input"), HasSubstr("memory of cuda"))));
    request.input = on_host.data();
    EXPECT_THAT(self.Run(request), IsOk());
  });
}

TEST_F(StagedGpu, MemoryThatTheGpuHasNotIsAnErrorAndBreaksNothing) {
  Make(2);
  RunRanks(2, [&](int r) {
    EXPECT_THAT(world_->rank(r)->AllocateOnDevice(size_t{1} << 50).status(), StatusIs(Code::kResourceExhausted));
    EXPECT_THAT(world_->rank(r)->Run(CollectiveRequest()), IsOk());
  });
}

}  // namespace
}  // namespace lockstep
