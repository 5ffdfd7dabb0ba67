// One step of training: micro-batches, when their gradients are averaged, and the optimizer.

#ifndef EXAMPLES_FASHION_MNIST_STEPPER_H_
#define EXAMPLES_FASHION_MNIST_STEPPER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/fashion_mnist/averager.h"
#include "examples/fashion_mnist/model.h"
#include "examples/fashion_mnist/options.h"
#include "examples/fashion_mnist/sgd.h"
#include "examples/fashion_mnist/world.h"

namespace fashion_mnist {

// Used by one thread. With --optimizer-in-backward a thread of Lockstep's steps parameters while Run() computes the
// gradients of the layers below, whose values it leaves alone.
class Stepper {
 public:
  // Every rank calls it, and has the parameters of rank 0 afterwards. What is passed must outlive it.
  static absl::StatusOr<std::unique_ptr<Stepper>> Create(const Options& options, World* world, Model* model);

  // `inputs` and `labels` of this rank's part of the batch, `count` images that make equal micro-batches. Returns this
  // rank's mean loss.
  absl::StatusOr<double> Run(const float* inputs, const uint8_t* labels, size_t count, float learning_rate);

  const Averager& averager() const { return *averager_; }

 private:
  Stepper(const Options& options, World* world, Model* model);
  absl::Status Connect();

  // Of the micro-batch that went forward last.
  absl::Status BackwardWithAverages(Averager::Sync sync, int skipped_layer);
  // Of the gradients that there are, with nothing to hide the communication behind.
  absl::Status AverageGradients();

  const Options& options_;
  World& world_;
  Model& model_;
  Sgd sgd_;
  int64_t step_ = 0;
  float learning_rate_ = 0;             // of this step
  std::unique_ptr<Averager> averager_;  // behind what its thread uses: it ends first
};

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_STEPPER_H_
