#include "examples/fashion_mnist/sgd.h"

#include <algorithm>
#include <cmath>

namespace fashion_mnist {

void Sgd::Step(std::vector<Parameter>& parameters, float rate) {
  if (velocities_.empty()) {
    for (const Parameter& parameter : parameters) velocities_.emplace_back(parameter.value.size());
  }
  for (size_t p = 0; p < parameters.size(); ++p) {
    float* value = parameters[p].value.data();
    const float* gradient = parameters[p].gradient.data();
    float* velocity = velocities_[p].data();
    for (size_t i = 0; i < velocities_[p].size(); ++i) {
      velocity[i] = momentum_ * velocity[i] + gradient[i];
      value[i] -= rate * velocity[i];
    }
  }
}

float LearningRate(float peak, int64_t step, int64_t steps) {
  const int64_t rising = std::max<int64_t>(1, steps / 20);
  if (step < rising) return peak * static_cast<float>(step + 1) / static_cast<float>(rising);
  const double done = static_cast<double>(step - rising) / static_cast<double>(std::max<int64_t>(1, steps - rising));
  return peak * static_cast<float>(0.5 * (1.0 + std::cos(M_PI * std::min(done, 1.0))));
}

}  // namespace fashion_mnist
