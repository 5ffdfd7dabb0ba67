#include "transport/store/store_tcp_server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/net/epoll.h"
#include "transport/secure/channel.h"
#include "transport/secure/half_open.h"
#include "transport/store/secret_handout.h"
#include "transport/store/store_service.h"
#include "transport/store/store_wire.h"

namespace lockstep {
namespace {

using Clock = Deadline::Clock;

// One iteration reads at most this from a client, so that a big value does not hold up the others.
constexpr size_t kReadBytesPerIteration = size_t{256} << 10;
// Of this what is read at once. What a client has sent is kept only as far as it belongs to a request that is not complete, or came
// with the last piece.
constexpr size_t kReadBytes = size_t{16} << 10;
// A client with more than this unread gets no further requests carried out until it reads.
constexpr size_t kUnreadBytesMax = size_t{256} << 10;
// Waits that were answered by others' requests add to what is unread; a client beyond this is not coming back.
constexpr size_t kUnreadBytesLimit = size_t{1} << 20;
// HalfOpen keeps at least 4: who was accepted is read once more before it may have to make way.
constexpr int kAcceptsPerIteration = 4;
constexpr int kTurnedAwayPerIteration = 64;
constexpr auto kTickMax = std::chrono::milliseconds(1000);

// What epoll hands back for a descriptor that is no client; clients count up from kFirstClient.
constexpr uint64_t kStopEvent = 0;
constexpr uint64_t kListener = 1;
constexpr uint64_t kSecretListener = 2;
constexpr uint64_t kFirstClient = 3;

}  // namespace

class TcpStoreServer::Loop {
 public:
  Loop(const Options& options, std::string name, std::vector<UniqueFd> listeners,
       std::vector<UniqueFd> secret_listeners, UniqueFd epoll, UniqueFd stop_event, UniqueFd spare)
      : options_(options),
        refusals_(std::move(name)),
        listeners_(std::move(listeners)),
        secret_listeners_(std::move(secret_listeners)),
        epoll_(std::move(epoll)),
        stop_event_(std::move(stop_event)),
        spare_(std::move(spare)),
        service_(options.bytes_max) {}

  // Before Run: puts listeners and stop event into the epoll set.
  absl::Status Prepare() {
    LOCKSTEP_RETURN_IF_ERROR(Control(EPOLL_CTL_ADD, stop_event_.get(), EPOLLIN, kStopEvent));
    LOCKSTEP_RETURN_IF_ERROR(Watch(secret_listeners_, kSecretListener));
    return Watch(listeners_, kListener);
  }

