// Buffers that come before or after the forward pass, by a broadcast or a hook, also while ranks run out of inputs.

#include <vector>

#include "absl/types/span.h"
#include "reducer/buffers/buffer_sync.h"
#include "reducer/buffers/buffers.h"
#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

using When = BufferOptions::When;

// A worker with a parameter and a buffer, three floats each.
class Model : public Worker {
 public:
  using Worker::Worker;

  std::vector<TensorView> buffers() { return {VectorView(buffer.data(), DType::kF32, 3)}; }
  absl::Status SetBuffers(const BufferOptions& options) { return reducer().SetBuffers(buffers(), options); }
  absl::StatusOr<FreshBuffers> BeginForward() { return reducer().BeginForward(Forward()); }
  absl::Status EndForward() { return reducer().EndForward(Forward()); }
  absl::Status Backward(const BackwardOptions& options = {}, Stream* stream = nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(Begin(options));
    LOCKSTEP_RETURN_IF_ERROR(Mark(0));
    return End(stream);
  }

  ReachableVector<float> buffer = ReachableVector<float>(3);

 private:
  ForwardOptions Forward() {
    views_ = buffers();
    ForwardOptions options;
    options.buffers = views_;
    return options;
  }

  std::vector<TensorView> views_;
};

void RunModels(int size, const ReducerOptions& options, const std::function<void(Model&)>& body) {
  RunWorkers<Model>(size, Vectors(1, 3), options, body);
}

ReducerOptions Uneven() {
  ReducerOptions options;
  options.uneven_inputs = true;
  return options;
}

float First(const FreshBuffers& fresh) { return Floats(fresh.views()[0])[0]; }

TEST(ReducerBuffers, ComeInFreshMemoryBeforeTheFirstForwardOfAStep) {
  RunModels(3, {}, [](Model& model) {
    BufferOptions options;
    options.root = Rank(1);
    LOCKSTEP_ASSERT_OK(model.SetBuffers(options));
    EXPECT_TRUE(model.reducer().record().broadcast_buffers);
    for (int step = 0; step < 3; ++step) {
      model.buffer.assign(3, static_cast<float>(10 * step + model.rank()));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh, model.BeginForward());
      ASSERT_EQ(fresh.views().size(), 1);
      EXPECT_EQ(First(fresh), 10 * step + 1);
      // What a backward pass to come may read is as it was.
      EXPECT_THAT(model.buffer, Each(10 * step + model.rank()));
      // Other forwards of the step bring nothing, as in DDP: not even the last one of several micro-batches.
      for (int micro_batch = 1; micro_batch < 3; ++micro_batch) {
        LOCKSTEP_EXPECT_OK(model.Backward({/*sync=*/false}));
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers none, model.BeginForward());
        EXPECT_TRUE(none.views().empty());
      }
      LOCKSTEP_EXPECT_OK(model.Backward());
      // A forward that no backward follows is none of its business.
    }
  });
}

