#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "bench/model.h"
#include "bench/ranks.h"
#include "bench/report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::bench {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(QuartilesOf, LieBetweenMeasurementsInAnyOrderLinearly) {
  const auto quartiles = [](const std::vector<double>& values) {
    const Quartiles found = QuartilesOf(values);
    return std::vector<double>{found.low, found.median, found.high};
  };
  EXPECT_THAT(quartiles({5, 1, 4, 2, 3}), ElementsAre(2, 3, 4));
  EXPECT_THAT(quartiles({10, 20}), ElementsAre(12.5, 15, 17.5));
  EXPECT_THAT(quartiles({7}), Each(7));
  EXPECT_THAT(quartiles({}), Each(0));
}

TEST(RoutesIn, NamesEachRouteToOthersOnce) {
  const std::string description =
      "2 hosts\n"
      "rank 0 (here) over itself\n"
      "rank 1 (host a) over shm\n"
      "rank 2 (host a) over shm\n"
      "rank 10 (host b) over tcp 10.0.0.1:4411\n";
  EXPECT_EQ(RoutesIn(description, Rank(0)), "shm, tcp 10.0.0.1:4411");
}

TEST(RoutesIn, TakesARankForItselfByItsWholeNumber) {
  EXPECT_EQ(RoutesIn("rank 1 over shm\nrank 10 over tcp\n", Rank(1)), "tcp");
  EXPECT_EQ(RoutesIn("one rank: collectives are copies", Rank(0)), "none");
}

TEST(Columns, LineUpWithTheirHeading) {
  const Columns sizes = {{6, "size", "(B)", "/bytes"}, {8, "time", "(us)", "/time_us"}};
  EXPECT_EQ(HeadingText(sizes), "# size      time\n#  (B)      (us)\n");
  EXPECT_EQ(RowText(sizes, {{"bytes", 8}, {"time_us", 0.25}}), "     8      0.25\n");
  const Columns named = {{-8, "step", "", "/name"}, {6, "median", "(ms)", "/time/median", 0}};
  EXPECT_EQ(HeadingText(named), "# step    median\n#           (ms)\n");
  EXPECT_EQ(RowText(named, {{"name", "ideal"}, {"time", ToJson({19, 20, 21})}}), "ideal         20\n");
  EXPECT_EQ(RowText(named, {{"name", "none"}, {"time", nullptr}}), "none           -\n");
}

TEST(Columns, HaveSevenPlacesAtMost) {
  const Columns columns = {{0, "", "", "/us", Column::kSevenPlaces}};
  EXPECT_EQ(RowText(columns, {{"us", 12.25}}), "12.25\n");
  EXPECT_EQ(RowText(columns, {{"us", 500.0}}), "500.0\n");
  EXPECT_EQ(RowText(columns, {{"us", 12345.6}}), "12346\n");
  EXPECT_EQ(RowText({{0, "", "", "/us"}}, {{"us", ToJson({1.4, 1.5, 1.75})}}), "1.40 - 1.75\n");
}

