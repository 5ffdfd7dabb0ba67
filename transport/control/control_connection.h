// A socket that speaks control messages without ever blocking. Belongs to one thread.

#ifndef TRANSPORT_CONTROL_CONTROL_CONNECTION_H_
#define TRANSPORT_CONTROL_CONTROL_CONNECTION_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "transport/control/control_protocol.h"

namespace lockstep {
namespace control {

class Connection {
 public:
  // Encoded once, queued for as many peers as need it.
  using Frame = std::shared_ptr<const std::string>;

  Connection(UniqueFd socket, size_t limit_bytes) : socket_(std::move(socket)), reader_(limit_bytes) {}

  int socket() const { return socket_.get(); }
  void set_limit_bytes(size_t limit_bytes) { reader_.set_limit_bytes(limit_bytes); }

  // Queues a frame; Flush sends it. An empty queue takes a frame of any size.
  // RETURNS  false if the peer leaves too much unread. This frame and those queued before it are then dropped, which leaves room to
  //          say why
  bool Queue(Frame frame);

  // Queues a message and sends what the socket takes.
  void Send(const Message& message) {
    (void)Queue(std::make_shared<const std::string>(Encode(message)));
    Flush();
  }

  // Sends what the socket takes. A failed send only ends sending; Receive reports the state of the peer's end.
  void Flush();
  bool wants_to_write() const { return !queue_.empty(); }

  enum class Input {
    kOpen,
    kClosed,     // end of file or reset; what came before it has been delivered
    kMalformed,  // not our protocol
  };
  // Appends the messages that have arrived, up to a bounded amount per call.
  Input Receive(std::vector<Message>* messages);

  // True when the last Receive saw any bytes.
  bool heard() const { return heard_; }

  // Sends what the socket takes at once, ends sending, and drops what has arrived.
  void FinishWriting();

 private:
  UniqueFd socket_;
  FrameReader reader_;
  std::deque<Frame> queue_;
  size_t queued_bytes_ = 0;
  size_t sent_bytes_ = 0;  // of the first in the queue
  bool write_failed_ = false;
  bool heard_ = false;
};

}  // namespace control
}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_CONNECTION_H_
