// The store's server while it can take no connections, and afterwards. Method: accept and epoll_ctl fail when told to.

#include <dlfcn.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/secure/secret.h"
#include "transport/store/secret_handout.h"
#include "transport/store/store_tcp_client.h"
#include "transport/store/store_tcp_server.h"

namespace {
std::atomic<bool> accept_fails{false};
// The next EPOLL_CTL_ADD but so many fails, and with it accept's failures end; none below 0.
std::atomic<int> adds_before_failure{-1};
// Descriptors that were to be added and were there already.
std::atomic<int> added_twice{0};
}  // namespace

// In place of the C library's.
extern "C" int accept4(int socket, sockaddr* address, socklen_t* length, int flags) {
  static const auto real = reinterpret_cast<decltype(&accept4)>(dlsym(RTLD_NEXT, "accept4"));
  if (!accept_fails) return real(socket, address, length, flags);
  errno = EMFILE;
  return -1;
}

extern "C" int epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event) noexcept {
  static const auto real = reinterpret_cast<decltype(&epoll_ctl)>(dlsym(RTLD_NEXT, "epoll_ctl"));
  if (operation == EPOLL_CTL_ADD && adds_before_failure >= 0 && adds_before_failure-- == 0) {
    accept_fails = false;
    errno = ENOSPC;
    return -1;
  }
  const int result = real(epoll, operation, descriptor, event);
  if (result != 0 && errno == EEXIST) ++added_twice;
  return result;
}

namespace lockstep {
namespace {

Deadline Soon() { return Deadline::AfterMs(20'000); }

// Of a server with two addresses, each with a listener.
class StoreListenersTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const int port = LocalAddress(Listen(*SocketAddress::Parse("127.0.0.1:0"))->get())->port();
    for (const char* host : {"127.0.0.1:", "127.0.0.2:"}) {
      addresses_.push_back(*SocketAddress::Parse(absl::StrCat(host, port)));
    }
    TcpStoreServer::Options options;
    options.credentials = {SecurityLevel::kAuthenticate, Secret::Draw().value(), "the test"};
    options.hands_out_secret = true;
    options.handshake_timeout = std::chrono::milliseconds(100);  // and it looks again after a quarter of that
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(server_, TcpStoreServer::Create(addresses_, options));
    secret_ = options.credentials.secret;
    added_twice = 0;
  }

  // Whoever comes next cannot be accepted, and the listeners are put aside; one of them cannot be brought back at once.
  static void FailAtFirst() {
    accept_fails = true;
    adds_before_failure = GetParam();
  }
  static void ExpectHasFailed() {
    EXPECT_FALSE(accept_fails);
    EXPECT_EQ(added_twice, 0);
  }

  std::vector<SocketAddress> addresses_;
  std::shared_ptr<const Secret> secret_;
  std::unique_ptr<TcpStoreServer> server_;
};

TEST_P(StoreListenersTest, SecretsAreHandedOutAgainAfterListenersCouldNotBeWatched) {
  FailAtFirst();
  for (const SocketAddress& address : addresses_) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto secret, AskForSecret({address}, Soon()));
    EXPECT_EQ(secret->bytes(), secret_->bytes());
  }
  ExpectHasFailed();
}

TEST_P(StoreListenersTest, ClientsAreServedAgainAfterListenersCouldNotBeWatched) {
  FailAtFirst();
  for (const SocketAddress& address : addresses_) {
    EXPECT_THAT(TcpStoreClient::Connect({address.HostString(), address.port()},
                                        {SecurityLevel::kAuthenticate, secret_, "the test"}, Soon()),
                IsOk());
  }
  ExpectHasFailed();
}

INSTANTIATE_TEST_SUITE_P(FailingListener, StoreListenersTest, ::testing::Values(0, 1));

}  // namespace
}  // namespace lockstep
