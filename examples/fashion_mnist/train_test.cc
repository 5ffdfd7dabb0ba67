#include "examples/fashion_mnist/train_testing.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

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
