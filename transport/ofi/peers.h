// The other ranks as an endpoint reaches them: handshakes, and the notices that travel in slots.
//
//   state     how it is left
//   idle      the first Open: handshake; a handshake that the peer began, and that fits: open
//   handshake the peer accepts, or one that the peer began fits: open; it refuses, or no answer comes in time: gone
//   open      its disconnect, or an error of a send to it: gone
//   gone      never
//
// Peers may begin handshakes with each other at the same time. Both go on until one of them is through; since each rank has one
// token for each peer, it does not matter which.
//
// A rank that is not welcomed says its hello again, up to 4 times in the time that a connection may take: the peer may have had too many.
//
// What a peer has to say counts only once it has proved that it has the world's secret. Who does not is turned away, counted and
// logged, as is one that does not fit, and nobody hears of it. So are notices that begin with no token that this rank gave away.

#ifndef TRANSPORT_OFI_PEERS_H_
#define TRANSPORT_OFI_PEERS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/ofi/endpoint.h"
#include "transport/ofi/memory.h"
#include "transport/ofi/wire.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/half_open.h"
#include "transport/secure/refusals.h"
#include "transport/transport.h"

namespace lockstep {

class OfiLinks;

// Externally synchronised.
class OfiPeers {
 public:
  // `own` is what this rank says of itself; its token and target are filled in here. Borrows what there are pointers to. Posts
  // `slots` receives; status() says whether that was possible.
  OfiPeers(OfiHandshake own, const Credentials& credentials, std::chrono::milliseconds connect_timeout, int slots,
           OfiEndpoint* endpoint, OfiLinks* links);
  ~OfiPeers();
  OfiPeers(const OfiPeers&) = delete;
  OfiPeers& operator=(const OfiPeers&) = delete;

  // By rank, one's own entry is not used. Once. INVALID_ARGUMENT for what is no address.
  absl::Status SetAddresses(const std::vector<std::string>& addresses);
  bool addresses_known() const { return !addresses_.empty(); }

  // "127.0.0.1:4411", or however the provider's addresses look.
  std::string Describe(Rank peer) const;

  // Whether notices can be sent to it now. Begins the handshake if there was none.
  bool Open(Rank peer);
  bool open(Rank peer) const { return peers_[peer.value()].state == State::kOpen; }
  // OK, or why a peer is gone.
  const absl::Status& status(Rank peer) const { return peers_[peer.value()].status; }
  // The number of an open peer at the endpoint.
  int index(Rank peer) const { return peers_[peer.value()].index; }

  // Sends a notice to an open peer, with `number`, `posted` and the envelope; the payload, or its pieces, is copied.
  void Send(Rank peer, OfiKind kind, ChannelId channel, OfiNotice notice, const void* payload, size_t bytes,
            const MessagePieces* pieces = nullptr);
  // A slot that OfiLinks::OnNotice kept.
  void GiveBack(OfiSlot* slot) { slots_.Give(slot); }

  // An error that came with something sent to this peer.
  void Lose(Rank peer, const absl::Status& status);
  // To all that are open: this rank has ended.
  void SendDisconnect();

  // Ends handshakes that took too long, and lets go who has disconnected. True when there were any.
  bool Progress();
  // Whether that is to be looked at soon, without anything that tells.
  bool waiting() const { return handshaking_ > 0 || leaving_ > 0; }
  // Notices to peers that the provider has not done with.
  int sends_pending() const { return sends_pending_; }
  // OK, or why nothing can be sent and received any more.
  const absl::Status& status() const { return status_; }
  // Who was turned away. Thread-safe.
  const Refusals& refusals() const { return refusals_; }

 private:
  enum class State : uint8_t { kIdle, kHandshake, kOpen, kGone };
  struct Peer {
    State state = State::kIdle;
    absl::Status status;
    int index = -1;          // at the endpoint, once its address is known
    uint64_t own_token = 0;  // with which it speaks to this rank
    uint64_t token = 0;      // with which it wants to be spoken to
    // Answers to it that the provider has, in handshakes that it began, or others in its name.
    int answers_waiting = 0;
    // Of the handshake that this rank began, while that is under way.
    uint64_t exchange = 0;
    std::unique_ptr<Channel> channel;
    std::string hello;
    Deadline hello_again = Deadline::Infinite();
    OfiSlot* hello_slot = nullptr;  // while the provider has it
    OfiSlot* early = nullptr;       // notices that came before the answer, in their order
    Deadline deadline = Deadline::Infinite();
    Deadline gone_by = Deadline::Infinite();  // once it has disconnected
  };
  // A handshake that somebody else began, who says that it is rank `source`.
  struct Incoming {
    uint64_t exchange = 0;
    uint32_t source = 0;
    OfiHello hello;
    int index = -1;                    // of where it is, at the endpoint
    std::unique_ptr<Channel> channel;  // null until addresses are known
  };

  static void OnSent(OfiPost* post, const OfiCompletion& completion);
  static void OnReceived(OfiPost* post, const OfiCompletion& completion);
  void PostReceive();
  void PostReceive(OfiSlot* slot);
  // True when the slot is kept.
  bool Handle(OfiSlot* slot, const OfiCompletion& completion);
  void HandleHandshake(OfiKind kind, const OfiNotice& notice, absl::string_view bytes);
  // Of handshakes that somebody else began.
  void HandleHello(const OfiNotice& notice, absl::string_view bytes);
  void RefuseVersion(const OfiNotice& notice, const OfiHello& hello);
  void Welcome(uint64_t id);
  void HandleConfirm(const OfiNotice& notice, absl::string_view bytes);
  OfiRefusal Judge(const OfiHandshake& handshake, const Incoming& incoming) const;
  void TurnAway(uint64_t id, Refusal refusal, absl::string_view what);
  // Ends one that is not through. No matter if the two ranks have met otherwise.
  void GiveUp(uint64_t id, Refusal refusal);
  // Of handshakes that this rank began.
  void HandleWelcome(Rank peer, absl::string_view bytes);
  void HandleAnswer(Rank peer, absl::string_view bytes);

  // What this rank says to this peer.
  const OfiHandshake& HandshakeFor(Rank peer);
  void BecomeOpen(Rank peer, uint64_t token);
  // It has disconnected: gone, once nothing can come any more that was sent before.
  void SeeOff(Rank peer);
  void BecomeGone(Rank peer, absl::Status status);
  void SayHello(Rank peer);
  // A notice of a handshake. Null when it left at once.
  OfiSlot* SendHandshake(int index, OfiKind kind, uint64_t exchange, absl::string_view bytes);
  // The same, in a handshake that somebody else began. Anybody can make this rank answer: so no more than `waiting_max` answers wait for
  // a rank, 12 at most, and unauthenticated peers are answered 64 times in the time that a connection may take. False when one to a rank
  // is not sent because of that.
  bool SendAnswer(int index, OfiKind kind, uint64_t exchange, absl::string_view bytes, int waiting_max);
  // To a number at the endpoint. Null when it left at once, or could not be sent.
  OfiSlot* SendTo(int index, uint64_t tag, const OfiNotice& notice, const void* payload, size_t bytes,
                  const MessagePieces* pieces = nullptr);
  std::string DescribeAddress(const std::string& address) const;
  // The endpoint number of somebody who is where no rank is known to be.
  // ERRORS  INVALID_ARGUMENT    this is no address of the provider
  //         RESOURCE_EXHAUSTED  there are too many such addresses
  absl::StatusOr<int> FindUnauthenticated(const std::string& address);
  // Of a number at the endpoint; -1 for an unauthenticated peer.
  Rank RankOf(int index) const;

  const Rank rank_;
  const Credentials credentials_;
  const std::chrono::milliseconds connect_timeout_;
  OfiEndpoint* const endpoint_;
  OfiLinks* const links_;
  OfiHandshake own_;
  OfiSlotPool slots_;
  std::vector<Peer> peers_;
  std::vector<std::string> addresses_;
  absl::flat_hash_map<uint64_t, Rank> tokens_;  // whose own_token it is
  std::vector<Rank> ranks_;                     // by number at the endpoint; -1 for unauthenticated peers
  absl::flat_hash_map<std::string, int> unauthenticated_;
  // Endpoint numbers of unauthenticated peers that were answered, and the deadline for sending that.
  std::deque<std::pair<int, Deadline>> answered_;
  std::map<uint64_t, Incoming> incoming_;  // by a number that grows
  uint64_t last_incoming_ = 0;
  HalfOpen half_open_;  // the same
  Refusals refusals_;
  int handshaking_ = 0;  // how many peers are in that state
  int leaving_ = 0;      // how many have disconnected and are not gone
  int sends_pending_ = 0;
  absl::Status status_;
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_PEERS_H_
