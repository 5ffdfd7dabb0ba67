// A replayed step does what a training step does, in the same order. Ranks are threads over a loopback network.

#include "bench/overlap/replay.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/status_matchers.h"
#include "bench/model.h"
#include "bench/overlap/computation.h"
#include "bench/ranks.h"
#include "comm/communicator.h"
#include "comm/host/transport_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/reducer.h"
#include "tests/ranks.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelTable SmallModel() {
  ModelTable model;
  model.parameters = {{"first", {3}}, {"second", {7, 10}}, {"third", {1}}};
  return model;
}

// Writes gradients without taking time, and notes what it is told.
class NotingComputation : public Computation {
 public:
  NotingComputation(std::vector<absl::Span<float>> gradients, float value)
      : gradients_(std::move(gradients)), value_(value) {}

  void Begin() override { told_.emplace_back("begin"); }
  void Forward() override { told_.emplace_back("forward"); }
  void Backward(size_t parameter) override {
    told_.push_back(absl::StrCat("backward ", parameter));
    std::fill(gradients_[parameter].begin(), gradients_[parameter].end(), value_);
  }

  const std::vector<std::string>& told() const { return told_; }

 private:
  const std::vector<absl::Span<float>> gradients_;
  const float value_;
  std::vector<std::string> told_;
};

// The same in the order of a stream.
class StreamComputation : public Computation {
 public:
  StreamComputation(std::vector<absl::Span<float>> gradients, float value, Stream* stream)
      : gradients_(std::move(gradients)), value_(value), stream_(stream) {}

  void Begin() override {}
  void Forward() override {}
  void Backward(size_t parameter) override {
    EXPECT_THAT(stream_->Enqueue([gradient = gradients_[parameter], value = value_] {
      std::fill(gradient.begin(), gradient.end(), value);
      return absl::OkStatus();
    }),
                IsOk());
  }
  absl::Status Finish() override { return stream_->Synchronize(Deadline::After(std::chrono::seconds(20))); }

 private:
  const std::vector<absl::Span<float>> gradients_;
  const float value_;
  Stream* const stream_;
};

// A bucket for each gradient.
ReducerOptions SmallBuckets() {
  ReducerOptions options;
  options.bucket_caps_bytes = {0};
  options.replan = false;
  return options;
}

// Runs the body on two ranks, each with its replay. The body takes a
// stream, too: null, or that of the gradients.
template <typename Body>
void OnTwoRanksWithStream(const ReducerOptions& options, bool with_stream, Body body) {
  TransportCommunicatorOptions limits;
  limits.timeout = std::chrono::seconds(20);
  lockstep::testing::LoopbackWorld world(2, {}, limits);
  const ModelTable model = SmallModel();
  world.Run([&](Communicator& communicator) {
    std::unique_ptr<Stream> stream;
    if (with_stream) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(stream, HostDevice()->CreateStream("compute"));
    }
    auto replay = Replay::Create(ProcessGroup(&communicator), model, options, {HostDevice(), stream.get()});
    ASSERT_THAT(replay, IsOk());
    body(**replay, stream.get());
  });
}

template <typename Body>
void OnTwoRanks(const ReducerOptions& options, Body body) {
  OnTwoRanksWithStream(options, /*with_stream=*/false, [&body](Replay& replay, Stream*) { body(replay); });
}

TEST(Replay, ComputesInTheReverseOrderOfDefinition) {
  OnTwoRanks(SmallBuckets(), [](Replay& replay) {
    const auto once = ElementsAre("begin", "forward", "backward 2", "backward 1", "backward 0");
    NotingComputation alone(replay.gradients(), replay.own_value());
    EXPECT_THAT(replay.ComputeOnly(alone, 1), IsOk());
    EXPECT_THAT(alone.told(), once);
    for (const bool overlap : {false, true}) {
      NotingComputation computation(replay.gradients(), replay.own_value());
      EXPECT_THAT(replay.Step(computation, 1, overlap), IsOk());
      EXPECT_THAT(computation.told(), once) << "overlap " << overlap;
    }
  });
}

