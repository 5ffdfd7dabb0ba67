#include "transport/tcp/acceptor.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/net/epoll.h"

namespace lockstep {
namespace {

// Accepted in one call at most: the rest stays in the listener's backlog, which stays readable.
constexpr int kAcceptedPerPoll = 64;
constexpr std::chrono::milliseconds kAcceptPause(100);

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Create(const TcpTransportOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd listener, Listen(options.bind_address));
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress address, LocalAddress(listener.get()));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd events, NewEpoll());
  LOCKSTEP_RETURN_IF_ERROR(EpollControl(events.get(), EPOLL_CTL_ADD, listener.get(), EPOLLIN, nullptr));
  return std::unique_ptr<Acceptor>(new Acceptor(std::move(listener), std::move(events), address, options));
}

Acceptor::Acceptor(UniqueFd listener, UniqueFd events, const SocketAddress& address, const TcpTransportOptions& options)
    : listener_(std::move(listener)), events_(std::move(events)), address_(address), options_(options) {}

Deadline Acceptor::next_deadline() const {
  return pending_.empty() ? accept_again_ : Deadline::Earlier(accept_again_, pending_.front()->deadline);
}

std::vector<Acceptor::Arrival> Acceptor::Poll() {
  std::vector<Arrival> arrivals;
  if (accept_again_.passed()) {
    accept_again_ = Deadline::Infinite();
    (void)EpollControl(events_.get(), EPOLL_CTL_MOD, listener_.get(), EPOLLIN, nullptr);
  }
  AcceptAll();
  // Everyone is tried, whoever has an event: they are few, and a new one has usually said its hello already.
  const auto finished = [this, &arrivals](const std::unique_ptr<Pending>& pending) {
    Hello hello;
    Outcome outcome = Read(pending.get(), &hello);
    if (outcome == Outcome::kArrived) {
      (void)EpollControl(events_.get(), EPOLL_CTL_DEL, pending->socket.get(), 0, nullptr);
      arrivals.push_back({std::move(hello), std::move(pending->socket)});
    }
    if (outcome == Outcome::kWaiting && pending->deadline.passed()) {
      Log(pending->peer, absl::StrCat("no handshake in ", options_.handshake_timeout.count(), " ms"));
      outcome = Outcome::kDropped;
    }
    return outcome != Outcome::kWaiting;
  };
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(), finished), pending_.end());
  while (pending_.size() > options_.pending_connections_max) {
    Log(pending_.front()->peer,
        absl::StrCat("more than ", options_.pending_connections_max, " connections without a handshake"));
    pending_.erase(pending_.begin());
  }
  return arrivals;
}

void Acceptor::AcceptAll() {
  if (!accept_again_.infinite()) return;
  for (int i = 0; i < kAcceptedPerPoll; ++i) {
    auto pending = std::make_unique<Pending>(Pending{UniqueFd(), SocketAddress(), Deadline::Infinite(), 0, {}});
    absl::StatusOr<UniqueFd> socket = Accept(listener_.get(), &pending->peer);
    if (!socket.ok()) {
      // Out of descriptors, most likely. The listener would stay readable, and waiting for events would spin.
      Log(address_, socket.status().message());
      accept_again_ = Deadline::After(kAcceptPause);
      (void)EpollControl(events_.get(), EPOLL_CTL_MOD, listener_.get(), 0, nullptr);
      return;
    }
    if (!socket->valid()) return;
    pending->socket = *std::move(socket);
    pending->deadline = Deadline::After(options_.handshake_timeout);
    const absl::Status watched =
        EpollControl(events_.get(), EPOLL_CTL_ADD, pending->socket.get(), EPOLLIN | EPOLLRDHUP, nullptr);
    if (!watched.ok()) {
      Log(pending->peer, watched.message());
      continue;
    }
    pending_.push_back(std::move(pending));
  }
}

Acceptor::Outcome Acceptor::Read(Pending* pending, Hello* hello) {
  HelloPrefix prefix;
  size_t wanted = kHelloPrefixBytes;
  // Once for the prefix, once for the body: never a byte of the messages behind.
  for (;;) {
    if (pending->hello_bytes >= kHelloPrefixBytes) {
      prefix = DecodeHelloPrefix(pending->hello.data());
      if (!prefix.ours) {
        Log(pending->peer, "not a handshake of ours");
        return Outcome::kDropped;
      }
      if (prefix.version != kTcpProtocolVersion) {
        return Reject(*pending, {kTcpProtocolVersion, Verdict::kOtherVersion, 0},
                      absl::StrCat("speaks protocol version ", prefix.version, ", we ", kTcpProtocolVersion));
      }
      if (prefix.body_bytes > kHelloBodyBytesMax) {
        return Reject(*pending, {kTcpProtocolVersion, Verdict::kMalformed, 0}, "its handshake is too long");
      }
      wanted = kHelloPrefixBytes + prefix.body_bytes;
      if (pending->hello_bytes == wanted) break;
    }
    const ssize_t read = recv(pending->socket.get(), pending->hello.data() + pending->hello_bytes,
                              wanted - pending->hello_bytes, MSG_DONTWAIT);
    if (read > 0) {
      pending->hello_bytes += read;
    } else if (read < 0 && errno == EAGAIN) {
      return Outcome::kWaiting;
    } else if (read == 0 || errno != EINTR) {
      // Without a word: a peer whose connection crossed ours gives it up, which is no cause for a warning.
      if (pending->hello_bytes > 0) Log(pending->peer, "closed before the end of its handshake");
      return Outcome::kDropped;
    }
  }
  const absl::string_view body(reinterpret_cast<const char*>(pending->hello.data()) + kHelloPrefixBytes,
                               prefix.body_bytes);
  if (!DecodeHelloBody(body, hello)) {
    return Reject(*pending, {kTcpProtocolVersion, Verdict::kMalformed, 0}, "its handshake is malformed");
  }
  const Answer answer = JudgeHello(*hello, options_, options_.sockets);
  if (answer.verdict != Verdict::kAccepted) {
    return Reject(*pending, answer, RefusalText(answer, *hello));
  }
  return Outcome::kArrived;
}

Acceptor::Outcome Acceptor::Reject(const Pending& pending, const Answer& answer, absl::string_view why) {
  Log(pending.peer, absl::StrCat("turned away: ", why));
  SendAnswer(pending.socket.get(), answer);
  return Outcome::kDropped;
}

void Acceptor::SendAnswer(int socket, const Answer& answer) {
  unsigned char bytes[kAnswerBytes];
  EncodeAnswer(answer, bytes);
  // The socket is new and its buffer empty: all of it fits.
  (void)send(socket, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (answer.verdict == Verdict::kAccepted) return;
  char unread[kHelloBodyBytesMax];
  (void)recv(socket, unread, sizeof(unread), MSG_DONTWAIT);
}

void Acceptor::Log(const SocketAddress& peer, absl::string_view why) {
  ++unlogged_;
  const Deadline::Clock::time_point now = Deadline::Clock::now();
  if (now < next_log_) return;
  next_log_ = now + std::chrono::seconds(1);
  LOCKSTEP_LOG(kWarning) << "listener " << address_.ToString() << ": connection from " << peer.ToString() << ": "
                         << std::string(why)
                         << (unlogged_ > 1 ? absl::StrCat(" (and ", unlogged_ - 1, " more since the last line)") : "");
  unlogged_ = 0;
}

}  // namespace lockstep
