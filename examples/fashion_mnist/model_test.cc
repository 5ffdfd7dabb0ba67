#include "examples/fashion_mnist/model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "examples/fashion_mnist/sgd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

using ::testing::ElementsAre;

struct Batch {
  std::vector<float> inputs;
  std::vector<uint8_t> labels;
  int size;
};

Batch MakeBatch(int size, int width, int classes) {
  std::mt19937 random(7);
  Batch batch;
  batch.size = size;
  for (int i = 0; i < size * width; ++i) batch.inputs.push_back(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
  for (int i = 0; i < size; ++i) batch.labels.push_back(static_cast<uint8_t>(random() % classes));
  return batch;
}

double Loss(Model& model, const Batch& batch, const ForwardOptions& options = {}) {
  return model.Forward(batch.inputs.data(), batch.labels.data(), batch.size, options);
}

TEST(Model, ParametersAreInOrderOfDefinition) {
  Model model({5, 4, 3}, 1);
  std::vector<std::string> names;
  for (const Parameter& parameter : model.parameters()) names.push_back(parameter.name);
  EXPECT_THAT(names, ElementsAre("layer0.weight", "layer0.bias", "layer1.weight", "layer1.bias"));
  EXPECT_THAT(model.parameters()[0].shape, ElementsAre(4, 5));
  EXPECT_THAT(model.parameters()[3].shape, ElementsAre(3));
}

// Compares each derivative with a central difference, whose step is a compromise: wider ones miss the curvature,
// narrower ones drown in the rounding of float. A wrong formula misses by far more than the bound.
void ExpectDerivatives(Model model, const ForwardOptions& options) {
  const Batch batch = MakeBatch(9, 6, 4);
  const auto loss = [&] { return Loss(model, batch, options); };
  loss();
  std::set<size_t> reported;
  model.Backward([&reported](size_t index) { reported.insert(index); });
  constexpr float kStep = 3e-4f;
  for (size_t p = 0; p < model.parameters().size(); ++p) {
    Parameter& parameter = model.parameters()[p];
    EXPECT_EQ(parameter.has_gradient, reported.count(p) == 1);
    const std::vector<float> gradient = parameter.gradient;
    for (size_t i = 0; i < parameter.value.size(); ++i) {
      const float value = parameter.value[i];
      parameter.value[i] = value + kStep;
      const double above = loss();
      parameter.value[i] = value - kStep;
      const double below = loss();
      parameter.value[i] = value;
      const double derivative = (above - below) / (2 * kStep);
      EXPECT_NEAR(parameter.has_gradient ? gradient[i] : 0, options.weight * derivative, 2e-3)
          << parameter.name << "[" << i << "]";
    }
  }
}

TEST(Model, GradientsAreTheDerivativesOfTheLoss) { ExpectDerivatives(Model({6, 8, 7, 4}, 3), {}); }

TEST(Model, GradientsAreTimesTheWeight) {
  ForwardOptions quarter;
  quarter.weight = 0.25f;
  ExpectDerivatives(Model({6, 8, 7, 4}, 3), quarter);
}

// A skipped layer has none, and nothing that it has is seen.
TEST(Model, GradientsPassASkippedLayerBy) {
  for (const int layer : {1, 2}) {
    ForwardOptions options;
    options.skipped_layer = layer;
    ExpectDerivatives(Model({6, 8, 8, 8, 4}, 3), options);
  }
}

TEST(Model, GradientsOfSharedWeightsAddUp) { ExpectDerivatives(Model({6, 8, 8, 8, 4}, 3, HiddenWeights::kShared), {}); }

TEST(Model, InnerLayersCanBeSkippedAndShareWeightsWhereTheyAreAsWideAsTheLayerBelow) {
  EXPECT_THAT(Model({8, 8, 8, 8, 4, 4}, 1).skippable_layers(), ElementsAre(1, 2));
  EXPECT_THAT(Model({4, 4}, 1).skippable_layers(), ElementsAre());
  const Model model({6, 8, 8, 5, 5, 5, 4}, 1, HiddenWeights::kShared);
  std::vector<std::string> names;
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.shape.size() == 2) names.push_back(parameter.name);
  }
  EXPECT_THAT(names, ElementsAre("layer0.weight", "layer1.weight", "layer2.weight", "layer3.weight", "layer5.weight"));
  EXPECT_EQ(model.parameters_of(4), model.parameters_of(3));
}

