// Endpoints of real providers that end while a long message is under way, which is what a peer that is stopped or cut off
// leaves behind; and the guard of calls that do not return.

#include "transport/ofi/endpoint.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/gate.h"
#include "tests/transport_testing.h"
#include "transport/ofi/call_guard.h"
#include "transport/ofi/ofi_testing.h"
#include "transport/ofi/provider.h"

namespace lockstep {
namespace {

// More than sockets hold.
constexpr size_t kLong = 64 << 20;
constexpr uint64_t kTag = 7;

class EndpointTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const absl::StatusOr<const OfiApi*> api = Ofi();
    if (absl::IsUnavailable(api.status())) GTEST_SKIP() << api.status();
    ASSERT_THAT(api, IsOk());
    api_ = *api;
    for (std::unique_ptr<OfiEndpoint>* const endpoint : {&sender_, &receiver_}) {
      OfiRequest request;
      request.provider = GetParam();
      request.address = OfiTestAddress();
      absl::StatusOr<OfiProvider> provider = FindProvider(*api_, request);
      if (absl::IsUnavailable(provider.status()) || absl::IsNotFound(provider.status())) {
        GTEST_SKIP() << provider.status();
      }
      ASSERT_THAT(provider, IsOk());
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(*endpoint, OfiEndpoint::Create(api_, std::move(provider->info)));
    }
  }

  struct Message : OfiPost {
    Message(Kind way, std::vector<char>* memory) {
      complete = [](OfiPost* post, const OfiCompletion& completion) {
        static_cast<Message*>(post)->ended = completion.status;
      };
      kind = way;
      buffer = memory->data();
      bytes = memory->size();
      tag = kTag;
    }
    absl::optional<absl::Status> ended;
  };

  // Leaves the message under way, and its first bytes there.
  void BeginToReceive() {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const int peer, sender_->AddPeer(receiver_->address()));
    send_.peer = peer;
    receiver_->Post(&receive_);
    sender_->Post(&send_);
    const Deadline deadline = TestDeadline();
    while (to_.front() == 0) {
      ASSERT_FALSE(deadline.passed());
      sender_->Poll();
      receiver_->Poll();
    }
    ASSERT_FALSE(receive_.ended.has_value()) << "the message is there already";
  }

  const OfiApi* api_ = nullptr;
  std::vector<char> from_ = std::vector<char>(kLong, 1), to_ = std::vector<char>(kLong, 0);
  Message send_{OfiPost::Kind::kSend, &from_}, receive_{OfiPost::Kind::kReceive, &to_};
  // Last, to go first: what is posted stays in place.
  std::unique_ptr<OfiEndpoint> sender_, receiver_;
};

TEST_P(EndpointTest, EndsWhileALongMessageArrives) {
  BeginToReceive();
  if (HasFatalFailure()) return;
  receiver_->Shutdown();
  const std::vector<char> then = to_;
  for (int i = 0; i < 1000; ++i) sender_->Poll();
  EXPECT_TRUE(to_ == then) << "memory was written after the end";
  receiver_.reset();
  EXPECT_TRUE(to_ == then) << "memory was written after the end";
  EXPECT_FALSE(receive_.ended.has_value());
}

TEST_P(EndpointTest, EndsWhileALongMessageIsSent) {
  BeginToReceive();
  if (HasFatalFailure()) return;
  sender_->Shutdown();
  sender_.reset();
  const Deadline deadline = TestDeadline();
  while (!receive_.ended.has_value() && !deadline.passed()) receiver_->Poll();
  ASSERT_TRUE(receive_.ended.has_value());
  EXPECT_FALSE(receive_.ended->ok());
  receiver_->Shutdown();
}

INSTANTIATE_TEST_SUITE_P(Providers, EndpointTest, testing::Values("tcp", "tcp;ofi_rxm", "net;ofi_rxm"));

constexpr std::chrono::milliseconds kTick{1};

TEST(OfiCallGuard, TellsOfACallThatDoesNotReturn) {
  Gate stuck;
  OfiCallGuard guard("shm", {kTick, [&stuck] { stuck.Open(); }});
  { const OfiCallGuard::Call returns(&guard); }
  const OfiCallGuard::Call call(&guard);
  EXPECT_THAT(stuck.Await(TestDeadline()), IsOk());
}

TEST(OfiCallGuard, SaysNothingBetweenCalls) {
  bool told = false;
  {
    OfiCallGuard guard("shm", {kTick, [&told] { told = true; }});
    { const OfiCallGuard::Call returns(&guard); }
    // As long as the guard of a call that does not return takes.
    Gate stuck;
    OfiCallGuard other("shm", {3 * kTick, [&stuck] { stuck.Open(); }});
    const OfiCallGuard::Call call(&other);
    EXPECT_THAT(stuck.Await(TestDeadline()), IsOk());
  }
  EXPECT_FALSE(told);
}

TEST(OfiCallGuardDeathTest, EndsTheProcessAndSaysWhy) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        OfiCallGuard guard("shm", {kTick, nullptr});
        const OfiCallGuard::Call call(&guard);
        Gate never;
        (void)never.Await(TestDeadline());
      },
      "provider shm has not returned from a call");
}

}  // namespace
}  // namespace lockstep
