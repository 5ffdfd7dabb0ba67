#include "transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "transport/net/epoll.h"

namespace lockstep {
namespace {

// Up to this many links with operations, trying each receive is cheaper than asking epoll first.
constexpr size_t kTriedLinksMax = 8;
// How often Progress asks epoll all the same: new connections and closed ones are seen nowhere else.
constexpr int kProgressPerPoll = 128;
constexpr int kEventsPerPoll = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(TcpTransportOptions options) {
  const auto invalid = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("tcp transport: ", what));
  };
  LOCKSTEP_RETURN_IF_ERROR(CheckWorld("tcp", options, kJobIdBytesMax));
  if (options.sockets < 1 || options.sockets > kTcpSocketsMax) {
    return invalid(absl::StrCat(options.sockets, " sockets a connection, not 1 to ", kTcpSocketsMax));
  }
  for (const int bytes : {options.tuning.send_buffer_bytes, options.tuning.receive_buffer_bytes}) {
    if (bytes < 0) return invalid(absl::StrCat("a socket buffer of ", bytes, " bytes"));
  }
  if (options.bind_address.length() == 0) return invalid("no address to bind");
  if (options.pending_connections_max < 1) return invalid("no room for connections that have not shaken hands");

  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Acceptor> acceptor, Acceptor::Create(options));
  // Tried here, so that a wrong name is an error now, not at the first message.
  LOCKSTEP_RETURN_IF_ERROR(CheckCongestionControl(options.tuning.congestion_control));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd events, NewEpoll());
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd timer, NewTimer());
  LOCKSTEP_ASSIGN_OR_RETURN(Wakeup wakeup, Wakeup::Create());
  std::unique_ptr<TcpTransport> transport(new TcpTransport(std::move(options), std::move(acceptor), std::move(events),
                                                           std::move(timer), std::move(wakeup)));
  // What comes back with an event names acceptor_, armed_ (for the timer), or else a Connection.
  const int epoll = transport->events_.get();
  LOCKSTEP_RETURN_IF_ERROR(
      EpollControl(epoll, EPOLL_CTL_ADD, transport->acceptor_->event_descriptor(), EPOLLIN, &transport->acceptor_));
  LOCKSTEP_RETURN_IF_ERROR(EpollControl(epoll, EPOLL_CTL_ADD, transport->timer_.get(), EPOLLIN, &transport->armed_));
  return transport;
}

TcpTransport::TcpTransport(TcpTransportOptions options, std::unique_ptr<Acceptor> acceptor, UniqueFd events,
                           UniqueFd timer, Wakeup wakeup)
    : options_(std::move(options)),
      fork_generation_(ForkGeneration()),
      address_(acceptor->address()),
      events_(std::move(events)),
      timer_(std::move(timer)),
      links_(this, options_.staging_bytes),
      connections_(options_, events_.get(), &links_),
      acceptor_(std::move(acceptor)),
      sleepers_(std::move(wakeup), events_.get()) {}

TcpTransport::~TcpTransport() { (void)Close(Deadline::Now()); }

absl::Status TcpTransport::SetPeers(std::vector<SocketAddress> peers) {
  if (peers.size() != options_.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp transport: ", peers.size(), " addresses for a world of ", options_.size, " ranks"));
  }
  peers_ = std::move(peers);
  return absl::OkStatus();
}

std::string TcpTransport::DescribePeer(Rank peer) const {
  if (peers_.empty()) return "tcp (its address is not known yet)";
  return absl::StrCat("tcp ", peers_[peer.value()].ToString());
}

void TcpTransport::Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
                        Operation* operation) {
  if (const absl::Status status = CheckPeer(target); !status.ok()) return operation->complete(operation, status);
  Forked();
  Connection* const connection = connections_.Get(target, channel);
  if (connection->waiting()) {
    if (peers_.empty()) {
      return operation->complete(operation, absl::FailedPreconditionError("tcp transport: Send before SetPeers"));
    }
    if (connections_.Connect(connection, peers_[target.value()])) ArmTimer();
  }
  links_.PostSend(connection->send, envelope, data, bytes, operation);
  TellWorkLeft();
}

void TcpTransport::Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
                           Operation* operation) {
  absl::Status status = CheckPeer(source);
  if (status.ok()) status = CheckSink(sink);
  if (!status.ok()) return operation->complete(operation, status);
  Forked();
  Connection* const connection = connections_.Get(source, channel);
  if (connection->waiting() && !peers_.empty() && connections_.Await(connection, peers_[source.value()])) ArmTimer();
  links_.PostReceive(connection->receive, expected, sink, operation);
  TellWorkLeft();
}

