#include "transport/loopback/loopback.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "transport/link/byte_stream.h"
#include "transport/link/link.h"
#include "transport/link/link_table.h"
#include "transport/posting.h"

namespace lockstep {
namespace {

// One direction of one channel between two ranks: a bounded ring of bytes. Guarded by the network's lock.
struct Pipe {
  Pipe(Rank from, Rank to, ChannelId on, uint64_t seed, size_t bytes)
      : source(from), target(to), channel(on), capacity(bytes), ring(new unsigned char[bytes]), draw(seed) {}

  const Rank source;
  const Rank target;
  const ChannelId channel;
  const size_t capacity;
  const std::unique_ptr<unsigned char[]> ring;  // memory that most pipes never touch
  size_t begin = 0;
  size_t held = 0;
  bool write_closed = false;
  bool read_closed = false;
  std::mt19937_64 draw;
  size_t piece_left = 0;  // of the piece that is being delivered
  int delay_left = 0;     // attempts until it is
};

// Runs over the bytes of several pieces as if they were one.
template <typename Move>
size_t ForPieces(const iovec* pieces, int count, size_t limit, Move move) {
  size_t moved = 0;
  for (int i = 0; i < count && moved < limit; ++i) {
    const size_t bytes = std::min(pieces[i].iov_len, limit - moved);
    move(static_cast<unsigned char*>(pieces[i].iov_base), bytes);
    moved += bytes;
  }
  return moved;
}

}  // namespace

// All pipes, and what each rank waits for. Thread-safe.
class LoopbackNetwork::Pipes {
 public:
  Pipes(int size, LoopbackOptions options) : options_(std::move(options)), size_(size), ranks_(size) {}

  const LoopbackOptions& options() const { return options_; }
  int size() const { return size_; }

