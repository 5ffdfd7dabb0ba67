// Calls that are wrong by themselves, and tables that are: each gets its own error, and the reducer goes on.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/device/host_device.h"
#include "comm/host/self_communicator.h"
#include "comm/symmetric_buffer.h"
#include "reducer/reducer_testing.h"
#include "tests/gate.h"
#include "tests/noting_communicator.h"

namespace lockstep::testing {
namespace {

// A reducer of one rank and its gradients; at the end of a test it can still step.
class ReducerMisuse : public ::testing::Test {
 protected:
  void TearDown() override { worker_.ExpectStep(1); }

  SelfCommunicator self_{64};
  ForTestDevice communicator_{&self_};
  Worker worker_{*communicator_, Vectors(3, 20)};
  Reducer& reducer_ = worker_.reducer();
};

TEST_F(ReducerMisuse, MarkingTwiceIsRefusedAndFailsTheBackward) {
  const auto twice = [](size_t index) {
    return FailedPrecondition(
        absl::StrCat("parameter ", index, " 'p", index, "' (f32[20]) was marked ready twice in this backward"));
  };
  for (const bool sync : {true, false}) {
    for (const size_t index : {1, 2}) {
      LOCKSTEP_EXPECT_OK(worker_.Begin({sync}));
      worker_.MarkAll({1});
      if (index == 1) {
        EXPECT_THAT(worker_.Mark(1), twice(1));
      }
      worker_.MarkAll({0, 2});
      if (index == 2) {
        EXPECT_THAT(worker_.Mark(2), twice(2));  // launched by now
      }
      const absl::Status ended = worker_.End();
      EXPECT_THAT(ended, twice(index));
      EXPECT_EQ(GetErrorInfo(ended).parameter, sync ? absl::make_optional<int64_t>(index) : absl::nullopt);
    }
  }
}

TEST_F(ReducerMisuse, AnIndexOutOfRangeIsRefused) {
  LOCKSTEP_EXPECT_OK(worker_.Begin());
  for (const size_t index : {size_t{3}, size_t{1} << 40, SIZE_MAX}) {
    EXPECT_THAT(reducer_.MarkReady(index, worker_.gradient(0), nullptr),
                InvalidArgument(absl::StrCat("parameter ", index, " is out of range: there are 3")));
  }
  worker_.MarkAll(worker_.order());
  LOCKSTEP_EXPECT_OK(worker_.End());
}

TEST_F(ReducerMisuse, AGradientThatDoesNotMatchTheTableIsRefused) {
  ReachableVector<double> memory(100);
  const auto view = [&](DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides = {}) {
    return TensorView::Create(memory.data(), dtype, shape, strides, TestDeviceId()).value();
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
  LOCKSTEP_EXPECT_OK(worker_.Begin());
  for (const auto& bad : cases) {
    EXPECT_THAT(reducer_.MarkReady(0, bad.gradient, nullptr),
                InvalidArgument(bad.says, "does not match parameter 0 'p0' (f32[20])"));
  }
  // None of them counts as marked, and one that does makes up for all.
  worker_.MarkAll(worker_.order());
  LOCKSTEP_EXPECT_OK(worker_.End());
  for (const bool sync : {true, false}) {
    LOCKSTEP_EXPECT_OK(worker_.Begin({sync}));
    EXPECT_FALSE(reducer_.MarkReady(0, cases[0].gradient, nullptr).ok());
    worker_.MarkAll({1, 2});
    EXPECT_THAT(worker_.End(), FailedPrecondition("a mark was refused (mark_ready: the gradient f16[20]", "'p0'",
                                                  Not(HasSubstr("no gradient came")), Not(HasSubstr("find_unused"))));
  }
  std::vector<Parameter> table = Vectors(1, 20);
  table[0].shape = {4, 5};
  table[0].strides = {1, 4};
  EXPECT_THAT(Worker(*communicator_, table).reducer().MarkReady(0, view(DType::kF32, {4, 5}), nullptr),
              InvalidArgument("the gradient f32[4, 5] ", "parameter 0 'p0' (f32[4, 5]): f32[4, 5] strides [1, 4]"));
}

TEST(TargetErrors, AreRefusedAndTheGradientMayBeMarkedAgain) {
  const std::vector<Parameter> table = {MakeParameter("real", DType::kBF16, {4}),
                                        MakeParameter("complex", DType::kComplex64, {4})};
  RunWorkers(1, table, {}, [](Worker& worker) {
    ReachableVector<double> memory(64);
    const auto view = [&](DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides = {}) {
      return TensorView::Create(memory.data(), dtype, shape, strides, TestDeviceId()).value();
    };
    const auto mark = [&](size_t index, const TensorView& target) {
      return worker.reducer().MarkReady(index, worker.gradient(index), target, nullptr);
    };
    worker.BeginStep(0);
    for (const TensorView& bad : {view(DType::kI32, {4}), view(DType::kComplex64, {4}), view(DType::kF32, {5}),
                                  view(DType::kF32, {2, 2}), view(DType::kF32, {4}, {2})}) {
      EXPECT_THAT(mark(0, bad), InvalidArgument("does not fit parameter")) << bad.ToString();
    }
    for (const TensorView& bad : {view(DType::kF32, {4}), view(DType::kComplex128, {4})}) {
      EXPECT_THAT(mark(1, bad), InvalidArgument("does not fit parameter")) << bad.ToString();
    }
    worker.MarkAll({0, 1});
    worker.EndStep(0);
  });
}

TEST_F(ReducerMisuse, MemoryOfAnotherGradientIsRefused) {
  ReachableVector<float> memory(80);
  const auto at = [&](int64_t offset) { return VectorView(memory.data() + offset, DType::kF32, 20); };
  for (const bool sync : {true, false}) {
    LOCKSTEP_EXPECT_OK(worker_.Begin({sync}));
    LOCKSTEP_EXPECT_OK(reducer_.MarkReady(2, at(20), nullptr));
    EXPECT_THAT(
        reducer_.MarkReady(0, at(1), nullptr),
        InvalidArgument("parameter 0 'p0' (f32[20]) shares memory with parameter 2 'p2' (f32[20]) in this backward"));
    // Neither may it be read while it is written, or the reverse.
    EXPECT_THAT(reducer_.MarkReady(0, at(39), at(60), nullptr), InvalidArgument("shares memory"));
    if (sync) {
      EXPECT_THAT(reducer_.MarkReady(0, at(60), at(39), nullptr), InvalidArgument("shares memory"));
    }
    LOCKSTEP_EXPECT_OK(reducer_.MarkReady(0, at(0), nullptr));
    // The average may go to the gradient's memory.
    LOCKSTEP_EXPECT_OK(reducer_.MarkReady(1, at(60), at(60), nullptr));
    LOCKSTEP_EXPECT_OK(worker_.End());
    // In the next backward they may lie elsewhere, as an allocator gives them out.
    LOCKSTEP_EXPECT_OK(worker_.Begin({sync}));
    for (const size_t index : {0, 1, 2}) LOCKSTEP_EXPECT_OK(reducer_.MarkReady(index, at(20 * index), nullptr));
    LOCKSTEP_EXPECT_OK(worker_.End());
  }
}

TEST_F(ReducerMisuse, MarkingOutsideABackwardIsRefused) {
  const auto outside = FailedPrecondition("parameter 0 'p0' (f32[20]) was marked outside a backward");
  EXPECT_THAT(worker_.Mark(0), outside);
  for (const bool sync : {true, false}) {
    LOCKSTEP_EXPECT_OK(worker_.Backward({sync}));
    EXPECT_THAT(worker_.Mark(0), outside);
  }
}

TEST_F(ReducerMisuse, EndingWhatWasNotBegunIsRefused) {
  const auto not_begun = FailedPrecondition("end_backward: no backward was begun");
  EXPECT_THAT(worker_.End(), not_begun);
  LOCKSTEP_EXPECT_OK(worker_.Step(0));
  EXPECT_THAT(worker_.End(), not_begun);
}

TEST_F(ReducerMisuse, BeginningTwiceIsRefusedAndChangesNothing) {
  for (const bool sync : {true, false}) {
    LOCKSTEP_EXPECT_OK(worker_.Begin({sync}));
    worker_.MarkAll({0});
    for (const bool again : {true, false}) {
      EXPECT_THAT(worker_.Begin({again}), FailedPrecondition("the last backward was not ended by end_backward"));
    }
    worker_.MarkAll({1, 2});
    LOCKSTEP_EXPECT_OK(worker_.End());
  }
}

// Whoever calls collectives on the reducer's communicator in a backward gets an error, whatever the call, and the step goes on.
TEST(ReducersCommunicator, IsRefusedToOthersInABackward) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([](Communicator& communicator) {
    Worker worker(communicator, Vectors(3, 20), Caps({0}));
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
        FailedPrecondition("the communicator is in use by the backward of a reducer, which is under way");

    worker.BeginStep(0);
    for (const size_t index : {2, 1, 0}) {
      if (index != 2 || worker.rank() == 1) {  // on one rank or on both
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
        EXPECT_THAT(worker.reducer().Broadcast({VectorView(&value, DType::kF32, 0)}, Rank(0)), refused);
        EXPECT_THAT(Reducer::Create(&communicator, Vectors(1, 1), ReducerOptions()), refused);
      }
      worker.MarkAll({index});
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
    LOCKSTEP_EXPECT_OK(worker.rank() == 0 ? communicator.Send(send) : communicator.Receive(receive));
    worker.EndStep(0);

    // Between backwards it is free, and in one that sends nothing.
    LOCKSTEP_EXPECT_OK(communicator.Run(sum));
    LOCKSTEP_EXPECT_OK(worker.Begin({/*sync=*/false}));
    LOCKSTEP_EXPECT_OK(prepared->Run());
    LOCKSTEP_EXPECT_OK(communicator.Duplicate());
    LOCKSTEP_EXPECT_OK(worker.End());
    EXPECT_EQ(value, 8);
    // What was put into a stream's order before a backward keeps its place.
    Gate gate;
    absl::Status done = absl::UnknownError("not done");
    LOCKSTEP_EXPECT_OK(stream->Enqueue([&gate] { return gate.Await(Deadline::AfterMs(20'000)); }));
    LOCKSTEP_EXPECT_OK(communicator.Enqueue(sum, stream.get(), [&done](const absl::Status& status) { done = status; }));
    LOCKSTEP_EXPECT_OK(worker.Begin());
    gate.Open();
    LOCKSTEP_EXPECT_OK(stream->Synchronize(Deadline::AfterMs(20'000)));
    LOCKSTEP_EXPECT_OK(done);
    worker.MarkAll(worker.order());
    LOCKSTEP_EXPECT_OK(worker.End());
    // A reducer that ends in a backward leaves it to others, once its buckets are done.
    LOCKSTEP_EXPECT_OK(worker.Begin());
  });
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_EXPECT_OK(Reducer::Create(&communicator, Vectors(1, 1), ReducerOptions()));
  });
}

TEST(ReducersCommunicator, IsOneReducersInABackwardAndTheNextOnesAfterwards) {
  RunWorld(2, [](Communicator& communicator) {
    Worker generator(communicator, Vectors(3, 20));
    Worker discriminator(communicator, Vectors(2, 50));
    for (int step = 0; step < 4; ++step) {
      generator.BeginStep(step);
      EXPECT_THAT(discriminator.Begin(),
                  FailedPrecondition("the backward of another reducer is under way on this communicator"));
      EXPECT_THAT(discriminator.End(), FailedPrecondition("no backward was begun"));
      generator.MarkAll(generator.order());
      // One that sends nothing is in nobody's way.
      LOCKSTEP_EXPECT_OK(discriminator.BackwardOf({}, {/*sync=*/false}));
      generator.EndStep(step);
      discriminator.ExpectStep(step);
    }
    // At once they are on communicators of their own.
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto duplicate, communicator.Duplicate());
    LOCKSTEP_EXPECT_OK(discriminator.reducer().ChangeCommunicator(duplicate.get()));
    generator.BeginStep(7);
    discriminator.ExpectStep(8);
    generator.MarkAll(generator.order());
    generator.EndStep(7);
    LOCKSTEP_EXPECT_OK(discriminator.reducer().ChangeCommunicator(&communicator));
  });
}

// Two reducers of a rank, whose backwards may overlap in time.
class TwoReducers {
 public:
  TwoReducers(Communicator& communicator, const ReducerOptions& options)
      : duplicate_(communicator.Duplicate().value()),
        first(communicator, Vectors(3, 20), options),
        second(*duplicate_, Vectors(2, 20)) {}

  // Marks the first one's gradient 0 as the second one's.
  absl::Status MarkSame(Stream* stream = nullptr) { return second.reducer().MarkReady(1, first.gradient(0), stream); }
  void ExpectHeld(Stream* stream = nullptr) {
    EXPECT_THAT(MarkSame(stream),
                InvalidArgument("parameter 1 'p1' (f32[20]) shares memory with parameter 0 'p0' (f32[20]) of ",
                                "another reducer, whose backward has not ended"));
    const TensorView same = first.gradient(0), own = second.gradient(1);
    EXPECT_THAT(second.reducer().MarkReady(1, same, own, stream), InvalidArgument("of another reducer"));
    EXPECT_THAT(second.reducer().MarkReady(1, own, same, stream), InvalidArgument("of another reducer"));
  }
  // The refused marks do not count.
  void ExpectFree() {
    LOCKSTEP_EXPECT_OK(MarkSame());
    second.MarkAll({0});
    LOCKSTEP_EXPECT_OK(second.End());
  }

 private:
  const std::unique_ptr<Communicator> duplicate_;

 public:
  Worker first, second;
};

void WithTwoReducers(const ReducerOptions& options, const std::function<void(TwoReducers&)>& body) {
  RunWorld(2, [&](Communicator& communicator) {
    TwoReducers two(communicator, options);
    LOCKSTEP_EXPECT_OK(two.second.Begin());
    body(two);
  });
}

TEST(GradientMemory, IsOneReducersUntilItsBackwardHasEnded) {
  for (const bool copied : {false, true}) {
    ReducerOptions options;
    options.copy_gradients = copied;
    WithTwoReducers(options, [](TwoReducers& two) {
      two.first.BeginStep(0);
      two.first.MarkAll({0});
      two.ExpectHeld();
      two.first.MarkAll({1, 2});
      two.ExpectHeld();
      two.first.EndStep(0);
      two.ExpectFree();
      // A gradient of a backward without sync, of which nothing is kept.
      LOCKSTEP_EXPECT_OK(two.second.Begin());
      LOCKSTEP_EXPECT_OK(two.first.Begin({/*sync=*/false}));
      two.first.MarkAll({0});
      two.ExpectFree();
      LOCKSTEP_EXPECT_OK(two.first.End());
      // A reducer that is gone, in a backward.
      LOCKSTEP_EXPECT_OK(two.second.Begin());
      LOCKSTEP_EXPECT_OK(two.first.Begin());
      two.first.MarkAll({0});
      two.ExpectHeld();
      two.first.DestroyReducer();
      two.ExpectFree();
    });
  }
}

TEST(GradientMemory, OfBackwardsWithoutSyncIsHeldUntilTheNextWithSyncHasEnded) {
  ReducerOptions find_unused, delayed;
  find_unused.find_unused = true;
  delayed.delayed = {0};
  delayed.delayed_trigger = 1;
  for (const ReducerOptions& options : {find_unused, delayed}) {
    WithTwoReducers(options, [](TwoReducers& two) {
      two.first.Compute(0);
      LOCKSTEP_EXPECT_OK(two.first.Begin({/*sync=*/false}));
      two.first.MarkAll({0});
      LOCKSTEP_EXPECT_OK(two.first.End());
      two.ExpectHeld();
      LOCKSTEP_EXPECT_OK(two.first.Begin({/*sync=*/false}));
      EXPECT_THAT(two.first.reducer().MarkReady(2, two.first.gradient(0), nullptr),
                  InvalidArgument("in this backward"));
      two.first.MarkAll({2});
      LOCKSTEP_EXPECT_OK(two.first.End());
      LOCKSTEP_EXPECT_OK(two.first.Begin());
      two.first.MarkAll({1, 2});
      two.ExpectHeld();
      two.first.EndStep(0);
      two.ExpectFree();
    });
  }
}

TEST(GradientMemory, OfBucketViewsIsHeldWhereverTheyMove) {
  ReducerOptions options = Caps({0});
  options.gradient_as_bucket_view = true;
  options.find_unused = true;
  WithTwoReducers(options, [](TwoReducers& two) {
    Worker& first = two.first;
    LOCKSTEP_EXPECT_OK(first.reducer().RequestReplan());
    const int step = StepUntil(first.reducer(), 2, 0, [&](int s) {
      LOCKSTEP_RETURN_IF_ERROR(first.Begin({/*sync=*/false}));
      first.MarkViews({0, 1});
      LOCKSTEP_RETURN_IF_ERROR(first.End());
      return first.StepInViews(s, {0, 2, 1});
    });
    LOCKSTEP_EXPECT_OK(first.Begin());
    first.MarkViews({0});
    EXPECT_THAT(two.second.reducer().MarkReady(1, first.View(0), nullptr), InvalidArgument("of another reducer"));
    first.MarkViews({1, 2});
    LOCKSTEP_EXPECT_OK(first.End());
    LOCKSTEP_EXPECT_OK(first.StepInViews(step));
    two.ExpectFree();
    // A view without a mark, once it is said to be unused; and one that is another reducer's by then.
    const std::vector<size_t> unused = {0};
    BackwardOptions without;
    without.unused = unused;
    LOCKSTEP_EXPECT_OK(two.second.Begin());
    for (const bool others : {false, true}) {
      const auto mark = [&] { return two.second.reducer().MarkReady(1, first.View(0), nullptr); };
      EXPECT_TRUE(!others || mark().ok());
      LOCKSTEP_EXPECT_OK(first.Begin(without));
      EXPECT_TRUE(others || absl::IsInvalidArgument(mark()));
      first.MarkViews({1, 2});
      EXPECT_THAT(first.End(), others ? FailedPrecondition("an unused gradient: parameter 0 ", "with parameter 1 ")
                                      : StatusIs(absl::StatusCode::kOk, ""));
    }
    two.second.MarkAll({0});
    EXPECT_THAT(two.second.End(), FailedPrecondition("2 rank(s) failed")) << "views were reduced where its gradient is";
    LOCKSTEP_EXPECT_OK(two.second.Step(1));
  });
}

TEST(GradientMemory, OfAStreamIsHeldUntilItGetsThere) {
  WithTwoReducers({}, [](TwoReducers& two) {
    StreamGate gate;
    Stream& stream = two.first.stream();
    two.first.BeginStep(0);
    LOCKSTEP_EXPECT_OK(gate.HoldUp(stream));
    two.first.MarkAll(two.first.order(), &stream);
    two.ExpectHeld(&stream);
    LOCKSTEP_EXPECT_OK(two.first.End(&stream));
    two.ExpectHeld();
    gate.Open();
    LOCKSTEP_EXPECT_OK(stream.Synchronize(Deadline::AfterMs(20'000)));
    two.first.ExpectAverages(0);
    two.ExpectFree();
    // In the order of the stream.
    two.first.BeginStep(1);
    two.first.MarkAll(two.first.order(), &stream);
    LOCKSTEP_EXPECT_OK(two.second.Begin());
    LOCKSTEP_EXPECT_OK(two.first.End(&stream));
    LOCKSTEP_EXPECT_OK(two.MarkSame(&stream));
    two.second.MarkAll({0});
    LOCKSTEP_EXPECT_OK(two.second.End());
  });
}

// What two ranks get from Create with these arguments.
struct Argument {
  std::vector<Parameter> table = Vectors(3, 20);
  ReducerOptions options;
};

// The usual one with a change.
Argument Changed(const std::function<void(Argument&)>& change) {
  Argument argument;
  change(argument);
  return argument;
}

std::vector<absl::Status> CreateOnTwo(const Argument& zero, const Argument& one) {
  std::vector<absl::Status> results(2);
  RunWorld(2, [&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const Argument& mine = rank == 0 ? zero : one;
    results[rank] = Reducer::Create(&communicator, mine.table, mine.options).status();
    // The communicator can still be used.
    LOCKSTEP_EXPECT_OK(Reducer::Create(&communicator, Vectors(2, 3), ReducerOptions()));
  });
  return results;
}

TEST(ReducerCreate, RefusesWhatIsWrongOnAllRanks) {
  const struct {
    Argument bad;
    const char* says;
  } cases[] = {
      {Changed([](Argument& argument) { argument.table.clear(); }), "at least one parameter"},
      {Changed([](Argument& argument) { argument.table[2].name = "p0"; }), "0 and 2 have the same name 'p0'"},
      {Changed([](Argument& argument) {
         argument.options.average = Average::kPredivide;
         argument.options.predivide_factor = 0;
       }),
       "cannot be divided by"},
      {Changed([](Argument& argument) { argument.options.bucket_caps_bytes.clear(); }), "bucket caps is empty"},
      {Changed([](Argument& argument) { argument.options.compress = DType::kF32; }), "to f16 or bf16, not to f32"},
      {Changed([](Argument& argument) { argument.options.delayed = {4}; }), "delayed parameter 4 is out of range"},
  };
  for (const auto& [bad, says] : cases) EXPECT_THAT(CreateOnTwo(bad, bad), Each(InvalidArgument(says)));
}

TEST(ReducerCreate, TellsTheOthersOfARankWithABadTable) {
  const Argument bad = Changed([](Argument& argument) { argument.table[1].dtype = DType::kI32; });
  for (const int rank : {0, 1}) {
    const std::vector<absl::Status> results = rank == 0 ? CreateOnTwo(bad, {}) : CreateOnTwo({}, bad);
    EXPECT_THAT(results[rank], InvalidArgument("parameter 1 'p1': gradients are floats or complex numbers"));
    EXPECT_THAT(results[1 - rank],
                FailedPrecondition(absl::StrCat("rank ", rank, " cannot take part: parameter 1 'p1'")));
  }
}

TEST(ReducerCreate, RefusesTablesAndOptionsThatDiffer) {
  const struct {
    std::function<void(Argument&)> change;
    const char* says;
  } cases[] = {
      {[](Argument& other) {
         other.table[2].shape = {4, 5};
       },
       "the shape of parameter 2 'p2' differs: [20] on rank 0, [4, 5] on rank 1"},
      {[](Argument& other) {
         other.options.bucket_caps_bytes = {1, 2};
       },
       "the options differ: bucket_caps_bytes: 1048576 26214400 on rank 0, 1 2 on rank 1"},
      {[](Argument& other) { other.options.average = Average::kNone; },
       "averaging: LOCKSTEP_AVERAGING_BEFORE on rank 0, LOCKSTEP_AVERAGING_NONE on rank 1"},
      {[](Argument& other) { other.table[2].ignored = true; },
       "the use of parameter 2 'p2' differs: reduced on rank 0, ignored on rank 1"},
      {[](Argument& other) { other.options.buckets_in_memory_max = 3; },
       "buckets_in_memory_max: all on rank 0, 3 on rank 1"},
      {[](Argument& other) {
         other.options.compress = DType::kBF16;
         other.options.hook = MakeNoopHook();
         other.options.find_unused = true;
         other.options.uneven_inputs = true;
         other.options.throw_on_early_end = true;
         other.options.replan = false;
         other.options.delayed = {0, 2};
         other.options.delayed_trigger = 1;
       },
       "the options differ: compression: none on rank 0, bf16 on rank 1; hook: none on rank 0, noop on rank 1; "
       "find_unused_parameters: no on rank 0, yes on rank 1; uneven_inputs: no on rank 0, yes on rank 1; "
       "throw_on_early_termination: no on rank 0, yes on rank 1; no_replan: no on rank 0, yes on rank 1; "
       "delayed: none on rank 0, parameters 0 2 on rank 1; delayed_trigger: 0 on rank 0, 1 on rank 1"},
  };
  for (const auto& [change, says] : cases) {
    EXPECT_THAT(CreateOnTwo({}, Changed(change)), Each(FailedPrecondition(says)));
  }
}

TEST(ReducerCreate, LetsEveryRankOverlapOrNot) {
  RunWorld(2, [](Communicator& communicator) {
    ReducerOptions options = Caps({0});
    options.overlap = communicator.rank() == Rank(0);
    Worker(communicator, Vectors(5, 20), options).ExpectStep(0);
  });
}

TEST(ReducerCreate, SaysThatThereIsNoMemory) {
  const Argument huge = Changed([](Argument& argument) {
    argument.table[0].shape = {int64_t{1} << 50};
    argument.options.copy_gradients = true;
  });
  EXPECT_THAT(CreateOnTwo(huge, huge),
              Each(Fails(absl::StatusCode::kResourceExhausted, OnHost() ? " bytes are left by " : "45035996273")));
}

TEST(ReducerCreate, TellsTheOthersOfARankThatCannotAllocate) {
  class Failing : public NotingCommunicator {
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
  RunWorld(2, [](Communicator& communicator) {
    MemoryMessageBoard board;
    Failing failing(&communicator, &board);
    ReducerOptions options;
    options.copy_gradients = true;
    const absl::Status result = Reducer::Create(&failing, Vectors(3, 20), options).status();
    if (communicator.rank() == Rank(1)) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kPermissionDenied, "no memory for rank 1"));
    } else {
      EXPECT_THAT(result, FailedPrecondition("rank 1 cannot take part: no memory for rank 1"));
    }
    LOCKSTEP_EXPECT_OK(communicator.status());
  });
}

// As where the ranks of a host together would touch more than there is: nothing is allocated.
TEST(ReducerCreate, TellsWhatMemoryIsNeededAndLeft) {
  if (!OnHost()) GTEST_SKIP() << "of the host's memory";
  class Short : public NotingCommunicator {
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
  RunWorld(2, [](Communicator& communicator) {
    MemoryMessageBoard board;
    Short in_need(&communicator, &board);
    ReducerOptions options;
    options.gradient_as_bucket_view = true;
    options.compress = DType::kBF16;
    const absl::Status result = Reducer::Create(&in_need, Vectors(3, 1000), options).status();
    if (communicator.rank() == Rank(1)) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kResourceExhausted, "needed 2, left 1"));
    } else {
      EXPECT_THAT(result, FailedPrecondition("rank 1 has no memory: needed 2, left 1"));
    }
    // Buckets as they are sent, and gradients beside them.
    EXPECT_GE(in_need.asked, 3 * 1000 * (2 + 4));
    LOCKSTEP_EXPECT_OK(communicator.status());
  });
}

}  // namespace
}  // namespace lockstep::testing
