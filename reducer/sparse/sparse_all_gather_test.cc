#include "reducer/sparse/sparse_all_gather.h"

#include <cstring>
#include <utility>
#include <vector>

#include "comm/host/self_communicator.h"
#include "comm/schedule/schedule.h"
#include "kernels/cpu/cast.h"
#include "reducer/plan/plan_testing.h"
#include "tests/noting_communicator.h"

namespace lockstep::testing {
namespace {

// Owns what a SparseGradient borrows.
struct Rows {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t row_elements = 0;
  std::vector<int64_t> indices;
  std::vector<char> values;

  SparseGradient gradient() const { return {"embedding", dtype, rows, row_elements, indices, values.data()}; }
};

Rows MakeRows(DType dtype, int64_t rows, int64_t row_elements, std::vector<int64_t> indices,
              const std::vector<float>& numbers) {
  Rows made{dtype, rows, row_elements, std::move(indices), {}};
  made.values.resize(numbers.size() * SizeOf(dtype));
  LOCKSTEP_EXPECT_OK(kernels::CastScaled(dtype, made.values.data(), DType::kF32, numbers.data(), numbers.size(), 1));
  return made;
}

// Rank r has values for rows r, r + 2, r + 4, ... and, in reverse order, for all that are multiples of 3: some rows of
// all ranks, some of one, some twice of one rank; numbers that make every rounding show.
Rows RowsOf(int rank, DType dtype, int64_t rows, int64_t row_elements) {
  std::vector<int64_t> indices;
  for (int64_t row = rank; row < rows; row += 2) indices.push_back(row);
  for (int64_t row = (rows - 1) / 3 * 3; row >= 0; row -= 3) indices.push_back(row);
  std::vector<float> numbers;
  for (size_t i = 0; i < indices.size() * row_elements; ++i) {
    numbers.push_back(static_cast<float>((31 * i + 17 * rank) % 101) / 7 - 6);
  }
  return MakeRows(dtype, rows, row_elements, indices, numbers);
}

std::vector<char> Dense(const CoalescedGradient& sparse) {
  const size_t row_bytes = sparse.row_elements * SizeOf(sparse.dtype);
  std::vector<char> dense(sparse.rows * row_bytes);
  for (size_t i = 0; i < sparse.indices.size(); ++i) {
    std::memcpy(dense.data() + sparse.indices[i] * row_bytes, sparse.values.data() + i * row_bytes, row_bytes);
  }
  return dense;
}

// What the reducer makes of the dense gradient: scaled on its way into the bucket, then reduced in rank order.
std::vector<char> DenseAverage(Communicator& communicator, const SparseGradient& mine) {
  std::vector<char> dense = Dense(Coalesce(mine, 1).value());
  const size_t count = dense.size() / SizeOf(mine.dtype);
  LOCKSTEP_EXPECT_OK(
      kernels::CastScaled(mine.dtype, dense.data(), mine.dtype, dense.data(), count, 1.0 / communicator.size()));
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = mine.dtype;
  request.count = count;
  request.input = dense.data();
  request.output = dense.data();
  if (communicator.size() > 1) request.algorithm = Algorithm::kOneShot;
  LOCKSTEP_EXPECT_OK(communicator.Run(request));
  return dense;
}

SparseOptions AverageOf(int size) {
  SparseOptions options;
  options.factor = 1.0 / size;
  return options;
}

TEST(AllGatherSparse, GivesEveryRankTheBitsOfTheDenseAverage) {
  for (int size = 2; size <= 4; ++size) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kF8E5M2}) {
      SCOPED_TRACE(absl::StrCat(size, " ranks, ", Name(dtype)));
      RunWorld(size, [&](Communicator& communicator) {
        const Rows mine = RowsOf(communicator.rank().value(), dtype, 23, 5);
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(
            const CoalescedGradient result,
            AllGatherSparse(communicator, absl::OkStatus(), mine.gradient(), AverageOf(size)));
        EXPECT_EQ(result.dtype, dtype);
        EXPECT_EQ(result.rows, 23);
        EXPECT_EQ(result.row_elements, 5);
        EXPECT_EQ(Dense(result), DenseAverage(communicator, mine.gradient()));
        std::vector<int64_t> ascending;  // rank 0 has the even rows, rank 1 the odd ones
        for (int64_t row = 0; row < 23; ++row) ascending.push_back(row);
        EXPECT_EQ(result.indices, ascending);
      });
    }
  }
}

