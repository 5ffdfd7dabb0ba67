// Connector: one outgoing connection, from the first attempt to the peer's answer.
//
//   state      waits for                       goes on to
//   pausing    the end of the pause            connecting
//   connecting the connection                  answering, its hello sent; pausing when unreachable; failed when refused
//   answering  the peer's answer               connected; failed when turned away; pausing when the connection closes,
//                                              or when it crossed one that the peer makes and that is to come
//   connected  -
//   failed     -
//
// All ranks listen before any rank knows the addresses. So a refusal is final: that rank has gone. Other attempts end
// `connect_timeout` after the first, or after the first that crossed another. A connected peer that has not answered is not
// late: it answers when it next drives its transport. Until then the message stays with its sender, like any message that
// nobody receives.

#ifndef TRANSPORT_TCP_CONNECTOR_H_
#define TRANSPORT_TCP_CONNECTOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "transport/net/socket.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket_tuning.h"
#include "transport/tcp/tcp_stream.h"

namespace lockstep {

// Externally synchronised. Never waits.
class Connector {
 public:
  enum class State { kPausing, kConnecting, kAnswering, kConnected, kFailed };

  struct Options {
    SocketAddress address;
    Hello hello;
    std::chrono::milliseconds connect_timeout{10000};
    SocketTuning tuning;
    // Each socket is added to this epoll instance with `event_data`: see TcpSocket.
    int events = -1;
    void* event_data = nullptr;
  };

  explicit Connector(Options options);

  // Goes on as far as it can: after an event, and at next_deadline().
  void Advance();

  State state() const { return state_; }
  const absl::Status& status() const { return status_; }  // of kFailed
  Deadline next_deadline() const;
  // Of kConnected.
  std::shared_ptr<TcpSocket> TakeSocket();
  uint32_t peer_instance() const { return peer_instance_; }

 private:
  // Each returns whether to go on with the new state at once.
  bool Start();
  bool Finish();
  bool ReadAnswer();
  // Pauses before the next attempt, or fails when there is no time for one.
  void Retry(const absl::Status& cause);
  void Fail(const absl::Status& status);

  const Options options_;
  const std::string hello_;

  State state_ = State::kPausing;
  Deadline deadline_;                  // of the last attempt to connect
  Deadline resume_ = Deadline::Now();  // end of the pause
  std::chrono::milliseconds pause_;
  int attempts_ = 0;
  bool crossed_ = false;  // the peer said once that it connects too
  std::shared_ptr<TcpSocket> socket_;
  unsigned char answer_[kAnswerBytes];
  size_t answer_bytes_ = 0;
  uint32_t peer_instance_ = 0;
  absl::Status status_;
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_CONNECTOR_H_
