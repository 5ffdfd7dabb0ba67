#include "transport/control/control_coordinator.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread.h"
#include "transport/control/control_connection.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_world.h"
#include "transport/net/epoll.h"
#include "transport/secure/channel.h"
#include "transport/secure/half_open.h"

namespace lockstep::control {
namespace {

using Clock = Deadline::Clock;
using TimePoint = Clock::time_point;
using std::chrono::milliseconds;

constexpr int kEventsPerIteration = 512;
// HalfOpen keeps at least 4: who was accepted is read once more before it may have to make way.
constexpr int kAcceptsPerIteration = 4;
// How long a coordinator that ends after a failure waits for its announcement to arrive.
constexpr milliseconds kDeliveryTime(2000);
constexpr milliseconds kDeliveryPause(1);
// How long a rank may take to answer, in addition to a heartbeat: some round trips of a second.
constexpr milliseconds kAnswerTime(2000);

// One connection: a rank of the world, or a half-open one (whose peer has not said who it is, or was rejected).
struct Peer {
  Peer(uint64_t number, UniqueFd socket, const SocketAddress& address, const Credentials& credentials)
      : id(number), connection(std::move(socket), Channel::Side::kListens, credentials), from(address) {}

  const uint64_t id;
  Connection connection;
  const SocketAddress from;
  int rank = -1;
  bool rejected = false;
  TimePoint last_heard = TimePoint::min();
  bool overflowed = false;  // it does not read
  bool watched_for_writing = false;
  bool closed = false;  // removed at the end of the iteration
};

class CoordinatorThread final : public Coordinator, private World::Output {
 public:
  CoordinatorThread(Options options, UniqueFd listener, const SocketAddress& address, UniqueFd epoll);
  ~CoordinatorThread() override;

  absl::Status Run() {
    LOCKSTEP_RETURN_IF_ERROR(EpollControl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), EPOLLIN, &peers_));
    return thread_.Start("lockstep-coord", [this] { Loop(); });
  }

  const SocketAddress& address() const override { return address_; }

  std::vector<int> untold() const override {
    MutexLock lock(&mu_);
    std::vector<int> ranks;
    for (int rank = 0; rank < options_.size; ++rank) {
      if (!told_[rank]) ranks.push_back(rank);
    }
    return ranks;
  }

  const Refusals& refusals() const override { return refusals_; }

  absl::Status status() const override {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  bool secured() const { return options_.credentials.level != SecurityLevel::kNone; }

  // Describes what may keep ranks away: what options_.why_missing knows, and this coordinator's refusals. A rank with another secret is
  // refused.
  std::string WhyMissing() const {
    std::string why = options_.why_missing != nullptr ? options_.why_missing() : "";
    if (const std::string refused = refusals_.Describe(); !refused.empty()) {
      absl::StrAppend(&why, why.empty() ? "" : "; ", "the coordinator has ", refused);
    }
    return why;
  }

  void Loop() {
    std::vector<epoll_event> events(kEventsPerIteration);
    TimePoint last_iteration = Clock::now();
    while (!stopping_.load(std::memory_order_relaxed)) {
      const int ready = WaitForEvents(events.data());
      const TimePoint now = Clock::now();
      if (now - last_iteration > StallLimit(options_.peer_timeout)) {
        // We were stopped, and perhaps the others with us: everybody has the full time again.
        for (const auto& peer : peers_) peer->last_heard = now;
      }
      last_iteration = now;
      bool accept = false;
      for (int i = 0; i < ready; ++i) {
        void* const source = events[i].data.ptr;
        if (source == &peers_) {
          accept = true;
        } else {
          Peer* const peer = static_cast<Peer*>(source);
          if ((events[i].events & EPOLLOUT) && !peer->closed) FlushAndWatch(peer);
          if (events[i].events & ~EPOLLOUT) ReadFrom(peer, now);
        }
      }
      // After whatever has arrived in time was read.
      if (accept && !stopping_.load(std::memory_order_relaxed)) AcceptSome(now);
      while (const absl::optional<uint64_t> id = half_open_.Expired(now)) Drop(*id, Refusal::kSilent);
      world_.Tick(now);
      if (now >= next_beat_) Beat(now, ready < kEventsPerIteration);
      RemoveClosed();
    }
    SendDisconnect();
  }

  int WaitForEvents(epoll_event* events) {
    const TimePoint until = std::min({next_beat_, world_.next_event(), half_open_.next_expiry()});
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    const int ready =
        epoll_wait(epoll_.get(), events, kEventsPerIteration, static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    return std::max(ready, 0);
  }

  void AcceptSome(TimePoint now) {
    for (int i = 0; i < kAcceptsPerIteration; ++i) {
      SocketAddress from;
      absl::StatusOr<UniqueFd> socket = Accept(listener_.get(), &from);
      if (socket.ok() && !socket->valid()) return;
      absl::Status cause = socket.status();
      std::unique_ptr<Peer> peer;
      if (cause.ok()) {
        peer = std::make_unique<Peer>(++last_id_, *std::move(socket), from, options_.credentials);
        cause = EpollControl(epoll_.get(), EPOLL_CTL_ADD, peer->connection.socket(), EPOLLIN, peer.get());
      }
      if (!cause.ok()) {
        // Out of descriptors, most likely. Whoever has not said who it is makes way. The listener is looked at again when those who
        // came before have been heard: each gets its turn.
        if (const absl::optional<uint64_t> id = half_open_.ToEvict(now)) return Drop(*id, Refusal::kCrowded);
        // Until the next heartbeat the listener is left alone: the connection that waits there would keep this loop spinning.
        LOCKSTEP_LOG(kWarning) << "coordinator " << address_.ToString() << ": " << cause.message();
        (void)EpollControl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), 0, &peers_);
        // What lasts from one heartbeat to the next keeps ranks out that would wait, and be waited for, until a deadline.
        if (!was_accepting_) FailSetup(cause);
        accepting_ = was_accepting_ = false;
        return;
      }
      const std::string source = from.HostString();
      peers_.push_back(std::move(peer));
      if (const absl::optional<uint64_t> id = half_open_.Add(last_id_, source, now)) Drop(*id, Refusal::kCrowded);
      // Most who mean it have said so already: the next that comes does not push them out.
      ReadFrom(peers_.back().get(), now);
    }
  }

