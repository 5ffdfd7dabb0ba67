// Runs the program as a user would, on the first of the real images, and compares what it prints. Beside that, what its
// promises rest on: derivatives, the order of a backward pass, damaged data.

#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/fashion_mnist/data.h"
#include "examples/fashion_mnist/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

using ::absl::StrCat;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kData[] = "/usr/share/datasets/fashion-mnist";

std::string Read(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

void Write(const std::string& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }

// The numbers, big-endian, and the first bytes.
std::string Idx(const std::vector<uint32_t>& header, const std::vector<uint8_t>& bytes, size_t count) {
  std::string file;
  for (const uint32_t number : header) {
    for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<char>(number >> shift));
  }
  return file.append(bytes.begin(), bytes.begin() + count);
}

std::string NewFolder() {
  std::string folder = testing::TempDir() + "/train_test.XXXXXX";
  return mkdtemp(&folder[0]);
}

// So few images that reading them does not take longer than the rest: 50 steps of 256, and 500 to test.
std::string SmallData() {
  const std::string folder = NewFolder();
  for (const auto& [part, count] : {std::pair("train", 12800u), std::pair("t10k", 500u)}) {
    const Dataset all = LoadDataset(kData, part).value();
    Write(StrCat(folder, "/", part, "-images-idx3-ubyte"), Idx({0x803, count, 28, 28}, all.pixels, count * kPixels));
    Write(StrCat(folder, "/", part, "-labels-idx1-ubyte"), Idx({0x801, count}, all.labels, count));
  }
  return folder;
}

struct Outcome {
  int exit_status = -1;
  std::string out, err;
  std::vector<double> losses;  // of each step
  std::string hash;            // of the parameters at the end
};

Outcome RunTrain(const std::string& flags) {
  static const std::string& data = *new std::string(SmallData());
  const std::string out = data + "/out", err = data + "/err";
  const int status =
      system(StrCat("examples/fashion_mnist/train --data=", data, " ", flags, " >", out, " 2>", err).c_str());
  Outcome outcome = {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Read(out), Read(err), {}, ""};
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    double loss = 0;
    if (std::sscanf(line.c_str(), "step %*d loss %lf", &loss) == 1) outcome.losses.push_back(loss);
    const size_t hash = line.find("hash ");
    if (hash != std::string::npos) outcome.hash = line.substr(hash + 5);
  }
  return outcome;
}

// Ten steps of what would be five epochs, of two processes unless the flags say otherwise.
constexpr size_t kSteps = 10;
const Outcome& Train(const std::string& flags) {
  static std::map<std::string, Outcome>& outcomes = *new std::map<std::string, Outcome>;
  const auto [entry, added] = outcomes.try_emplace(flags);
  Outcome& outcome = entry->second;
  if (added) outcome = RunTrain(StrCat("--log-every=1 --steps=", kSteps, " ", flags));
  EXPECT_EQ(outcome.exit_status, 0) << flags << "\n" << outcome.out << outcome.err;
  return outcome;
}

void ExpectSame(const std::string& flags, const std::string& expected) {
  EXPECT_EQ(Train(flags).losses, Train(expected).losses) << flags;
  EXPECT_EQ(Train(flags).hash, Train(expected).hash) << flags;
}

void ExpectNear(const std::string& flags, const std::string& expected, double relative) {
  const std::vector<double>&losses = Train(flags).losses, &others = Train(expected).losses;
  ASSERT_EQ(losses.size(), others.size()) << flags;
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], others[i], relative * others[i]) << flags << ", step " << i + 1;
  }
}

// Several processes with a part of the batch each do what one process with the whole batch does. Every rank starts from
// other parameters, so this needs the broadcast as well as the averages.
TEST(Train, SeveralProcessesFollowOne) {
  const std::vector<double>& losses = Train("--nproc=1 --steps=50").losses;
  ASSERT_EQ(losses.size(), 50);
  EXPECT_LT(losses.back(), 0.6 * losses.front()) << "it learns";
  ExpectNear("--nproc=2 --steps=50", "--nproc=1 --steps=50", 1e-4);
  ExpectNear("--nproc=4 --steps=50", "--nproc=1 --steps=50", 1e-4);
}

