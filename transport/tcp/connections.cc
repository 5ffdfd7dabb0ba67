#include "transport/tcp/connections.h"

#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/link/record_stream.h"
#include "transport/tcp/kernel_tls.h"
#include "transport/tcp/opening.h"
#include "transport/tcp/protection.h"

namespace lockstep {
namespace {

// EPOLLERR comes with them when a connection is lost.
constexpr uint32_t kClosedEvents = EPOLLRDHUP | EPOLLHUP;

// Of a connection of several sockets. The same for all ranks, so it changes with the protocol's version only.
constexpr size_t kStripeBytes = size_t{64} << 10;

constexpr std::chrono::milliseconds kPauseMin(2);
constexpr std::chrono::milliseconds kPauseMax(100);

// Whether another attempt may fare better.
bool Passing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

// As the ranks agreed, of which one is `self`.
OpenSocket WithSecrets(std::shared_ptr<TcpSocket> socket, const Opening& opening, const Hello& hello, Rank self,
                       bool kernel_tls) {
  OpenSocket open = {std::move(socket), kernel_tls, absl::nullopt, absl::nullopt};
  if (!hello.records) return open;
  const Rank peer = self == hello.source ? hello.target : hello.source;
  open.send = RecordSecret::Of(opening.channel(), RecordContext(hello, self, kernel_tls));
  open.receive = RecordSecret::Of(opening.channel(), RecordContext(hello, peer, kernel_tls));
  return open;
}

uint64_t Key(Rank peer, ChannelId channel) { return static_cast<uint64_t>(peer.value()) << 32 | channel; }

}  // namespace

// One outgoing connection, from the first attempt to the peer's answer. Externally synchronised. Never waits.
//
//   state      waits for                       goes on to
//   pausing    the end of the pause            connecting
//   connecting the connection                  securing; pausing when unreachable; failed when refused
//   securing   the peer's proof                answering, its hello sent; failed when there is none; pausing when the connection closes
//   answering  the peer's answer               connected; failed when turned away; pausing when the connection closes,
//                                              or when it crossed one that the peer makes and that is to come
//   connected  -
//   failed     -
//
// All ranks listen before any rank knows the addresses. So a refusal is final: that rank has gone. Other attempts end
// `connect_timeout` after the first, or after the first that crossed another. A connected peer that has not answered is not
// late: its listener's thread has proved it, and it answers when it next drives its transport. Until then the message stays with its
// sender, like any message that nobody receives.
class Connector {
 public:
  enum class State { kPausing, kConnecting, kSecuring, kAnswering, kConnected, kFailed };

  // Borrows the options, and the kernel's TLS, which is offered if it is not null. Each socket is added to the epoll instance `events`
  // with `event_data`: see TcpSocket.
  Connector(const TcpTransportOptions& options, KernelTls* kernel_tls, const SocketAddress& address, Hello hello,
            int events, void* event_data)
      : options_(options),
        kernel_tls_(kernel_tls),
        address_(address),
        events_(events),
        event_data_(event_data),
        hello_(std::move(hello)),
        deadline_(Deadline::After(options.connect_timeout)) {}

