#include "transport/shm/shm_transport.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/check.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "transport/shm/shared_memory.h"

namespace lockstep {
namespace {

// How often Progress polls the unix sockets: new mailboxes and closed connections are seen nowhere else.
constexpr int kProgressPerPoll = 64;
// The longest sleep by futex. The end of a connection rings no bell, so Progress looks for it after each sleep.
constexpr std::chrono::milliseconds kSleepMax(50);
// What one link may move before the next link is served, and how many rounds there are in a call.
constexpr int64_t kIterationBytes = int64_t{64} << 10;
constexpr int kIterationsMax = 16;

// What a message costs beside its bytes, in bytes that could have been copied meanwhile.
constexpr int64_t kMessageCharge = 1024;

absl::Status ClosedByPeer() { return absl::UnavailableError("connection closed by peer"); }

// What is forbidden here, or unknown to this kernel, is as good as not there.
absl::Status Unusable(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::UnavailableError(status.message());
}

}  // namespace

// ShmLink: the messages of one channel from one rank to one other, through a mailbox. What transport/link/link.h is to byte
// streams, with the difference that a receive is reduced straight out of the mailbox.
//
//   state     mailbox  Advance does
//   waiting   none     nothing: operations queue up
//   open      one      moves pieces, completes operations
//   broken    none     completes every operation with the reason
//
// A broken link stays broken, and its memory is never used again: a peer that was stopped meanwhile may still write
// into it when it wakes up.
//
// If it is destroyed unbroken, the peer finds out from the connection between the two.
//
// Externally synchronised, as the transport that owns it. Completions run inside Advance only.
class ShmLink {
 public:
  // Borrows the transport (for the peer's description in errors), the counters and the peer's bell.
  ShmLink(const Transport* transport, ShmDirection direction, Rank peer, ChannelId channel, PeerCounters* counters,
          PeerDoorbell* bell)
      : transport_(transport),
        direction_(direction),
        peer_(peer),
        channel_(channel),
        counters_(counters),
        bell_(bell) {}

  ShmDirection direction() const { return direction_; }
  Rank peer() const { return peer_; }
  ChannelId channel() const { return channel_; }

  bool waiting() const { return !open() && status_.ok(); }
  bool open() const { return memory_.data() != nullptr; }
  bool broken() const { return !status_.ok(); }
  bool pending() const { return !queue_.empty(); }
  size_t memory_bytes() const { return memory_.bytes(); }

  // From waiting to open.
  void Open(SharedMemory memory, const MailboxGeometry& geometry, size_t piece_bytes_max) {
    LOCKSTEP_CHECK(waiting()) << Describe();
    memory_ = std::move(memory);
    if (direction_ == ShmDirection::kSend) {
      writer_.emplace(memory_.data(), geometry, piece_bytes_max);
    } else {
      reader_.emplace(memory_.data(), geometry);
    }
  }

  // To broken; the first reason counts. The peer sees its end of the mailbox close. Operations complete with the
  // reason, as it stands, in Advance.
  void Break(const absl::Status& status) {
    LOCKSTEP_CHECK(!status.ok()) << Describe();
    if (broken()) return;
    if (open()) {
      if (writer_.has_value()) writer_->Close();
      if (reader_.has_value()) reader_->Close();
      bell_->RingIfArmed();
    }
    Forget(status);
  }

  // The same with "recv from rank 5 over shm pid 71: " before the cause.
  void BreakBecause(const absl::Status& cause) { Break(Annotate(cause, Describe())); }

  // The same in a forked child, which does not have the memory.
  void Forget(const absl::Status& status) {
    if (broken()) return;
    status_ = status;
    writer_.reset();
    reader_.reset();
    memory_ = SharedMemory();
  }

  // The peer is gone: what lies in the mailbox is the last.
  void MarkEnding() {
    ending_ = true;
    // What a send put is the receiver's matter; nobody takes the rest.
    if (direction_ == ShmDirection::kSend || waiting()) BreakBecause(ClosedByPeer());
  }

  void Post(Operation* operation) { queue_.Push(operation); }

  // Kept here for ShmTransport: whether it is in its list.
  bool active = false;

  // Moves what can be moved until the budget (bytes, and a fixed charge for each message) is used up. True when bytes
  // moved or operations completed.
  bool Advance(int64_t* budget) {
    if (!pending()) return false;
    return AdvancePending(budget);
  }

 private:
  bool AdvancePending(int64_t* budget) {
    bool moved = false;
    if (open()) moved = direction_ == ShmDirection::kSend ? AdvanceSend(budget) : AdvanceReceive(budget);
    if (broken() && pending()) {
      *budget -= kMessageCharge;
      queue_.CompleteAll(status_);
      moved = true;
    }
    return moved;
  }

  bool AdvanceSend(int64_t* budget) {
    bool moved = false;
    // A completion may break the link, so it is looked at anew for each piece.
    while (open() && pending() && *budget > 0) {
      Operation::Internal& message = queue_.front()->internal;
      if (writer_->reader_closed()) {
        BreakBecause(ClosedByPeer());
        break;
      }
      const size_t done_before = message.done_bytes;
      const MailboxResult result = writer_->Put(message.envelope, message.source, message.bytes, &message.done_bytes);
      if (result == MailboxResult::kBlocked) break;
      if (result == MailboxResult::kCorrupt) {
        BreakBecause(absl::DataLossError(absl::StrCat("the mailbox of channel ", channel_, " is corrupt")));
        break;
      }
      bell_->RingIfArmed();
      moved = true;
      *budget -= static_cast<int64_t>(message.done_bytes - done_before) + kMessageCharge;
      counters_->sent_bytes += message.done_bytes - done_before;
      if (message.done_bytes == message.bytes) {
        ++counters_->sent_messages;
        Complete();
      }
    }
    return moved;
  }

  bool AdvanceReceive(int64_t* budget) {
    bool moved = false;
    while (open() && pending() && *budget > 0) {
      Operation* const operation = queue_.front();
      Operation::Internal& message = operation->internal;
      const size_t left = message.bytes - message.done_bytes;
      MailboxReader::Piece piece;
      MailboxResult result = reader_->Peek(message.done_bytes == 0 ? 0 : left, &piece);
      if (result == MailboxResult::kBlocked) {
        if (!ending_ && !reader_->writer_closed()) break;
        // What was put before the end may have come after the first look.
        result = reader_->Peek(message.done_bytes == 0 ? 0 : left, &piece);
        if (result == MailboxResult::kBlocked) {
          BreakBecause(ClosedByPeer());
          break;
        }
      }
      if (result == MailboxResult::kCorrupt) {
        BreakBecause(absl::DataLossError(absl::StrCat("the mailbox of channel ", channel_, " is corrupt")));
        break;
      }
      moved = true;
      if (piece.envelope != nullptr && !Accept(operation, piece)) break;

      const Sink& sink = message.sink;
      unsigned char* const target = static_cast<unsigned char*>(sink.target) + message.done_bytes;
      if (sink.reduction != nullptr) {
        // Pieces hold whole elements: transport/shm/mailbox.h.
        const unsigned char* const operand = static_cast<const unsigned char*>(sink.operand) + message.done_bytes;
        sink.reduction->combine(target, operand, piece.data, piece.bytes / SizeOf(sink.reduction->dtype));
      } else if (piece.bytes > 0) {
        std::memcpy(target, piece.data, piece.bytes);
      }
      if (reader_->Pop(piece)) bell_->RingIfArmed();
      message.done_bytes += piece.bytes;
      *budget -= static_cast<int64_t>(piece.bytes) + kMessageCharge;
      counters_->received_bytes += piece.bytes;
      if (message.done_bytes == message.bytes) {
        ++counters_->received_messages;
        Complete();
      }
    }
    return moved;
  }

  // Whether a message's first piece is what the operation expects; breaks the link when not.
  bool Accept(Operation* operation, const MailboxReader::Piece& piece) {
    const Operation::Internal& expected = operation->internal;
    const bool same_envelope = std::memcmp(piece.envelope, expected.envelope.data(), expected.envelope.size()) == 0;
    if (piece.message_bytes == expected.bytes && same_envelope) return true;
    std::copy(piece.envelope, piece.envelope + operation->arrived.size(), operation->arrived.begin());
    operation->arrived_bytes = piece.message_bytes;
    BreakBecause(Mismatch(*operation));
    return false;
  }

  void Complete() {
    Operation* const operation = queue_.Pop();
    operation->complete(operation, absl::OkStatus());
  }

  std::string Describe() const { return DescribeWay(direction_ == ShmDirection::kSend, *transport_, peer_); }

  const Transport* const transport_;
  const ShmDirection direction_;
  const Rank peer_;
  const ChannelId channel_;
  PeerCounters* const counters_;
  PeerDoorbell* const bell_;

  SharedMemory memory_;
  absl::optional<MailboxWriter> writer_;  // while open, of a link that sends
  absl::optional<MailboxReader> reader_;  // while open, of a link that receives
  absl::Status status_;                   // why it is broken
  bool ending_ = false;
  OperationQueue queue_;
};

absl::StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::Create(ShmTransportOptions options) {
  const auto invalid = [](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat("shm transport: ", what...));
  };
  LOCKSTEP_RETURN_IF_ERROR(CheckWorld("shm", options, kShmJobIdBytesMax));
  if (!options.mailbox.valid()) {
    return invalid("mailboxes of ", options.mailbox.cells, " cells and ", options.mailbox.ring_bytes, " bytes");
  }
  if (options.piece_bytes_max == 0 || options.piece_bytes_max % 64 != 0) {
    return invalid("pieces of ", options.piece_bytes_max, " bytes");
  }
  // Where no mailbox can be made, that is known before anybody counts on it.
  LOCKSTEP_RETURN_IF_ERROR(Unusable(SharedMemory::Create(options.mailbox.bytes()).status()));
  absl::StatusOr<Doorbell> bell = Doorbell::Create();
  LOCKSTEP_RETURN_IF_ERROR(Unusable(bell.status()));
  const ShmExpectation self = {options, /*nonce=*/0};
  const Credentials credentials = options.credentials;
  const std::chrono::milliseconds handshake_timeout = options.handshake_timeout;
  std::unique_ptr<ShmTransport> transport(new ShmTransport(std::move(options), *std::move(bell)));
  absl::StatusOr<std::unique_ptr<LocalPeers>> local_peers =
      LocalPeers::Create(self, credentials, handshake_timeout, &transport->bell_);
  LOCKSTEP_RETURN_IF_ERROR(Unusable(local_peers.status()));
  transport->local_peers_ = *std::move(local_peers);
  return transport;
}

ShmTransport::ShmTransport(ShmTransportOptions options, Doorbell bell)
    : options_(std::move(options)), fork_generation_(ForkGeneration()), bell_(std::move(bell)), peers_(options_.size) {}

ShmTransport::~ShmTransport() {
  if (local_peers_ != nullptr) (void)Close(Deadline::Now());
}

std::vector<absl::Status> ShmTransport::Connect(const std::vector<std::string>& addresses, Deadline deadline,
                                                const std::function<bool()>& go_on) {
  return local_peers_->Connect(addresses, deadline, go_on);
}

std::string ShmTransport::DescribePeer(Rank peer) const {
  const pid_t pid = local_peers_->pid(peer);
  return pid == 0 ? "shm" : absl::StrCat("shm pid ", pid);
}

bool ShmTransport::Forked() {
  if (fork_generation_ == ForkGeneration()) return false;
  if (status_.ok()) {
    status_ = absl::FailedPreconditionError("shm transport: made before fork(), of no use in the child");
  }
  ForEachLink([this](ShmLink* link) { link->Forget(status_); });
  return true;
}

template <typename Visit>
void ShmTransport::ForEachLink(Visit visit) {
  for (PeerState& peer : peers_) {
    for (auto& links : peer.links) {
      for (auto& entry : links) visit(entry.second.get());
    }
  }
}

ShmLink* ShmTransport::Get(ShmDirection direction, Rank peer, ChannelId channel) {
  ShmLink*& last_used = peers_[peer.value()].last_used[static_cast<int>(direction)];
  if (last_used == nullptr || last_used->channel() != channel) last_used = Make(direction, peer, channel);
  return last_used;
}

ShmLink* ShmTransport::Make(ShmDirection direction, Rank peer, ChannelId channel) {
  PeerState& state = peers_[peer.value()];
  std::unique_ptr<ShmLink>& link = state.links[static_cast<int>(direction)][channel];
  if (link != nullptr) return link.get();
  link = std::make_unique<ShmLink>(this, direction, peer, channel, &state.counters, local_peers_->bell(peer));
  active_.reserve(++links_count_);  // so that posting allocates nothing
  if (const auto broken = broken_channels_.find(channel); !status_.ok()) {
    link->Break(status_);
  } else if (broken != broken_channels_.end()) {
    link->Break(broken->second);
  } else if (!local_peers_->status(peer).ok()) {
    link->BreakBecause(local_peers_->status(peer));
  } else if (state.closed.count(channel) > 0) {
    link->MarkEnding();
  } else if (direction == ShmDirection::kSend) {
    ShmLink* const made = link.get();
    OpenMailbox(made);
    return made;
  }
  return link.get();
}

void ShmTransport::OpenMailbox(ShmLink* link) {
  // The peer may have given the channel up, or left, and this rank not looked since.
  if (local_peers_->Poll(this)) KeepAwake();
  if (link->broken()) return;
  absl::Status room = CheckMemory(options_.mailbox.bytes());
  absl::StatusOr<SharedMemory> memory = room.ok() ? SharedMemory::Create(options_.mailbox.bytes()) : room;
  if (!memory.ok()) {
    local_peers_->Notify(link->peer(), {ShmNoticeKind::kClosed, link->channel(), {}, 0}, UniqueFd());
    return link->BreakBecause(memory.status());
  }
  local_peers_->Notify(link->peer(), {ShmNoticeKind::kMailbox, link->channel(), options_.mailbox, memory->bytes()},
                       memory->TakeDescriptor());
  link->Open(*std::move(memory), options_.mailbox, options_.piece_bytes_max);
}

absl::Status ShmTransport::CheckMemory(size_t more_bytes) const {
  size_t mapped = 0;
  for (const PeerState& peer : peers_) {
    for (const auto& links : peer.links) {
      for (const auto& entry : links) mapped += entry.second->memory_bytes();
    }
  }
  if (mapped + more_bytes <= options_.memory_bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("another mailbox of ", more_bytes, " bytes beside the ", mapped,
                                                   " bytes there are: at most ", options_.memory_bytes_max,
                                                   " are allowed"));
}

void ShmTransport::Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
                        Operation* operation) {
  if (const absl::Status status = CheckPeer(target); !status.ok()) return operation->complete(operation, status);
  Forked();
  FillSend(operation, target, channel, envelope, data, bytes);
  Post(Get(ShmDirection::kSend, target, channel), operation);
}

void ShmTransport::Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
                           Operation* operation) {
  absl::Status status = CheckPeer(source);
  if (status.ok()) status = CheckSink(sink);
  if (!status.ok()) return operation->complete(operation, status);
  Forked();
  FillReceive(operation, source, channel, expected, sink);
  Post(Get(ShmDirection::kReceive, source, channel), operation);
}

void ShmTransport::Post(ShmLink* link, Operation* operation) {
  link->Post(operation);
  if (!link->active) active_.push_back(link);
  link->active = true;
  if (running_) {
    untried_ = true;  // the call that is under way goes on with it
    return;
  }
  running_ = true;
  int64_t budget = kIterationBytes * kIterationsMax;
  if (link->Advance(&budget)) yields_.store(0, std::memory_order_relaxed);
  running_ = false;
  if (untried_ || budget <= 0) {
    untried_ = false;
    KeepAwake();
  }
}

bool ShmTransport::Progress() {
  if (running_) return false;
  if (Forked()) return Run();
  bool moved = false;
  const bool event_seen = event_seen_.load(std::memory_order_relaxed);
  const bool arms = sleep_wanted_.load(std::memory_order_relaxed);
  if (event_seen || arms || ++progress_without_poll_ >= kProgressPerPoll) {
    progress_without_poll_ = 0;
    if (event_seen) {
      event_seen_.store(false, std::memory_order_relaxed);
      bell_.Silence();
      KeepAwake();
    }
    if (arms) {
      sleep_wanted_.store(false, std::memory_order_relaxed);
      bell_.Arm();
    }
    // After arming: notices that are counted later ring.
    moved = local_peers_->Poll(this);
  }
  return Run() || moved;
}

bool ShmTransport::Run() {
  running_ = true;
  bool moved = false;
  bool moved_lately = true;
  for (int iteration = 0; iteration < kIterationsMax && (moved_lately || untried_); ++iteration) {
    moved_lately = false;
    untried_ = false;
    for (size_t i = 0; i < active_.size();) {
      ShmLink* const link = active_[i];
      int64_t budget = kIterationBytes;
      moved_lately |= link->Advance(&budget);
      if (link->pending()) {
        ++i;
      } else {
        link->active = false;
        active_[i] = active_.back();
        active_.pop_back();
      }
    }
    moved |= moved_lately;
  }
  untried_ = false;
  running_ = false;
  if (moved) NoteMovement();
  return moved;
}

void ShmTransport::Settle() {
  // Called by a completion, it leaves the rest to the call that is under way, or to the next.
  if (running_) {
    untried_ = true;
  } else {
    Run();
  }
}

void ShmTransport::KeepAwake() {
  if (!bell_.armed()) return;
  bell_.Disarm();
  if (waiters_.load() > 0) bell_.Ring();
}

void ShmTransport::WaitForEvent(Deadline deadline) {
  if (BeginWait()) {
    if (bell_.by_futex()) {
      const bool rung = bell_.Sleep(Deadline::Earlier(deadline, Deadline::After(kSleepMax)));
      return EndWait(rung || !deadline.passed());
    }
    pollfd descriptor = {local_peers_->event_descriptor(), POLLIN, 0};
    (void)poll(&descriptor, 1, deadline.remaining_ms());
    EndWait(descriptor.revents != 0);
  } else {
    EndWait(false);
  }
}

void ShmTransport::AppendDescriptors(std::vector<pollfd>* descriptors) const {
  descriptors->push_back({local_peers_->event_descriptor(), POLLIN, 0});
}

bool ShmTransport::BeginWait() {
  waiters_.fetch_add(1);
  if (fork_generation_ != ForkGeneration()) return false;
  if (bell_.armed()) return true;
  if (yields_.load(std::memory_order_relaxed) < options_.yields_max) {
    yields_.fetch_add(1, std::memory_order_relaxed);
    (void)sched_yield();
  } else {
    sleep_wanted_.store(true, std::memory_order_relaxed);
  }
  return false;
}

void ShmTransport::EndWait(bool event) {
  if (event) event_seen_.store(true, std::memory_order_relaxed);
  waiters_.fetch_sub(1);
}

void ShmTransport::AbortChannel(ChannelId channel, const absl::Status& status) {
  LOCKSTEP_CHECK(!status.ok()) << "channel " << channel;
  broken_channels_.emplace(channel, status);
  const int known_ranks = Forked() ? 0 : options_.size;
  for (int i = 0; i < known_ranks; ++i) {
    for (auto& links : peers_[i].links) {
      const auto found = links.find(channel);
      if (found != links.end()) found->second->Break(status);
    }
    peers_[i].closed.erase(channel);
    // Also who has had nothing to do with this rank on the channel: it may wait for a first message.
    local_peers_->Notify(Rank(i), {ShmNoticeKind::kClosed, channel, {}, 0}, UniqueFd());
  }
  Settle();
  if (!running_) ReleaseLinks(channel);
}

void ShmTransport::ReleaseLinks(ChannelId channel) {
  for (PeerState& peer : peers_) {
    for (int direction : {0, 1}) {
      const auto found = peer.links[direction].find(channel);
      if (found == peer.links[direction].end() || found->second->active) continue;
      if (peer.last_used[direction] == found->second.get()) peer.last_used[direction] = nullptr;
      peer.links[direction].erase(found);
      --links_count_;
    }
  }
}

void ShmTransport::Abort(const absl::Status& status) {
  LOCKSTEP_CHECK(!status.ok());
  Forked();
  if (status_.ok()) status_ = status;
  ForEachLink([this](ShmLink* link) { link->Break(status_); });
  local_peers_->Leave();
  Settle();
}

absl::Status ShmTransport::Close(Deadline deadline) {
  LOCKSTEP_CHECK(!running_) << "a completion may not close its transport";
  return FlushAndClose(this, deadline, &closed_, [this] { return sends_pending(); });
}

bool ShmTransport::sends_pending() const {
  // A mailbox that was filled but not handed over yet is under way too.
  return !local_peers_->notices_sent() || std::any_of(active_.begin(), active_.end(), [](const ShmLink* link) {
    return link->direction() == ShmDirection::kSend && link->pending();
  });
}

void ShmTransport::OnNotice(Rank rank, const ShmNotice& notice, UniqueFd memory) {
  if (notice.kind == ShmNoticeKind::kArena || notice.kind == ShmNoticeKind::kMapped) {
    PeerArena& arena = peers_[rank.value()].arenas[notice.channel];
    if (notice.kind == ShmNoticeKind::kMapped) {
      arena.mapped_known = true;
      arena.mapped = notice.bytes != 0;
    } else {
      arena.offered = true;
      arena.memory = std::move(memory);
    }
    return;
  }
  const ShmNotice closed = {ShmNoticeKind::kClosed, notice.channel, {}, 0};
  if (broken_channels_.contains(notice.channel)) {
    // Given up here, and the peer may not know; the memory is dropped.
    if (notice.kind == ShmNoticeKind::kMailbox) local_peers_->Notify(rank, closed, UniqueFd());
    return;
  }
  if (notice.kind == ShmNoticeKind::kClosed) {
    peers_[rank.value()].closed.insert(notice.channel);
    for (auto& links : peers_[rank.value()].links) {
      if (const auto found = links.find(notice.channel); found != links.end()) found->second->MarkEnding();
    }
    return;
  }
  ShmLink* const receives = Get(ShmDirection::kReceive, rank, notice.channel);
  absl::Status status = absl::DataLossError(absl::StrCat("a second mailbox for channel ", notice.channel));
  if (receives->waiting()) {
    const size_t bytes = notice.geometry.bytes();
    absl::Status room = CheckMemory(bytes);
    absl::StatusOr<SharedMemory> attached = room.ok() ? SharedMemory::Attach(std::move(memory), bytes) : room;
    if (attached.ok()) return receives->Open(*std::move(attached), notice.geometry, options_.piece_bytes_max);
    status = attached.status();
  }
  receives->BreakBecause(status);
  local_peers_->Notify(rank, closed, UniqueFd());
}

void ShmTransport::OnLost(Rank rank, const absl::Status& why) {
  for (auto& links : peers_[rank.value()].links) {
    for (auto& entry : links) {
      if (absl::IsUnavailable(why)) {
        entry.second->MarkEnding();
      } else {
        entry.second->BreakBecause(why);
      }
    }
  }
}

}  // namespace lockstep
