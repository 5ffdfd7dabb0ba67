#include "reducer/plan/parameter.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error_info.h"
#include "reducer/plan/plan_testing.h"

namespace lockstep::testing {
namespace {

std::vector<Parameter> SomeTable() {
  std::vector<Parameter> table = {MakeParameter("layer1.weight", DType::kF32, {512, 784}),
                                  MakeParameter("", DType::kBF16, {}),
                                  MakeParameter("conv", DType::kF16, {2, 3, 4, 5}, {60, 1, 15, 3}),
                                  MakeParameter(std::string("zero\0inside", 11), DType::kComplex64, {7, 0})};
  table[1].device = {DeviceKind::kCuda, 3};
  return table;
}

TEST(Parameter, CountsElementsAndBytes) {
  EXPECT_EQ(MakeParameter("", DType::kF16, {3, 4}).elements(), 12);
  EXPECT_EQ(MakeParameter("", DType::kF16, {3, 4}).bytes(), 24);
  EXPECT_EQ(MakeParameter("", DType::kF64, {}).elements(), 1);
  EXPECT_EQ(MakeParameter("", DType::kF64, {5, 0}).bytes(), 0);
}

TEST(Parameter, IsDescribedByIndexNameDTypeAndShape) {
  EXPECT_EQ(Describe(3, MakeParameter("layer1.weight", DType::kF32, {512, 784})),
            "parameter 3 'layer1.weight' (f32[512, 784])");
  EXPECT_EQ(Describe(0, MakeParameter("scale", DType::kBF16, {})), "parameter 0 'scale' (bf16[])");
}

TEST(CheckParameters, AcceptsEveryFloatAndComplexDTypeAndAnyGoodShape) {
  std::vector<Parameter> table;
  for (const DType dtype : kFloatAndComplexDTypes) table.push_back(MakeParameter(Name(dtype), dtype, {2, 3}));
  ASSERT_GE(table.size(), 8);
  table.push_back(MakeParameter("scalar", DType::kF32, {}));
  table.push_back(MakeParameter("empty", DType::kF32, {0, 3}));
  table.push_back(MakeParameter("channels-last", DType::kF32, {2, 3, 4, 5}, {60, 1, 15, 3}));
  table.push_back(MakeParameter("with gaps", DType::kF32, {2, 3}, {8, 1}));
  LOCKSTEP_EXPECT_OK(CheckParameters(table));
}

TEST(CheckParameters, ANameIsOneParameters) {
  std::vector<Parameter> table = {MakeParameter("embedding", DType::kF32, {4, 2}),
                                  MakeParameter("layer", DType::kF32, {2}),
                                  MakeParameter("embedding", DType::kF32, {4, 2})};
  for (const bool ignored : {false, true}) {
    table[2].ignored = ignored;
    EXPECT_THAT(CheckParameters(table),
                InvalidArgument("parameters 0 and 2 have the same name 'embedding': a shared weight is listed once"));
  }
}

TEST(CheckParameters, ParametersNeedNoNames) {
  std::vector<Parameter> table = {MakeParameter("", DType::kF32, {4, 2}), MakeParameter("", DType::kF32, {2}),
                                  MakeParameter("named", DType::kF32, {2})};
  LOCKSTEP_EXPECT_OK(CheckParameters(table));
  EXPECT_EQ(Describe(1, table[1]), "parameter 1 (f32[2])");
  std::vector<Parameter> other = table;
  other[1].name = "bias";
  EXPECT_EQ(FirstDifference(0, table, 1, other).message(),
            "the name of parameter 1 differs: none on rank 0, bias on rank 1");
  other = table;
  other[0].dtype = DType::kF16;
  EXPECT_EQ(FirstDifference(0, table, 1, other).message(),
            "the dtype of parameter 0 differs: f32 on rank 0, f16 on rank 1");
  table[1].dtype = DType::kI32;
  EXPECT_THAT(CheckParameters(table), InvalidArgument("parameter 1: gradients"));
}

TEST(CheckParameters, NamesTheFirstParameterThatHasNoGradient) {
  for (const DType dtype : {DType::kBool, DType::kU8, DType::kI32, DType::kI64, static_cast<DType>(77)}) {
    const std::vector<Parameter> table = {MakeParameter("fine", DType::kF32, {1}), MakeParameter("steps", dtype, {1}),
                                          MakeParameter("also", dtype, {1})};
    EXPECT_THAT(CheckParameters(table),
                InvalidArgument("parameter 1 'steps': gradients are floats or complex numbers, not", Name(dtype)));
    EXPECT_EQ(GetErrorInfo(CheckParameters(table)).parameter, 1);
  }
}

TEST(CheckParameters, RefusesBadShapesAndStrides) {
  const struct {
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
    const char* says;
  } cases[] = {
      {{2, -1}, {}, "negative extent"},
      {{2, 3}, {3}, "do not match the shape"},
      {{2, 3}, {-3, 1}, "negative stride"},
      {{2, 3}, {1, 1}, "overlap"},
      {{int64_t{1} << 40, int64_t{1} << 40}, {}, "overflows"},
      {{int64_t{1} << 40, int64_t{1} << 40, 0}, {}, "overflows"},
      {{int64_t{1} << 62}, {}, "overflows"},
      {std::vector<int64_t>(33, 1), {}, "at most 32"},
  };
  for (const auto& bad : cases) {
    const std::vector<Parameter> table = {MakeParameter("w", DType::kF32, bad.shape, bad.strides)};
    EXPECT_THAT(CheckParameters(table), InvalidArgument("parameter 0 'w': ", bad.says));
  }
}

TEST(CheckParameters, RefusesAnEmptyTableAndOneOfMoreBytesThanThereAreAddresses) {
  EXPECT_THAT(CheckParameters({}), InvalidArgument("at least one parameter"));
  // Each by itself could be addressed; offsets into their bucket would wrap around.
  const Parameter huge = MakeParameter("", DType::kF32, {int64_t{1} << 60});
  LOCKSTEP_EXPECT_OK(CheckParameters({huge}));
  EXPECT_THAT(CheckParameters({huge, huge, huge, huge, huge}),
              InvalidArgument("parameter 3:", "more bytes than there are addresses"));
}

TEST(CheckParameters, AreOnOneDevice) {
  std::vector<Parameter> table = {MakeParameter("i", DType::kF32, {1}), MakeParameter("w", DType::kF32, {1}),
                                  MakeParameter("b", DType::kF32, {1})};
  table[0].ignored = true;
  table[1].device = table[2].device = {DeviceKind::kCuda, 1};
  EXPECT_THAT(CheckParameters(table), IsOk());
  EXPECT_EQ(DeviceOf(table), (DeviceId{DeviceKind::kCuda, 1}));
  table[2].device.index = 0;
  EXPECT_THAT(CheckParameters(table), InvalidArgument("parameter 2 'b' is on cuda:0, and 'w' on cuda:1"));
}

TEST(CheckParameters, SparseOnesAreOnTheHost) {
  std::vector<Parameter> table = {MakeParameter("w", DType::kF32, {4, 2})};
  table[0].sparse = true;
  EXPECT_THAT(CheckParameters(table), IsOk());
  table[0].device = {DeviceKind::kCuda, 0};
  EXPECT_THAT(CheckParameters(table), Fails(absl::StatusCode::kUnimplemented, "sparse gradients on cuda:0"));
}

TEST(ParameterTable, SurvivesSerialization) {
  const std::vector<Parameter> table = SomeTable();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<Parameter> copy, DeserializeParameters(Serialize(table)));
  ASSERT_EQ(copy.size(), table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(copy[i].name, table[i].name);
    EXPECT_EQ(copy[i].dtype, table[i].dtype);
    EXPECT_EQ(copy[i].device.kind, table[i].device.kind);
    EXPECT_EQ(copy[i].shape, table[i].shape);
    EXPECT_EQ(copy[i].strides, table[i].strides);
  }
  LOCKSTEP_EXPECT_OK(FirstDifference(0, table, 1, copy));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<Parameter> empty, DeserializeParameters(Serialize({})));
  EXPECT_TRUE(empty.empty());
}

