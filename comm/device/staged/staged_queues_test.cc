// Staged collectives on devices whose streams share queues, as a GPU's do, down to a single one: whatever is issued in
// whichever stream, nothing at a queue's head waits for something behind it. Over a fake CUDA, where each rank has a
// device, and so queues, of its own, as ranks that are processes have.
//
// A case that fails hangs until a deadline of 60 s.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_api_testing.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/device/staged/staged_communicator.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

constexpr size_t kChunk = 4096;
constexpr size_t kElements = kChunk / sizeof(float);  // of a piece
constexpr int kRanksMax = 3;

void Ignore(const absl::Status&) {}

// A vector of a rank's, on its device: the fake's memory is the host's.
class OnDevice {
 public:
  OnDevice(Device* device, size_t count, float value)
      : device_(device), memory_(DeviceMemory::Allocate(device, count * sizeof(float)).value()), count_(count) {
    std::fill_n(data(), count, value);
  }

  float* data() const { return reinterpret_cast<float*>(memory_.data()); }
  CollectiveRequest Sum() const {
    CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, count_, data(), data());
    request.device = device_->id();
    return request;
  }
  bool AllAre(float value) const {
    return std::all_of(data(), data() + count_, [value](float element) { return element == value; });
  }

 private:
  Device* device_;
  DeviceMemory memory_;
  size_t count_;
};

// A word that a stream awaits before all else, and the host stores.
class Latch {
 public:
  explicit Latch(Device* device)
      : memory_(DeviceMemory::AllocateOnHost(device, sizeof(std::atomic<uint32_t>)).value()) {
    word_ = new (memory_.data()) std::atomic<uint32_t>(0);
  }
  absl::Status HoldUp(Stream* stream) const { return stream->AwaitValue(word_, 1); }
  void Open() { word_->store(1, std::memory_order_release); }

 private:
  DeviceMemory memory_;
  std::atomic<uint32_t>* word_;
};

// By the number of queues.
class StagedQueues : public ::testing::TestWithParam<int> {
 protected:
  StagedQueues() { cuda_.set_hardware_queues(GetParam()); }

  void Make(int size) {
    StagedOptions options;
    options.chunk_bytes = kChunk;
    options.timeout = std::chrono::milliseconds(60'000);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, StagedWorld::Create(
                                              size, [](int rank) { return OfRank(rank); }, options));
    ASSERT_THAT(world_->FirstError(), IsOk());
  }
  static Device* OfRank(int rank) { return CudaDevice(rank).value(); }
  static std::unique_ptr<Stream> NewStream(int rank) { return OfRank(rank)->CreateStream("test").value(); }
  StagedCommunicator& rank(int rank) { return *world_->rank(rank); }

  FakeCuda cuda_{kRanksMax};
  std::unique_ptr<StagedWorld> world_;
};

INSTANTIATE_TEST_SUITE_P(Queues, StagedQueues, ::testing::Values(1, 2, 3, 8));

TEST_P(StagedQueues, ManyStreamsEachWithACollective) {
  constexpr int kStreams = 12;
  Make(3);
  RunRanks(3, [&](int r) {
    std::vector<std::unique_ptr<Stream>> streams;
    std::deque<OnDevice> inputs, vectors;
    for (int i = 0; i < kStreams; ++i) {
      const size_t count = (i % 5) * kElements + 7;
      Stream* const stream = streams.emplace_back(NewStream(r)).get();
      const OnDevice& input = inputs.emplace_back(OfRank(r), count, static_cast<float>(r + i));
      const OnDevice& vector = vectors.emplace_back(OfRank(r), count, -1.0f);
      ASSERT_THAT(stream->Copy(vector.data(), input.data(), count * sizeof(float)), IsOk());
      ASSERT_THAT(rank(r).Enqueue(vector.Sum(), stream, Ignore), IsOk());
      ASSERT_THAT(stream->Copy(input.data(), vector.data(), count * sizeof(float)), IsOk());
    }
    for (auto& stream : streams) ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    for (int i = 0; i < kStreams; ++i) EXPECT_TRUE(inputs[i].AllAre(3.0f + 3 * i)) << i;
    EXPECT_THAT(rank(r).status(), IsOk());
  });
}