Transport::Exchanged TcpTransport::Exchange(Rank peer, ChannelId channel, const Envelope& envelope, const void* data,
                                            const Sink& sink, int polls) {
  // Whatever is not as it should be, Send and Receive say.
  if (!CheckPeer(peer).ok() || !CheckSink(sink).ok() || Forked()) return Exchanged::kNothing;
  // Progress is to ask epoll.
  if (++progress_without_poll_ >= kProgressPerPoll) return Exchanged::kNothing;
  Connection* const connection = connections_.Get(peer, channel);
  return links_.Exchange(connection->send, connection->receive, envelope, data, sink, polls);
}

bool TcpTransport::Progress() {
  if (links_.running()) return false;
  if (Forked()) return Settle();
  bool moved = false;
  const bool many = links_.active_count() > kTriedLinksMax;
  if (many || links_.active_count() == 0 || ++progress_without_poll_ >= kProgressPerPoll || sleepers_.events_seen() ||
      links_.sends_blocked()) {
    sleepers_.ForgetEvents();
    progress_without_poll_ = 0;
    moved = PollEvents();
  }
  // A full socket is not tried: it would take a few bytes at a time, while its event comes when a good part is free.
  links_.ScheduleActive(many ? LinkTable::Try::kReady : LinkTable::Try::kReceives);
  return Settle() || moved;
}

bool TcpTransport::Settle() {
  const bool moved = links_.Run();
  if (!links_.running()) connections_.ReleaseAborted();
  TellWorkLeft();
  return moved;
}

void TcpTransport::TellWorkLeft() {
  if (links_.running()) return;  // the call that is under way will
  sleepers_.TellWorkLeft(links_.work_left());
}

bool TcpTransport::Forked() {
  if (fork_generation_ == ForkGeneration()) return false;
  links_.BreakAll(absl::FailedPreconditionError("tcp transport: made before fork(), of no use in the child"));
  return true;
}

bool TcpTransport::PollEvents() {
  epoll_event events[kEventsPerPoll];
  const int count = epoll_wait(events_.get(), events, kEventsPerPoll, 0);
  bool arrivals = false;
  bool due = false;
  for (int i = 0; i < count; ++i) {
    void* const concerned = events[i].data.ptr;
    if (concerned == &acceptor_) {
      arrivals = true;
    } else if (concerned == &armed_) {
      due = true;
    } else {
      connections_.OnEvents(static_cast<Connection*>(concerned), events[i].events);
    }
  }
  if (count <= 0) return false;
  // Only now: these replace sockets, and an event of the old one must not be taken for one of the new.
  bool changed = false;
  if (due) {
    DrainCount(timer_.get());
    armed_ = Deadline::Infinite();
    changed |= connections_.Advance();
  }
  if (arrivals && acceptor_ != nullptr) {
    for (Acceptor::Arrival& arrival : acceptor_->TakeArrivals()) {
      connections_.Admit(std::move(arrival));
      changed = true;
    }
  }
  ArmTimer();
  return changed;
}

void TcpTransport::ArmTimer() {
  const Deadline next = connections_.next_deadline();
  if (next.time() == armed_.time()) return;
  armed_ = next;
  itimerspec setting = {};  // all zero: never
  if (!next.infinite()) {
    const auto since_boot = std::max(next.time().time_since_epoch(), Deadline::Clock::duration(1));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
    setting.it_value.tv_sec = seconds.count();
    setting.it_value.tv_nsec = std::chrono::nanoseconds(since_boot - seconds).count();
  }
  const int set = timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &setting, nullptr);
  LOCKSTEP_CHECK(set == 0) << "timerfd_settime: errno " << errno;
}

void TcpTransport::WaitForEvent(Deadline deadline) {
  const bool sleep = BeginWait();
  EndWait(sleep && sleepers_.Sleep(deadline));
}

void TcpTransport::AbortChannel(ChannelId channel, const absl::Status& status) {
  links_.BreakChannel(channel, status);
  connections_.AbortChannel(channel);
  Settle();
}

void TcpTransport::Abort(const absl::Status& status) {
  links_.BreakAll(status);
  connections_.AbortAll();
  // In a forked child, what its thread was changing is in no known state.
  if (fork_generation_ != ForkGeneration()) (void)acceptor_.release();
  acceptor_ = nullptr;
  Settle();
}

absl::Status TcpTransport::Close(Deadline deadline) {
  LOCKSTEP_CHECK(!links_.running()) << "a completion may not close its transport";
  return FlushAndClose(this, deadline, &closed_, [this] { return links_.sends_pending(); });
}

}  // namespace lockstep
