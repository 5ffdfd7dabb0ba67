// Gradients that live in the buckets: their views alias what is reduced, and averages appear in them without a copy.

#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "reducer/reducer_testing.h"
#include "tests/gate.h"
#include "tests/test_device.h"

namespace lockstep::testing {
namespace {

ReducerOptions Views(std::vector<size_t> caps = {64, 500}) {
  ReducerOptions options = Caps(std::move(caps));
  options.gradient_as_bucket_view = true;
  return options;
}

std::vector<void*> Addresses(const Worker& worker) {
  std::vector<void*> addresses;
  for (const size_t index : worker.order()) addresses.push_back(worker.View(index).data());
  return addresses;
}

class ReducerViews : public AveragesTest {};

INSTANTIATE_TEST_SUITE_P(Worlds, ReducerViews,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::ValuesIn(kAllAverages)),
                         AveragesTest::NameOf);

// Some of a bucket's gradients are written in their views, now or by a stream, and some are elsewhere: others in each step and on each
// rank. Each average is where its gradient is, and the view of a gradient that is elsewhere keeps what it had.
TEST_P(ReducerViews, HaveTheAveragesOfOneProcessAndTheSameBitsEverywhere) {
  ReducerOptions views = options({64, 500});
  views.gradient_as_bucket_view = true;
  std::vector<std::string> bytes(size());
  RunWorkers(size(), MixedTable(), views, [&](Worker& worker) {
    const std::vector<void*> before = Addresses(worker);
    Replica elsewhere(MixedTable(), worker.rank());
    std::vector<ReachableVector<char>> computed(worker.table().size());
    for (int step = 0; step < 4; ++step) {
      enum Place { kView, kViewOfStream, kElsewhere };
      // In the last step all are in views, for the comparison of bits.
      const auto place = [&](size_t index) {
        return step == 3 ? kView : static_cast<Place>((index + worker.rank() + step) % 3);
      };
      worker.Compute(step);
      elsewhere.Compute(step);
      LOCKSTEP_EXPECT_OK(worker.Begin());
      for (const size_t index : worker.order()) {
        if (place(index) == kViewOfStream) {
          TakeOut(worker.gradient(index), &computed[index]);
          LOCKSTEP_EXPECT_OK(
              worker.stream().Copy(worker.View(index).data(), computed[index].data(), computed[index].size()));
          worker.MarkViews({index}, &worker.stream());
          continue;
        }
        worker.ToView(index);
        LOCKSTEP_EXPECT_OK(worker.reducer().MarkReady(
            index, place(index) == kView ? worker.View(index) : elsewhere.gradient(index), nullptr));
      }
      LOCKSTEP_EXPECT_OK(worker.End());
      worker.FromViews();
      for (const size_t index : worker.order()) {
        const auto where = worker.reducer().AverageOf(index);
        LOCKSTEP_EXPECT_OK(where);
        const bool in_view = place(index) != kElsewhere;
        if (where->elements() > 0) {
          EXPECT_EQ(where->data(), in_view ? before[index] : elsewhere.gradient(index).data());
        }
        in_view ? worker.ExpectAverage(index, step) : elsewhere.ExpectAverage(index, size(), {step}, average());
        if (!in_view) worker.ExpectLocal(index, step);
      }
    }
    EXPECT_EQ(Addresses(worker), before);
    bytes[worker.rank()] = worker.Bytes();
  });
  EXPECT_THAT(bytes, Each(bytes[0]));
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
  const auto spy = std::make_shared<Spy>();
  ReducerOptions options = Views();
  options.hook = spy;
  RunWorkers(1, MixedTable(), options, [&](Worker& worker) {
    LOCKSTEP_EXPECT_OK(worker.StepInViews(0));
    ASSERT_EQ(spy->datas.size(), worker.plan().buckets.size());
    for (size_t b = 0; b < spy->datas.size(); ++b) {
      for (const BucketPlan::Slot& slot : worker.plan().buckets[b].slots) {
        const TensorView view = worker.View(slot.parameter);
        EXPECT_EQ(view.data(), spy->datas[b] + slot.offset * SizeOf(view.dtype()));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data()) % 256, 0);
      }
    }
  });
}

TEST(BucketViews, HaveTheStridesOfTheTableAndNoGaps) {
  RunWorkers(1, MixedTable(), Views(), [](Worker& worker) {
    int with_gaps = 0;
    for (const size_t index : worker.order()) {
      const Parameter& parameter = worker.table()[index];
      const TensorView view = worker.View(index);
      EXPECT_EQ(view.dtype(), parameter.dtype);
      EXPECT_EQ(view.shape(), absl::MakeConstSpan(parameter.shape));
      EXPECT_TRUE(view.dense());
      if (parameter.name == "gaps") ++with_gaps;
      if (parameter.name == "gaps" || parameter.strides.empty()) {
        EXPECT_TRUE(view.contiguous());
      } else {
        EXPECT_EQ(view.strides(), absl::MakeConstSpan(parameter.strides)) << parameter.name;
      }
    }
    EXPECT_EQ(with_gaps, 1);
  });
}