// As a reducer's buckets: copied in on one stream, reduced on another, copied out on a third, whatever order of making
// gives them which queue.
TEST_P(StagedQueues, BucketsOverThreeStreams) {
  constexpr int kBuckets = 8;
  constexpr size_t kCount = 3 * kElements + 11;
  Make(2);
  for (int skip = 0; skip < 4; ++skip) {
    RunRanks(2, [&](int r) {
      std::vector<std::unique_ptr<Stream>> unused;
      for (int i = 0; i < skip; ++i) unused.push_back(NewStream(r));
      const auto in = NewStream(r), collective = NewStream(r), out = NewStream(r);
      const std::unique_ptr<Event> filled = OfRank(r)->CreateEvent().value(),
                                   reduced = OfRank(r)->CreateEvent().value();
      std::deque<OnDevice> gradients, buckets;
      for (int i = 0; i < kBuckets; ++i) {
        const OnDevice& gradient = gradients.emplace_back(OfRank(r), kCount, static_cast<float>(r + i));
        const OnDevice& bucket = buckets.emplace_back(OfRank(r), kCount, -1.0f);
        ASSERT_THAT(in->Copy(bucket.data(), gradient.data(), kCount * sizeof(float)), IsOk());
        ASSERT_THAT(in->Record(filled.get()), IsOk());
        ASSERT_THAT(collective->Wait(filled.get()), IsOk());
        ASSERT_THAT(rank(r).Enqueue(bucket.Sum(), collective.get(), Ignore), IsOk());
        ASSERT_THAT(collective->Record(reduced.get()), IsOk());
        ASSERT_THAT(out->Wait(reduced.get()), IsOk());
        ASSERT_THAT(out->Copy(gradient.data(), bucket.data(), kCount * sizeof(float)), IsOk());
      }
      ASSERT_THAT(out->Synchronize(CommTestDeadline()), IsOk());
      for (int i = 0; i < kBuckets; ++i) EXPECT_TRUE(gradients[i].AllAre(1.0f + 2 * i)) << i;
    });
  }
}

// The stream of the first call is held up by the host, until all is issued.
TEST_P(StagedQueues, CallsWhoseStreamsAreReadyInAnotherOrder) {
  Make(2);
  RunRanks(2, [&](int r) {
    Latch latch(OfRank(r));
    const auto late = NewStream(r), early = NewStream(r);
    const OnDevice first(OfRank(r), 5 * kElements, 1.0f), second(OfRank(r), 2 * kElements, 2.0f),
        third(OfRank(r), kElements, 3.0f);
    ASSERT_THAT(latch.HoldUp(late.get()), IsOk());
    ASSERT_THAT(rank(r).Enqueue(first.Sum(), late.get(), Ignore), IsOk());
    ASSERT_THAT(rank(r).Enqueue(second.Sum(), early.get(), Ignore), IsOk());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, rank(r).Start(third.Sum()));
    latch.Open();
    EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk());
    ASSERT_THAT(early->Synchronize(CommTestDeadline()), IsOk());
    ASSERT_THAT(late->Synchronize(CommTestDeadline()), IsOk());
    EXPECT_TRUE(first.AllAre(2.0f));
    EXPECT_TRUE(second.AllAre(4.0f));
    EXPECT_TRUE(third.AllAre(6.0f));
  });
}

// Random streams, events between them, copies, calls of all lengths in a stream's order and without a stream. The calls
// are in one order on all ranks, all else in an order of the rank's own.
TEST_P(StagedQueues, RandomOrders) {
  constexpr int kCalls = 60;
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Make(3);
    RunRanks(3, [&](int r) {
      std::minstd_rand common(seed), own(seed * 100 + r);
      std::vector<std::unique_ptr<Stream>> streams;
      std::vector<std::unique_ptr<Event>> events;
      for (int i = 0; i < 5; ++i) streams.push_back(NewStream(r));
      for (int i = 0; i < 5; ++i) events.push_back(OfRank(r)->CreateEvent().value());
      std::deque<OnDevice> vectors;
      std::vector<Work> works;
      for (int i = 0; i < kCalls; ++i) {
        const OnDevice& vector = vectors.emplace_back(OfRank(r), common() % (6 * kElements), static_cast<float>(i));
        for (uint32_t others = own() % 4; others > 0; --others) {
          Stream& stream = *streams[own() % streams.size()];
          Event* const event = events[own() % events.size()].get();
          ASSERT_THAT(own() % 2 == 0 ? stream.Record(event) : stream.Wait(event), IsOk());
        }
        if (own() % 4 == 0) {
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, rank(r).Start(vector.Sum()));
          works.push_back(work);
        } else {
          ASSERT_THAT(rank(r).Enqueue(vector.Sum(), streams[own() % streams.size()].get(), Ignore), IsOk());
        }
      }
      for (Work& work : works) EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk());
      for (auto& stream : streams) ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
      for (int i = 0; i < kCalls; ++i) EXPECT_TRUE(vectors[i].AllAre(3.0f * i)) << i;
      EXPECT_THAT(rank(r).status(), IsOk());
    });
    world_ = nullptr;
  }
}

// Of an all-to-all each rank knows its own counts alone: the one with fewer pieces goes on on the host.
TEST_P(StagedQueues, RanksWithUnequalNumbersOfPieces) {
  Make(2);
  RunRanks(2, [&](int r) {
    const auto stream = NewStream(r);
    constexpr int64_t kMany = 5 * kElements;
    // Rank 0 sends itself much, rank 1 nothing; between them goes one element each way.
    const std::vector<int64_t> counts = r == 0 ? std::vector<int64_t>{kMany, 1} : std::vector<int64_t>{1, 0};
    const OnDevice input(OfRank(r), kMany + 1, static_cast<float>(r + 1)), output(OfRank(r), kMany + 1, 0.0f);
    CollectiveRequest request = input.Sum();
    request.collective = Collective::kAllToAll;
    request.count = counts[0] + counts[1];
    request.counts = request.output_counts = counts;
    request.output = output.data();
    for (int i = 0; i < 3; ++i) ASSERT_THAT(rank(r).Enqueue(request, stream.get(), Ignore), IsOk());
    ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    EXPECT_EQ(output.data()[0], 1.0f);
    if (r == 0) {
      EXPECT_EQ(output.data()[kMany], 2.0f);
    }
    EXPECT_THAT(rank(r).status(), IsOk());
  });
}

