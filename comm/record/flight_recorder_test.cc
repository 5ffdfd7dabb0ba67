#include "comm/record/flight_recorder.h"

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/rank.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/record/signature.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using State = FlightRecord::State;

Signature AllReduce(uint64_t sequence) {
  Signature signature;
  signature.sequence = sequence;
  signature.count = 8;
  signature.collective = Collective::kAllReduce;
  signature.algorithm = Algorithm::kRing;
  signature.dtype = DType::kF32;
  return signature;
}

std::vector<std::string> Lines(const FlightRecorder& recorder, size_t count_max) {
  return absl::StrSplit(recorder.ToString(count_max), '\n', absl::SkipEmpty());
}

TEST(FlightRecorder, IsEmptyAtFirst) { EXPECT_EQ(FlightRecorder(4).ToString(100), ""); }

TEST(FlightRecorder, KeepsTheNewestOldestFirst) {
  FlightRecorder recorder(3);
  for (uint64_t sequence = 1; sequence <= 2; ++sequence) recorder.Add(AllReduce(sequence), 32);
  EXPECT_THAT(Lines(recorder, 100), ElementsAre(HasSubstr("#1 "), HasSubstr("#2 ")));
  for (uint64_t sequence = 3; sequence <= 8; ++sequence) recorder.Add(AllReduce(sequence), 32);
  EXPECT_THAT(Lines(recorder, 100), ElementsAre(HasSubstr("#6 "), HasSubstr("#7 "), HasSubstr("#8 ")));
  EXPECT_THAT(Lines(recorder, 2), ElementsAre(HasSubstr("#7 "), HasSubstr("#8 ")));
  EXPECT_THAT(Lines(recorder, 0), IsEmpty());
}

TEST(FlightRecorder, HasRoomForOneAtLeast) {
  FlightRecorder recorder(0);
  recorder.Add(AllReduce(1), 32);
  recorder.Add(AllReduce(2), 32);
  EXPECT_THAT(Lines(recorder, 100), ElementsAre(HasSubstr("#2 ")));
}

TEST(FlightRecorder, AnOverwrittenRecordIsAnothers) {
  FlightRecorder recorder(2);
  FlightRecord* const first = recorder.Add(AllReduce(1), 32);
  first->AddSent(Rank(1), 10);
  recorder.Add(AllReduce(2), 32);
  EXPECT_EQ(first->signature.sequence, 1);
  recorder.Add(AllReduce(3), 32);
  EXPECT_EQ(first->signature.sequence, 3);
  EXPECT_EQ(first->sent_bytes, 0);
  EXPECT_EQ(first->peer_count, 0);
}

TEST(FlightRecorder, FindsWhatItStillHas) {
  FlightRecorder recorder(2);
  EXPECT_EQ(recorder.Find(1), nullptr);
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) recorder.Add(AllReduce(sequence), 32);
  EXPECT_EQ(recorder.Find(1), nullptr) << "overwritten";
  ASSERT_NE(recorder.Find(2), nullptr);
  EXPECT_EQ(recorder.Find(2)->signature.sequence, 2);
  EXPECT_EQ(recorder.Find(4), nullptr);
}

TEST(FlightRecord, SaysWhatItWaitsForInEachState) {
  FlightRecorder recorder(1);
  FlightRecord* const record = recorder.Add(AllReduce(5), 32);
  record->started = record->queued + std::chrono::milliseconds(1);
  record->ended = record->queued + std::chrono::milliseconds(4);
  const auto now = record->queued + std::chrono::microseconds(9500);
  EXPECT_THAT(ToString(*record, now), AllOf(HasSubstr("all_reduce #5 (8 f32 sum, ring) 32 B"), HasSubstr("queued"),
                                            HasSubstr("9.500 ms"), Not(HasSubstr("rank"))));
  record->state = State::kRunning;
  EXPECT_THAT(ToString(*record, now), HasSubstr("running for 8.500 ms"));
  record->state = State::kDone;
  EXPECT_THAT(ToString(*record, now), HasSubstr("done in 4.000 ms"));
  record->state = State::kFailed;
  EXPECT_THAT(ToString(*record, now), HasSubstr("failed after 4.000 ms"));
}

TEST(FlightRecord, SaysWhatHadNoTime) {
  FlightRecorder recorder(1);
  FlightRecord* const record = recorder.Add(AllReduce(5), 32, {});
  const auto now = FlightRecord::Clock::now();
  EXPECT_THAT(ToString(*record, now), HasSubstr("just queued,"));
  record->state = State::kRunning;
  EXPECT_THAT(ToString(*record, now), HasSubstr("just begun,"));
  record->state = State::kDone;
  EXPECT_THAT(ToString(*record, now), HasSubstr("done at once,"));
  record->state = State::kFailed;
  EXPECT_THAT(ToString(*record, now), HasSubstr("failed at once,"));
}

TEST(FlightRecord, CountsBytesForEachPeer) {
  FlightRecorder recorder(1);
  FlightRecord* const record = recorder.Add(AllReduce(5), 32);
  record->AddSent(Rank(1), 10);
  record->AddReceived(Rank(3), 4);
  record->AddSent(Rank(1), 5);
  record->AddReceived(Rank(1), 1);
  EXPECT_THAT(ToString(*record, record->queued),
              AllOf(HasSubstr("sent 15 B, received 5 B"), HasSubstr("rank 1: 15/1"), HasSubstr("rank 3: 0/4")));
}

TEST(FlightRecord, PeersWithoutRoomAreCountedInTheSumOnly) {
  FlightRecorder recorder(1);
  FlightRecord* const record = recorder.Add(AllReduce(5), 32);
  for (int rank = 0; rank < 2 * FlightRecord::kPeersMax; ++rank) record->AddSent(Rank(rank), 1);
  const std::string text = ToString(*record, record->queued);
  EXPECT_THAT(text, HasSubstr("sent 16 B"));
  EXPECT_THAT(text, HasSubstr("rank 7: 1/0"));
  EXPECT_THAT(text, Not(HasSubstr("rank 8")));
}

}  // namespace
}  // namespace lockstep
