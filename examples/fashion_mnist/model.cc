#include "examples/fashion_mnist/model.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"

namespace fashion_mnist {
namespace {

// Box-Muller, because std::normal_distribution differs between standard libraries.
class Gaussian {
 public:
  explicit Gaussian(uint64_t seed) : random_(seed) {}

  double Draw() {
    const double radius = std::sqrt(-2.0 * std::log(Uniform()));
    return radius * std::cos(2.0 * M_PI * Uniform());
  }

 private:
  double Uniform() { return (static_cast<double>(random_() >> 11) + 1.0) * 0x1p-53; }  // never 0

  std::mt19937_64 random_;
};

// Squareplus (Barron 2021), (x + sqrt(x^2 + b)) / 2: ReLU with its corner rounded, for one square root. The corner
// matters here: where rounding differences between one process and several decide on which side of it a unit is, whole
// gradients differ, and the runs drift apart within a few steps. Rounded, their losses agree to 1e-6 over the
// first 50 steps.
constexpr float kRoundness = 0.1f;

float Activate(float x) { return 0.5f * (x + std::sqrt(x * x + kRoundness)); }

// From the activation's output y, since x = y - b / 4y.
float ActivationSlope(float y) { return y * y / (y * y + 0.25f * kRoundness); }

Parameter MakeParameter(std::string name, std::vector<int64_t> shape) {
  size_t elements = 1;
  for (int64_t extent : shape) elements *= extent;
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.value.resize(elements);
  parameter.gradient.resize(elements);
  return parameter;
}

// Turns a row of logits into probabilities and returns the cross-entropy with `label`.
double SoftmaxCrossEntropy(float* row, int classes, int label) {
  const float largest = *std::max_element(row, row + classes);
  double sum = 0;
  for (int i = 0; i < classes; ++i) sum += std::exp(static_cast<double>(row[i] - largest));
  const double loss = std::log(sum) - (row[label] - largest);
  for (int i = 0; i < classes; ++i) {
    row[i] = static_cast<float>(std::exp(static_cast<double>(row[i] - largest)) / sum);
  }
  return loss;
}

}  // namespace

Model::Model(const std::vector<int>& widths, uint64_t seed, HiddenWeights hidden)
    : widths_(widths), outputs_(widths.size() - 1) {
  Gaussian gaussian(seed);
  int shared_layer = -1;
  for (int layer = 0; layer < layers(); ++layer) {
    if (hidden == HiddenWeights::kShared && AsWideAsBelow(layer)) {
      if (shared_layer >= 0 && widths_[layer] == widths_[shared_layer]) {
        first_parameter_.push_back(first_parameter_[shared_layer]);
        continue;
      }
      shared_layer = layer;
    }
    const int inputs = widths_[layer];
    const int outputs = widths_[layer + 1];
    first_parameter_.push_back(parameters_.size());
    parameters_.push_back(MakeParameter(absl::StrCat("layer", layer, ".weight"), {outputs, inputs}));
    // He et al. 2015: keeps the variance through ReLU and its like.
    const double deviation = std::sqrt(2.0 / inputs);
    for (float& weight : parameters_.back().value) weight = static_cast<float>(deviation * gaussian.Draw());
    parameters_.push_back(MakeParameter(absl::StrCat("layer", layer, ".bias"), {outputs}));
  }
}

bool Model::AsWideAsBelow(int layer) const {
  return layer > 0 && layer + 1 < layers() && widths_[layer] == widths_[layer + 1];
}

std::vector<int> Model::skippable_layers() const {
  std::vector<int> skippable;
  for (int layer = 0; layer < layers(); ++layer) {
    if (AsWideAsBelow(layer)) skippable.push_back(layer);
  }
  return skippable;
}

void Model::Propagate(const float* inputs, int batch, int skipped_layer) {
  const float* below = inputs;
  for (int layer = 0; layer < layers(); ++layer) {
    if (layer == skipped_layer) continue;
    const int from = widths_[layer];
    const int to = widths_[layer + 1];
    const std::vector<float>& weight = parameters_[first_parameter_[layer]].value;
    const std::vector<float>& bias = parameters_[first_parameter_[layer] + 1].value;
    std::vector<float>& output = outputs_[layer];
    output.resize(size_t{1} * batch * to);
    for (int row = 0; row < batch; ++row) std::copy(bias.begin(), bias.end(), output.begin() + size_t{1} * row * to);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, batch, to, from, 1.0f, below, from, weight.data(), from, 1.0f,
                output.data(), to);
    if (layer + 1 < layers()) {
      for (float& value : output) value = Activate(value);
    }
    below = output.data();
  }
}

