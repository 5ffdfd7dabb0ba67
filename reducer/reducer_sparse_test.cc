// Sparse gradients among dense ones: averages against a dense single-process computation, and what is told of bad ones.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reducer/reducer_testing.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep {
namespace testing {
namespace {

using RowMap = std::map<int64_t, std::vector<float>>;

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
RowMap Expected(int ranks, int step, float divisor) {
  RowMap rows;
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

RowMap AsMap(const CoalescedGradient& gradient) {
  RowMap rows;
  const auto* values = reinterpret_cast<const float*>(gradient.values.data());
  for (size_t i = 0; i < gradient.indices.size(); ++i) {
    rows[gradient.indices[i]] = std::vector<float>(values + i * kWidth, values + (i + 1) * kWidth);
  }
  return rows;
}

class Model : public Worker {
 public:
  using Worker::Worker;

  absl::Status MarkRows(Rows& rows, Stream* stream = nullptr) {
    return reducer().MarkReadySparse(1, rows.indices, rows.view(), stream);
  }
  // EXPECTs that the mark is taken.
  void MarkDense(size_t index, float value) {
    Fill(gradient(index), value);
    MarkAll({index});
  }
  // A backward with those dense gradients and, unless they are null, rows.
  absl::Status Backward(float first, float last, Rows* rows, Stream* stream = nullptr) {
    LOCKSTEP_EXPECT_OK(Begin());
    MarkDense(2, last);
    if (rows != nullptr) {
      LOCKSTEP_EXPECT_OK(MarkRows(*rows, stream));
    }
    MarkDense(0, first);
    return End();
  }
  void ExpectDense(size_t index, float value) { EXPECT_THAT(Floats(gradient(index)), Each(value)); }
  // The average of the rows; null, if there is none.
  const CoalescedGradient* RowAverage() {
    const auto average = reducer().SparseAverageOf(1);
    LOCKSTEP_EXPECT_OK(average);
    return average.ok() ? *average : nullptr;
  }
};

void RunModels(int size, const ReducerOptions& options, const std::function<void(Model&)>& body) {
  RunWorkers<Model>(size, Table(), options, body);
}

class Sparse : public ::testing::TestWithParam<std::pair<int, Average>> {};

INSTANTIATE_TEST_SUITE_P(Reducer, Sparse,
                         ::testing::Values(std::make_pair(1, Average::kBefore), std::make_pair(2, Average::kBefore),
                                           std::make_pair(4, Average::kBefore), std::make_pair(4, Average::kAfter),
                                           std::make_pair(3, Average::kNone), std::make_pair(2, Average::kPredivide)),
                         [](const auto& info) {
                           return absl::StrCat(info.param.first, "_", static_cast<int>(info.param.second));
                         });

TEST_P(Sparse, AverageIsThatOfASingleProcess) {
  ReducerOptions options = Caps({0});
  options.average = GetParam().second;
  options.predivide_factor = 2;
  RunModels(GetParam().first, options, [&](Model& model) {
    const float divisor = options.average == Average::kNone ? 1 : static_cast<float>(model.size());
    for (int step = 0; step < 6; ++step) {
      Rows rows(model.rank(), step);
      LOCKSTEP_EXPECT_OK(model.Backward(12, 6, &rows, step % 2 == 0 ? nullptr : &model.stream()));
      model.ExpectDense(0, 12 * static_cast<float>(model.size()) / divisor);
      const CoalescedGradient* const got = model.RowAverage();
      ASSERT_NE(got, nullptr);
      EXPECT_EQ(AsMap(*got), Expected(model.size(), step, divisor)) << "step " << step;
    }
  });
}

TEST(SparseGradients, MayBeUnusedOrAccumulated) {
  ReducerOptions options;
  options.find_unused = true;
  RunModels(2, options, [](Model& model) {
    Rows rows(0, 0);
    const auto run = [&](bool marks, bool sync) {
      LOCKSTEP_EXPECT_OK(model.Begin({sync}));
      model.MarkDense(0, 1);
      if (marks) {
        LOCKSTEP_EXPECT_OK(model.MarkRows(rows));
      }
      LOCKSTEP_EXPECT_OK(model.End());
    };
    run(false, true);
    EXPECT_EQ(model.RowAverage(), nullptr);
    run(model.rank() == 1, true);
    ASSERT_NE(model.RowAverage(), nullptr);
    EXPECT_THAT(model.RowAverage()->indices, ElementsAre(0, 3, 49));
    // In a backward without sync, then not in the one with.
    run(true, false);
    run(false, true);
    ASSERT_NE(model.RowAverage(), nullptr);
    EXPECT_EQ(AsMap(*model.RowAverage()).at(49)[0], ValueOf(0, 0, 2, 0));
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
  ReducerOptions options;
  options.hook = std::make_shared<Negating>();
  RunModels(2, options, [](Model& model) {
    Rows rows(0, 0);
    LOCKSTEP_EXPECT_OK(model.Backward(12, 6, &rows));
    ASSERT_NE(model.RowAverage(), nullptr);
    EXPECT_EQ(AsMap(*model.RowAverage()).at(49)[1], -ValueOf(0, 0, 2, 1));
  });
}

// Longer than any bucket beside it.
TEST(SparseGradients, LeaveTheBucketsBesideTheirsAlone) {
  ReducerOptions options = Caps({0});
  options.gradient_as_bucket_view = true;
  RunModels(2, options, [](Model& model) {
    Rows rows(0, 0);
    for (int i = 0; i < 500; ++i) {
      rows.indices.push_back(i % kRows);
      rows.values.insert(rows.values.end(), kWidth, 1.0F);
    }
    Fill(model.View(0), 8);
    LOCKSTEP_EXPECT_OK(model.Begin());
    model.MarkDense(2, 6);
    model.MarkViews({0});
    LOCKSTEP_EXPECT_OK(model.MarkRows(rows));
    LOCKSTEP_EXPECT_OK(model.End());
    EXPECT_THAT(Floats(model.View(0)), Each(8));
    model.ExpectDense(2, 6);
  });
}

TEST(SparseGradients, ThatAreBadAreRefusedAndTheStepGoesOn) {
  RunModels(2, {}, [](Model& model) {
    Rows rows(0, 0);
    const auto mark = [&](size_t index, const std::vector<int64_t>& indices) {
      return model.reducer().MarkReadySparse(index, indices, rows.view(), nullptr);
    };
    const std::vector<int64_t> beyond = {1, 2, 50, 3};
    LOCKSTEP_EXPECT_OK(model.Begin());
    EXPECT_THAT(model.reducer().MarkReady(1, model.gradient(0), nullptr),
                InvalidArgument("'embedding' (f32[50, 3]) is sparse"));
    EXPECT_THAT(mark(0, rows.indices), InvalidArgument("'first' (f32[4]) is not sparse"));
    EXPECT_THAT(mark(1, {1, 2}), InvalidArgument("of 2 rows do not match"));
    EXPECT_THAT(mark(1, beyond), InvalidArgument("rows[2] is 50, which parameter 1"));
    LOCKSTEP_EXPECT_OK(model.MarkRows(rows));
    model.MarkDense(0, 1);
    model.MarkDense(2, 1);
    LOCKSTEP_EXPECT_OK(model.End());
    EXPECT_THAT(model.reducer().SparseAverageOf(0), InvalidArgument());
    EXPECT_THAT(model.reducer().AverageOf(1), InvalidArgument());

    // One that is refused and does not come again is told at the end; so is one too many.
    for (const bool twice : {false, true}) {
      LOCKSTEP_EXPECT_OK(model.Begin());
      model.MarkDense(0, 1);
      if (twice) {
        LOCKSTEP_EXPECT_OK(model.MarkRows(rows));
      }
      const auto refused = twice ? HasSubstr("'embedding' (f32[50, 3]) was marked ready twice")
                                 : HasSubstr("mark_ready_sparse: rows[2] is 50, which parameter 1 'embedding'");
      EXPECT_THAT(mark(1, twice ? rows.indices : beyond).message(), refused);
      model.MarkDense(2, 1);
      EXPECT_THAT(model.End(), FailedPrecondition(refused));
    }
  });
}

TEST(SparseGradients, ThatAreMissingAreAnErrorOnAllRanks) {
  RunModels(2, {}, [](Model& model) {
    Rows rows(0, 0);
    EXPECT_THAT(model.Backward(1, 1, model.rank() == 1 ? nullptr : &rows),
                FailedPrecondition("rank 1: no gradient came for parameter 1 'embedding'"));
    LOCKSTEP_EXPECT_OK(model.Backward(1, 1, &rows));
    EXPECT_NE(model.RowAverage(), nullptr);
  });
}

}  // namespace
}  // namespace testing
}  // namespace lockstep
