// Stochastic gradient descent with momentum, and its learning rate over time.

#ifndef EXAMPLES_FASHION_MNIST_SGD_H_
#define EXAMPLES_FASHION_MNIST_SGD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "examples/fashion_mnist/model.h"

namespace fashion_mnist {

class Sgd {
 public:
  // Borrows the parameters.
  Sgd(std::vector<Parameter>* parameters, float momentum);

  // velocity = momentum x velocity + gradient; value -= rate x velocity. `gradient` has as many elements as the
  // parameter. A master copy is what is stepped, where there is one, and the value is rounded from it. Different
  // parameters may be stepped by several threads at once.
  void Step(size_t index, const float* gradient, float rate);
  // All that have a gradient.
  void StepAll(float rate);

 private:
  std::vector<Parameter>& parameters_;
  const float momentum_;
  std::vector<std::vector<float>> velocities_;
};

// Rises over the first twentieth of the steps to `peak` and then falls along half a cosine to zero.
float LearningRate(float peak, int64_t step, int64_t steps);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_SGD_H_
