#include "transport/shm/local_peers.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "transport/net/epoll.h"
#include "transport/net/socket.h"
#include "transport/net/unix_socket.h"
#include "transport/secure/user.h"

namespace lockstep {
namespace {

constexpr int kEventsPerPoll = 64;
// In one call at most. The rest shows in the epoll set.
constexpr int kAcceptedPerPoll = 64;
constexpr int kHandshakesPerPoll = 8;
// A peer that closes a connection in the middle of the handshake may have had too many.
constexpr int kTriesMax = 20;
// How long this rank stays for the hellos of those that it could not connect to.
constexpr std::chrono::seconds kStay(1);
// Between attempts to enter a peer's full queue.
constexpr std::chrono::milliseconds kPause(2);
// Between two calls of go_on.
constexpr std::chrono::milliseconds kLook(100);

// Between two looks for the ends of connections that no notice announces.
constexpr std::chrono::milliseconds kEndLook(50);
// How long a notice waits for two descriptors to read it by.
constexpr std::chrono::seconds kDescriptorsWait(5);

// The most descriptors that all LocalPeers of this process may park. The system limits how many a user has under way in Unix sockets.
int ParkedMax() { return 4 * static_cast<int>(HalfOpen::MostForThisProcess()); }
std::atomic<int> may_be_parked{0};

// What an event is about, beside an index.
enum : uint64_t { kBell, kListener, kHalfOpen, kOwnSocket, kTheirSocket };

constexpr int kIndexBits = 56;
uint64_t About(uint64_t about, uint64_t index) { return about << kIndexBits | index; }

bool CarriesMemory(const ShmNotice& notice) {
  return notice.kind == ShmNoticeKind::kMailbox || (notice.kind == ShmNoticeKind::kArena && notice.bytes > 0);
}

// To a socket that is new, so that its buffer is empty: it fits.
absl::Status SendToNew(int socket, absl::string_view bytes) {
  const absl::StatusOr<bool> sent = SendUnix(socket, bytes, {});
  if (sent.ok() && !*sent) return absl::UnavailableError("no room to send to a unix socket");
  return sent.status();
}

// Of a hello that is turned away.
Refusal RefusalOf(const absl::StatusOr<ShmHello>& hello) {
  if (hello.ok()) return Refusal::kOtherWorld;
  return absl::IsInvalidArgument(hello.status()) ? Refusal::kBroken : Refusal::kOtherVersion;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalPeers>> LocalPeers::Create(ShmExpectation self, const Credentials& credentials,
                                                               std::chrono::milliseconds handshake_timeout,
                                                               Doorbell* bell) {
  ShmAddress address;
  LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t name, RandomNumber());
  LOCKSTEP_ASSIGN_OR_RETURN(address.nonce, RandomNumber());
  address.name = absl::StrCat("lockstep-", absl::Hex(name, absl::kZeroPad16));
  address.user_namespace = UserNamespace();
  self.nonce = address.nonce;
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd listener, ListenUnix(address.name));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd events, NewEpoll());
  LOCKSTEP_RETURN_IF_ERROR(
      EpollControl(events.get(), EPOLL_CTL_ADD, bell->event_descriptor(), EPOLLIN, About(kBell, 0)));
  LOCKSTEP_RETURN_IF_ERROR(EpollControl(events.get(), EPOLL_CTL_ADD, listener.get(), EPOLLIN, About(kListener, 0)));
  return std::unique_ptr<LocalPeers>(new LocalPeers(std::move(self), credentials, handshake_timeout, bell,
                                                    std::move(listener), std::move(events), std::move(address)));
}

