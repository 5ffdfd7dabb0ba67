// Which layer a micro-batch leaves out: stochastic depth (Huang et al. 2016), for which some parameters are unused in
// some backward passes, on some ranks.

#ifndef EXAMPLES_FASHION_MNIST_STOCHASTIC_DEPTH_H_
#define EXAMPLES_FASHION_MNIST_STOCHASTIC_DEPTH_H_

#include <cstdint>
#include <vector>

namespace fashion_mnist {

// One of `layers` for a quarter of the micro-batches, each as likely as another, and -1 for the rest, or if there are
// none. Depends on the arguments alone.
int DrawSkippedLayer(const std::vector<int>& layers, uint64_t seed, int rank, int64_t step, int micro_batch);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_STOCHASTIC_DEPTH_H_
