#include "examples/fashion_mnist/options.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "examples/fashion_mnist/choices.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

using ::lockstep::IsOk;
using ::lockstep::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The flags are as they were when the result is there.
absl::StatusOr<Options> Parse(const std::vector<std::string>& arguments) {
  absl::FlagSaver saver;
  return ParseOptions(arguments);
}

TEST(Options, DefaultsNeedNothing) {
  const absl::StatusOr<Options> options = Parse({});
  ASSERT_THAT(options.status(), IsOk());
  EXPECT_EQ(options->nproc, 2);
  EXPECT_EQ(options->batch % options->nproc, 0);
  EXPECT_TRUE(options->overlap);
  EXPECT_EQ(options->data, "/usr/share/datasets/fashion-mnist");
  EXPECT_FALSE(options->help);
}

TEST(Options, TakesDashesUnderscoresAndNegation) {
  absl::StatusOr<Options> options =
      Parse({"--nproc", "4", "--bucket-mb=0.5", "--no-overlap", "--log-losses=/x", "--lr=1e-2",
             "--seed=18446744073709551615", "--batch", "64", "--epochs=2", "--steps=9"});
  ASSERT_THAT(options.status(), IsOk());
  EXPECT_EQ(options->nproc, 4);
  EXPECT_EQ(options->bucket_mb, 0.5);
  EXPECT_FALSE(options->overlap);
  EXPECT_EQ(options->log_losses, "/x");
  EXPECT_FLOAT_EQ(options->learning_rate, 0.01f);
  EXPECT_EQ(options->seed, 18446744073709551615u);
  EXPECT_EQ(options->batch, 64);
  EXPECT_EQ(options->epochs, 2);
  EXPECT_EQ(options->steps, 9);

  EXPECT_EQ(options->transport, "");

  options = Parse({"--bucket_mb", "2", "--nooverlap", "--data=/d", "--transport=auto"});
  ASSERT_THAT(options.status(), IsOk());
  EXPECT_EQ(options->bucket_mb, 2);
  EXPECT_FALSE(options->overlap);
  EXPECT_EQ(options->data, "/d");
  EXPECT_EQ(options->transport, "auto");
  EXPECT_TRUE(Parse({"--overlap"})->overlap);
  EXPECT_FALSE(Parse({"--overlap=false"})->overlap);
}

TEST(Options, RefusesBadValuesAndNamesTheFlag) {
  for (const char* bad : {"--nproc=0",
                          "--nproc=-1",
                          "--nproc=4097",
                          "--nproc=two",
                          "--nproc=",
                          "--epochs=0",
                          "--batch=0",
                          "--batch=1.5",
                          "--batch=99999999999",
                          "--steps=-1",
                          "--seed=-1",
                          "--lr=0",
                          "--lr=nan",
                          "--lr=inf",
                          "--bucket-mb=0",
                          "--bucket-mb=-1",
                          "--bucket-mb=nan",
                          "--bucket-mb=x",
                          "--overlap=maybe",
                          "--accumulate=0",
                          "--hook=",
                          "--hook=fp16",
                          "--sync-strategy=never"}) {
    const std::string word = bad;
    EXPECT_THAT(Parse({word}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(absl::StrCat(word.substr(0, word.find('=')), " is ")), HasSubstr("--help"))))
        << bad;
  }
}

