// A socket that speaks control messages without ever blocking, through a Channel (transport/secure/channel.h). Belongs to one thread.

#ifndef TRANSPORT_CONTROL_CONTROL_CONNECTION_H_
#define TRANSPORT_CONTROL_CONTROL_CONNECTION_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/fork.h"
#include "transport/control/control_protocol.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"

namespace lockstep::control {

class Connection {
 public:
  // Encoded once, queued for as many peers as need it; each connection protects it for itself when it sends it.
  using Frame = std::shared_ptr<const std::string>;
  // Overwritten at its end: a welcome holds a secret.
  static Frame MakeFrame(const Message& message);

  // The side that listens takes one hello and nothing else before Admit.
  Connection(UniqueFd socket, Channel::Side side, const Credentials& credentials);

  int socket() const { return socket_.get(); }

  // The peer, whose hello has come, may send messages of all kinds from now on.
  void Admit() {
    admitted_ = true;
    reader_.set_limit_bytes(kRankFrameBytesMax);
  }

  // Queues a frame; Flush sends it, once the handshake is through. An empty queue takes a frame of any size.
  // RETURNS  false if the peer leaves too much unread. This frame and those queued before it are then dropped, which leaves room to
  //          say why
  bool Queue(Frame frame);

  // Queues a message and sends what the socket takes.
  void Send(const Message& message) {
    (void)Queue(MakeFrame(message));
    Flush();
  }

  // Sends what the socket takes. A failed send only ends sending; Receive reports the state of the peer's end.
  void Flush();
  bool wants_to_write() const { return sent_bytes_ < sealed_.size() || (!queue_.empty() && can_seal()); }

  enum class Input {
    kOpen,
    kClosed,     // end of file or reset; what came before it has been delivered
    kMalformed,  // not our protocol
    kRefused,    // the handshake failed, for refusal() and why()
    kTampered,   // what came is not what the peer has sent, for why()
  };
  // Appends the messages that have arrived, up to a bounded amount per call. Flush is due afterwards. After anything but kOpen
  // it returns the same again.
  // REQUIRES  *messages is empty
  Input Receive(std::vector<Message>* messages);
  Refusal refusal() const { return channel_->refusal(); }
  absl::string_view first_flight() const { return channel_->first_flight(); }
  const absl::Status& why() const { return why_; }

  // True when the last Receive saw any bytes.
  bool heard() const { return heard_; }

  // Drops what has arrived. kOpen or kClosed.
  Input Discard();

  // Sends what the socket takes at once, ends sending, and drops what has arrived.
  void FinishWriting();

  // Closes the socket.
  void Close() { socket_ = UniqueFd(); }

 private:
  // Takes bytes of the peer's, or the frames that have come whole.
  Input Open(absl::string_view arrived);
  Input Cut(std::vector<Message>* messages);
  // What to ask the socket for: unauthenticated peers are given no more than the protocol's next piece.
  size_t BytesToRead() const;
  bool can_seal() const { return channel_->ready() && input_ != Input::kTampered; }

  UniqueFd socket_;
  std::unique_ptr<Channel> channel_;
  FrameReader reader_;
  bool admitted_;
  Input input_ = Input::kOpen;
  absl::Status why_;
  std::deque<Frame> queue_;
  size_t queued_bytes_ = 0;
  size_t taken_bytes_ = 0;  // of the first in the queue: they are in sealed_, or have left
  std::string sealed_;      // on its way to the socket
  size_t sent_bytes_ = 0;   // of sealed_
  bool write_failed_ = false;
  bool heard_ = false;
};

// What is said of a peer whose connection ended so: "died: control connection closed".
const char* EndText(Connection::Input input);

}  // namespace lockstep::control

#endif  // TRANSPORT_CONTROL_CONTROL_CONNECTION_H_
