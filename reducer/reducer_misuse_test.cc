// Calls that are wrong by themselves, and tables that are: each gets its own error, and the reducer goes on.

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/self_communicator.h"
#include "comm/symmetric_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/noting_communicator.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::MakeParameter;
using testing::Replica;
using testing::ShortTimeout;
using testing::Vectors;

// A reducer of one rank and its gradients; at the end of a test it can still step.
class ReducerMisuse : public ::testing::Test {
 protected:
  ReducerMisuse() : replica_(Vectors(3, 20), 0) {
    auto reducer = Reducer::Create(communicator_.get(), replica_.table(), ReducerOptions());
    LOCKSTEP_EXPECT_OK(reducer);
    reducer_ = *std::move(reducer);
  }

  void TearDown() override {
    LOCKSTEP_EXPECT_OK(replica_.RunStep(*reducer_, 1));
    replica_.ExpectAverages(1, {1});
  }

  absl::Status Mark(size_t index) { return reducer_->MarkReady(index, replica_.gradient(index), nullptr); }

  SelfCommunicator self_{64};
  testing::ForTestDevice communicator_{&self_};
  Replica replica_;
  std::unique_ptr<Reducer> reducer_;
};

TEST_F(ReducerMisuse, MarkingTwiceIsRefused) {
  for (const bool sync : {true, false}) {
    LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({sync}));
    LOCKSTEP_EXPECT_OK(Mark(1));
    EXPECT_THAT(Mark(1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  HasSubstr("parameter 1 'p1' (f32[20]) was marked ready twice in this backward")));
    LOCKSTEP_EXPECT_OK(Mark(0));
    LOCKSTEP_EXPECT_OK(Mark(2));
    EXPECT_THAT(Mark(2), StatusIs(absl::StatusCode::kFailedPrecondition));  // launched by now
    LOCKSTEP_EXPECT_OK(reducer_->EndBackward(nullptr));
  }
}

TEST_F(ReducerMisuse, AnIndexOutOfRangeIsRefused) {
  LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({}));
  for (const size_t index : {size_t{3}, size_t{1} << 40, SIZE_MAX}) {
    EXPECT_THAT(reducer_->MarkReady(index, replica_.gradient(0), nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("parameter ", index, " is out of range: there are 3"))));
  }
  replica_.MarkAll(*reducer_, replica_.order());
  LOCKSTEP_EXPECT_OK(reducer_->EndBackward(nullptr));
}

TEST_F(ReducerMisuse, AGradientThatDoesNotMatchTheTableIsRefused) {
  testing::ReachableVector<double> memory(100);
  const auto view = [&](DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides = {}) {
    return TensorView::Create(memory.data(), dtype, shape, strides, testing::TestDeviceId()).value();
  };
  const struct {
    TensorView gradient;
    const char* says;
  } cases[] = {
      {view(DType::kF16, {20}), "f16[20]"},          {view(DType::kF64, {20}), "f64[20]"},
      {view(DType::kF32, {21}), "f32[21]"},          {view(DType::kF32, {4, 5}), "f32[4, 5]"},
      {view(DType::kF32, {20, 1}), "f32[20, 1]"},    {view(DType::kF32, {0}), "f32[0]"},
      {view(DType::kF32, {20}, {2}), "strides [2]"}, {TensorView(), "no tensor"},
  };
  LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({}));
  for (const auto& bad : cases) {
    EXPECT_THAT(reducer_->MarkReady(0, bad.gradient, nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(bad.says), HasSubstr("does not match parameter 0 'p0' (f32[20])"))));
  }
  // None of them counts as marked.
  replica_.MarkAll(*reducer_, replica_.order());
  LOCKSTEP_EXPECT_OK(reducer_->EndBackward(nullptr));
}

TEST_F(ReducerMisuse, MarkingOutsideABackwardIsRefused) {
  const auto outside = StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("parameter 0 'p0' (f32[20]) was marked outside a backward"));
  EXPECT_THAT(Mark(0), outside);
  for (const bool sync : {true, false}) {
    LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({sync}));
    replica_.MarkAll(*reducer_, replica_.order());
    LOCKSTEP_EXPECT_OK(reducer_->EndBackward(nullptr));
    EXPECT_THAT(Mark(0), outside);
  }
}

TEST_F(ReducerMisuse, EndingWhatWasNotBegunIsRefused) {
  const auto not_begun =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("end_backward: no backward was begun"));
  EXPECT_THAT(reducer_->EndBackward(nullptr), not_begun);
  LOCKSTEP_EXPECT_OK(replica_.RunStep(*reducer_, 0));
  EXPECT_THAT(reducer_->EndBackward(nullptr), not_begun);
}

TEST_F(ReducerMisuse, BeginningTwiceIsRefusedAndChangesNothing) {
  for (const bool sync : {true, false}) {
    LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({sync}));
    LOCKSTEP_EXPECT_OK(Mark(0));
    for (const bool again : {true, false}) {
      EXPECT_THAT(reducer_->BeginBackward({again}),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           HasSubstr("the last backward was not ended by end_backward")));
    }
    EXPECT_THAT(Mark(0), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("twice")));
    LOCKSTEP_EXPECT_OK(Mark(1));
    LOCKSTEP_EXPECT_OK(Mark(2));
    LOCKSTEP_EXPECT_OK(reducer_->EndBackward(nullptr));
  }
}

TEST_F(ReducerMisuse, AMissingGradientOfOneRankIsNamed) {
  LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({}));
  LOCKSTEP_EXPECT_OK(Mark(0));
  EXPECT_THAT(
      reducer_->EndBackward(nullptr),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("rank 0: no gradient came for parameter 1 'p1' (f32[20]), parameter 2 'p2' (f32[20])")));
}

