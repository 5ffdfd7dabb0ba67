// The training loop of one process.

#ifndef EXAMPLES_FASHION_MNIST_TRAINER_H_
#define EXAMPLES_FASHION_MNIST_TRAINER_H_

#include "absl/status/status.h"
#include "examples/fashion_mnist/dataset.h"
#include "examples/fashion_mnist/options.h"
#include "examples/fashion_mnist/world.h"

namespace fashion_mnist {

// INVALID_ARGUMENT when the options do not go with so many processes or with this data; DATA_LOSS when the two sets
// differ in their images' size.
absl::Status CheckSetUp(const Options& options, const Dataset& training, const Dataset& test, int processes);

// Every rank calls it with equal options and data, once CheckSetUp() is OK. Rank 0 reports on stdout.
absl::Status Train(const Options& options, const Dataset& training, const Dataset& test, World* world);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_TRAINER_H_
