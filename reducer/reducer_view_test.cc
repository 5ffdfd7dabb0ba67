// Gradients that live in the buckets: their views alias what is reduced, and averages appear in them without a copy.

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"
#include "reducer/reducer_replan_testing.h"
#include "reducer/reducer_testing.h"
#include "reducer/reducer_view_testing.h"
#include "tests/gate.h"
#include "tests/ranks.h"
#include "tests/stream_gate.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::FromViews;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::MarkViews;
using testing::MixedTable;
using testing::ReachableVector;
using testing::Replica;
using testing::RunStepInViews;
using testing::ShortTimeout;
using testing::StepUntil;
using testing::ToViews;
using testing::Vectors;
using testing::ViewOf;

ReducerOptions Views(std::vector<size_t> caps = {64, 500}) {
  ReducerOptions options;
  options.bucket_caps_bytes = std::move(caps);
  options.gradient_as_bucket_view = true;
  return options;
}

std::unique_ptr<Reducer> Create(Communicator& communicator, const std::vector<Parameter>& table,
                                ReducerOptions options) {
  auto reducer = Reducer::Create(&communicator, table, std::move(options));
  LOCKSTEP_EXPECT_OK(reducer);
  return *std::move(reducer);
}

std::vector<void*> Addresses(const Reducer& reducer, size_t count) {
  std::vector<void*> addresses;
  for (size_t index = 0; index < count; ++index) addresses.push_back(ViewOf(reducer, index).data());
  return addresses;
}

class ReducerViews : public ::testing::TestWithParam<std::tuple<int, Average>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  Average average() const { return std::get<1>(GetParam()); }
  ReducerOptions options() const {
    ReducerOptions options = Views();
    options.average = average();
    options.predivide_factor = 2;
    return options;
  }
};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<int, Average>>& info) {
  const char* const averages[] = {"Before", "After", "None", "InCollective", "Predivide"};
  return absl::StrCat(std::get<0>(info.param), "Ranks", averages[static_cast<int>(std::get<1>(info.param))]);
}

INSTANTIATE_TEST_SUITE_P(Worlds, ReducerViews,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(Average::kBefore, Average::kAfter, Average::kNone,
                                                              Average::kInCollective, Average::kPredivide)),
                         NameOf);

TEST_P(ReducerViews, HaveTheAveragesOfOneProcessAndTheSameBitsEverywhere) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  std::vector<std::string> bytes(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(MixedTable(), rank);
    const auto reducer = Create(communicator, replica.table(), options());
    const std::vector<void*> before = Addresses(*reducer, replica.table().size());
    for (int step = 0; step < 3; ++step) {
      LOCKSTEP_EXPECT_OK(RunStepInViews(*reducer, replica, step, replica.order()));
      replica.ExpectAverages(size(), {step}, average());
    }
    EXPECT_EQ(Addresses(*reducer, replica.table().size()), before);
    for (const size_t index : replica.order()) {
      const auto where = reducer->AverageOf(index);
      LOCKSTEP_EXPECT_OK(where);
      if (where->elements() > 0) {
        EXPECT_EQ(where->data(), before[index]);
      }
    }
    bytes[rank] = replica.Bytes();
  });
  EXPECT_THAT(bytes, Each(bytes[0]));
}

TEST_P(ReducerViews, KeepWhatWasAccumulatedInThem) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(MixedTable(), communicator.rank().value());
    const auto reducer = Create(communicator, replica.table(), options());
    for (int step = 0; step < 6; step += 2) {
      replica.Compute(step);
      ToViews(replica, *reducer);
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({/*sync=*/false}));
      MarkViews(*reducer, replica.order());
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      replica.Accumulate(step + 1);
      ToViews(replica, *reducer);
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      MarkViews(*reducer, replica.order());
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      FromViews(*reducer, replica);
      replica.ExpectAverages(size(), {step, step + 1}, average());
    }
  });
}

// Some of a bucket's gradients elsewhere, others on other ranks: each average is where its gradient is.
TEST_P(ReducerViews, MayBeLeftForMemoryElsewhere) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica in_views(MixedTable(), rank);
    Replica elsewhere(MixedTable(), rank);
    const auto reducer = Create(communicator, in_views.table(), options());
    for (int step = 0; step < 3; ++step) {
      const auto lives_in_view = [&](size_t index) { return (index + rank + step) % 2 == 0; };
      in_views.Compute(step);
      elsewhere.Compute(step);
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      for (const size_t index : in_views.order()) {
        if (lives_in_view(index)) {
          testing::CopyView(in_views.gradient(index), ViewOf(*reducer, index));
          MarkViews(*reducer, {index});
        } else {
          LOCKSTEP_EXPECT_OK(reducer->MarkReady(index, elsewhere.gradient(index), nullptr));
        }
      }
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      FromViews(*reducer, in_views);
      for (const size_t index : in_views.order()) {
        (lives_in_view(index) ? in_views : elsewhere).ExpectAverage(index, size(), {step}, average());
      }
    }
  });
}

