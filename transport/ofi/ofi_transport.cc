#include "transport/ofi/ofi_transport.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/net/epoll.h"
#include "transport/net/port_range.h"
#include "transport/ofi/ofi_links.h"
#include "transport/ofi/wire.h"

namespace lockstep {
namespace {

constexpr int kFastTickMs = 1;
constexpr int kSlowTickMs = 50;
// A descriptor that has said so often, so fast, that there is something to do when there was not, always says so.
constexpr int kIdleEventsMax = 256;
constexpr std::chrono::milliseconds kIdleEventsTime(5);
// For disconnects, which a provider takes at once unless it is jammed.
constexpr std::chrono::milliseconds kDisconnectTime(50);
// For short messages that were done when they were posted, and which nobody carries on once this endpoint is closed.
constexpr std::chrono::seconds kFlushTime(1);
// How soon a wait for a connection notices that the set-up has failed.
constexpr std::chrono::milliseconds kFailureNoticed(50);

absl::Status Check(const OfiTransportOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckWorld("ofi", options, kOfiJobIdBytesMax));
  const auto too_short = [](size_t bytes) { return bytes != 0 && bytes < 64; };
  if (too_short(options.piece_bytes) || too_short(options.staging_bytes) || options.staging_pieces < 2) {
    return absl::InvalidArgumentError(absl::StrCat("ofi transport: pieces of ", options.piece_bytes, " bytes, and ",
                                                   options.staging_pieces, " of ", options.staging_bytes,
                                                   " for reductions"));
  }
  return absl::OkStatus();
}

// Measured on one host (bench/results). In longer pieces net;ofi_rxm stalls now and then, in shorter ones tcp;ofi_rxm
// takes longer.
size_t BestPieceBytes(absl::string_view provider) { return provider == "net;ofi_rxm" ? 256 << 10 : 512 << 10; }

void SettleSizes(const fi_info& info, OfiTransportOptions* options) {
  const auto settle = [&](size_t bytes) {
    const size_t wanted = bytes != 0 ? bytes : BestPieceBytes(info.fabric_attr->prov_name);
    // Whole elements of every type, in whole lines of the cache.
    return std::min(wanted, info.ep_attr->max_msg_size) / 64 * 64;
  };
  options->piece_bytes = static_cast<uint32_t>(settle(options->piece_bytes));
  options->staging_bytes = settle(options->staging_bytes);
}

// At a port of LOCKSTEP_PORTS, if that is set and the provider has IP addresses.
absl::StatusOr<std::unique_ptr<OfiEndpoint>> OpenEndpoint(const OfiApi& api, OfiInfo info) {
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<PortRange> range, PortRangeOfEnvironment());
  const SocketAddress source = SourceOf(*info);
  if (!range.has_value() || source.length() == 0) return OfiEndpoint::Create(&api, std::move(info));
  absl::StatusOr<std::unique_ptr<OfiEndpoint>> endpoint;
  LOCKSTEP_RETURN_IF_ERROR(ListenInRange(*range, source, [&](const SocketAddress& at) -> absl::Status {
    OfiInfo with_port(api.dupinfo(info.get()), {&api});
    if (with_port == nullptr) return absl::ResourceExhaustedError("libfabric: no memory for a copy of an info");
    std::memcpy(with_port->src_addr, at.get(), at.length());
    endpoint = OfiEndpoint::Create(&api, std::move(with_port));
    return endpoint.status();
  }));
  return endpoint;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OfiTransport>> OfiTransport::Create(OfiTransportOptions options) {
  LOCKSTEP_RETURN_IF_ERROR(Check(options));
  if (options.api == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(options.api, Ofi());
  }
  OfiRequest request;
  request.provider = options.provider;
  if (!options.bind_address.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(request.address, SocketAddress::Parse(options.bind_address));
  }
  request.domain = options.domain;
  LOCKSTEP_ASSIGN_OR_RETURN(OfiProvider provider, FindProvider(*options.api, request));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<OfiEndpoint> endpoint,
                            OpenEndpoint(*options.api, std::move(provider.info)));
  SettleSizes(endpoint->info(), &options);
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd events, NewEpoll());
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd timer, NewTimer());
  LOCKSTEP_ASSIGN_OR_RETURN(Wakeup wakeup, Wakeup::Create());
  LOCKSTEP_RETURN_IF_ERROR(EpollControl(events.get(), EPOLL_CTL_ADD, timer.get(), EPOLLIN, nullptr));
  std::unique_ptr<OfiTransport> transport(new OfiTransport(std::move(options), std::move(provider.candidates),
                                                           std::move(events), std::move(timer), std::move(wakeup)));
  LOCKSTEP_RETURN_IF_ERROR(transport->Open(std::move(endpoint)));
  LOCKSTEP_LOG(kInfo) << "rank " << transport->rank() << " uses libfabric's " << transport->address();
  LOCKSTEP_LOG(kDebug) << transport->DescribeChoice();
  return transport;
}