LocalPeers::LocalPeers(ShmExpectation self, const Credentials& credentials, std::chrono::milliseconds handshake_timeout,
                       Doorbell* bell, UniqueFd listener, UniqueFd events, ShmAddress address)
    : self_(std::move(self)),
      credentials_(credentials),
      handshake_timeout_(handshake_timeout),
      bell_(bell),
      address_(std::move(address)),
      listener_(std::move(listener)),
      events_(std::move(events)),
      spare_(Duplicate(events_.get())),
      peers_(self_.size),
      refusals_(absl::StrCat("rank ", self_.rank.value(), "'s unix socket ", address_.name)),
      // Besides others, all ranks may come at once, and wait until this one looks. They are of this user, all of them.
      half_open_(HalfOpen::Bound::kListener, HalfOpen::MostForThisProcess() + self_.size, 0, handshake_timeout) {
  peers_[self_.rank.value()].status = absl::OkStatus();
}

std::vector<absl::Status> LocalPeers::Connect(const std::vector<std::string>& addresses, Deadline deadline,
                                              const std::function<bool()>& go_on) {
  asked_ = true;
  for (int i = 0; i < self_.size; ++i) {
    Peer& peer = peers_[i];
    if (i == self_.rank.value() || i >= addresses.size() || addresses[i].empty()) continue;
    absl::StatusOr<ShmAddress> address = ShmAddress::Parse(addresses[i]);
    if (!address.ok()) {
      FailOwn(&peer, address.status());
    } else if (address->user_namespace != address_.user_namespace) {
      // Not left to their ids, which one of both may take for the other's and one not.
      FailOwn(&peer, absl::PermissionDeniedError("its process is in another user namespace"));
    } else {
      peer.address = *std::move(address);
      peer.own = Own::kTrying;
    }
  }
  const auto undecided = [](const Peer& peer) { return peer.own != Own::kNone && !peer.decided; };
  while (std::any_of(peers_.begin(), peers_.end(), undecided)) {
    for (int i = 0; i < self_.size; ++i) Try(&peers_[i], Rank(i));
    (void)Poll(nullptr);
    if (!std::any_of(peers_.begin(), peers_.end(), undecided)) break;
    if (deadline.passed() || (go_on != nullptr && !go_on())) break;
    // One that closed a connection in the middle of the handshake among them.
    const bool trying =
        std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.own == Own::kTrying; });
    pollfd event = {events_.get(), POLLIN, 0};
    const Deadline look = Deadline::After(trying || paused_ ? kPause : kLook);
    (void)poll(&event, 1, Deadline::Earlier(deadline, look).remaining_ms());
  }
  // Whoever turned this rank away need not wait until the next Poll: it has connected, and may be in the middle of its handshake.
  (void)Poll(nullptr);
  const bool turned_away =
      std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.own == Own::kFailed; });
  const Deadline stay = Deadline::Earlier(deadline, Deadline::After(kStay));
  while (turned_away && half_open_.size() > 0 && !stay.passed()) {
    pollfd event = {events_.get(), POLLIN, 0};
    (void)poll(&event, 1, stay.remaining_ms());
    (void)Poll(nullptr);
  }
  std::vector<absl::Status> statuses;
  for (int i = 0; i < self_.size; ++i) {
    Peer& peer = peers_[i];
    if (undecided(peer)) Decide(&peer, absl::DeadlineExceededError("its process did not answer in time"));
    if (peer.decided && peer.status.ok()) {
      const absl::Status watched =
          EpollControl(events_.get(), EPOLL_CTL_ADD, peer.their_socket.get(), EPOLLIN, About(kTheirSocket, i));
      if (!watched.ok()) Decide(&peer, watched);
    }
    statuses.push_back(peer.status);
  }
  return statuses;
}

