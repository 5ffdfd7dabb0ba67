// A multi-layer perceptron, and the optimizer that trains it. Nothing here knows of Lockstep. What Lockstep needs is that
// Backward() reports each gradient the moment it is final.

#ifndef EXAMPLES_FASHION_MNIST_MODEL_H_
#define EXAMPLES_FASHION_MNIST_MODEL_H_

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fashion_mnist {

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> value;
  std::vector<float> gradient;
  bool has_gradient = false;    // otherwise what is in `gradient` means nothing
  std::vector<float> velocity;  // of the optimizer

  // Mixed precision: what the optimizer steps. `value` is a copy of it that was rounded to bf16. Otherwise empty.
  std::vector<float> master;
};

struct ModelOptions {
  int inputs = 0;
  int hidden = 0;  // width of each hidden layer
  int inner = 0;   // layers from hidden to hidden
  int classes = 0;
  bool shared = false;  // the inner layers have one weight and one bias together
};

// Layers are fully connected, with a rounded ReLU between them; the loss is softmax cross-entropy, averaged over the
// batch. The same seed gives the same parameters.
class Model {
 public:
  using OnGradient = std::function<void(size_t index)>;

  Model(const ModelOptions& options, uint64_t seed)
      : options_(options), layers_(options.inner + 2), inputs_(layers_), outputs_(layers_) {
    std::mt19937_64 random(seed);
    const auto uniform = [&random] { return (static_cast<double>(random() >> 11) + 1.0) * 0x1p-53; };  // never 0
    // Box-Muller, because std::normal_distribution differs between standard libraries.
    const auto gaussian = [&uniform] {
      const double radius = std::sqrt(-2.0 * std::log(uniform()));
      return radius * std::cos(2.0 * M_PI * uniform());
    };
    for (int layer = 0; layer < layers_; ++layer) {
      if (WeightOf(layer) < parameters_.size()) continue;  // shared with a layer below
      AddParameter("layer" + std::to_string(layer) + ".weight", {Width(layer + 1), Width(layer)});
      // He et al. 2015: keeps the variance through ReLU and its like.
      const double deviation = std::sqrt(2.0 / Width(layer));
      for (float& weight : parameters_.back().value) weight = static_cast<float>(deviation * gaussian());
      AddParameter("layer" + std::to_string(layer) + ".bias", {Width(layer + 1)});
    }
  }

  // In the order of the layers, each its weight and then its bias.
  std::vector<Parameter>& parameters() { return parameters_; }
  // Indexes of the weight and the bias of a layer; none of layer -1.
  std::vector<size_t> ParametersOf(int layer) const {
    return layer < 0 ? std::vector<size_t>() : std::vector<size_t>{WeightOf(layer), WeightOf(layer) + 1};
  }

  // Borrows the inputs, which are batch x options.inputs, until the next Forward(). Returns the mean loss; gradients will
  // be those of `weight` times it. An inner layer may be skipped: its inputs go past it. -1: none.
  double Forward(const float* inputs, const uint8_t* labels, int batch, float weight = 1, int skipped_layer = -1) {
    skipped_layer_ = skipped_layer;
    delta_ = Propagate(inputs, batch);
    double loss = 0;
    for (int row = 0; row < batch; ++row) {
      float* probabilities = delta_.data() + row * options_.classes;
      loss += SoftmaxCrossEntropy(probabilities, labels[row]);
      probabilities[labels[row]] -= 1.0f;
    }
    const float scale = weight / static_cast<float>(batch);
    for (float& value : delta_) value *= scale;
    return loss / batch;
  }

  // Of the last Forward(). Adds to the gradients that there are, and gives the parameters that have none theirs. Calls
  // on_gradient(index) once a layer's share of a gradient is complete: the last layer's first, shared ones once for each
  // layer, none for a skipped layer. This pass does not read the parameter's value after the last of these calls: it may
  // be changed, by another thread, too.
  void Backward(const OnGradient& on_gradient) {
    for (int layer = layers_ - 1; layer >= 0; --layer) {
      if (layer == skipped_layer_) continue;
      const int from = Width(layer), to = Width(layer + 1);
      Parameter& weight = parameters_[WeightOf(layer)];
      Parameter& bias = parameters_[WeightOf(layer) + 1];

      if (!bias.has_gradient) std::fill(bias.gradient.begin(), bias.gradient.end(), 0.0f);
      for (int row = 0; row < batch_; ++row) {
        for (int i = 0; i < to; ++i) bias.gradient[i] += delta_[row * to + i];
      }
      bias.has_gradient = true;
      on_gradient(WeightOf(layer) + 1);

      // The weight is read for the last time here, before its gradient is reported.
      if (layer > 0) {
        delta_below_.resize(batch_ * from);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, batch_, from, to, 1.0f, delta_.data(), to,
                    weight.value.data(), from, 0.0f, delta_below_.data(), from);
      }
      cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, to, from, batch_, 1.0f, delta_.data(), to, inputs_[layer],
                  from, weight.has_gradient ? 1.0f : 0.0f, weight.gradient.data(), from);
      weight.has_gradient = true;
      on_gradient(WeightOf(layer));

