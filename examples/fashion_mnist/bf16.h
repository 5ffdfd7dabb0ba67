// bfloat16: the upper half of a float. What mixed precision computes with here are floats that were rounded to it, as
// this example's matrix products are of floats; gradients that are handed to Lockstep are real bf16.

#ifndef EXAMPLES_FASHION_MNIST_BF16_H_
#define EXAMPLES_FASHION_MNIST_BF16_H_

#include <vector>

namespace fashion_mnist {

// The nearest bf16 value of each element, in a float; in a tie the even one. NaN stays NaN. Of as many elements each.
void RoundToBf16(const std::vector<float>& source, std::vector<float>* target);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_BF16_H_