TEST(Train, WaysToSendAndToStepDoNotChangeABit) {
  ASSERT_EQ(Train("").losses.size(), kSteps);
  ASSERT_EQ(Train("").hash.size(), 16);
  for (const char* flags : {"--no-overlap", "--bucket-mb=0.001", "--hook=all_reduce", "--hook=callback",
                            "--transport=tcp", "--transport=shm", "--optimizer-in-backward --bucket-mb=0.001"}) {
    ExpectSame(flags, "");
  }
}

TEST(Train, OptimizerInBackwardTakesTheSameSteps) {
  for (const char* flags : {"--accumulate=2", "--mixed-precision", "--find-unused", "--static-graph",
                            "--find-unused --mixed-precision --accumulate=2 --hook=callback"}) {
    ExpectSame(StrCat(flags, " --optimizer-in-backward"), flags);
  }
}

TEST(Train, SixteenBitsRound) {
  for (const char* flags : {"--hook=fp16_compress", "--hook=bf16_compress", "--mixed-precision"}) {
    ExpectNear(flags, "", flags == std::string("--mixed-precision") ? 3e-2 : 1e-2);
    EXPECT_NE(Train(flags).hash, Train("").hash) << flags;
  }
}

TEST(Train, TheCallbackAveragesPartsOfAnySize) {
  ExpectNear("--nproc=3 --batch=255 --hook=callback", "--nproc=3 --batch=255", 1e-4);
  ExpectNear("--mixed-precision --hook=callback", "--mixed-precision", 1e-4);
}

TEST(Train, MicroBatchesAddUpToTheBatch) {
  ExpectNear("--accumulate=4", "", 1e-4);
  ExpectNear("--accumulate=4 --sync-strategy=multi_auto_sync", "", 1e-4);
  ExpectSame("--accumulate=4 --sync-strategy=forced_sync", "--accumulate=4");
}

// Layers are left out by each rank on its own: some gradients come from one rank only, and some from none. An average of
// a micro-batch is a gradient like another for the next, also where this rank had none.
TEST(Train, UnusedParametersAreAveragedOverThoseThatUseThem) {
  const Outcome unused = Train("--find-unused");
  EXPECT_NE(unused.hash, Train("").hash);
  EXPECT_LT(unused.losses.back(), unused.losses.front());
  const std::string forced = "--find-unused --accumulate=4 --sync-strategy=forced_sync";
  ExpectSame("--find-unused --accumulate=4", forced);
  ExpectNear("--find-unused --accumulate=4 --sync-strategy=multi_auto_sync", forced, 1e-4);
}

TEST(Train, SharedWeightsFormAStaticGraph) {
  const Outcome shared = Train("--static-graph");
  EXPECT_NE(shared.hash, Train("").hash) << "another model";
  EXPECT_LT(shared.losses.back(), shared.losses.front());
  ExpectNear("--static-graph --nproc=1", "--static-graph", 1e-4);
  ExpectNear("--static-graph --accumulate=4", "--static-graph", 1e-4);
  ExpectSame("--static-graph --bucket-mb=0.001", "--static-graph");
}

TEST(Train, ReplicasThatDifferEndTheRun) {
  const Outcome outcome = RunTrain("--hook=noop --steps=2");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("replicas differ in "));
}

TEST(Train, PrintsItsFiguresAfterEachEpoch) {
  const Outcome outcome = RunTrain("--epochs=2 --batch=6400");
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_EQ(outcome.err, "");
  const std::string epoch =
      "/2  training loss [0-9.]+  test accuracy [0-9.]+ %  [0-9]+ images/s\n"
      "  communication per step, in [4-9] buckets: hidden [0-9.]+ ms, exposed [0-9.]+ ms;  "
      "parameters' hash [0-9a-f]{16}\n";
  EXPECT_THAT(outcome.out, ContainsRegex(StrCat("^epoch 1", epoch, "epoch 2", epoch,
                                                "the replicas of all [0-9] ranks are equal\n$")));
}

