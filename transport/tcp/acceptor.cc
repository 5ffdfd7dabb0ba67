#include "transport/tcp/acceptor.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/net/epoll.h"
#include "transport/tcp/protection.h"

namespace lockstep {
namespace {

// What events carry: connections have numbers from kLastId on.
enum : uint64_t { kListenerId, kStopId, kLastId };
// In one turn at most, so that those who connect and those who shake hands take turns. HalfOpen keeps at least 4: who was accepted is
// read once more before it may have to make way.
constexpr int kAcceptedPerTurn = 4;
constexpr int kAdvancedPerTurn = 8;
constexpr std::chrono::milliseconds kAcceptPause(100);
// That wait until the transport takes them: as many as the kernel's queue of a listener has, which is where they waited otherwise.
constexpr size_t kArrivalsMax = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Create(const TcpTransportOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd listener, Listen(options.bind_address));
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress address, LocalAddress(listener.get()));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd events, NewEpoll());
  LOCKSTEP_ASSIGN_OR_RETURN(Wakeup arrived, Wakeup::Create());
  LOCKSTEP_ASSIGN_OR_RETURN(Wakeup stop, Wakeup::Create());
  LOCKSTEP_RETURN_IF_ERROR(EpollControl(events.get(), EPOLL_CTL_ADD, listener.get(), EPOLLIN, kListenerId));
  LOCKSTEP_RETURN_IF_ERROR(EpollControl(events.get(), EPOLL_CTL_ADD, stop.descriptor(), EPOLLIN, kStopId));
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(std::move(listener), std::move(events), std::move(arrived), std::move(stop), address, options));
  LOCKSTEP_RETURN_IF_ERROR(acceptor->thread_.Start("lockstep-accept", [self = acceptor.get()] { self->Loop(); }));
  return acceptor;
}

Acceptor::Acceptor(UniqueFd listener, UniqueFd events, Wakeup arrived, Wakeup stop, const SocketAddress& address,
                   const TcpTransportOptions& options)
    : listener_(std::move(listener)),
      events_(std::move(events)),
      arrived_(std::move(arrived)),
      stop_(std::move(stop)),
      address_(address),
      options_(options),
      refusals_(absl::StrCat("tcp listener ", address.ToString())),
      half_open_(HalfOpen::Bound::kProcess, options.pending_connections_max, 0, options.handshake_timeout),
      last_id_(kLastId) {}

Acceptor::~Acceptor() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  stop_.Signal();
  thread_.Join();
  for (const auto& [id, pending] : pending_) refusals_.Note(Refusal::kUnfinished, pending.peer.ToString(), "");
}

std::vector<Acceptor::Arrival> Acceptor::TakeArrivals() {
  MutexLock lock(&mu_);
  arrived_.Clear();
  return std::exchange(arrivals_, {});
}

void Acceptor::Loop() {
  for (;;) {
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
    }
    const bool accept = AdvanceSome();
    const auto now = HalfOpen::Clock::now();
    while (const auto late = half_open_.Expired(now)) {
      Drop(*late, Refusal::kSilent, absl::StrCat("no handshake in ", options_.handshake_timeout.count(), " ms"));
    }
    if (accept) AcceptSome();
    if (accept_again_.passed()) {
      accept_again_ = Deadline::Infinite();
      (void)EpollControl(events_.get(), EPOLL_CTL_MOD, listener_.get(), EPOLLIN, kListenerId);
    }
  }
}

bool Acceptor::AdvanceSome() {
  const Deadline until = Deadline::Earlier(accept_again_, Deadline::At(half_open_.next_expiry()));
  // The set is level-triggered, and gives what was not looked at this time first the next time.
  epoll_event events[kAdvancedPerTurn];
  const int count = epoll_wait(events_.get(), events, kAdvancedPerTurn, until.remaining_ms());
  bool accept = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[i].data.u64;
    accept |= id == kListenerId;
    Advance(id);
  }
  return accept;
}

void Acceptor::Advance(uint64_t id) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  Hello hello;
  const Outcome outcome = Read(&found->second, &hello);
  if (outcome == Outcome::kWaiting) {
    half_open_.BegunWell(id, found->second.opening->channel().first_flight(), HalfOpen::Clock::now());
    return;
  }
  half_open_.Remove(id);
  if (outcome == Outcome::kArrived) {
    MutexLock lock(&mu_);
    if (arrivals_.size() < kArrivalsMax) {
      (void)EpollControl(events_.get(), EPOLL_CTL_DEL, found->second.socket.get(), 0, id);
      arrivals_.push_back({std::move(hello), std::move(found->second.socket), std::move(found->second.opening)});
      arrived_.Signal();
      pending_.erase(found);
      return;
    }
    refusals_.Note(Refusal::kCrowded, found->second.peer.ToString(),
                   absl::StrCat(kArrivalsMax, " connections wait for this rank to look at them"));
  }
  Forget(id);
}

void Acceptor::Forget(uint64_t id) {
  const auto found = pending_.find(id);
  // Closing it is not enough where another process has a copy.
  (void)EpollControl(events_.get(), EPOLL_CTL_DEL, found->second.socket.get(), 0, id);
  pending_.erase(found);
}