void LocalPeers::Try(Peer* peer, Rank rank) {
  if (peer->own != Own::kTrying) return;
  absl::StatusOr<UniqueFd> socket = ConnectUnix(peer->address.name);
  if (!socket.ok()) return FailOwn(peer, absl::UnavailableError(socket.status().message()));
  if (!socket->valid()) return;
  const absl::StatusOr<UnixCredentials> credentials = PeerCredentials(socket->get());
  if (!credentials.ok()) return FailOwn(peer, credentials.status());
  if (!IsThisUser(credentials->uid)) {
    return FailOwn(peer, absl::PermissionDeniedError(absl::StrCat(
                             "its process belongs to ", DescribeUser(credentials->uid), ", ours to user ", geteuid())));
  }
  peer->pid = credentials->pid;
  peer->own_socket = *std::move(socket);
  peer->own_channel = std::make_unique<Channel>(Purpose::kLocal, Channel::Side::kConnects, credentials_);
  peer->own = Own::kSecuring;
  ++peer->tries;
  const absl::Status watched =
      EpollControl(events_.get(), EPOLL_CTL_ADD, peer->own_socket.get(), EPOLLIN, About(kOwnSocket, rank.value()));
  if (!watched.ok()) return FailOwn(peer, watched);
  const absl::Status sent = SendToNew(peer->own_socket.get(), peer->own_channel->Start());
  if (!sent.ok()) FailOwn(peer, sent);
}

void LocalPeers::Secure(Peer* peer, Rank rank) {
  UnixMessage message;
  const absl::StatusOr<bool> received = ReceiveUnix(peer->own_socket.get(), &message);
  if (received.ok() && !*received) return;
  if (absl::IsUnavailable(received.status()) && peer->tries < kTriesMax) {
    peer->own_socket.reset();
    peer->own = Own::kTrying;
    return;
  }
  if (!received.ok()) return FailOwn(peer, received.status());
  std::string to_send, plain;
  absl::Status status = peer->own_channel->Receive(message.bytes, &plain, &to_send);
  if (!to_send.empty()) status.Update(SendToNew(peer->own_socket.get(), to_send));
  if (!status.ok()) return FailOwn(peer, status);
  if (!peer->own_channel->ready()) return;
  peer->own_channel = nullptr;
  const ShmHello hello = {self_.job_id, self_.world_id, peer->address.nonce, self_.rank, rank, self_.chunk_bytes};
  const absl::StatusOr<bool> sent =
      SendUnix(peer->own_socket.get(), EncodeHello(hello), {bell_->page_descriptor(), bell_->event_descriptor()});
  if (!sent.ok()) return FailOwn(peer, sent.status());
  if (!*sent) {
    // This user's descriptors under way are as many as it may open.
    peer->own_socket.reset();
    peer->own = Own::kTrying;
    return;
  }
  peer->own = Own::kHelloSent;
  Settle(peer);
}

void LocalPeers::ReadAnswer(Peer* peer) {
  UnixMessage message;
  const absl::StatusOr<bool> received = ReceiveUnix(peer->own_socket.get(), &message);
  if (received.ok() && !*received) return;
  if (!received.ok()) return FailOwn(peer, received.status());
  const absl::Status answer = DecodeAnswer(message.bytes);
  if (!answer.ok()) return FailOwn(peer, Annotate(answer, "it turned us away"));
  peer->own = Own::kAnswered;
  Settle(peer);
}

void LocalPeers::FailOwn(Peer* peer, const absl::Status& why) {
  peer->own = Own::kFailed;
  peer->own_status = why;
  peer->own_socket.reset();
  peer->own_channel = nullptr;
  Settle(peer);
}

void LocalPeers::AcceptSome() {
  for (int i = 0; i < kAcceptedPerPoll; ++i) {
    absl::StatusOr<UniqueFd> socket = AcceptUnix(listener_.get());
    const absl::Status refusal = socket.status();
    if (!refusal.ok()) {
      if (const auto crowded = half_open_.ToEvict(HalfOpen::Clock::now())) {
        // Who waits gets the descriptor in the next turn, when those that are here have been heard.
        return Drop(*crowded, Refusal::kCrowded, refusal.message());
      }
      socket = AcceptOneMore();
    }
    if (!socket.ok()) {
      // The listener stays readable, and who sleeps should not be woken all the time.
      refusals_.Note(Refusal::kCrowded, "somebody", socket.status().message());
      paused_ = epoll_ctl(events_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr) == 0;
      return;
    }
    if (!socket->valid()) return;
    if (refusal.ok()) {
      Admit(*std::move(socket));
      continue;
    }
    // Out of descriptors, most likely. Whoever it is need not wait in vain.
    refusals_.Note(Refusal::kCrowded, "somebody", refusal.message());
    (void)SendUnix(socket->get(), NoDescriptorsPreamble(Purpose::kLocal), {});
    socket->reset();
    spare_ = Duplicate(events_.get());
  }
}

