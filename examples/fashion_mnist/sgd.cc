#include "examples/fashion_mnist/sgd.h"

#include <algorithm>
#include <cmath>

#include "examples/fashion_mnist/bf16.h"

namespace fashion_mnist {

Sgd::Sgd(std::vector<Parameter>* parameters, float momentum) : parameters_(*parameters), momentum_(momentum) {
  for (const Parameter& parameter : parameters_) velocities_.emplace_back(parameter.value.size());
}

void Sgd::Step(size_t index, const float* gradient, float rate) {
  Parameter& parameter = parameters_[index];
  const bool mixed = !parameter.master.empty();
  float* value = mixed ? parameter.master.data() : parameter.value.data();
  float* velocity = velocities_[index].data();
  for (size_t i = 0; i < velocities_[index].size(); ++i) {
    velocity[i] = momentum_ * velocity[i] + gradient[i];
    value[i] -= rate * velocity[i];
  }
  if (mixed) RoundToBf16(parameter.master, &parameter.value);
}

void Sgd::StepAll(float rate) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].has_gradient) Step(i, parameters_[i].gradient.data(), rate);
  }
}

float LearningRate(float peak, int64_t step, int64_t steps) {
  const int64_t rising = std::max<int64_t>(1, steps / 20);
  if (step < rising) return peak * static_cast<float>(step + 1) / static_cast<float>(rising);
  const double done = static_cast<double>(step - rising) / static_cast<double>(std::max<int64_t>(1, steps - rising));
  return peak * static_cast<float>(0.5 * (1.0 + std::cos(M_PI * std::min(done, 1.0))));
}

}  // namespace fashion_mnist
