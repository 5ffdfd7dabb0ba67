// The transport over libfabric: one reliable-datagram endpoint for a rank, whose provider is chosen by what it can do
// (transport/ofi/provider.h).
//
// Two ranks shake hands before anything else, and prove to each other that they have the world's secret, unless its level is
// none. Data is not protected at any level: libfabric moves it, and whoever is on the fabric can read and change it.
//
// Short messages travel whole, and wait at the receiver until it receives them, as far as it has room. The receiver asks for a
// long message as soon as its receive is posted; it arrives in place, and we copy nothing. docs/wire_formats.md has the protocol.
//
// Progress. Every provider is treated as one that moves only when it is called (FI_PROGRESS_MANUAL). A waiter sleeps on
// the provider's descriptor, if it has one that works, and on a timer. The timer ticks every millisecond if there is no
// descriptor, or while the provider refuses something (because a connection is being made); else every 50 ms.
//
// Memory. If a provider wants buffers registered (FI_MR_LOCAL), a buffer is registered while a message needs it. Memory given
// to RegisterMemory stays registered until DeregisterMemory, and must not be unmapped before: the provider would hold the old
// pages, and send from those what lies in new memory at the same address. (After an abort a provider may hold a message that
// its receiver gave up, and its registration, until it is closed.)
//
// Fork. A child touches nothing of the provider. Its descriptors are the provider's: a child that goes on without exec
// keeps them open.

#ifndef TRANSPORT_OFI_OFI_TRANSPORT_H_
#define TRANSPORT_OFI_OFI_TRANSPORT_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/ofi/endpoint.h"
#include "transport/ofi/provider.h"
#include "transport/posting.h"
#include "transport/sleepers.h"
#include "transport/transport.h"
#include "transport/wakeup.h"
#include "transport/wide_transport.h"

namespace lockstep {

// An empty bind_address: any. An empty provider or domain, as in OfiRequest: the best, or the first at the address.
struct OfiTransportOptions : WideTransportOptions {
  // The longest piece that a message is received in, and that a reduction reads at a time; a provider may have shorter
  // messages. 0: what the provider moves best.
  uint32_t piece_bytes = 0;
  size_t staging_bytes = 0;
  // How many such pieces there are at most.
  size_t staging_pieces = 16;
  // How long a peer is tried for that does not answer.
  std::chrono::milliseconds connect_timeout{10000};
  // How long AbortChannel waits for messages that are on their way into memory or out of it.
  std::chrono::milliseconds drain_timeout{2000};
  // Null: the process's (Ofi()).
  const OfiApi* api = nullptr;
};

class OfiLinks;
class Refusals;

class OfiTransport final : public WideTransport {
 public:
  // INVALID_ARGUMENT for a rank outside the world or an over-long job id; UNAVAILABLE without libfabric; NOT_FOUND when
  // no provider will do, with the candidates and why; else what the provider says.
  static absl::StatusOr<std::unique_ptr<OfiTransport>> Create(OfiTransportOptions options);
  ~OfiTransport() override;

  // "tcp;ofi_rxm 02009c4b7f000001": the provider's name, and its own kind of address in hexadecimal.
  const std::string& address() const override { return address_; }
  // The provider's name.
  const std::string& agreed() const override { return provider_; }
  // All providers, the chosen one first, and why the others were not.
  std::string DescribeChoice() const override;

  // Who was turned away by this rank. Thread-safe.
  const Refusals& refusals() const;

  // FAILED_PRECONDITION when a rank uses another provider than this one, naming both.
  absl::Status SetPeers(const std::vector<std::string>& addresses) override;

  // Optional: otherwise the first message to a peer begins the handshake, and a peer that nobody drives does not answer it.
  absl::Status Connect(Deadline deadline, const std::function<absl::Status()>& failure) override;

  const char* name() const override { return "ofi"; }
  Rank rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string DescribePeer(Rank peer) const override;  // "ofi tcp;ofi_rxm 10.0.0.7:4411"
  void Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
            Operation* operation) override;
  void Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
               Operation* operation) override;
  int send_pieces_max(Rank) const override { return send_pieces_max_; }
  int receive_pieces_max(Rank) const override { return receive_pieces_max_; }
  absl::Status RegisterMemory(const void* memory, size_t bytes) override;
  void DeregisterMemory(const void* memory, size_t bytes) override;
  Exchanged Exchange(Rank peer, ChannelId channel, const Envelope& envelope, const void* data, const Sink& sink,
                     int polls) override;
  bool Progress() override;
  bool sends_may_lag() const override { return true; }
  bool sends_lag() const override;
  void WaitForEvent(Deadline deadline) override;
  void Wake() override { sleepers_.Wake(); }
  // Waits up to the drain timeout for messages of the channel that are on their way into memory or out of it. When they
  // do not arrive, a peer does not move: the endpoint is closed, which ends them, and with it the whole transport, as
  // by Abort.
  void AbortChannel(ChannelId channel, const absl::Status& status) override;
  void Abort(const absl::Status& status) override;
  // DEADLINE_EXCEEDED when sends were cut off.
  absl::Status Close(Deadline deadline) override;
  PeerCounters counters(Rank peer) const override;

 private:
  OfiTransport(OfiTransportOptions options, std::vector<OfiCandidate> candidates, UniqueFd events, UniqueFd timer,
               Wakeup wakeup);

  absl::Status Open(std::unique_ptr<OfiEndpoint> endpoint);
  absl::Status CheckPeer(Rank peer) const { return lockstep::CheckPeer(name(), options_.rank, options_.size, peer); }
  // True in a forked child; completes everything then.
  bool Forked();
  // Runs completions, and tells waiters when something is left to do.
  bool Settle();
  // The same until no completion is due, unless a completion calls it: memory of operations is the caller's again then.
  void SettleAll();
  void SetTick();
  // Stops watching a descriptor of the provider that is always readable.
  void JudgeDescriptor(bool moved);
  void StopWatching();

  // Constant after construction.
  const OfiTransportOptions options_;
  const uint64_t fork_generation_;
  const std::vector<OfiCandidate> candidates_;
  const UniqueFd events_;  // an epoll set of the timer and the provider's descriptor
  const UniqueFd timer_;

  // Externally synchronised.
  std::unique_ptr<OfiLinks> links_;
  std::string provider_;
  std::string address_;
  int send_pieces_max_ = 1;
  int receive_pieces_max_ = 1;
  bool closed_ = false;
  bool fast_tick_ = false;
  bool descriptor_watched_ = false;
  int idle_events_ = 0;  // events in a row after which there was nothing to do, and since when
  Deadline::Clock::time_point idle_since_;

  Sleepers sleepers_;

  // Shared with WaitForEvent on any thread. Whether the provider's descriptor tells of whatever happens from now on. Set by
  // Progress when a waiter wants to sleep, which it cannot find out by itself: it holds no lock. Sequentially consistent, as
  // what Sleepers has: a sleeper counts itself, then looks at this; Settle clears it when it leaves something to later
  // polls, then looks for sleepers. The thread that drives the transport, which alone writes it, also reads it relaxed.
  std::atomic<bool> armed_{false};
  // A hint from waiters to Progress, relaxed. A waiter does not sleep until it was seen.
  std::atomic<bool> sleep_wanted_{false};
};

// OfiTransport::Create, for the table of comm/world.
absl::StatusOr<std::unique_ptr<WideTransport>> CreateOfiTransport(const WideTransportOptions& options);

}  // namespace lockstep

#endif  // TRANSPORT_OFI_OFI_TRANSPORT_H_
