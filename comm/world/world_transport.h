// How a rank reaches the others of its world: through shared memory where they share a host, over TCP otherwise; or all of
// them over libfabric.
//
// Made around ControlChannel::Join: what listens before it, so that every member can be told where; the connections after it.
// Host ids are only a hint who to try. Ranks share memory when they could really connect and hand each other memory; where
// they could not, they use TCP, and say to each other why. libfabric is used where it was asked for, between all ranks and
// alone.

#ifndef COMM_WORLD_WORLD_TRANSPORT_H_
#define COMM_WORLD_WORLD_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "comm/topology/link_costs.h"
#include "transport/control/control.h"
#include "transport/control/control_types.h"
#include "transport/ofi/ofi_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace lockstep {

enum class TransportChoice {
  kAuto,  // shared memory with the ranks of this host, TCP with the others
  kTcp,
  kShm,  // shared memory or nothing: all ranks are on one host
  kOfi,  // libfabric between all ranks, also those of one host
};
// What else is asked of a choice, a row for each in world_transport.cc.
struct TransportTraits {
  TransportChoice choice;
  const char* name;
  bool shares_memory;     // with the ranks of this host that it can share memory with
  int64_t chunk_bytes;    // WorldOptions::chunk_bytes where nothing says otherwise
  LinkCosts on_one_host;  // between ranks that do not share memory
};
const TransportTraits& TraitsOf(TransportChoice choice);
// INVALID_ARGUMENT lists them.
absl::StatusOr<TransportChoice> ParseTransportChoice(absl::string_view name);
inline std::string Name(TransportChoice choice) { return TraitsOf(choice).name; }

class WorldTransport {
 public:
  // Both begin with who we are; they must agree in it.
  struct Options {
    TransportChoice choice = TransportChoice::kAuto;
    TcpTransportOptions tcp;
    ShmTransportOptions shm;
    OfiTransportOptions ofi;
  };

  // Listens from now on. Errors of TCP, and INVALID_ARGUMENT of all; a process that can make no shared memory tells the
  // others, and with kAuto uses TCP; one that has no provider of libfabric tells them, too.
  static absl::StatusOr<WorldTransport> Listen(Options options);

  // Fills in where this rank listens.
  void Announce(Member* self) const;
  // What must be the same on all ranks: with kOfi the provider, or why there is none.
  std::vector<AgreedOption> OptionsToAgreeOn() const;

  // Connects to the ranks of this host; TCP connects when it is first used, libfabric now and to all ranks. Collective.
  // DEADLINE_EXCEEDED when the ranks could not agree in time; with kOfi what kept this rank from a provider, and UNAVAILABLE
  // for a rank that does not answer.
  absl::Status Connect(absl::Span<const Member> members, Deadline deadline);

  // After Connect. Ranks that this one shares memory with, in order; itself is none of them.
  const std::vector<Rank>& local_peers() const { return local_peers_; }
  // "shm"; or "tcp 10.0.0.7:4411" and why not shared memory, if that was to be expected; or "ofi tcp;ofi_rxm
  // 10.0.0.7:4411".
  std::string DescribeRoute(const Member& peer) const;
  // With kOfi the providers of libfabric that there are, one a line, the one that was chosen first, and why not the others;
  // else nothing.
  std::string DescribeProviders() const;

  // After Connect. Collective: whether every rank of the world shares memory with all other ranks of its host. With kShm,
  // UNAVAILABLE on every rank when two of them do not share memory, and why.
  absl::StatusOr<bool> AllShareMemory(ControlChannel* control, absl::Span<const Member> members,
                                      Deadline deadline) const;

  // The part of it by which ranks share memory, for as long as the transport lives; null where there is none.
  ShmTransport* shared_memory() const { return local_peers_.empty() ? nullptr : shm_.get(); }

  // The one transport that all of it makes. Once.
  absl::StatusOr<std::unique_ptr<Transport>> Take();

 private:
  WorldTransport(TransportChoice choice, Rank rank) : choice_(choice), rank_(rank) {}
  static absl::StatusOr<WorldTransport> ListenOverOfi(Options options);
  absl::Status ConnectOverOfi(absl::Span<const Member> members, Deadline deadline);
  bool may_share_memory() const { return TraitsOf(choice_).shares_memory; }

  TransportChoice choice_;
  Rank rank_;
  std::unique_ptr<TcpTransport> tcp_;  // null with kShm and kOfi
  std::unique_ptr<OfiTransport> ofi_;  // with kOfi; null where there is none
  absl::Status no_ofi_;                // why
  std::unique_ptr<ShmTransport> shm_;  // null where there is none
  absl::Status no_shm_;                // why
  std::vector<absl::Status> shared_;   // by rank: OK, or why it shares no memory with this one
  std::string why_not_all_;            // the first of these
  std::vector<Rank> local_peers_;
};

}  // namespace lockstep

#endif  // COMM_WORLD_WORLD_TRANSPORT_H_
