#include "launch/held_port.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "transport/net/port_range.h"

namespace lockstep {
namespace {

absl::Status Hold(const SocketAddress& address, UniqueFd* bound) {
  const int on = 1, off = 0;
  UniqueFd made(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool both = address.family() == AF_INET6;  // IPv6's wildcard address covers IPv4 as well
  // SO_REUSEADDR comes last: with it, bind would take a port that another launcher holds.
  const bool held = made.valid() &&
                    (!both || setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0) &&
                    bind(made.get(), address.get(), address.length()) == 0 &&
                    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0;
  if (!held) return ErrnoStatus(errno, absl::StrCat("bind ", address.ToString(), " for MASTER_PORT"));
  *bound = std::move(made);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HeldPort> HoldPort() {
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<PortRange> range, PortRangeOfEnvironment());
  UniqueFd socket;
  absl::Status status;
  // The second where there is no IPv6.
  for (const char* wildcard : {"[::]:0", "0.0.0.0:0"}) {
    LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress any, SocketAddress::Parse(wildcard));
    const auto hold = [&socket](const SocketAddress& address) { return Hold(address, &socket); };
    status = range.has_value() ? ListenInRange(*range, any, hold) : hold(any);
    if (status.ok() || absl::IsResourceExhausted(status)) break;
  }
  if (!status.ok()) return status;
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress bound, LocalAddress(socket.get()));
  return HeldPort{std::move(socket), bound.port()};
}

}  // namespace lockstep
