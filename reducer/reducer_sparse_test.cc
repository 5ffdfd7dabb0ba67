// Sparse gradients among dense ones: averages against a dense single-process computation, and what is told of bad ones.

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/device/host_device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "reducer/sparse/sparse_gradient.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::MakeParameter;
using testing::ShortTimeout;

constexpr int64_t kRows = 50;
constexpr int64_t kWidth = 3;

// An embedding of 50 rows between two dense parameters.
std::vector<Parameter> Table() {
  std::vector<Parameter> table = {MakeParameter("first", DType::kF32, {4}),
                                  MakeParameter("embedding", DType::kF32, {kRows, kWidth}),
                                  MakeParameter("last", DType::kF32, {4})};
  table[1].sparse = true;
  return table;
}

// Which rows a rank has in a step: repeated ones, none at all, the same as others have.
std::vector<int64_t> RowsOf(int rank, int step) {
  if ((rank + step) % 3 == 2) return {};
  return {(7 * rank + step) % kRows, 3, 49 - rank, 3};
}
float ValueOf(int rank, int step, size_t place, int64_t column) {
  return static_cast<float>(rank + 2 * step + 3 * static_cast<int>(place) + column);
}

struct Rows {
  Rows(int rank, int step) : indices(RowsOf(rank, step)) {
    for (size_t i = 0; i < indices.size(); ++i) {
      for (int64_t c = 0; c < kWidth; ++c) values.push_back(ValueOf(rank, step, i, c));
    }
  }
  TensorView view() {
    const std::vector<int64_t> shape = {static_cast<int64_t>(indices.size()), kWidth};
    return TensorView::Create(values.data(), DType::kF32, shape, {}, {}).value();
  }
  std::vector<int64_t> indices;
  std::vector<float> values;
};

// What one process would get: the sum of all ranks' rows, divided.
std::map<int64_t, std::vector<float>> Expected(int ranks, int step, float divisor) {
  std::map<int64_t, std::vector<float>> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    const Rows own(rank, step);
    for (size_t i = 0; i < own.indices.size(); ++i) {
      std::vector<float>& row = rows[own.indices[i]];
      row.resize(kWidth);
      for (int64_t c = 0; c < kWidth; ++c) row[c] += own.values[i * kWidth + c] / divisor;
    }
  }
  return rows;
}

std::map<int64_t, std::vector<float>> AsMap(const CoalescedGradient& gradient) {
  std::map<int64_t, std::vector<float>> rows;
  const auto* values = reinterpret_cast<const float*>(gradient.values.data());
  for (size_t i = 0; i < gradient.indices.size(); ++i) {
    rows[gradient.indices[i]] = std::vector<float>(values + i * kWidth, values + (i + 1) * kWidth);
  }
  return rows;
}

class Model {
 public:
  TensorView dense(size_t index) { return TensorView::Vector(dense_[index / 2].data(), DType::kF32, 4).value(); }
  absl::Status MarkDense(Reducer& reducer, size_t index, float value) {
    dense_[index / 2].assign(4, value);
    return reducer.MarkReady(index, dense(index), nullptr);
  }
  void ExpectDense(size_t index, float value) { EXPECT_THAT(dense_[index / 2], ::testing::Each(value)); }

 private:
  std::vector<std::vector<float>> dense_ = std::vector<std::vector<float>>(2, std::vector<float>(4));
};

class Sparse : public ::testing::TestWithParam<std::pair<int, Average>> {};

INSTANTIATE_TEST_SUITE_P(Reducer, Sparse,
                         ::testing::Values(std::make_pair(1, Average::kBefore), std::make_pair(2, Average::kBefore),
                                           std::make_pair(4, Average::kBefore), std::make_pair(4, Average::kAfter),
                                           std::make_pair(3, Average::kNone), std::make_pair(2, Average::kPredivide)),
                         [](const auto& info) {
                           return absl::StrCat(info.param.first, "_", static_cast<int>(info.param.second));
                         });

TEST_P(Sparse, AverageIsThatOfASingleProcess) {
  const auto [ranks, average] = GetParam();
  LoopbackWorld world(ranks, {}, ShortTimeout());
  world.Run([&, size = ranks, how = average](Communicator& communicator) {
    const int rank = communicator.rank().value();
    ReducerOptions options;
    options.bucket_caps_bytes = {0};
    options.average = how;
    options.predivide_factor = 2;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Table(), options));
    const std::unique_ptr<Stream> stream = HostDevice()->CreateStream("test").value();
    Model model;
    for (int step = 0; step < 6; ++step) {
      Rows rows(rank, step);
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 2, 6));
      LOCKSTEP_EXPECT_OK(
          reducer->MarkReadySparse(1, rows.indices, rows.view(), step % 2 == 0 ? nullptr : stream.get()));
      LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 0, 12));
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      const float divisor = how == Average::kNone ? 1 : static_cast<float>(size);
      model.ExpectDense(0, 12 * size / divisor);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient* const got, reducer->SparseAverageOf(1));
      ASSERT_NE(got, nullptr);
      EXPECT_EQ(AsMap(*got), Expected(size, step, divisor)) << "step " << step;
    }
  });
}

