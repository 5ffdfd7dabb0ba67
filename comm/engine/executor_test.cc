// The executor by itself: one thread drives all ranks over loopback, so that the order of everything is the test's.

#include "comm/engine/executor.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"
#include "comm/plan/execution_plan.h"
#include "comm/plan/prepared_schedule.h"
#include "comm/record/flight_recorder.h"
#include "comm/record/signature.h"
#include "comm/schedule/block_layout.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/loopback/loopback.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr ChannelId kChannel = 5;
constexpr size_t kChunkBytes = 256;

void Add(void* target, const void* left, const void* right, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    static_cast<float*>(target)[i] = static_cast<const float*>(left)[i] + static_cast<const float*>(right)[i];
  }
}

void AddMany(void* const* targets, size_t target_count, const void* const* terms, size_t term_count, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (size_t k = 0; k < term_count; ++k) sum += static_cast<const float*>(terms[k])[i];
    for (size_t k = 0; k < target_count; ++k) static_cast<float*>(targets[k])[i] = sum;
  }
}

// One collective of one rank, with its memory and its end.
struct TestJob : Job {
  std::unique_ptr<const ExecutionPlan> plan_owner;
  std::vector<float> data;  // in place
  int ends = 0;
  absl::Status end;
  int failures = 0;
  absl::Status failure;
  Rank failed_peer;
  std::function<void()> then;  // called at the end
};

class Member : public Executor::Owner {
 public:
  Member(LoopbackNetwork* network, int rank)
      : transport_(network->CreateTransport(Rank(rank))), executor_(transport_.get(), kChannel, /*ranks=*/{}, this) {}
  ~Member() override { executor_.FailAll(absl::CancelledError("the test is over")); }

  Transport& transport() { return *transport_; }
  Executor& executor() { return executor_; }
  const std::vector<uint64_t>& ended() const { return ended_; }

  // An all-reduce, or a broadcast from rank 0, of `count` floats, each of value `fill`.
  void Start(TestJob* job, uint64_t sequence, Collective collective, Algorithm algorithm, size_t count, float fill,
             FlightRecord* record = nullptr) {
    Prepare(job, sequence, collective, algorithm, count, fill, record);
    executor_.Start(job);
  }
  bool AllReduceAtOnce(TestJob* job, uint64_t sequence, Algorithm algorithm, size_t count, float fill,
                       FlightRecord* record = nullptr) {
    Prepare(job, sequence, Collective::kAllReduce, algorithm, count, fill, record);
    return executor_.StartAtOnce(job, /*looks=*/2);
  }

  void Prepare(TestJob* job, uint64_t sequence, Collective collective, Algorithm algorithm, size_t count, float fill,
               FlightRecord* record) {
    const int size = transport_->size();
    ExecutionPlan::Options plan;
    plan.schedule = std::make_shared<const PreparedSchedule>(
        *BuildSchedule(collective, algorithm, transport_->rank(), size, Rank(0)));
    const int blocks = plan.schedule->schedule().blocks;
    if (blocks > 0) plan.input = plan.output = *BlockLayout::Split(count, sizeof(float), blocks);
    plan.element_bytes = sizeof(float);
    plan.chunk_bytes = kChunkBytes;
    plan.reduction = {DType::kF32, ReduceOp::kSum, &Add};
    plan.reduce_many = &AddMany;
    job->plan_owner = std::make_unique<const ExecutionPlan>(std::move(plan));
    job->plan = job->plan_owner.get();
    job->signature.sequence = sequence;
    job->signature.count = count;
    job->signature.collective = collective;
    job->signature.algorithm = algorithm;
    job->signature.dtype = DType::kF32;
    job->data.assign(count, fill);
    job->input = reinterpret_cast<const char*>(job->data.data());
    job->output = reinterpret_cast<char*>(job->data.data());
    job->record = record;
  }

  void OnDone(Job* job, const absl::Status& status) override {
    TestJob* const done = static_cast<TestJob*>(job);
    ++done->ends;
    done->end = status;
    ended_.push_back(done->signature.sequence);
    if (done->then) done->then();
  }
  void OnOperationFailed(Job* job, const absl::Status& status, Rank peer, const Envelope&, const Operation&) override {
    TestJob* const failing = static_cast<TestJob*>(job);
    ++failing->failures;
    failing->failure = status;
    failing->failed_peer = peer;
  }

 private:
  const std::unique_ptr<Transport> transport_;
  std::vector<uint64_t> ended_;
  Executor executor_;
};

