#include "transport/tcp/connections.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "transport/tcp/tcp_stream.h"
#include "transport/tcp/zero_copy_stream.h"

namespace lockstep {
namespace {

// EPOLLERR comes with them when a connection is lost.
constexpr uint32_t kClosedEvents = EPOLLRDHUP | EPOLLHUP;

// Of a connection of several sockets. The same for all ranks, so it changes with the protocol's version only.
constexpr size_t kStripeBytes = size_t{64} << 10;

uint64_t Key(Rank peer, ChannelId channel) { return static_cast<uint64_t>(peer.value()) << 32 | channel; }

}  // namespace

Connections::Connections(ConnectionsOptions options, LinkTable* links) : options_(std::move(options)), links_(links) {}

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
  Connector::Options connecting;
  connecting.address = connection->address;
  connecting.hello = options_.hello;
  connecting.hello.target = connection->send->peer();
  connecting.hello.channel = connection->send->channel();
  connecting.hello.socket = static_cast<uint16_t>(connection->sockets.size());
  connecting.connect_timeout = options_.connect_timeout;
  connecting.tuning = options_.tuning;
  connecting.events = options_.events;
  connecting.event_data = connection;
  connection->connector = std::make_unique<Connector>(std::move(connecting));
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
        TcpSocket::Create(std::move(arrival.socket), options_.events, connection);
    // Its socket has closed without an answer: the peer tries again, and is told by then.
    if (!watched.ok()) return Break(connection, watched.status());
    socket = *std::move(watched);
    Tune(socket->get(), options_.tuning);
    answer.detail = options_.hello.instance;
  }
  Acceptor::SendAnswer(socket != nullptr ? socket->get() : arrival.socket.get(), answer);
  if (socket != nullptr) Add(connection, std::move(socket), hello.instance);
  if (answer.verdict == Verdict::kDuplicate) {
    LOCKSTEP_LOG(kWarning) << "rank " << options_.hello.source
                           << ": a connection was turned away: " << RefusalText(answer, hello);
  }
}

Verdict Connections::Judge(const Connection& connection, const Hello& hello) const {
  if (connection.send->broken() || connection.receive->broken()) return Verdict::kAborted;
  if (connection.waiting() && connection.sockets.empty()) {
    if (hello.socket != 0) return Verdict::kAborted;  // its first one was given up
    const bool under_way =
        connection.connector != nullptr && connection.connector->state() != Connector::State::kPausing;
    return under_way && options_.hello.source < hello.source ? Verdict::kCrossed : Verdict::kAccepted;
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

void Connections::Add(Connection* connection, std::shared_ptr<TcpSocket> socket, uint32_t peer_instance) {
  connection->peer_instance = peer_instance;
  connection->sockets.push_back(std::move(socket));
  if (connection->sockets.size() < options_.hello.sockets) return;
  connection->send->Open(MakeStream(connection, Link::Direction::kSend));
  connection->receive->Open(MakeStream(connection, Link::Direction::kReceive));
  connection->sockets.clear();
  Schedule(connection);
}

std::unique_ptr<ByteStream> Connections::MakeStream(Connection* connection, Link::Direction direction) const {
  // Of several sockets one closes first: what the others have not released by then could not be told from what is lost.
  const bool zero_copy =
      options_.tuning.zero_copy && direction == Link::Direction::kSend && connection->sockets.size() == 1;
  std::vector<std::unique_ptr<ByteStream>> streams;
  for (const auto& socket : connection->sockets) {
    if (zero_copy) {
      streams.push_back(std::make_unique<ZeroCopyStream>(socket, &connection->ended));
    } else {
      streams.push_back(std::make_unique<TcpStream>(socket, &connection->ended));
    }
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