TEST(Model, ReportsSharedGradientsOnceForEachLayer) {
  Model model({6, 8, 8, 8, 4}, 3, HiddenWeights::kShared);
  Loss(model, MakeBatch(9, 6, 4));
  std::vector<size_t> order;
  model.Backward([&order](size_t index) { order.push_back(index); });
  EXPECT_THAT(order, ElementsAre(5, 4, 3, 2, 3, 2, 1, 0));
}

// What an optimizer in the backward pass rests on: once a parameter was reported for the last time, what becomes of its
// value does not matter to the gradients that follow.
TEST(Model, DoesNotReadWhatItHasReported) {
  for (const HiddenWeights hidden : {HiddenWeights::kOwn, HiddenWeights::kShared}) {
    Model model({6, 8, 8, 8, 4}, 3, hidden);
    const Batch batch = MakeBatch(9, 6, 4);
    std::vector<size_t> order;
    Loss(model, batch);
    model.Backward([&order](size_t index) { order.push_back(index); });
    std::vector<std::vector<float>> expected;
    for (const Parameter& parameter : model.parameters()) expected.push_back(parameter.gradient);

    model.ClearGradients();
    Loss(model, batch);
    size_t reports = 0;
    model.Backward([&](size_t index) {
      ++reports;
      if (std::find(order.begin() + reports, order.end(), index) != order.end()) return;
      for (float& value : model.parameters()[index].value) value = std::numeric_limits<float>::quiet_NaN();
    });
    for (size_t p = 0; p < expected.size(); ++p) EXPECT_EQ(model.parameters()[p].gradient, expected[p]);
  }
}

TEST(Model, GradientsAccumulateUntilTheyAreCleared) {
  Model model({6, 8, 4}, 3);
  const Batch batch = MakeBatch(9, 6, 4);
  std::vector<float> once;
  for (const float times : {1.0f, 2.0f, 3.0f}) {
    Loss(model, batch);
    model.Backward([](size_t) {});
    const std::vector<float>& gradient = model.parameters()[0].gradient;
    if (once.empty()) once = gradient;
    for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(gradient[i], times * once[i], 1e-6);
  }
  model.ClearGradients();
  EXPECT_FALSE(model.parameters()[0].has_gradient);
  Loss(model, batch);
  model.Backward([](size_t) {});
  EXPECT_EQ(model.parameters()[0].gradient, once);
}

// What overlap rests on: when a gradient is reported it has its final value, and those of the layers below are
// untouched.
TEST(Model, ReportsEachGradientWhenItIsCompleteAndBeforeTheLayerBelow) {
  Model model({6, 8, 7, 4}, 3);
  const Batch batch = MakeBatch(9, 6, 4);
  Loss(model, batch);
  model.Backward([](size_t) {});
  std::vector<std::vector<float>> expected;
  for (Parameter& parameter : model.parameters()) {
    expected.push_back(parameter.gradient);
    std::fill(parameter.gradient.begin(), parameter.gradient.end(), -77.0f);
  }

  model.ClearGradients();
  Loss(model, batch);
  std::vector<size_t> order;
  model.Backward([&](size_t index) {
    order.push_back(index);
    const size_t first_of_layer = index / 2 * 2;
    for (size_t i = 0; i < expected.size(); ++i) {
      const std::vector<float>& gradient = model.parameters()[i].gradient;
      if (std::find(order.begin(), order.end(), i) != order.end()) {
        EXPECT_EQ(gradient, expected[i]) << i << " when " << index << " is reported";
      } else if (i < first_of_layer) {
        EXPECT_THAT(gradient, testing::Each(-77.0f)) << i << " when " << index << " is reported";
      }
    }
  });
  ASSERT_EQ(order.size(), 6);
  EXPECT_THAT((std::vector<size_t>{order[0] / 2, order[1] / 2, order[2] / 2, order[3] / 2, order[4] / 2, order[5] / 2}),
              ElementsAre(2, 2, 1, 1, 0, 0));
  std::sort(order.begin(), order.end());
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5));
}

