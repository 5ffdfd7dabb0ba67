// Fashion-MNIST as its makers publish it: images and labels in IDX files, plain or compressed with gzip.
//
//   images   u32 0x00000803, u32 count, u32 rows, u32 columns, then count x rows x columns bytes
//   labels   u32 0x00000801, u32 count, then count bytes, each 0 to 9
//
// Numbers are big-endian.

#ifndef EXAMPLES_FASHION_MNIST_DATASET_H_
#define EXAMPLES_FASHION_MNIST_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fashion_mnist {

inline constexpr int kClasses = 10;

struct Dataset {
  size_t count = 0;
  size_t rows = 0;
  size_t columns = 0;
  std::vector<uint8_t> pixels;  // count x rows x columns
  std::vector<uint8_t> labels;  // count

  size_t pixels_per_image() const { return rows * columns; }
};

// Reads <folder>/<part>-images-idx3-ubyte and <part>-labels-idx1-ubyte, each with or without ".gz"; part is "train" or
// "t10k". NOT_FOUND when a file is missing; DATA_LOSS, naming the file and what is wrong with it, when it is not what
// it should be.
absl::StatusOr<Dataset> LoadDataset(const std::string& folder, absl::string_view part);

// Writes the image with pixels scaled to mean 0 and variance 1 over the training set.
void NormalizeImage(const Dataset& dataset, size_t index, float* output);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_DATASET_H_