TEST(Report, PrintsWhatItWritesAndReplacesWhatIsNotUtf8) {
  const std::string printed = ::testing::TempDir() + "/printed";
  const std::string written = ::testing::TempDir() + "/written";
  FILE* const output = std::fopen(printed.c_str(), "w");
  Report report(output);
  report.AddFacts({{"cpu", "a quick one"}, {"os", "a \"quoted\" name"}, {"no text", "\xff"}});
  report.Begin("#\n", {{6, "size", "", "/bytes"}});
  report.AddRow({{"bytes", 8}});
  report.AddRow({{"bytes", 16}}, /*printed=*/false);
  std::fclose(output);
  std::ifstream text(printed);
  const std::string lines(std::istreambuf_iterator<char>(text), {});
  EXPECT_EQ(lines, "# cpu: a quick one\n# os: a \"quoted\" name\n# no text: \xff\n#\n# size\n     8\n");
  ASSERT_THAT(report.Write(written), IsOk());
  std::ifstream file(written);
  const nlohmann::json json = nlohmann::json::parse(file);
  EXPECT_EQ(json["facts"]["cpu"], "a quick one");
  EXPECT_EQ(json["facts"]["no text"], "\xef\xbf\xbd");
  EXPECT_EQ(json["facts"]["os"], "a \"quoted\" name");
  EXPECT_EQ(json["rows"][1]["bytes"], 16);
  EXPECT_THAT(report.Write("/no/such/folder/file"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/no/such")));
  EXPECT_THAT(Report(nullptr).Write("/no/such/folder/file"), IsOk());
}

TEST(ParseByteCount, UnitsArePowersOf1024) {
  EXPECT_THAT(ParseByteCount("0"), IsOkAndHolds(0));
  EXPECT_THAT(ParseByteCount("8"), IsOkAndHolds(8));
  EXPECT_THAT(ParseByteCount("3k"), IsOkAndHolds(3072));
  EXPECT_THAT(ParseByteCount("64M"), IsOkAndHolds(int64_t{64} << 20));
  EXPECT_THAT(ParseByteCount("2G"), IsOkAndHolds(int64_t{2} << 30));
  EXPECT_THAT(ParseByteCount("1T"), IsOkAndHolds(int64_t{1} << 40));
}

TEST(ParseByteCount, RefusesWhatIsNoSize) {
  for (const char* text : {"", "M", "64MB", "-8", "+8", "1.5M", " 8", "8 ", "x"}) {
    EXPECT_THAT(ParseByteCount(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a number of bytes")))
        << text;
  }
  for (const char* text : {"9223372036854775808", "9007199254740992K", "8388608T"}) {
    EXPECT_THAT(ParseByteCount(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too large"))) << text;
  }
}

TEST(SweepSizes, ReachesTheEndWhenAPowerDoes) {
  EXPECT_THAT(SweepSizes("8", "512", 4), IsOkAndHolds(ElementsAre(8, 32, 128, 512)));
  EXPECT_THAT(SweepSizes("8", "500", 4), IsOkAndHolds(ElementsAre(8, 32, 128)));
  EXPECT_THAT(SweepSizes("8", "8", 2), IsOkAndHolds(ElementsAre(8)));
  EXPECT_THAT(SweepSizes("0", "4", 2), IsOkAndHolds(ElementsAre(0, 1, 2, 4)));
}

TEST(SweepSizes, EndsBeforeItOverflows) {
  EXPECT_THAT(SweepSizes("4194304T", "8388607T", 2), IsOkAndHolds(ElementsAre(int64_t{1} << 62)));
}

TEST(SweepSizes, RefusesWhatDoesNotEnd) {
  EXPECT_THAT(SweepSizes("-1", "8", 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'-1'")));
  EXPECT_THAT(SweepSizes("16", "8", 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("end at 8, before 16")));
  EXPECT_THAT(SweepSizes("8", "16", 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("factor of 1")));
}

// Models against what was published about them.
struct Published {
  const char* name;
  size_t parameters;
  int64_t elements;
  double multiply_adds;
};

class ModelTableTest : public ::testing::TestWithParam<Published> {};

INSTANTIATE_TEST_SUITE_P(
    Models, ModelTableTest,
    ::testing::Values(
        // torchvision's metadata of ResNet50_Weights: 25557032 parameters, 4.089 "GFLOPS".
        Published{"resnet50", 161, 25'557'032, 4.089e9},
        // 12 layers of 12 x 768^2 x 128 + 2 x 128^2 x 768, and the pooler. Sun et al., arXiv:2004.02984, have 22.5e9
        // operations, two for each.
        Published{"bert_base", 199, 109'482'240, 11.174e9},
        // Hugging Face's BertModel of bert-large-uncased; 24 layers of 12 x 1024^2 x 128 + 2 x 128^2 x 1024, and the pooler.
        Published{"bert_large", 391, 335'141'888, 39.461e9},
        // 12 layers of 12 x 768^2 x 1024 + 2 x 1024^2 x 768, and 768 x 50257 x 1024 for the output layer: the formula
        // of Kaplan et al., arXiv:2001.08361, table 1, with both products of attention.
        Published{"gpt2_small", 148, 124'439'808, 145.8e9}, Published{"mlp", 10, 1'195'018, 1.193e6}),
    [](const ::testing::TestParamInfo<Published>& info) { return info.param.name; });

TEST_P(ModelTableTest, HasThePublishedSizeAndCost) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ModelTable table, FindModel(GetParam().name));
  EXPECT_EQ(table.name, GetParam().name);
  EXPECT_EQ(table.parameters.size(), GetParam().parameters);
  EXPECT_EQ(table.elements(), GetParam().elements);
  EXPECT_NEAR(table.multiply_adds(), GetParam().multiply_adds, 0.001 * GetParam().multiply_adds);
  // Names differ.
  std::set<std::string> names;
  for (const ModelParameter& parameter : table.parameters) names.insert(parameter.name);
  EXPECT_EQ(names.size(), table.parameters.size());
}

TEST(ModelTable, KeepsTheOrderOfDefinition) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ModelTable table, FindModel("resnet50"));
  EXPECT_EQ(table.parameters.front().name, "conv1.weight");
  EXPECT_THAT(table.parameters.front().shape, ElementsAre(64, 3, 7, 7));
  // The first block's own convolutions, then the one beside them.
  EXPECT_EQ(table.parameters[12].name, "layer1.0.downsample.0.weight");
  EXPECT_THAT(table.parameters[12].shape, ElementsAre(256, 64, 1, 1));
  EXPECT_EQ(table.parameters.back().name, "fc.bias");
}

TEST(ModelTable, CountsTheOutputLayerOfGpt2WithTheFirstGradientOfBackward) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ModelTable table, FindModel("gpt2_small"));
  EXPECT_EQ(table.parameters.back().multiply_adds, 1024.0 * 50257 * 768);
  EXPECT_EQ(table.parameters.front().multiply_adds, 0);
}

TEST(ModelTable, ListsTheKnownModels) {
  EXPECT_THAT(FindModel("resnet"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("resnet50, bert_base")));
}

}  // namespace
}  // namespace lockstep::bench