TEST(AllGatherSparse, OfOneRankCoalesces) {
  SelfCommunicator communicator(16);
  const Rows mine = RowsOf(0, DType::kF32, 23, 5);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                AllGatherSparse(communicator, absl::OkStatus(), mine.gradient(), AverageOf(1)));
  EXPECT_EQ(Dense(result), DenseAverage(communicator, mine.gradient()));
}

// Rows of a parameter that nobody has the memory for, some ranks without any.
TEST(AllGatherSparse, TakesRanksWithAndWithoutRowsOfAHugeParameter) {
  constexpr int64_t kRows = int64_t{1} << 50;
  for (int with_rows = 0; with_rows <= 3; ++with_rows) {
    RunWorld(3, [&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      const float number = static_cast<float>(rank + 1);
      Rows mine{DType::kF32, kRows, 1, {}, {}};
      // The last ranks have some.
      if (rank >= 3 - with_rows) mine = MakeRows(DType::kF32, kRows, 1, {kRows - 1, rank}, {number, number});
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                    AllGatherSparse(communicator, absl::OkStatus(), mine.gradient(), SparseOptions()));
      EXPECT_EQ(result.rows, kRows);
      std::vector<int64_t> indices;
      std::vector<float> values;
      float sum = 0;
      for (int r = 3 - with_rows; r < 3; ++r) {
        indices.push_back(r);
        values.push_back(static_cast<float>(r + 1));
        sum += values.back();
      }
      if (with_rows > 0) {
        indices.push_back(kRows - 1);
        values.push_back(sum);
      }
      EXPECT_EQ(result.indices, indices);
      ASSERT_EQ(result.values.size(), values.size() * sizeof(float));
      EXPECT_TRUE(values.empty() || std::memcmp(result.values.data(), values.data(), result.values.size()) == 0);
    });
  }
}

// Notes what is called.
class RecordingCommunicator : public NotingCommunicator {
 public:
  using NotingCommunicator::NotingCommunicator;
  absl::Status Run(const CollectiveRequest& request) override {
    requests.push_back(request);
    return NotingCommunicator::Run(request);
  }
  std::vector<CollectiveRequest> requests;
};

TEST(AllGatherSparse, SendsAnOutlineAndThenOnlyRowsOnce) {
  SelfCommunicator self(16);
  MemoryMessageBoard board;
  RecordingCommunicator communicator(&self, &board);
  SparseOptions options;
  options.timeout = std::chrono::seconds(7);
  options.background = true;
  const Rows none{DType::kBF16, 100, 3, {}, {}};
  LOCKSTEP_EXPECT_OK(AllGatherSparse(communicator, absl::OkStatus(), none.gradient(), options).status());
  ASSERT_EQ(communicator.requests.size(), 1);
  EXPECT_EQ(communicator.requests[0].count * SizeOf(communicator.requests[0].dtype), 24);

  // Row 5 has two values here: one sum is sent.
  const Rows rows = MakeRows(DType::kBF16, 100, 3, {5, 7, 5}, std::vector<float>(9, 1));
  communicator.requests.clear();
  LOCKSTEP_EXPECT_OK(AllGatherSparse(communicator, absl::OkStatus(), rows.gradient(), options).status());
  ASSERT_EQ(communicator.requests.size(), 3);
  EXPECT_EQ(communicator.requests[1].dtype, DType::kI64);
  EXPECT_EQ(communicator.requests[1].count, 2);
  EXPECT_EQ(communicator.requests[2].dtype, DType::kBF16);
  EXPECT_EQ(communicator.requests[2].count, 6);
  for (const CollectiveRequest& request : communicator.requests) {
    EXPECT_EQ(request.collective, Collective::kAllGather);
    EXPECT_EQ(request.timeout, std::chrono::seconds(7));
    EXPECT_TRUE(request.background);
  }
}