TEST_F(ReducerMisuse, WhileAccumulatingNothingIsMissing) {
  LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({/*sync=*/false}));
  LOCKSTEP_EXPECT_OK(Mark(1));
  LOCKSTEP_EXPECT_OK(reducer_->EndBackward(nullptr));
}

// What two ranks get from Create with these arguments.
struct Argument {
  std::vector<Parameter> table = Vectors(3, 20);
  ReducerOptions options;
};

std::vector<absl::Status> CreateOnTwo(const Argument& zero, const Argument& one) {
  LoopbackWorld world(2, {}, ShortTimeout());
  std::vector<absl::Status> results(2);
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const Argument& mine = rank == 0 ? zero : one;
    results[rank] = Reducer::Create(&communicator, mine.table, mine.options).status();
    // The communicator can still be used.
    LOCKSTEP_EXPECT_OK(Reducer::Create(&communicator, Vectors(2, 3), ReducerOptions()));
  });
  return results;
}

TEST(ReducerCreate, RefusesZeroParameters) {
  Argument none;
  none.table.clear();
  for (const absl::Status& result : CreateOnTwo(none, none)) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least one parameter")));
  }
}

TEST(ReducerCreate, TellsTheOthersOfARankWithABadTable) {
  Argument bad;
  bad.table[1].dtype = DType::kI32;
  for (const bool first : {true, false}) {
    const std::vector<absl::Status> results = first ? CreateOnTwo(bad, {}) : CreateOnTwo({}, bad);
    EXPECT_THAT(results[first ? 0 : 1],
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("parameter 1 'p1': gradients are floats or complex numbers")));
    EXPECT_THAT(results[first ? 1 : 0],
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr(absl::StrCat("rank ", first ? 0 : 1, " cannot take part: parameter 1 'p1'"))));
  }
}

TEST(ReducerCreate, RefusesAnEmptyListOfCaps) {
  Argument bad;
  bad.options.bucket_caps_bytes.clear();
  const std::vector<absl::Status> results = CreateOnTwo({}, bad);
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1 cannot take part")));
  EXPECT_THAT(results[1], StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("list of bucket caps is empty")));
}

TEST(ReducerCreate, RefusesTablesAndOptionsThatDiffer) {
  Argument other_shape;
  other_shape.table[2].shape = {4, 5};
  Argument other_caps;
  other_caps.options.bucket_caps_bytes = {1, 2};
  Argument other_average;
  other_average.options.average = Average::kNone;
  Argument other_use;
  other_use.table[2].ignored = true;
  Argument other_turns;
  other_turns.options.buckets_in_memory_max = 3;
  const std::pair<Argument, const char*> cases[] = {
      {other_shape, "the shape of parameter 2 'p2' differs: [20] on rank 0, [4, 5] on rank 1"},
      {other_caps, "bucket caps 1,2 from the first on rank 1"},
      {other_average, "average 2 factor 1 on rank 1"},
      {other_use, "the use of parameter 2 'p2' differs: reduced on rank 0, ignored on rank 1"},
      {other_turns, "at most 3 in memory on rank 1"},
  };
  for (const auto& [other, says] : cases) {
    for (const absl::Status& result : CreateOnTwo({}, other)) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(says)));
    }
  }
}

TEST(ReducerCreate, LetsEveryRankOverlapOrNot) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(5, 20), rank);
    ReducerOptions options;
    options.bucket_caps_bytes = {0};
    options.overlap = rank == 0;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options));
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 0));
    replica.ExpectAverages(2, {0});
  });
}

TEST(ReducerCreate, FailsOnACommunicatorThatIsOver) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.communicator(0)->Abort("over");
  EXPECT_THAT(Reducer::Create(world.communicator(0), Vectors(1, 1), ReducerOptions()),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("over")));
}

TEST(ReducerCreate, SaysThatThereIsNoMemory) {
  Argument huge;
  huge.table[0] = MakeParameter("huge", DType::kF32, {int64_t{1} << 50});
  for (const absl::Status& result : CreateOnTwo(huge, huge)) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kResourceExhausted,
                                 testing::OnHost() ? HasSubstr("Cannot allocate memory") : HasSubstr("45035996273")));
  }
}

TEST(ReducerCreate, TellsTheOthersOfARankThatCannotAllocate) {
  class Failing : public testing::NotingCommunicator {
   public:
    using NotingCommunicator::NotingCommunicator;
    absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes) override {
      auto buffer = NotingCommunicator::Allocate(bytes);
      if (rank() == Rank(1)) return absl::PermissionDeniedError("no memory for rank 1");
      return buffer;
    }
    absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateOnDevice(size_t bytes) override {
      auto buffer = NotingCommunicator::AllocateOnDevice(bytes);
      if (rank() == Rank(1)) return absl::PermissionDeniedError("no memory for rank 1");
      return buffer;
    }
  };
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    testing::MemoryNoteBoard board;
    Failing failing(&communicator, &board);
    const absl::Status result = Reducer::Create(&failing, Vectors(3, 20), ReducerOptions()).status();
    if (communicator.rank() == Rank(1)) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kPermissionDenied, "no memory for rank 1"));
    } else {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("rank 1 cannot take part: no memory for rank 1")));
    }
    LOCKSTEP_EXPECT_OK(communicator.status());
  });
}

TEST(ReducerCreate, RefusesAFactorThatNothingCanBeDividedBy) {
  for (const double factor : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    Argument bad;
    bad.options.average = Average::kPredivide;
    bad.options.predivide_factor = factor;
    for (const absl::Status& result : CreateOnTwo(bad, bad)) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be divided by")));
    }
  }
}

}  // namespace
}  // namespace lockstep