TEST_P(ReducerViews, OfStreamsAreReducedOnceTheStreamIsThere) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(MixedTable(), rank);
    const std::unique_ptr<Stream> stream = testing::TestDevice(rank)->CreateStream("test").value();
    std::vector<ReachableVector<char>> computed(replica.table().size());
    const auto reducer = Create(communicator, replica.table(), options());
    for (int step = 0; step < 3; ++step) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      for (const size_t index : replica.order()) {
        replica.Compute(index, step);
        testing::TakeOut(replica.gradient(index), &computed[index]);
        LOCKSTEP_EXPECT_OK(
            stream->Copy(ViewOf(*reducer, index).data(), computed[index].data(), computed[index].size()));
        MarkViews(*reducer, {index}, stream.get());
      }
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      FromViews(*reducer, replica);
      replica.ExpectAverages(size(), {step}, average());
    }
  });
}

// Notes where the data of each bucket are, and leaves them.
class Spy : public CommHook {
 public:
  std::string name() const override { return "spy"; }
  bool communicates() const override { return false; }
  absl::Status Issue(HookBucket& bucket, Stream&) override {
    datas.push_back(static_cast<char*>(bucket.data));
    return absl::OkStatus();
  }

  std::vector<char*> datas;  // by bucket
};

TEST(BucketViews, AreTheMemoryThatIsReduced) {
  LoopbackWorld world(1, {}, ShortTimeout());
  Replica replica(MixedTable(), 0);
  const auto spy = std::make_shared<Spy>();
  ReducerOptions options = Views();
  options.hook = spy;
  const auto reducer = Create(*world.communicator(0), replica.table(), options);
  LOCKSTEP_EXPECT_OK(RunStepInViews(*reducer, replica, 0, replica.order()));
  ASSERT_EQ(spy->datas.size(), reducer->plan().buckets.size());
  for (size_t b = 0; b < spy->datas.size(); ++b) {
    for (const BucketPlan::Slot& slot : reducer->plan().buckets[b].slots) {
      const TensorView view = ViewOf(*reducer, slot.parameter);
      EXPECT_EQ(view.data(), spy->datas[b] + slot.offset * SizeOf(view.dtype()));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data()) % 256, 0);
    }
  }
}

TEST(BucketViews, HaveTheStridesOfTheTableAndNoGaps) {
  LoopbackWorld world(1, {}, ShortTimeout());
  const std::vector<Parameter> table = MixedTable();
  const auto reducer = Create(*world.communicator(0), table, Views());
  int with_gaps = 0;
  for (size_t index = 0; index < table.size(); ++index) {
    const TensorView view = ViewOf(*reducer, index);
    EXPECT_EQ(view.dtype(), table[index].dtype);
    EXPECT_EQ(view.shape(), absl::MakeConstSpan(table[index].shape));
    EXPECT_TRUE(view.dense());
    if (table[index].name == "gaps") {
      EXPECT_TRUE(view.contiguous());
      ++with_gaps;
    } else if (!table[index].strides.empty()) {
      EXPECT_EQ(view.strides(), absl::MakeConstSpan(table[index].strides)) << table[index].name;
    } else {
      EXPECT_TRUE(view.contiguous());
    }
  }
  EXPECT_EQ(with_gaps, 1);
}

TEST(BucketViews, AreThereOnRequestOnly) {
  LoopbackWorld world(1, {}, ShortTimeout());
  std::vector<Parameter> table = Vectors(3, 10);
  table[1].ignored = true;
  auto reducer = Create(*world.communicator(0), table, {});
  EXPECT_THAT(reducer->GradientView(0),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("set gradient_as_bucket_view")));
  reducer = Create(*world.communicator(0), table, Views());
  EXPECT_THAT(reducer->GradientView(3), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("out of range")));
  EXPECT_THAT(reducer->GradientView(1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is ignored")));
  ReducerOptions options = Views();
  options.buckets_in_memory_max = 2;
  EXPECT_THAT(
      Reducer::Create(world.communicator(0), table, options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gradient_as_bucket_view and buckets_in_memory_max")));
}

TEST(BucketViews, DoNotMoveUnasked) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(Vectors(4, 10), communicator.rank().value());
    const auto reducer = Create(communicator, replica.table(), Views({0}));
    const std::vector<void*> before = Addresses(*reducer, 4);
    for (int step = 0; step < 50; ++step) LOCKSTEP_EXPECT_OK(RunStepInViews(*reducer, replica, step, {0, 1, 2, 3}));
    EXPECT_EQ(reducer->plan_version(), 1);
    EXPECT_EQ(Addresses(*reducer, 4), before);
  });
}

