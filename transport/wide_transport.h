// WideTransport: a Transport that reaches all ranks of a world by itself, as comm/world sets it up.
//
// The world creates it, and it listens from then on. Then the world tells all ranks where each of them listens, checks that
// they agree, and connects them. A new one is a row of the table in comm/world/world_transport.cc.

#ifndef TRANSPORT_WIDE_TRANSPORT_H_
#define TRANSPORT_WIDE_TRANSPORT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "transport/posting.h"
#include "transport/secure/credentials.h"
#include "transport/transport.h"

namespace lockstep {

struct WideTransportOptions : WorldIdentity {
  Credentials credentials;   // the world's: what peers have to prove
  std::string bind_address;  // of the interface that the world uses, "10.0.0.7:0"; the port is the transport's choice
  std::string provider;      // WorldOptions::ofi_provider
  std::string domain;        // WorldOptions::ofi_domain
};

class WideTransport : public Transport {
 public:
  // Where this rank is reached, for the others.
  virtual const std::string& address() const = 0;

  // What must be the same on all ranks, for people too: "tcp;ofi_rxm".
  virtual const std::string& agreed() const = 0;

  // Lines about what it found and chose, for people.
  virtual std::string DescribeChoice() const = 0;

  // Where each rank is reached; this rank's own entry is not used.
  // REQUIRES  called once, before the first Send
  // ERRORS    INVALID_ARGUMENT     the number of addresses is not that of the ranks, or one is no address
  //           FAILED_PRECONDITION  a rank does not agree with this one
  virtual absl::Status SetPeers(const std::vector<std::string>& addresses) = 0;

  // Connects to every peer. All ranks call it at about the same time, after SetPeers.
  // ERRORS  FAILED_PRECONDITION  a peer refuses
  //         PERMISSION_DENIED    a peer does not have the secret, or has another security level
  //         UNAVAILABLE          a peer does not answer within the connect timeout
  //         DEADLINE_EXCEEDED    `deadline` has passed
  //         Each message names the rank, its address and the reason.
  //         that of `failure`    which is called repeatedly; its first error ends the wait
  virtual absl::Status Connect(Deadline deadline, const std::function<absl::Status()>& failure) = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_WIDE_TRANSPORT_H_
