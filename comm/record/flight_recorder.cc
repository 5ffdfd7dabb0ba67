#include "comm/record/flight_recorder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

FlightRecord::Peer* FindPeer(FlightRecord& record, Rank rank) {
  for (int i = 0; i < record.peer_count; ++i) {
    if (record.peers[i].rank == rank) return &record.peers[i];
  }
  if (record.peer_count == FlightRecord::kPeersMax) return nullptr;
  FlightRecord::Peer* const peer = &record.peers[record.peer_count++];
  *peer = {rank};
  return peer;
}

std::string Milliseconds(FlightRecord::Clock::time_point from, FlightRecord::Clock::time_point to) {
  return absl::StrFormat("%.3f ms", std::chrono::duration<double, std::milli>(to - from).count());
}

}  // namespace

void FlightRecord::AddSent(Rank peer, uint64_t bytes) {
  sent_bytes += bytes;
  if (Peer* entry = FindPeer(*this, peer)) entry->sent_bytes += bytes;
}

void FlightRecord::AddReceived(Rank peer, uint64_t bytes) {
  received_bytes += bytes;
  if (Peer* entry = FindPeer(*this, peer)) entry->received_bytes += bytes;
}

std::string ToString(const FlightRecord& record, FlightRecord::Clock::time_point now) {
  std::string text = absl::StrCat(ToString(record.signature), " ", record.bytes, " B ");
  const bool timed = record.queued != FlightRecord::Clock::time_point();
  const auto add = [&](absl::string_view state, FlightRecord::Clock::time_point from,
                       FlightRecord::Clock::time_point to, absl::string_view untimed) {
    absl::StrAppend(&text, timed ? absl::StrCat(state, " ", Milliseconds(from, to)) : untimed);
  };
  switch (record.state) {
    case FlightRecord::State::kEmpty:
      return "empty";
    case FlightRecord::State::kQueued:
      add("queued for", record.queued, now, "just queued");
      break;
    case FlightRecord::State::kRunning:
      add("running for", record.started, now, "just begun");
      break;
    case FlightRecord::State::kDone:
      add("done in", record.queued, record.ended, "done at once");
      break;
    case FlightRecord::State::kFailed:
      add("failed after", record.queued, record.ended, "failed at once");
      break;
  }
  absl::StrAppend(&text, ", sent ", record.sent_bytes, " B, received ", record.received_bytes, " B");
  for (int i = 0; i < record.peer_count; ++i) {
    const FlightRecord::Peer& peer = record.peers[i];
    absl::StrAppend(&text, "; rank ", peer.rank.value(), ": ", peer.sent_bytes, "/", peer.received_bytes);
  }
  return text;
}

FlightRecorder::FlightRecorder(size_t capacity) : records_(std::max<size_t>(capacity, 1)) {}

FlightRecord* FlightRecorder::Add(const Signature& signature, uint64_t bytes, FlightRecord::Clock::time_point now) {
  FlightRecord* const record = &records_[next_];
  next_ = next_ + 1 < records_.size() ? next_ + 1 : 0;
  ++added_;
  record->state = FlightRecord::State::kQueued;
  record->signature = signature;
  record->bytes = bytes;
  record->queued = now;
  record->started = record->ended = {};
  record->sent_bytes = record->received_bytes = 0;
  record->peer_count = 0;
  return record;
}

const FlightRecord* FlightRecorder::Find(uint64_t sequence) const {
  const FlightRecord& record = records_[(sequence - 1) % records_.size()];
  const bool found = record.state != FlightRecord::State::kEmpty && record.signature.sequence == sequence;
  return found ? &record : nullptr;
}

std::string FlightRecorder::ToString(size_t count_max) const {
  const FlightRecord::Clock::time_point now = FlightRecord::Clock::now();
  const uint64_t count = std::min<uint64_t>({count_max, added_, records_.size()});
  std::string text;
  for (uint64_t i = records_.size() - count; i < records_.size(); ++i) {
    absl::StrAppend(&text, lockstep::ToString(records_[(next_ + i) % records_.size()], now), "\n");
  }
  return text;
}

}  // namespace lockstep
