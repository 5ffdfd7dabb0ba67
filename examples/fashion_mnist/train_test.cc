// Runs the program as a user would, over loopback TCP, on the first of the real images.

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "comm/spawn.h"
#include "examples/fashion_mnist/dataset.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

using ::lockstep::IsOk;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr size_t kTrainingImages = 12800;  // 50 steps of 256
constexpr size_t kTestImages = 500;

void WriteIdx(const std::string& path, std::vector<uint32_t> header, const uint8_t* data, size_t bytes) {
  std::ofstream file(path, std::ios::binary);
  for (uint32_t number : header) {
    for (int shift = 24; shift >= 0; shift -= 8) file.put(static_cast<char>(number >> shift));
  }
  file.write(reinterpret_cast<const char*>(data), bytes);
}

// A folder with so few images that reading them does not take longer than the rest.
class SmallData : public testing::Environment {
 public:
  void SetUp() override {
    std::string folder = absl::StrCat(testing::TempDir(), "/train_test.XXXXXX");
    ASSERT_NE(mkdtemp(&folder[0]), nullptr);
    folder_ = folder;
    Write("train", kTrainingImages);
    Write("t10k", kTestImages);
  }
  void TearDown() override {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(folder_.c_str());
  }
  const std::string& folder() const { return folder_; }

 private:
  void Write(const std::string& part, uint32_t count) {
    const absl::StatusOr<Dataset> all = LoadDataset("/usr/share/datasets/fashion-mnist", part);
    ASSERT_THAT(all.status(), IsOk());
    const uint32_t rows = all->rows, columns = all->columns;
    files_.push_back(absl::StrCat(folder_, "/", part, "-images-idx3-ubyte"));
    WriteIdx(files_.back(), {0x803, count, rows, columns}, all->pixels.data(), size_t{count} * rows * columns);
    files_.push_back(absl::StrCat(folder_, "/", part, "-labels-idx1-ubyte"));
    WriteIdx(files_.back(), {0x801, count}, all->labels.data(), count);
  }

  std::string folder_;
  std::vector<std::string> files_;
};

// Owned by GoogleTest.
SmallData* const small_data = static_cast<SmallData*>(testing::AddGlobalTestEnvironment(new SmallData()));

struct Outcome {
  int exit_status = -1;
  std::string out;
  std::string err;
};

std::string ReadAll(int fd) {
  std::string text(lseek(fd, 0, SEEK_END), '\0');
  EXPECT_EQ(pread(fd, &text[0], text.size(), 0), text.size());
  return text;
}

Outcome RunTrain(const std::vector<std::string>& arguments) {
  Outcome outcome;
  const int out = memfd_create("stdout", MFD_CLOEXEC);
  const int err = memfd_create("stderr", MFD_CLOEXEC);
  lockstep::SpawnOptions spawn;
  spawn.path = "examples/fashion_mnist/train";
  spawn.arguments = {spawn.path, "--data=" + small_data->folder()};
  spawn.arguments.insert(spawn.arguments.end(), arguments.begin(), arguments.end());
  spawn.environment = lockstep::EnvironmentWith({});
  spawn.stdout_fd = out;
  spawn.stderr_fd = err;
  const absl::StatusOr<pid_t> pid = lockstep::Spawn(spawn);
  EXPECT_THAT(pid.status(), IsOk());
  int status = 0;
  if (pid.ok() && waitpid(*pid, &status, 0) == *pid && WIFEXITED(status)) outcome.exit_status = WEXITSTATUS(status);
  outcome.out = ReadAll(out);
  outcome.err = ReadAll(err);
  close(out);
  close(err);
  return outcome;
}

std::vector<double> TrainAndReadLosses(int nproc, int steps, const std::vector<std::string>& more) {
  const std::string file = absl::StrCat(testing::TempDir(), "/losses.", getpid(), ".", nproc);
  // As many steps as the default's 5 epochs of all images, or nearly: the learning rate rises as it does there.
  std::vector<std::string> arguments = {absl::StrCat("--nproc=", nproc), absl::StrCat("--steps=", steps),
                                        "--log-losses=" + file};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = RunTrain(arguments);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.out << outcome.err;
  std::vector<double> losses;
  std::ifstream stream(file);
  int step;
  double loss;
  while (stream >> step >> loss) {
    losses.push_back(loss);
    EXPECT_EQ(step, losses.size());
  }
  unlink(file.c_str());
  return losses;
}

// Several processes with a part of the batch each do what one process with the whole batch does. Every rank but the
// first starts from other parameters, so this needs the broadcast as well as the averages; the run itself compares the
// parameters' hashes.
TEST(Train, SeveralProcessesFollowOne) {
  const std::vector<double> one = TrainAndReadLosses(1, 50, {});
  ASSERT_EQ(one.size(), 50);
  EXPECT_LT(one.back(), 0.6 * one.front()) << "it learns";
  for (int nproc : {2, 4}) {
    const std::vector<double> several = TrainAndReadLosses(nproc, 50, {});
    ASSERT_EQ(several.size(), 50);
    for (size_t i = 0; i < 50; ++i) {
      EXPECT_LE(std::abs(several[i] - one[i]), 1e-4 * one[i]) << "step " << i << " with " << nproc << " processes";
    }
  }
}

TEST(Train, OverlapAndBucketSizeDoNotChangeTheLosses) {
  const std::vector<double> overlapped = TrainAndReadLosses(2, 10, {});
  ASSERT_EQ(overlapped.size(), 10);
  EXPECT_EQ(TrainAndReadLosses(2, 10, {"--no-overlap"}), overlapped);
  EXPECT_EQ(TrainAndReadLosses(2, 10, {"--bucket-mb=0.001"}), overlapped);
}

TEST(Train, EndsWithItsFiguresOnPlainLines) {
  const Outcome outcome = RunTrain({"--nproc=2", "--steps=3"});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("epoch 1/5  training loss [0-9.]+  test accuracy [0-9.]+ %  [0-9]+ images/s\n"
                                         "test accuracy           [0-9.]+ %\n"
                                         "images/s                [0-9]+\n"
                                         "communication per step  hidden [0-9.]+ ms, exposed [0-9.]+ ms\n"
                                         "buckets                 [4-9]\n$"));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("\r")));
  EXPECT_EQ(outcome.err, "");
}

TEST(Train, BatchThatCannotBeDividedIsWrongUsage) {
  const Outcome outcome = RunTrain({"--nproc=3", "--batch=256"});
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("a batch of 256 images cannot be divided equally among 3 processes"));
  EXPECT_EQ(RunTrain({"--nproc=zero"}).exit_status, 2);
  const Outcome large = RunTrain({"--nproc=2", "--batch=12802"});
  EXPECT_EQ(large.exit_status, 2);
  EXPECT_THAT(large.err, HasSubstr("more than the 12800 training images"));
}

TEST(Train, MissingDataIsAnErrorOfEveryKindOfRun) {
  for (const char* nproc : {"--nproc=1", "--nproc=2"}) {
    const Outcome outcome = RunTrain({nproc, "--data=/no/such/folder"});
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_THAT(outcome.err, ContainsRegex("train: rank [01]: neither /no/such/folder/train-images-idx3-ubyte.gz nor"));
  }
}

}  // namespace
}  // namespace fashion_mnist
