#include "bench/limits/connect.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status.h"
#include "bench/limits/fabric.h"

namespace lockstep {
namespace bench {
namespace {

absl::StatusOr<BareSocket> ConnectBareSockets(const ProcessGroup& group, const LinkOptions& options) {
  if (group.leads()) {
    LOCKSTEP_ASSIGN_OR_RETURN(BareListener listener, BareListener::Create(options.congestion_control, options.host));
    LOCKSTEP_RETURN_IF_ERROR(group.FromLeader(listener.port()).status());
    return listener.Accept();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t port, group.FromLeader(0));
  return BareSocket::Connect(static_cast<uint16_t>(port), options.congestion_control, options.host);
}

}  // namespace

absl::StatusOr<std::shared_ptr<BareLink>> ConnectBareLink(const ProcessGroup& group, const LinkOptions& options) {
  if (group.size() != 2) {
    return absl::FailedPreconditionError(
        absl::StrCat("a limit is between two processes, and there are ", group.size(), " ranks"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(BareSocket connected, ConnectBareSockets(group, options));
  std::shared_ptr<BareLink> socket = std::make_shared<BareSocket>(std::move(connected));
  if (!options.fabric) return socket;
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<BareLink> fabric,
                            BareFabric::Connect(GetEnv("LOCKSTEP_OFI_PROVIDER").value_or(""), options.host, socket));
  return fabric;
}

absl::Status RunBothWays(BareLink& link, int64_t calls, const char* out, char* in, size_t bytes) {
  for (int64_t i = 0; i < calls; ++i) LOCKSTEP_RETURN_IF_ERROR(link.Exchange(out, bytes, in, bytes));
  return absl::OkStatus();
}

absl::Status RunOneWay(BareLink& link, bool first, int64_t calls, const char* out, char* in, size_t bytes) {
  for (int64_t i = 0; i < calls; ++i) {
    const bool sends = first == (i % 2 == 0);
    LOCKSTEP_RETURN_IF_ERROR(sends ? link.Send(out, bytes) : link.Receive(in, bytes));
  }
  return absl::OkStatus();
}

}  // namespace bench
}  // namespace lockstep
