#include "examples/fashion_mnist/dataset.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

using ::lockstep::IsOk;
using ::lockstep::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kImages[] = "part-images-idx3-ubyte";
constexpr char kLabels[] = "part-labels-idx1-ubyte";

std::string U32(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string Images(uint32_t count, uint32_t rows, uint32_t columns, const std::string& pixels) {
  return absl::StrCat(U32(0x803), U32(count), U32(rows), U32(columns), pixels);
}

std::string Labels(uint32_t count, const std::string& labels) { return absl::StrCat(U32(0x801), U32(count), labels); }

// What gzip would write.
std::string Compressed(const std::string& data) {
  std::string result(data.size() + 100, '\0');
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = data.size();
  stream.next_out = reinterpret_cast<Bytef*>(&result[0]);
  stream.avail_out = result.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

// Two images of 2 x 3 pixels.
const std::string& GoodImages() {
  static const std::string* images = new std::string(Images(2, 2, 3, "abcdefghijkl"));
  return *images;
}
const std::string& GoodLabels() {
  static const std::string* labels = new std::string(Labels(2, std::string("\0\x09", 2)));
  return *labels;
}

class DatasetTest : public testing::Test {
 protected:
  DatasetTest() {
    std::string folder = absl::StrCat(testing::TempDir(), "/dataset_test.XXXXXX");
    folder_ = mkdtemp(&folder[0]);
  }
  ~DatasetTest() override {
    for (const char* name : {kImages, kLabels}) {
      for (const char* suffix : {"", ".gz"}) remove(absl::StrCat(folder_, "/", name, suffix).c_str());
    }
    rmdir(folder_.c_str());
  }

  void Write(const std::string& name, const std::string& content) {
    std::ofstream(absl::StrCat(folder_, "/", name), std::ios::binary) << content;
  }
  absl::StatusOr<Dataset> Load() { return LoadDataset(folder_, "part"); }

  // Both files, of which the named one must be refused.
  void ExpectRefused(const std::string& images, const std::string& labels, const char* file, const std::string& why) {
    Write(kImages, images);
    Write(kLabels, labels);
    EXPECT_THAT(Load().status(), StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(file), HasSubstr(why))));
  }

  std::string folder_;
};

TEST_F(DatasetTest, ReadsPlainAndCompressedFiles) {
  Write(kImages, GoodImages());
  Write(absl::StrCat(kLabels, ".gz"), Compressed(GoodLabels()));
  const absl::StatusOr<Dataset> dataset = Load();
  ASSERT_THAT(dataset.status(), IsOk());
  EXPECT_EQ(dataset->count, 2);
  EXPECT_EQ(dataset->rows, 2);
  EXPECT_EQ(dataset->columns, 3);
  EXPECT_EQ(dataset->pixels_per_image(), 6);
  EXPECT_EQ(std::string(dataset->pixels.begin(), dataset->pixels.end()), "abcdefghijkl");
  EXPECT_THAT(dataset->labels, ElementsAre(0, 9));
}

TEST_F(DatasetTest, NormalizesPixelsOfTheRightImage) {
  Dataset dataset;
  dataset.count = 2;
  dataset.rows = 1;
  dataset.columns = 2;
  dataset.pixels = {1, 2, 0, 255};
  float output[2];
  NormalizeImage(dataset, 1, output);
  EXPECT_NEAR(output[0], -0.2860 / 0.3530, 1e-5);
  EXPECT_NEAR(output[1], (1 - 0.2860) / 0.3530, 1e-5);
}

TEST_F(DatasetTest, MissingFilesAreNotFoundAndTheMessageSaysWhatToDo) {
  EXPECT_THAT(Load().status(),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr(folder_), HasSubstr(kImages),
                                                          HasSubstr("dataset-fashion-mnist"), HasSubstr("--data"))));
  Write(kImages, GoodImages());
  EXPECT_THAT(Load().status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr(kLabels)));
  EXPECT_THAT(LoadDataset("/no/such/folder", "train").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/folder/train-images-idx3-ubyte")));
}

