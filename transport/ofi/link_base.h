// What the two halves of a link share: the parts of the transport that they use, and the notices to the peer.

#ifndef TRANSPORT_OFI_LINK_BASE_H_
#define TRANSPORT_OFI_LINK_BASE_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/rank.h"
#include "base/status.h"
#include "transport/ofi/endpoint.h"
#include "transport/ofi/memory.h"
#include "transport/ofi/peers.h"
#include "transport/ofi/wire.h"
#include "transport/posting.h"
#include "transport/transport.h"

namespace lockstep {

// A piece of a long message, on its way from or to the memory of an operation, or to a slot.
struct OfiPiece {
  OfiPost post;  // first: found again from the post that completes
  void* link = nullptr;
  void* record = nullptr;               // null: nobody waits for it any more
  OfiMemory::Region* region = nullptr;  // of such a one, until the provider has done with it
  uint32_t index = 0;
  OfiSlot* staging = nullptr;
  OfiPiece* next = nullptr;
  iovec places[kOfiPlacesMax];  // of the post, when the message is in pieces

  // The post's memory is where post.bytes of the message lie, from an offset on.
  void SetPlaces(absl::Span<const iovec> message, size_t offset) {
    post.places = places;
    post.places_count = CutPieces(message, offset, post.bytes, places, kOfiPlacesMax);
  }
};

class OfiReceiver;
class OfiSender;

// Operations whose completion is due, in order. OfiLinks::RunDue completes them, outside of everything else.
using OfiDue = std::vector<std::pair<Operation*, absl::Status>>;

// Borrowed by all links of a transport; what it points to is borrowed as well. Externally synchronised, as all that is in it.
struct OfiParts {
  const Transport* transport = nullptr;
  OfiEndpoint* endpoint = nullptr;
  OfiPeers* peers = nullptr;
  OfiMemory* memory = nullptr;
  OfiSlotPool* staging = nullptr;  // where pieces wait for a reduction
  OfiDue due;
  OfiRecordPool<OfiPiece> pieces;
  uint32_t piece_bytes = 0;             // of a message that goes straight into its place
  uint64_t next_piece = 0;              // without the bit that tells a piece from a notice
  std::vector<OfiReceiver*> starved;    // found no staging slot
  std::vector<OfiSender*> unannounced;  // have messages that nobody has asked for yet
};

// How many pieces of one message are under way at once.
inline constexpr uint32_t kOfiPiecesMax = 8;
// How many messages a receiver may ask for before the sender has announced them.
inline constexpr int kOfiGrantedEarlyMax = 16;

// Whether message number a comes before b, modulo 2^32.
inline bool OfiBefore(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

// The record of a message, among those that are linked behind `front`; null if there is none.
template <typename Record>
Record* OfiFind(Record* front, uint32_t number) {
  while (front != nullptr && front->number != number) front = front->next;
  return front;
}

// The messages of one channel from and to one other rank.
struct OfiLinkBase {
  OfiParts* parts = nullptr;
  PeerCounters* counters = nullptr;
  Rank peer;
  ChannelId channel = 0;
  uint32_t posted = 0;     // receives, modulo 2^32
  uint32_t completed = 0;  // of these, in order
  uint32_t received = 0;   // of these, with a message
  uint32_t told = 0;       // expected(), as last sent to the peer

  // The number of the last message that this rank expects: as many as receives are posted for, but not all at once.
  uint32_t expected() const { return std::min(posted - completed, kOfiUnexpectedMax) + completed; }

  // Sends a notice, unless the peer is gone. Every notice carries expected(). The payload may be in pieces instead.
  void Notify(OfiKind kind, uint32_t number, const Envelope& envelope, const void* payload, size_t bytes,
              const MessagePieces* pieces = nullptr) {
    if (!parts->peers->open(peer)) return;
    OfiNotice notice;
    notice.number = number;
    notice.expected = expected();
    notice.envelope = envelope;
    told = notice.expected;
    parts->peers->Send(peer, kind, channel, notice, payload, bytes, pieces);
  }
  // With the way before the cause.
  absl::Status Because(bool sends, const absl::Status& cause) const {
    return Annotate(cause, DescribeWay(sends, *parts->transport, peer));
  }
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_LINK_BASE_H_