TEST(ParameterTable, IsTheSameOnAnyDeviceOfAKind) {
  // Rank r uses GPU r: its index is no difference.
  std::vector<Parameter> other = SomeTable();
  other[1].device.index = 0;
  EXPECT_EQ(Serialize(other), Serialize(SomeTable()));
  LOCKSTEP_EXPECT_OK(FirstDifference(0, SomeTable(), 1, other));
}

TEST(ParameterTable, IsTheSameHoweverTheGradientOfAnIgnoredParameterWouldCome) {
  std::vector<Parameter> table = SomeTable();
  table[0].ignored = true;
  std::vector<Parameter> other = table;
  other[0].sparse = true;
  EXPECT_EQ(Serialize(other), Serialize(table));
  LOCKSTEP_EXPECT_OK(FirstDifference(0, table, 1, other));
}

// Else the tables could differ where FirstDifference finds nothing.
TEST(ParameterTable, WhatIsReadIsWhatWasWritten) {
  const std::string bytes = Serialize(SomeTable());
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x80);
    const auto table = DeserializeParameters(damaged);
    if (!table.ok()) continue;
    EXPECT_EQ(Serialize(*table), damaged) << "byte " << at;
    EXPECT_FALSE(FirstDifference(0, SomeTable(), 1, *table).ok()) << "byte " << at;
  }
}