absl::StatusOr<std::unique_ptr<WideTransport>> CreateOfiTransport(const WideTransportOptions& options) {
  return OfiTransport::Create(OfiTransportOptions{options});
}

std::string OfiTransport::DescribeChoice() const {
  return absl::StrCat("providers of libfabric:\n", Describe(candidates_), "\n");
}

OfiTransport::OfiTransport(OfiTransportOptions options, std::vector<OfiCandidate> candidates, UniqueFd events,
                           UniqueFd timer, Wakeup wakeup)
    : options_(std::move(options)),
      fork_generation_(ForkGeneration()),
      candidates_(std::move(candidates)),
      events_(std::move(events)),
      timer_(std::move(timer)),
      sleepers_(std::move(wakeup), events_.get()) {}

absl::Status OfiTransport::Open(std::unique_ptr<OfiEndpoint> endpoint) {
  const fi_info& info = endpoint->info();
  provider_ = info.fabric_attr->prov_name;
  send_pieces_max_ = endpoint->send_places_max();
  receive_pieces_max_ = endpoint->receive_places_max();
  address_ = absl::StrCat(provider_, " ", absl::BytesToHexString(endpoint->address()));
  if (endpoint->wait_descriptor() >= 0) {
    LOCKSTEP_RETURN_IF_ERROR(EpollControl(events_.get(), EPOLL_CTL_ADD, endpoint->wait_descriptor(), EPOLLIN, nullptr));
    descriptor_watched_ = true;
  }
  fast_tick_ = !descriptor_watched_;
  SetTick();
  links_ = std::make_unique<OfiLinks>(this, std::move(endpoint), &options_);
  return links_->status();
}

OfiTransport::~OfiTransport() {
  if (links_ == nullptr || closed_) return;
  const absl::Status closed = Close(Deadline::After(kFlushTime));
  if (!closed.ok()) LOCKSTEP_LOG(kWarning) << "rank " << options_.rank << ": " << closed.message();
}

absl::Status OfiTransport::SetPeers(const std::vector<std::string>& addresses) {
  if (addresses.size() != options_.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("ofi transport: ", addresses.size(), " addresses for a world of ", options_.size, " ranks"));
  }
  std::vector<std::string> names;
  for (int i = 0; i < options_.size; ++i) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(addresses[i], absl::MaxSplits(' ', 1));
    names.push_back(DecodeOfiName(parts.second));
    if (i == options_.rank.value() || parts.first == provider_) continue;
    return absl::FailedPreconditionError(absl::StrCat("ofi transport: rank ", options_.rank.value(), " uses ",
                                                      provider_, " and rank ", i, " ",
                                                      parts.first.empty() ? "no provider" : parts.first,
                                                      ": all ranks need the same provider (LOCKSTEP_OFI_PROVIDER)"));
  }
  LOCKSTEP_RETURN_IF_ERROR(links_->SetAddresses(names));
  Settle();
  return absl::OkStatus();
}