TEST(ReducerBuffers, ComeForEachStepAlsoWhereTheLastOneEndedOnAStream) {
  RunModels(2, {}, [](Model& model) {
    LOCKSTEP_ASSERT_OK(model.SetBuffers({}));
    for (int step = 0; step < 5; ++step) {
      model.buffer.assign(3, static_cast<float>(10 * step + model.rank()));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh, model.BeginForward());
      ASSERT_EQ(fresh.views().size(), 1) << step;
      EXPECT_EQ(First(fresh), 10 * step);
      LOCKSTEP_EXPECT_OK(model.Backward({}, &model.stream()));
      LOCKSTEP_EXPECT_OK(model.stream().Synchronize(Deadline::AfterMs(20'000)));
    }
  });
}

TEST(ReducerBuffers, ComeInPlaceBeforeOrAfterTheForwardAsAsked) {
  for (const When when : {When::kBeforeForward, When::kAfterForward}) {
    RunModels(2, {}, [&](Model& model) {
      BufferOptions options;
      options.in_place = true;
      options.when = when;
      LOCKSTEP_ASSERT_OK(model.SetBuffers(options));
      model.buffer.assign(3, static_cast<float>(model.rank()));
      LOCKSTEP_ASSERT_OK(model.BeginForward());
      EXPECT_THAT(model.buffer, Each(when == When::kBeforeForward ? 0 : model.rank()));
      LOCKSTEP_ASSERT_OK(model.EndForward());
      EXPECT_THAT(model.buffer, Each(0));
      LOCKSTEP_EXPECT_OK(model.Backward());
    });
  }
}

// The mean of the ranks that take part.
absl::Status MeanHook(Communicator& channel, absl::Span<const TensorView> buffers) {
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.device = buffers[0].device();
  request.dtype = buffers[0].dtype();
  request.op = ReduceOp::kAvg;
  request.count = buffers[0].elements();
  request.input = buffers[0].data();
  request.output = buffers[0].data();
  return channel.Run(request);
}

TEST(ReducerBuffers, MayBeAHooksAffair) {
  RunModels(2, {}, [](Model& model) {
    BufferOptions options;
    options.hook = MeanHook;
    LOCKSTEP_ASSERT_OK(model.SetBuffers(options));
    model.buffer.assign(3, model.rank() == 0 ? 1 : 3);
    LOCKSTEP_ASSERT_OK(model.BeginForward());
    EXPECT_THAT(model.buffer, Each(2));
  });
}

TEST(ReducerBuffers, OfRanksThatRunOutOfInputsCountNoLonger) {
  for (const bool hooked : {false, true}) {
    const std::vector<float> expected =
        hooked ? std::vector<float>{1.5F, 77.125F, 160.375F, 231.1875F} : std::vector<float>{3, 102, 201, 300};
    RunModels(4, Uneven(), [&](Model& model) {
      BufferOptions options;
      options.in_place = true;
      if (hooked) options.hook = MeanHook;
      LOCKSTEP_ASSERT_OK(model.SetBuffers(options));
      for (int epoch = 0; epoch < 2; ++epoch) {
        // Rank 3 has one step, 2 two, 1 three, 0 four. In the step after its last one a rank takes part once more: a hook still gets
        // what its last forward left. The root is the highest rank that has this step.
        for (int step = 0; step < 4 - model.rank(); ++step) {
          model.buffer.assign(3, static_cast<float>(100 * step + model.rank()));
          LOCKSTEP_ASSERT_OK(model.BeginForward());
          EXPECT_THAT(model.buffer, Each(::testing::FloatNear(expected[step], 1e-3F))) << "step " << step;
          for (float& value : model.buffer) value += static_cast<float>(1 + model.rank());  // a running mean, say
          LOCKSTEP_EXPECT_OK(model.Backward());
        }
        LOCKSTEP_EXPECT_OK(model.reducer().Join(model.buffers(), model.buffers()));
      }
    });
  }
}

TEST(ReducerBuffers, AreNobodysWhereAllRanksJoinAtOnce) {
  RunModels(3, Uneven(), [](Model& model) {
    BufferOptions options;
    options.in_place = true;
    LOCKSTEP_ASSERT_OK(model.SetBuffers(options));
    model.buffer.assign(3, static_cast<float>(model.rank()));
    LOCKSTEP_EXPECT_OK(model.reducer().Join({}, model.buffers()));
    EXPECT_THAT(model.buffer, Each(model.rank()));
    // The model that all get has them.
    LOCKSTEP_EXPECT_OK(model.reducer().Join(model.buffers(), model.buffers()));
    EXPECT_THAT(model.buffer, Each(2));
  });
}

TEST(ReducerBuffers, WithOptionsThatDifferAreRefusedOnAllRanks) {
  RunModels(3, {}, [](Model& model) {
    BufferOptions options;
    options.in_place = model.rank() == 1;  // this rank's own affair
    options.root = Rank(model.rank() == 2 ? 1 : 0);
    EXPECT_THAT(model.SetBuffers(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                    "the options differ: root: 0 on ranks 0-1, 1 on rank 2"));
  });
}

TEST(ReducerBuffers, MustComeBeforeABackwardWhereJoinedRanksAwaitThem) {
  RunModels(1, Uneven(), [](Model& model) {
    LOCKSTEP_ASSERT_OK(model.SetBuffers({}));
    EXPECT_THAT(model.Backward(), FailedPrecondition("call begin_forward"));
  });
}

TEST(ReducerBuffers, ThatDifferAreRefusedOnAllRanks) {
  RunWorkers(2, Vectors(1, 3), {}, [](Worker& worker) {
    ReachableVector<float> memory(5);
    const TensorView buffer = VectorView(memory.data(), DType::kF32, worker.rank() == 0 ? 3 : 5);
    EXPECT_THAT(worker.reducer().SetBuffers({buffer}, {}), FailedPrecondition("[5]"));
    BufferOptions nobody;
    nobody.root = Rank(2);
    EXPECT_THAT(worker.reducer().SetBuffers({}, nobody), InvalidArgument("root 2"));
  });
}

}  // namespace
}  // namespace lockstep::testing
