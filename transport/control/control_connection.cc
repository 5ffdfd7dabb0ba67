#include "transport/control/control_connection.h"

#include <sys/socket.h>

#include <cerrno>

namespace lockstep {
namespace control {
namespace {

constexpr size_t kQueueBytesMax = size_t{8} << 20;
constexpr size_t kReadBytes = size_t{16} << 10;
// Per call of Receive, so that one talkative peer does not starve the others.
constexpr int kReadsMax = 64;

}  // namespace

bool Connection::Queue(Frame frame) {
  if (write_failed_) return true;
  if (!queue_.empty() && queued_bytes_ + frame->size() > kQueueBytesMax) {
    // The first may have been sent in part.
    queue_.resize(1);
    queued_bytes_ = queue_.front()->size();
    return false;
  }
  queued_bytes_ += frame->size();
  queue_.push_back(std::move(frame));
  return true;
}

void Connection::Flush() {
  while (!queue_.empty()) {
    const std::string& frame = *queue_.front();
    const ssize_t sent =
        send(socket_.get(), frame.data() + sent_bytes_, frame.size() - sent_bytes_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) {
      write_failed_ = true;
      queue_.clear();
      return;
    }
    sent_bytes_ += static_cast<size_t>(sent);
    if (sent_bytes_ < frame.size()) continue;
    queued_bytes_ -= frame.size();
    sent_bytes_ = 0;
    queue_.pop_front();
  }
}

Connection::Input Connection::Receive(std::vector<Message>* messages) {
  heard_ = false;
  char piece[kReadBytes];
  for (int reads = 0; reads < kReadsMax; ++reads) {
    const ssize_t received = recv(socket_.get(), piece, sizeof(piece), MSG_DONTWAIT);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && errno == EAGAIN) return Input::kOpen;
    if (received <= 0) return Input::kClosed;
    heard_ = true;
    reader_.Append(piece, static_cast<size_t>(received));
    for (absl::string_view frame;;) {
      const absl::StatusOr<bool> whole = reader_.Next(&frame);
      if (!whole.ok()) return Input::kMalformed;
      if (!*whole) break;
      absl::StatusOr<Message> message = Decode(frame);
      if (!message.ok()) return Input::kMalformed;
      messages->push_back(*std::move(message));
    }
    if (static_cast<size_t>(received) < sizeof(piece)) return Input::kOpen;
  }
  return Input::kOpen;
}

void Connection::FinishWriting() {
  Flush();
  shutdown(socket_.get(), SHUT_WR);
  // Closing with bytes unread would send a reset after our last message.
  char piece[kReadBytes];
  for (int reads = 0; reads < kReadsMax && recv(socket_.get(), piece, sizeof(piece), MSG_DONTWAIT) > 0; ++reads) {
  }
}

}  // namespace control
}  // namespace lockstep