// Where a view was another one is now: neither a gradient nor a target may be there.
TEST(BucketViews, AreRefusedOnceTheyHaveMoved) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(Vectors(4, 10), communicator.rank().value());
    const auto reducer = Create(communicator, replica.table(), Views({0}));
    const TensorView stale = ViewOf(*reducer, 0);
    LOCKSTEP_EXPECT_OK(reducer->RequestReplan());
    const int step = StepUntil(*reducer, 2, 0, [&](int s) {
      return RunStepInViews(*reducer, replica, s, {0, 1, 2, 3});
    });
    ASSERT_EQ(reducer->plan_version(), 2);
    ASSERT_NE(ViewOf(*reducer, 0).data(), stale.data());

    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    replica.Compute(step);
    ToViews(replica, *reducer);
    const auto refused =
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr("'p0' (f32[10]) lies where its bucket view was before plan 2"), HasSubstr("again")));
    EXPECT_THAT(reducer->MarkReady(0, stale, nullptr), refused);
    EXPECT_THAT(reducer->MarkReady(0, replica.gradient(0), stale, nullptr), refused);
    MarkViews(*reducer, {3, 2, 1, 0});
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    FromViews(*reducer, replica);
    replica.ExpectAverages(2, {step});
  });
}

// Compressed, buckets are of another dtype and views have memory of their own; what is f16 already is reduced where it
// is.
TEST(BucketViews, OfCompressedBucketsKeepTheirDType) {
  for (const DType wire : {DType::kF16, DType::kBF16}) {
    LoopbackWorld world(2, {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      Replica replica(MixedTable(), communicator.rank().value());
      ReducerOptions options = Views();
      options.compress = wire;
      const auto reducer = Create(communicator, replica.table(), options);
      for (const BucketPlan::Bucket& bucket : reducer->plan().buckets) {
        EXPECT_EQ(bucket.wire, IsComplex(bucket.dtype) ? bucket.dtype : wire);
      }
      for (const size_t index : replica.order()) {
        EXPECT_EQ(ViewOf(*reducer, index).dtype(), replica.table()[index].dtype);
      }
      // Also once they have moved.
      LOCKSTEP_EXPECT_OK(reducer->RequestReplan());
      const auto run = [&](int step) {
        const absl::Status status = RunStepInViews(*reducer, replica, step, replica.order());
        replica.ExpectAverages(2, {step});
        return status;
      };
      const int moved = StepUntil(*reducer, 2, 0, run);
      for (int step = moved; step < moved + 3; ++step) LOCKSTEP_EXPECT_OK(run(step));
      EXPECT_EQ(reducer->plan_version(), 2);
    });
  }
}

// Leaves ten times what the bucket has in memory of its own, in f64.
class TenTimesElsewhere : public CommHook {
 public:
  std::string name() const override { return "ten times elsewhere"; }
  bool communicates() const override { return false; }
  absl::Status Issue(HookBucket& bucket, Stream& stream) override {
    seen_.resize(bucket.elements);
    result_.resize(bucket.elements);
    bucket.result = testing::VectorView(result_.data(), DType::kF64, bucket.elements);
    const absl::Status copied = stream.Copy(seen_.data(), bucket.data, bucket.elements * sizeof(float));
    if (!copied.ok()) return copied;
    return stream.Enqueue([this] {
      for (size_t i = 0; i < seen_.size(); ++i) result_[i] = 10 * seen_[i];
      return absl::OkStatus();
    });
  }

 private:
  // Of the one bucket that there is.
  ReachableVector<float> seen_;
  ReachableVector<double> result_;
};

TEST(BucketViews, GetWhatAHookLeftElsewhere) {
  LoopbackWorld world(1, {}, ShortTimeout());
  const std::vector<Parameter> table = {testing::MakeParameter("p", DType::kF32, {2, 3}, {1, 2})};
  ReducerOptions options = Views();
  options.hook = std::make_shared<TenTimesElsewhere>();
  const auto reducer = Create(*world.communicator(0), table, options);
  const float values[] = {0, 1, 2, 3, 4, 5};
  testing::CopyAnywhere(ViewOf(*reducer, 0).data(), values, sizeof(values));
  LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
  MarkViews(*reducer, {0});
  LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
  EXPECT_THAT(testing::Floats(ViewOf(*reducer, 0)), ::testing::ElementsAre(0, 10, 20, 30, 40, 50));
}

