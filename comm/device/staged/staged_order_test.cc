// What a staged communicator does when: the order that streams see, the overlap of its stages, and its ends. All by
// events; nothing here depends on how long anything takes.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/device/staged/staged_communicator.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/fake_device.h"
#include "tests/gate.h"
#include "tests/ranks.h"
#include "tests/staged_worlds.h"

namespace lockstep {
namespace {

using ::lockstep::testing::RunRanks;
using ::lockstep::testing::StagedWorld;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr size_t kChunk = 4096;
constexpr size_t kElements = kChunk / sizeof(float);  // of a piece

class StagedOrder : public ::testing::Test {
 protected:
  void Make(int size, StagedOptions options = Options()) {
    for (int rank = 0; rank < size; ++rank) devices_.push_back(std::make_unique<FakeDevice>());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, StagedWorld::Create(
                                              size, [&](int rank) { return devices_[rank].get(); }, options));
    ASSERT_THAT(world_->FirstError(), IsOk());
  }

  static StagedOptions Options() {
    StagedOptions options;
    options.chunk_bytes = kChunk;
    options.timeout = std::chrono::milliseconds(60'000);
    return options;
  }

  StagedCommunicator& rank(int rank) { return *world_->rank(rank); }
  std::unique_ptr<Stream> NewStream(int rank) { return devices_[rank]->CreateStream("test").value(); }
  CollectiveRequest SumOf(std::vector<float>* values, int rank = 0) {
    CollectiveRequest request =
        MakeRequest(Collective::kAllReduce, DType::kF32, values->size(), values->data(), values->data());
    request.device = devices_[rank]->id();
    return request;
  }

  std::vector<std::unique_ptr<FakeDevice>> devices_;
  std::unique_ptr<StagedWorld> world_;
};

void Ignore(const absl::Status&) {}

// Notes what happens, and lets a test wait for it.
class Log {
 public:
  void Add(const std::string& line) {
    MutexLock lock(&mu_);
    lines_.push_back(line);
    changed_.SignalAll();
  }
  // Whether there are `count` lines like this before the deadline.
  bool Await(const std::string& line, int count) {
    const Deadline deadline = CommTestDeadline();
    MutexLock lock(&mu_);
    while (std::count(lines_.begin(), lines_.end(), line) < count) {
      if (!changed_.WaitUntil(&mu_, deadline)) return false;
    }
    return true;
  }
  int Count(const std::string& line) {
    MutexLock lock(&mu_);
    return static_cast<int>(std::count(lines_.begin(), lines_.end(), line));
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
};

// ---- What streams see

TEST_F(StagedOrder, EnqueueNeverWaitsForItsStream) {
  Make(2);
  Gate before[2];
  RunRanks(2, [&](int r) {
    std::unique_ptr<Stream> stream = NewStream(r);
    std::vector<std::vector<float>> values(20, std::vector<float>(2 * kElements, 0.0f));
    ASSERT_THAT(stream->Enqueue([&] { return before[r].Await(CommTestDeadline()); }), IsOk());
    for (std::vector<float>& value : values) {
      const auto fill = [&value] {
        std::fill(value.begin(), value.end(), 1.0f);
        return absl::OkStatus();
      };
      ASSERT_THAT(stream->Enqueue(fill), IsOk());
      ASSERT_THAT(rank(r).Enqueue(SumOf(&value, r), stream.get(), Ignore), IsOk());
    }
    for (const std::vector<float>& value : values) EXPECT_THAT(value, Each(0.0f));
    before[r].Open();
    ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    for (const std::vector<float>& value : values) EXPECT_THAT(value, Each(2.0f));
  });
}

// ---- Overlap

// While the first piece is in the collective, as many are copied in as there are slots, and no more; while it is copied
// out, the others go through the collective.
TEST_F(StagedOrder, TheThreeStagesOverlap) {
  constexpr int kPieces = 8;
  Log log;
  Gate copy_out;
  for (int r = 0; r < 2; ++r) devices_.push_back(std::make_unique<FakeDevice>());
  std::vector<std::vector<float>> values(2, std::vector<float>(kPieces * kElements, 1.0f));
  for (int r = 0; r < 2; ++r) {
    devices_[r]->set_copy_observer([&, r](const void* target, const void*, size_t) {
      const auto* const begin = values[r].data();
      const bool out = target >= begin && target < begin + values[r].size();
      if (r == 0 && out) {
        EXPECT_THAT(copy_out.Await(CommTestDeadline()), IsOk());
      }
      log.Add(std::to_string(r) + (out ? " out" : " in"));
    });
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, StagedWorld::Create(
                                            2, [&](int r) { return devices_[r].get(); }, Options()));
  ASSERT_THAT(world_->FirstError(), IsOk());

  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work first, rank(0).Start(SumOf(&values[0], 0)));
  ASSERT_TRUE(log.Await("0 in", 3)) << "a slot for each stage";
  EXPECT_EQ(log.Count("0 in"), 3) << "rank 1 has not called yet: the first piece is in the collective";
  EXPECT_FALSE(first.done());

  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work second, rank(1).Start(SumOf(&values[1], 1)));
  ASSERT_TRUE(log.Await("1 out", 3)) << "rank 0 has carried out three pieces, of which it has copied out none";
  EXPECT_EQ(log.Count("0 out"), 0);
  EXPECT_FALSE(first.done());