class ExecutorTest : public ::testing::Test {
 protected:
  void MakeRanks(int size, size_t buffer_bytes = 1 << 20) {
    LoopbackOptions options;
    options.buffer_bytes = buffer_bytes;
    options.observer = [this](const LoopbackMessage& message) { messages_.push_back(message); };
    ranks_.clear();
    network_ = std::make_unique<LoopbackNetwork>(size, options);
    for (int rank = 0; rank < size; ++rank) ranks_.push_back(std::make_unique<Member>(network_.get(), rank));
  }

  bool Drive(const std::function<bool()>& done) {
    const Deadline deadline = Deadline::AfterMs(30'000);
    while (!done()) {
      if (deadline.passed()) return false;
      for (const auto& member : ranks_) member->transport().Progress();
    }
    return true;
  }

  // Until each of the jobs has ended.
  template <size_t kCount>
  void Await(const TestJob (&jobs)[kCount]) {
    ASSERT_TRUE(
        Drive([&] { return std::all_of(jobs, jobs + kCount, [](const TestJob& job) { return job.ends == 1; }); }));
  }

  // One job for each rank, as Member::Start; `fill` is rank 0's, and another rank's too where it is an all-reduce.
  template <size_t kCount>
  void StartAll(TestJob (&jobs)[kCount], uint64_t sequence, Collective collective, Algorithm algorithm, size_t count,
                float fill) {
    for (size_t rank = 0; rank < kCount; ++rank) {
      const bool filled = rank == 0 || collective == Collective::kAllReduce;
      ranks_[rank]->Start(&jobs[rank], sequence, collective, algorithm, count, filled ? fill : 0);
    }
  }

  // An all-reduce of ones that is no exchange of two.
  template <size_t kCount>
  void ExpectNoExchange(Algorithm algorithm, size_t count) {
    MakeRanks(kCount);
    TestJob jobs[kCount];
    for (size_t rank = 0; rank < kCount; ++rank) {
      EXPECT_FALSE(ranks_[rank]->AllReduceAtOnce(&jobs[rank], 1, algorithm, count, 1));
    }
    Await(jobs);
    for (const TestJob& job : jobs) EXPECT_THAT(job.data, Each(kCount));
  }

  // Until nothing moves any more.
  void DriveToTheEnd() {
    for (int quiet = 0; quiet < 100; ++quiet) {
      for (const auto& member : ranks_) {
        if (member->transport().Progress()) quiet = 0;
      }
    }
  }

  std::vector<size_t> BytesSentBy(int rank) const {
    std::vector<size_t> bytes;
    for (const LoopbackMessage& message : messages_) {
      if (message.source == Rank(rank)) bytes.push_back(message.bytes);
    }
    return bytes;
  }

  std::vector<uint64_t> SequencesSentBy(int rank) const {
    std::vector<uint64_t> sequences;
    for (const LoopbackMessage& message : messages_) {
      if (message.source == Rank(rank)) sequences.push_back(DecodeSignature(message.envelope).sequence);
    }
    return sequences;
  }

  std::vector<LoopbackMessage> messages_;
  std::unique_ptr<LoopbackNetwork> network_;
  std::vector<std::unique_ptr<Member>> ranks_;
};

// The first rank finds nothing yet and goes on by operations; the second is done when it has begun. One message each way.
TEST_F(ExecutorTest, AnExchangeOfShortVectorsIsOverAtOnceForWhoComesLast) {
  MakeRanks(2);
  uint64_t sequence = 0;
  for (const Algorithm algorithm : {Algorithm::kRecursiveDoubling, Algorithm::kOneShot}) {
    for (const size_t count : {1, 64, 256}) {
      for (const int first : {0, 1}) {
        messages_.clear();
        TestJob jobs[2];
        FlightRecord records[2];
        ++sequence;
        for (FlightRecord& record : records) record.signature.sequence = sequence;
        EXPECT_FALSE(ranks_[first]->AllReduceAtOnce(&jobs[first], sequence, algorithm, count, 1, &records[first]));
        EXPECT_EQ(jobs[first].ends, 0);
        const int last = 1 - first;
        // 256 floats are more than one chunk, and so no exchange.
        const bool short_enough = count * sizeof(float) <= kChunkBytes;
        EXPECT_EQ(ranks_[last]->AllReduceAtOnce(&jobs[last], sequence, algorithm, count, 2, &records[last]),
                  short_enough);
        ASSERT_TRUE(Drive([&] { return jobs[first].ends == 1 && (short_enough || jobs[last].ends == 1); }));
        EXPECT_EQ(jobs[last].ends, short_enough ? 0 : 1) << "nobody is told of what he has been told";
        for (int rank = 0; rank < 2; ++rank) {
          EXPECT_THAT(jobs[rank].end, IsOk());
          EXPECT_THAT(jobs[rank].data, Each(3));
          EXPECT_EQ(records[rank].sent_bytes, count * sizeof(float));
          EXPECT_EQ(records[rank].received_bytes, count * sizeof(float));
          if (short_enough) {
            EXPECT_THAT(BytesSentBy(rank), ElementsAre(count * sizeof(float)));
          }
        }
      }
    }
  }
}

// Others than the two are in it, halves of the vector go each way, or one folds for both.
TEST_F(ExecutorTest, WhatIsNoExchangeOfTwoIsCarriedOutByOperations) {
  ExpectNoExchange<3>(Algorithm::kOneShot, 4);
  ExpectNoExchange<2>(Algorithm::kTwoShot, 64);
  ExpectNoExchange<2>(Algorithm::kChain, 64);
}
TEST_F(ExecutorTest, AnExchangeBehindOthersWaitsForItsTurn) {
  MakeRanks(2);
  TestJob large[2], small[2];
  for (int rank = 0; rank < 2; ++rank) {
    ranks_[rank]->Start(&large[rank], 1, Collective::kAllReduce, Algorithm::kRing, 4096, 1);
    EXPECT_FALSE(ranks_[rank]->AllReduceAtOnce(&small[rank], 2, Algorithm::kOneShot, 4, 1));
  }
  Await(small);
  for (const Member* member : {ranks_[0].get(), ranks_[1].get()}) EXPECT_THAT(member->ended(), ElementsAre(1, 2));
  for (const TestJob& job : small) EXPECT_THAT(job.data, Each(2));
}

TEST_F(ExecutorTest, CutsBlocksIntoChunks) {
  MakeRanks(2);
  TestJob jobs[2];
  const size_t count = 3 * kChunkBytes / sizeof(float) + 10;
  StartAll(jobs, 1, Collective::kBroadcast, Algorithm::kBinomial, count, 7);
  Await(jobs);
  EXPECT_THAT(BytesSentBy(0), ElementsAre(kChunkBytes, kChunkBytes, kChunkBytes, 40));
  EXPECT_THAT(BytesSentBy(1), IsEmpty());
  EXPECT_THAT(jobs[1].data, Each(7));
  EXPECT_THAT(jobs[0].end, IsOk());
  EXPECT_THAT(ranks_[0]->executor().jobs(), IsEmpty());
}

// A chain of ranks passes on what it has received before all of it has arrived.
TEST_F(ExecutorTest, PassesOnChunksAsTheyCome) {
  MakeRanks(4, /*buffer_bytes=*/1000);
  TestJob jobs[4];
  const size_t count = 100 * kChunkBytes / sizeof(float);
  StartAll(jobs, 1, Collective::kBroadcast, Algorithm::kBinomial, count, 7);
  Await(jobs);
  for (const TestJob& job : jobs) EXPECT_THAT(job.data, Each(7));
  // Rank 2 received from rank 0 and passed on to rank 3.
  const auto sent_on = std::find_if(messages_.begin(), messages_.end(),
                                    [](const LoopbackMessage& message) { return message.source == Rank(2); });
  ASSERT_NE(sent_on, messages_.end());
  EXPECT_GT(std::count_if(sent_on, messages_.end(),
                          [](const LoopbackMessage& m) { return m.source == Rank(0) && m.target == Rank(2); }),
            50);
}

// The tail of one job overlaps the head of the next, and messages keep the order of the jobs.
TEST_F(ExecutorTest, TheNextJobBeginsWhenAllOfTheOneBeforeIsPosted) {
  MakeRanks(2);
  TestJob first[2], second[2];
  ranks_[0]->Start(&first[0], 1, Collective::kBroadcast, Algorithm::kBinomial, 64, 1);
  ranks_[0]->Start(&second[0], 2, Collective::kBroadcast, Algorithm::kBinomial, 64, 2);
  // Both are sent before rank 1 has called at all.
  EXPECT_THAT(SequencesSentBy(0), ElementsAre(1, 2));
  // Rank 1's first job waits for data, and yet its second has posted its receive: both end in one go.
  ranks_[1]->Start(&first[1], 1, Collective::kBroadcast, Algorithm::kBinomial, 64, 0);
  ranks_[1]->Start(&second[1], 2, Collective::kBroadcast, Algorithm::kBinomial, 64, 0);
  ASSERT_TRUE(Drive([&] { return second[1].ends == 1; }));
  EXPECT_THAT(ranks_[1]->ended(), ElementsAre(1, 2));
  EXPECT_THAT(first[1].data, Each(1));
  EXPECT_THAT(second[1].data, Each(2));
}

TEST_F(ExecutorTest, AJobThatWaitsForDataHoldsBackTheNext) {
  MakeRanks(2);
  TestJob first, second;
  // The ring sends on what it receives: with rank 1 absent, not all of the first job can be posted.
  ranks_[0]->Start(&first, 1, Collective::kAllReduce, Algorithm::kRing, 64, 1);
  ranks_[0]->Start(&second, 2, Collective::kAllReduce, Algorithm::kRing, 64, 1);
  DriveToTheEnd();
  EXPECT_THAT(SequencesSentBy(0), Each(1));
  EXPECT_EQ(ranks_[0]->executor().jobs().size(), 2);
  EXPECT_EQ(first.ends + second.ends, 0);
  ranks_.clear();
}

TEST_F(ExecutorTest, AnOwnerMayStartAJobWhenOneEnds) {
  MakeRanks(2);
  TestJob first[2], second[2];
  for (int rank = 0; rank < 2; ++rank) {
    first[rank].then = [&, rank] {
      ranks_[rank]->Start(&second[rank], 2, Collective::kAllReduce, Algorithm::kRing, 1000, 3);
    };
    ranks_[rank]->Start(&first[rank], 1, Collective::kAllReduce, Algorithm::kRecursiveDoubling, 10, 2);
  }
  Await(second);
  EXPECT_THAT(first[1].data, Each(4));
  EXPECT_THAT(second[1].data, Each(6));
}

TEST_F(ExecutorTest, BytesAreCountedInTheFlightRecord) {
  MakeRanks(2);
  FlightRecorder recorder(4);
  TestJob jobs[2];
  Signature signature;
  signature.sequence = 1;
  FlightRecord* const record = recorder.Add(signature, 4000);
  ranks_[0]->Start(&jobs[0], 1, Collective::kAllReduce, Algorithm::kRing, 1000, 1, record);
  EXPECT_EQ(record->state, FlightRecord::State::kRunning);
  ranks_[1]->Start(&jobs[1], 1, Collective::kAllReduce, Algorithm::kRing, 1000, 1);
  Await(jobs);
  EXPECT_EQ(record->sent_bytes, 4000) << "half of the vector twice";
  EXPECT_EQ(record->received_bytes, 4000);
  EXPECT_EQ(record->peers[0].rank, Rank(1));
}

// A record that was overwritten meanwhile belongs to another collective.
TEST_F(ExecutorTest, AnOverwrittenFlightRecordIsLeftAlone) {
  MakeRanks(2);
  FlightRecorder recorder(1);
  Signature signature;
  signature.sequence = 1;
  FlightRecord* const record = recorder.Add(signature, 4000);
  TestJob jobs[2];
  ranks_[0]->Start(&jobs[0], 1, Collective::kAllReduce, Algorithm::kRing, 1000, 1, record);
  signature.sequence = 2;
  recorder.Add(signature, 0);
  ranks_[1]->Start(&jobs[1], 1, Collective::kAllReduce, Algorithm::kRing, 1000, 1);
  Await(jobs);
  EXPECT_EQ(record->sent_bytes, 0);
}

TEST_F(ExecutorTest, FailAllEndsStartedAndQueuedJobsAtOnce) {
  MakeRanks(2);
  TestJob jobs[3];
  for (int i = 0; i < 3; ++i) ranks_[0]->Start(&jobs[i], i + 1, Collective::kAllReduce, Algorithm::kRing, 5000, 1);
  DriveToTheEnd();
  ranks_[0]->executor().FailAll(absl::AbortedError("rank 1 died"));
  for (const TestJob& job : jobs) {
    EXPECT_EQ(job.ends, 1);
    EXPECT_THAT(job.end, StatusIs(absl::StatusCode::kAborted, "rank 1 died"));
    EXPECT_EQ(job.failures, 0);
  }
  EXPECT_THAT(ranks_[0]->ended(), ElementsAre(1, 2, 3));
  EXPECT_THAT(ranks_[0]->executor().jobs(), IsEmpty());
  ranks_[0]->executor().FailAll(absl::InternalError("again"));
}

// The owner is told once, and has the last word.
TEST_F(ExecutorTest, AFailedOperationIsReportedOnceAndEndsNothingByItself) {
  MakeRanks(3);
  TestJob jobs[2];
  for (int rank = 0; rank < 2; ++rank) {
    ranks_[rank]->Start(&jobs[rank], 1, Collective::kAllReduce, Algorithm::kRing, 5000, 1);
  }
  network_->Disconnect(Rank(2));
  DriveToTheEnd();
  EXPECT_EQ(jobs[0].failures, 1);
  EXPECT_EQ(jobs[0].failed_peer, Rank(2));
  EXPECT_THAT(jobs[0].failure, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2")));
  EXPECT_EQ(jobs[0].ends, 0);
  ranks_[0]->executor().FailAll(absl::AbortedError("rank 2 died"));
  EXPECT_EQ(jobs[0].ends, 1);
  EXPECT_EQ(jobs[0].failures, 1);
  ranks_.clear();
}

}  // namespace
}  // namespace lockstep