void LocalPeers::Admit(UniqueFd socket) {
  const absl::StatusOr<UnixCredentials> credentials = PeerCredentials(socket.get());
  if (!credentials.ok()) return refusals_.Note(Refusal::kBroken, "somebody", credentials.status().message());
  const std::string source = absl::StrCat("pid ", credentials->pid);
  if (!IsThisUser(credentials->uid)) {
    return refusals_.Note(Refusal::kOtherUser, source,
                          absl::StrCat("it belongs to ", DescribeUser(credentials->uid), ", we to user ", geteuid()));
  }
  const uint64_t id = ++last_id_;
  const absl::Status watched = EpollControl(events_.get(), EPOLL_CTL_ADD, socket.get(), EPOLLIN, About(kHalfOpen, id));
  if (!watched.ok()) return refusals_.Note(Refusal::kCrowded, source, watched.message());
  half_open_peers_.emplace(
      id, HalfOpenPeer{std::move(socket), source,
                       std::make_unique<Channel>(Purpose::kLocal, Channel::Side::kListens, credentials_)});
  if (const auto crowded = half_open_.Add(id, source, HalfOpen::Clock::now())) {
    Drop(*crowded, Refusal::kCrowded, "too many connections without a hello");
  }
}

void LocalPeers::Drop(uint64_t id, Refusal refusal, absl::string_view why) {
  half_open_.Remove(id);
  const auto found = half_open_peers_.find(id);
  refusals_.Note(refusal, found->second.source, why);
  half_open_peers_.erase(found);
}

absl::StatusOr<UniqueFd> LocalPeers::AcceptOneMore() {
  spare_.reset();
  absl::StatusOr<UniqueFd> socket = AcceptUnix(listener_.get());
  if (!socket.ok() || !socket->valid()) spare_ = Duplicate(events_.get());
  return socket;
}

bool LocalPeers::ReadHello(HalfOpenPeer* half_open) {
  for (;;) {
    UnixMessage message;
    const absl::StatusOr<bool> received = ReceiveUnix(half_open->socket.get(), &message);
    if (received.ok() && !*received) return false;
    if (absl::IsUnavailable(received.status())) {
      refusals_.Note(Refusal::kGaveUp, half_open->source, "");
      return true;
    }
    if (!received.ok()) {
      refusals_.Note(Refusal::kBroken, half_open->source, received.status().message());
      if (half_open->channel->ready()) (void)SendUnix(half_open->socket.get(), EncodeAnswer(received.status()), {});
      return true;
    }
    if (half_open->channel->ready()) {
      TakeHello(half_open, std::move(message));
      return true;
    }
    std::string plain, to_send;
    absl::Status status = half_open->channel->Receive(message.bytes, &plain, &to_send);
    if (!status.ok()) refusals_.Note(half_open->channel->refusal(), half_open->source, status.message());
    if (!to_send.empty()) status.Update(SendToNew(half_open->socket.get(), to_send));
    if (!status.ok()) return true;
  }
}

