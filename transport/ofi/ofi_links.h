// All links of a transport over one endpoint, and what arrives for them.

#ifndef TRANSPORT_OFI_OFI_LINKS_H_
#define TRANSPORT_OFI_OFI_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/ofi/endpoint.h"
#include "transport/ofi/link_base.h"
#include "transport/ofi/memory.h"
#include "transport/ofi/ofi_transport.h"
#include "transport/ofi/peers.h"
#include "transport/ofi/receiver.h"
#include "transport/ofi/sender.h"
#include "transport/ofi/wire.h"
#include "transport/transport.h"

namespace lockstep {

// Externally synchronised. Completions run in RunDue only.
class OfiLinks {
 public:
  // Borrows the transport, which knows its rank and size by now, and the options, whose sizes are settled.
  OfiLinks(const Transport* transport, std::unique_ptr<OfiEndpoint> endpoint, const OfiTransportOptions* options);
  ~OfiLinks();

  absl::Status SetAddresses(const std::vector<std::string>& addresses) { return peers_->SetAddresses(addresses); }
  bool addresses_known() const { return !broken_.ok() || peers_->addresses_known(); }
  std::string DescribePeer(Rank peer) const { return peers_->Describe(peer); }
  OfiMemory* memory() { return memory_.get(); }

  void Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
            Operation* operation);
  void Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink, Operation* operation);

  // As Transport::Exchange, of memory of the host. Calls Poll.
  Transport::Exchanged Exchange(Rank peer, ChannelId channel, const Envelope& envelope, const void* data,
                                const Sink& sink, int polls);

  // Whether a peer can be sent to. Begins the handshake if there was none.
  bool Open(Rank peer) { return broken_.ok() && peers_->Open(peer); }
  // OK, or why a peer cannot be reached any more.
  const absl::Status& status(Rank peer) const { return broken_.ok() ? peers_->status(peer) : broken_; }

  // Moves what can be moved. True when anything did.
  bool Poll();
  // OK, or why nothing can be sent or received any more.
  const absl::Status& status() const { return peers_->status().ok() ? stuck_ : peers_->status(); }

  // Whether Shutdown or Leave was called.
  bool broken() const { return !broken_.ok(); }
  // Whether Poll may have something to do of which no event tells: a handshake is under way, or the provider has refused
  // something.
  bool restless() const { return broken_.ok() && (endpoint_->refused() || peers_->waiting()); }
  int wait_descriptor() const { return endpoint_->wait_descriptor(); }
  // Whether messages wait that are announced by a later Poll, or by AnnounceAll now.
  bool unannounced() const { return !parts_.unannounced.empty(); }
  void AnnounceAll();
  // Whether a waiter may sleep until wait_descriptor() is readable.
  bool PrepareToWait();

  // Runs the completions that are due, and within bounds those that they make due. Returns whether there were any. Does nothing
  // inside a completion.
  bool RunDue();
  bool running() const { return running_; }
  bool due() const { return !parts_.due.empty(); }

  // Breaks the links of a channel, now and in future, and tells the peers.
  void BreakChannel(ChannelId channel, const absl::Status& status);
  // Whether the provider may still read or write memory of the channel's operations.
  bool in_flight(ChannelId channel) const;

  // Disconnects until the deadline, ends the endpoint, and breaks all links, now and in future.
  void Shutdown(const absl::Status& status, Deadline deadline);
  // The same in a forked child: touches nothing of the provider, and never releases it.
  void Leave(const absl::Status& status);

  // Who was turned away. Thread-safe.
  const Refusals& refusals() const { return peers_->refusals(); }
  bool sends_pending() const;
  // Whether notices, or messages whose operations have completed, are still to be sent.
  bool notices_pending() const { return broken_.ok() && peers_->sends_pending() > 0; }
  const PeerCounters& counters(Rank peer) const { return counters_[peer.value()]; }

  // What OfiPeers calls inside the endpoint's Poll, and by Open and Progress.
  void OnOpen(Rank peer);
  void OnGone(Rank peer);
  // A notice of an open peer, of the kinds from kEager to kClosed, with its `bytes` behind the header. True when the
  // slot is kept until OfiPeers::GiveBack.
  bool OnNotice(Rank peer, OfiKind kind, ChannelId channel, const OfiNotice& notice, const unsigned char* payload,
                size_t bytes, OfiSlot* slot);

 private:
  struct Link {
    Link(OfiRecordPool<OfiOutgoing>* outgoing, OfiRecordPool<OfiIncoming>* incoming)
        : send(&base, outgoing), receive(&base, incoming) {}
    OfiLinkBase base;
    OfiSender send;
    OfiReceiver receive;
    bool closing = false;  // the peer is to be told, or was
    // When the provider must have given memory back.
    Deadline closing_deadline = Deadline::Infinite();
  };

  Link* Get(Rank peer, ChannelId channel);
  Link* Make(Rank peer, ChannelId channel);
  // Operations whose completion is due, of one channel or all, complete with this instead.
  void Revoke(const absl::Status& status, const ChannelId* channel);
  // Tells the peer that the channel has ended here, as soon as nothing from it is being received any more.
  void TellClosed(Link* link);
  void TellClosed();
  void DropAll(const absl::Status& status);
  template <typename Visit>
  void ForEachLink(Rank peer, Visit visit);

  const Transport* const transport_;
  const OfiTransportOptions* const options_;
  std::vector<PeerCounters> counters_;  // by peer; never resized, links point into it
  std::unique_ptr<OfiEndpoint> endpoint_;
  std::unique_ptr<OfiMemory> memory_;
  std::unique_ptr<OfiSlotPool> staging_;
  std::unique_ptr<OfiPeers> peers_;
  OfiRecordPool<OfiOutgoing> outgoing_;
  OfiRecordPool<OfiIncoming> incoming_;
  OfiParts parts_;

  absl::flat_hash_map<uint64_t, std::unique_ptr<Link>> links_;
  std::vector<Link*> last_used_;  // by peer
  int unannounced_polls_ = 0;     // since messages wait that are to be announced
  std::vector<Link*> closing_;    // whose peers are to be told, when memory is back from the provider
  absl::Status stuck_;
  absl::flat_hash_map<ChannelId, absl::Status> broken_channels_;
  absl::Status broken_;  // what Shutdown or Leave was told
  bool running_ = false;
  size_t run_ = 0;     // how many of the due have been taken
  bool left_ = false;  // in a forked child
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_OFI_LINKS_H_