  Pipe* Get(Rank source, Rank target, ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  ssize_t Write(Pipe* pipe, const iovec* pieces, int count) ABSL_LOCKS_EXCLUDED(mu_);
  ssize_t Read(Pipe* pipe, const iovec* pieces, int count) ABSL_LOCKS_EXCLUDED(mu_);

  // One end of a pipe, one channel of a rank, or all that a rank has, now and in future.
  void CloseEnd(Pipe* pipe, Link::Direction end) ABSL_LOCKS_EXCLUDED(mu_);
  void CloseChannel(Rank rank, ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  void CloseRank(Rank rank) ABSL_LOCKS_EXCLUDED(mu_);

  // An event is anything after which a rank's Progress may have something to do.
  void Signal(Rank rank) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    SignalLocked(rank);
  }
  void TakeEvent(Rank rank) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    ranks_[rank.value()].event = false;
  }
  void Wait(Rank rank, Deadline deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void Wake(Rank rank) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct PerRank {
    bool event = false;
    bool wake = false;
    bool closed = false;
    absl::flat_hash_set<ChannelId> closed_channels;
    CondVar changed;
  };

  void SignalLocked(Rank rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ranks_[rank.value()].event = true;
    ranks_[rank.value()].changed.SignalAll();
  }
  bool ClosedLocked(Rank rank, ChannelId channel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ranks_[rank.value()].closed || ranks_[rank.value()].closed_channels.contains(channel);
  }
  // Applies to a pipe what was closed of its ranks.
  void UpdateLocked(Pipe* pipe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  size_t DrawLengthLocked(Pipe* pipe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const LoopbackOptions options_;
  const int size_;
  Mutex mu_;
  std::vector<PerRank> ranks_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::pair<uint64_t, ChannelId>, std::unique_ptr<Pipe>> pipes_ ABSL_GUARDED_BY(mu_);
};

Pipe* LoopbackNetwork::Pipes::Get(Rank source, Rank target, ChannelId channel) {
  MutexLock lock(&mu_);
  const uint64_t pair = static_cast<uint64_t>(source.value()) << 32 | static_cast<uint32_t>(target.value());
  std::unique_ptr<Pipe>& pipe = pipes_[{pair, channel}];
  if (pipe == nullptr) {
    // Any mixing will do, as long as it is the same in every run: absl's hashes are not.
    std::seed_seq seeds{options_.seed, options_.seed >> 32, pair, pair >> 32, uint64_t{channel}};
    uint32_t seed[2];
    seeds.generate(seed, seed + 2);
    pipe = std::make_unique<Pipe>(source, target, channel, uint64_t{seed[0]} << 32 | seed[1], options_.buffer_bytes);
    UpdateLocked(pipe.get());
  }
  return pipe.get();
}

size_t LoopbackNetwork::Pipes::DrawLengthLocked(Pipe* pipe) {
  const uint64_t drawn = pipe->draw();
  // One piece in four is no longer than a header or two, so that headers and elements are cut as well.
  const size_t max = (drawn & 3) == 0 ? std::min<size_t>(100, options_.piece_bytes_max) : options_.piece_bytes_max;
  return 1 + (drawn >> 2) % max;
}

ssize_t LoopbackNetwork::Pipes::Write(Pipe* pipe, const iovec* pieces, int count) {
  MutexLock lock(&mu_);
  if (pipe->write_closed || pipe->read_closed) return -EPIPE;
  const size_t room = pipe->capacity - pipe->held;
  if (room == 0) return -EAGAIN;
  const size_t written = ForPieces(pieces, count, room, [pipe](const unsigned char* source, size_t bytes) {
    const size_t end = (pipe->begin + pipe->held) % pipe->capacity;
    const size_t first = std::min(bytes, pipe->capacity - end);
    std::memcpy(pipe->ring.get() + end, source, first);
    std::memcpy(pipe->ring.get(), source + first, bytes - first);
    pipe->held += bytes;
  });
  SignalLocked(pipe->target);
  return static_cast<ssize_t>(written);
}

ssize_t LoopbackNetwork::Pipes::Read(Pipe* pipe, const iovec* pieces, int count) {
  MutexLock lock(&mu_);
  if (pipe->held == 0) return pipe->write_closed || pipe->read_closed ? 0 : -EAGAIN;
  if (pipe->piece_left == 0) {
    pipe->piece_left = DrawLengthLocked(pipe);
    pipe->delay_left = static_cast<int>(pipe->draw() % (options_.delay_max + 1));
  }
  if (pipe->delay_left > 0) {
    --pipe->delay_left;
    SignalLocked(pipe->target);  // there is more to have: at the next attempt
    return -EAGAIN;
  }
  const size_t limit = std::min(pipe->held, pipe->piece_left);
  const size_t read = ForPieces(pieces, count, limit, [pipe](unsigned char* target, size_t bytes) {
    const size_t first = std::min(bytes, pipe->capacity - pipe->begin);
    std::memcpy(target, pipe->ring.get() + pipe->begin, first);
    std::memcpy(target + first, pipe->ring.get(), bytes - first);
    pipe->begin = (pipe->begin + bytes) % pipe->capacity;
    pipe->held -= bytes;
  });
  pipe->piece_left -= read;
  SignalLocked(pipe->source);
  if (pipe->held > 0) SignalLocked(pipe->target);
  return static_cast<ssize_t>(read);
}

void LoopbackNetwork::Pipes::CloseEnd(Pipe* pipe, Link::Direction end) {
  MutexLock lock(&mu_);
  (end == Link::Direction::kSend ? pipe->write_closed : pipe->read_closed) = true;
  SignalLocked(pipe->source);
  SignalLocked(pipe->target);
}

void LoopbackNetwork::Pipes::UpdateLocked(Pipe* pipe) {
  if (ClosedLocked(pipe->source, pipe->channel)) pipe->write_closed = true;
  if (ClosedLocked(pipe->target, pipe->channel)) pipe->read_closed = true;
  if (!pipe->write_closed && !pipe->read_closed) return;
  SignalLocked(pipe->source);
  SignalLocked(pipe->target);
}

void LoopbackNetwork::Pipes::CloseChannel(Rank rank, ChannelId channel) {
  MutexLock lock(&mu_);
  ranks_[rank.value()].closed_channels.insert(channel);
  for (const auto& entry : pipes_) {
    if (entry.second->channel == channel) UpdateLocked(entry.second.get());
  }
}

void LoopbackNetwork::Pipes::CloseRank(Rank rank) {
  MutexLock lock(&mu_);
  ranks_[rank.value()].closed = true;
  for (const auto& entry : pipes_) UpdateLocked(entry.second.get());
}

void LoopbackNetwork::Pipes::Wait(Rank rank, Deadline deadline) {
  MutexLock lock(&mu_);
  PerRank& state = ranks_[rank.value()];
  while (!state.event && !state.wake && state.changed.WaitUntil(&mu_, deadline)) {
  }
  state.wake = false;
}

void LoopbackNetwork::Pipes::Wake(Rank rank) {
  MutexLock lock(&mu_);
  ranks_[rank.value()].wake = true;
  ranks_[rank.value()].changed.SignalAll();
}

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(LoopbackNetwork::Pipes* pipes, Rank rank)
      : pipes_(pipes), rank_(rank), links_(this, kStagingBytes) {}
  ~LoopbackTransport() override { (void)Close(Deadline::Now()); }

  const char* name() const override { return "loopback"; }
  Rank rank() const override { return rank_; }
  int size() const override { return pipes_->size(); }
  std::string DescribePeer(Rank peer) const override { return absl::StrCat("loopback rank ", peer.value()); }
  PeerCounters counters(Rank peer) const override { return links_.counters(peer); }

  void Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
            Operation* operation) override {
    if (const absl::Status status = CheckPeer(target); !status.ok()) return operation->complete(operation, status);
    if (pipes_->options().observer) pipes_->options().observer({rank_, target, channel, bytes, envelope});
    links_.PostSend(OpenLink(Link::Direction::kSend, target, channel), envelope, data, bytes, operation);
    TellWorkLeft();
  }

  void Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
               Operation* operation) override {
    absl::Status status = CheckPeer(source);
    if (status.ok()) status = CheckSink(sink);
    if (!status.ok()) return operation->complete(operation, status);
    links_.PostReceive(OpenLink(Link::Direction::kReceive, source, channel), expected, sink, operation);
    TellWorkLeft();
  }

