// Buffers that come before or after the forward pass, by a broadcast or a hook, also while ranks run out of inputs.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/buffers/buffer_sync.h"
#include "reducer/buffers/buffers.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::ReachableVector;
using testing::ShortTimeout;
using testing::Vectors;

using When = BufferOptions::When;

// A parameter and a buffer, three floats each.
struct Model {
  TensorView view(ReachableVector<float>& memory) { return testing::VectorView(memory.data(), DType::kF32, 3); }
  std::vector<TensorView> buffers() { return {view(buffer)}; }

  absl::Status Backward(Reducer& reducer, bool sync = true, Stream* stream = nullptr) {
    BackwardOptions options;
    options.sync = sync;
    LOCKSTEP_RETURN_IF_ERROR(reducer.BeginBackward(options));
    LOCKSTEP_RETURN_IF_ERROR(reducer.MarkReady(0, view(gradient), nullptr));
    return reducer.EndBackward(stream);
  }
  ForwardOptions Forward(std::vector<TensorView>& views) {
    views = buffers();
    ForwardOptions options;
    options.buffers = views;
    return options;
  }

  ReachableVector<float> buffer = ReachableVector<float>(3);
  ReachableVector<float> gradient = ReachableVector<float>(3);
};

float First(const FreshBuffers& fresh) { return testing::Floats(fresh.views()[0])[0]; }

TEST(ReducerBuffers, ComeInFreshMemoryBeforeTheFirstForwardOfAStep) {
  LoopbackWorld world(3, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(1, 3), ReducerOptions()));
    Model model;
    std::vector<TensorView> views;
    BufferOptions options;
    options.root = Rank(1);
    LOCKSTEP_ASSERT_OK(reducer->SetBuffers(model.buffers(), options));
    EXPECT_TRUE(reducer->record().broadcast_buffers);
    for (int step = 0; step < 3; ++step) {
      model.buffer.assign(3, static_cast<float>(10 * step + rank));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh, reducer->BeginForward(model.Forward(views)));
      ASSERT_EQ(fresh.views().size(), 1);
      EXPECT_EQ(First(fresh), 10 * step + 1);
      // What a backward pass to come may read is as it was.
      EXPECT_THAT(model.buffer, Each(10 * step + rank));
      // Other forwards of the step bring nothing, as in DDP: not even the last one of several micro-batches.
      for (int micro_batch = 1; micro_batch < 3; ++micro_batch) {
        LOCKSTEP_EXPECT_OK(model.Backward(*reducer, /*sync=*/false));
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers none, reducer->BeginForward(model.Forward(views)));
        EXPECT_TRUE(none.views().empty());
      }
      LOCKSTEP_EXPECT_OK(model.Backward(*reducer));
      // A forward that no backward follows is none of its business.
    }
  });
}

TEST(ReducerBuffers, ComeForEachStepAlsoWhereTheLastOneEndedOnAStream) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const auto stream = testing::TestDevice(rank)->CreateStream("test").value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(1, 3), ReducerOptions()));
    Model model;
    std::vector<TensorView> views;
    LOCKSTEP_ASSERT_OK(reducer->SetBuffers(model.buffers(), BufferOptions()));
    for (int step = 0; step < 5; ++step) {
      model.buffer.assign(3, static_cast<float>(10 * step + rank));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh, reducer->BeginForward(model.Forward(views)));
      ASSERT_EQ(fresh.views().size(), 1) << step;
      EXPECT_EQ(First(fresh), 10 * step);
      LOCKSTEP_EXPECT_OK(model.Backward(*reducer, /*sync=*/true, stream.get()));
      LOCKSTEP_EXPECT_OK(stream->Synchronize(Deadline::AfterMs(20'000)));
    }
  });
}

TEST(ReducerBuffers, ComeInPlaceBeforeOrAfterTheForwardAsAsked) {
  for (const When when : {When::kBeforeForward, When::kAfterForward}) {
    LoopbackWorld world(2, {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      const auto rank = static_cast<float>(communicator.rank().value());
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                    Reducer::Create(&communicator, Vectors(1, 3), ReducerOptions()));
      Model model;
      std::vector<TensorView> views;
      BufferOptions options;
      options.in_place = true;
      options.when = when;
      LOCKSTEP_ASSERT_OK(reducer->SetBuffers(model.buffers(), options));
      model.buffer.assign(3, rank);
      LOCKSTEP_ASSERT_OK(reducer->BeginForward(model.Forward(views)));
      EXPECT_THAT(model.buffer, Each(when == When::kBeforeForward ? 0 : rank));
      LOCKSTEP_ASSERT_OK(reducer->EndForward(model.Forward(views)));
      EXPECT_THAT(model.buffer, Each(0));
      LOCKSTEP_EXPECT_OK(model.Backward(*reducer));
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
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(1, 3), ReducerOptions()));
    Model model;
    std::vector<TensorView> views;
    BufferOptions options;
    options.hook = MeanHook;
    LOCKSTEP_ASSERT_OK(reducer->SetBuffers(model.buffers(), options));
    model.buffer.assign(3, communicator.rank().value() == 0 ? 1 : 3);
    LOCKSTEP_ASSERT_OK(reducer->BeginForward(model.Forward(views)));
    EXPECT_THAT(model.buffer, Each(2));
  });
}