  void ReadFrom(Peer* peer, TimePoint now) {
    if (peer->closed) return;
    if (peer->rank < 0) ReadHello(peer, now);
    if (peer->rank < 0) return;
    std::vector<Message> messages;
    Connection::Input input = peer->connection.Receive(&messages);
    if (peer->connection.heard()) peer->last_heard = now;
    for (Message& message : messages) {
      if (!world_.Handle(peer->rank, std::move(message), now)) {
        input = Connection::Input::kMalformed;
        break;
      }
    }
    if (peer->connection.wants_to_write()) FlushAndWatch(peer);
    if (input == Connection::Input::kOpen) return;
    const int rank = peer->rank;
    // With a last word that tells the rank of it.
    if (input == Connection::Input::kTampered) peer->connection.FinishWriting();
    Close(peer);
    world_.Gone(rank, EndText(input));
  }

  // Makes the peer a rank if its hello has come and is accepted.
  void ReadHello(Peer* peer, TimePoint now) {
    if (peer->rejected) {
      if (peer->connection.Discard() == Connection::Input::kClosed) Close(peer);
      return;
    }
    std::vector<Message> messages;
    const Connection::Input input = peer->connection.Receive(&messages);
    if (!messages.empty()) return HandleHello(peer, std::get<Hello>(messages[0]), now);
    switch (input) {
      case Connection::Input::kOpen:
        half_open_.BegunWell(peer->id, peer->connection.first_flight(), now);
        return FlushAndWatch(peer);
      case Connection::Input::kClosed:
        return TurnAway(peer, Refusal::kGaveUp, "");
      case Connection::Input::kRefused:
        return TurnAway(peer, peer->connection.refusal(), peer->connection.why().message());
      case Connection::Input::kTampered:
        return TurnAway(peer, Refusal::kBroken, peer->connection.why().message());
      case Connection::Input::kMalformed:
        return TurnAway(peer, Refusal::kBroken, "it sent something else than a hello");
    }
  }

  void HandleHello(Peer* peer, const Hello& hello, TimePoint now) {
    if (hello.magic != kMagic) return TurnAway(peer, Refusal::kBroken, "it sent something else than a hello");
    if (absl::optional<Reject> reject = world_.Connect(hello)) {
      // Another job's id may be a secret of another user's.
      const bool our_job = hello.job_id == options_.job_id;
      const std::string why = our_job ? std::string(reject->status.message()) : "it is of another job";
      if (reject->reason == RejectReason::kRefused) {
        refusals_.Note(Refusal::kOtherWorld, peer->from.ToString(), why);
      } else {
        // Nobody is to blame: it comes from, or for, another set-up.
        LOCKSTEP_LOG(kInfo) << "coordinator " << address_.ToString() << ": sends " << peer->from.ToString()
                            << " away: " << why;
      }
      // Stays until it hangs up or expires, so that closing does not overtake the answer.
      peer->rejected = true;
      if (reject->reason != RejectReason::kOtherWorld) MarkTold(hello);
      reject->status = absl::Status(reject->status.code(), PackMessage(reject->status));
      return Push(peer, Connection::MakeFrame(*std::move(reject)));
    }
    half_open_.Remove(peer->id);
    MarkTold(hello);
    peer->rank = static_cast<int>(hello.rank);
    peer->last_heard = now;
    peer->connection.Admit();
    by_rank_[peer->rank] = peer;
    Welcome welcome;
    welcome.world = options_.world_id;
    welcome.peer_timeout_ms = static_cast<uint64_t>(options_.peer_timeout.count());
    welcome.coordinator = options_.self;
    welcome.secret = options_.world_secret;
    Send(peer->rank, welcome);
  }

