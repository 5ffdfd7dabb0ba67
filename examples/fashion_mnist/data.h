// Fashion-MNIST as its makers publish it: images and labels in IDX files, plain or compressed with gzip.
//
//   images   u32 0x00000803, u32 count, u32 28, u32 28, then count x 28 x 28 bytes
//   labels   u32 0x00000801, u32 count, then count bytes, each 0 to 9
//
// Numbers are big-endian.

#ifndef EXAMPLES_FASHION_MNIST_DATA_H_
#define EXAMPLES_FASHION_MNIST_DATA_H_

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace fashion_mnist {

inline constexpr int kPixels = 28 * 28;
inline constexpr int kClasses = 10;

// What a model computes with at a time.
struct Batch {
  int count = 0;
  std::vector<float> inputs;  // count x kPixels
  std::vector<uint8_t> labels;
};

struct Dataset {
  std::vector<uint8_t> pixels;  // kPixels of each image
  std::vector<uint8_t> labels;

  size_t count() const { return labels.size(); }

  // Makes a batch of these images, with pixels scaled to mean 0 and variance 1 over the training set.
  void Gather(const uint32_t* samples, int count, Batch* batch) const {
    constexpr float kMean = 0.2860f, kDeviation = 0.3530f;
    constexpr float kScale = 1.0f / (255.0f * kDeviation), kShift = -kMean / kDeviation;
    batch->count = count;
    batch->inputs.resize(count * kPixels);
    batch->labels.resize(count);
    for (int i = 0; i < count; ++i) {
      const uint8_t* image = pixels.data() + samples[i] * kPixels;
      float* input = batch->inputs.data() + i * kPixels;
      for (size_t p = 0; p < kPixels; ++p) input[p] = image[p] * kScale + kShift;
      batch->labels[i] = labels[samples[i]];
    }
  }
};

// All of a file, unpacked. zlib reads plain files through the same calls.
inline absl::StatusOr<std::string> ReadFile(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("open ", path, ": ", strerror(errno),
                     "; install the package dataset-fashion-mnist, or name a folder with --data"));
  }
  std::string content;
  std::vector<char> piece(1 << 20);
  int received;
  while ((received = gzread(file, piece.data(), piece.size())) > 0) content.append(piece.data(), received);
  // A file that is cut off or damaged shows at its end, where zlib compares lengths and checksums.
  int error = Z_OK;
  const std::string message = gzerror(file, &error);  // names the file
  gzclose(file);
  if (received < 0 || error != Z_OK) return absl::DataLossError(absl::StrCat("read ", message));
  return content;
}

// The bytes behind the header of an IDX file, path or path.gz, whose items have these extents.
inline absl::StatusOr<std::vector<uint8_t>> ReadIdx(std::string path, uint32_t magic, const std::string& items,
                                                    const std::vector<uint32_t>& extents) {
  if (access(absl::StrCat(path, ".gz").c_str(), F_OK) == 0) path += ".gz";
  const absl::StatusOr<std::string> content = ReadFile(path);
  if (!content.ok()) return content.status();
  const auto number = [&content](size_t index) {
    uint32_t value = 0;
    for (size_t byte = 0; byte < 4; ++byte) value = value << 8 | static_cast<uint8_t>((*content)[4 * index + byte]);
    return value;
  };
  const size_t header_bytes = 4 * (2 + extents.size());
  bool as_expected = content->size() > header_bytes && number(0) == magic;
  uint64_t item_bytes = 1;
  for (size_t i = 0; i < extents.size(); ++i) {
    as_expected = as_expected && number(2 + i) == extents[i];
    item_bytes *= extents[i];
  }
  if (!as_expected) return absl::DataLossError(absl::StrCat(path, " is not an IDX file of ", items));
  if (content->size() - header_bytes != number(1) * item_bytes) {
    return absl::DataLossError(absl::StrCat(path, " has ", content->size() - header_bytes, " bytes for its ", number(1),
                                            " ", items, "; they take ", number(1) * item_bytes));
  }
  return std::vector<uint8_t>(content->begin() + header_bytes, content->end());
}

// Reads the files <folder>/<part>-images-idx3-ubyte and <part>-labels-idx1-ubyte; part is "train" or "t10k".
//   ERRORS  NOT_FOUND, DATA_LOSS  a file is missing, or not what it should be; the message names it
inline absl::StatusOr<Dataset> LoadDataset(const std::string& folder, const std::string& part) {
  const std::string prefix = absl::StrCat(folder, "/", part);
  absl::StatusOr<std::vector<uint8_t>> pixels =
      ReadIdx(prefix + "-images-idx3-ubyte", 0x803, "images of 28 x 28 pixels", {28, 28});
  if (!pixels.ok()) return pixels.status();
  absl::StatusOr<std::vector<uint8_t>> labels = ReadIdx(prefix + "-labels-idx1-ubyte", 0x801, "labels", {});
  if (!labels.ok()) return labels.status();
  if (pixels->size() != labels->size() * kPixels) {
    return absl::DataLossError(
        absl::StrCat(prefix, "-*: ", pixels->size() / kPixels, " images, but ", labels->size(), " labels"));
  }
  const uint8_t largest = *std::max_element(labels->begin(), labels->end());
  if (largest >= kClasses) return absl::DataLossError(absl::StrCat(prefix, "-labels-*: there is a label ", largest));
  return Dataset{*std::move(pixels), *std::move(labels)};
}

// A permutation of 0..count-1, another one each epoch, the same on all ranks, whatever their number: so N processes with
// batches of B/N see together what one process with batches of B sees.
inline std::vector<uint32_t> SampleOrder(size_t count, uint64_t seed, uint64_t epoch) {
  std::seed_seq mixed = {seed, seed >> 32, epoch};  // of each the lower 32 bits
  std::mt19937_64 random(mixed);
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  // Fisher and Yates by hand: std::shuffle differs between standard libraries.
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_DATA_H_
