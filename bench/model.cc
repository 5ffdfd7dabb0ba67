#include "bench/model.h"

#include <functional>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::bench {
namespace {

// Adds layers in the order of definition.
class Layers {
 public:
  Layers(const std::string& name, const std::string& example) : table_{name, example, {}} {}

  void Tensor(const std::string& name, std::vector<int64_t> shape, double multiply_adds = 0) {
    table_.parameters.push_back({name, std::move(shape), multiply_adds});
  }

  // Of batch or layer normalisation.
  void Norm(const std::string& name, int64_t width) {
    Tensor(name + ".weight", {width});
    Tensor(name + ".bias", {width});
  }

  // `side`: of the square that it puts out.
  void Convolution(const std::string& name, int64_t inputs, int64_t outputs, int64_t kernel, int64_t side) {
    Tensor(name + ".weight", {outputs, inputs, kernel, kernel},
           static_cast<double>(outputs * side * side) * static_cast<double>(inputs * kernel * kernel));
  }

  // `then`: multiplications that follow it in the forward pass and have no parameters of their own.
  void Linear(const std::string& name, int64_t inputs, int64_t outputs, int64_t positions, double then = 0) {
    Product(name, {outputs, inputs}, positions, outputs, then);
  }

  // The same with the weight transposed, as GPT-2 stores it.
  void Conv1D(const std::string& name, int64_t inputs, int64_t outputs, int64_t positions, double then = 0) {
    Product(name, {inputs, outputs}, positions, outputs, then);
  }

  ModelTable Done() { return std::move(table_); }

 private:
  void Product(const std::string& name, std::vector<int64_t> shape, int64_t positions, int64_t outputs, double then) {
    const auto multiply_adds = static_cast<double>(positions * shape[0] * shape[1]);
    Tensor(name + ".weight", std::move(shape), multiply_adds);
    // In backward it comes first.
    Tensor(name + ".bias", {outputs}, then);
  }

