#include "examples/fashion_mnist/stochastic_depth.h"

#include <random>

namespace fashion_mnist {

int DrawSkippedLayer(const std::vector<int>& layers, uint64_t seed, int rank, int64_t step, int micro_batch) {
  std::seed_seq words = {static_cast<uint32_t>(seed),       static_cast<uint32_t>(seed >> 32),
                         static_cast<uint32_t>(rank),       static_cast<uint32_t>(step),
                         static_cast<uint32_t>(step >> 32), static_cast<uint32_t>(micro_batch)};
  uint32_t draw[2];
  words.generate(draw, draw + 2);
  if (layers.empty() || draw[0] % 4 != 0) return -1;
  return layers[draw[1] % layers.size()];
}

}  // namespace fashion_mnist