  // Goes on as far as it can: after an event, and at next_deadline().
  void Advance() {
    for (bool go_on = true; go_on;) {
      switch (state_) {
        case State::kPausing:
          go_on = resume_.passed() && Start();
          break;
        case State::kConnecting:
          go_on = Finish();
          break;
        case State::kSecuring:
          go_on = SayHello();
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

  State state() const { return state_; }
  const absl::Status& status() const { return status_; }  // of kFailed
  Deadline next_deadline() const {
    if (state_ == State::kPausing) return resume_;
    return state_ == State::kConnecting ? deadline_ : Deadline::Infinite();
  }
  // Of kConnected.
  OpenSocket TakeSocket() {
    LOCKSTEP_CHECK(state_ == State::kConnected);
    return WithSecrets(std::move(socket_), *opening_, hello_, hello_.source, kernel_tls_agreed_);
  }
  uint32_t peer_instance() const { return peer_instance_; }

 private:
  // These four return whether to go on with the new state at once.
  bool Start() {
    ++attempts_;
    bool refused = false;
    absl::StatusOr<UniqueFd> socket = StartConnect(address_, &refused);
    if (refused) {
      Fail(socket.status());
      return false;
    }
    if (!socket.ok()) {
      Retry(socket.status());
      return false;
    }
    absl::StatusOr<std::shared_ptr<TcpSocket>> watched = TcpSocket::Create(*std::move(socket), events_, event_data_);
    if (!watched.ok()) {
      Fail(watched.status());
      return false;
    }
    socket_ = *std::move(watched);
    state_ = State::kConnecting;
    return true;
  }

  bool Finish() {
    bool refused = false;
    const absl::Status finished = FinishConnect(socket_->get(), address_, &refused);
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
    hello_.records = WantsRecords(socket_->get(), options_);
    // Not behind the answer: by then the peer may have sent all it has and closed, and the kernel takes no such socket.
    hello_.kernel_tls = kernel_tls_ != nullptr && kernel_tls_->Attach(socket_->get()) == 0;
    opening_ = std::make_unique<Opening>(Channel::Side::kConnects, options_.credentials);
    state_ = State::kSecuring;
    return !Retried(opening_->Start(socket_->get()), "begin the handshake");
  }

  bool SayHello() {
    const absl::StatusOr<bool> secured = opening_->Await(socket_->get(), 0);
    if (Retried(secured.status(), "shake hands") || !*secured) return false;
    state_ = State::kAnswering;
    return !Retried(opening_->Say(socket_->get(), EncodeHello(hello_)), "send the hello");
  }

  bool ReadAnswer() {
    const absl::StatusOr<bool> answered = opening_->Await(socket_->get(), kAnswerBytes);
    if (Retried(answered.status(), "read the answer to the hello") || !*answered) return false;
    Answer answer;
    const absl::string_view said = opening_->said();
    if (said.size() != kAnswerBytes || !DecodeAnswer(reinterpret_cast<const unsigned char*>(said.data()), &answer) ||
        (answer.kernel_tls && !hello_.kernel_tls)) {
      Fail(absl::FailedPreconditionError("whoever listens there is no Lockstep peer"));
    } else if (answer.verdict == Verdict::kCrossed) {
      // The peer may have been long in looking at our hello: the time for its connection to arrive begins now.
      if (!crossed_) deadline_ = Deadline::After(options_.connect_timeout);
      crossed_ = true;
      Retry(RejectionStatus(answer, hello_));
    } else if (answer.verdict != Verdict::kAccepted) {
      Fail(RejectionStatus(answer, hello_));
    } else {
      peer_instance_ = answer.detail;
      kernel_tls_agreed_ = answer.kernel_tls;
      state_ = State::kConnected;
    }
    return false;
  }

  // False if the status is OK.
  bool Retried(const absl::Status& status, absl::string_view what) {
    if (!status.ok()) Retry(Annotate(status, what));
    return !status.ok();
  }

  // Pauses before the next attempt, or fails when there is no time for one.
  void Retry(const absl::Status& cause) {
    const Deadline resume = Deadline::After(pause_);
    if (!Passing(cause)) {
      Fail(cause);
    } else if (resume.time() >= deadline_.time()) {
      // UNAVAILABLE whatever it was: the connection could not be had in the time for it.
      Fail(absl::UnavailableError(absl::StrCat(cause.message(), " (", attempts_,
                                               attempts_ == 1 ? " attempt" : " attempts", " in ",
                                               options_.connect_timeout.count(), " ms)")));
    } else {
      socket_.reset();
      resume_ = resume;
      pause_ = std::min(pause_ * 2, kPauseMax);
      state_ = State::kPausing;
    }
  }

  void Fail(const absl::Status& status) {
    socket_.reset();
    status_ = status;
    state_ = State::kFailed;
  }

  const TcpTransportOptions& options_;
  KernelTls* const kernel_tls_;
  const SocketAddress address_;
  const int events_;
  void* const event_data_;
  Hello hello_;  // `records` and `kernel_tls` are known once a socket is connected

  State state_ = State::kPausing;
  Deadline deadline_;                  // of the last attempt to connect
  Deadline resume_ = Deadline::Now();  // end of the pause
  std::chrono::milliseconds pause_ = kPauseMin;
  int attempts_ = 0;
  bool crossed_ = false;  // the peer said once that it connects too
  std::shared_ptr<TcpSocket> socket_;
  std::unique_ptr<Opening> opening_;  // of a connected socket
  uint32_t peer_instance_ = 0;
  bool kernel_tls_agreed_ = false;
  absl::Status status_;
};

Connection::~Connection() = default;

Connections::Connections(const TcpTransportOptions& options, int events, LinkTable* links)
    : options_(options),
      events_(events),
      links_(links),
      kernel_tls_(UsableKernelTls(options)),
      hello_{options.job_id,         options.world_id,
             options.rank,           Rank(),
             /*channel=*/0,          options.chunk_bytes,
             std::random_device()(),
             /*socket=*/0,           static_cast<uint16_t>(options.sockets)} {}

Connection* Connections::Get(Rank peer, ChannelId channel) {
  std::unique_ptr<Connection>& connection = connections_[Key(peer, channel)];
  if (connection != nullptr) return connection.get();
  connection = std::make_unique<Connection>();
  connection->send = links_->Get(Link::Direction::kSend, peer, channel);
  connection->receive = links_->Get(Link::Direction::kReceive, peer, channel);
  if (!connection->waiting()) aborted_.push_back(Key(peer, channel));
  return connection.get();
}

bool Connections::Untried(const Connection& connection) {
  return connection.waiting() && connection.connector == nullptr && connection.sockets.empty();
}

bool Connections::Await(Connection* connection, const SocketAddress& address) {
  if (!Untried(*connection) || !connection->connect_at.infinite()) return false;
  connection->address = address;
  connection->connect_at = Deadline::After(options_.receive_patience);
  awaited_.push_back(connection);
  return true;
}

void Connections::ConnectAwaited() {
  std::vector<Connection*> due;
  const auto over = [&due](Connection* connection) {
    if (Untried(*connection)) {
      if (!connection->connect_at.passed()) return false;
      due.push_back(connection);
    }
    connection->connect_at = Deadline::Infinite();
    return true;
  };
  awaited_.erase(std::remove_if(awaited_.begin(), awaited_.end(), over), awaited_.end());
  for (Connection* const connection : due) Connect(connection, connection->address);
}

bool Connections::Connect(Connection* connection, const SocketAddress& address) {
  if (!Untried(*connection)) return false;
  connection->address = address;
  MakeConnector(connection);
  if (!AdvanceConnector(connection)) connecting_.push_back(connection);
  return true;
}

void Connections::MakeConnector(Connection* connection) {
  Hello hello = hello_;
  hello.target = connection->send->peer();
  hello.channel = connection->send->channel();
  hello.socket = static_cast<uint16_t>(connection->sockets.size());
  connection->connector =
      std::make_unique<Connector>(options_, kernel_tls_, connection->address, std::move(hello), events_, connection);
}

void Connections::OnEvents(Connection* connection, uint32_t mask) {
  if (connection->connector != nullptr && AdvanceConnector(connection)) {
    connecting_.erase(std::find(connecting_.begin(), connecting_.end(), connection));
    // What the event says of a connection that was just accepted goes for its links too.
  }
  const bool closed = (mask & kClosedEvents) != 0;
  if (connection->waiting()) {
    // Without a connector the event is of one of the sockets that are there already.
    if (closed && connection->connector == nullptr && !connection->sockets.empty()) {
      Break(connection, absl::UnavailableError("connection closed by peer"));
    }
    return;
  }
  // By itself it says that the error queue has something: the kernel has released memory of sends.
  if ((mask & EPOLLERR) != 0) connection->send->MarkReleased();
  if (connection->kernel_tls) {
    if ((mask & EPOLLOUT) != 0) connection->send->MarkReleased();  // see KernelTlsWriter
    if ((mask & EPOLLERR) != 0) connection->receive->MarkReady();  // or that a record is not genuine
  }
  if (closed) {
    if (connection->receive->open()) connection->receive->MarkEnding();
    // A peer closes both ways at once: what is not sent by now goes nowhere.
    if (connection->send->open()) connection->send->BreakBecause(absl::UnavailableError("connection closed by peer"));
  } else {
    if ((mask & EPOLLIN) != 0) connection->receive->MarkReady();
    if ((mask & EPOLLOUT) != 0) connection->send->MarkReady();
  }
  Schedule(connection);
}

void Connections::Admit(Acceptor::Arrival arrival) {
  const Hello& hello = arrival.hello;
  Connection* const connection = Get(hello.source, hello.channel);
  Answer answer;
  answer.verdict = Judge(*connection, hello);
  std::shared_ptr<TcpSocket> socket;
  if (answer.verdict == Verdict::kAccepted) {
    if (connection->connector != nullptr) {
      connection->connector = nullptr;
      connecting_.erase(std::find(connecting_.begin(), connecting_.end(), connection));
    }
    absl::StatusOr<std::shared_ptr<TcpSocket>> watched =
        TcpSocket::Create(std::move(arrival.socket), events_, connection);
    // Its socket has closed without an answer: the peer tries again, and is told by then.
    if (!watched.ok()) return Break(connection, watched.status());
    socket = *std::move(watched);
    Tune(socket->get(), options_.tuning);
    answer.detail = hello_.instance;
    answer.kernel_tls = hello.kernel_tls && kernel_tls_ != nullptr && kernel_tls_->Attach(socket->get()) == 0;
  }
  Acceptor::SendAnswer(socket != nullptr ? socket->get() : arrival.socket.get(), arrival.opening.get(), answer);
  if (socket != nullptr) {
    Add(connection, WithSecrets(std::move(socket), *arrival.opening, hello, hello.target, answer.kernel_tls),
        hello.instance);
  }
  if (answer.verdict == Verdict::kDuplicate) {
    LOCKSTEP_LOG(kWarning) << "rank " << hello_.source
                           << ": a connection was turned away: " << RefusalText(answer, hello);
  }
}

Verdict Connections::Judge(const Connection& connection, const Hello& hello) const {
  if (connection.send->broken() || connection.receive->broken()) return Verdict::kAborted;
  if (connection.waiting() && connection.sockets.empty()) {
    if (hello.socket != 0) return Verdict::kAborted;  // its first one was given up
    const bool under_way =
        connection.connector != nullptr && connection.connector->state() != Connector::State::kPausing;
    return under_way && hello_.source < hello.source ? Verdict::kCrossed : Verdict::kAccepted;
  }
  if (hello.instance != connection.peer_instance) return Verdict::kDuplicate;
  const bool next = connection.waiting() && connection.connector == nullptr && hello.socket > 0 &&
                    hello.socket == connection.sockets.size();
  return next ? Verdict::kAccepted : Verdict::kCrossed;
}

bool Connections::Advance() {
  ConnectAwaited();
  const size_t before = connecting_.size();
  connecting_.erase(std::remove_if(connecting_.begin(), connecting_.end(),
                                   [this](Connection* connection) { return AdvanceConnector(connection); }),
                    connecting_.end());
  return connecting_.size() != before;
}

bool Connections::AdvanceConnector(Connection* connection) {
  for (;;) {
    connection->connector->Advance();
    std::unique_ptr<Connector> connector = std::move(connection->connector);
    if (connector->state() == Connector::State::kFailed) {
      Break(connection, connector->status());
      return true;
    }
    if (connector->state() != Connector::State::kConnected) {
      connection->connector = std::move(connector);
      return false;
    }
    Add(connection, connector->TakeSocket(), connector->peer_instance());
    if (!connection->waiting()) return true;
    MakeConnector(connection);
  }
}

void Connections::Add(Connection* connection, OpenSocket socket, uint32_t peer_instance) {
  connection->peer_instance = peer_instance;
  connection->sockets.push_back(std::move(socket));
  if (connection->sockets.size() < hello_.sockets) return;
  connection->kernel_tls = connection->sockets.front().kernel_tls;  // of one
  connection->send->Open(MakeStream(connection, Link::Direction::kSend));
  connection->receive->Open(MakeStream(connection, Link::Direction::kReceive));
  connection->sockets.clear();
  Schedule(connection);
}

std::unique_ptr<ByteStream> Connections::MakeStream(Connection* connection, Link::Direction direction) const {
  const bool sends = direction == Link::Direction::kSend;
  // Of several sockets one closes first: what the others have not released by then could not be told from what is lost.
  const bool zero_copy = options_.tuning.zero_copy && sends && connection->sockets.size() == 1;
  std::vector<std::unique_ptr<ByteStream>> streams;
  for (const OpenSocket& open : connection->sockets) {
    const absl::optional<RecordSecret>& secret = sends ? open.send : open.receive;
    if (zero_copy && secret.has_value()) {
      LOCKSTEP_LOG(kInfo) << "tcp transport: no zero-copy sends to rank " << connection->send->peer()
                          << ": they go in records";
    }
    if (open.kernel_tls) {
      std::unique_ptr<ByteStream> stream;
      if (sends) {
        stream = std::make_unique<KernelTlsWriter>(kernel_tls_, open.socket, &connection->ended, *secret);
      } else {
        stream = std::make_unique<KernelTlsReader>(kernel_tls_, open.socket, &connection->ended, *secret);
      }
      streams.push_back(std::move(stream));
      continue;
    }
    if (zero_copy && !secret.has_value()) {
      streams.push_back(std::make_unique<ZeroCopyStream>(open.socket, &connection->ended));
      continue;
    }
    std::unique_ptr<ByteStream> stream = std::make_unique<TcpStream>(open.socket, &connection->ended);
    if (secret.has_value() && sends) {
      stream = std::make_unique<RecordWriter>(std::move(stream), options_.credentials.level, *secret);
    } else if (secret.has_value()) {
      stream = std::make_unique<RecordReader>(std::move(stream), options_.credentials.level, *secret);
    }
    streams.push_back(std::move(stream));
  }
  if (streams.size() == 1) return std::move(streams.front());
  return std::make_unique<StripedStream>(std::move(streams), kStripeBytes);
}

void Connections::Break(Connection* connection, const absl::Status& cause) {
  connection->sockets.clear();
  connection->send->BreakBecause(cause);
  connection->receive->BreakBecause(cause);
  Schedule(connection);
}

void Connections::Schedule(Connection* connection) {
  for (Link* const link : {connection->send, connection->receive}) {
    if (link->runnable()) links_->Schedule(link);
  }
}

Deadline Connections::next_deadline() const {
  Deadline next = Deadline::Infinite();
  for (const Connection* connection : connecting_) {
    next = Deadline::Earlier(next, connection->connector->next_deadline());
  }
  for (const Connection* connection : awaited_) next = Deadline::Earlier(next, connection->connect_at);
  return next;
}

void Connections::AbortChannel(ChannelId channel) {
  for (const auto& entry : connections_) {
    Connection* const connection = entry.second.get();
    if (connection->send->channel() != channel) continue;
    connection->connector = nullptr;
    connection->sockets.clear();
    aborted_.push_back(entry.first);
  }
  connecting_.erase(std::remove_if(connecting_.begin(), connecting_.end(),
                                   [](const Connection* connection) { return connection->connector == nullptr; }),
                    connecting_.end());
  awaited_.erase(
      std::remove_if(awaited_.begin(), awaited_.end(),
                     [channel](const Connection* connection) { return connection->send->channel() == channel; }),
      awaited_.end());
}

void Connections::AbortAll() {
  for (const auto& entry : connections_) {
    entry.second->connector = nullptr;
    entry.second->sockets.clear();
  }
  connecting_.clear();
  awaited_.clear();
}

void Connections::ReleaseAborted() {
  if (aborted_.empty()) return;
  const auto released = [this](uint64_t key) {
    const auto found = connections_.find(key);
    if (found == connections_.end()) return true;  // aborted twice
    const Connection& connection = *found->second;
    if (connection.send->pending() || connection.receive->pending()) return false;
    links_->Release(connection.send);
    links_->Release(connection.receive);
    connections_.erase(found);
    return true;
  };
  aborted_.erase(std::remove_if(aborted_.begin(), aborted_.end(), released), aborted_.end());
}

}  // namespace lockstep
