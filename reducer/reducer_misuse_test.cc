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
#include "base/deadline.h"
#include "base/device/host_device.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/host/self_communicator.h"
#include "comm/symmetric_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/gate.h"
#include "tests/noting_communicator.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::MakeParameter;
using ::testing::Not;
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

TEST_F(ReducerMisuse, MarkingTwiceIsRefusedAndFailsTheBackward) {
  const auto twice = [](size_t index) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    HasSubstr(absl::StrCat("parameter ", index, " 'p", index,
                                           "' (f32[20]) was marked ready twice in this backward")));
  };
  for (const bool sync : {true, false}) {
    for (const size_t index : {1, 2}) {
      LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({sync}));
      LOCKSTEP_EXPECT_OK(Mark(1));
      if (index == 1) {
        EXPECT_THAT(Mark(1), twice(1));
      }
      LOCKSTEP_EXPECT_OK(Mark(0));
      LOCKSTEP_EXPECT_OK(Mark(2));
      if (index == 2) {
        EXPECT_THAT(Mark(2), twice(2));  // launched by now
      }
      EXPECT_THAT(reducer_->EndBackward(nullptr), twice(index));
    }
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
  // None of them counts as marked, and one that does makes up for all.
  replica_.MarkAll(*reducer_, replica_.order());
  LOCKSTEP_EXPECT_OK(reducer_->EndBackward(nullptr));
  for (const bool sync : {true, false}) {
    LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({sync}));
    EXPECT_FALSE(reducer_->MarkReady(0, cases[0].gradient, nullptr).ok());
    LOCKSTEP_EXPECT_OK(Mark(1));
    LOCKSTEP_EXPECT_OK(Mark(2));
    EXPECT_THAT(reducer_->EndBackward(nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("a mark was refused (mark_ready: the gradient f16[20]"), HasSubstr("'p0'"),
                               Not(HasSubstr("no gradient came")), Not(HasSubstr("find_unused")))));
  }
}

TEST_F(ReducerMisuse, MemoryOfAnotherGradientIsRefused) {
  testing::ReachableVector<float> memory(100);
  const auto at = [&](int64_t offset) { return testing::VectorView(memory.data() + offset, DType::kF32, 20); };
  for (const bool sync : {true, false}) {
    LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({sync}));
    LOCKSTEP_EXPECT_OK(reducer_->MarkReady(2, at(20), nullptr));
    for (const int64_t offset : {20, 1, 39}) {
      EXPECT_THAT(reducer_->MarkReady(0, at(offset), nullptr),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr("parameter 0 'p0' (f32[20]) has memory of parameter 2 'p2' (f32[20])")));
      // A gradient that is only read may be another's; where the average goes may not.
      EXPECT_THAT(reducer_->MarkReady(0, at(60), at(offset), nullptr),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has memory of")));
    }
    LOCKSTEP_EXPECT_OK(reducer_->MarkReady(0, at(0), nullptr));
    LOCKSTEP_EXPECT_OK(reducer_->MarkReady(1, at(20), at(40), nullptr));
    LOCKSTEP_EXPECT_OK(reducer_->EndBackward(nullptr));
    // In the next backward they may lie elsewhere, as an allocator gives them out.
    LOCKSTEP_EXPECT_OK(reducer_->BeginBackward({sync}));
    LOCKSTEP_EXPECT_OK(reducer_->MarkReady(0, at(20), nullptr));
    LOCKSTEP_EXPECT_OK(reducer_->MarkReady(1, at(0), nullptr));
    LOCKSTEP_EXPECT_OK(reducer_->MarkReady(2, at(41), nullptr));
    LOCKSTEP_EXPECT_OK(reducer_->EndBackward(nullptr));
  }
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