TEST(BucketViews, AreThereOnRequestOnly) {
  std::vector<Parameter> table = Vectors(3, 10);
  table[1].ignored = true;
  RunWorld(1, [&](Communicator& communicator) {
    Worker without(communicator, table);
    EXPECT_THAT(without.reducer().GradientView(0), FailedPrecondition("set gradient_as_bucket_view"));
    Worker with(communicator, table, Views());
    EXPECT_THAT(with.reducer().GradientView(3), InvalidArgument("out of range"));
    EXPECT_THAT(with.reducer().GradientView(1), InvalidArgument("is ignored"));
  });
}

TEST(BucketViews, DoNotMoveUnasked) {
  RunWorkers(2, Vectors(4, 10), Views({0}), [](Worker& worker) {
    const std::vector<void*> before = Addresses(worker);
    for (int step = 0; step < 50; ++step) LOCKSTEP_EXPECT_OK(worker.StepInViews(step));
    EXPECT_EQ(worker.reducer().plan_version(), 1);
    EXPECT_EQ(Addresses(worker), before);
  });
}

// Where a view was another one is now: neither a gradient nor a target may be there.
TEST(BucketViews, AreRefusedOnceTheyHaveMoved) {
  RunWorkers(2, Vectors(4, 10), Views({0}), [](Worker& worker) {
    const TensorView stale = worker.View(0);
    LOCKSTEP_EXPECT_OK(worker.reducer().RequestReplan());
    const int step = StepUntil(worker.reducer(), 2, 0, [&](int s) { return worker.StepInViews(s); });
    ASSERT_EQ(worker.reducer().plan_version(), 2);
    ASSERT_NE(worker.View(0).data(), stale.data());

    LOCKSTEP_EXPECT_OK(worker.Begin());
    worker.Compute(step);
    worker.ToViews();
    const auto refused = FailedPrecondition("'p0' (f32[10]) lies where its bucket view was before plan 2", "again");
    EXPECT_THAT(worker.reducer().MarkReady(0, stale, nullptr), refused);
    EXPECT_THAT(worker.reducer().MarkReady(0, worker.gradient(0), stale, nullptr), refused);
    worker.MarkViews({3, 2, 1, 0});
    LOCKSTEP_EXPECT_OK(worker.End());
    worker.FromViews();
    worker.ExpectAverages(step);
  });
}

// The rank that does not use it writes its view until the end.
TEST(BucketViews, OfUnusedParametersOfAStaticGraphMayBeWrittenUntilTheEnd) {
  ReducerOptions options = Views({0});
  options.static_graph = true;
  RunWorkers(2, Vectors(2, 10), options, [](Worker& worker) {
    for (int step = 0; step < 4; ++step) {
      LOCKSTEP_EXPECT_OK(worker.Begin());
      Fill(worker.View(0), 4);
      Fill(worker.View(1), worker.rank() == 0 ? 100 : 4);
      if (worker.rank() == 1) worker.MarkViews({1});
      worker.MarkViews({0});
      LOCKSTEP_EXPECT_OK(worker.End());
      EXPECT_THAT(Floats(worker.View(1)), Each(2));
    }
  });
}

// On rank 0 a stream is still to write a view that rank 0 does not use, and rank 1 does: the average comes behind it.
TEST(BucketViews, OfUnusedParametersAreTakenBehindTheStreamOfTheBackward) {
  ReducerOptions options = Views({0});
  options.find_unused = true;
  for (const bool said : {true, false}) {
    Gate over;
    RunWorkers(2, Vectors(2, 10), options, [&](Worker& worker) {
      const ReachableVector<float> gradient(10, 6.0F);
      for (const size_t index : {0, 1}) Fill(worker.View(index), 6);
      if (worker.rank() == 1) {
        LOCKSTEP_EXPECT_OK(worker.Begin());
        worker.MarkViews({1, 0});
        LOCKSTEP_EXPECT_OK(worker.End());
        over.Open();
      } else {
        StreamGate written;
        Stream& stream = worker.stream();
        LOCKSTEP_EXPECT_OK(written.HoldUp(stream));
        LOCKSTEP_EXPECT_OK(stream.Copy(worker.View(1).data(), gradient.data(), gradient.size() * sizeof(float)));
        const std::vector<size_t> unused = {1};
        BackwardOptions backward;
        backward.stream = &stream;
        if (said) backward.unused = unused;
        LOCKSTEP_EXPECT_OK(worker.Begin(backward));
        worker.MarkViews({0});
        LOCKSTEP_EXPECT_OK(worker.End(&stream));
        EXPECT_THAT(over.Await(Deadline::AfterMs(200)), StatusIs(absl::StatusCode::kDeadlineExceeded));
        written.Open();
        LOCKSTEP_EXPECT_OK(stream.Synchronize(Deadline::AfterMs(20000)));
      }
      LOCKSTEP_EXPECT_OK(worker.reducer().AverageOf(0));
      EXPECT_THAT(Floats(worker.View(0)), Each(6));
      EXPECT_THAT(Floats(worker.View(1)), Each(3));
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
