// LOCKSTEP_PORTS=first-last: the ports that listeners whose port the system would choose take instead, for firewalls that open these.
//
// A variable without an option, since the launcher's listeners obey it too. Ports that the user names (LOCKSTEP_STORE) are not bound by it.

#ifndef TRANSPORT_NET_PORT_RANGE_H_
#define TRANSPORT_NET_PORT_RANGE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "transport/net/socket.h"

namespace lockstep {

struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;

  std::string ToString() const;  // what ParsePortRange takes
};

// Takes "40000-40099", from 1 to 65535. INVALID_ARGUMENT for any other text.
absl::StatusOr<PortRange> ParsePortRange(absl::string_view text);

// LOCKSTEP_PORTS; nullopt if it is not set. INVALID_ARGUMENT names the variable.
absl::StatusOr<absl::optional<PortRange>> PortRangeOfEnvironment();

// Calls `listen` with `address` at each port of the range, until it returns anything but ALREADY_EXISTS.
// RETURNS  what it returned last
// ERRORS   RESOURCE_EXHAUSTED  every port is taken; says how many ports a rank needs
absl::Status ListenInRange(const PortRange& range, const SocketAddress& address,
                           const std::function<absl::Status(const SocketAddress&)>& listen);

}  // namespace lockstep

#endif  // TRANSPORT_NET_PORT_RANGE_H_
