// Worlds of TCP transports in one process, for tests; unauthenticated peers that talk to their ranks, and listeners that are
// none of their ranks.

#ifndef TRANSPORT_TCP_TCP_TESTING_H_
#define TRANSPORT_TCP_TCP_TESTING_H_

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
#include "transport/net/socket.h"
#include "transport/tcp/handshake.h"
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

// A listener of the test's, which answers one connection at a time with `bytes`.
class FakeListener {
 public:
  FakeListener() : listener_(*Listen(TestAddress())) {}
  SocketAddress address() const { return *LocalAddress(listener_.get()); }
  // Whether somebody has connected, and was answered.
  bool Serve(absl::string_view bytes) {
    if (connection_.valid()) return true;
    connection_ = *Accept(listener_.get(), nullptr);
    if (!connection_.valid()) return false;
    Say(bytes);
    return true;
  }
  void Say(absl::string_view bytes) {
    EXPECT_THAT(SendAll(connection_.get(), bytes.data(), bytes.size(), TestDeadline()), IsOk());
  }
  // Closes that connection: the next one is served.
  void Drop() { connection_.reset(); }

 private:
  UniqueFd listener_;
  UniqueFd connection_;
};

class TcpFixture : public TransportWorldTest<TcpTransport> {
 protected:
  void Create(
      int size, const std::function<void(TcpTransportOptions*)>& change = [](TcpTransportOptions*) {}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks_, CreateTcpWorld(size, change));
  }

  // Somebody's connection to a rank, which has said `bytes`.
  UniqueFd Say(int to, absl::string_view bytes) {
    absl::StatusOr<UniqueFd> socket = Connect(rank(to)->address(), TestDeadline());
    EXPECT_THAT(socket, IsOk());
    if (!socket.ok()) return UniqueFd();
    EXPECT_THAT(SendAll(socket->get(), bytes.data(), bytes.size(), TestDeadline()), IsOk());
    return *std::move(socket);
  }

  // What the ranks answer on a connection: a verdict, or why there is none. Drives them meanwhile.
  absl::StatusOr<Answer> ReadAnswer(int socket) {
    unsigned char bytes[kAnswerBytes];
    absl::Status read;
    DriveAll([&] {
      read = ReceiveAll(socket, bytes, sizeof(bytes), Deadline::Now());
      return !absl::IsDeadlineExceeded(read);
    });
    if (!read.ok()) return read;
    Answer answer;
    EXPECT_TRUE(DecodeAnswer(bytes, &answer));
    return answer;
  }

  // A hello that fits from rank 0 to rank 1.
  static Hello AHello(ChannelId channel) { return {"test", 17, Rank(0), Rank(1), channel, 1 << 20, 99, 0, 1, ""}; }
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_TCP_TESTING_H_
