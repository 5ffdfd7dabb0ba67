// Replicas that are checked while they train.

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/log_testing.h"
#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

constexpr int kTensors = 5;
constexpr int kElements = 800;       // 16,000 bytes: one slice
constexpr int kElementsMany = 1000;  // 61 slices
constexpr int kSteps = 12;           // whose replicas are equal

struct Mode {
  std::string name;
  std::function<void(ReducerOptions&)> set;
};

// Each has another pipeline, trailer or step.
std::vector<Mode> Modes() {
  return {
      {"plain", [](ReducerOptions&) {}},
      {"copied", [](ReducerOptions& options) { options.copy_gradients = true; }},
      {"bf16", [](ReducerOptions& options) { options.compress = DType::kBF16; }},
      {"predivided",
       [](ReducerOptions& options) {
         options.average = Average::kPredivide;
         options.predivide_factor = 4;
       }},
      {"one bucket", [](ReducerOptions& options) { options.bucket_caps_bytes = {1 << 20}; }},
      {"views", [](ReducerOptions& options) { options.gradient_as_bucket_view = true; }},
      {"hook", [](ReducerOptions& options) { options.hook = MakeNoopHook(); }},
      {"optimizer",
       [](ReducerOptions& options) { options.optimizer = [](const ReducedBucket&) { return absl::OkStatus(); }; }},
      {"find unused", [](ReducerOptions& options) { options.find_unused = true; }},
      {"static graph", [](ReducerOptions& options) { options.static_graph = true; }},
      {"uneven", [](ReducerOptions& options) { options.uneven_inputs = true; }},
      {"in turns", [](ReducerOptions& options) { options.buckets_in_memory_max = 1; }},
  };
}

// A worker with parameters, which stay as they are.
class Model : public Worker {
 public:
  Model(Communicator& communicator, const ReducerOptions& options)
      : Worker(communicator, Vectors(kTensors, 1), options),
        cycle(options.replicas[0].elements() == kElements ? 1 : 61) {}

  const int cycle;           // of slices
  bool takes_turns = false;  // each tensor is left out of every other step
  bool runs_ahead = false;   // a step ends on the stream

  // A step whose gradients do not matter.
  absl::Status Step(bool sync = true) {
    const bool on_device = device() != nullptr;
    BackwardOptions options;
    options.sync = sync;
    std::vector<const void*> data;
    ++steps_;
    for (int t = 0; t < kTensors; ++t) {
      data.push_back(takes_turns && (t + steps_) % 2 != 0 ? nullptr : weights_[t].data());
    }
    options.replicas = data;
    options.stream = on_device ? &stream() : nullptr;
    LOCKSTEP_RETURN_IF_ERROR(Begin(options));
    for (const size_t index : order()) LOCKSTEP_EXPECT_OK(Mark(index, options.stream));
    return End(runs_ahead ? options.stream : nullptr);
  }
  Device* device() { return OnHost() ? nullptr : communicator().accelerator(); }
  ReachableVector<float>& weights(size_t index) { return weights_[index]; }
  // Steps within which a difference is reported: a cycle of slices, and until it is known.
  int steps_to_see() { return cycle + (OnHost() ? 1 : 4); }

 private:
  std::vector<ReachableVector<float>> weights_ =
      std::vector<ReachableVector<float>>(kTensors, ReachableVector<float>(kElementsMany, 1.0F));
  int steps_ = 0;
};

// Runs 3 ranks. on_drift notes each report, and on the first `ending` ranks returns it as an error.
void RunModels(const Mode& mode, int elements, int ending,
               const std::function<void(Model&, std::vector<absl::Status>&)>& body) {
  SCOPED_TRACE(absl::StrCat(mode.name, ", ends steps on ", ending, " ranks"));
  RunWorld(3, [&](Communicator& communicator) {
    ReducerOptions options = Caps({0});
    mode.set(options);
    options.replicas = Vectors(kTensors, elements);
    std::vector<absl::Status> reports;
    options.on_drift = [&](const absl::Status& drift) {
      reports.push_back(drift);
      return communicator.rank().value() < ending ? drift : absl::OkStatus();
    };
    Model model(communicator, options);
    body(model, reports);
  });
}

