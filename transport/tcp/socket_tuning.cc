#include "transport/tcp/socket_tuning.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/clipped.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"

namespace lockstep {
namespace {

void SetBuffer(int socket, int option, const char* name, int bytes) {
  if (bytes == 0 || setsockopt(socket, SOL_SOCKET, option, &bytes, sizeof(bytes)) == 0) return;
  LOCKSTEP_LOG(kDebug) << "tcp transport: " << ErrnoStatus(errno, name).message();
}

absl::Status SetCongestionControl(int socket, const std::string& name) {
  if (setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  std::string allowed;
  std::getline(std::ifstream("/proc/sys/net/ipv4/tcp_allowed_congestion_control"), allowed);
  return ErrnoStatus(error,
                     absl::StrCat("congestion control '", Clipped(name), "' (this system allows: ", allowed, ")"));
}

}  // namespace

void Tune(int socket, const SocketTuning& tuning) {
  if (!tuning.congestion_control.empty() || StaysOnHost(socket)) {
    const absl::Status set =
        SetCongestionControl(socket, tuning.congestion_control.empty() ? "reno" : tuning.congestion_control);
    if (!set.ok()) LOCKSTEP_LOG(kDebug) << "tcp transport: " << set.message();
  }
  SetBuffer(socket, SO_SNDBUF, "SO_SNDBUF", tuning.send_buffer_bytes);
  SetBuffer(socket, SO_RCVBUF, "SO_RCVBUF", tuning.receive_buffer_bytes);
  const int on = 1;
  if (tuning.zero_copy && setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) != 0) {
    LOCKSTEP_LOG(kInfo) << "tcp transport: " << ErrnoStatus(errno, "SO_ZEROCOPY").message();
  }
}

absl::Status CheckCongestionControl(const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  const UniqueFd trial(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return trial.valid() ? SetCongestionControl(trial.get(), name) : absl::OkStatus();
}

}  // namespace lockstep
