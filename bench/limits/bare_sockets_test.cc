#include "bench/limits/bare_sockets.h"

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::HasSubstr;

struct Pair {
  std::unique_ptr<BareSocket> a;
  std::unique_ptr<BareSocket> b;
};

absl::StatusOr<Pair> MakePair() {
  absl::StatusOr<BareListener> listener = BareListener::Create("");
  if (!listener.ok()) return listener.status();
  absl::StatusOr<BareSocket> connected = BareSocket::Connect(listener->port(), "");
  if (!connected.ok()) return connected.status();
  absl::StatusOr<BareSocket> accepted = listener->Accept();
  if (!accepted.ok()) return accepted.status();
  return Pair{std::make_unique<BareSocket>(*std::move(connected)), std::make_unique<BareSocket>(*std::move(accepted))};
}

std::vector<char> Bytes(size_t count, int seed) {
  std::vector<char> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 31 + seed);
  return bytes;
}

// More than the sockets' buffers hold, so that both ends must read in order to write.
TEST(BareSocket, ExchangesMoreThanTheSocketsHold) {
  absl::StatusOr<Pair> pair = MakePair();
  ASSERT_THAT(pair, IsOk());
  const size_t count = (size_t{24} << 20) + 13;
  const std::vector<char> from_a = Bytes(count, 1);
  const std::vector<char> from_b = Bytes(count, 2);
  std::vector<char> at_a(count);
  std::vector<char> at_b(count);
  absl::Status status_b;
  {
    Thread other("other", [&] { status_b = pair->b->Exchange(from_b.data(), count, at_b.data(), count); });
    EXPECT_THAT(pair->a->Exchange(from_a.data(), count, at_a.data(), count), IsOk());
  }
  EXPECT_THAT(status_b, IsOk());
  EXPECT_TRUE(at_a == from_b);
  EXPECT_TRUE(at_b == from_a);
}

TEST(BareSocket, LeavesTheNextMessageInTheSocket) {
  absl::StatusOr<Pair> pair = MakePair();
  ASSERT_THAT(pair, IsOk());
  pair->b->set_call_bytes(1 << 20);
  ASSERT_THAT(pair->a->Send("onetwo", 6), IsOk());
  char text[4] = "";
  ASSERT_THAT(pair->b->Receive(text, 3), IsOk());
  EXPECT_STREQ(text, "one");
  ASSERT_THAT(pair->b->Receive(text, 3), IsOk());
  EXPECT_STREQ(text, "two");
  EXPECT_THAT(pair->b->Receive(text, 0), IsOk());
}

TEST(BareSocket, APeerThatIsGoneIsAnError) {
  absl::StatusOr<Pair> pair = MakePair();
  ASSERT_THAT(pair, IsOk());
  pair->a.reset();
  char byte;
  EXPECT_THAT(pair->b->Receive(&byte, 1), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed")));
}

TEST(BareSocket, UsesTheCongestionControlThatItWasTold) {
  // Every kernel has reno, and lets everyone use it.
  absl::StatusOr<BareListener> listener = BareListener::Create("reno");
  ASSERT_THAT(listener, IsOk());
  absl::StatusOr<BareSocket> connected = BareSocket::Connect(listener->port(), "reno");
  ASSERT_THAT(connected, IsOk());
  absl::StatusOr<BareSocket> accepted = listener->Accept();
  ASSERT_THAT(accepted, IsOk());
  EXPECT_EQ(connected->CongestionControl(), "reno");
  EXPECT_EQ(accepted->CongestionControl(), "reno");
  EXPECT_THAT(BareListener::Create("", "nowhere"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'nowhere' is no IPv4 address")));
  EXPECT_THAT(BareSocket::Connect(1, "", "::1"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'::1' is no IPv4 address")));
  EXPECT_THAT(BareListener::Create("no-such"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such")));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
