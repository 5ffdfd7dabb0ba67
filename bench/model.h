// The parameters of published models, in the order in which the models define them, and what computing them costs.
//
//   model      parameters  elements     source
//   resnet50      161      25,557,032   He et al., arXiv:1512.03385, table 1; the stride is in the 3x3 convolutions
//                                       ("v1.5"), names are torchvision's
//   bert_base     199     109,482,240   Devlin et al., arXiv:1810.04805, the uncased vocabulary of 30,522, with the
//                                       pooler; names are Hugging Face's (BertModel)
//   bert_large    391     335,141,888   the same with 24 layers of width 1024
//   gpt2_small    148     124,439,808   Radford et al. 2019, vocabulary of 50,257, the output layer shares the token
//                                       embedding's weights; names are Hugging Face's (GPT2LMHeadModel)
//   mlp            10       1,195,018   the network of examples/fashion_mnist

#ifndef BENCH_MODEL_H_
#define BENCH_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::bench {

struct ModelParameter {
  std::string name;
  std::vector<int64_t> shape;
  // Multiplications (each with its addition) of one example's forward pass, in the operations whose backward comes between the gradient
  // before and this one. Gradients come in the reverse order of definition. Counted are convolutions (output elements x kernel elements),
  // matrix products (m x n x k) and the two products of attention (2 x positions^2 x width). All else is small and counts as nothing.
  double multiply_adds = 0;

  int64_t elements() const;
};

struct ModelTable {
  std::string name;
  std::string example;  // one input, for which multiplications are counted: "an image of 224 x 224"
  std::vector<ModelParameter> parameters;

  int64_t elements() const;
  double multiply_adds() const;
};

// INVALID_ARGUMENT lists the known models.
absl::StatusOr<ModelTable> FindModel(absl::string_view name);

}  // namespace lockstep::bench

#endif  // BENCH_MODEL_H_