TEST(ReducerBuffers, OfRanksThatRunOutOfInputsCountNoLonger) {
  for (const bool hooked : {false, true}) {
    const std::vector<float> expected =
        hooked ? std::vector<float>{1.5F, 77.125F, 160.375F, 231.1875F} : std::vector<float>{3, 102, 201, 300};
    LoopbackWorld world(4, {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      ReducerOptions reducer_options;
      reducer_options.uneven_inputs = true;
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(1, 3), reducer_options));
      Model model;
      std::vector<TensorView> views;
      BufferOptions options;
      options.in_place = true;
      if (hooked) options.hook = MeanHook;
      LOCKSTEP_ASSERT_OK(reducer->SetBuffers(model.buffers(), options));
      for (int epoch = 0; epoch < 2; ++epoch) {
        // Rank 3 has one step, 2 two, 1 three, 0 four. In the step after its last one a rank takes part once more: a hook still gets
        // what its last forward left. The root is the highest rank that has this step.
        for (int step = 0; step < 4 - rank; ++step) {
          model.buffer.assign(3, static_cast<float>(100 * step + rank));
          LOCKSTEP_ASSERT_OK(reducer->BeginForward(model.Forward(views)));
          EXPECT_THAT(model.buffer, Each(::testing::FloatNear(expected[step], 1e-3F))) << "step " << step;
          for (float& value : model.buffer) value += static_cast<float>(1 + rank);  // a running mean, say
          LOCKSTEP_EXPECT_OK(model.Backward(*reducer));
        }
        std::vector<TensorView> buffers = model.buffers();
        LOCKSTEP_EXPECT_OK(reducer->Join(model.buffers(), buffers));
      }
    });
  }
}

TEST(ReducerBuffers, AreNobodysWhereAllRanksJoinAtOnce) {
  LoopbackWorld world(3, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    ReducerOptions reducer_options;
    reducer_options.uneven_inputs = true;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(1, 3), reducer_options));
    Model model;
    BufferOptions options;
    options.in_place = true;
    LOCKSTEP_ASSERT_OK(reducer->SetBuffers(model.buffers(), options));
    model.buffer.assign(3, static_cast<float>(communicator.rank().value()));
    LOCKSTEP_EXPECT_OK(reducer->Join({}, model.buffers()));
    EXPECT_THAT(model.buffer, Each(communicator.rank().value()));
    // The model that all get has them.
    LOCKSTEP_EXPECT_OK(reducer->Join(model.buffers(), model.buffers()));
    EXPECT_THAT(model.buffer, Each(2));
  });
}

TEST(ReducerBuffers, WithOptionsThatDifferAreRefusedOnAllRanks) {
  LoopbackWorld world(3, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(1, 3), ReducerOptions()));
    Model model;
    BufferOptions options;
    options.in_place = communicator.rank().value() == 1;  // this rank's own affair
    options.root = Rank(communicator.rank().value() == 2 ? 1 : 0);
    EXPECT_THAT(
        reducer->SetBuffers(model.buffers(), options),
        StatusIs(absl::StatusCode::kFailedPrecondition, "the options differ: root: 0 on ranks 0-1, 1 on rank 2"));
  });
}

TEST(ReducerBuffers, MustComeBeforeABackwardWhereJoinedRanksAwaitThem) {
  LoopbackWorld world(1, {}, ShortTimeout());
  ReducerOptions reducer_options;
  reducer_options.uneven_inputs = true;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                Reducer::Create(world.communicator(0), Vectors(1, 3), reducer_options));
  Model model;
  LOCKSTEP_ASSERT_OK(reducer->SetBuffers(model.buffers(), {}));
  EXPECT_THAT(model.Backward(*reducer),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("call begin_forward")));
}

TEST(ReducerBuffers, ThatDifferAreRefusedOnAllRanks) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(1, 3), ReducerOptions()));
    ReachableVector<float> memory(5);
    const int64_t elements = communicator.rank().value() == 0 ? 3 : 5;
    const std::vector<TensorView> buffers = {testing::VectorView(memory.data(), DType::kF32, elements)};
    EXPECT_THAT(reducer->SetBuffers(buffers, {}), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("[5]")));
    BufferOptions nobody;
    nobody.root = Rank(2);
    EXPECT_THAT(reducer->SetBuffers({}, nobody), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("root 2")));
  });
}

}  // namespace
}  // namespace lockstep
