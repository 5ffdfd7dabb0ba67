// What bench:overlap is made of: plans and ideals in numbers; work on a host stream everywhere, and on a GPU where there is one.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/status_matchers.h"
#include "bench/model.h"
#include "bench/overlap/computation.h"
#include "bench/overlap/replay.h"
#include "bench/overlap/report.h"
#include "bench/ranks.h"
#include "comm/communicator.h"
#include "comm/host/transport_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/reducer.h"
#include "tests/ranks.h"

namespace lockstep::bench {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

TEST(PlanCompute, GivesForwardAThirdAndBackwardItsSharesByMultiplications) {
  ModelTable model;
  model.parameters = {{"embedding", {10, 2}, 0}, {"weight", {2, 2}, 3}, {"bias", {2}, 1}};
  const ComputePlan plan = PlanCompute(model, 6);
  EXPECT_THAT(plan.forward_seconds, DoubleEq(2));
  EXPECT_THAT(plan.backward_seconds, ElementsAre(DoubleEq(0), DoubleEq(3), DoubleEq(1)));
  EXPECT_THAT(plan.total_seconds(), DoubleEq(6));
}

TEST(IdealStepSeconds, IsTheLeastThatAStepCanTake) {
  const struct {
    const char* why;
    double compute_seconds;
    std::vector<BucketCost> buckets;
    double ideal;
  } cases[] = {
      {"nothing is sent", 5, {}, 5},
      {"sending takes no time", 5, {{3, 0, 0}, {5, 0, 0}}, 5},
      {"only the last bucket sticks out", 5, {{3, 1, 0}, {4, 1, 0}, {5, 1, 0}}, 6},
      {"on the wire from 3 to 7, to 8 and to 10: a bucket starts when the one before is through",
       5,
       {{3, 4, 0}, {4, 1, 0}, {5, 2, 0}},
       10},
      {"the second bucket was ready first, and waits", 5, {{4, 1, 0}, {3, 1, 0}}, 6},
      {"from 3 to 4 half of the core is left; the last gradient comes at 5.5", 5, {{3, 1, 0.5}, {5, 1, 0.5}}, 6.5},
      {"communication takes the whole core", 5, {{3, 1, 1}, {5, 1, 1}}, 7},
      {"it takes several cores", 5, {{3, 1, 2}, {5, 1, 2}}, 7},
      {"computation that no bucket waits for runs to its end", 9, {{3, 1, 0}}, 9},
      {"the same, held up", 9, {{3, 1, 1}}, 10},
  };
  for (const auto& some : cases) {
    EXPECT_THAT(IdealStepSeconds(some.compute_seconds, some.buckets), DoubleEq(some.ideal)) << some.why;
  }
}

// Two parameters, of which the first one's gradient costs nothing. Tests of times take them as lower bounds only.
ComputePlan SmallPlan() {
  ComputePlan plan;
  plan.forward_seconds = 0.001;
  plan.backward_seconds = {0, 0.002};
  return plan;
}

TEST(ComputeKind, IsReadAsItIsNamed) {
  for (const ComputeKind kind : {ComputeKind::kBusy, ComputeKind::kAway, ComputeKind::kStream}) {
    EXPECT_THAT(ParseComputeKind(Name(kind)), IsOkAndHolds(kind));
  }
  EXPECT_THAT(ParseComputeKind("idle"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("busy, away, stream")));
}

TEST(BusyComputation, WritesAGradientWhenItIsComputed) {
  std::vector<float> first(3);
  std::vector<float> second(5);
  const std::unique_ptr<Computation> computation =
      MakeBusyComputation(SmallPlan(), 1000, {absl::MakeSpan(first), absl::MakeSpan(second)}, 2);
  // What the constructor tried out does not count.
  first = {0, 0, 0};
  second = {0, 0, 0, 0, 0};
  computation->Begin();
  computation->Forward();
  computation->Backward(1);
  EXPECT_THAT(second, Each(2));
  EXPECT_THAT(first, Each(0));
  computation->Backward(0);
  EXPECT_THAT(first, Each(2));
}

TEST(BusyComputation, CanBeCalibrated) { EXPECT_GT(CalibrateArithmetic(), 0); }

TEST(AwayComputation, IsDoneNoEarlierThanThePlanSays) {
  const std::unique_ptr<Computation> computation = MakeAwayComputation(SmallPlan());
  const Clock::time_point begin = Clock::now();
  computation->Begin();
  computation->Forward();
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(1));
  computation->Backward(1);
  computation->Backward(0);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(3));
}

