// The sending half of a link.
//
//   record    how it goes on
//   waiting   for the messages before it, and for an open peer. An eager one leaves when the receiver has room: done. A long
//             one: moving if it was granted before, else started
//   started   a grant: moving. None after a while: announced, when the receiver has room
//   announced a grant: moving; a discard: done
//   moving    all pieces have left: done
//   done      all before it are done: its operation completes
//
// A message starts when all messages before it have started; several are under way at once. A receiver asks for long
// messages when it posts their receives. So most are asked for by the time they are sent, or soon after. The others are
// announced.

#ifndef TRANSPORT_OFI_SENDER_H_
#define TRANSPORT_OFI_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "transport/ofi/link_base.h"
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
  // Sends a short message in the host's memory without an operation. False unless the peer is open and has room, and no
  // message is before it.
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

  // Every operation completes with this, now and in future, as soon as the provider is done with its memory. With `abandon`
  // at once, since the peer has no use for what it may still get. The first reason counts.
  void Break(const absl::Status& status, bool abandon);
  void BreakBecause(const absl::Status& cause, bool abandon) { Break(base_->Because(/*sends=*/true, cause), abandon); }
  // The endpoint is closed, or not to be touched: every operation completes.
  void Drop(const absl::Status& status);
  bool broken() const { return !status_.ok(); }

  bool pending() const { return front_ != nullptr; }
  // How many messages have left, modulo 2^32: in order, and none of those that were broken off.
  uint32_t sent() const { return sent_; }
  // Pieces whose memory the provider may be reading.
  size_t in_flight() const { return flying_.size(); }

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
  void CompleteFront();
  // Forgets the pieces of this message, or of all, that the provider still has.
  void Abandon(const OfiOutgoing* of);

  OfiLinkBase* const base_;
  OfiRecordPool<OfiOutgoing>* const records_;
  OfiOutgoing* front_ = nullptr;
  OfiOutgoing* back_ = nullptr;      // valid while front_ is set
  OfiOutgoing* to_start_ = nullptr;  // the first that is waiting
  uint32_t next_number_ = 0;
  uint32_t sent_ = 0;
  uint32_t peer_expects_ = 0;
  std::vector<Early> early_;  // grants of messages that have not been started
  std::vector<OfiPiece*> flying_;
  bool unannounced_ = false;  // among the parts'
  absl::Status status_;
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_SENDER_H_
