#include "bench/limits/pingpong.h"

#include <cstdint>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::HasSubstr;

TEST(Pingpong, TimesAreReadFromTheProgramsTable) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(
      const double microseconds,
      ParsePingpong("bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
                    "1m      20      =20      40m         0.07s    617.93    1696.93       0.00\n"));
  EXPECT_EQ(microseconds, 1696.93);
  EXPECT_THAT(ParsePingpong("bytes   #sent\n").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("told no time: bytes   #sent")));
}

TEST(Pingpong, TwoSidesMeetAndTheNextRunLastsAsLongAsItShould) {
  if (const absl::Status installed = Pingpong::Installed(); !installed.ok()) GTEST_SKIP() << installed;
  Pingpong server("tcp;ofi_rxm", "127.0.0.1");
  Pingpong client("tcp;ofi_rxm", "127.0.0.1");
  int64_t messages = 500;
  for (int round = 0; round < 2; ++round) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Pingpong::Run run, server.Plan(8));
    EXPECT_EQ(run.messages, messages);
    absl::StatusOr<double> there = absl::UnknownError("not yet");
    std::thread serving([&] { there = server.Play(run, /*serves=*/true, 8, Deadline::AfterMs(60'000)); });
    const absl::StatusOr<double> here = client.Play(run, /*serves=*/false, 8, Deadline::AfterMs(60'000));
    serving.join();
    ASSERT_THAT(here.status(), IsOk());
    ASSERT_THAT(there.status(), IsOk());
    EXPECT_GT(*here, 0);
    // There and back in 1 s.
    messages = static_cast<int64_t>(0.5 / *there);
  }
}

TEST(Pingpong, AProviderThatThereIsNotIsAnError) {
  if (const absl::Status installed = Pingpong::Installed(); !installed.ok()) GTEST_SKIP() << installed;
  Pingpong server("no-such-provider", "127.0.0.1");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Pingpong::Run run, server.Plan(8));
  EXPECT_FALSE(server.Play(run, /*serves=*/true, 8, Deadline::AfterMs(2'000)).ok());
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
