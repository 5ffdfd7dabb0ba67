// bfloat16: the upper half of a float. What mixed precision computes with here are floats that were rounded to it, as
// this example's matrix products are of floats; gradients that are handed to Lockstep are real bf16.

#ifndef EXAMPLES_FASHION_MNIST_BF16_H_
#define EXAMPLES_FASHION_MNIST_BF16_H_

#include <cstdint>
#include <vector>

namespace fashion_mnist {

// To the nearest, to even in a tie; NaN stays NaN.
uint16_t ToBf16(float value);
float FromBf16(uint16_t value);

// Of as many elements each.
void ToBf16(const std::vector<float>& source, std::vector<uint16_t>* target);
// The same value in a float.
void RoundToBf16(const std::vector<float>& source, std::vector<float>* target);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_BF16_H_
