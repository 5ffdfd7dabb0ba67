// How a rank reaches the others of its world: through shared memory where they share a host, over TCP otherwise; or all of
// them over one other transport, such as libfabric.
//
// Made around ControlChannel::Join: what listens before it, so that every member can be told where; the connections after it.
// Host ids are only a hint who to try. Ranks share memory when they could really connect and hand each other memory. Where
// they could not, they use TCP, and tell each other why.

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
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"
#include "transport/wide_transport.h"

namespace lockstep {

// A value of LOCKSTEP_TRANSPORT and what follows from it: a row in world_transport.cc.
struct TransportKind {
  const char* name;
  // With the ranks of this host that share memory, and with the others. Both: where one does not reach, the other does.
  bool uses_shm;
  bool uses_tcp;
  // Creates what carries everything alone, also between ranks of one host. Null: shared memory and TCP do.
  absl::StatusOr<std::unique_ptr<WideTransport>> (*create_wide)(const WideTransportOptions& options);
  const char* agreed_option;  // by this name the ranks compare WideTransport::agreed()
  int64_t chunk_bytes;        // WorldOptions::chunk_bytes where nothing says otherwise
  LinkCosts on_one_host;      // between ranks that do not share memory
};
// Shared memory with the ranks of this host, TCP with the others.
const TransportKind& DefaultTransport();
// INVALID_ARGUMENT lists them.
absl::StatusOr<const TransportKind*> FindTransport(absl::string_view name);

class WorldTransport {
 public:
  // Each part begins with who we are; they must agree in it.
  struct Options {
    const TransportKind* kind = &DefaultTransport();
    TcpTransportOptions tcp;
    ShmTransportOptions shm;
    WideTransportOptions wide;
  };

  // Listens from now on. Errors of TCP, and INVALID_ARGUMENT of all. A process that can make no shared memory, or not the
  // transport that carries everything, tells the others; without shared memory it uses TCP, if it may.
  static absl::StatusOr<WorldTransport> Listen(Options options);

  // Fills in where this rank listens.
  void Announce(Member* self) const;
  // What must be the same on all ranks: of a wide transport what it says, or why there is none.
  std::vector<AgreedOption> OptionsToAgreeOn() const;

  // Connects to the ranks of this host. TCP connects when it is first used, a wide transport now and to all ranks.
  // Collective.
  // ERRORS  DEADLINE_EXCEEDED  the ranks could not agree in time
  //         the control channel's failure of all channels, as of a rank that is stopped meanwhile
  //         what WideTransport::Connect returns, or what kept this rank from having one
  absl::Status Connect(ControlChannel* control, absl::Span<const Member> members, Deadline deadline);

  // After Connect. Ranks that this one shares memory with, in order; itself is none of them.
  const std::vector<Rank>& local_peers() const { return local_peers_; }
  // "shm"; or "tcp 10.0.0.7:4411" and why not shared memory, if that was to be expected; or as a wide transport describes it.
  std::string DescribeRoute(const Member& peer) const;
  // Lines of a wide transport about what it chose; else nothing.
  std::string DescribeChoice() const { return wide_ == nullptr ? "" : wide_->DescribeChoice(); }

  // After Connect. Collective: whether every rank of the world shares memory with all other ranks of its host. With shared
  // memory alone, UNAVAILABLE on every rank when two of them do not share memory, and why.
  absl::StatusOr<bool> AllShareMemory(ControlChannel* control, absl::Span<const Member> members,
                                      Deadline deadline) const;

  // The part of it by which ranks share memory, for as long as the transport lives; null where there is none.
  ShmTransport* shared_memory() const { return local_peers_.empty() ? nullptr : shm_.get(); }

  // The one transport that all of it makes. Once.
  absl::StatusOr<std::unique_ptr<Transport>> Take();

 private:
  WorldTransport(const TransportKind* kind, Rank rank) : kind_(kind), rank_(rank) {}
  bool shm_alone() const { return kind_->uses_shm && !kind_->uses_tcp; }

  const TransportKind* kind_;
  Rank rank_;
  std::unique_ptr<TcpTransport> tcp_;    // null where it is not used
  std::unique_ptr<WideTransport> wide_;  // null where there is none
  absl::Status no_wide_;                 // why
  std::unique_ptr<ShmTransport> shm_;    // null where there is none
  absl::Status no_shm_;                  // why
  std::vector<absl::Status> shared_;     // by rank: OK, or why it shares no memory with this one
  std::string why_not_all_;              // the first of these
  std::vector<Rank> local_peers_;
};

}  // namespace lockstep

#endif  // COMM_WORLD_WORLD_TRANSPORT_H_