      if (layer == 0) break;
      for (size_t i = 0; i < delta_below_.size(); ++i) delta_below_[i] *= ActivationSlope(inputs_[layer][i]);
      delta_.swap(delta_below_);
    }
  }

  void ClearGradients() {
    for (Parameter& parameter : parameters_) parameter.has_gradient = false;
  }

  // How many images are classified correctly. Overwrites what Forward() left for Backward().
  int CountCorrect(const float* inputs, const uint8_t* labels, int batch) {
    skipped_layer_ = -1;
    const std::vector<float>& logits = Propagate(inputs, batch);
    int correct = 0;
    for (int row = 0; row < batch; ++row) {
      const auto begin = logits.begin() + row * options_.classes;
      correct += std::max_element(begin, begin + options_.classes) - begin == labels[row];
    }
    return correct;
  }

 private:
  // Squareplus (Barron 2021), (x + sqrt(x^2 + b)) / 2: ReLU with its corner rounded, for one square root. With a sharp
  // corner, rounding differences between one process and several decide on which side of it a unit is; whole gradients
  // then differ, and the runs drift apart within a few steps. Rounded, their losses agree to 1e-6 over the first 50.
  static constexpr float kRoundness = 0.1f;
  static float Activate(float x) { return 0.5f * (x + std::sqrt(x * x + kRoundness)); }
  // From the activation's output y, since x = y - b / 4y.
  static float ActivationSlope(float y) { return y * y / (y * y + 0.25f * kRoundness); }

  int Width(int layer) const {
    return layer == 0 ? options_.inputs : layer == layers_ ? options_.classes : options_.hidden;
  }
  size_t WeightOf(int layer) const {
    if (!options_.shared || layer == 0) return 2 * layer;
    return layer + 1 < layers_ ? 2 : 4;
  }

  void AddParameter(std::string name, std::vector<int64_t> shape) {
    size_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    const std::vector<float> zeros(elements);
    parameters_.push_back({std::move(name), std::move(shape), zeros, zeros, false, zeros, {}});
  }

  // Returns the logits, batch x classes.
  const std::vector<float>& Propagate(const float* inputs, int batch) {
    batch_ = batch;
    for (int layer = 0; layer < layers_; ++layer) {
      if (layer == skipped_layer_) continue;
      const int from = Width(layer), to = Width(layer + 1);
      const std::vector<float>& weight = parameters_[WeightOf(layer)].value;
      const std::vector<float>& bias = parameters_[WeightOf(layer) + 1].value;
      std::vector<float>& output = outputs_[layer];
      output.resize(batch * to);
      for (int row = 0; row < batch; ++row) std::copy(bias.begin(), bias.end(), output.begin() + row * to);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, batch, to, from, 1.0f, inputs, from, weight.data(), from,
                  1.0f, output.data(), to);
      if (layer + 1 < layers_) {
        for (float& value : output) value = Activate(value);
      }
      inputs_[layer] = inputs;
      inputs = output.data();
    }
    return outputs_.back();
  }

  // Turns a row of logits into probabilities and returns the cross-entropy with `label`.
  double SoftmaxCrossEntropy(float* row, int label) const {
    const float largest = *std::max_element(row, row + options_.classes);
    double sum = 0;
    for (int i = 0; i < options_.classes; ++i) sum += std::exp(static_cast<double>(row[i] - largest));
    const double loss = std::log(sum) - (row[label] - largest);
    for (int i = 0; i < options_.classes; ++i) {
      row[i] = static_cast<float>(std::exp(static_cast<double>(row[i] - largest)) / sum);
    }
    return loss;
  }

  const ModelOptions options_;
  const int layers_;
  std::vector<Parameter> parameters_;

  // Of the last Forward().
  int batch_ = 0;
  int skipped_layer_ = -1;
  std::vector<const float*> inputs_;         // by layer
  std::vector<std::vector<float>> outputs_;  // by layer, batch x width
  std::vector<float> delta_;                 // derivative of the loss by the current layer's output
  std::vector<float> delta_below_;
};

// Writes the nearest bf16 value of each element, as a float; in a tie the even one. NaN stays NaN.
inline void RoundToBf16(const std::vector<float>& source, std::vector<float>* target) {
  for (size_t i = 0; i < source.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &source[i], sizeof(bits));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    std::memcpy(&(*target)[i], &bits, sizeof(bits));
    if (source[i] != source[i]) (*target)[i] = source[i];
  }
}

// Stochastic gradient descent with momentum. Different parameters may be stepped by several threads at once.
inline void StepParameter(Parameter* parameter, const float* gradient, float rate) {
  constexpr float kMomentum = 0.9f;
  const bool mixed = !parameter->master.empty();
  float* value = mixed ? parameter->master.data() : parameter->value.data();
  float* velocity = parameter->velocity.data();
  for (size_t i = 0; i < parameter->velocity.size(); ++i) {
    velocity[i] = kMomentum * velocity[i] + gradient[i];
    value[i] -= rate * velocity[i];
  }
  if (mixed) RoundToBf16(parameter->master, &parameter->value);
}

// Rises over the first twentieth of the steps to `peak` and then falls along half a cosine to zero.
inline float LearningRate(float peak, int64_t step, int64_t steps) {
  const int64_t rising = std::max<int64_t>(1, steps / 20);
  if (step < rising) return peak * static_cast<float>(step + 1) / static_cast<float>(rising);
  const double done = static_cast<double>(step - rising) / static_cast<double>(std::max<int64_t>(1, steps - rising));
  return peak * static_cast<float>(0.5 * (1.0 + std::cos(M_PI * std::min(done, 1.0))));
}

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_MODEL_H_