void TakesItsTimeOn(Device& device) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, device.CreateStream("compute"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Event> computed, device.CreateEvent());
  const std::unique_ptr<Computation> computation = MakeStreamComputation(SmallPlan(), stream.get());
  const Clock::time_point begin = Clock::now();
  computation->Begin();
  computation->Forward();
  computation->Backward(1);
  ASSERT_THAT(stream->Record(computed.get()), IsOk());
  computation->Backward(0);
  ASSERT_THAT(computed->Synchronize(Soon()), IsOk());
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(3));
  EXPECT_THAT(computation->Finish(), IsOk());
}

TEST(StreamComputation, TakesItsTimeOnTheHost) { TakesItsTimeOn(*HostDevice()); }

TEST(StreamComputation, TakesItsTimeOnAGpu) {
  const absl::StatusOr<Device*> device = CudaDevice(0);
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
  ASSERT_THAT(device, IsOk());
  TakesItsTimeOn(**device);
}

TEST(StreamComputation, TellsWhyTheStreamFailed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, HostDevice()->CreateStream("compute"));
  ASSERT_THAT(stream->Enqueue([] { return absl::DataLossError("lost"); }), IsOk());
  const std::unique_ptr<Computation> computation = MakeStreamComputation(SmallPlan(), stream.get());
  computation->Begin();
  computation->Forward();
  EXPECT_THAT(computation->Finish(), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(MeasureReducerOverhead, CutsAsManyBucketsFromParametersOfNoSize) {
  BucketPlan plan;
  for (const size_t parameters : {1, 1, 2, 1}) {
    BucketPlan::Bucket bucket;
    bucket.slots.resize(parameters);
    plan.buckets.push_back(bucket);
    plan.locations.resize(plan.locations.size() + parameters);
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ReducerOverhead overhead, MeasureReducerOverhead(plan, 1));
  EXPECT_EQ(overhead.buckets, 4);
  EXPECT_GE(overhead.step_seconds, overhead.mark_ready_seconds);
}

TEST(ProportionalBytes, CountWhatWasTouched) {
  constexpr size_t kBytes = 64 << 20;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const int64_t before, ProportionalBytes());
  EXPECT_GT(before, 0);
  std::vector<char> memory(kBytes);
  // A compiler may leave out writes that nobody reads, but not these.
  for (size_t i = 0; i < kBytes; i += 4096) *static_cast<volatile char*>(&memory[i]) = 1;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const int64_t with, ProportionalBytes());
  EXPECT_GE(with, before + static_cast<int64_t>(kBytes * 9 / 10));
}

// ---- A replayed step does what a training step does, in the same order. Ranks are threads over a loopback network.

ModelTable SmallModel() {
  ModelTable model;
  model.parameters = {{"first", {3}}, {"second", {7, 10}}, {"third", {1}}};
  return model;
}

// Writes a replay's gradients without taking time, with a stream in its order, and notes what it is told.
class NotingComputation : public Computation {
 public:
  explicit NotingComputation(const Replay& replay, Stream* stream = nullptr)
      : gradients_(replay.gradients()), value_(replay.own_value()), stream_(stream) {}

  void Begin() override { told_.emplace_back("begin"); }
  void Forward() override { told_.emplace_back("forward"); }
  void Backward(size_t parameter) override {
    told_.push_back(absl::StrCat("backward ", parameter));
    const auto write = [gradient = gradients_[parameter], value = value_] {
      std::fill(gradient.begin(), gradient.end(), value);
      return absl::OkStatus();
    };
    EXPECT_THAT(stream_ == nullptr ? write() : stream_->Enqueue(write), IsOk());
  }
  absl::Status Finish() override { return stream_ == nullptr ? absl::OkStatus() : stream_->Synchronize(Soon()); }

