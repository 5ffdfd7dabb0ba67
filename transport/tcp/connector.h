// Connector: one outgoing connection, from the first attempt to the peer's answer.
//
//   state      waits for                       goes on to
//   pausing    the end of the pause            connecting
//   connecting the connection                  answering, its hello sent; pausing when refused or unreachable, or failed
//                                              when the peer could be reached before: its listener has gone with it
//   answering  the peer's answer               connected; failed when turned away; pausing when the connection closes
//   connected  -
//   failed     -
//
// Attempts end `connect_timeout` after the first. A peer that is connected but has not answered is not late: it answers
// when it next drives its transport, and until then the message stays with its sender like any that nobody receives.

#ifndef TRANSPORT_TCP_CONNECTOR_H_
#define TRANSPORT_TCP_CONNECTOR_H_

#include <chrono>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "transport/socket.h"
#include "transport/tcp/handshake.h"

namespace lockstep {

// Externally synchronised. Never waits.
class Connector {
 public:
  enum class State { kPausing, kConnecting, kAnswering, kConnected, kFailed };

  struct Options {
    SocketAddress address;
    Hello hello;
    std::chrono::milliseconds connect_timeout{10000};
    std::string congestion_control;  // empty: the system's default
    // Each socket is added to this epoll instance, edge-triggered for everything, with `event_data`.
    int events = -1;
    void* event_data = nullptr;
  };

  explicit Connector(Options options);

  // Goes on as far as it can: after an event, and at next_deadline().
  void Advance();

  State state() const { return state_; }
  const absl::Status& status() const { return status_; }  // of kFailed
  Deadline next_deadline() const;
  UniqueFd TakeSocket();  // of kConnected

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
  const Deadline deadline_;  // of the last attempt to connect

  State state_ = State::kPausing;
  Deadline resume_ = Deadline::Now();  // end of the pause
  std::chrono::milliseconds pause_;
  int attempts_ = 0;
  bool reached_ = false;  // a connection was made, if not answered
  UniqueFd socket_;
  unsigned char answer_[kAnswerBytes];
  size_t answer_bytes_ = 0;
  absl::Status status_;
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_CONNECTOR_H_