// If a rank ends a step, it ends on all ranks, and the next step may be tried.
TEST(Replicas, OneBitIsReportedOnEveryRankOnceInACycleUntilItIsRepaired) {
  std::mt19937_64 random(3);
  for (const Mode& mode : Modes()) {
    for (const int ending : {0, 1, 3}) {
      const size_t tensor = random() % kTensors;
      const size_t element = kSteps + random() % (kElements - kSteps);
      const auto rank = static_cast<int>(random() % 3);
      const int elements = mode.name == "plain" ? kElementsMany : kElements;
      RunModels(mode, elements, ending, [&](Model& model, std::vector<absl::Status>& reports) {
        size_t failed = 0;
        const auto run = [&](int steps) {
          for (int step = 0; step < steps; ++step) {
            const absl::Status status = model.Step();
            if (status.ok()) continue;
            ++failed;
            EXPECT_THAT(status,
                        model.rank() < ending
                            ? Fails(absl::StatusCode::kDataLoss, "begin_backward: replicas differ")
                            : Fails(absl::StatusCode::kFailedPrecondition, "rank 0 cannot take part: replicas"));
          }
          EXPECT_EQ(failed, ending > 0 ? reports.size() : 0);
        };
        for (int step = 0; step < kSteps; ++step) {
          // They change, alike on all ranks.
          model.weights(step % kTensors)[step] += 1;
          run(1);
        }
        EXPECT_THAT(reports, IsEmpty());

        if (model.rank() == rank) model.weights(tensor)[element] = 1.5F;
        run(model.steps_to_see());
        ASSERT_EQ(reports.size(), 1);
        EXPECT_THAT(reports[0],
                    Fails(absl::StatusCode::kDataLoss, absl::StrCat("at [", element, "]: rank ", rank, " has 1.5 (")));
        EXPECT_EQ(GetErrorInfo(reports[0]).parameter, tensor);
        EXPECT_EQ(GetErrorInfo(reports[0]).failed_rank, rank);
        const int more =
            model.cycle + model.steps_to_see() + (ending > 0 ? 1 : 0);  // a step that on_drift ends does not count
        run(more);
        EXPECT_GE(reports.size(), 2);
        EXPECT_LE(reports.size(), 1 + (more + model.cycle) / (model.cycle + 1));

        if (model.rank() == rank) model.weights(tensor)[element] = 1;
        run(model.steps_to_see());
        const size_t so_far = reports.size();
        run(2 * model.cycle);
        EXPECT_EQ(reports.size(), so_far);
      });
    }
  }
}

TEST(Replicas, ThatDifferAreAWarningOfRankZeroUnlessSomebodyAsksForMore) {
  LogLines log;
  RunWorld(3, [](Communicator& communicator) {
    ReducerOptions options = Caps({0});
    options.replicas = Vectors(kTensors, kElements);
    Model model(communicator, options);
    if (communicator.rank() == Rank(1)) model.weights(2)[7] = 1.5F;
    for (int step = 0; step < 3 * model.steps_to_see(); ++step) LOCKSTEP_EXPECT_OK(model.Step());
  });
  EXPECT_THAT(log.lines(), ElementsAre(AllOf(HasSubstr("replicas differ"), HasSubstr("at [7]: rank 1 has 1.5 ("))));
}

// As the parameters of two models that are trained in turns.
TEST(Replicas, ThatAreLeftOutOfEveryOtherStepAreCompared) {
  for (const int tensor : {0, 3}) {
    RunModels(Modes()[tensor], tensor == 0 ? kElementsMany : kElements, /*ending=*/0,
              [&](Model& model, std::vector<absl::Status>& reports) {
                model.takes_turns = true;
                if (model.rank() == 1) model.weights(tensor)[kElements / 2] = 1.5F;
                for (int step = 0; step < 2 * model.steps_to_see() + 2; ++step) LOCKSTEP_EXPECT_OK(model.Step());
                ASSERT_THAT(reports, Not(IsEmpty()));
                EXPECT_EQ(GetErrorInfo(reports[0]).parameter, tensor);
              });
  }
}

// A rank that asks for an average knows of differences before the others do.
TEST(Replicas, ThatAreEqualAgainAreComparedByAllRanks) {
  for (const int differing : {1, 2, 3}) {
    RunModels(Modes()[0], kElements, /*ending=*/0, [&](Model& model, std::vector<absl::Status>& reports) {
      const auto set = [&](float value) {
        if (model.rank() != 1) return;
        LOCKSTEP_EXPECT_OK(model.stream().Synchronize(Deadline::AfterMs(20000)));
        model.weights(0)[0] = value;
      };
      model.runs_ahead = true;
      LOCKSTEP_EXPECT_OK(model.Step());
      set(1.5F);
      for (int step = 0; step < differing; ++step) LOCKSTEP_EXPECT_OK(model.Step());
      set(1);
      for (int step = 0; step < 8; ++step) {
        LOCKSTEP_EXPECT_OK(model.Step());
        if (model.rank() == 0) {
          LOCKSTEP_EXPECT_OK(model.reducer().AverageOf(0));
        }
      }
      EXPECT_LE(reports.size(), 1);
      set(1.5F);
      for (int step = 0; step < model.steps_to_see(); ++step) LOCKSTEP_EXPECT_OK(model.Step());
      EXPECT_THAT(reports, Not(IsEmpty()));
      LOCKSTEP_EXPECT_OK(model.stream().Synchronize(Deadline::AfterMs(20000)));  // it reads the weights
    });
  }
}

