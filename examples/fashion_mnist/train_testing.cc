#include "examples/fashion_mnist/train_testing.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

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

std::string ReadAll(int fd) {
  std::string text(lseek(fd, 0, SEEK_END), '\0');
  EXPECT_EQ(pread(fd, &text[0], text.size(), 0), text.size());
  return text;
}

}  // namespace

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

}  // namespace fashion_mnist
