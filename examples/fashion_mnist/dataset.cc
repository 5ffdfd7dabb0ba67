#include "examples/fashion_mnist/dataset.h"

#include <errno.h>
#include <string.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fashion_mnist {
namespace {

constexpr uint32_t kImagesMagic = 0x00000803;
constexpr uint32_t kLabelsMagic = 0x00000801;
// Above any set of this family; keeps a damaged header from asking for all memory.
constexpr uint64_t kPixelBytesMax = uint64_t{1} << 30;
constexpr uint32_t kSideMax = 4096;

// Of the pixels of the 60,000 training images, after scaling to 0..1.
constexpr float kPixelMean = 0.2860f;
constexpr float kPixelDeviation = 0.3530f;

struct CloseGzip {
  void operator()(gzFile file) const { gzclose(file); }
};

// One IDX file. zlib reads plain files through the same calls.
class IdxFile {
 public:
  static absl::StatusOr<IdxFile> Open(const std::string& folder, const std::string& name) {
    const std::string plain = absl::StrCat(folder, "/", name);
    for (const std::string& path : {absl::StrCat(plain, ".gz"), plain}) {
      errno = 0;
      gzFile file = gzopen(path.c_str(), "rb");
      if (file != nullptr) return IdxFile(path, file);
      if (errno != ENOENT) {
        return absl::PermissionDeniedError(absl::StrCat("open ", path, ": ", strerror(errno)));
      }
    }
    return absl::NotFoundError(
        absl::StrCat("neither ", plain, ".gz nor ", plain,
                     " exists; install the package dataset-fashion-mnist or name another folder with --data"));
  }

  const std::string& path() const { return path_; }

  absl::Status Wrong(absl::string_view what) const { return absl::DataLossError(absl::StrCat(path_, ": ", what)); }

  // Exactly `bytes`; `of_what` says in an error what ended too early.
  absl::Status Read(void* data, size_t bytes, absl::string_view of_what) {
    size_t done = 0;
    while (done < bytes) {
      const unsigned piece = std::min<size_t>(bytes - done, 1u << 24);
      const int received = gzread(file_.get(), static_cast<char*>(data) + done, piece);
      int error = Z_OK;
      const char* message = gzerror(file_.get(), &error);
      if (received < 0 || (received == 0 && error != Z_OK)) return ReadError(error, message);
      if (received == 0) {
        return Wrong(absl::StrCat("ends after ", done, " of the ", bytes, " bytes of its ", of_what));
      }
      done += received;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> ReadU32(absl::string_view of_what) {
    std::array<uint8_t, 4> bytes;
    const absl::Status read = Read(bytes.data(), bytes.size(), of_what);
    if (!read.ok()) return read;
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
  }

  absl::Status CheckMagic(uint32_t expected, absl::string_view kind) {
    const absl::StatusOr<uint32_t> magic = ReadU32("header");
    if (!magic.ok()) return magic.status();
    if (*magic == expected) return absl::OkStatus();
    return Wrong(
        absl::StrFormat("is not an IDX file of %s: it begins with 0x%08x instead of 0x%08x", kind, *magic, expected));
  }

  // Also reads past the last byte, which is when zlib compares the checksum.
  absl::Status CheckEnd() {
    char extra;
    const int received = gzread(file_.get(), &extra, 1);
    int error = Z_OK;
    const char* message = gzerror(file_.get(), &error);
    if (received > 0) return Wrong("goes on after the last item that its header announces");
    if (received < 0 || error != Z_OK) return ReadError(error, message);
    return absl::OkStatus();
  }

 private:
  IdxFile(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}

  absl::Status ReadError(int error, const char* message) const {
    if (error == Z_BUF_ERROR) return Wrong("the compressed file is cut off");
    return Wrong(absl::StrCat("cannot be read: ", error == Z_ERRNO ? strerror(errno) : message));
  }

  std::string path_;
  std::unique_ptr<gzFile_s, CloseGzip> file_;
};

absl::Status ReadImages(IdxFile& file, Dataset* dataset) {
  absl::Status status = file.CheckMagic(kImagesMagic, "images");
  if (!status.ok()) return status;
  std::array<uint32_t, 3> extents;
  for (uint32_t& extent : extents) {
    const absl::StatusOr<uint32_t> number = file.ReadU32("header");
    if (!number.ok()) return number.status();
    extent = *number;
  }
  const auto [count, rows, columns] = extents;
  const std::string announced = absl::StrCat(count, " images of ", rows, " x ", columns, " pixels");
  if (count == 0 || rows == 0 || columns == 0) return file.Wrong(absl::StrCat("announces ", announced));
  if (rows > kSideMax || columns > kSideMax || uint64_t{count} * rows * columns > kPixelBytesMax) {
    return file.Wrong(
        absl::StrCat("announces ", announced, ", more than ", kPixelBytesMax, " bytes or ", kSideMax, " to a side"));
  }
  dataset->count = count;
  dataset->rows = rows;
  dataset->columns = columns;
  dataset->pixels.resize(size_t{count} * rows * columns);
  status = file.Read(dataset->pixels.data(), dataset->pixels.size(), announced);
  if (!status.ok()) return status;
  return file.CheckEnd();
}

// Expects as many labels as dataset->count.
absl::Status ReadLabels(IdxFile& file, Dataset* dataset) {
  absl::Status status = file.CheckMagic(kLabelsMagic, "labels");
  if (!status.ok()) return status;
  const absl::StatusOr<uint32_t> count = file.ReadU32("header");
  if (!count.ok()) return count.status();
  if (*count != dataset->count) {
    return file.Wrong(absl::StrCat("announces ", *count, " labels for ", dataset->count, " images"));
  }
  dataset->labels.resize(*count);
  status = file.Read(dataset->labels.data(), *count, absl::StrCat(*count, " labels"));
  if (!status.ok()) return status;
  for (size_t i = 0; i < dataset->labels.size(); ++i) {
    if (dataset->labels[i] < kClasses) continue;
    return file.Wrong(absl::StrCat("label ", i, " is ", int{dataset->labels[i]}, "; labels are 0 to ", kClasses - 1));
  }
  return file.CheckEnd();
}

}  // namespace

absl::StatusOr<Dataset> LoadDataset(const std::string& folder, absl::string_view part) {
  absl::StatusOr<IdxFile> images = IdxFile::Open(folder, absl::StrCat(part, "-images-idx3-ubyte"));
  if (!images.ok()) return images.status();
  absl::StatusOr<IdxFile> labels = IdxFile::Open(folder, absl::StrCat(part, "-labels-idx1-ubyte"));
  if (!labels.ok()) return labels.status();

  Dataset dataset;
  absl::Status status = ReadImages(*images, &dataset);
  if (!status.ok()) return status;
  status = ReadLabels(*labels, &dataset);
  if (!status.ok()) return status;
  return dataset;
}

void NormalizeImage(const Dataset& dataset, size_t index, float* output) {
  const size_t pixels = dataset.pixels_per_image();
  const uint8_t* image = dataset.pixels.data() + index * pixels;
  constexpr float kScale = 1.0f / (255.0f * kPixelDeviation);
  constexpr float kShift = -kPixelMean / kPixelDeviation;
  for (size_t i = 0; i < pixels; ++i) output[i] = image[i] * kScale + kShift;
}

}  // namespace fashion_mnist
