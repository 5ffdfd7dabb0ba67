// A communication hook of the example's own: a bucket is averaged by a reduce-scatter, after which each rank has the
// averages of its part, and an all-gather of the parts. What an embedder would put between the two, or instead of them
// (another precision, a quantiser, a slower link for one of them), goes into a function like this one.

#ifndef EXAMPLES_FASHION_MNIST_TWO_PHASE_HOOK_H_
#define EXAMPLES_FASHION_MNIST_TWO_PHASE_HOOK_H_

#include "capi/lockstep.h"

namespace fashion_mnist {

// For lockstep_reducer_options.hook_issue: stream-ordered, so it only enqueues. It needs no
// context.
lockstep_error* AverageInTwoPhases(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                                   const lockstep_stream* stream);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_TWO_PHASE_HOOK_H_
