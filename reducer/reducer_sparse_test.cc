// Sparse gradients among dense ones: what is beside them, and what is told of bad ones. Their averages: reducer_matrix_test.cc.

#include <functional>
#include <vector>

#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

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

// Of an embedding: some rows, one of them twice.
struct Rows {
  TensorView view() {
    const std::vector<int64_t> shape = {static_cast<int64_t>(indices.size()), kWidth};
    return TensorView::Create(values.data(), DType::kF32, shape, {}, {}).value();
  }
  std::vector<int64_t> indices = {0, 3, 49, 3};
  std::vector<float> values = std::vector<float>(4 * kWidth, 1.0F);
};

class Model : public Worker {
 public:
  using Worker::Worker;

  absl::Status MarkRows(Rows& rows) { return reducer().MarkReadySparse(1, rows.indices, rows.view(), nullptr); }
  // EXPECTs that the mark is taken.
  void MarkDense(size_t index, float value) {
    Fill(gradient(index), value);
    MarkAll({index});
  }
};

void RunModels(int size, const ReducerOptions& options, const std::function<void(Model&)>& body) {
  RunWorkers<Model>(size, Table(), options, body);
}

// Longer than any bucket beside it.
TEST(SparseGradients, LeaveTheBucketsBesideTheirsAlone) {
  ReducerOptions options = Caps({0});
  options.gradient_as_bucket_view = true;
  RunModels(2, options, [](Model& model) {
    Rows rows;
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
    EXPECT_THAT(Floats(model.gradient(2)), Each(6));
  });
}

TEST(SparseGradients, ThatAreBadAreRefusedAndTheStepGoesOn) {
  RunModels(2, {}, [](Model& model) {
    Rows rows;
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
    Rows rows;
    for (const bool missing : {true, false}) {
      LOCKSTEP_EXPECT_OK(model.Begin());
      if (!missing || model.rank() == 0) {
        LOCKSTEP_EXPECT_OK(model.MarkRows(rows));
      }
      model.MarkAll({2, 0});
      const auto error = FailedPrecondition("rank 1: no gradient came for parameter 1 'embedding'");
      EXPECT_THAT(model.End(), ::testing::Conditional(missing, error, IsOk()));
    }
    EXPECT_THAT(model.reducer().SparseAverageOf(1), IsOkAndHolds(::testing::NotNull()));
  });
}

}  // namespace
}  // namespace lockstep::testing