TEST(Train, RefusesWhatItCannotDoAndSaysWhy) {
  for (const auto& [flags, reason] : std::vector<std::pair<std::string, std::string>>{
           {"--find-unused --static-graph",
            "--find-unused .*, and with --static-graph all steps are alike; see --help"},
           {"--mixed-precision --hook=fp16_compress", "--mixed-precision .* nothing left for --hook=fp16_compress"},
           {"--mixed-precision --hook=bf16_compress", "--mixed-precision .* nothing left for --hook=bf16_compress"},
           {"--optimizer-in-backward --no-overlap", "--optimizer-in-backward needs .* --no-overlap has none"},
           {"--optimizer-in-backward --sync-strategy=forced_sync", "needs .* --sync-strategy=forced_sync has none"},
           {"--optimizer-in-backward --sync-strategy=multi_auto_sync --accumulate=2", "once for each micro-batch"},
           {"--nproc=3", "a batch of 256 images cannot be divided equally among 3 processes"},
           {"--accumulate=3", "128 images of a batch cannot be cut into 3 equal micro-batches"},
           {"--batch=12802", "12802, more than the 12800 training images"},
           {"--nproc=0", "--nproc is 0; it takes 1 or more"},
           {"--bucket-mb=nan", "--bucket-mb is nan; it takes MiB"},
           {"--hook=fp16", "--hook is 'fp16'; it takes none, all_reduce, fp16_compress"},
           {"--sync-strategy=never", "--sync-strategy is 'never'; it takes single_auto_sync"},
           {"more", "'more' is no flag"}}) {
    const Outcome outcome = RunTrain(flags);
    EXPECT_EQ(outcome.exit_status, 2) << flags;
    EXPECT_THAT(outcome.err, ContainsRegex(reason)) << flags;
  }
  // Abseil's own.
  for (const auto& [flags, name] :
       {std::pair("--nproc=two", "nproc"), std::pair("--seed=-1", "seed"), std::pair("--verbose", "verbose")}) {
    const Outcome outcome = RunTrain(flags);
    EXPECT_NE(outcome.exit_status, 0) << flags;
    EXPECT_THAT(outcome.err, HasSubstr(name));
  }
  EXPECT_THAT(RunTrain("--help").out, ContainsRegex("--find_unused .*--sync_strategy .*single_auto_sync"));
}

TEST(Train, SaysWhichFileItCannotRead) {
  for (const char* nproc : {"1", "2"}) {
    const Outcome outcome = RunTrain(StrCat("--data=/no/such --nproc=", nproc));
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_THAT(outcome.err, ContainsRegex("train: open /no/such/train-images-idx3-ubyte: No such file.* --data"));
  }
}

TEST(Data, DamagedFilesAreRefusedByName) {
  const Dataset all = LoadDataset(kData, "t10k").value();
  ASSERT_EQ(all.count(), 10000);
  const std::string folder = NewFolder();
  const std::string images = folder + "/part-images-idx3-ubyte", labels = folder + "/part-labels-idx1-ubyte";
  const std::string good_images = Idx({0x803, 2, 28, 28}, all.pixels, 2 * kPixels);
  const std::string good_labels = Idx({0x801, 2}, all.labels, 2);
  const auto error_with = [&](const std::string& images_file, const std::string& labels_file) {
    Write(images, images_file);
    Write(labels, labels_file);
    return std::string(LoadDataset(folder, "part").status().message());
  };
  EXPECT_EQ(error_with(good_images, good_labels), "");
  for (size_t length = 0; length < good_images.size(); length += 1 + length / 20) {
    EXPECT_THAT(error_with(good_images.substr(0, length), good_labels), HasSubstr(images)) << length;
  }
  for (size_t length = 0; length < good_labels.size(); ++length) {
    EXPECT_THAT(error_with(good_images, good_labels.substr(0, length)), HasSubstr(labels)) << length;
  }
  EXPECT_THAT(error_with(good_images + "x", good_labels), HasSubstr(images + " has 1569 bytes for its 2 images"));
  EXPECT_THAT(error_with(good_labels, good_labels),
              HasSubstr(images + " is not an IDX file of images of 28 x 28 pixels"));
  EXPECT_THAT(error_with(Idx({0x803, 0xffffffff, 28, 28}, all.pixels, 1), good_labels),
              HasSubstr("they take 3367254359280"));
  EXPECT_THAT(error_with(good_images, Idx({0x801, 3}, all.labels, 3)), HasSubstr("2 images, but 3 labels"));
  EXPECT_THAT(error_with(good_images, Idx({0x801, 2}, {1, 10}, 2)), HasSubstr("there is a label 10"));

  // Beside the plain file the packed one is read.
  const std::string packed = Read(StrCat(kData, "/t10k-labels-idx1-ubyte.gz"));
  for (size_t length = 2; length < packed.size(); length += packed.size() / 10) {
    Write(labels + ".gz", packed.substr(0, length));
    EXPECT_THAT(error_with(good_images, good_labels), HasSubstr(labels + ".gz: unexpected end of file"));
  }
  std::string damaged = packed;
  damaged[damaged.size() - 6] ^= 1;  // in the checksum
  Write(labels + ".gz", damaged);
  EXPECT_THAT(error_with(good_images, good_labels), HasSubstr(labels + ".gz: incorrect data check"));
}

