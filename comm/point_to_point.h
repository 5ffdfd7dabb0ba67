// PointToPoint: messages between pairs of ranks, matched by source and tag, over one channel of a transport.
//
// A transport matches by order alone, so every message begins with a header that both sides know the length of:
//
//   lane    = { header [ payload ] }                        what one rank sends another on the channel
//   header  = kind:u8 zero:u8[7] tag:i64 id:u64 bytes:u64   little-endian; the payload is a message of its own, of `bytes`
//
//   kind          tag, id, bytes            payload   means
//   1 eager       tag, 0, length            if > 0    here is a message
//   2 announce    tag, id, length           -         a message is ready; ids count the sender's announcements from 1
//   3 accept      0, id, 0                  -         the message announced as `id` has a receiver
//   4 refuse      0, id, room               -         ... which has room for so much only: the message is dropped
//   5 data        0, id, length             if > 0    here is the message that was accepted
//   6 consumed    0, 0, weight              -         so much of what was sent eagerly has been received
//
// A short message is sent eagerly, whether or not anybody receives it, while what the target has not consumed weighs less than
// kEagerWindow. A source that sends more breaks its lane. Every other message is announced, and moves straight into place when it
// is received. So a receiver holds a bounded amount for each source, and no message waits behind one that nobody receives.
// Messages with one tag from one source are received in the order in which they were sent.
//
// Externally synchronised by the progress engine's mutex, like the executor. The lane of a peer is opened by the first
// operation with it, and those of all peers by the first receive from any.

#ifndef COMM_POINT_TO_POINT_H_
#define COMM_POINT_TO_POINT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "comm/communicator.h"
#include "transport/transport.h"

namespace lockstep {

// One send or receive. The caller keeps it in place until Owner::OnMessageDone.
struct MessageCall {
  bool send = false;
  Rank peer;  // kAnySource in a receive from any
  int64_t tag = 0;
  char* data = nullptr;  // only read by a send
  size_t bytes = 0;      // of a receive: room
  Deadline deadline = Deadline::Infinite();
  bool late = false;  // the owner has acted on the deadline

  MessageInfo info;  // of a receive that is done, or matched

  std::list<MessageCall*>::iterator position;  // PointToPoint's own
};

// All fields except the deadline.
MessageCall ToCall(const SendRequest& request);
MessageCall ToCall(const ReceiveRequest& request);

// "receive from rank 1 with tag 7 (100 B)".
std::string ToString(const MessageCall& call);

class PointToPoint {
 public:
  static constexpr size_t kEagerBytesMax = 64 << 10;
  static constexpr size_t kEagerWindow = 1 << 20;

  class Owner {
   public:
    virtual ~Owner() = default;
    // The call is over; it is not used here any more.
    virtual void OnMessageDone(MessageCall* call, const absl::Status& status) = 0;
    // The lane to a peer broke, and this call needs it. The owner finds out the cause and calls FailAll.
    virtual void OnMessageFailed(MessageCall* call, const absl::Status& status, Rank peer) = 0;
  };

  // `ranks`: the transport's rank of each of the `size` ranks, or empty where they are the same; borrowed. Transport and owner
  // outlive this. A world of one needs no transport.
  PointToPoint(Transport* transport, ChannelId channel, Rank self, int size, absl::Span<const Rank> ranks,
               Owner* owner);
  // REQUIRES  no call is in flight
  ~PointToPoint();

  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Starts the call; may complete it before this returns.
  // REQUIRES  the peer is a rank, the tag is not negative; a receive may also name any peer and any tag
  void Start(MessageCall* call);

  // Ends the channel: every call is done with `status` when this returns. Nothing may be started afterwards.
  void FailAll(const absl::Status& status);

  // In flight, in the order in which they were started.
  const std::list<MessageCall*>& calls() const { return calls_; }

 private:
  static constexpr size_t kHeaderBytes = 32;
  enum class Kind : uint8_t { kEager = 1, kAnnounce = 2, kAccept = 3, kRefuse = 4, kData = 5, kConsumed = 6 };