// Whoever calls collectives on the reducer's communicator in a backward gets an error, whatever the call, and the step goes on.
TEST(ReducersCommunicator, IsRefusedToOthersInABackward) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(3, 20), rank);
    ReducerOptions options;
    options.bucket_caps_bytes = {0};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto duplicate, communicator.Duplicate());
    float value = 1;
    CollectiveRequest sum;
    sum.collective = Collective::kAllReduce;
    sum.dtype = DType::kF32;
    sum.count = 1;
    sum.input = sum.output = &value;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto prepared, communicator.Prepare(sum));
    const auto stream = HostDevice()->CreateStream("test").value();
    const auto refused =
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 HasSubstr("the communicator is in use by the backward of a reducer, which is under way"));

    replica.Compute(0);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    for (const size_t index : {2, 1, 0}) {
      if (index != 2 || rank == 1) {  // on one rank or on both
        EXPECT_THAT(communicator.Run(sum), refused);
        EXPECT_THAT(communicator.Start(sum), refused);
        EXPECT_THAT(prepared->Run(), refused);
        EXPECT_THAT(prepared->Start(), refused);
        EXPECT_THAT(communicator.Enqueue(sum, stream.get(), [](const absl::Status&) {}), refused);
        LOCKSTEP_EXPECT_OK(communicator.StartGroup());
        EXPECT_THAT(communicator.Start(sum), refused);
        EXPECT_THAT(communicator.EndGroup(), refused);
        EXPECT_THAT(communicator.Duplicate(), refused);
        EXPECT_THAT(communicator.Allocate(64), refused);
        EXPECT_THAT(reducer->Broadcast({testing::VectorView(&value, DType::kF32, 0)}, Rank(0)), refused);
        EXPECT_THAT(Reducer::Create(&communicator, Vectors(1, 1), ReducerOptions()), refused);
      }
      replica.MarkAll(*reducer, {index});
    }
    // A duplicate is as good, and messages are on lanes of their own.
    LOCKSTEP_EXPECT_OK(duplicate->Run(sum));
    EXPECT_EQ(value, 2);
    char byte = 0;
    SendRequest send;
    send.target = Rank(1);
    send.data = &byte;
    send.bytes = 1;
    ReceiveRequest receive;
    receive.data = &byte;
    receive.bytes = 1;
    LOCKSTEP_EXPECT_OK(rank == 0 ? communicator.Send(send) : communicator.Receive(receive));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    replica.ExpectAverages(2, {0});

    // Between backwards it is free, and in one that sends nothing.
    LOCKSTEP_EXPECT_OK(communicator.Run(sum));
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({/*sync=*/false}));
    LOCKSTEP_EXPECT_OK(prepared->Run());
    LOCKSTEP_EXPECT_OK(communicator.Duplicate());
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    EXPECT_EQ(value, 8);
    // What was put into a stream's order before a backward keeps its place.
    Gate gate;
    absl::Status done = absl::UnknownError("not done");
    LOCKSTEP_EXPECT_OK(stream->Enqueue([&gate] { return gate.Await(Deadline::AfterMs(20'000)); }));
    LOCKSTEP_EXPECT_OK(communicator.Enqueue(sum, stream.get(), [&done](const absl::Status& status) { done = status; }));
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    gate.Open();
    LOCKSTEP_EXPECT_OK(stream->Synchronize(Deadline::AfterMs(20'000)));
    LOCKSTEP_EXPECT_OK(done);
    replica.MarkAll(*reducer, replica.order());
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    // A reducer that ends in a backward leaves it to others, once its buckets are done.
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
  });
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_EXPECT_OK(Reducer::Create(&communicator, Vectors(1, 1), ReducerOptions()));
  });
}

TEST(ReducersCommunicator, IsOneReducersInABackwardAndTheNextOnesAfterwards) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica generator(Vectors(3, 20), rank);
    Replica discriminator(Vectors(2, 50), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto one, Reducer::Create(&communicator, generator.table(), ReducerOptions()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto two,
                                  Reducer::Create(&communicator, discriminator.table(), ReducerOptions()));
    for (int step = 0; step < 4; ++step) {
      generator.Compute(step);
      LOCKSTEP_EXPECT_OK(one->BeginBackward({}));
      EXPECT_THAT(two->BeginBackward({}),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           HasSubstr("the backward of another reducer is under way on this communicator")));
      EXPECT_THAT(two->EndBackward(nullptr),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no backward was begun")));
      generator.MarkAll(*one, generator.order());
      // One that sends nothing is in nobody's way.
      LOCKSTEP_EXPECT_OK(two->BeginBackward({/*sync=*/false}));
      LOCKSTEP_EXPECT_OK(two->EndBackward(nullptr));
      LOCKSTEP_EXPECT_OK(one->EndBackward(nullptr));
      generator.ExpectAverages(2, {step});
      LOCKSTEP_EXPECT_OK(discriminator.RunStep(*two, step));
      discriminator.ExpectAverages(2, {step});
    }
    // At once they are on communicators of their own.
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto duplicate, communicator.Duplicate());
    LOCKSTEP_EXPECT_OK(two->ChangeCommunicator(duplicate.get()));
    generator.Compute(7);
    LOCKSTEP_EXPECT_OK(one->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(discriminator.RunStep(*two, 8));
    discriminator.ExpectAverages(2, {8});
    generator.MarkAll(*one, generator.order());
    LOCKSTEP_EXPECT_OK(one->EndBackward(nullptr));
    generator.ExpectAverages(2, {7});
    LOCKSTEP_EXPECT_OK(two->ChangeCommunicator(&communicator));
  });
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
  Argument other_rest;
  other_rest.options.compress = DType::kBF16;
  other_rest.options.hook = MakeNoopHook();
  other_rest.options.find_unused = true;
  other_rest.options.uneven_inputs = true;
  other_rest.options.throw_on_early_end = true;
  other_rest.options.replan = false;
  other_rest.options.delayed = {0, 2};
  other_rest.options.delayed_trigger = 1;
  const std::pair<Argument, const char*> cases[] = {
      {other_shape, "the shape of parameter 2 'p2' differs: [20] on rank 0, [4, 5] on rank 1"},
      {other_caps, "the options differ: bucket_caps_bytes: 1048576 26214400 on rank 0, 1 2 on rank 1"},
      {other_average, "averaging: LOCKSTEP_AVERAGING_BEFORE on rank 0, LOCKSTEP_AVERAGING_NONE on rank 1"},
      {other_use, "the use of parameter 2 'p2' differs: reduced on rank 0, ignored on rank 1"},
      {other_turns, "buckets_in_memory_max: all on rank 0, 3 on rank 1"},
      {other_rest,
       "the options differ: compression: none on rank 0, bf16 on rank 1; hook: none on rank 0, noop on rank 1; "
       "find_unused_parameters: no on rank 0, yes on rank 1; uneven_inputs: no on rank 0, yes on rank 1; "
       "throw_on_early_termination: no on rank 0, yes on rank 1; no_replan: no on rank 0, yes on rank 1; "
       "delayed: none on rank 0, parameters 0 2 on rank 1; delayed_trigger: 0 on rank 0, 1 on rank 1"},
  };
  for (const auto& [other, says] : cases) {
    for (const absl::Status& result : CreateOnTwo({}, other)) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(says)));
    }
  }
}