  const std::vector<std::string>& told() const { return told_; }

 private:
  const std::vector<absl::Span<float>> gradients_;
  const float value_;
  Stream* const stream_;
  std::vector<std::string> told_;
};

// A bucket for each gradient.
ReducerOptions SmallBuckets() {
  ReducerOptions options;
  options.bucket_caps_bytes = {0};
  options.replan = false;
  return options;
}

// Runs the body on two ranks, each with its replay and with the stream of its gradients, or null.
template <typename Body>
void OnTwoRanks(bool with_stream, const ReducerOptions& options, Body body) {
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

TEST(Replay, ComputesInTheReverseOrderOfDefinition) {
  OnTwoRanks(/*with_stream=*/false, SmallBuckets(), [](Replay& replay, Stream*) {
    const auto once = ElementsAre("begin", "forward", "backward 2", "backward 1", "backward 0");
    NotingComputation alone(replay);
    EXPECT_THAT(replay.ComputeOnly(alone, 1), IsOk());
    EXPECT_THAT(alone.told(), once);
    for (const bool overlap : {false, true}) {
      NotingComputation computation(replay);
      EXPECT_THAT(replay.Step(computation, 1, overlap), IsOk());
      EXPECT_THAT(computation.told(), once) << "overlap " << overlap;
    }
  });
}

TEST(Replay, AveragesWithAndWithoutOverlapCopiesAndAStream) {
  for (const bool with_stream : {false, true}) {
    for (const bool in_buckets : {false, true}) {
      ReducerOptions options = SmallBuckets();
      options.gradient_as_bucket_view = in_buckets;
      OnTwoRanks(with_stream, options, [](Replay& replay, Stream* stream) {
        EXPECT_THAT(replay.CheckedStep(), IsOk());
        for (const bool overlap : {false, true}) {
          NotingComputation computation(replay, stream);
          EXPECT_THAT(replay.Step(computation, 3, overlap), IsOk());
          for (const absl::Span<float> gradient : replay.gradients()) EXPECT_THAT(gradient, Each(1.5F));
        }
        EXPECT_THAT(replay.CheckedStep(), IsOk());
      });
    }
  }
}

TEST(Replay, FindsWhatIsNoAverage) {
  ReducerOptions sums = SmallBuckets();
  sums.average = Average::kNone;
  for (const bool with_stream : {false, true}) {
    OnTwoRanks(with_stream, sums, [](Replay& replay, Stream*) {
      EXPECT_THAT(replay.CheckedStep(),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'first' has 3 where the average is 1.5")));
    });
  }
}

TEST(Replay, TimesEachBucket) {
  for (const bool with_stream : {false, true}) {
    OnTwoRanks(with_stream, SmallBuckets(), [](Replay& replay, Stream* stream) {
      // The last bucket takes the longest by far.
      ComputePlan plan;
      plan.backward_seconds = {0.02, 0, 0.001};
      const std::unique_ptr<Computation> computation =
          stream == nullptr ? MakeAwayComputation(plan) : MakeStreamComputation(plan, stream);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Replay::ComputeTimes compute, replay.ComputeOnly(*computation, 2));
      ASSERT_EQ(compute.ready_seconds.size(), 3);
      EXPECT_TRUE(std::is_sorted(compute.ready_seconds.begin(), compute.ready_seconds.end()));
      EXPECT_GE(compute.ready_seconds[0], 0.001);
      EXPECT_GE(compute.ready_seconds[2], 0.021);
      EXPECT_GE(compute.seconds, compute.ready_seconds[2]);
      for (const auto memory : {Replay::WireMemory::kOrdinary, Replay::WireMemory::kAllocator}) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Replay::WireTimes wire,
                                      replay.CommunicationOnly(memory, 2, /*background=*/true));
        EXPECT_EQ(wire.seconds.size(), 3);
        EXPECT_THAT(wire.seconds, Each(::testing::Gt(0)));
        EXPECT_THAT(wire.processor_seconds, Each(::testing::Gt(0)));
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::bench