TEST(AllGatherSparse, KeepsTheIndicesOfRowsWithoutElements) {
  RunWorld(2, [&](Communicator& communicator) {
    const Rows mine{DType::kF32, 9, 0, {7, communicator.rank().value(), 7}, {}};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient result,
                                  AllGatherSparse(communicator, absl::OkStatus(), mine.gradient(), SparseOptions()));
    EXPECT_THAT(result.indices, ElementsAre(0, 1, 7));
    EXPECT_THAT(result.values, IsEmpty());
  });
}

// The results, by rank, of an exchange in which one rank has something of its own; and that another one is right
// afterwards.
std::vector<absl::Status> ExchangeWithOddRank(int size, int odd_rank, const absl::Status& local, const Rows& odd) {
  LoopbackWorld world(size, {}, ShortTimeout());
  std::vector<absl::Status> results(size);
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const Rows usual = RowsOf(rank, DType::kF32, 10, 2);
    const bool is_odd = rank == odd_rank;
    results[rank] = AllGatherSparse(communicator, is_odd ? local : absl::OkStatus(),
                                    is_odd ? odd.gradient() : usual.gradient(), SparseOptions())
                        .status();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoalescedGradient next,
                                  AllGatherSparse(communicator, absl::OkStatus(), usual.gradient(), AverageOf(size)));
    EXPECT_EQ(Dense(next), DenseAverage(communicator, usual.gradient()));
  });
  return results;
}

TEST(AllGatherSparse, TellsTheOthersOfARankWhoseGradientIsBad) {
  const Rows bad = MakeRows(DType::kF32, 10, 2, {3, 10}, {1, 2, 3, 4});
  for (int odd_rank = 0; odd_rank < 3; ++odd_rank) {
    const std::vector<absl::Status> results = ExchangeWithOddRank(3, odd_rank, absl::OkStatus(), bad);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == odd_rank) {
        EXPECT_THAT(results[rank], InvalidArgument("'embedding' (f32, 10 rows of 2): the index at position 1 is 10"));
      } else {
        EXPECT_THAT(results[rank],
                    FailedPrecondition(absl::StrCat("rank ", odd_rank, " cannot take part: sparse gradient of")));
      }
    }
  }
}

TEST(AllGatherSparse, TellsTheOthersOfARankThatHasNoGradient) {
  const std::vector<absl::Status> results =
      ExchangeWithOddRank(3, 1, absl::FailedPreconditionError("'embedding' never came"), Rows());
  EXPECT_THAT(results[1], StatusIs(absl::StatusCode::kFailedPrecondition, "'embedding' never came"));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(results[rank], FailedPrecondition("rank 1 cannot take part: 'embedding' never came"));
  }
}

TEST(AllGatherSparse, TellsEveryRankHowTheGradientsDiffer) {
  const struct {
    Rows odd;
    const char* says;
  } cases[] = {
      {MakeRows(DType::kF32, 11, 2, {3}, {1, 2}), "f32[10, 2] on rank 0, f32[11, 2] on rank 2"},
      {MakeRows(DType::kF32, 10, 1, {3}, {1}), "f32[10, 2] on rank 0, f32[10, 1] on rank 2"},
      {MakeRows(DType::kF64, 10, 2, {}, {}), "f32[10, 2] on rank 0, f64[10, 2] on rank 2"},
  };
  for (const auto& bad : cases) {
    EXPECT_THAT(ExchangeWithOddRank(3, 2, absl::OkStatus(), bad.odd), Each(FailedPrecondition(bad.says)));
  }
}

TEST(AllGatherSparse, SaysWhenThereAreMoreRowsThanAddresses) {
  const Rows huge{DType::kF32, 10, int64_t{1} << 55, {}, {}};
  SelfCommunicator communicator(16);
  EXPECT_THAT(AllGatherSparse(communicator, absl::OkStatus(), huge.gradient(), SparseOptions()).status(),
              InvalidArgument("a row has too many elements"));
}

TEST(AllGatherSparse, EndsWithAnErrorWhenARankIsGone) {
  LoopbackWorld world(3, {}, ShortTimeout());
  world.network().Disconnect(Rank(1));
  RunRanks(3, [&](int rank) {
    if (rank == 1) return;
    const Rows mine = RowsOf(rank, DType::kF32, 10, 2);
    EXPECT_FALSE(AllGatherSparse(*world.communicator(rank), absl::OkStatus(), mine.gradient(), SparseOptions()).ok());
  });
}

}  // namespace
}  // namespace lockstep::testing