  ModelTable table_;
};

ModelTable ResNet50() {
  Layers layers("resnet50", "an image of 224 x 224");
  layers.Convolution("conv1", 3, 64, 7, 112);
  layers.Norm("bn1", 64);
  struct Stage {
    int blocks;
    int64_t width;
    int64_t side;  // of what it puts out
  };
  int64_t inputs = 64;
  int64_t side_before = 56;
  int number = 0;
  for (const Stage& stage : {Stage{3, 64, 56}, Stage{4, 128, 28}, Stage{6, 256, 14}, Stage{3, 512, 7}}) {
    ++number;
    const int64_t outputs = 4 * stage.width;
    for (int block = 0; block < stage.blocks; ++block) {
      const std::string prefix = absl::StrCat("layer", number, ".", block, ".");
      layers.Convolution(prefix + "conv1", inputs, stage.width, 1, side_before);
      layers.Norm(prefix + "bn1", stage.width);
      layers.Convolution(prefix + "conv2", stage.width, stage.width, 3, stage.side);
      layers.Norm(prefix + "bn2", stage.width);
      layers.Convolution(prefix + "conv3", stage.width, outputs, 1, stage.side);
      layers.Norm(prefix + "bn3", outputs);
      if (block == 0) {
        layers.Convolution(prefix + "downsample.0", inputs, outputs, 1, stage.side);
        layers.Norm(prefix + "downsample.1", outputs);
      }
      inputs = outputs;
      side_before = stage.side;
    }
  }
  layers.Linear("fc", inputs, 1000, 1);
  return layers.Done();
}

// The scores and the weighted sum, over all heads.
double Attention(int64_t positions, int64_t width) { return static_cast<double>(2 * positions * positions * width); }

ModelTable Bert(const std::string& name, int layer_count, int64_t width) {
  constexpr int64_t kPositions = 128;
  Layers layers(name, "128 tokens");
  layers.Tensor("embeddings.word_embeddings.weight", {30522, width});
  layers.Tensor("embeddings.position_embeddings.weight", {512, width});
  layers.Tensor("embeddings.token_type_embeddings.weight", {2, width});
  layers.Norm("embeddings.LayerNorm", width);
  for (int layer = 0; layer < layer_count; ++layer) {
    const std::string prefix = absl::StrCat("encoder.layer.", layer, ".");
    layers.Linear(prefix + "attention.self.query", width, width, kPositions);
    layers.Linear(prefix + "attention.self.key", width, width, kPositions);
    layers.Linear(prefix + "attention.self.value", width, width, kPositions, Attention(kPositions, width));
    layers.Linear(prefix + "attention.output.dense", width, width, kPositions);
    layers.Norm(prefix + "attention.output.LayerNorm", width);
    layers.Linear(prefix + "intermediate.dense", width, 4 * width, kPositions);
    layers.Linear(prefix + "output.dense", 4 * width, width, kPositions);
    layers.Norm(prefix + "output.LayerNorm", width);
  }
  layers.Linear("pooler.dense", width, width, 1);
  return layers.Done();
}

ModelTable Gpt2Small() {
  constexpr int64_t kPositions = 1024;
  constexpr int64_t kWidth = 768;
  constexpr int64_t kVocabulary = 50257;
  Layers layers("gpt2_small", "1,024 tokens");
  layers.Tensor("transformer.wte.weight", {kVocabulary, kWidth});
  layers.Tensor("transformer.wpe.weight", {kPositions, kWidth});
  for (int layer = 0; layer < 12; ++layer) {
    const std::string prefix = absl::StrCat("transformer.h.", layer, ".");
    layers.Norm(prefix + "ln_1", kWidth);
    layers.Conv1D(prefix + "attn.c_attn", kWidth, 3 * kWidth, kPositions, Attention(kPositions, kWidth));
    layers.Conv1D(prefix + "attn.c_proj", kWidth, kWidth, kPositions);
    layers.Norm(prefix + "ln_2", kWidth);
    layers.Conv1D(prefix + "mlp.c_fc", kWidth, 4 * kWidth, kPositions);
    layers.Conv1D(prefix + "mlp.c_proj", 4 * kWidth, kWidth, kPositions);
  }
  layers.Tensor("transformer.ln_f.weight", {kWidth});
  // The output layer comes behind it. Its weights are wte's, whose gradient is complete only when backward has reached
  // the embedding.
  layers.Tensor("transformer.ln_f.bias", {kWidth}, static_cast<double>(kPositions * kVocabulary * kWidth));
  return layers.Done();
}

ModelTable Mlp() {
  Layers layers("mlp", "an image of 28 x 28");
  const std::vector<int64_t> widths = {784, 512, 512, 512, 512, 10};
  for (size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    layers.Linear(absl::StrCat("layer", layer), widths[layer], widths[layer + 1], 1);
  }
  return layers.Done();
}

// No model: a list of short tensors, whose number is what they cost.
ModelTable Tensors64() {
  Layers layers("tensors64", "nothing");
  for (int i = 0; i < 64; ++i) layers.Tensor(absl::StrCat("tensor", i), {16}, /*multiply_adds=*/1);
  return layers.Done();
}

}  // namespace

int64_t ModelParameter::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t ModelTable::elements() const {
  int64_t sum = 0;
  for (const ModelParameter& parameter : parameters) sum += parameter.elements();
  return sum;
}

double ModelTable::multiply_adds() const {
  double sum = 0;
  for (const ModelParameter& parameter : parameters) sum += parameter.multiply_adds;
  return sum;
}

absl::StatusOr<ModelTable> FindModel(absl::string_view name) {
  if (name == "resnet50") return ResNet50();
  if (name == "bert_base") return Bert("bert_base", 12, 768);
  if (name == "bert_large") return Bert("bert_large", 24, 1024);
  if (name == "gpt2_small") return Gpt2Small();
  if (name == "mlp") return Mlp();
  if (name == "tensors64") return Tensors64();
  return absl::InvalidArgumentError(
      absl::StrCat("no model '", name, "'; known are resnet50, bert_base, bert_large, gpt2_small, mlp, tensors64"));
}

}  // namespace lockstep::bench
