#include "transport/link/link_table.h"

#include <algorithm>

#include "base/check.h"
#include "transport/posting.h"

namespace lockstep {
namespace {

uint64_t Key(Link::Direction direction, Rank peer, ChannelId channel) {
  const uint64_t upper = static_cast<uint64_t>(peer.value()) * 2 + (direction == Link::Direction::kSend ? 1 : 0);
  return upper << 32 | channel;
}

}  // namespace

LinkTable::LinkTable(const Transport* transport, size_t staging_bytes)
    : transport_(transport), staging_(staging_bytes / sizeof(CacheLine) + 1), counters_(transport->size()) {}

Link* LinkTable::Get(Link::Direction direction, Rank peer, ChannelId channel) {
  std::unique_ptr<Link>& link = links_[Key(direction, peer, channel)];
  if (link != nullptr) return link.get();
  const StagingPiece staging = {staging_.front().bytes, staging_.size() * sizeof(CacheLine)};
  link = std::make_unique<Link>(transport_, direction, peer, channel, &counters_[peer.value()], staging);
  if (!status_.ok()) {
    link->Break(status_);
  } else if (const auto broken = broken_channels_.find(channel); broken != broken_channels_.end()) {
    link->Break(broken->second);
  }
  // Each link is in a list at most once while a list is at rest: posting then finds the room that it needs.
  active_.reserve(links_.size());
  scheduled_.reserve(links_.size());
  exhausted_.reserve(links_.size());
  return link.get();
}

void LinkTable::PostSend(Link* link, const Envelope& envelope, const void* data, size_t bytes, Operation* operation) {
  FillSend(operation, link->peer(), link->channel(), envelope, data, bytes);
  Enqueue(link, operation);
  if (running_ || link->broken()) {
    if (link->runnable()) Schedule(link);
    Run();  // a broken link's operations complete now: after an abort no other call need follow
    return;
  }
  running_ = true;
  AdvanceInRound(link, round_);
  running_ = false;
  if (link->runnable()) Schedule(link);
}

void LinkTable::PostReceive(Link* link, const Envelope& expected, const Sink& sink, Operation* operation) {
  FillReceive(operation, link->peer(), link->channel(), expected, sink);
  Enqueue(link, operation);
  if (link->runnable()) Schedule(link);
  if (link->broken()) Run();
}

Transport::Exchanged LinkTable::Exchange(Link* send, Link* receive, const Envelope& envelope, const void* data,
                                         const Sink& sink, int polls) {
  const bool possible =
      !running_ && sink.bytes <= Link::kInlineBytesMax && send->can_move_at_once() && receive->can_move_at_once();
  if (!possible || !send->SendAtOnce(envelope, data, sink.bytes)) return Transport::Exchanged::kNothing;
  return receive->ReceiveAtOnce(envelope, sink, polls) ? Transport::Exchanged::kAll : Transport::Exchanged::kSent;
}

void LinkTable::Enqueue(Link* link, Operation* operation) {
  link->Post(operation);
  if (link->active_) return;
  link->active_ = true;
  active_.push_back(link);
}

void LinkTable::Schedule(Link* link) {
  if (link->scheduled_) return;
  link->scheduled_ = true;
  scheduled_.push_back(link);
}

void LinkTable::ScheduleActive(Try which) {
  for (size_t i = 0; i < active_.size();) {
    Link* const link = active_[i];
    if (!link->pending()) {
      link->active_ = false;
      active_[i] = active_.back();
      active_.pop_back();
      continue;
    }
    const bool receives = link->direction() == Link::Direction::kReceive;
    if (which == Try::kAll || (which == Try::kReceives && receives)) link->MarkReady();
    if (link->runnable()) Schedule(link);
    ++i;
  }
}

bool LinkTable::Run() {
  if (running_) return false;
  running_ = true;
  ++round_;
  bool moved = false;
  for (size_t i = 0; i < scheduled_.size(); ++i) {
    Link* const link = scheduled_[i];
    if (link->round_ == round_ && link->budget_ <= 0) {
      exhausted_.push_back(link);
      continue;
    }
    link->scheduled_ = false;
    moved |= AdvanceInRound(link, round_);
    if (link->runnable()) Schedule(link);
  }
  scheduled_.clear();
  scheduled_.swap(exhausted_);
  ++round_;  // of what is posted before the next run
  running_ = false;
  return moved;
}

bool LinkTable::AdvanceInRound(Link* link, uint64_t round) {
  if (link->round_ != round) {
    link->round_ = round;
    link->budget_ = kRoundBytes;
  }
  return link->Advance(&link->budget_);
}

bool LinkTable::sends_blocked() const {
  return std::any_of(active_.begin(), active_.end(), [](const Link* link) {
    return link->direction() == Link::Direction::kSend && link->pending() && !link->runnable();
  });
}

bool LinkTable::sends_pending() const {
  return std::any_of(active_.begin(), active_.end(),
                     [](const Link* link) { return link->direction() == Link::Direction::kSend && link->pending(); });
}

void LinkTable::BreakChannel(ChannelId channel, const absl::Status& status) {
  LOCKSTEP_CHECK(!status.ok()) << "channel " << channel;
  broken_channels_.emplace(channel, status);
  for (const auto& entry : links_) {
    if (entry.second->channel() != channel) continue;
    entry.second->Break(status);
    Schedule(entry.second.get());
  }
}

void LinkTable::Release(Link* link) {
  LOCKSTEP_CHECK(link->broken() && !link->pending() && !running_) << "channel " << link->channel();
  if (link->active_) active_.erase(std::find(active_.begin(), active_.end(), link));
  if (link->scheduled_) scheduled_.erase(std::find(scheduled_.begin(), scheduled_.end(), link));
  links_.erase(Key(link->direction(), link->peer(), link->channel()));
}

void LinkTable::BreakAll(const absl::Status& status) {
  LOCKSTEP_CHECK(!status.ok());
  if (status_.ok()) status_ = status;
  for (const auto& entry : links_) {
    entry.second->Break(status);
    Schedule(entry.second.get());
  }
}

}  // namespace lockstep
