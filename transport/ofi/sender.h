// The sending half of a link.
//
//   record    how it goes on
//   waiting   its turn, and an open peer. Eager, it leaves when the receiver has room, and is done. Long, it was
//             granted before: moving; else started
//   started   a grant: moving. None after a while: announced, when the receiver has room
//   announced a grant: moving; a discard: done
//   moving    all pieces have left: done
//   done      all before it are done: its operation completes
//
// A message is started when all before it were, and several are under way at once. A receiver asks for long messages
// when it posts their receives, so most are asked for by the time they are sent or soon after: an announcement is for
// the others.

#ifndef TRANSPORT_OFI_SENDER_H_
#define TRANSPORT_OFI_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "transport/ofi/link_base.h"
#include "transport/ofi/record_pool.h"
#include "transport/ofi/wire.h"
#include "transport/transport.h"

namespace lockstep {

struct OfiOutgoing {
  enum class State : uint8_t { kWaiting, kStarted, kAnnounced, kMoving, kDone };
  Operation* operation = nullptr;
  State state = State::kWaiting;
  uint32_t number = 0;
  OfiGrant grant;
  uint32_t pieces = 0;  // that the message has
  uint32_t posted = 0;  // of them, to the provider
  uint32_t done = 0;    // of these
  OfiMemory::Region* region = nullptr;
  OfiOutgoing* next = nullptr;
};

// Externally synchronised.
class OfiSender {
 public:
  OfiSender(OfiLinkBase* base, OfiRecordPool<OfiOutgoing>* records) : base_(base), records_(records) {}
  OfiSender(const OfiSender&) = delete;
  OfiSender& operator=(const OfiSender&) = delete;

  // The operation's envelope, source and bytes are filled in.
  void Post(Operation* operation);
  // Sends a message of the host's memory that needs no operation: a short one to an open peer that has room, with none
  // before it. False when it is not so.
  bool SendAtOnce(const Envelope& envelope, const void* data, size_t bytes);
  // Starts what can be started: after the peer has opened, and after notices.
  void Advance();

  // Announces the long messages that are started.
  void Announce();

  void OnExpected(uint32_t expected);
  void OnGrant(uint32_t number, const Envelope& envelope, const OfiGrant& grant);
  void OnDiscard(uint32_t number);
  // The peer has received so many messages, whatever the provider has said of them so far.
  void OnReceived(uint32_t count);

  // Every operation completes with this, now and in future, as soon as the provider has done with its memory;
  // `abandon`: at once, since the peer has no use for what it may still be sent. The first reason counts.
  void Break(const absl::Status& status, bool abandon);
  void BreakBecause(const absl::Status& cause, bool abandon) { Break(base_->Because("send to", cause), abandon); }
  // The endpoint is closed, or not to be touched: every operation completes.
  void Drop(const absl::Status& status);
  bool broken() const { return !status_.ok(); }

  bool pending() const { return front_ != nullptr; }
  // How many messages have left, modulo 2^32: in order, and none of those that were broken off.
  uint32_t sent() const { return sent_; }
  // Pieces whose memory the provider may be reading.
  int in_flight() const { return in_flight_; }

 private:
  struct Early {
    uint32_t number;
    Envelope envelope;
    OfiGrant grant;
  };

  static void OnPieceSent(OfiPost* post, const OfiCompletion& completion);
  // False when it has to wait.
  bool Start(OfiOutgoing* record);
  bool StartGranted(OfiOutgoing* record);
  void Announce(OfiOutgoing* record);
  // Whether the receiver has room for this message.
  bool Expected(uint32_t number) const;
  void Move(OfiOutgoing* record, const OfiGrant& grant);
  void PostPieces(OfiOutgoing* record);
  OfiOutgoing* Find(uint32_t number) const;
  void CompleteFront();
  // Nobody waits any more for what the provider says of this message's pieces, or of all.
  void Abandon(const OfiOutgoing* of);

  OfiLinkBase* const base_;
  OfiRecordPool<OfiOutgoing>* const records_;
  OfiOutgoing* front_ = nullptr;
  OfiOutgoing* back_ = nullptr;      // valid while front_ is set
  OfiOutgoing* to_start_ = nullptr;  // the first that is waiting
  uint32_t next_number_ = 0;
  uint32_t sent_ = 0;
  uint32_t peer_expects_ = 0;
  int in_flight_ = 0;
  std::vector<Early> early_;  // grants of messages that have not been started
  std::vector<OfiPiece*> flying_;
  bool unannounced_ = false;  // among the parts'
  absl::Status status_;
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_SENDER_H_
