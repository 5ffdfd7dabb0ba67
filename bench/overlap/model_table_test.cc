// The tables against what was published about the models.

#include "bench/overlap/model_table.h"

#include <set>
#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
}

TEST_P(ModelTableTest, NamesItsParametersApart) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ModelTable table, FindModel(GetParam().name));
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
}  // namespace bench
}  // namespace lockstep