TEST(ReducerCreate, TellsTheOptionsOfEachGroupOfRanks) {
  LoopbackWorld world(4, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    ReducerOptions options;
    options.static_graph = communicator.rank().value() % 3 == 0;
    options.gradient_as_bucket_view = communicator.rank().value() == 3;
    EXPECT_THAT(Reducer::Create(&communicator, Vectors(2, 3), options),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "the options differ: static_graph: yes on ranks 0, 3, no on ranks 1-2; "
                         "gradient_as_bucket_view: no on ranks 0-2, yes on rank 3"));
  });
}

TEST(ReducerCreate, RefusesANameForTwoParameters) {
  Argument bad;
  bad.table[2].name = "p0";
  for (const absl::Status& result : CreateOnTwo(bad, bad)) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 and 2 have the same name 'p0'")));
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
                                 testing::OnHost() ? HasSubstr(" bytes are left by ") : HasSubstr("45035996273")));
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
    testing::MemoryMessageBoard board;
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

// As where the ranks of a host together would touch more than there is: nothing is allocated.
TEST(ReducerCreate, TellsWhatMemoryIsNeededAndLeft) {
  if (!testing::OnHost()) GTEST_SKIP() << "of the host's memory";
  class Short : public testing::NotingCommunicator {
   public:
    using NotingCommunicator::NotingCommunicator;
    absl::Status CheckMemory(size_t bytes) override {
      asked = bytes;
      if (rank() == Rank(1)) return absl::ResourceExhaustedError("needed 2, left 1");
      return absl::UnavailableError("rank 1 has no memory: needed 2, left 1");
    }
    absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t) override {
      ADD_FAILURE() << "memory that is not there";
      return absl::InternalError("allocated");
    }
    size_t asked = 0;
  };
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    testing::MemoryMessageBoard board;
    Short in_need(&communicator, &board);
    ReducerOptions options;
    options.gradient_as_bucket_view = true;
    options.compress = DType::kBF16;
    const absl::Status result = Reducer::Create(&in_need, Vectors(3, 1000), options).status();
    if (communicator.rank() == Rank(1)) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kResourceExhausted, "needed 2, left 1"));
    } else {
      EXPECT_THAT(result,
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1 has no memory: needed 2, left 1")));
    }
    // Buckets as they are sent, and gradients beside them.
    EXPECT_GE(in_need.asked, 3 * 1000 * (2 + 4));
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
