// A multi-layer perceptron with a backward pass that tells about each gradient the moment it is complete, which is all
// that a framework needs to do for its gradients to be averaged while the rest is still being computed.

#ifndef EXAMPLES_FASHION_MNIST_MODEL_H_
#define EXAMPLES_FASHION_MNIST_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fashion_mnist {

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> value;
  std::vector<float> gradient;
};

// Layers are fully connected, with a rounded ReLU between them; the loss is softmax cross-entropy, averaged over the
// batch. Not thread-safe. The same seed gives the same parameters.
class Model {
 public:
  // `widths`: of the input, of each hidden layer, of the output (one per class).
  Model(const std::vector<int>& widths, uint64_t seed);

  // In the order of the layers; per layer "layer<k>.weight" (outputs x inputs), then "layer<k>.bias".
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // `inputs` is batch x widths.front(), borrowed until the next Forward(). Returns the mean loss.
  double Forward(const float* inputs, const uint8_t* labels, int batch);

  // Of the last Forward(). Replaces the gradients, and calls on_gradient(index) when parameters()[index].gradient is
  // complete: the last layer's first, both of a layer before anything of the one below it is computed.
  void Backward(const std::function<void(size_t index)>& on_gradient);

  // How many of the images are classified correctly. Overwrites what Forward() left for Backward().
  int CountCorrect(const float* inputs, const uint8_t* labels, int batch);

 private:
  int layers() const { return static_cast<int>(widths_.size()) - 1; }
  // Fills outputs_; the last layer's are logits.
  void Propagate(const float* inputs, int batch);

  const std::vector<int> widths_;
  std::vector<Parameter> parameters_;

  // Of the last Forward().
  const float* inputs_ = nullptr;
  int batch_ = 0;
  std::vector<std::vector<float>> outputs_;  // per layer, batch x width
  std::vector<float> delta_;                 // derivative of the loss by the current layer's output
  std::vector<float> delta_below_;
};

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_MODEL_H_