  Exchanged Exchange(Rank peer, ChannelId channel, const Envelope& envelope, const void* data, const Sink& sink,
                     int polls) override {
    if (!CheckPeer(peer).ok() || !CheckSink(sink).ok()) return Exchanged::kNothing;
    const Exchanged exchanged =
        links_.Exchange(OpenLink(Link::Direction::kSend, peer, channel),
                        OpenLink(Link::Direction::kReceive, peer, channel), envelope, data, sink, polls);
    if (exchanged != Exchanged::kNothing && pipes_->options().observer) {
      pipes_->options().observer({rank_, peer, channel, sink.bytes, envelope});
    }
    return exchanged;
  }

  int send_pieces_max(Rank) const override { return kLinkPiecesMax; }
  int receive_pieces_max(Rank) const override { return kLinkPiecesMax; }
  bool Progress() override {
    if (links_.running()) return false;
    // Before trying, so that what happens meanwhile is an event of its own.
    pipes_->TakeEvent(rank_);
    links_.ScheduleActive(LinkTable::Try::kAll);
    return Settle();
  }

  void WaitForEvent(Deadline deadline) override { pipes_->Wait(rank_, deadline); }
  void Wake() override { pipes_->Wake(rank_); }

  void AbortChannel(ChannelId channel, const absl::Status& status) override {
    links_.BreakChannel(channel, status);
    pipes_->CloseChannel(rank_, channel);
    Settle();
  }

  void Abort(const absl::Status& status) override {
    links_.BreakAll(status);
    pipes_->CloseRank(rank_);
    Settle();
  }

  absl::Status Close(Deadline deadline) override {
    LOCKSTEP_CHECK(!links_.running()) << "a completion may not close its transport";
    return FlushAndClose(this, deadline, &closed_, [this] { return links_.sends_pending(); });
  }

 private:
  // Small, so that a long reduction passes through it many times.
  static constexpr size_t kStagingBytes = 4096;

  class Stream final : public ByteStream {
   public:
    Stream(LoopbackNetwork::Pipes* pipes, Pipe* pipe, Link::Direction end) : pipes_(pipes), pipe_(pipe), end_(end) {}
    ~Stream() override { pipes_->CloseEnd(pipe_, end_); }
    ssize_t Write(const iovec* pieces, int count) override { return pipes_->Write(pipe_, pieces, count); }
    ssize_t Read(const iovec* pieces, int count) override { return pipes_->Read(pipe_, pieces, count); }

   private:
    LoopbackNetwork::Pipes* const pipes_;
    Pipe* const pipe_;
    const Link::Direction end_;
  };

  absl::Status CheckPeer(Rank peer) const { return lockstep::CheckPeer(name(), rank_, pipes_->size(), peer); }

  Link* OpenLink(Link::Direction direction, Rank peer, ChannelId channel) {
    Link* const link = links_.Get(direction, peer, channel);
    if (link->waiting()) {
      const bool sends = direction == Link::Direction::kSend;
      Pipe* const pipe = pipes_->Get(sends ? rank_ : peer, sends ? peer : rank_, channel);
      link->Open(std::make_unique<Stream>(pipes_, pipe, direction));
    }
    // An event that came while the link had no operations told nobody of it.
    link->MarkReady();
    return link;
  }

  bool Settle() {
    const bool moved = links_.Run();
    TellWorkLeft();
    return moved;
  }

  void TellWorkLeft() {
    if (!links_.running() && links_.work_left()) pipes_->Signal(rank_);
  }

  LoopbackNetwork::Pipes* const pipes_;
  const Rank rank_;
  // Externally synchronised.
  LinkTable links_;
  bool closed_ = false;
};

LoopbackNetwork::LoopbackNetwork(int size, LoopbackOptions options)
    : pipes_(std::make_unique<Pipes>(size, std::move(options))) {}

LoopbackNetwork::~LoopbackNetwork() = default;

std::unique_ptr<Transport> LoopbackNetwork::CreateTransport(Rank rank) {
  LOCKSTEP_CHECK(rank.value() >= 0 && rank.value() < pipes_->size()) << "rank " << rank;
  return std::make_unique<LoopbackTransport>(pipes_.get(), rank);
}

void LoopbackNetwork::Disconnect(Rank rank) { pipes_->CloseRank(rank); }

}  // namespace lockstep