  copy_out.Open();
  EXPECT_THAT(first.Wait(CommTestDeadline()), IsOk());
  EXPECT_THAT(second.Wait(CommTestDeadline()), IsOk());
  EXPECT_EQ(log.Count("0 in"), kPieces);
  EXPECT_EQ(log.Count("0 out"), kPieces);
  EXPECT_THAT(values[0], Each(2.0f));
  EXPECT_THAT(values[1], Each(2.0f));
}

// A call is done though the next one is in the collective and waits for a peer.
TEST_F(StagedOrder, ACallIsDoneWhileTheNextOneWaitsForAPeer) {
  Make(2);
  std::vector<float> a(kElements, 1.0f), b(kElements, 1.0f), c(kElements, 1.0f), d(kElements, 1.0f);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work first, rank(0).Start(SumOf(&a, 0)));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work next, rank(0).Start(SumOf(&b, 0)));
  EXPECT_THAT(rank(1).Run(SumOf(&c, 1)), IsOk());
  EXPECT_THAT(first.Wait(CommTestDeadline()), IsOk());
  EXPECT_FALSE(next.done());
  EXPECT_THAT(rank(1).Run(SumOf(&d, 1)), IsOk());
  EXPECT_THAT(next.Wait(CommTestDeadline()), IsOk());
  EXPECT_THAT(b, Each(2.0f));
}

// ---- Ends

TEST_F(StagedOrder, AFailureEndsCallsOfStreamsAndOnTheHostAlike) {
  Make(2);
  std::unique_ptr<Stream> stream = NewStream(0);
  std::vector<float> values(5 * kElements, 1.0f);
  ASSERT_THAT(rank(0).Enqueue(SumOf(&values, 0), stream.get(), Ignore), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, rank(0).Start(SumOf(&values, 0)));
  world_->network().Disconnect(Rank(1));
  ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk()) << "the stream goes on and takes no error";
  const absl::Status error = work.Wait(CommTestDeadline());
  EXPECT_THAT(error, StatusIs(Code::kAborted, HasSubstr("rank 1")));
  const absl::Status ended = rank(0).status();
  ExpectErrorOf(Collective::kAllReduce, error, ended);
  ExpectErrorOf(Collective::kAllReduce, rank(0).Run(SumOf(&values, 0)), ended);
  ExpectErrorOf(Collective::kAllReduce, rank(0).Enqueue(SumOf(&values, 0), stream.get(), Ignore), ended);
  ExpectErrorOf(Collective::kBarrier, rank(0).Run(CollectiveRequest()), ended);  // on the host, too
}

