#include "transport/control/control_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "transport/secure/secret.h"

namespace lockstep::control {
namespace {

constexpr size_t kQueueBytesMax = size_t{8} << 20;
constexpr size_t kReadBytes = size_t{16} << 10;
// Per call of Receive, so that one talkative peer does not starve the others.
constexpr int kReadsMax = 64;
// What is protected at a time: a frame that goes to thousands of peers must not be held for each of them.
constexpr size_t kSealBytes = size_t{64} << 10;

}  // namespace

Connection::Frame Connection::MakeFrame(const Message& message) {
  return Frame(new std::string(Encode(message)), [](std::string* bytes) {
    Wipe(bytes);
    delete bytes;
  });
}

Connection::Connection(UniqueFd socket, Channel::Side side, const Credentials& credentials)
    : socket_(std::move(socket)),
      channel_(std::make_unique<Channel>(Purpose::kControl, side, credentials)),
      reader_(side == Channel::Side::kConnects ? kCoordinatorFrameBytesMax : kHelloBytesMax),
      admitted_(side == Channel::Side::kConnects),
      sealed_(channel_->Start()) {}

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
  for (;;) {
    if (sent_bytes_ == sealed_.size()) {
      sealed_.clear();
      sent_bytes_ = 0;
      if (queue_.empty() || !can_seal()) return;
      const std::string& frame = *queue_.front();
      const absl::string_view piece = absl::string_view(frame).substr(taken_bytes_, kSealBytes);
      channel_->Send(piece, &sealed_);
      taken_bytes_ += piece.size();
      if (taken_bytes_ == frame.size()) {
        queued_bytes_ -= frame.size();
        taken_bytes_ = 0;
        queue_.pop_front();
      }
    }
    const ssize_t sent =
        send(socket_.get(), sealed_.data() + sent_bytes_, sealed_.size() - sent_bytes_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) {
      write_failed_ = true;
      queue_.clear();
      sealed_.clear();
      sent_bytes_ = 0;
      return;
    }
    sent_bytes_ += static_cast<size_t>(sent);
  }
}

Connection::Input Connection::Receive(std::vector<Message>* messages) {
  heard_ = false;
  // Behind its hello a peer may have said more.
  if (input_ == Input::kOpen) input_ = Cut(messages);
  char piece[kReadBytes];
  for (int reads = 0; reads < kReadsMax && input_ == Input::kOpen; ++reads) {
    if (!admitted_ && !messages->empty()) break;
    const size_t bytes = BytesToRead();
    const ssize_t received = recv(socket_.get(), piece, bytes, MSG_DONTWAIT);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && errno == EAGAIN) break;
    if (received <= 0) return input_ = Input::kClosed;
    heard_ = true;
    input_ = Open(absl::string_view(piece, static_cast<size_t>(received)));
    const Input cut = Cut(messages);
    if (input_ == Input::kOpen) input_ = cut;
    if (static_cast<size_t>(received) < bytes) break;
  }
  return input_;
}

size_t Connection::BytesToRead() const {
  if (!channel_->ready()) return std::min(channel_->wanted(), kReadBytes);
  return admitted_ ? kReadBytes : kHelloBytesMax;
}

Connection::Input Connection::Open(absl::string_view arrived) {
  // Enough for all of it: growing would leave copies behind.
  std::string plain;
  const WipedAtEnd wiped(&plain);
  plain.reserve(kReadBytes + arrived.size());
  why_ = channel_->Receive(arrived, &plain, &sealed_);
  reader_.Append(plain.data(), plain.size());
  if (why_.ok()) return Input::kOpen;
  if (!channel_->ready()) return Input::kRefused;  // once ready it stays so
  return absl::IsUnavailable(why_) ? Input::kClosed : Input::kTampered;
}

Connection::Input Connection::Cut(std::vector<Message>* messages) {
  for (absl::string_view frame; admitted_ || messages->empty();) {
    const absl::StatusOr<bool> whole = reader_.Next(&frame);
    if (!whole.ok()) return Input::kMalformed;
    if (!*whole) break;
    if (!admitted_ && !IsHello(frame)) return Input::kMalformed;
    absl::StatusOr<Message> message = Decode(frame);
    if (!message.ok()) return Input::kMalformed;
    messages->push_back(*std::move(message));
  }
  return Input::kOpen;
}

Connection::Input Connection::Discard() {
  char piece[kReadBytes];
  for (int reads = 0; reads < kReadsMax; ++reads) {
    const ssize_t received = recv(socket_.get(), piece, sizeof(piece), MSG_DONTWAIT);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && errno == EAGAIN) return Input::kOpen;
    if (received <= 0) return Input::kClosed;
  }
  return Input::kOpen;
}

void Connection::FinishWriting() {
  Flush();
  shutdown(socket_.get(), SHUT_WR);
  // Closing with bytes unread would send a reset after our last message.
  (void)Discard();
}

const char* EndText(Connection::Input input) {
  switch (input) {
    case Connection::Input::kOpen:
      return "is there";
    case Connection::Input::kClosed:
      return "died: control connection closed";
    case Connection::Input::kMalformed:
      return "broke the control protocol";
    case Connection::Input::kRefused:
      return "was refused";
    case Connection::Input::kTampered:
      break;
  }
  return "is cut off: its control connection was tampered with: what arrived there is not what was sent";
}

}  // namespace lockstep::control
