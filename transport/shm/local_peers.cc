#include "transport/shm/local_peers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/net/epoll.h"
#include "transport/net/unix_socket.h"

namespace lockstep {
namespace {

constexpr size_t kUnauthenticatedMax = 64;
constexpr int kEventsPerPoll = 64;
// Between attempts to enter a peer's full queue.
constexpr std::chrono::milliseconds kPause(2);

// What an event is about, beside an index.
enum : uint64_t { kBell, kListener, kUnauthenticated, kOwnSocket, kTheirSocket };

uint64_t About(uint64_t about, uint64_t index) { return about << 32 | index; }

bool CarriesMemory(const ShmNotice& notice) {
  return notice.kind == ShmNoticeKind::kMailbox || (notice.kind == ShmNoticeKind::kArena && notice.bytes > 0);
}

UniqueFd CopyOf(const UniqueFd& descriptor) { return UniqueFd(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0)); }

absl::StatusOr<uint64_t> Random() {
  uint64_t value;
  if (getrandom(&value, sizeof(value), 0) == sizeof(value)) return value;
  return ErrnoStatus(errno, "getrandom");
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalPeers>> LocalPeers::Create(ShmExpectation self, Doorbell* bell) {
  ShmAddress address;
  LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t name, Random());
  LOCKSTEP_ASSIGN_OR_RETURN(address.nonce, Random());
  address.name = absl::StrCat("lockstep-", absl::Hex(name, absl::kZeroPad16));
  self.nonce = address.nonce;
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd listener, ListenUnix(address.name));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd events, NewEpoll());
  LOCKSTEP_RETURN_IF_ERROR(
      EpollControl(events.get(), EPOLL_CTL_ADD, bell->event_descriptor(), EPOLLIN, About(kBell, 0)));
  LOCKSTEP_RETURN_IF_ERROR(EpollControl(events.get(), EPOLL_CTL_ADD, listener.get(), EPOLLIN, About(kListener, 0)));
  return std::unique_ptr<LocalPeers>(
      new LocalPeers(std::move(self), bell, std::move(listener), std::move(events), std::move(address)));
}

LocalPeers::LocalPeers(ShmExpectation self, Doorbell* bell, UniqueFd listener, UniqueFd events, ShmAddress address)
    : self_(std::move(self)),
      bell_(bell),
      address_(address.ToString()),
      listener_(std::move(listener)),
      events_(std::move(events)),
      spare_(CopyOf(events_)),
      peers_(self_.size) {
  peers_[self_.rank.value()].status = absl::OkStatus();
}

std::vector<absl::Status> LocalPeers::Connect(const std::vector<std::string>& addresses, Deadline deadline) {
  asked_ = true;
  for (int i = 0; i < self_.size; ++i) {
    Peer& peer = peers_[i];
    if (i == self_.rank.value() || i >= addresses.size() || addresses[i].empty()) continue;
    absl::StatusOr<ShmAddress> address = ShmAddress::Parse(addresses[i]);
    if (address.ok()) {
      peer.address = *std::move(address);
      peer.own = Own::kTrying;
    } else {
      FailOwn(&peer, address.status());
    }
  }
  const auto undecided = [](const Peer& peer) { return peer.own != Own::kNone && !peer.decided; };
  while (std::any_of(peers_.begin(), peers_.end(), undecided)) {
    bool trying = false;
    for (int i = 0; i < self_.size; ++i) {
      Try(&peers_[i], Rank(i));
      trying |= peers_[i].own == Own::kTrying;
    }
    (void)Poll(nullptr);
    if (!std::any_of(peers_.begin(), peers_.end(), undecided)) break;
    if (deadline.passed()) break;
    pollfd event = {events_.get(), POLLIN, 0};
    (void)poll(&event, 1,
               (trying || paused_ ? Deadline::Earlier(deadline, Deadline::After(kPause)) : deadline).remaining_ms());
  }
  // Whoever turned this rank away had sent its hello before, and need not wait for an answer until the next Poll.
  (void)Poll(nullptr);
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
  if (credentials->uid != geteuid()) {
    return FailOwn(peer, absl::PermissionDeniedError(absl::StrCat("its process belongs to user ", credentials->uid,
                                                                  ", ours to user ", geteuid())));
  }
  const ShmHello hello = {self_.job_id, self_.world_id, peer->address.nonce, self_.rank, rank, self_.chunk_bytes};
  // The socket is new and its buffer empty: it fits.
  const absl::StatusOr<bool> sent =
      SendUnix(socket->get(), EncodeHello(hello), {bell_->page_descriptor(), bell_->event_descriptor()});
  if (!sent.ok()) return FailOwn(peer, sent.status());
  if (!*sent) return;
  peer->pid = credentials->pid;
  peer->own_socket = *std::move(socket);
  peer->own = Own::kHelloSent;
  const absl::Status watched =
      EpollControl(events_.get(), EPOLL_CTL_ADD, peer->own_socket.get(), EPOLLIN, About(kOwnSocket, rank.value()));
  if (!watched.ok()) return FailOwn(peer, watched);
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
  Settle(peer);
}

