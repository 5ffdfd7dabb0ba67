// The receiving half of a link.
//
//   record    how it goes on
//   waiting   its message came whole: done. Its message was announced, or is long and may be asked for in advance: moving;
//             starved if no staging slot is free
//   starved   a slot is free: moving
//   moving    all pieces have come: done
//   done      all before it are done: its operation completes
//   mismatch  all before it are done: the half is broken
//
// A message that is copied is received piece by piece into its place; one that is reduced passes through staging slots. Both
// kinds of memory wait under tags that the sender learns, so nothing long arrives unasked. What is asked for in advance
// takes at most half of the staging slots. The others are for messages that their senders have ready, so slots always come
// back.

#ifndef TRANSPORT_OFI_RECEIVER_H_
#define TRANSPORT_OFI_RECEIVER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "transport/ofi/link_base.h"
#include "transport/ofi/wire.h"
#include "transport/transport.h"

namespace lockstep {

struct OfiIncoming {
  enum class State : uint8_t { kWaiting, kStarved, kMoving, kDone, kMismatch };
  Operation* operation = nullptr;
  State state = State::kWaiting;
  bool announced = false;
  uint32_t number = 0;
  uint64_t first_piece = 0;
  uint32_t piece_bytes = 0;
  uint32_t pieces = 0;     // that the message has
  uint32_t granted = 0;    // of them, told the sender
  uint32_t posted = 0;     // of them, to the provider
  uint32_t arrived = 0;    // of these
  uint32_t in_flight = 0;  // pieces whose memory the provider may write
  OfiMemory::Region* region = nullptr;
  OfiIncoming* next = nullptr;
};

// Externally synchronised.
class OfiReceiver {
 public:
  OfiReceiver(OfiLinkBase* base, OfiRecordPool<OfiIncoming>* records) : base_(base), records_(records) {}
  OfiReceiver(const OfiReceiver&) = delete;
  OfiReceiver& operator=(const OfiReceiver&) = delete;

  // The operation's envelope, sink and bytes are filled in.
  void Post(Operation* operation);
  // Whether no receive is posted, and the next message would be taken.
  bool idle() const { return front_ == nullptr && !broken() && !ended_; }
  // Takes the next message without an operation, if it is there, short and as expected.
  // REQUIRES  idle(); a sink in the host's memory
  bool ReceiveAtOnce(const Envelope& expected, const Sink& sink);
  // Asks for long messages in advance, once the peer is open.
  void Advance();
  // Staging slots are free again.
  void Resume();

  // A message that has arrived whole, or is announced. True when its slot is kept until a receive takes it.
  struct Message {
    uint32_t number = 0;
    Envelope envelope = {};
    uint64_t bytes = 0;
    const unsigned char* payload = nullptr;
    OfiSlot* slot = nullptr;  // null: only announced
  };
  bool OnMessage(const Message& message);

  // Every operation completes with this, now and in future, as soon as the provider no longer writes into its memory. The
  // first reason counts.
  void Break(const absl::Status& status);
  // The peer sends nothing more. What has come whole is still delivered, and so are its first `sent` messages when they
  // arrive; everything else completes with the cause. Called again when the peer is gone: then nothing more is awaited.
  void End(const absl::Status& cause, absl::optional<uint32_t> sent);
  // The endpoint is closed, or not to be touched: every operation completes.
  void Drop(const absl::Status& status);

  bool broken() const { return !status_.ok(); }
  bool pending() const { return front_ != nullptr; }
  // Pieces whose memory the provider may write.
  size_t in_flight() const { return flying_.size(); }

 private:
  static void OnPieceReceived(OfiPost* post, const OfiCompletion& completion);
  void Match(OfiIncoming* record, const Message& message);
  bool Long(const OfiIncoming& record) const;
  // If the peer does not know of much that is expected.
  void TellExpected();
  // Makes memory wait for the message's pieces, and tells the sender.
  void Grant(OfiIncoming* record);
  void GrantMore(OfiIncoming* record);
  bool PostPiece(OfiIncoming* record);
  void Arrived(OfiIncoming* record, OfiPiece* piece);
  void CancelPieces(const OfiIncoming* of);
  void CompleteFront();
  // Whether the peer has sent it, or may do so.
  bool Awaited(const OfiIncoming& record) const;
  void Fail(const absl::Status& status);

  OfiLinkBase* const base_;
  OfiRecordPool<OfiIncoming>* const records_;
  OfiIncoming* front_ = nullptr;
  OfiIncoming* back_ = nullptr;  // valid while front_ is set
  std::vector<Message> unexpected_;
  std::vector<OfiPiece*> flying_;
  int granted_early_ = 0;       // messages that were asked for and have not begun to arrive
  bool more_to_grant_ = false;  // when one of these does
  bool starving_ = false;       // among the parts' starved
  bool ended_ = false;
  absl::Status end_;               // why nothing more comes
  absl::optional<uint32_t> sent_;  // but for the first of these
  absl::Status status_;
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_RECEIVER_H_