TEST_F(DatasetTest, AFolderInPlaceOfAFileIsRefused) {
  Write(kLabels, GoodLabels());
  ASSERT_EQ(mkdir(absl::StrCat(folder_, "/", kImages).c_str(), 0700), 0);
  EXPECT_THAT(Load().status(),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(kImages), HasSubstr("directory"))));
}

TEST_F(DatasetTest, WrongMagicIsRefused) {
  ExpectRefused("", GoodLabels(), kImages, "ends after 0 of the 4 bytes of its header");
  ExpectRefused("hello, world, this is text", GoodLabels(), kImages,
                "not an IDX file of images: it begins with 0x68656c6c instead of 0x00000803");
  ExpectRefused(GoodLabels(), GoodLabels(), kImages, "not an IDX file of images");
  ExpectRefused(GoodImages(), GoodImages(), kLabels, "not an IDX file of labels");
}

TEST_F(DatasetTest, FilesThatEndTooEarlyAreRefusedWhereverTheyEnd) {
  for (size_t length = 0; length < GoodImages().size(); ++length) {
    ExpectRefused(GoodImages().substr(0, length), GoodLabels(), kImages, "ends after");
  }
  ExpectRefused(GoodImages().substr(0, 20), GoodLabels(), kImages,
                "ends after 4 of the 12 bytes of its 2 images of 2 x 3 pixels");
  for (size_t length = 0; length < GoodLabels().size(); ++length) {
    ExpectRefused(GoodImages(), GoodLabels().substr(0, length), kLabels, "ends after");
  }
}

TEST_F(DatasetTest, FilesThatGoOnAreRefused) {
  ExpectRefused(GoodImages() + "x", GoodLabels(), kImages, "goes on after the last item");
  ExpectRefused(GoodImages(), GoodLabels() + "x", kLabels, "goes on after the last item");
}

TEST_F(DatasetTest, AbsurdExtentsAreRefusedBeforeAnythingIsAllocated) {
  ExpectRefused(Images(0, 2, 3, ""), GoodLabels(), kImages, "announces 0 images");
  ExpectRefused(Images(2, 0, 3, ""), GoodLabels(), kImages, "announces 2 images of 0 x 3 pixels");
  ExpectRefused(Images(2, 2, 0, ""), GoodLabels(), kImages, "announces 2 images of 2 x 0 pixels");
  ExpectRefused(Images(0xffffffff, 0xffffffff, 0xffffffff, ""), GoodLabels(), kImages, "more than");
  ExpectRefused(Images(1, 1, 4097, ""), GoodLabels(), kImages, "more than");
  ExpectRefused(Images(0xffffffff, 4096, 4096, ""), GoodLabels(), kImages, "more than");
}

TEST_F(DatasetTest, LabelsThatDoNotFitAreRefused) {
  ExpectRefused(GoodImages(), Labels(3, "\x01\x02\x03"), kLabels, "announces 3 labels for 2 images");
  ExpectRefused(GoodImages(), Labels(0xffffffff, ""), kLabels, "announces 4294967295 labels for 2 images");
  ExpectRefused(GoodImages(), Labels(2, "\x01\x0a"), kLabels, "label 1 is 10; labels are 0 to 9");
}

TEST_F(DatasetTest, DamagedCompressionIsRefused) {
  Write(kLabels, GoodLabels());
  const std::string whole = Compressed(GoodImages());
  const std::string name = absl::StrCat(kImages, ".gz");
  // From two bytes on: anything shorter is not recognised as compressed, and refused as too short.
  for (size_t length = 2; length < whole.size(); ++length) {
    Write(name, whole.substr(0, length));
    EXPECT_THAT(Load().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name))) << "cut to " << length;
  }
  // The checksum is in the last eight bytes.
  std::string damaged = whole;
  damaged[damaged.size() - 6] ^= 1;
  Write(name, damaged);
  EXPECT_THAT(Load().status(),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(name), HasSubstr("cannot be read"))));
  damaged = whole;
  damaged[12] ^= 0x55;
  Write(name, damaged);
  EXPECT_THAT(Load().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(name)));
}

}  // namespace
}  // namespace fashion_mnist