  // Tells the peer what can be told, and closes.
  void TurnAway(Peer* peer, Refusal refusal, absl::string_view why) {
    refusals_.Note(refusal, peer->from.ToString(), why);
    peer->connection.FinishWriting();
    Close(peer);
  }

  // Closes a half-open connection.
  void Drop(uint64_t id, Refusal refusal) {
    const auto peer =
        std::lower_bound(peers_.begin(), peers_.end(), id, [](const auto& a, uint64_t value) { return a->id < value; });
    if (!(*peer)->rejected) refusals_.Note(refusal, (*peer)->from.ToString(), "");
    Close(peer->get());
  }

  void MarkTold(const Hello& hello) {
    MutexLock lock(&mu_);
    if (hello.job_id == options_.job_id && hello.rank < told_.size()) told_[hello.rank] = true;
  }

  void FailSetup(const absl::Status& cause) {
    const absl::Status why = Annotate(
        cause, absl::StrCat("the coordinator of ", lockstep::Describe(options_.self), " cannot take connections"));
    {
      MutexLock lock(&mu_);
      status_ = why;
    }
    world_.Fail(why);
    // Resets the connections that wait to be accepted: their ranks look for the reason in the store, where rank 0 leaves it for a while.
    if (world_.has_formed()) return;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
    shutdown(listener_.get(), SHUT_RDWR);
  }

  void Close(Peer* peer) {
    if (peer->closed) return;
    peer->closed = true;
    any_closed_ = true;
    // At once: its descriptor may be needed.
    peer->connection.Close();
    half_open_.Remove(peer->id);
    if (peer->rank >= 0) by_rank_[peer->rank] = nullptr;
  }

