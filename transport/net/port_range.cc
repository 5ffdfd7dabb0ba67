#include "transport/net/port_range.h"

#include "absl/strings/str_cat.h"
#include "base/clipped.h"
#include "base/env.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr char kVariable[] = "LOCKSTEP_PORTS";
constexpr int64_t kPortMax = 65535;

}  // namespace

std::string PortRange::ToString() const { return absl::StrCat(first, "-", last); }

absl::StatusOr<PortRange> ParsePortRange(absl::string_view text) {
  const size_t dash = text.find('-');
  int64_t first = 0, last = 0;
  if (dash == absl::string_view::npos || !ParseInteger(text.substr(0, dash), &first) ||
      !ParseInteger(text.substr(dash + 1), &last) || first < 1 || last > kPortMax || first > last) {
    return absl::InvalidArgumentError(absl::StrCat("\"", Clipped(text),
                                                   "\": takes the first and the last port of a range, from 1 to ",
                                                   kPortMax, ", as in 40000-40099"));
  }
  return PortRange{static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
}

absl::StatusOr<absl::optional<PortRange>> PortRangeOfEnvironment() {
  const absl::optional<std::string> text = GetEnv(kVariable);
  if (!text.has_value()) return absl::optional<PortRange>();
  const absl::StatusOr<PortRange> range = ParsePortRange(*text);
  if (range.ok()) return absl::make_optional(*range);
  return absl::Status(range.status().code(),
                      absl::StrCat("environment variable ", kVariable, "=", range.status().message()));
}

absl::Status ListenInRange(const PortRange& range, const SocketAddress& address,
                           const std::function<absl::Status(const SocketAddress&)>& listen) {
  for (int port = range.first; port <= range.last; ++port) {
    const absl::Status status = listen(address.WithPort(static_cast<uint16_t>(port)));
    if (!absl::IsAlreadyExists(status)) return status;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("listen on ", address.HostString(), ": no port of ", kVariable, "=", range.ToString(),
                   " is free. A communicator needs 1 port for each rank of the host, and on rank 0's host 1 for the "
                   "coordinator, 1 for the "
                   "store unless LOCKSTEP_STORE names its port, and with lockstep-run 1 for MASTER_PORT"));
}

}  // namespace lockstep