void LocalPeers::TakeHello(HalfOpenPeer* half_open, UnixMessage message) {
  absl::StatusOr<ShmHello> hello = DecodeHello(message.bytes);
  absl::Status verdict = hello.status();
  if (hello.ok()) verdict = JudgeHello(*hello, self_);
  Peer* const peer = verdict.ok() ? &peers_[hello->source.value()] : nullptr;
  if (peer != nullptr && peer->theirs != Theirs::kNone) {
    verdict = absl::FailedPreconditionError(
        absl::StrCat("rank ", hello->source.value(), " is connected already: is it claimed by two processes?"));
  }
  if (!verdict.ok()) {
    refusals_.Note(RefusalOf(hello), half_open->source, absl::StrCat("it was told: ", verdict.message()));
    (void)SendUnix(half_open->socket.get(), EncodeAnswer(verdict), {});
    return;
  }
  peer->theirs = Theirs::kHeard;
  peer->their_socket = std::move(half_open->socket);
  // Its notices are looked at once Connect has ended.
  (void)epoll_ctl(events_.get(), EPOLL_CTL_DEL, peer->their_socket.get(), nullptr);
  absl::StatusOr<PeerDoorbell> bell = absl::FailedPreconditionError("no doorbell came with the hello");
  if (message.descriptors.size() == 2) {
    bell = PeerDoorbell::Attach(std::move(message.descriptors[0]), std::move(message.descriptors[1]));
  }
  peer->theirs_status = bell.status();
  if (bell.ok()) peer->bell = *std::move(bell);
  Settle(peer);
}

void LocalPeers::Settle(Peer* peer) {
  const bool own_known = peer->own == Own::kHelloSent || peer->own == Own::kAnswered || peer->own == Own::kFailed;
  if (peer->theirs == Theirs::kHeard && (own_known || peer->decided || (asked_ && peer->own == Own::kNone))) {
    absl::Status answer = peer->theirs_status;
    if (answer.ok() && peer->own == Own::kNone) answer = absl::UnavailableError("it does not take us for a local peer");
    if (answer.ok() && peer->own == Own::kFailed) answer = peer->own_status;
    if (answer.ok() && peer->decided) answer = peer->status;
    const absl::StatusOr<bool> sent = SendUnix(peer->their_socket.get(), EncodeAnswer(answer), {});
    if (answer.ok() && !sent.ok()) answer = absl::UnavailableError("it no longer waits for an answer");
    // An answer that waits in it is still read by the peer.
    if (!answer.ok()) peer->their_socket.reset();
    peer->theirs = Theirs::kAnswered;
    peer->theirs_status = answer;
  }
  if (peer->decided || peer->own == Own::kNone) return;
  if (peer->own == Own::kFailed) return Decide(peer, peer->own_status);
  if (peer->theirs != Theirs::kAnswered) return;
  if (!peer->theirs_status.ok()) return Decide(peer, peer->theirs_status);
  if (peer->own == Own::kAnswered) Decide(peer, absl::OkStatus());
}

void LocalPeers::Decide(Peer* peer, const absl::Status& status) {
  peer->decided = true;
  peer->status = status;
  if (status.ok()) {
    // From here on it is for notices; the peer's own connection tells of its end.
    (void)epoll_ctl(events_.get(), EPOLL_CTL_DEL, peer->own_socket.get(), nullptr);
    return;
  }
  peer->own_socket.reset();
  if (peer->theirs == Theirs::kAnswered) peer->their_socket.reset();
  peer->bell = PeerDoorbell();
}

void LocalPeers::Notify(Rank rank, const ShmNotice& notice, UniqueFd memory) {
  Peer& peer = peers_[rank.value()];
  const bool open = peer.own_socket.valid();
  if (!peer.status.ok() || (!open && !peer.parked)) return;  // it has gone
  peer.unsent.push_back({EncodeNotice(notice), std::move(memory)});
  if (peer.unsent.size() > 1) return;
  ++unsent_peers_;
  if (!Unpark(rank.value()).ok()) return;
  (void)SendNotices(&peer, rank);
  if (!open) Park(rank.value());
}

void LocalPeers::Settled(bool parks) {
  settled_ = true;
  StopListening();
  events_.reset();
  bell_->UseFutex();
  for (Peer& peer : peers_) peer.bell.UseFutex();
  if (!parks) return;
  room_ = 2 * (self_.size - 1);
  absl::StatusOr<UniqueFd> parking = LoopUnix();
  if (may_be_parked.fetch_add(room_) + room_ <= ParkedMax() && parking.ok()) parking_ = *std::move(parking);
  for (int i = 0; i < self_.size; ++i) Park(i);
}