  void Beat(TimePoint now, bool all_heard) {
    next_beat_ = now + interval_;
    if (accepting_) {
      was_accepting_ = true;
    } else {
      accepting_ = true;
      (void)EpollControl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), EPOLLIN, &peers_);
    }
    const Connection::Frame heartbeat = Connection::MakeFrame(Ping{0});
    for (const auto& peer : peers_) {
      if (peer->closed || peer->rank < 0) continue;
      // Whoever has not read the last one needs no other.
      if (!peer->connection.wants_to_write()) Push(peer.get(), heartbeat);
      if (peer->overflowed) {
        world_.Gone(peer->rank, "is unresponsive: it does not read its control connection");
      } else if (all_heard && now - peer->last_heard > options_.peer_timeout) {
        // Only when this iteration has read from everybody who had something to say.
        world_.Gone(peer->rank, SilenceText(options_.peer_timeout));
      }
    }
  }

  void RemoveClosed() {
    if (!any_closed_) return;
    any_closed_ = false;
    peers_.erase(std::remove_if(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->closed; }),
                 peers_.end());
  }

  void SendDisconnect() {
    // What rank 0 said last may not have been read yet: why it leaves, or that it left a communicator with calls in flight.
    if (by_rank_[0] != nullptr) ReadFrom(by_rank_[0], Clock::now());
    world_.Left(0);
    world_.Close();
    SendToAll(Disconnect{});
    for (const auto& peer : peers_) {
      if (peer->closed) continue;
      peer->connection.FinishWriting();
      if (peer->rank < 0 && !peer->rejected) refusals_.Note(Refusal::kUnfinished, peer->from.ToString(), "");
    }
    if (world_.has_failed()) AwaitDelivery();
  }

  // Waits until the systems of the ranks have all that was sent. Bytes of a rank that arrive after its connection is closed would reset it,
  // and with it an announcement that was lost on the way: the rank would take this one for dead.
  void AwaitDelivery() {
    const Deadline deadline = Deadline::After(kDeliveryTime);
    for (const auto& peer : peers_) {
      for (int unacknowledged = 0; !peer->closed && peer->rank > 0 && !deadline.passed();) {
        if (ioctl(peer->connection.socket(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0) break;
        (void)peer->connection.Discard();
        std::this_thread::sleep_for(kDeliveryPause);
      }
    }
  }

  void Send(int rank, const Message& message) override {
    if (by_rank_[rank] != nullptr) Push(by_rank_[rank], Connection::MakeFrame(message));
  }

  void SendToAll(const Message& message) override {
    const Connection::Frame frame = Connection::MakeFrame(message);
    // Rank 0 last: when its process exits, it waits until it has heard that, and so until the others were told.
    for (auto peer = by_rank_.rbegin(); peer != by_rank_.rend(); ++peer) {
      if (*peer != nullptr) Push(*peer, frame);
    }
  }

  void Push(Peer* peer, const Connection::Frame& frame) {
    if (!peer->connection.Queue(frame)) peer->overflowed = true;
    FlushAndWatch(peer);
  }

  void FlushAndWatch(Peer* peer) {
    peer->connection.Flush();
    const bool writing = peer->connection.wants_to_write();
    if (writing == peer->watched_for_writing) return;
    peer->watched_for_writing = writing;
    (void)EpollControl(epoll_.get(), EPOLL_CTL_MOD, peer->connection.socket(), writing ? EPOLLIN | EPOLLOUT : EPOLLIN,
                       peer);
  }

  // Constant after construction.
  const Options options_;
  const milliseconds interval_;
  const uint64_t fork_generation_ = ForkGeneration();
  const UniqueFd listener_;  // shut down if the set-up fails for want of descriptors, and to wake the thread at the end
  const SocketAddress address_;
  const UniqueFd epoll_;
  Refusals refusals_;  // thread-safe

  // Relaxed: the thread looks at it in every iteration, and nothing else is handed over with it.
  std::atomic<bool> stopping_{false};

  mutable Mutex mu_;
  std::vector<bool> told_ ABSL_GUARDED_BY(mu_);  // by rank
  absl::Status status_ ABSL_GUARDED_BY(mu_);

  // The thread's own.
  World world_;
  std::vector<std::unique_ptr<Peer>> peers_;  // in the order in which they came, which is that of their IDs
  std::vector<Peer*> by_rank_;                // null without an open connection
  HalfOpen half_open_;                        // rejected ones too
  uint64_t last_id_ = 0;
  bool any_closed_ = false;
  bool accepting_ = true;
  bool was_accepting_ = true;  // from the last heartbeat but one to the last
  TimePoint next_beat_;

  Thread thread_;
};

CoordinatorThread::CoordinatorThread(Options options, UniqueFd listener, const SocketAddress& address, UniqueFd epoll)
    : options_(std::move(options)),
      interval_(HeartbeatInterval(options_.peer_timeout)),
      listener_(std::move(listener)),
      address_(address),
      epoll_(std::move(epoll)),
      refusals_(absl::StrCat("coordinator ", address_.ToString())),
      told_(options_.size),
      world_(
          {options_.size, options_.job_id, options_.world_id, interval_ + kAnswerTime, [this] { return WhyMissing(); }},
          this, Clock::now()),
      by_rank_(options_.size, nullptr),
      // Besides unauthenticated peers, all ranks may come at once. At level none nobody begins well.
      half_open_(HalfOpen::Bound::kProcess, HalfOpen::MostForThisProcess() + (secured() ? 0 : options_.size),
                 secured() ? options_.size : 0, options_.hello_timeout),
      next_beat_(Clock::now() + interval_) {}

CoordinatorThread::~CoordinatorThread() {
  stopping_.store(true, std::memory_order_relaxed);
  if (fork_generation_ == ForkGeneration()) shutdown(listener_.get(), SHUT_RDWR);
  thread_.Join();
}

}  // namespace

milliseconds HeartbeatInterval(milliseconds peer_timeout) {
  return std::clamp(peer_timeout / 5, milliseconds(10), milliseconds(1000));
}

milliseconds StallLimit(milliseconds peer_timeout) {
  return std::max(2 * HeartbeatInterval(peer_timeout), peer_timeout / 2);
}

std::string SilenceText(milliseconds peer_timeout) {
  const int64_t ms = peer_timeout.count();
  return absl::StrCat("is unresponsive: no heartbeat for ",
                      ms % 1000 == 0 ? absl::StrCat(ms / 1000, " s") : absl::StrCat(ms, " ms"));
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(Options options) {
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd listener, Listen(options.bind_address));
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress address, LocalAddress(listener.get()));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd epoll, NewEpoll());
  auto coordinator =
      std::make_unique<CoordinatorThread>(std::move(options), std::move(listener), address, std::move(epoll));
  LOCKSTEP_RETURN_IF_ERROR(coordinator->Run());
  return coordinator;
}

}  // namespace lockstep::control