TEST_F(StagedOrder, ACallThatIsLateIsNamed) {
  Make(2);
  std::vector<float> values(5 * kElements, 1.0f);
  CollectiveRequest request = SumOf(&values, 0);
  request.timeout = std::chrono::milliseconds(20);
  EXPECT_THAT(rank(0).Run(request),
              StatusIs(Code::kDeadlineExceeded, AllOf(HasSubstr("all_reduce #1 (5120 f32 sum, auto), piece 1 of 5"),
                                                      HasSubstr("did not finish in time"))));
}

// ---- What is refused

TEST_F(StagedOrder, CallsInTheWrongPlaceAreRefusedAndBreakNothing) {
  Make(2);
  RunRanks(2, [&](int r) {
    std::unique_ptr<Stream> stream = NewStream(r);
    std::unique_ptr<Stream> host_stream = HostDevice()->CreateStream("host").value();
    std::vector<float> values(8, 1.0f);
    CollectiveRequest request = SumOf(&values, r);
    CollectiveRequest elsewhere = request, on_host = request;
    elsewhere.device.index = 3;
    on_host.device = DeviceId();
    const auto both = AllOf(HasSubstr("cuda:3"), HasSubstr("cuda:0"));
    EXPECT_THAT(rank(r).Run(elsewhere), StatusIs(Code::kInvalidArgument, both));
    EXPECT_THAT(rank(r).Start(elsewhere).status(), StatusIs(Code::kInvalidArgument, both));
    EXPECT_THAT(rank(r).Enqueue(request, nullptr, Ignore), StatusIs(Code::kInvalidArgument, HasSubstr("null")));
    EXPECT_THAT(rank(r).Enqueue(request, host_stream.get(), Ignore),
                StatusIs(Code::kInvalidArgument, HasSubstr("the stream is host")));
    EXPECT_THAT(rank(r).Enqueue(on_host, stream.get(), Ignore),
                StatusIs(Code::kInvalidArgument, HasSubstr("the stream is cuda:0")));
    SendRequest send;
    send.target = Rank(1 - r);
    send.device = request.device;
    EXPECT_THAT(rank(r).Send(send), StatusIs(Code::kUnimplemented, HasSubstr("copy them to the host")));
    devices_[r]->set_capturing(true);
    EXPECT_THAT(rank(r).Enqueue(request, stream.get(), Ignore),
                StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("captured"), HasSubstr("staged"))));
    devices_[r]->set_capturing(false);
    ASSERT_THAT(rank(r).StartGroup(), IsOk());
    EXPECT_THAT(rank(r).Enqueue(request, stream.get(), Ignore),
                StatusIs(Code::kFailedPrecondition, HasSubstr("group")));
    EXPECT_THAT(rank(r).EndGroup(), IsOk());
    EXPECT_THAT(rank(r).Run(request), IsOk());
    EXPECT_THAT(values, Each(2.0f));
  });
}

// The calls on the host are dropped with those on the device.
TEST_F(StagedOrder, ARefusedCallOnTheDeviceEndsAGroupInBothPlaces) {
  Make(2);
  RunRanks(2, [&](int r) {
    std::vector<float> values(8, 1.0f), host_values(8, 1.0f);
    CollectiveRequest wrong = SumOf(&values, r), on_host = SumOf(&host_values, r);
    wrong.op = ReduceOp::kXor;
    on_host.device = DeviceId();
    ASSERT_THAT(rank(r).StartGroup(), IsOk());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work on_device, rank(r).Start(SumOf(&values, r)));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, rank(r).Start(on_host));
    EXPECT_THAT(rank(r).Start(wrong).status(), StatusIs(Code::kInvalidArgument, HasSubstr("xor")));
    EXPECT_THAT(rank(r).EndGroup().status(), StatusIs(Code::kInvalidArgument, HasSubstr("xor")));
    EXPECT_THAT(work.Wait(CommTestDeadline()), StatusIs(Code::kCancelled));
    EXPECT_THAT(on_device.Wait(CommTestDeadline()), StatusIs(Code::kCancelled, HasSubstr("xor")));
    EXPECT_THAT(rank(r).Run(on_host), IsOk());
    EXPECT_THAT(rank(r).Run(SumOf(&values, r)), IsOk());
    EXPECT_THAT(values, Each(2.0f));
  });
}