  // Any thread.
  void Stop() {
    const uint64_t one = 1;
    while (write(stop_event_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

  // Any thread.
  absl::Status status() const {
    MutexLock lock(&mu_);
    return excluded_.ok() ? status_ : excluded_;
  }

  // Any thread.
  std::string turned_away() const {
    MutexLock lock(&mu_);
    return turned_away_;
  }

  // Any thread.
  const Refusals& refusals() const { return refusals_; }

  void Run() {
    epoll_event events[64];
    for (;;) {
      const int count = epoll_wait(epoll_.get(), events, 64, TickMs());
      if (count < 0 && errno != EINTR) {
        // Our own descriptor is broken: nothing can be served any more. Clients learn it by their connections closing.
        LOCKSTEP_LOG(kError) << "store server: " << ErrnoStatus(errno, "epoll_wait");
        listeners_.clear();
        clients_.clear();
        return;
      }
      bool accept = false;
      for (int i = 0; i < count; ++i) {
        const uint64_t tag = events[i].data.u64;
        if (tag == kStopEvent) return NoteUnfinished();
        if (tag == kListener) {
          accept = true;
          continue;
        }
        if (tag == kSecretListener) {
          HandOutSecrets();
          continue;
        }
        const auto client = clients_.find(tag);
        if (client == clients_.end()) continue;
        const absl::Status status = Serve(&client->second, events[i].events);
        if (!status.ok()) Drop(client, status);
      }
      // After those that are here have been heard.
      if (accept) AcceptSome();
      if (Clock::now() >= next_tick_) Tick();
    }
  }

 private:
  struct Client {
    Client(uint64_t serial, UniqueFd socket, const SocketAddress& peer, const Credentials& credentials)
        : serial(serial),
          socket(std::move(socket)),
          peer(peer),
          channel(Purpose::kStore, Channel::Side::kListens, credentials) {}

    const uint64_t serial;
    const UniqueFd socket;
    const SocketAddress peer;
    Channel channel;
    std::string in;               // bytes of requests that are not complete yet
    std::deque<std::string> out;  // as the channel has made them: in this order
    size_t out_begin = 0;         // bytes of out.front() that were sent
    size_t out_bytes = 0;         // bytes not sent yet
    bool reads_nothing = false;   // disconnected for it
    uint32_t events = EPOLLIN;
  };
  // By serial number rather than by descriptor: those are used again, also within one round of events.
  using Clients = std::unordered_map<uint64_t, Client>;

  absl::Status Control(int operation, int descriptor, uint32_t events, uint64_t tag) {
    return EpollControl(epoll_.get(), operation, descriptor, events, tag);
  }

  // All of them, or none.
  absl::Status Watch(const std::vector<UniqueFd>& listeners, uint64_t tag) {
    absl::Status status;
    for (const UniqueFd& listener : listeners) status.Update(Control(EPOLL_CTL_ADD, listener.get(), EPOLLIN, tag));
    if (!status.ok()) Unwatch(listeners);
    return status;
  }

  void Unwatch(const std::vector<UniqueFd>& listeners) {
    for (const UniqueFd& listener : listeners) (void)Control(EPOLL_CTL_DEL, listener.get(), 0, 0);
  }

  void AcceptSome() {
    for (const UniqueFd& listener : listeners_) {
      if (AcceptFrom(listener)) continue;
      // The listeners would report readiness for ever: look again after a whole tick.
      was_listening_ = listening_ = false;
      Unwatch(listeners_);
      next_tick_ = Clock::now() + std::chrono::milliseconds(TickMs());
      return;
    }
    was_listening_ = true;
    SetStatus(absl::OkStatus());
  }

  // False when none could be accepted though some wait.
  bool AcceptFrom(const UniqueFd& listener) {
    for (int i = 0; i < kAcceptsPerIteration; ++i) {
      SocketAddress peer;
      absl::StatusOr<UniqueFd> socket = Accept(listener.get(), &peer);
      if (!socket.ok()) {
        // Out of descriptors, most likely.
        if (MakeRoom()) continue;
        LOCKSTEP_LOG(kWarning) << "store server: " << socket.status();
        if (!was_listening_) {
          SetStatus(Annotate(socket.status(), "the store's server cannot take connections"));
          TurnAway(listener);
        }
        return false;
      }
      if (!socket->valid()) break;
      if (clients_.size() >= options_.clients_max && !MakeRoom()) {
        refusals_.Note(Refusal::kCrowded, peer.ToString(),
                       absl::StrCat("refused: there are ", clients_.size(), " connections already"));
        continue;
      }
      // A host that vanished without a word would keep its place for ever.
      const int on = 1;
      (void)setsockopt(socket->get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
      const uint64_t serial = next_client_++;
      if (const absl::Status status = Control(EPOLL_CTL_ADD, socket->get(), EPOLLIN, serial); !status.ok()) {
        refusals_.Note(Refusal::kCrowded, peer.ToString(), status.message());
        continue;
      }
      clients_.try_emplace(serial, serial, *std::move(socket), peer, options_.credentials);
      if (const auto most = half_open_.Add(serial, peer.HostString(), Clock::now())) GiveUp(*most, Refusal::kCrowded);
      // Most who mean it have said so already: the next that comes does not push them out.
      const auto client = clients_.find(serial);
      if (client == clients_.end()) continue;
      if (const absl::Status status = Serve(&client->second, EPOLLIN); !status.ok()) Drop(client, status);
    }
    return true;
  }

  // Gives up a connection that has not proved who it is. False when there is none.
  bool MakeRoom() {
    const absl::optional<uint64_t> crowded = half_open_.ToEvict(Clock::now());
    if (crowded.has_value()) GiveUp(*crowded, Refusal::kCrowded);
    return crowded.has_value();
  }

  void NoteUnfinished() {
    for (const auto& [serial, client] : clients_) {
      if (!client.channel.ready()) refusals_.Note(Refusal::kUnfinished, client.peer.ToString(), "");
    }
  }

  void GiveUp(uint64_t half_open, Refusal refusal) {
    const auto client = clients_.find(half_open);
    refusals_.Note(refusal, client->second.peer.ToString(), absl::StrCat("it ", Text(refusal)));
    Forget(client);
  }

  // Tells those who wait there that they cannot be served.
  void TurnAway(const UniqueFd& listener) {
    const std::string answer = NoDescriptorsPreamble(Purpose::kStore);
    bool someone = true;
    for (int i = 0; i < kTurnedAwayPerIteration && someone && spare_.valid(); ++i) {
      spare_.reset();
      SocketAddress peer;
      absl::StatusOr<UniqueFd> socket = Accept(listener.get(), &peer);
      someone = socket.ok() && socket->valid();
      if (someone) {
        refusals_.Note(Refusal::kCrowded, peer.ToString(), "there is no descriptor for its connection");
        (void)send(socket->get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        DiscardUnread(socket->get());
        socket->reset();
      }
      spare_ = Duplicate(stop_event_.get());
    }
  }

  void HandOutSecrets() {
    for (const UniqueFd& listener : secret_listeners_) {
      absl::Status status = HandOutSecret(listener.get(), *options_.credentials.secret, &refusals_);
      if (status.ok()) continue;
      // Out of descriptors, most likely. One for a moment does.
      spare_.reset();
      status = HandOutSecret(listener.get(), *options_.credentials.secret, &refusals_);
      spare_ = Duplicate(stop_event_.get());
      if (status.ok()) continue;
      LOCKSTEP_LOG(kWarning) << "store server: " << status;
      // As above.
      handing_out_ = false;
      Unwatch(secret_listeners_);
      next_tick_ = Clock::now() + std::chrono::milliseconds(TickMs());
      return;
    }
  }

  void SetStatus(const absl::Status& status) {
    MutexLock lock(&mu_);
    status_ = status;
  }

  void SetTurnedAway(const SocketAddress& peer, const absl::Status& reason) {
    MutexLock lock(&mu_);
    turned_away_ = absl::StrCat("the store's server has turned away ", peer.ToString(), " earlier: ", reason.message());
  }

  // These return why the client is to be dropped, or OK. UNAVAILABLE: it has left, which needs no warning.
  absl::Status Serve(Client* client, uint32_t events) {
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) LOCKSTEP_RETURN_IF_ERROR(Read(client));
    // Requests may be in the buffer that had to wait for room, so that no event will tell of them.
    LOCKSTEP_RETURN_IF_ERROR(Flush(client));
    for (bool had_room = false; !had_room && client->out_bytes <= kUnreadBytesMax;) {
      LOCKSTEP_RETURN_IF_ERROR(TakeInput(client));
      had_room = client->out_bytes <= kUnreadBytesMax;
      LOCKSTEP_RETURN_IF_ERROR(Flush(client));
    }
    return UpdateEvents(client);
  }

  absl::Status Read(Client* client) {
    char buffer[kReadBytes];
    for (size_t taken = 0; taken < kReadBytesPerIteration && client->out_bytes <= kUnreadBytesMax;) {
      const bool was_ready = client->channel.ready();
      const size_t most = was_ready ? sizeof(buffer) : client->channel.wanted();
      const ssize_t received = recv(client->socket.get(), buffer, most, MSG_DONTWAIT);
      if (received == 0) return absl::UnavailableError("closed the connection");
      if (received < 0) {
        if (errno == EAGAIN) break;
        if (errno == EINTR) continue;
        return absl::UnavailableError(ErrnoStatus(errno, "receive").message());
      }
      std::string to_send;
      const absl::Status status =
          client->channel.Receive(absl::string_view(buffer, static_cast<size_t>(received)), &client->in, &to_send);
      Queue(client, std::move(to_send));
      LOCKSTEP_RETURN_IF_ERROR(status);
      if (!was_ready) half_open_.BegunWell(client->serial, client->channel.first_flight(), Clock::now());
      if (!was_ready && client->channel.ready()) half_open_.Remove(client->serial);
      LOCKSTEP_RETURN_IF_ERROR(TakeInput(client));
      taken += static_cast<size_t>(received);
      if (static_cast<size_t>(received) < most) break;
    }
    return absl::OkStatus();
  }

  absl::Status TakeInput(Client* client) {
    absl::string_view rest = client->in;
    while (client->out_bytes <= kUnreadBytesMax) {
      StoreRequest request;
      LOCKSTEP_ASSIGN_OR_RETURN(const size_t bytes, ParseStoreRequest(rest, &request));
      if (bytes == 0) break;
      std::vector<StoreService::Answer> answers;
      service_.CarryOut(client->serial, request, Clock::now(), &answers);
      for (const StoreService::Answer& answer : answers) {
        Client& recipient = clients_.at(answer.client);  // Forget makes the service forget a client.
        Reply(&recipient, answer);
        // Others are sent theirs in an iteration of their own. A failure to ask for it shows there, too.
        if (&recipient != client) (void)UpdateEvents(&recipient);
      }
      rest.remove_prefix(bytes);
    }
    client->in.erase(0, client->in.size() - rest.size());
    return absl::OkStatus();
  }

  void Queue(Client* client, std::string bytes) {
    if (bytes.empty()) return;
    client->out_bytes += bytes.size();
    client->out.push_back(std::move(bytes));
  }

  absl::Status Flush(Client* client) {
    while (!client->out.empty()) {
      const std::string& front = client->out.front();
      const ssize_t sent = send(client->socket.get(), front.data() + client->out_begin,
                                front.size() - client->out_begin, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        if (errno == EAGAIN) break;
        if (errno == EINTR) continue;
        return absl::UnavailableError(ErrnoStatus(errno, "send").message());
      }
      client->out_begin += static_cast<size_t>(sent);
      client->out_bytes -= static_cast<size_t>(sent);
      if (client->out_begin < front.size()) continue;
      client->out.pop_front();
      client->out_begin = 0;
    }
    return absl::OkStatus();
  }

  void Reply(Client* client, const StoreService::Answer& answer) {
    if (client->out_bytes > kUnreadBytesLimit) {
      if (std::exchange(client->reads_nothing, true)) return;
      // Its own iteration finds the connection closed. Dropping it here would pull it from under whoever is being served.
      LOCKSTEP_LOG(kWarning) << "store server: " << client->peer.ToString()
                             << " does not read its answers: disconnected";
      (void)shutdown(client->socket.get(), SHUT_RDWR);
      return;
    }
    StoreReply reply;
    reply.id = answer.request;
    reply.code = answer.status.code();
    reply.body = answer.status.ok() ? absl::string_view(*answer.body) : answer.status.message();
    std::string bytes;
    client->channel.Send(EncodeStoreReply(reply), &bytes);
    Queue(client, std::move(bytes));
  }

  // Asks epoll for what the client's queues call for now.
  absl::Status UpdateEvents(Client* client) {
    const uint32_t events =
        (client->out_bytes <= kUnreadBytesMax ? EPOLLIN : 0u) | (client->out.empty() ? 0u : EPOLLOUT);
    if (events == client->events) return absl::OkStatus();
    client->events = events;
    return Control(EPOLL_CTL_MOD, client->socket.get(), events, client->serial);
  }

  void Drop(Clients::iterator entry, const absl::Status& reason) {
    Client& client = entry->second;
    // What tells it why.
    (void)Flush(&client);
    DiscardUnread(client.socket.get());
    // A client that leaves is daily life.
    if (client.channel.refusal() != Refusal::kCount) {
      const Refusal refusal = client.channel.refusal();
      refusals_.Note(refusal, client.peer.ToString(), reason.message());
      if (refusal == Refusal::kNoSecret && options_.hands_out_secret && !StaysOnHost(client.socket.get())) {
        // Ranks of other hosts cannot have it, so that the world cannot form.
        MutexLock lock(&mu_);
        excluded_ =
            absl::FailedPreconditionError(absl::StrCat("a process at ", client.peer.ToString(),
                                                       " does not have the secret that rank 0 has drawn, which only "
                                                       "processes on rank 0's host get: ",
                                                       kNeedsSecret));
      }
      if (refusal == Refusal::kOtherLevel || refusal == Refusal::kNoSecret) SetTurnedAway(client.peer, reason);
    } else if (!client.channel.ready()) {
      refusals_.Note(Refusal::kGaveUp, client.peer.ToString(), "");
    } else if (!absl::IsUnavailable(reason)) {
      refusals_.Note(Refusal::kBroken, client.peer.ToString(), reason.message());
    }
    Forget(entry);
  }

  void Forget(Clients::iterator entry) {
    half_open_.Remove(entry->first);
    service_.Forget(entry->first);
    clients_.erase(entry);
  }

  // Now and then: silent connections, waits whose time is over, a listener that was put aside.
  void Tick() {
    const Clock::time_point now = Clock::now();
    next_tick_ = now + std::chrono::milliseconds(std::max(TickMs(), 1));
    while (const absl::optional<uint64_t> expired = half_open_.Expired(now)) GiveUp(*expired, Refusal::kSilent);
    service_.DropExpired(now);
    // Another thread may have had its descriptor.
    if (!spare_.valid()) spare_ = Duplicate(stop_event_.get());
    if (!listening_) listening_ = Watch(listeners_, kListener).ok();
    if (!handing_out_) handing_out_ = Watch(secret_listeners_, kSecretListener).ok();
  }

  int TickMs() const {
    if (half_open_.size() == 0 && !service_.anyone_waits() && listening_ && handing_out_) return -1;
    const auto tick = std::min(kTickMax, std::max(options_.handshake_timeout / 4, std::chrono::milliseconds(1)));
    return static_cast<int>(tick.count());
  }

  const Options options_;
  Refusals refusals_;
  std::vector<UniqueFd> listeners_;
  std::vector<UniqueFd> secret_listeners_;
  UniqueFd epoll_;
  UniqueFd stop_event_;
  // Given up for a moment to hand out a secret, or to turn clients away, where there is no other descriptor.
  UniqueFd spare_;
  bool listening_ = true;
  bool was_listening_ = true;  // when it was last tried
  bool handing_out_ = true;
  StoreService service_;
  uint64_t next_client_ = kFirstClient;
  Clients clients_;
  HalfOpen half_open_{HalfOpen::Bound::kProcess, HalfOpen::MostForThisProcess(), 0, options_.handshake_timeout};
  Clock::time_point next_tick_ = Clock::time_point::min();

  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  absl::Status excluded_ ABSL_GUARDED_BY(mu_);
  std::string turned_away_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Create(const SocketAddress& address,
                                                                       const Options& options) {
  return Create(std::vector<SocketAddress>{address}, options);
}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Create(const std::vector<SocketAddress>& addresses,
                                                                       const Options& options) {
  const auto context = [&] { return absl::StrCat("store server at ", addresses.front().ToString()); };
  std::vector<UniqueFd> listeners, secret_listeners;
  std::vector<SocketAddress> bound;
  for (const SocketAddress& address : addresses) {
    absl::StatusOr<UniqueFd> listener = Listen(address);
    if (!listener.ok()) return Annotate(listener.status(), context());
    LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress local, LocalAddress(listener->get()));
    listeners.push_back(*std::move(listener));
    bound.push_back(local);
    if (options.hands_out_secret) {
      LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd secret_listener, ListenForSecretRequests(local));
      secret_listeners.push_back(std::move(secret_listener));
    }
  }
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd epoll, NewEpoll());
  UniqueFd stop_event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event.valid()) return ErrnoStatus(errno, "eventfd");
  UniqueFd spare = Duplicate(stop_event.get());
  if (!spare.valid()) return ErrnoStatus(errno, "a spare descriptor");
  auto loop =
      std::make_unique<Loop>(options, absl::StrCat("store server ", bound.front().ToString()), std::move(listeners),
                             std::move(secret_listeners), std::move(epoll), std::move(stop_event), std::move(spare));
  if (const absl::Status status = loop->Prepare(); !status.ok()) return Annotate(status, context());
  Loop* const running = loop.get();
  auto server = absl::WrapUnique(new TcpStoreServer(std::move(loop), std::move(bound)));
  LOCKSTEP_RETURN_IF_ERROR(server->thread_.Start("lockstep-store", [running] { running->Run(); }));
  return server;
}

TcpStoreServer::TcpStoreServer(std::unique_ptr<Loop> loop, std::vector<SocketAddress> addresses)
    : addresses_(std::move(addresses)), fork_generation_(ForkGeneration()), loop_(std::move(loop)) {}

TcpStoreServer::~TcpStoreServer() {
  if (ForkGeneration() == fork_generation_) {
    loop_->Stop();
  } else {
    // In a forked child there is no thread, its descriptors are closed, and what it was changing is in no known state.
    (void)loop_.release();
  }
  thread_.Join();
}

absl::Status TcpStoreServer::status() const { return loop_->status(); }

std::string TcpStoreServer::turned_away() const { return loop_->turned_away(); }

const Refusals& TcpStoreServer::refusals() const { return loop_->refusals(); }

}  // namespace lockstep
