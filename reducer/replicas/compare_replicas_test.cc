#include "reducer/replicas/compare_replicas.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/error_info.h"
#include "base/status_matchers.h"
#include "reducer/plan/plan_testing.h"

namespace lockstep::testing {
namespace {

const std::vector<Parameter>& Table() {
  static const auto* const table = new std::vector<Parameter>{
      MakeParameter("weight", DType::kF32, {300, 1000}),
      MakeParameter("transposed", DType::kF32, {30, 20}, {1, 30}),
      MakeParameter("scalar", DType::kF64, {}),
      MakeParameter("gaps", DType::kF32, {50, 40}, {64, 1}),
      MakeParameter("empty", DType::kF32, {0}),
      MakeParameter("half", DType::kBF16, {40001}),
      MakeParameter("complex", DType::kComplex64, {3, 5}),
  };
  return *table;
}

// A rank's tensors, equal on all ranks.
class Model {
 public:
  Model() {
    for (const Parameter& tensor : Table()) {
      memory_.emplace_back(tensor.name == "gaps" ? 49 * 256 + 160 : tensor.bytes(), '\1');
    }
  }

  // With addresses of those tensors.
  std::vector<const void*> data() const {
    std::vector<const void*> addresses;
    for (const std::string& bytes : memory_) addresses.push_back(bytes.data());
    return addresses;
  }
  std::string& operator[](size_t tensor) { return memory_[tensor]; }

 private:
  std::vector<std::string> memory_;
};

absl::Status Compare(Communicator& communicator, const std::vector<const void*>& data) {
  return CompareReplicas(communicator, Table(), data, {}).status();
}

TEST(CompareReplicas, OfEqualReplicasFindsNothing) {
  for (const int size : {1, 2, 3}) {
    LoopbackWorld world(size);
    world.Run([](Communicator& communicator) {
      Model model;
      LOCKSTEP_EXPECT_OK(Compare(communicator, model.data()));
      // Gaps are not compared. A rank that lacks a tensor is left out.
      model[3][200] = static_cast<char>(communicator.rank().value());
      LOCKSTEP_EXPECT_OK(Compare(communicator, model.data()));
      std::vector<const void*> some = model.data();
      if (communicator.rank() == Rank(0)) some[0] = nullptr;
      LOCKSTEP_EXPECT_OK(Compare(communicator, some));
      LOCKSTEP_EXPECT_OK(Compare(communicator, communicator.rank() == Rank(0) ? std::vector<const void*>() : some));
    });
  }
}

TEST(CompareReplicas, NamesTensorElementRanksAndValues) {
  LoopbackWorld world(4);
  world.Run([](Communicator& communicator) {
    Model model;
    const auto set = [&](size_t tensor, size_t element, float value) {
      std::memcpy(&model[tensor][4 * element], &value, sizeof(value));
    };
    set(0, 123456, 0.25F);
    set(1, 61, 1.5F);
    if (communicator.rank() == Rank(2)) set(0, 123456, 0.5F);
    if (communicator.rank() == Rank(3)) set(1, 61, -1.5F);
    const absl::Status drift = Compare(communicator, model.data());
    EXPECT_THAT(drift, StatusIs(absl::StatusCode::kDataLoss,
                                "replicas differ in 2 of 7 tensors; ranks 2-3 differ from the majority. The first is "
                                "parameter 0 'weight' (f32[300, 1000]), at [123, 456]: rank 2 has 0.5 (0x3f000000), "
                                "ranks 0-1, 3 have 0.25 (0x3e800000)"));
    EXPECT_EQ(GetErrorInfo(drift).parameter, 0);
    EXPECT_EQ(GetErrorInfo(drift).failed_rank, 2);
    // The indices follow the shape of a transposed tensor, not its memory.
    if (communicator.rank() == Rank(2)) set(0, 123456, 0.25F);
    EXPECT_THAT(Compare(communicator, model.data()),
                Fails(absl::StatusCode::kDataLoss, "'transposed' (f32[30, 20]), at [1, 2]: rank 3 has -1.5"));
  });
}

TEST(CompareReplicas, OfTwoRanksNamesBothValuesAndNoMajority) {
  LoopbackWorld world(2);
  world.Run([](Communicator& communicator) {
    Model model;
    model[6][8] = static_cast<char>(communicator.rank().value());
    const absl::Status drift = Compare(communicator, model.data());
    EXPECT_THAT(
        drift,
        StatusIs(absl::StatusCode::kDataLoss,
                 "replicas differ in 1 of 7 tensors. The first is parameter 6 'complex' (complex64[3, 5]), at [0, 1]: "
                 "rank 0 has 0x0101010101010100, rank 1 has 0x0101010101010101"));
    EXPECT_EQ(GetErrorInfo(drift).failed_rank, absl::nullopt);
  });
}

// Any bit of any tensor, on any rank.
TEST(CompareReplicas, FindsEveryBit) {
  constexpr int kSize = 3;
  LoopbackWorld world(kSize);
  world.Run([](Communicator& communicator) {
    Model model;
    std::mt19937_64 random(11);  // the same on all ranks
    for (int change = 0; change < 200; ++change) {
      size_t tensor = 0;
      do {
        tensor = random() % Table().size();
      } while (Table()[tensor].elements() == 0);
      const Parameter& parameter = Table()[tensor];
      const TensorView view =
          TensorView::Create(model[tensor].data(), parameter.dtype, parameter.shape, parameter.strides, {}).value();
      std::vector<int64_t> place;
      int64_t element = 0;  // in memory
      for (size_t d = 0; d < parameter.shape.size(); ++d) {
        place.push_back(static_cast<int64_t>(random() % parameter.shape[d]));
        element += place[d] * view.strides()[d];
      }
      const size_t size = SizeOf(parameter.dtype);
      char& byte = model[tensor][element * size + random() % size];
      const char original = byte;
      const auto rank = static_cast<int>(random() % kSize);
      const char bit = static_cast<char>(1 << random() % 8);
      if (communicator.rank() == Rank(rank)) byte ^= bit;
      const absl::Status drift = Compare(communicator, model.data());
      byte = original;
      EXPECT_THAT(drift, Fails(absl::StatusCode::kDataLoss, "replicas differ in 1 of 7 tensors; rank ",
                               absl::StrCat("at [", absl::StrJoin(place, ", "), "]: rank ", rank, " has ")));
      EXPECT_EQ(GetErrorInfo(drift).parameter, tensor);
      EXPECT_EQ(GetErrorInfo(drift).failed_rank, rank);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
