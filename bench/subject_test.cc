#include "bench/subject.h"

#include <cstring>
#include <vector>

#include "base/status_matchers.h"
#include "bench/exercise.h"
#include "comm/self_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

constexpr Collective kWithData[] = {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce,
                                    Collective::kAllGather, Collective::kReduceScatter};
constexpr int64_t kBytes = 4000;

struct Fixture {
  explicit Fixture(const SubjectKind& kind)
      : pattern(Pattern::Create(kind.dtype, kind.op, 1).value()),
        memory(Memory::Create(Subject::VectorsFor(kind), kBytes).value()),
        subject(kind, SizeOfSubject(kind, 1, kBytes), &communicator, &pattern, &memory) {
    subject.Fill();
  }

  SelfCommunicator communicator{16};
  Pattern pattern;
  Memory memory;
  Subject subject;
};

TEST(Subject, OfACorrectCommunicatorNothingIsWrong) {
  for (const Collective collective : kWithData) {
    for (const bool in_place : {false, true}) {
      for (const int in_flight : {0, 3}) {
        SubjectKind kind;
        kind.exercise.collective = collective;
        kind.in_place = in_place;
        kind.in_flight = in_flight;
        Fixture fixture(kind);
        ASSERT_THAT(fixture.subject.Run(7), IsOk());
        EXPECT_EQ(fixture.subject.CountWrong(), 0) << Name(collective) << (in_place ? " in place" : "");
      }
    }
  }
}

// Every exercise in every manner in which it can be called.
TEST(Subject, EveryExerciseIsCarriedOut) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<Exercise> exercises, ParseExercises("all"));
  for (const Exercise& exercise : exercises) {
    for (const bool prepared : {false, true}) {
      for (const bool grouped : {false, true}) {
        for (const int in_flight : {0, 3}) {
          SubjectKind kind;
          kind.exercise = exercise;
          kind.prepared = prepared;
          kind.grouped = grouped;
          kind.in_flight = in_flight;
          if (prepared && (grouped || exercise.messages)) continue;
          Fixture fixture(kind);
          ASSERT_THAT(fixture.subject.Run(7), IsOk()) << Name(exercise);
          ASSERT_THAT(fixture.subject.Run(4), IsOk()) << Name(exercise);
          EXPECT_EQ(fixture.subject.CountWrong(), 0) << Name(exercise);
        }
      }
    }
  }
}

TEST(Subject, WithoutACallTheWholeOutputIsWrong) {
  for (const Collective collective : kWithData) {
    SubjectKind kind;
    kind.exercise.collective = collective;
    Fixture fixture(kind);
    EXPECT_EQ(fixture.subject.CountWrong(), kBytes / 4) << Name(collective);
  }
}

TEST(Subject, OneWrongElementIsCounted) {
  SubjectKind kind;
  Fixture fixture(kind);
  ASSERT_THAT(fixture.subject.Run(1), IsOk());
  fixture.memory.vector(1)[kBytes - 1] ^= 1;  // of the output
  EXPECT_EQ(fixture.subject.CountWrong(), 1);
  fixture.memory.vector(0)[0] ^= 1;  // an input that the call should have left alone
  EXPECT_EQ(fixture.subject.CountWrong(), 2);
}

TEST(SizeOfSubject, IsDivisibleWhereRanksHaveBlocks) {
  SubjectKind kind;
  SubjectSize size = SizeOfSubject(kind, 3, 1023);
  EXPECT_EQ(size.count, 255);
  EXPECT_EQ(size.own_count, 255);
  EXPECT_EQ(size.bytes, 1020);
  kind.exercise.collective = Collective::kAllGather;
  size = SizeOfSubject(kind, 4, 1023);
  EXPECT_EQ(size.count, 252);
  EXPECT_EQ(size.own_count, 63);
  EXPECT_EQ(size.bytes, 1008);
  EXPECT_EQ(SizeOfSubject(kind, 4, 8).bytes, 0);
  kind.exercise.collective = Collective::kBarrier;
  EXPECT_EQ(SizeOfSubject(kind, 4, 1023).bytes, 0);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