// The mean of the gradients of the halves of a batch is the gradient of the batch: why averaging over ranks is right.
TEST(Model, GradientOfABatchIsTheMeanOfItsHalves) {
  Model model({6, 8, 4}, 3);
  const Batch batch = MakeBatch(10, 6, 4);
  const double loss = Loss(model, batch);
  model.Backward([](size_t) {});
  std::vector<std::vector<float>> whole;
  for (const Parameter& parameter : model.parameters()) whole.push_back(parameter.gradient);

  std::vector<std::vector<float>> sum(whole.size());
  double loss_sum = 0;
  for (int half = 0; half < 2; ++half) {
    loss_sum += model.Forward(batch.inputs.data() + half * 5 * 6, batch.labels.data() + half * 5, 5);
    model.ClearGradients();
    model.Backward([](size_t) {});
    for (size_t p = 0; p < sum.size(); ++p) {
      sum[p].resize(whole[p].size());
      for (size_t i = 0; i < sum[p].size(); ++i) sum[p][i] += model.parameters()[p].gradient[i];
    }
  }
  EXPECT_NEAR(loss_sum / 2, loss, 1e-6);
  for (size_t p = 0; p < sum.size(); ++p) {
    for (size_t i = 0; i < sum[p].size(); ++i) EXPECT_NEAR(sum[p][i] / 2, whole[p][i], 1e-6);
  }
}

TEST(Model, SameSeedSameBitsAndAnotherSeedOthers) {
  const Batch batch = MakeBatch(9, 6, 4);
  Model first({6, 8, 4}, 5);
  Model second({6, 8, 4}, 5);
  Model other({6, 8, 4}, 6);
  EXPECT_EQ(first.parameters()[0].value, second.parameters()[0].value);
  EXPECT_NE(first.parameters()[0].value, other.parameters()[0].value);
  Sgd first_sgd(&first.parameters(), 0.9f);
  Sgd second_sgd(&second.parameters(), 0.9f);
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(Loss(first, batch), Loss(second, batch));
    for (Model* model : {&first, &second}) {
      model->ClearGradients();
      model->Backward([](size_t) {});
    }
    first_sgd.StepAll(0.1f);
    second_sgd.StepAll(0.1f);
  }
  for (size_t p = 0; p < first.parameters().size(); ++p) {
    EXPECT_EQ(first.parameters()[p].value, second.parameters()[p].value);
  }
}

TEST(Model, InitialWeightsHaveTheVarianceOfHe) {
  Model model({200, 300, 10}, 1);
  double sum = 0, squares = 0;
  const std::vector<float>& weights = model.parameters()[0].value;
  for (float weight : weights) {
    sum += weight;
    squares += weight * weight;
  }
  EXPECT_NEAR(sum / weights.size(), 0, 0.002);
  EXPECT_NEAR(squares / weights.size(), 2.0 / 200, 0.0002);
  EXPECT_THAT(model.parameters()[1].value, testing::Each(0.0f));
}

TEST(Model, UntrainedLossIsNearThatOfGuessingAndHugeLogitsStayFinite) {
  Model model({6, 4}, 3);
  const Batch batch = MakeBatch(9, 6, 4);
  for (float& weight : model.parameters()[0].value) weight = 0;
  EXPECT_NEAR(Loss(model, batch), std::log(4.0), 1e-6);
  for (float& weight : model.parameters()[0].value) weight = 1e6f;
  model.parameters()[1].value[0] = 1e6f;
  EXPECT_TRUE(std::isfinite(Loss(model, batch)));
}

TEST(Model, LearnsASmallSetByHeart) {
  Model model({6, 32, 4}, 3);
  const Batch batch = MakeBatch(20, 6, 4);
  Sgd sgd(&model.parameters(), 0.9f);
  for (int step = 0; step < 400; ++step) {
    Loss(model, batch);
    model.ClearGradients();
    model.Backward([](size_t) {});
    sgd.StepAll(0.1f);
  }
  EXPECT_EQ(model.CountCorrect(batch.inputs.data(), batch.labels.data(), batch.size), batch.size);
}

}  // namespace
}  // namespace fashion_mnist
