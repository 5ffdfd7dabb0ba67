#include "transport/exchange/exchange.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Keeps the last value, and answers with it or with what a test has set.
class NotingExchange final : public Exchange {
 public:
  absl::Status Put(absl::string_view key, absl::string_view value, Deadline) override {
    EXPECT_NE(key, key_) << "a key is put once";
    key_ = std::string(key);
    value_ = std::string(value);
    EXPECT_LE(value.size(), kExchangeValueBytesMax);
    for (const char c : value) EXPECT_TRUE(isalnum(c) || c == '-' || c == '_' || c == '=') << value;
    return absl::OkStatus();
  }
  absl::Status Fence(Deadline) override { return fence_; }
  absl::StatusOr<std::string> Get(absl::string_view, Deadline) override { return value_; }

  std::string key_;
  std::string value_;
  absl::Status fence_;
};

absl::StatusOr<std::string> ToldToOthers(const absl::StatusOr<std::string>& text) {
  NotingExchange exchange;
  const auto own = TellAll(&exchange, Rank(0), text, Deadline::Now());
  EXPECT_EQ(own.status(), text.status());
  return TellAll(&exchange, Rank(1), std::string("not looked at"), Deadline::Now());
}

TEST(TellAll, BringsRankZerosTextToTheOthers) {
  EXPECT_THAT(ToldToOthers(std::string("tcp://[fd00::1]:4411")), IsOkAndHolds("tcp://[fd00::1]:4411"));
  EXPECT_THAT(ToldToOthers(std::string("")), IsOkAndHolds(""));
  const std::string bytes("a b;c=d\n\0\xff", 10);
  EXPECT_THAT(ToldToOthers(bytes), IsOkAndHolds(bytes));
  EXPECT_THAT(ToldToOthers(std::string(5000, 'x')), IsOkAndHolds(std::string(700, 'x')));
}

TEST(TellAll, BringsRankZerosErrorToTheOthers) {
  const auto told = ToldToOthers(absl::NotFoundError("no interface; at all"));
  EXPECT_THAT(told, StatusIs(Code::kNotFound, "rank 0: no interface; at all"));
  EXPECT_EQ(GetErrorInfo(told.status()).failed_rank, 0);
}

// And tells its length alone: what was damaged may be a secret.
TEST(TellAll, RefusesWhatIsNotOfLockstep) {
  NotingExchange exchange;
  for (const std::string value : {"", "?", "a", "Zabc", "A***", "tcp://1.2.3.4:5"}) {
    exchange.value_ = value;
    EXPECT_THAT(TellAll(&exchange, Rank(1), std::string(), Deadline::Now()),
                StatusIs(Code::kUnavailable,
                         absl::StrCat("rank 0 has put ", value.size(), " bytes that are nothing of Lockstep's")));
  }
}

TEST(TellAll, EndsWithTheFencesError) {
  NotingExchange exchange;
  exchange.fence_ = absl::DeadlineExceededError("late");
  EXPECT_THAT(TellAll(&exchange, Rank(0), std::string("x"), Deadline::Now()),
              StatusIs(Code::kDeadlineExceeded, AllOf(HasSubstr("not all ranks"), HasSubstr("late"))));
  exchange.fence_ = absl::UnavailableError("gone");
  EXPECT_THAT(TellAll(&exchange, Rank(1), std::string("x"), Deadline::Now()), StatusIs(Code::kUnavailable, "gone"));
}

// The descriptor is looked at before anything is sent over it.
TEST(OpenExchange, NeedsTheDescriptorOfPmi) {
  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const std::string& value : {std::string(), std::string("x"), std::string("-1"), std::string("99999999999"),
                                   std::string("987654"), absl::StrCat(file)}) {
    setenv("PMI_FD", value.c_str(), 1);
    EXPECT_THAT(OpenExchange(ExchangeKind::kPmi1, Deadline::AfterMs(10000)),
                StatusIs(Code::kUnavailable, HasSubstr(absl::StrCat("PMI_FD=", value, ": "))));
  }
  unsetenv("PMI_FD");
  close(file);
}

void ExitAfterLauncherWasSilent() {
  int pair[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  setenv("PMI_FD", absl::StrCat(pair[1]).c_str(), 1);
  EXPECT_THAT(OpenExchange(ExchangeKind::kPmi1, Deadline::AfterMs(50)),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("PMI-1")));
  EXPECT_THAT(OpenExchange(ExchangeKind::kPmi1, Deadline::AfterMs(50)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("an earlier call has failed: PMI-1")));
  char questions[100] = "";
  EXPECT_GT(recv(pair[0], questions, sizeof(questions) - 1, 0), 0);
  EXPECT_STREQ(questions, "cmd=get_my_kvsname\n");
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

TEST(OpenExchange, ALauncherThatDoesNotAnswerIsNotAskedAgain) {
  EXPECT_EXIT(ExitAfterLauncherWasSilent(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep
