#include "transport/tcp/congestion_control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lockstep {

absl::Status SetCongestionControl(int socket, const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  if (setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  std::string allowed;
  std::getline(std::ifstream("/proc/sys/net/ipv4/tcp_allowed_congestion_control"), allowed);
  return ErrnoStatus(error, absl::StrCat("congestion control '", name, "' (this system allows: ", allowed, ")"));
}

}  // namespace lockstep