// Nine examples of six numbers.
struct Examples {
  Examples() {
    std::mt19937 random(7);
    for (int i = 0; i < 9 * 6; ++i) inputs.push_back(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
    for (int i = 0; i < 9; ++i) labels.push_back(static_cast<uint8_t>(random() % 4));
  }
  std::vector<float> inputs;
  std::vector<uint8_t> labels;
};

// Compares each derivative with a central difference. The step is a compromise: a wider one misses the curvature, a
// narrower one drowns in the rounding of float. A wrong formula misses by far more than the bound.
TEST(Model, GradientsAreDerivativesOfTheLoss) {
  const Examples examples;
  for (const auto& [shared, weight, skipped] :
       {std::tuple(false, 1.0f, -1), std::tuple(false, 0.25f, -1), std::tuple(false, 1.0f, 1),
        std::tuple(false, 1.0f, 3), std::tuple(true, 1.0f, -1)}) {
    Model model({6, 8, 3, 4, shared}, 3);
    const auto loss = [&, weight = weight, skipped = skipped] {
      return weight * model.Forward(examples.inputs.data(), examples.labels.data(), 9, weight, skipped);
    };
    loss();
    model.Backward([](size_t) {});
    constexpr float kStep = 3e-4f;
    for (Parameter& parameter : model.parameters()) {
      for (size_t i = 0; i < parameter.value.size(); ++i) {
        const float value = parameter.value[i];
        parameter.value[i] = value + kStep;
        const double above = loss();
        parameter.value[i] = value - kStep;
        const double below = loss();
        parameter.value[i] = value;
        EXPECT_NEAR(parameter.has_gradient ? parameter.gradient[i] : 0, (above - below) / (2 * kStep), 2e-3)
            << parameter.name << "[" << i << "], skipped layer " << skipped;
      }
    }
  }
}

// What overlap and an optimizer in the backward pass rest on. When a parameter is reported for the last time its gradient
// is final, and what becomes of its value does not matter to the gradients that follow.
TEST(Model, HasNoMoreUseForWhatItHasReported) {
  const Examples examples;
  for (const bool shared : {false, true}) {
    Model model({6, 8, 3, 4, shared}, 3);
    std::vector<size_t> order;
    model.Forward(examples.inputs.data(), examples.labels.data(), 9);
    model.Backward([&order](size_t index) { order.push_back(index); });
    EXPECT_THAT(order, shared ? ElementsAre(5, 4, 3, 2, 3, 2, 3, 2, 1, 0) : ElementsAre(9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    std::vector<std::vector<float>> expected;
    for (const Parameter& parameter : model.parameters()) expected.push_back(parameter.gradient);

    model.ClearGradients();
    model.Forward(examples.inputs.data(), examples.labels.data(), 9);
    size_t reports = 0;
    model.Backward([&](size_t index) {
      if (std::count(order.begin() + ++reports, order.end(), index) > 0) return;
      EXPECT_EQ(model.parameters()[index].gradient, expected[index]);
      for (float& value : model.parameters()[index].value) value = std::numeric_limits<float>::quiet_NaN();
    });
    for (size_t p = 0; p < expected.size(); ++p) EXPECT_EQ(model.parameters()[p].gradient, expected[p]);
  }
}

// Steps of less than half of bf16's distance from 1 to the next number add up in the master copy.
TEST(Optimizer, SmallStepsAddUp) {
  Parameter weight;
  weight.value = weight.master = {1};
  weight.velocity = {0};
  const float gradient = -0x1p-9f;
  StepParameter(&weight, &gradient, 1);
  EXPECT_THAT(weight.value, ElementsAre(1));
  EXPECT_THAT(weight.master, ElementsAre(1 + 0x1p-9f));
  StepParameter(&weight, &gradient, 1);
  EXPECT_FLOAT_EQ(weight.master[0], 1 + 0x1p-9f + 1.9f * 0x1p-9f) << "momentum";
  EXPECT_THAT(weight.value, ElementsAre(1 + 0x1p-7f)) << "the nearest";
}

}  // namespace
}  // namespace fashion_mnist