void Acceptor::AcceptSome() {
  for (int i = 0; i < kAcceptedPerTurn; ++i) {
    SocketAddress peer;
    absl::StatusOr<UniqueFd> socket = Accept(listener_.get(), &peer);
    if (socket.ok() && !socket->valid()) return;
    if (socket.ok()) {
      Admit(*std::move(socket), peer);
    } else if (const auto crowded = half_open_.ToEvict(HalfOpen::Clock::now())) {
      // Who waits gets the descriptor in the next turn, when those that are here have been heard.
      return Drop(*crowded, Refusal::kCrowded, socket.status().message());
    } else {
      // Out of descriptors, most likely. The listener would stay readable, and waiting for events would spin.
      refusals_.Note(Refusal::kCrowded, "somebody", socket.status().message());
      accept_again_ = Deadline::After(kAcceptPause);
      (void)EpollControl(events_.get(), EPOLL_CTL_MOD, listener_.get(), 0, kListenerId);
      return;
    }
  }
}

void Acceptor::Admit(UniqueFd socket, const SocketAddress& peer) {
  const uint64_t id = ++last_id_;
  const absl::Status watched = EpollControl(events_.get(), EPOLL_CTL_ADD, socket.get(), EPOLLIN | EPOLLRDHUP, id);
  if (!watched.ok()) return refusals_.Note(Refusal::kCrowded, peer.ToString(), watched.message());
  pending_.emplace(
      id, Pending{std::move(socket), peer, std::make_unique<Opening>(Channel::Side::kListens, options_.credentials)});
  if (const auto crowded = half_open_.Add(id, peer.HostString(), HalfOpen::Clock::now())) {
    Drop(*crowded, Refusal::kCrowded, "too many connections without a handshake");
  }
  // Most who mean it have said so already: the next that comes does not push them out.
  Advance(id);
}

void Acceptor::Drop(uint64_t id, Refusal refusal, absl::string_view why) {
  half_open_.Remove(id);
  const auto found = pending_.find(id);
  refusals_.Note(refusal, found->second.peer.ToString(), why);
  Forget(id);
}

Acceptor::Outcome Acceptor::Read(Pending* pending, Hello* hello) {
  const int socket = pending->socket.get();
  Opening* const opening = pending->opening.get();
  absl::StatusOr<bool> there = opening->Await(socket, kHelloPrefixBytes);
  size_t hello_bytes = kHelloPrefixBytes;
  if (there.ok() && *there) {
    const HelloPrefix prefix = DecodeHelloPrefix(reinterpret_cast<const unsigned char*>(opening->said().data()));
    if (!prefix.ours) {
      refusals_.Note(Refusal::kNotOurs, pending->peer.ToString(), "what it says is no hello");
      return Outcome::kDropped;
    }
    if (prefix.version != kTcpProtocolVersion) {
      return Reject(pending, Refusal::kOtherVersion, {kTcpProtocolVersion, Verdict::kOtherVersion, 0},
                    absl::StrCat("speaks protocol version ", prefix.version, ", we ", kTcpProtocolVersion));
    }
    if (prefix.body_bytes > kHelloBodyBytesMax) {
      return Reject(pending, Refusal::kBroken, {kTcpProtocolVersion, Verdict::kMalformed, 0}, "its hello is too long");
    }
    hello_bytes += prefix.body_bytes;
    there = opening->Await(socket, hello_bytes);
  }
  if (!there.ok()) {
    const Refusal refusal = opening->channel().refusal();
    if (refusal != Refusal::kCount || absl::IsDataLoss(there.status())) {
      refusals_.Note(refusal, pending->peer.ToString(), there.status().message());
      DiscardUnread(socket);
    } else {
      refusals_.Note(Refusal::kGaveUp, pending->peer.ToString(), "");  // perhaps because it crossed one of ours
    }
    return Outcome::kDropped;
  }
  if (!*there) return Outcome::kWaiting;
  if (opening->said().size() != hello_bytes || !DecodeHelloBody(opening->said().substr(kHelloPrefixBytes), hello)) {
    return Reject(pending, Refusal::kBroken, {kTcpProtocolVersion, Verdict::kMalformed, 0}, "its hello is malformed");
  }
  const Answer answer = JudgeHello(*hello, options_, options_.sockets, WantsRecords(socket, options_));
  if (answer.verdict != Verdict::kAccepted) {
    return Reject(pending, Refusal::kOtherWorld, answer, RefusalText(answer, *hello));
  }
  return Outcome::kArrived;
}

Acceptor::Outcome Acceptor::Reject(Pending* pending, Refusal refusal, const Answer& answer, absl::string_view why) {
  refusals_.Note(refusal, pending->peer.ToString(), why);
  SendAnswer(pending->socket.get(), pending->opening.get(), answer);
  return Outcome::kDropped;
}

void Acceptor::SendAnswer(int socket, Opening* opening, const Answer& answer) {
  unsigned char bytes[kAnswerBytes];
  EncodeAnswer(answer, bytes);
  (void)opening->Say(socket, absl::string_view(reinterpret_cast<const char*>(bytes), sizeof(bytes)));
  if (answer.verdict != Verdict::kAccepted) DiscardUnread(socket);
}

}  // namespace lockstep
