// Which images make up each step. The order is the same on all ranks, whatever their number, so that N processes with
// batches of B/N see together what one process with batches of B sees.

#ifndef EXAMPLES_FASHION_MNIST_SAMPLER_H_
#define EXAMPLES_FASHION_MNIST_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fashion_mnist {

// A permutation of 0..count-1, another one each epoch.
std::vector<uint32_t> SampleOrder(size_t count, uint64_t seed, int epoch);

// A contiguous part of something.
struct Range {
  size_t begin;
  size_t end;
  size_t size() const { return end - begin; }
};

// Part `rank` of `size` of `count` things; the parts follow each other and differ in size by at most one.
Range PartOf(size_t count, int rank, int size);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_SAMPLER_H_