void LocalPeers::AcceptAll() {
  for (;;) {
    absl::StatusOr<UniqueFd> socket = AcceptUnix(listener_.get());
    const absl::Status refusal = socket.status();
    if (!refusal.ok()) socket = AcceptOneMore();
    if (!socket.ok()) {
      // The listener stays readable, and who sleeps should not be woken all the time.
      Log(socket.status().message());
      paused_ = epoll_ctl(events_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr) == 0;
      return;
    }
    if (!socket->valid()) return;
    if (!refusal.ok()) {
      // Out of descriptors, most likely. Whoever it is need not wait in vain.
      Log(refusal.message());
      (void)SendUnix(socket->get(), EncodeAnswer(refusal), {});
      socket->reset();
      spare_ = CopyOf(events_);
      continue;
    }
    const absl::StatusOr<UnixCredentials> credentials = PeerCredentials(socket->get());
    if (!credentials.ok() || credentials->uid != geteuid()) {
      Log("a process of another user was turned away");
      continue;
    }
    if (!EpollControl(events_.get(), EPOLL_CTL_ADD, socket->get(), EPOLLIN, About(kUnauthenticated, 0)).ok()) continue;
    if (ReadHello(&*socket)) continue;  // most have said it already
    unauthenticated_.push_back(*std::move(socket));
    if (unauthenticated_.size() > kUnauthenticatedMax) {
      Log(absl::StrCat("more than ", kUnauthenticatedMax, " connections without a hello"));
      unauthenticated_.erase(unauthenticated_.begin());
    }
  }
}

absl::StatusOr<UniqueFd> LocalPeers::AcceptOneMore() {
  spare_.reset();
  absl::StatusOr<UniqueFd> socket = AcceptUnix(listener_.get());
  if (!socket.ok() || !socket->valid()) spare_ = CopyOf(events_);
  return socket;
}

bool LocalPeers::ReadHello(UniqueFd* socket) {
  UnixMessage message;
  const absl::StatusOr<bool> received = ReceiveUnix(socket->get(), &message);
  if (received.ok() && !*received) return false;
  if (!received.ok()) {
    Log(received.status().message());
    (void)SendUnix(socket->get(), EncodeAnswer(received.status()), {});
    return true;
  }
  absl::StatusOr<ShmHello> hello = DecodeHello(message.bytes);
  absl::Status verdict = hello.status();
  if (hello.ok()) verdict = JudgeHello(*hello, self_);
  Peer* const peer = verdict.ok() ? &peers_[hello->source.value()] : nullptr;
  if (peer != nullptr && peer->theirs != Theirs::kNone) {
    verdict = absl::FailedPreconditionError(
        absl::StrCat("rank ", hello->source.value(), " is connected already: is it claimed by two processes?"));
  }
  if (!verdict.ok()) {
    Log(absl::StrCat("a connection was turned away, told: ", verdict.message()));
    (void)SendUnix(socket->get(), EncodeAnswer(verdict), {});
    return true;
  }
  peer->theirs = Theirs::kHeard;
  peer->their_socket = std::move(*socket);
  // Its notices are looked at once Connect has ended.
  (void)epoll_ctl(events_.get(), EPOLL_CTL_DEL, peer->their_socket.get(), nullptr);
  absl::StatusOr<PeerDoorbell> bell = absl::FailedPreconditionError("no doorbell came with the hello");
  if (message.descriptors.size() == 2) {
    bell = PeerDoorbell::Attach(std::move(message.descriptors[0]), std::move(message.descriptors[1]));
  }
  peer->theirs_status = bell.status();
  if (bell.ok()) peer->bell = *std::move(bell);
  Settle(peer);
  return true;
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
  if (!peer.own_socket.valid()) return;  // it has gone
  peer.unsent.push_back({EncodeNotice(notice), std::move(memory)});
  if (peer.unsent.size() == 1) {
    ++unsent_peers_;
    (void)SendNotices(&peer, rank);
  }
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
    peer->their_socket.reset();
    peer->own_socket.reset();
    if (!peer->unsent.empty()) --unsent_peers_;
    peer->unsent.clear();
    peer->status = lost;
    observer->OnLost(rank, lost);
  }
  return moved;
}

bool LocalPeers::Poll(Observer* observer) {
  if (paused_)
    paused_ = !EpollControl(events_.get(), EPOLL_CTL_ADD, listener_.get(), EPOLLIN, About(kListener, 0)).ok();
  epoll_event events[kEventsPerPoll];
  const int count = epoll_wait(events_.get(), events, kEventsPerPoll, 0);
  bool moved = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t about = events[i].data.u64 >> 32;
    const int index = static_cast<int>(events[i].data.u64 & 0xffffffff);
    if (about == kListener) {
      AcceptAll();
    } else if (about == kUnauthenticated) {
      const auto done = [this](UniqueFd& socket) { return ReadHello(&socket); };
      unauthenticated_.erase(std::remove_if(unauthenticated_.begin(), unauthenticated_.end(), done),
                             unauthenticated_.end());
      moved = true;
    } else if (about == kOwnSocket) {
      Peer& peer = peers_[index];
      // A peer that said yes closes the connection if its own was turned away.
      if (!peer.decided && (peer.own == Own::kHelloSent || peer.own == Own::kAnswered)) ReadAnswer(&peer);
      if (peer.own == Own::kAnswered && !peer.unsent.empty()) moved |= SendNotices(&peer, Rank(index));
    } else if (about == kTheirSocket) {
      moved |= ReadNotices(&peers_[index], Rank(index), observer);
    }
  }
  return moved;
}

void LocalPeers::Leave() {
  paused_ = false;
  spare_.reset();
  listener_.reset();
  unauthenticated_.clear();
  for (Peer& peer : peers_) {
    peer.own_socket.reset();
    peer.their_socket.reset();
    peer.unsent.clear();
  }
  unsent_peers_ = 0;
}

void LocalPeers::Log(absl::string_view what) {
  const Deadline::Clock::time_point now = Deadline::Clock::now();
  if (now < next_log_) return;
  next_log_ = now + std::chrono::seconds(1);
  LOCKSTEP_LOG(kWarning) << "rank " << self_.rank << ": unix socket " << address_ << ": " << std::string(what);
}

}  // namespace lockstep