const float* Model::InputsOf(int layer) const {
  if (layer == 0) return inputs_;
  return layer - 1 == skipped_layer_ ? InputsOf(layer - 1) : outputs_[layer - 1].data();
}

double Model::Forward(const float* inputs, const uint8_t* labels, int batch, const ForwardOptions& options) {
  inputs_ = inputs;
  batch_ = batch;
  skipped_layer_ = options.skipped_layer;
  Propagate(inputs, batch, skipped_layer_);
  const int classes = widths_.back();
  delta_ = outputs_.back();
  double loss = 0;
  for (int row = 0; row < batch; ++row) {
    float* probabilities = delta_.data() + size_t{1} * row * classes;
    loss += SoftmaxCrossEntropy(probabilities, classes, labels[row]);
    probabilities[labels[row]] -= 1.0f;
  }
  const float scale = options.weight / static_cast<float>(batch);
  for (float& value : delta_) value *= scale;
  return loss / batch;
}

void Model::Backward(const std::function<void(size_t index)>& on_gradient) {
  for (int layer = layers() - 1; layer >= 0; --layer) {
    if (layer == skipped_layer_) continue;
    const int from = widths_[layer];
    const int to = widths_[layer + 1];
    const size_t weight_index = first_parameter_[layer];
    const size_t bias_index = weight_index + 1;
    Parameter& weight = parameters_[weight_index];
    Parameter& bias = parameters_[bias_index];
    const float* below = InputsOf(layer);

    if (!bias.has_gradient) std::fill(bias.gradient.begin(), bias.gradient.end(), 0.0f);
    for (int row = 0; row < batch_; ++row) {
      const float* delta = delta_.data() + size_t{1} * row * to;
      for (int i = 0; i < to; ++i) bias.gradient[i] += delta[i];
    }
    bias.has_gradient = true;
    on_gradient(bias_index);

    // The last that is read of this layer's weight, before its gradient is reported.
    if (layer > 0) {
      delta_below_.resize(size_t{1} * batch_ * from);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, batch_, from, to, 1.0f, delta_.data(), to,
                  weight.value.data(), from, 0.0f, delta_below_.data(), from);
    }
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, to, from, batch_, 1.0f, delta_.data(), to, below, from,
                weight.has_gradient ? 1.0f : 0.0f, weight.gradient.data(), from);
    weight.has_gradient = true;
    on_gradient(weight_index);

    if (layer == 0) break;
    for (size_t i = 0; i < delta_below_.size(); ++i) delta_below_[i] *= ActivationSlope(below[i]);
    delta_.swap(delta_below_);
  }
}

void Model::ClearGradients() {
  for (Parameter& parameter : parameters_) parameter.has_gradient = false;
}

int Model::CountCorrect(const float* inputs, const uint8_t* labels, int batch) {
  Propagate(inputs, batch, /*skipped_layer=*/-1);
  const int classes = widths_.back();
  int correct = 0;
  for (int row = 0; row < batch; ++row) {
    const float* logits = outputs_.back().data() + size_t{1} * row * classes;
    correct += std::max_element(logits, logits + classes) - logits == labels[row];
  }
  return correct;
}

}  // namespace fashion_mnist
