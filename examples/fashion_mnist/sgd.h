// Stochastic gradient descent with momentum, and its learning rate over time.

#ifndef EXAMPLES_FASHION_MNIST_SGD_H_
#define EXAMPLES_FASHION_MNIST_SGD_H_

#include <cstdint>
#include <vector>

#include "examples/fashion_mnist/model.h"

namespace fashion_mnist {

class Sgd {
 public:
  explicit Sgd(float momentum) : momentum_(momentum) {}

  // velocity = momentum x velocity + gradient; value -= rate x velocity. Always the same parameters.
  void Step(std::vector<Parameter>& parameters, float rate);

 private:
  const float momentum_;
  std::vector<std::vector<float>> velocities_;
};

// Rises over the first twentieth of the steps to `peak` and then falls along half a cosine to zero.
float LearningRate(float peak, int64_t step, int64_t steps);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_SGD_H_
