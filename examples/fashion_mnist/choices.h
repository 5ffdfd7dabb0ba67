// What some flags choose from, by name.

#ifndef EXAMPLES_FASHION_MNIST_CHOICES_H_
#define EXAMPLES_FASHION_MNIST_CHOICES_H_

#include <string>

#include "absl/strings/string_view.h"

namespace fashion_mnist {

// What is done with a bucket of gradients; see lockstep_hook.
enum class Hook { kNone, kAllReduce, kFp16Compress, kBf16Compress, kCallback };

// When the gradients of a step's micro-batches are averaged.
enum class SyncStrategy {
  kSingleAutoSync,  // in the backward pass of the last one
  kMultiAutoSync,   // in each backward pass
  kForcedSync,      // all at once, after the last backward pass
};

// For Abseil's flags. The error says what there is to choose from, or what is wrong with a choice.
bool AbslParseFlag(absl::string_view text, Hook* hook, std::string* error);
bool AbslParseFlag(absl::string_view text, SyncStrategy* strategy, std::string* error);
std::string AbslUnparseFlag(Hook hook);
std::string AbslUnparseFlag(SyncStrategy strategy);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_CHOICES_H_