// A call that is refused on one rank can be made again there, also in the step in which all ranks compare what has differed.
TEST(Replicas, ThatAreRefusedBelongToNoStep) {
  RunModels(Modes()[0], kElements, /*ending=*/0, [&](Model& model, std::vector<absl::Status>& reports) {
    const std::vector<const void*> data(kTensors, model.weights(0).data());
    BackwardOptions few, no_stream;
    few.replicas = absl::MakeConstSpan(data).subspan(1);
    no_stream.replicas = data;
    if (model.rank() == 1) model.weights(0)[0] = 1.5F;
    for (int step = 0; step < model.steps_to_see(); ++step) {
      if (model.rank() == 0) {
        EXPECT_THAT(model.Begin(few), InvalidArgument(absl::StrCat(kTensors - 1, " addresses for ", kTensors)));
      }
      if (model.rank() == 0 && model.device() != nullptr) {
        EXPECT_THAT(model.Begin(no_stream), InvalidArgument("replicas: they are on a device, and no stream is given"));
      }
      LOCKSTEP_EXPECT_OK(model.Step());
    }
    EXPECT_EQ(reports.size(), 1);
  });
}

// Steps without sync compare nothing, and a rank that has joined takes part in comparisons without being compared.
TEST(Replicas, OfJoinedRanksAndWithoutSyncMayDiffer) {
  const Mode uneven = {"uneven", [](ReducerOptions& options) { options.uneven_inputs = true; }};
  RunModels(uneven, kElements, /*ending=*/0, [&](Model& model, std::vector<absl::Status>& reports) {
    LOCKSTEP_EXPECT_OK(model.Step());
    for (int step = 0; step < 6; ++step) LOCKSTEP_EXPECT_OK(model.Step(/*sync=*/false));
    if (model.rank() == 2) {
      model.weights(1)[0] = 3;
      LOCKSTEP_EXPECT_OK(model.reducer().Join({}));
      EXPECT_EQ(reports.size(), 1);  // of the others
      return;
    }
    for (int step = 0; step < 10; ++step) LOCKSTEP_EXPECT_OK(model.Step());
    EXPECT_THAT(reports, IsEmpty());
    // Those that have inputs are compared.
    model.weights(1)[0] = static_cast<float>(model.rank());
    for (int step = 0; step < model.steps_to_see(); ++step) LOCKSTEP_EXPECT_OK(model.Step());
    ASSERT_EQ(reports.size(), 1);
    EXPECT_THAT(reports[0].message(), HasSubstr("rank 0 has 0 (0x00000000), rank 1 has 1 (0x3f800000)"));
    LOCKSTEP_EXPECT_OK(model.reducer().Join({}));
  });
}

TEST(Replicas, TablesAreComparedAndOnTheDeviceOfTheGradients) {
  RunWorld(2, [](Communicator& communicator) {
    ReducerOptions options = Caps({0});
    options.replicas = Vectors(2, communicator.rank() == Rank(0) ? 4 : 5);
    EXPECT_THAT(Reducer::Create(&communicator, Vectors(1, 4), options).status(),
                FailedPrecondition("replicas: the shape of parameter 0", "[5] on rank 1"));
    options.replicas = Vectors(2, 4);
    options.replicas[1].device = {DeviceKind::kCuda, 7};
    EXPECT_THAT(Reducer::Create(&communicator, Vectors(1, 4), options).status(),
                InvalidArgument("replicas: parameter 1 ", "is on cuda:7"));
    options.replicas = Vectors(2, 4);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(1, 4), options));
    const float weight[4] = {};
    const std::vector<const void*> one = {weight};
    BackwardOptions backward;
    backward.replicas = one;
    EXPECT_THAT(reducer->BeginBackward(backward),
                InvalidArgument("begin_backward: replicas: 1 addresses for 2 tensors"));
  });
}

TEST(Replicas, WithGapsAreAlignedToTheirElements) {
  if (!OnHost()) GTEST_SKIP() << "a device takes none with gaps";
  RunWorld(2, [](Communicator& communicator) {
    ReducerOptions options = Caps({0});
    options.replicas = Vectors(2, 4);
    options.replicas[1].shape = {2, 2};
    options.replicas[1].strides = {4, 1};
    Worker worker(communicator, Vectors(1, 4), options);
    alignas(8) const char memory[64] = {};
    const std::vector<const void*> odd = {memory + 1, memory + 1}, even = {memory + 1, memory + 4};
    BackwardOptions refused, step;
    refused.replicas = odd;
    step.replicas = even;
    EXPECT_THAT(worker.Begin(refused), InvalidArgument("replicas: parameter 1 'p1'", "is not aligned to 4"));
    LOCKSTEP_EXPECT_OK(worker.BackwardOf(worker.order(), step));
  });
}

}  // namespace
}  // namespace lockstep::testing
