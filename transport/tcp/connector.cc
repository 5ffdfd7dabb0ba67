#include "transport/tcp/connector.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kPauseMin(2);
constexpr std::chrono::milliseconds kPauseMax(100);

// Whether another attempt may fare better.
bool Passing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

}  // namespace

Connector::Connector(Options options)
    : options_(std::move(options)),
      hello_(EncodeHello(options_.hello)),
      deadline_(Deadline::After(options_.connect_timeout)),
      pause_(kPauseMin) {}

void Connector::Advance() {
  for (bool go_on = true; go_on;) {
    switch (state_) {
      case State::kPausing:
        go_on = resume_.passed() && Start();
        break;
      case State::kConnecting:
        go_on = Finish();
        break;
      case State::kAnswering:
        go_on = ReadAnswer();
        break;
      case State::kConnected:
      case State::kFailed:
        go_on = false;
        break;
    }
  }
}

Deadline Connector::next_deadline() const {
  if (state_ == State::kPausing) return resume_;
  return state_ == State::kConnecting ? deadline_ : Deadline::Infinite();
}

std::shared_ptr<TcpSocket> Connector::TakeSocket() {
  LOCKSTEP_CHECK(state_ == State::kConnected);
  return std::move(socket_);
}

bool Connector::Start() {
  ++attempts_;
  bool refused = false;
  absl::StatusOr<UniqueFd> socket = StartConnect(options_.address, &refused);
  if (refused) {
    Fail(socket.status());
    return false;
  }
  if (!socket.ok()) {
    Retry(socket.status());
    return false;
  }
  absl::StatusOr<std::shared_ptr<TcpSocket>> watched =
      TcpSocket::Create(*std::move(socket), options_.events, options_.event_data);
  if (!watched.ok()) {
    Fail(watched.status());
    return false;
  }
  socket_ = *std::move(watched);
  state_ = State::kConnecting;
  return true;
}

bool Connector::Finish() {
  bool refused = false;
  const absl::Status finished = FinishConnect(socket_->get(), options_.address, &refused);
  if (absl::IsFailedPrecondition(finished)) {  // still being made
    if (deadline_.passed()) Retry(absl::UnavailableError("no answer from that address"));
    return false;
  }
  if (refused) {
    Fail(finished);
    return false;
  }
  if (!finished.ok()) {
    Retry(finished);
    return false;
  }
  Tune(socket_->get(), options_.tuning);
  answer_bytes_ = 0;
  state_ = State::kAnswering;
  // The socket is new and its buffer empty: all of it fits.
  const ssize_t sent = send(socket_->get(), hello_.data(), hello_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != hello_.size()) {
    Retry(ErrnoStatus(sent < 0 ? errno : EAGAIN, "send the handshake"));
    return false;
  }
  return true;
}

bool Connector::ReadAnswer() {
  while (answer_bytes_ < kAnswerBytes) {
    const ssize_t read = recv(socket_->get(), answer_ + answer_bytes_, kAnswerBytes - answer_bytes_, MSG_DONTWAIT);
    if (read > 0) {
      answer_bytes_ += read;
    } else if (read < 0 && errno == EINTR) {
      continue;
    } else if (read < 0 && errno == EAGAIN) {
      return false;
    } else {
      Retry(read == 0 ? absl::UnavailableError("connection closed before the handshake was answered")
                      : ErrnoStatus(errno, "read the handshake's answer"));
      return false;
    }
  }
  Answer answer;
  if (!DecodeAnswer(answer_, &answer)) {
    Fail(absl::FailedPreconditionError("whoever listens there is no Lockstep peer"));
  } else if (answer.verdict == Verdict::kCrossed) {
    // The peer may have been long in looking at our hello: the time for its connection to arrive begins now.
    if (!crossed_) deadline_ = Deadline::After(options_.connect_timeout);
    crossed_ = true;
    Retry(RejectionStatus(answer, options_.hello));
  } else if (answer.verdict != Verdict::kAccepted) {
    Fail(RejectionStatus(answer, options_.hello));
  } else {
    peer_instance_ = answer.detail;
    state_ = State::kConnected;
  }
  return false;
}

void Connector::Retry(const absl::Status& cause) {
  const Deadline resume = Deadline::After(pause_);
  if (!Passing(cause)) {
    Fail(cause);
  } else if (resume.time() >= deadline_.time()) {
    // UNAVAILABLE whatever it was: the connection could not be had in the time for it.
    Fail(
        absl::UnavailableError(absl::StrCat(cause.message(), " (", attempts_, attempts_ == 1 ? " attempt" : " attempts",
                                            " in ", options_.connect_timeout.count(), " ms)")));
  } else {
    socket_.reset();
    resume_ = resume;
    pause_ = std::min(pause_ * 2, kPauseMax);
    state_ = State::kPausing;
  }
}

void Connector::Fail(const absl::Status& status) {
  socket_.reset();
  status_ = status;
  state_ = State::kFailed;
}

}  // namespace lockstep
