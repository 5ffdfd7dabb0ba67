#include "examples/fashion_mnist/sampler.h"

#include <numeric>
#include <random>
#include <utility>

namespace fashion_mnist {

std::vector<uint32_t> SampleOrder(size_t count, uint64_t seed, int epoch) {
  std::seed_seq mixed = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(epoch)};
  std::mt19937_64 random(mixed);
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  // Fisher and Yates by hand: std::shuffle differs between standard libraries. The modulo's bias is below 2^-32.
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

Range PartOf(size_t count, int rank, int size) {
  return Range{count * static_cast<size_t>(rank) / size, count * (static_cast<size_t>(rank) + 1) / size};
}

}  // namespace fashion_mnist
