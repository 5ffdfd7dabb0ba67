#include "transport/store/store_tcp_client.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr size_t kReceiveBytes = size_t{64} << 10;
// For the first attempt at one of several addresses: a host that is down must not use up the time of the next. Each round allows twice
// as long, so that a handshake over a slow path succeeds in the end.
constexpr std::chrono::milliseconds kAttemptTime(3000);
constexpr std::chrono::milliseconds kPauseMin(2);
constexpr std::chrono::milliseconds kPauseMax(100);

}  // namespace

bool WorthTryingAgain(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

absl::StatusOr<TcpStoreClient::Connection> TcpStoreClient::ConnectOnce(const SocketAddress& address,
                                                                       const Credentials& credentials,
                                                                       Deadline deadline, Refusal* refusal,
                                                                       std::chrono::milliseconds answer_time) {
  Connection connection;
  LOCKSTEP_ASSIGN_OR_RETURN(connection.socket, lockstep::Connect(address, deadline));
  connection.channel = std::make_unique<Channel>(Purpose::kStore, Channel::Side::kConnects, credentials);
  const Deadline answer = answer_time.count() == 0 ? Deadline::Infinite() : Deadline::After(answer_time);
  const absl::Status status =
      ShakeHands(connection.socket.get(), connection.channel.get(), Deadline::Earlier(deadline, answer));
  if (absl::IsDeadlineExceeded(status) && answer.passed() && !deadline.passed()) {
    return absl::AbortedError(absl::StrCat("the server at ", address.ToString(), " is unresponsive: no answer for ",
                                           answer_time.count(),
                                           " ms: its process is stopped, or its host is unreachable"));
  }
  if (!status.ok()) {
    *refusal = connection.channel->refusal();
    const bool ours = *refusal != Refusal::kCount && *refusal != Refusal::kNotOurs;
    return Annotate(status, absl::StrCat("handshake with ", address.ToString(),
                                         ours ? "" : " (does something else listen there?)"));
  }
  return connection;
}

absl::StatusOr<std::unique_ptr<TcpStoreClient>> TcpStoreClient::Connect(const HostPort& server,
                                                                        const Credentials& credentials,
                                                                        Deadline deadline, Refusal* refusal,
                                                                        std::chrono::milliseconds answer_time) {
  Refusal ignored;
  if (refusal == nullptr) refusal = &ignored;
  *refusal = Refusal::kCount;
  const std::string url = absl::StrCat("tcp://", HostPortText(server));
  std::chrono::milliseconds pause = kPauseMin;
  std::chrono::milliseconds attempt_time = kAttemptTime;
  for (int rounds = 1;; ++rounds) {
    // Asked again each time: the name of a server that is being started may appear late, or move.
    absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(server.host, server.port, deadline);
    absl::Status last = addresses.status();
    absl::Status refused;
    bool try_again = WorthTryingAgain(last), waited = false;
    if (!addresses.ok()) addresses = std::vector<SocketAddress>();
    for (const SocketAddress& address : *addresses) {
      const Deadline attempt =
          addresses->size() == 1 ? deadline : Deadline::Earlier(deadline, Deadline::After(attempt_time));
      Refusal why = Refusal::kCount;
      absl::StatusOr<Connection> connection = ConnectOnce(address, credentials, attempt, &why, answer_time);
      if (connection.ok()) {
        return absl::WrapUnique(new TcpStoreClient(*std::move(connection), absl::StrCat("store ", url)));
      }
      last = connection.status();
      waited |= absl::IsDeadlineExceeded(last);
      // Somebody answered and is not who we want. Another address may have the server. What speaks our protocol tells more.
      if (absl::IsPermissionDenied(last) && (refused.ok() || *refusal == Refusal::kNotOurs)) {
        refused = last;
        *refusal = why;
      }
      if (WorthTryingAgain(last)) try_again = true;
    }
    if (!refused.ok()) {
      // Beside something else the server may start later, at another address.
      const bool may_come = *refusal == Refusal::kNotOurs && try_again;
      if (!may_come) return Annotate(refused, absl::StrCat("store ", url));
      last = refused;
    }
    if (!try_again) return Annotate(last, absl::StrCat("store ", url));
    const auto resume = Deadline::Clock::now() + pause;
    if (resume >= deadline.time()) {
      return absl::DeadlineExceededError(absl::StrCat("store ", url, ": no server could be reached by the deadline (",
                                                      rounds, rounds == 1 ? " round" : " rounds",
                                                      " over all its addresses); last: ", last.message()));
    }
    std::this_thread::sleep_until(resume);
    pause = std::min(pause * 2, kPauseMax);
    // A round in which nothing was waited for tells nothing of the path.
    if (waited) attempt_time *= 2;
  }
}

TcpStoreClient::TcpStoreClient(Connection connection, std::string description)
    : socket_(std::move(connection.socket)),
      description_(std::move(description)),
      fork_generation_(ForkGeneration()),
      channel_(std::move(connection.channel)) {}

absl::StatusOr<std::string> TcpStoreClient::Perform(const StoreCall& call, Deadline deadline) {
  if (ForkGeneration() != fork_generation_) {
    return absl::FailedPreconditionError(absl::StrCat(description_, ": made before a fork, not usable in the child"));
  }
  const uint32_t timeout_ms = deadline.infinite() ? kStoreNoTimeout : static_cast<uint32_t>(deadline.remaining_ms());

  MutexLock lock(&mu_);
  const StoreRequest request = {call, next_id_++, timeout_ms};
  absl::optional<absl::StatusOr<std::string>> answer;
  answers_[request.id] = &answer;
  bool in_time = true;
  absl::Status sent = broken_;
  if (sent.ok()) sent = Send(EncodeStoreRequest(request), deadline);
  if (!sent.ok() && sent.code() != absl::StatusCode::kDeadlineExceeded) Break(sent);
  if (!sent.ok()) in_time = false;

  while (!answer.has_value() && broken_.ok() && in_time) {
    if (receiving_) {
      in_time = changed_.WaitUntil(&mu_, deadline);
      continue;
    }
    receiving_ = true;
    mu_.Unlock();
    std::string received;
    const absl::Status status = ReceiveSome(deadline, &received);
    mu_.Lock();
    receiving_ = false;
    TakeReplies(received);
    if (!status.ok() && status.code() != absl::StatusCode::kDeadlineExceeded) Break(status);
    if (!status.ok()) in_time = false;
    changed_.SignalAll();
  }
  answers_.erase(request.id);
  if (answer.has_value()) return answer->ok() ? *std::move(answer) : Annotate(answer->status(), description_);
  if (!broken_.ok()) return Annotate(broken_, absl::StrCat(description_, ": ", DescribeStoreKey(request.key)));
  return absl::DeadlineExceededError(
      absl::StrCat(description_, ": ", request.op == StoreOp::kWait ? "wait for " : "", DescribeStoreKey(request.key),
                   ": ", request.op == StoreOp::kWait ? "not there by the deadline" : "no answer by the deadline"));
}

absl::Status TcpStoreClient::Send(absl::string_view request, Deadline deadline) {
  while (sending_) {
    if (!changed_.WaitUntil(&mu_, deadline) && sending_) {
      return absl::DeadlineExceededError("other requests were still being sent");
    }
    if (!broken_.ok()) return broken_;
  }
  sending_ = true;
  absl::Status status = SendUnsent(deadline);
  if (status.ok()) status = broken_;  // meanwhile, by who receives
  if (status.ok()) {
    channel_->Send(request, &unsent_);
    status = SendUnsent(deadline);
  }
  sending_ = false;
  changed_.SignalAll();
  return status;
}

absl::Status TcpStoreClient::SendUnsent(Deadline deadline) {
  std::string bytes = std::move(unsent_);
  unsent_.clear();
  mu_.Unlock();
  size_t sent = 0;
  const absl::Status status = SendSome(bytes, deadline, &sent);
  mu_.Lock();
  // What the channel has made meanwhile comes after it.
  unsent_.insert(0, bytes, sent, std::string::npos);
  return status;
}

absl::Status TcpStoreClient::SendSome(absl::string_view bytes, Deadline deadline, size_t* sent) {
  for (*sent = 0; *sent < bytes.size();) {
    const ssize_t count = send(socket_.get(), bytes.data() + *sent, bytes.size() - *sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      *sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      if (deadline.passed()) return absl::DeadlineExceededError("send");
      pollfd entry = {socket_.get(), POLLOUT, 0};
      (void)poll(&entry, 1, deadline.remaining_ms());  // whatever it says, send knows better
    } else if (errno != EINTR) {
      return absl::UnavailableError(ErrnoStatus(errno, "connection lost: send").message());
    }
  }
  return absl::OkStatus();
}

absl::Status TcpStoreClient::ReceiveSome(Deadline deadline, std::string* received) {
  received->resize(kReceiveBytes);
  for (;;) {
    const ssize_t count = recv(socket_.get(), &(*received)[0], received->size(), MSG_DONTWAIT);
    const int error = errno;
    if (count > 0) {
      received->resize(static_cast<size_t>(count));
      return absl::OkStatus();
    }
    if (count == 0 || (error != EAGAIN && error != EINTR)) {
      received->clear();
      if (count == 0) return absl::UnavailableError("the server closed the connection");
      return absl::UnavailableError(ErrnoStatus(error, "connection lost: receive").message());
    }
    if (error == EAGAIN) {
      if (deadline.passed()) {
        received->clear();
        return absl::DeadlineExceededError("receive");
      }
      pollfd entry = {socket_.get(), POLLIN, 0};
      (void)poll(&entry, 1, deadline.remaining_ms());
    }
  }
}

void TcpStoreClient::TakeReplies(absl::string_view received) {
  // What came before an error counts.
  const absl::Status status = channel_->Receive(received, &plain_, &unsent_);
  absl::string_view rest = plain_;
  for (;;) {
    StoreReply reply;
    const absl::StatusOr<size_t> bytes = ParseStoreReply(rest, &reply);
    if (!bytes.ok()) {
      Break(absl::UnavailableError(absl::StrCat("the server sent nonsense: ", bytes.status().message())));
      plain_.clear();
      return;
    }
    if (*bytes == 0) break;
    rest.remove_prefix(*bytes);
    // Nobody may be waiting any more: the deadline passed first.
    const auto answer = answers_.find(reply.id);
    if (answer == answers_.end()) continue;
    if (reply.code == absl::StatusCode::kOk) {
      answer->second->emplace(reply.body);
    } else {
      answer->second->emplace(absl::Status(reply.code, reply.body));
    }
  }
  plain_.erase(0, plain_.size() - rest.size());
  if (!status.ok()) Break(status);
}

void TcpStoreClient::Break(const absl::Status& status) {
  if (!broken_.ok()) return;
  broken_ = status;
  // Wakes whoever is sending or receiving.
  (void)shutdown(socket_.get(), SHUT_RDWR);
  changed_.SignalAll();
}

}  // namespace lockstep