  struct Header {
    Kind kind = Kind::kEager;
    int64_t tag = 0;
    uint64_t id = 0;
    uint64_t bytes = 0;
  };

  // A message that came, or was announced, before its receive.
  struct Arrival {
    Rank source;
    Header header;
    std::vector<char> data;           // of an eager one
    bool complete = false;            // all of the data is here
    MessageCall* taken_by = nullptr;  // the receive that waits for the rest of it
    MessageCall* own_send = nullptr;  // of a long message to this rank itself
  };

  // One operation of the transport in flight. Pooled.
  struct Frame {
    Operation operation;
    PointToPoint* messages = nullptr;
    Rank peer;
    bool incoming_header = false;
    std::array<unsigned char, kHeaderBytes> header = {};
    MessageCall* call = nullptr;  // done when this is
    Arrival* arrival = nullptr;   // complete when this is
    Frame* next_free = nullptr;
  };

  struct Lane {
    bool open = false;
    absl::Status broken;
    size_t eager_weight = 0;     // sent and not known to be consumed
    size_t held_weight = 0;      // received and not consumed
    size_t consumed_weight = 0;  // consumed and not told yet
    uint64_t announcements = 0;
    std::map<uint64_t, MessageCall*> announced;  // sends by id, until they are accepted
    std::map<uint64_t, MessageCall*> accepted;   // receives by the sender's id, until the data begins
  };

  static void OnOperationComplete(Operation* operation, const absl::Status& status);
  static std::array<unsigned char, kHeaderBytes> EncodeHeader(const Header& header);
  static Header DecodeHeader(const std::array<unsigned char, kHeaderBytes>& bytes);

  void StartSend(MessageCall* call);
  void StartReceive(MessageCall* call);
  void SendToSelf(MessageCall* call);

  // Opens the lane to a peer if it is not open. If it is broken, tells the owner and returns false.
  bool Open(Rank peer, MessageCall* call);
  void AwaitHeader(Rank peer);
  // Without a payload `call` is done when the header is under way.
  void SendHeader(Rank peer, const Header& header, MessageCall* call);
  void SendPayload(Rank peer, MessageCall* call);
  void ReceivePayload(Rank peer, void* target, size_t bytes, MessageCall* call, Arrival* arrival);

  void OnHeader(Rank source, const Header& header);
  void OnEager(Rank source, const Header& header);
  void OnAnnounce(Rank source, const Header& header);
  void OnBroken(Rank peer, const absl::Status& status);
  void Broken(Rank peer, const char* how);

  // Removes and returns the first posted receive that takes the message; null when there is none.
  MessageCall* TakeReceive(Rank source, int64_t tag);
  // A receive and an arrival have found each other.
  void Match(MessageCall* receive, std::list<Arrival>::iterator arrival);
  void Deliver(MessageCall* receive, Arrival* arrival);
  // Matched with what was announced.
  void Answer(MessageCall* receive, Rank source, const Header& header);
  // Whether the receive has room for the message.
  absl::Status CheckRoom(const MessageCall& receive, const Header& header) const;
  void Consumed(Rank source, size_t bytes);
  void Forget(Arrival* arrival);
  void Done(MessageCall* call, const absl::Status& status);

  Lane& lane(Rank peer) { return lanes_[peer.value()]; }
  Rank TransportRank(Rank rank) const { return ranks_.empty() ? rank : ranks_[rank.value()]; }
  Frame* NewFrame(Rank peer);

  // Constant after construction.
  Transport* const transport_;
  const ChannelId channel_;
  const Rank self_;
  const absl::Span<const Rank> ranks_;
  Owner* const owner_;

  std::vector<Lane> lanes_;
  std::list<MessageCall*> calls_;
  std::deque<MessageCall*> receives_;  // unmatched, in the order posted
  std::list<Arrival> arrivals_;        // unmatched or not complete, in the order in which they came
  std::deque<Frame> frames_;
  Frame* free_frames_ = nullptr;
  bool failed_ = false;
};

}  // namespace lockstep

#endif  // COMM_POINT_TO_POINT_H_