void LocalPeers::Park(int rank) {
  Peer& peer = peers_[rank];
  if (!parking_.valid() || !peer.own_socket.valid()) return;
  const absl::StatusOr<bool> parked = SendUnix(parking_.get(), "p", {peer.own_socket.get(), peer.their_socket.get()});
  if (!parked.ok() || !*parked) return;
  peer.own_socket.reset();
  peer.their_socket.reset();
  peer.parked = true;
  parked_ranks_.push_back(rank);
}

absl::Status LocalPeers::Unpark(int rank) {
  while (peers_[rank].parked) {
    // In two steps: nothing is lost if this process may hold no more descriptors.
    UnixMessage message;
    LOCKSTEP_RETURN_IF_ERROR(ReceiveUnix(parking_.get(), &message, MSG_PEEK).status());
    if (message.descriptors.size() != 2) return absl::InternalError("a connection was parked and is not there");
    char byte;
    (void)recv(parking_.get(), &byte, 1, MSG_DONTWAIT);
    const int first = parked_ranks_.front();
    parked_ranks_.erase(parked_ranks_.begin());
    peers_[first].parked = false;
    peers_[first].own_socket = std::move(message.descriptors[0]);
    peers_[first].their_socket = std::move(message.descriptors[1]);
    if (!peers_[first].status.ok()) {
      peers_[first].own_socket.reset();
      peers_[first].their_socket.reset();
    }
    if (first != rank) Park(first);
  }
  return absl::OkStatus();
}

bool LocalPeers::Look(Observer* observer) {
  const uint32_t notices = bell_->notices();
  const auto now = HalfOpen::Clock::now();
  const bool counted = std::exchange(notices_seen_, notices) != notices;
  if (!counted && unsent_peers_ == 0 && now < next_look_) return false;
  next_look_ = now + kEndLook;
  // Another thread may have the descriptors for a moment. Notices are read at a later look then.
  const bool news = counted || unread_since_.has_value();
  const auto since = unread_since_.value_or(now);
  unread_since_.reset();
  bool moved = false;
  for (int i = 0; i < self_.size; ++i) {
    Peer& peer = peers_[i];
    if (!peer.status.ok()) continue;
    const absl::Status unparked = Unpark(i);
    if (!unparked.ok() && news) {
      unread_since_ = since;
      if (now - since >= kDescriptorsWait) Lose(&peer, Rank(i), unparked, observer);
    }
    if (!peer.own_socket.valid()) continue;
    moved |= ReadNotices(&peer, Rank(i), observer);
    if (!peer.unsent.empty()) moved |= SendNotices(&peer, Rank(i));
    Park(i);
  }
  return moved;
}

bool LocalPeers::SendNotices(Peer* peer, Rank rank) {
  bool moved = false;
  while (!peer->unsent.empty()) {
    const Unsent& unsent = peer->unsent.front();
    const int memory = unsent.memory.get();
    const absl::StatusOr<bool> sent =
        SendUnix(peer->own_socket.get(), unsent.bytes, absl::Span<const int>(&memory, unsent.memory.valid() ? 1 : 0));
    if (sent.ok() && !*sent) {
      (void)EpollControl(events_.get(), EPOLL_CTL_ADD, peer->own_socket.get(), EPOLLOUT,
                         About(kOwnSocket, rank.value()));
      return moved;
    }
    moved = true;
    if (sent.ok()) {
      peer->unsent.pop_front();
      if (settled_) peer->bell.CountNotice();
    } else {
      peer->unsent.clear();  // the peer's own connection tells why
    }
  }
  (void)epoll_ctl(events_.get(), EPOLL_CTL_DEL, peer->own_socket.get(), nullptr);
  --unsent_peers_;
  return moved;
}