absl::Status OfiTransport::Connect(Deadline deadline, const std::function<absl::Status()>& failure) {
  for (int i = 0; i < options_.size; ++i) {
    const Rank peer(i);
    if (peer == options_.rank) continue;
    const auto because = [&](const absl::Status& cause) {
      return WithFailedRank(Annotate(cause, absl::StrCat("connecting to rank ", i, " over ", DescribePeer(peer))), i);
    };
    // Every handshake begins before any is waited for.
    for (int other = i; other < options_.size; ++other) {
      if (other != options_.rank.value()) (void)links_->Open(Rank(other));
    }
    while (!links_->Open(peer)) {
      if (!links_->status(peer).ok()) return because(links_->status(peer));
      if (deadline.passed()) return because(absl::DeadlineExceededError("it did not answer in time"));
      LOCKSTEP_RETURN_IF_ERROR(failure());
      if (!Progress()) WaitForEvent(Deadline::Earlier(deadline, Deadline::After(kFailureNoticed)));
    }
  }
  // Answers that others wait for.
  while (links_->sends_pending() && !deadline.passed()) {
    if (!Progress()) WaitForEvent(deadline);
  }
  return absl::OkStatus();
}

absl::Status OfiTransport::RegisterMemory(const void* memory, size_t bytes) {
  if (Forked() || closed_) return absl::FailedPreconditionError("ofi transport: closed");
  return links_->memory()->Register(memory, bytes);
}

void OfiTransport::DeregisterMemory(const void* memory, size_t bytes) {
  if (!Forked()) links_->memory()->Deregister(memory, bytes);
}

std::string OfiTransport::DescribePeer(Rank peer) const {
  return absl::StrCat("ofi ", provider_, " ", links_->DescribePeer(peer));
}

void OfiTransport::Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
                        Operation* operation) {
  absl::Status status = CheckPeer(target);
  Forked();
  if (status.ok() && !links_->addresses_known()) {
    status = absl::FailedPreconditionError("ofi transport: Send before SetPeers");
  }
  if (!status.ok()) return operation->complete(operation, status);
  links_->Send(target, channel, envelope, data, bytes, operation);
  Settle();
}

void OfiTransport::Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
                           Operation* operation) {
  absl::Status status = CheckPeer(source);
  Forked();
  if (status.ok()) status = CheckSink(sink);
  if (!status.ok()) return operation->complete(operation, status);
  links_->Receive(source, channel, expected, sink, operation);
  Settle();
}

Transport::Exchanged OfiTransport::Exchange(Rank peer, ChannelId channel, const Envelope& envelope, const void* data,
                                            const Sink& sink, int polls) {
  // Whatever is not as it should be, Send and Receive say.
  if (!CheckPeer(peer).ok() || !CheckSink(sink).ok() || Forked() || closed_ || links_->running())
    return Exchanged::kNothing;
  const Exchanged exchanged = links_->Exchange(peer, channel, envelope, data, sink, polls);
  // What was taken from the provider may be all that a sleeper was to be woken for.
  if (armed_.load(std::memory_order_relaxed)) armed_.store(false);
  Settle();
  return exchanged;
}

bool OfiTransport::Forked() {
  if (fork_generation_ == ForkGeneration()) return false;
  links_->Leave(absl::FailedPreconditionError("ofi transport: made before fork(), of no use in the child"));
  return true;
}

bool OfiTransport::Progress() {
  if (links_->running()) return false;
  if (Forked() || closed_) return Settle();
  bool moved = links_->Poll();
  if (!links_->status().ok()) Abort(Annotate(links_->status(), "ofi transport"));
  moved |= Settle();
  if (sleepers_.events_seen()) {
    sleepers_.ForgetEvents();
    JudgeDescriptor(moved);
    DrainCount(timer_.get());
  }
  if (moved) {
    if (armed_.load(std::memory_order_relaxed)) armed_.store(false);
  } else if (sleep_wanted_.load(std::memory_order_relaxed)) {
    sleep_wanted_.store(false, std::memory_order_relaxed);
    const bool fast = !links_->broken() && (!descriptor_watched_ || links_->restless());
    if (fast != fast_tick_) {
      fast_tick_ = fast;
      SetTick();
    }
    armed_.store(links_->PrepareToWait());
  }
  return moved;
}