TEST_P(StagedQueues, AnAbortLetsAllStreamsGoOn) {
  Make(2);
  const OnDevice vector(OfRank(0), 9 * kElements, 1.0f);
  const auto first = NewStream(0), second = NewStream(0), other = NewStream(0);
  ASSERT_THAT(rank(0).Enqueue(vector.Sum(), first.get(), Ignore), IsOk());
  ASSERT_THAT(rank(0).Enqueue(vector.Sum(), second.get(), Ignore), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, rank(0).Start(vector.Sum()));
  const std::unique_ptr<Event> behind = OfRank(0)->CreateEvent().value();
  ASSERT_THAT(other->Record(behind.get()), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work waiting, rank(0).Start(vector.Sum()));
  rank(0).Abort("enough");
  EXPECT_THAT(work.Wait(CommTestDeadline()), StatusIs(Code::kAborted, HasSubstr("enough")));
  EXPECT_THAT(waiting.Wait(CommTestDeadline()), StatusIs(Code::kAborted, HasSubstr("enough")));
  for (Stream* const stream : {first.get(), second.get(), other.get()}) {
    EXPECT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
  }
  EXPECT_THAT(behind->Synchronize(CommTestDeadline()), IsOk());
  EXPECT_THAT(rank(1).Run(OnDevice(OfRank(1), 1, 1.0f).Sum()), StatusIs(Code::kAborted));
}
TEST_P(StagedQueues, DestroyedWithCallsInFlightItLetsAllStreamsGoOn) {
  Make(2);
  const OnDevice vector(OfRank(0), 9 * kElements, 1.0f);
  const auto first = NewStream(0), second = NewStream(0);
  ASSERT_THAT(rank(0).Enqueue(vector.Sum(), first.get(), Ignore), IsOk());
  ASSERT_THAT(rank(0).Enqueue(vector.Sum(), second.get(), Ignore), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, rank(0).Start(vector.Sum()));
  world_->rank(0) = nullptr;
  EXPECT_THAT(work.Wait(Deadline::Now()), StatusIs(Code::kCancelled, HasSubstr("destroyed")));
  EXPECT_THAT(first->Synchronize(CommTestDeadline()), IsOk());
  EXPECT_THAT(second->Synchronize(CommTestDeadline()), IsOk());
  EXPECT_THAT(rank(1).Run(OnDevice(OfRank(1), 1, 1.0f).Sum()), StatusIs(Code::kAborted));
}

// ---- Errors of CUDA's

// The other rank is told, and nothing of what was issued keeps the device.
TEST_P(StagedQueues, ACallThatIsIssuedInPartEndsAll) {
  for (const char* const function :
       {"cudaMemcpyAsync", "cuStreamWriteValue32", "cuStreamWaitValue32", "cudaEventRecord", "cudaStreamWaitEvent"}) {
    for (const int nth : {1, 4}) {
      SCOPED_TRACE(std::string(function) + " " + std::to_string(nth));
      Make(2);
      const auto stream = NewStream(0), other = NewStream(0);
      const OnDevice mine(OfRank(0), 6 * kElements, 1.0f), theirs(OfRank(1), 6 * kElements, 1.0f);
      cuda_.Fail(function, kCudaLaunchFailure, nth);
      EXPECT_THAT(rank(0).Enqueue(mine.Sum(), stream.get(), Ignore),
                  StatusIs(Code::kInternal, AllOf(HasSubstr("staging on cuda:0"), HasSubstr(function))));
      EXPECT_THAT(rank(0).status(), StatusIs(Code::kInternal, HasSubstr(function)));
      EXPECT_THAT(rank(1).Run(theirs.Sum()), StatusIs(Code::kAborted));
      EXPECT_THAT(other->Synchronize(CommTestDeadline()), IsOk());
      world_ = nullptr;
    }
  }
}

TEST_P(StagedQueues, ADriverWithoutStreamMemoryOperationsIsUnavailable) {
  for (const char* const function : {"cuStreamWriteValue32", "cuStreamWaitValue32"}) {
    cuda_.Fail(function, kCudaNotSupported, 2);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, StagedWorld::Create(2, [](int rank) { return OfRank(rank); }));
    EXPECT_THAT(world_->created(),
                ::testing::Each(StatusIs(
                    Code::kUnavailable, AllOf(HasSubstr("streams that await and write values"), HasSubstr(function)))));
    EXPECT_THAT(world_->created(), ::testing::Contains(StatusIs(Code::kUnavailable, HasSubstr("staging: rank "))));
  }
}

}  // namespace
}  // namespace lockstep