// Where a rank did not use a parameter and another one did, the average is in the view.
TEST(BucketViews, OfUnusedParametersGetTheAverage) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    ReducerOptions options = Views();
    options.find_unused = true;
    const auto reducer = Create(communicator, Vectors(2, 10), options);
    for (int step = 0; step < 3; ++step) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      const size_t used = (rank + step) % 2;
      const std::vector<float> gradient(10, 4.0F + step);
      testing::CopyAnywhere(ViewOf(*reducer, used).data(), gradient.data(), ViewOf(*reducer, used).bytes());
      MarkViews(*reducer, {used});
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      for (const size_t index : {0, 1}) {
        EXPECT_THAT(testing::Floats(ViewOf(*reducer, index)), Each((4.0F + step) / 2));
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView average, reducer->AverageOf(index));
        EXPECT_EQ(average.data(), ViewOf(*reducer, index).data());
      }
    }
  });
}

// Nor does a delayed parameter that was not marked lose its gradient, or one that nobody used in a step that failed.
TEST(BucketViews, OfWhatNobodyUsedStayAsTheyAre) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    ReducerOptions options = Views({0});
    options.find_unused = true;
    options.delayed = {0};
    options.delayed_trigger = 2;
    const auto reducer = Create(communicator, Vectors(4, 10), options);
    for (const bool fails : {false, true, false}) {
      for (const size_t index : {0, 1, 2, 3}) {
        const std::vector<float> gradient(10, 4.0F + index);
        testing::CopyAnywhere(ViewOf(*reducer, index).data(), gradient.data(), ViewOf(*reducer, index).bytes());
      }
      const std::vector<size_t> unused = {1};
      BackwardOptions backward;
      backward.unused = unused;
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward(backward));
      MarkViews(*reducer, {2});
      if (!fails || communicator.rank().value() == 1) MarkViews(*reducer, {3});
      EXPECT_EQ(reducer->EndBackward(nullptr).ok(), !fails);
      EXPECT_THAT(testing::Floats(ViewOf(*reducer, 0)), Each(4));
      EXPECT_THAT(testing::Floats(ViewOf(*reducer, 1)), Each(5));
      if (fails) continue;
      EXPECT_THAT(testing::Floats(ViewOf(*reducer, 2)), Each(6));
    }
  });
}

// On rank 0 a stream is still to write a view that rank 0 does not use, and rank 1 does: the average comes behind it.
TEST(BucketViews, OfUnusedParametersAreTakenBehindTheStreamOfTheBackward) {
  for (const bool said : {true, false}) {
    LoopbackWorld world(2, {}, ShortTimeout());
    Gate over;
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      ReducerOptions options = Views({0});
      options.find_unused = true;
      const auto reducer = Create(communicator, Vectors(2, 10), options);
      const std::unique_ptr<Stream> stream = testing::TestDevice(rank)->CreateStream("test").value();
      const ReachableVector<float> gradient(10, 6.0F);
      for (const size_t index : {0, 1}) {
        testing::CopyAnywhere(ViewOf(*reducer, index).data(), gradient.data(), ViewOf(*reducer, index).bytes());
      }
      if (rank == 1) {
        LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
        MarkViews(*reducer, {1, 0});
        LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
        over.Open();
      } else {
        StreamGate written;
        LOCKSTEP_EXPECT_OK(written.HoldUp(*stream));
        LOCKSTEP_EXPECT_OK(stream->Copy(ViewOf(*reducer, 1).data(), gradient.data(), gradient.size() * sizeof(float)));
        const std::vector<size_t> unused = {1};
        BackwardOptions backward;
        backward.stream = stream.get();
        if (said) backward.unused = unused;
        LOCKSTEP_EXPECT_OK(reducer->BeginBackward(backward));
        MarkViews(*reducer, {0});
        LOCKSTEP_EXPECT_OK(reducer->EndBackward(stream.get()));
        EXPECT_THAT(over.Await(Deadline::AfterMs(200)), StatusIs(absl::StatusCode::kDeadlineExceeded));
        written.Open();
        LOCKSTEP_EXPECT_OK(stream->Synchronize(Deadline::AfterMs(20000)));
      }
      LOCKSTEP_EXPECT_OK(reducer->AverageOf(0));
      EXPECT_THAT(testing::Floats(ViewOf(*reducer, 0)), Each(6));
      EXPECT_THAT(testing::Floats(ViewOf(*reducer, 1)), Each(3));
    });
  }
}

}  // namespace
}  // namespace lockstep
