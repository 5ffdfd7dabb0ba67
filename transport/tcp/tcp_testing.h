// Worlds of TCP transports in one process, for tests; unauthenticated peers that talk to their ranks, and listeners that are
// none of their ranks.

#ifndef TRANSPORT_TCP_TCP_TESTING_H_
#define TRANSPORT_TCP_TCP_TESTING_H_

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "tests/transport_testing_credentials.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/opening.h"
#include "transport/tcp/tcp_transport.h"

namespace lockstep {

inline SocketAddress TestAddress(const std::string& text = "127.0.0.1:0") {
  const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(text);
  LOCKSTEP_CHECK(address.ok()) << address.status();
  return *address;
}

inline TcpTransportOptions TestOptions(int rank, int size) {
  TcpTransportOptions options;
  static_cast<WorldIdentity&>(options) = TestIdentity(rank, size);
  options.bind_address = TestAddress();
  return options;
}

using TcpTransports = std::vector<std::unique_ptr<TcpTransport>>;

// Ranks that know each other's addresses. `change` sees the options of each rank.
inline absl::StatusOr<TcpTransports> CreateTcpWorld(
    int size, const std::function<void(TcpTransportOptions* options)>& change = [](TcpTransportOptions*) {}) {
  TcpTransports ranks;
  std::vector<SocketAddress> addresses;
  for (int i = 0; i < size; ++i) {
    TcpTransportOptions options = TestOptions(i, size);
    change(&options);
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<TcpTransport> rank, TcpTransport::Create(std::move(options)));
    addresses.push_back(rank->address());
    ranks.push_back(std::move(rank));
  }
  for (auto& rank : ranks) LOCKSTEP_RETURN_IF_ERROR(rank->SetPeers(addresses));
  return ranks;
}

// Of this process: a connection within it has two.
inline ptrdiff_t OpenDescriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return std::distance(begin(entries), end(entries));
}

inline std::string Encoded(const Answer& answer) {
  unsigned char bytes[kAnswerBytes];
  EncodeAnswer(answer, bytes);
  return std::string(reinterpret_cast<char*>(bytes), kAnswerBytes);
}

// The test's end of a connection, which is `opening` where ranks are told the truth.
struct TestPeer {
  UniqueFd socket;
  std::unique_ptr<Opening> opening;

  int get() const { return socket.get(); }
};

// A listener of the test's, which answers one connection at a time with `bytes`: over the channel, or without one.
class FakeListener {
 public:
  explicit FakeListener(bool with_channel = true) : listener_(*Listen(TestAddress())), with_channel_(with_channel) {}
  SocketAddress address() const { return *LocalAddress(listener_.get()); }
  // Whether somebody has connected, and was answered.
  bool Serve(absl::string_view bytes) {
    if (served_) return true;
    if (!peer_.socket.valid()) {
      peer_ = {*Accept(listener_.get(), nullptr), std::make_unique<Opening>(Channel::Side::kListens, Credentials())};
      if (!peer_.socket.valid()) return false;
    }
    if (with_channel_) {
      const absl::StatusOr<bool> secured = peer_.opening->Await(peer_.get(), 0);
      EXPECT_THAT(secured, IsOk());
      if (!secured.ok() || !*secured) return false;
    }
    served_ = true;
    Say(bytes);
    return true;
  }
  void Say(absl::string_view bytes) {
    if (with_channel_) {
      EXPECT_THAT(peer_.opening->Say(peer_.get(), bytes), IsOk());
    } else {
      EXPECT_THAT(SendAll(peer_.get(), bytes.data(), bytes.size(), TestDeadline()), IsOk());
    }
  }
  // Closes that connection: the next one is served.
  void Drop() {
    peer_.socket.reset();
    served_ = false;
  }

 private:
  UniqueFd listener_;
  const bool with_channel_;
  TestPeer peer_;
  bool served_ = false;
};

class TcpFixture : public TransportWorldTest<TcpTransport> {
 protected:
  void Create(
      int size, const std::function<void(TcpTransportOptions*)>& change = [](TcpTransportOptions*) {}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks_, CreateTcpWorld(size, change));
  }

  // Somebody's connection to a rank, which has said `bytes` without a handshake.
  UniqueFd Babble(int to, absl::string_view bytes) {
    absl::StatusOr<UniqueFd> socket = Connect(rank(to)->address(), TestDeadline());
    EXPECT_THAT(socket, IsOk());
    if (!socket.ok()) return UniqueFd();
    EXPECT_THAT(SendAll(socket->get(), bytes.data(), bytes.size(), TestDeadline()), IsOk());
    return *std::move(socket);
  }

  // A connection to a rank of somebody who shakes hands as a rank does, and has said `bytes`. Drives the ranks meanwhile.
  TestPeer Say(int to, absl::string_view bytes, const Credentials& credentials = Credentials()) {
    TestPeer peer = {Babble(to, ""), std::make_unique<Opening>(Channel::Side::kConnects, credentials)};
    EXPECT_THAT(peer.opening->Start(peer.get()), IsOk());
    absl::StatusOr<bool> secured;
    DriveAll([&] {
      secured = peer.opening->Await(peer.get(), 0);
      return !secured.ok() || *secured;
    });
    EXPECT_THAT(secured, IsOk());
    if (secured.ok()) {
      EXPECT_THAT(peer.opening->Say(peer.get(), bytes), IsOk());
    }
    return peer;
  }

  // What the ranks answer on a connection: a verdict, or why there is none. Drives them meanwhile.
  absl::StatusOr<Answer> ReadAnswer(const TestPeer& peer) {
    const size_t before = peer.opening->said().size();
    absl::StatusOr<bool> read;
    DriveAll([&] {
      read = peer.opening->Await(peer.get(), before + kAnswerBytes);
      return !read.ok() || *read;
    });
    if (!read.ok()) return read.status();
    Answer answer;
    EXPECT_TRUE(DecodeAnswer(reinterpret_cast<const unsigned char*>(peer.opening->said().data()) + before, &answer));
    return answer;
  }

  // Whether the ranks close a connection. Drives them until they do.
  bool Closed(int socket) {
    return DriveAll([&] {
      char bytes[4096];
      return recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EINTR);
    });
  }

  // A hello that fits from rank 0 to rank 1.
  static Hello AHello(ChannelId channel) { return {"test", 17, Rank(0), Rank(1), channel, 1 << 20, 99, 0, 1}; }
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_TCP_TESTING_H_