// ---- Set-up

TEST_F(StagedOrder, MemoryThatOneRankLacksIsKnownToAll) {
  for (int r = 0; r < 3; ++r) devices_.push_back(std::make_unique<FakeDevice>());
  devices_[1]->set_allocation_error(absl::ResourceExhaustedError("no pinned memory"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, StagedWorld::Create(3, [&](int r) { return devices_[r].get(); }));
  EXPECT_THAT(world_->created()[1],
              StatusIs(Code::kResourceExhausted, AllOf(HasSubstr("3 x 1048576 bytes"), HasSubstr("no pinned memory"))));
  for (const int r : {0, 2}) {
    EXPECT_THAT(world_->created()[r], StatusIs(Code::kUnavailable, HasSubstr("rank 1: staging memory")));
    EXPECT_EQ(devices_[r]->allocations(), 0);
  }
}

TEST_F(StagedOrder, OptionsThatDifferAreAnErrorOnEveryRank) {
  for (int r = 0; r < 2; ++r) devices_.push_back(std::make_unique<FakeDevice>());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, StagedWorld::Create(
                                            2, [&](int r) { return devices_[r].get(); }, Options(), {},
                                            [](int r, StagedOptions* options) { options->slots += r; }));
  for (const absl::Status& status : world_->created()) {
    EXPECT_THAT(status, StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("rank 0 by 3 slots of 4096"),
                                                                  HasSubstr("rank 1 by 4 slots of 4096"))));
  }
}

TEST_F(StagedOrder, SlotsThatCannotBeAreRefused) {
  for (int r = 0; r < 2; ++r) devices_.push_back(std::make_unique<FakeDevice>());
  StagedOptions options;
  options.chunk_bytes = 63;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, StagedWorld::Create(
                                            2, [&](int r) { return devices_[r].get(); }, options));
  EXPECT_THAT(world_->created(), Each(StatusIs(Code::kInvalidArgument, HasSubstr("at least 64"))));
}

TEST_F(StagedOrder, MemoryOnTheDeviceIsAgreedOn) {
  Make(2);
  RunRanks(2, [&](int r) {
    EXPECT_THAT(rank(r).AllocateOnDevice(100 + r).status(),
                StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("100 bytes"), HasSubstr("101 bytes"))));
    EXPECT_THAT(rank(r).AllocateOnDevice(0).status(), StatusIs(Code::kInvalidArgument));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<SymmetricBuffer> buffer, rank(r).AllocateOnDevice(1000));
    EXPECT_EQ(buffer->bytes(), 1000u);
  });
  devices_[1]->set_allocation_error(absl::ResourceExhaustedError("full"));
  RunRanks(2, [&](int r) {
    EXPECT_THAT(rank(r).AllocateOnDevice(1000).status(),
                r == 1 ? StatusIs(Code::kResourceExhausted, HasSubstr("full"))
                       : StatusIs(Code::kUnavailable, HasSubstr("rank 1 for 1000 bytes: full")));
    EXPECT_THAT(rank(r).Run(CollectiveRequest()), IsOk());
  });
}

TEST_F(StagedOrder, ItSaysHowTensorsTravel) {
  StagedOptions options = Options();
  options.reason = "there is no NCCL";
  Make(2, options);
  EXPECT_THAT(rank(0).Describe(),
              HasSubstr("cuda:0: staged through 3 slots of 4096 bytes on the host: there is no NCCL"));
}

}  // namespace
}  // namespace lockstep
