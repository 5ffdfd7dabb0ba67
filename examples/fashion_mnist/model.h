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
  bool has_gradient = false;  // otherwise what is in `gradient` means nothing

  // Mixed precision: what the optimizer steps, and `value` is a copy of it that was rounded to bf16. Otherwise empty.
  std::vector<float> master;
};

// What the hidden layers compute with that are as wide as the layer below.
enum class HiddenWeights { kOwn, kShared };

struct ForwardOptions {
  float weight = 1;        // of the loss in the gradients: 1/K for one of K micro-batches
  int skipped_layer = -1;  // one of skippable_layers(), past which its inputs go; -1: none
};

// Layers are fully connected, with a rounded ReLU between them; the loss is softmax cross-entropy, averaged over the
// batch. Not thread-safe. The same seed gives the same parameters.
class Model {
 public:
  // `widths`: of the input, of each hidden layer, of the output (one per class).
  Model(const std::vector<int>& widths, uint64_t seed, HiddenWeights hidden = HiddenWeights::kOwn);

  // In the order of the layers; per layer "layer<k>.weight" (outputs x inputs), then "layer<k>.bias". Shared ones are
  // there once, under the name of the first layer that has them.
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }

  int inputs() const { return widths_.front(); }
  // The hidden layers that are as wide as the layer below.
  std::vector<int> skippable_layers() const;
  // Indexes of the weight and the bias of a layer.
  std::vector<size_t> parameters_of(int layer) const { return {first_parameter_[layer], first_parameter_[layer] + 1}; }

  // `inputs` is batch x widths.front(), borrowed until the next Forward(). Returns the mean loss.
  double Forward(const float* inputs, const uint8_t* labels, int batch, const ForwardOptions& options = {});

  // Of the last Forward(). Adds to the gradients that there are, gives the parameters that have none theirs, and calls
  // on_gradient(index) when the share of a layer in parameters()[index].gradient is complete: the last layer's first,
  // both of a layer before a gradient of the one below it is begun, shared ones once for each layer that has them, and
  // none of a skipped layer. From the last call for a parameter on, this pass does not read its value any more: it
  // may be changed, by another thread, too.
  void Backward(const std::function<void(size_t index)>& on_gradient);

  // Afterwards no parameter has one.
  void ClearGradients();

  // How many of the images are classified correctly. Overwrites what Forward() left for Backward().
  int CountCorrect(const float* inputs, const uint8_t* labels, int batch);

 private:
  int layers() const { return static_cast<int>(widths_.size()) - 1; }
  bool AsWideAsBelow(int layer) const;
  // Fills outputs_ but for the skipped layer's; the last layer's are logits.
  void Propagate(const float* inputs, int batch, int skipped_layer);
  // What the layer read in the last Forward().
  const float* InputsOf(int layer) const;

  const std::vector<int> widths_;
  std::vector<Parameter> parameters_;
  std::vector<size_t> first_parameter_;  // by layer: its weight, which its bias follows

  // Of the last Forward().
  const float* inputs_ = nullptr;
  int batch_ = 0;
  int skipped_layer_ = -1;
  std::vector<std::vector<float>> outputs_;  // per layer, batch x width
  std::vector<float> delta_;                 // derivative of the loss by the current layer's output
  std::vector<float> delta_below_;
};

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_MODEL_H_