TEST(Options, TakesWhatIsDoneWithGradientsByName) {
  absl::StatusOr<Options> options = Parse({});
  EXPECT_EQ(options->hook, Hook::kNone);
  EXPECT_EQ(options->sync_strategy, SyncStrategy::kSingleAutoSync);
  EXPECT_EQ(options->accumulate, 1);
  const std::vector<std::pair<std::string, Hook>> hooks = {{"none", Hook::kNone},
                                                           {"all_reduce", Hook::kAllReduce},
                                                           {"fp16_compress", Hook::kFp16Compress},
                                                           {"bf16_compress", Hook::kBf16Compress},
                                                           {"callback", Hook::kCallback}};
  for (const auto& [name, hook] : hooks) EXPECT_EQ(Parse({"--hook", name})->hook, hook);
  EXPECT_EQ(Parse({"--sync-strategy=single_auto_sync"})->sync_strategy, SyncStrategy::kSingleAutoSync);
  EXPECT_EQ(Parse({"--sync-strategy=multi_auto_sync"})->sync_strategy, SyncStrategy::kMultiAutoSync);
  options = Parse({"--sync_strategy=forced_sync", "--accumulate=4", "--find-unused", "--mixed-precision"});
  ASSERT_THAT(options.status(), IsOk());
  EXPECT_EQ(options->sync_strategy, SyncStrategy::kForcedSync);
  EXPECT_EQ(options->accumulate, 4);
  EXPECT_TRUE(options->find_unused && options->mixed_precision);
  options = Parse({"--static-graph", "--optimizer-in-backward", "--no-find-unused"});
  ASSERT_THAT(options.status(), IsOk());
  EXPECT_TRUE(options->static_graph && options->optimizer_in_backward && !options->find_unused);
}

// It is a hook, but not one to train with.
TEST(Options, RefusesTheHookThatAveragesNothing) {
  EXPECT_THAT(Parse({"--hook=noop"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("their parameters drift apart")));
}

TEST(Options, RefusesFlagsThatDoNotGoTogether) {
  const std::vector<std::vector<std::string>> pairs = {
      {"--find-unused", "--static-graph"},
      {"--mixed-precision", "--hook=fp16_compress"},
      {"--mixed-precision", "--hook=bf16_compress"},
      {"--optimizer-in-backward", "--no-overlap"},
      {"--optimizer-in-backward", "--sync-strategy=forced_sync"},
      {"--optimizer-in-backward", "--sync-strategy=multi_auto_sync", "--accumulate=2"}};
  for (const std::vector<std::string>& flags : pairs) {
    EXPECT_THAT(Parse(flags).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(flags[0]), HasSubstr(flags[1]))));
  }
  EXPECT_THAT(Parse({"--optimizer-in-backward", "--sync-strategy=multi_auto_sync"}).status(), IsOk());
  EXPECT_THAT(Parse({"--mixed-precision", "--hook=callback"}).status(), IsOk());
}

TEST(Options, RefusesUnknownAndIncompleteFlags) {
  for (const char* bad : {"--verbose", "--no-batch", "--noepochs", "--no-", "--", "-x", "train", "--flagfile=/x"}) {
    EXPECT_THAT(Parse({bad}).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(bad)));
  }
  EXPECT_THAT(Parse({"--no-overlap=1"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("takes no value")));
  EXPECT_THAT(Parse({"--log-losses"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--log-losses needs a value")));
}

TEST(Options, HelpListsEveryFlagWithItsDefault) {
  EXPECT_TRUE(Parse({"--batch=4", "--help"})->help);
  const std::string help = HelpText();
  for (const char* flag :
       {"--nproc", "--epochs", "--batch", "--seed", "--lr", "--bucket-mb", "--[no-]overlap", "--steps", "--data",
        "--log-losses", "--hook", "--[no-]find-unused", "--[no-]static-graph", "--accumulate", "--sync-strategy",
        "--[no-]mixed-precision", "--[no-]optimizer-in-backward"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
  EXPECT_THAT(help, HasSubstr("(default 256)"));
  EXPECT_THAT(help, HasSubstr("(default single_auto_sync)"));
}

TEST(Options, BatchMustBeDivisible) {
  EXPECT_THAT(CheckDivisible(256, 2, 1), IsOk());
  EXPECT_THAT(CheckDivisible(256, 2, 128), IsOk());
  EXPECT_THAT(CheckDivisible(256, 3, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("256"), HasSubstr("3 processes"))));
  EXPECT_THAT(CheckDivisible(256, 2, 3), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  AllOf(HasSubstr("128"), HasSubstr("3 equal micro-batches"))));
}

}  // namespace
}  // namespace fashion_mnist