TEST(Replay, AveragesWithAndWithoutOverlapAndCopies) {
  for (const bool in_buckets : {false, true}) {
    ReducerOptions options = SmallBuckets();
    options.gradient_as_bucket_view = in_buckets;
    OnTwoRanks(options, [](Replay& replay) {
      for (const bool overlap : {false, true}) {
        NotingComputation computation(replay.gradients(), replay.own_value());
        EXPECT_THAT(replay.Step(computation, 3, overlap), IsOk());
        for (const absl::Span<float> gradient : replay.gradients()) EXPECT_THAT(gradient, Each(1.5F));
      }
      EXPECT_THAT(replay.CheckedStep(), IsOk());
    });
  }
}

TEST(Replay, AveragesWhatAStreamComputes) {
  for (const bool in_buckets : {false, true}) {
    ReducerOptions options = SmallBuckets();
    options.gradient_as_bucket_view = in_buckets;
    OnTwoRanksWithStream(options, /*with_stream=*/true, [](Replay& replay, Stream* stream) {
      EXPECT_THAT(replay.CheckedStep(), IsOk());
      for (const bool overlap : {false, true}) {
        StreamComputation computation(replay.gradients(), replay.own_value(), stream);
        EXPECT_THAT(replay.Step(computation, 3, overlap), IsOk());
        for (const absl::Span<float> gradient : replay.gradients()) EXPECT_THAT(gradient, Each(1.5F));
      }
    });
  }
}

TEST(Replay, FindsWhatIsNoAverage) {
  ReducerOptions sums = SmallBuckets();
  sums.average = Average::kNone;
  for (const bool with_stream : {false, true}) {
    OnTwoRanksWithStream(sums, with_stream, [](Replay& replay, Stream*) {
      EXPECT_THAT(replay.CheckedStep(),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'first' has 3 where the average is 1.5")));
    });
  }
}

TEST(Replay, KnowsWhenAStreamHasComputedABucket) {
  OnTwoRanksWithStream(SmallBuckets(), /*with_stream=*/true, [](Replay& replay, Stream* stream) {
    // The last bucket takes the longest by far.
    ComputePlan plan;
    plan.backward_seconds = {0.02, 0, 0.001};
    const std::unique_ptr<Computation> computation = MakeStreamComputation(plan, stream, ClockWork(stream));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Replay::ComputeTimes compute, replay.ComputeOnly(*computation, 2));
    ASSERT_EQ(compute.ready_seconds.size(), 3);
    EXPECT_TRUE(std::is_sorted(compute.ready_seconds.begin(), compute.ready_seconds.end()));
    EXPECT_GE(compute.ready_seconds[0], 0.001);
    EXPECT_GE(compute.ready_seconds[2], 0.021);
    EXPECT_GE(compute.seconds, compute.ready_seconds[2]);
  });
}

TEST(Replay, TimesEachBucket) {
  OnTwoRanks(SmallBuckets(), [](Replay& replay) {
    NotingComputation computation(replay.gradients(), replay.own_value());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Replay::ComputeTimes compute, replay.ComputeOnly(computation, 2));
    ASSERT_EQ(compute.ready_seconds.size(), 3);
    EXPECT_TRUE(std::is_sorted(compute.ready_seconds.begin(), compute.ready_seconds.end()));
    EXPECT_GE(compute.seconds, compute.ready_seconds.back());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Replay::WireTimes wire, replay.CommunicationOnly(2, /*background=*/true));
    EXPECT_EQ(wire.seconds.size(), 3);
    EXPECT_THAT(wire.seconds, Each(::testing::Gt(0)));
    EXPECT_THAT(wire.processor_seconds, Each(::testing::Gt(0)));
  });
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
