#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/socket.h"

namespace {
std::atomic<bool> let_go{false};
}  // namespace

// In place of the C library's: a resolver that does not answer for one name until it is let go.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** result) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (std::strcmp(name, "stuck.example") == 0 && (hints->ai_flags & AI_NUMERICHOST) == 0) {
    while (!let_go) usleep(1000);
    return EAI_AGAIN;
  }
  return real(name, service, hints, result);
}

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Deadline Soon() { return Deadline::AfterMs(30'000); }

TEST(Resolve, NumericAddressesNeedNoResolver) {
  const auto v4 = Resolve("10.0.0.7", 4411, Deadline::Now());
  ASSERT_THAT(v4, IsOk());
  ASSERT_THAT(*v4, SizeIs(1));
  EXPECT_EQ(v4->front().ToString(), "10.0.0.7:4411");
  const auto v6 = Resolve("::1", 1, Deadline::Now());
  ASSERT_THAT(v6, IsOk());
  EXPECT_EQ(v6->front().ToString(), "[::1]:1");
}

TEST(Resolve, NamesOfThisHostAreFound) {
  const auto found = Resolve("localhost", 7, Soon());
  ASSERT_THAT(found, IsOk());
  EXPECT_TRUE(found->front().loopback());
  EXPECT_EQ(found->front().port(), 7);
}

TEST(Resolve, UnknownHostIsNotFoundInTheResolversWords) {
  // A name that no resolver may answer, and that is therefore not asked for: works without a network.
  EXPECT_THAT(
      Resolve("no such host", 1, Soon()),
      StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("resolve host 'no such host': "), HasSubstr("not known"))));
}

TEST(Resolve, AResolverThatDoesNotAnswerIsLeftToItself) {
  const auto late =
      StatusIs(absl::StatusCode::kDeadlineExceeded, "resolve host 'stuck.example': the resolver has not answered");
  EXPECT_THAT(Resolve("stuck.example", 1, Deadline::Now()), late);
  EXPECT_THAT(Resolve("stuck.example", 1, Deadline::AfterMs(20)), late);
  let_go = true;
  EXPECT_THAT(Resolve("stuck.example", 1, Soon()), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace lockstep