TEST(SparseGradients, MayBeUnusedOrAccumulated) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    ReducerOptions options;
    options.find_unused = true;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Table(), options));
    Model model;
    const auto run = [&](bool marks, bool sync, Rows& rows) {
      BackwardOptions backward;
      backward.sync = sync;
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward(backward));
      LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 0, 1));
      if (marks) {
        LOCKSTEP_EXPECT_OK(reducer->MarkReadySparse(1, rows.indices, rows.view(), nullptr));
      }
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    };
    Rows rows(0, 0);
    run(false, true, rows);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient* unused, reducer->SparseAverageOf(1));
    EXPECT_EQ(unused, nullptr);
    run(rank == 1, true, rows);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient* one, reducer->SparseAverageOf(1));
    ASSERT_NE(one, nullptr);
    EXPECT_THAT(one->indices, ElementsAre(0, 3, 49));
    // In a backward without sync, then not in the one with.
    run(true, false, rows);
    run(false, true, rows);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient* both, reducer->SparseAverageOf(1));
    ASSERT_NE(both, nullptr);
    EXPECT_EQ(AsMap(*both).at(49)[0], ValueOf(0, 0, 2, 0));
  });
}

TEST(SparseGradients, GiveAHookBothParts) {
  class Negating : public CommHook {
   public:
    std::string name() const override { return "negating"; }
    absl::Status Issue(HookBucket& bucket, Stream& stream) override {
      if (bucket.sparse == nullptr) return absl::OkStatus();
      return stream.Enqueue([&bucket] {
        auto result = Coalesce(*bucket.sparse, -1);
        bucket.status = result.status();
        if (result.ok()) bucket.sparse_result = *std::move(result);
        return absl::OkStatus();
      });
    }
  };
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    ReducerOptions options;
    options.hook = std::make_shared<Negating>();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Table(), options));
    Model model;
    Rows rows(0, 0);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 2, 6));
    LOCKSTEP_EXPECT_OK(reducer->MarkReadySparse(1, rows.indices, rows.view(), nullptr));
    LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 0, 12));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient* const got, reducer->SparseAverageOf(1));
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(AsMap(*got).at(49)[1], -ValueOf(0, 0, 2, 1));
  });
}

// Longer than any bucket beside it.
TEST(SparseGradients, LeaveTheBucketsBesideTheirsAlone) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    ReducerOptions options;
    options.bucket_caps_bytes = {0};
    options.gradient_as_bucket_view = true;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Table(), options));
    Model model;
    Rows rows(0, 0);
    for (int i = 0; i < 500; ++i) {
      rows.indices.push_back(i % kRows);
      rows.values.insert(rows.values.end(), kWidth, 1.0F);
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, reducer->GradientView(0));
    std::fill_n(static_cast<float*>(view.data()), 4, 8.0F);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 2, 6));
    LOCKSTEP_EXPECT_OK(reducer->MarkReady(0, view, nullptr));
    LOCKSTEP_EXPECT_OK(reducer->MarkReadySparse(1, rows.indices, rows.view(), nullptr));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    EXPECT_THAT(absl::MakeConstSpan(static_cast<float*>(view.data()), 4), ::testing::Each(8));
    model.ExpectDense(2, 6);
  });
}

TEST(SparseGradients, ThatAreBadAreRefusedAndTheStepGoesOn) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Table(), ReducerOptions()));
    Model model;
    Rows rows(0, 0);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    EXPECT_THAT(reducer->MarkReady(1, model.dense(0), nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'embedding' (f32[50, 3]) is sparse")));
    EXPECT_THAT(reducer->MarkReadySparse(0, rows.indices, rows.view(), nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'first' (f32[4]) is not sparse")));
    EXPECT_THAT(reducer->MarkReadySparse(1, {1, 2}, rows.view(), nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of 2 rows do not match")));
    const std::vector<int64_t> beyond = {1, 2, 50, 3};
    EXPECT_THAT(reducer->MarkReadySparse(1, beyond, rows.view(), nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rows[2] is 50, which parameter 1")));
    LOCKSTEP_EXPECT_OK(reducer->MarkReadySparse(1, rows.indices, rows.view(), nullptr));
    LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 0, 1));
    LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 2, 1));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    EXPECT_THAT(reducer->SparseAverageOf(0).status(), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(reducer->AverageOf(1).status(), StatusIs(absl::StatusCode::kInvalidArgument));

    // One that is refused and does not come again is told at the end; so is one too many.
    for (const bool twice : {false, true}) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 0, 1));
      if (twice) {
        LOCKSTEP_EXPECT_OK(reducer->MarkReadySparse(1, rows.indices, rows.view(), nullptr));
      }
      const auto refused = twice ? HasSubstr("'embedding' (f32[50, 3]) was marked ready twice")
                                 : HasSubstr("mark_ready_sparse: rows[2] is 50, which parameter 1 'embedding'");
      EXPECT_THAT(reducer->MarkReadySparse(1, twice ? rows.indices : beyond, rows.view(), nullptr).message(), refused);
      LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 2, 1));
      EXPECT_THAT(reducer->EndBackward(nullptr), StatusIs(absl::StatusCode::kFailedPrecondition, refused));
    }
  });
}

TEST(SparseGradients, ThatAreMissingAreAnErrorOnAllRanks) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Table(), ReducerOptions()));
    Model model;
    Rows rows(0, 0);
    for (const bool forgets : {communicator.rank().value() == 1, false}) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 0, 1));
      LOCKSTEP_EXPECT_OK(model.MarkDense(*reducer, 2, 1));
      if (!forgets) {
        LOCKSTEP_EXPECT_OK(reducer->MarkReadySparse(1, rows.indices, rows.view(), nullptr));
      }
      const absl::Status result = reducer->EndBackward(nullptr);
      if (result.ok()) break;
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("rank 1: no gradient came for parameter 1 'embedding'")));
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient* const got, reducer->SparseAverageOf(1));
    EXPECT_NE(got, nullptr);
  });
}

}  // namespace
}  // namespace lockstep