TEST(ParameterTable, IsRefusedWhenCutAnywhereAndWithSomethingBehindIt) {
  const std::string bytes = Serialize(SomeTable());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(DeserializeParameters(bytes.substr(0, size)), Fails(absl::StatusCode::kDataLoss, "damaged"))
        << size << " of " << bytes.size() << " bytes";
  }
  EXPECT_THAT(DeserializeParameters(bytes + '\0'), StatusIs(absl::StatusCode::kDataLoss));
}

// Among the damaged bytes are those of counts, for which the reader must not allocate.
TEST(ParameterTable, AnyDamageGivesATableOrDataLoss) {
  const std::string bytes = Serialize(SomeTable());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      const auto table = DeserializeParameters(damaged);
      if (table.ok()) {
        EXPECT_LE(table->size(), SomeTable().size());
        // A name or a number that differs is all that may come of it, and can be printed.
        (void)FirstDifference(0, SomeTable(), 1, *table);
      } else {
        EXPECT_THAT(table, StatusIs(absl::StatusCode::kDataLoss));
      }
    }
  }
}

TEST(FirstDifference, IsASentenceAboutTheFirstOne) {
  const std::vector<Parameter> table = SomeTable();
  const struct {
    void (*change)(std::vector<Parameter>&);
    const char* says;
  } cases[] = {
      {[](auto& other) { other.erase(other.begin() + 2); },
       "rank 0 has 4 parameters and rank 3 has 3: they differ from parameter 2 'conv' of rank 0 on"},
      {[](auto& other) { other[0].name = "w"; },
       "the name of parameter 0 'layer1.weight' differs: layer1.weight on rank 0, w on rank 3"},
      {[](auto& other) { other[2].dtype = DType::kBF16; },
       "the dtype of parameter 2 'conv' differs: f16 on rank 0, bf16 on rank 3"},
      {[](auto& other) { other[0].device.kind = DeviceKind::kCuda; },
       "the device of parameter 0 'layer1.weight' differs: host on rank 0, cuda on rank 3"},
      {[](auto& other) { std::swap(other[0].shape[0], other[0].shape[1]); },
       "the shape of parameter 0 'layer1.weight' differs: [512, 784] on rank 0, [784, 512] on rank 3"},
      {[](auto& other) { other[2].strides.clear(); },
       "the layout of parameter 2 'conv' differs: strides [60, 1, 15, 3] on rank 0, row-major on rank 3"},
      {[](auto& other) {
         other[2].shape.clear();
         other[0].dtype = DType::kF64;
       },
       "the dtype of parameter 0 'layer1.weight' differs: f32 on rank 0, f64 on rank 3"},
  };
  for (const auto& [change, says] : cases) {
    std::vector<Parameter> other = table;
    change(other);
    const absl::Status difference = FirstDifference(0, table, 3, other);
    EXPECT_EQ(difference.message(), says);
    EXPECT_TRUE(GetErrorInfo(difference).parameter.has_value());
  }
}

}  // namespace
}  // namespace lockstep::testing