void OfiTransport::JudgeDescriptor(bool moved) {
  if (moved || idle_events_ == 0) {
    idle_events_ = moved ? 0 : 1;
    idle_since_ = Deadline::Clock::now();
    return;
  }
  if (++idle_events_ < kIdleEventsMax) return;
  if (descriptor_watched_ && Deadline::Clock::now() - idle_since_ < kIdleEventsTime) {
    LOCKSTEP_LOG(kInfo) << "ofi transport: " << provider_ << " never lets a waiting rank sleep: it is asked every "
                        << kFastTickMs << " ms instead";
    StopWatching();
  }
  idle_events_ = 0;
}

void OfiTransport::StopWatching() {
  if (!descriptor_watched_) return;
  (void)epoll_ctl(events_.get(), EPOLL_CTL_DEL, links_->wait_descriptor(), nullptr);
  descriptor_watched_ = false;
}

bool OfiTransport::Settle() {
  const bool ran = links_->RunDue();
  if (links_->running()) return ran;  // the call that is under way will
  const bool left = links_->due();
  sleepers_.TellWorkLeft(left);
  // Nobody may be about to poll.
  if (links_->unannounced()) {
    if (armed_.load()) armed_.store(false);
    if (sleepers_.any()) links_->AnnounceAll();
  }
  // What the provider refused is tried again by whoever waits, who sleeps for long otherwise.
  if (!left && !fast_tick_ && links_->restless() && sleepers_.any()) Wake();
  return ran;
}

void OfiTransport::SettleAll() {
  while (Settle() && links_->due()) continue;
}

void OfiTransport::SetTick() {
  itimerspec setting = {};
  setting.it_interval.tv_nsec = (fast_tick_ ? kFastTickMs : kSlowTickMs) * 1'000'000;
  setting.it_value = setting.it_interval;
  const int set = timerfd_settime(timer_.get(), 0, &setting, nullptr);
  LOCKSTEP_CHECK(set == 0) << "timerfd_settime: errno " << errno;
}

void OfiTransport::WaitForEvent(Deadline deadline) {
  bool sleep = sleepers_.Begin();
  if (sleep && !armed_.load()) {
    sleep_wanted_.store(true, std::memory_order_relaxed);
    sleep = false;
  }
  sleepers_.End(sleep && sleepers_.Sleep(deadline));
}

void OfiTransport::AbortChannel(ChannelId channel, const absl::Status& status) {
  if (Forked() || closed_) return (void)Settle();
  links_->BreakChannel(channel, status);
  const Deadline deadline = Deadline::After(options_.drain_timeout);
  while (links_->in_flight(channel)) {
    // The links may be the first to find that a peer does not move.
    if (!links_->status().ok() || deadline.passed()) {
      Abort(absl::Status(status.code(), absl::StrCat(status.message(), "; ofi transport: ", provider_,
                                                     " did not give back memory of channel ", channel, " within ",
                                                     options_.drain_timeout.count(), " ms: a peer does not move")));
      break;
    }
    (void)links_->Poll();
  }
  SettleAll();
}

void OfiTransport::Abort(const absl::Status& status) {
  if (!Forked()) {
    links_->Shutdown(status, Deadline::After(kDisconnectTime));
    // An endpoint that could not be closed goes on hearing from its peers.
    StopWatching();
  }
  armed_.store(false);
  SettleAll();
}

absl::Status OfiTransport::Close(Deadline deadline) {
  LOCKSTEP_CHECK(!links_->running()) << "a completion may not close its transport";
  return FlushAndClose(this, deadline, &closed_, [this] { return !Forked() && links_->sends_pending(); });
}

const Refusals& OfiTransport::refusals() const { return links_->refusals(); }

bool OfiTransport::sends_lag() const { return links_->notices_pending(); }

PeerCounters OfiTransport::counters(Rank peer) const { return links_->counters(peer); }

}  // namespace lockstep