bool LocalPeers::ReadNotices(Peer* peer, Rank rank, Observer* observer) {
  bool moved = false;
  while (peer->their_socket.valid()) {
    UnixMessage message;
    const absl::StatusOr<bool> received = ReceiveUnix(peer->their_socket.get(), &message);
    if (received.ok() && !*received) return moved;
    moved = true;
    absl::Status lost = received.status();
    if (received.ok()) {
      const absl::StatusOr<ShmNotice> notice = DecodeNotice(message.bytes);
      const bool with_memory = message.descriptors.size() == 1;
      lost = notice.status();
      if (notice.ok() && message.descriptors.size() <= 1 && with_memory == CarriesMemory(*notice)) {
        observer->OnNotice(rank, *notice, with_memory ? std::move(message.descriptors[0]) : UniqueFd());
        continue;
      }
      lost = absl::DataLossError("it broke the protocol: what it said is no notice");
    }
    Lose(peer, rank, lost, observer);
  }
  return moved;
}

void LocalPeers::Lose(Peer* peer, Rank rank, const absl::Status& why, Observer* observer) {
  peer->their_socket.reset();
  peer->own_socket.reset();
  if (!peer->unsent.empty()) --unsent_peers_;
  peer->unsent.clear();
  peer->status = why;
  observer->OnLost(rank, why);
}

bool LocalPeers::Poll(Observer* observer) {
  if (settled_) return Look(observer);
  if (paused_)
    paused_ = !EpollControl(events_.get(), EPOLL_CTL_ADD, listener_.get(), EPOLLIN, About(kListener, 0)).ok();
  // Another thread may have had its descriptor.
  if (!spare_.valid() && listener_.valid()) spare_ = Duplicate(events_.get());
  epoll_event events[kEventsPerPoll];
  const int count = epoll_wait(events_.get(), events, kEventsPerPoll, 0);
  bool moved = false;
  int handshakes = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t about = events[i].data.u64 >> kIndexBits;
    const uint64_t id = events[i].data.u64 & ((uint64_t{1} << kIndexBits) - 1);
    const int index = static_cast<int>(id);
    if (about == kListener) {
      AcceptSome();
    } else if (about == kHalfOpen) {
      const auto found = half_open_peers_.find(id);
      if (found == half_open_peers_.end() || ++handshakes > kHandshakesPerPoll) continue;
      moved = true;
      if (!ReadHello(&found->second)) {
        half_open_.BegunWell(id, found->second.channel->first_flight(), HalfOpen::Clock::now());
        continue;
      }
      half_open_.Remove(id);
      half_open_peers_.erase(id);
    } else if (about == kOwnSocket) {
      Peer& peer = peers_[index];
      // A peer that said yes closes the connection if its own was turned away.
      if (!peer.decided && peer.own == Own::kSecuring) {
        Secure(&peer, Rank(index));
        moved = true;
      }
      if (!peer.decided && (peer.own == Own::kHelloSent || peer.own == Own::kAnswered)) ReadAnswer(&peer);
      if (peer.own == Own::kAnswered && !peer.unsent.empty()) moved |= SendNotices(&peer, Rank(index));
    } else if (about == kTheirSocket) {
      moved |= ReadNotices(&peers_[index], Rank(index), observer);
    }
  }
  const auto now = HalfOpen::Clock::now();
  while (const auto late = half_open_.Expired(now)) {
    Drop(*late, Refusal::kSilent, absl::StrCat("no hello in ", handshake_timeout_.count(), " ms"));
  }
  return moved;
}

void LocalPeers::StopListening() {
  paused_ = false;
  spare_.reset();
  listener_.reset();
  while (!half_open_peers_.empty()) Drop(half_open_peers_.begin()->first, Refusal::kUnfinished, "");
}

void LocalPeers::Leave() {
  StopListening();
  parking_.reset();
  parked_ranks_.clear();
  may_be_parked.fetch_sub(std::exchange(room_, 0));
  for (Peer& peer : peers_) {
    const bool connected = peer.parked || peer.own_socket.valid();
    peer.parked = false;
    peer.own_socket.reset();
    peer.their_socket.reset();
    peer.unsent.clear();
    // The end of the connection, which it would see later.
    if (settled_ && connected && !bell_->forked()) peer.bell.CountNotice();
  }
  unsent_peers_ = 0;
}

}  // namespace lockstep
