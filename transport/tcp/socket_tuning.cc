#include "transport/tcp/socket_tuning.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <fstream>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clipped.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

void SetBuffer(int socket, int option, const char* name, int bytes) {
  if (bytes == 0 || setsockopt(socket, SOL_SOCKET, option, &bytes, sizeof(bytes)) == 0) return;
  LOCKSTEP_LOG(kDebug) << "tcp transport: " << ErrnoStatus(errno, name).message();
}

}  // namespace

void Tune(int socket, const SocketTuning& tuning) {
  ChooseCongestionControl(socket, tuning.congestion_control);
  SetBuffer(socket, SO_SNDBUF, "SO_SNDBUF", tuning.send_buffer_bytes);
  SetBuffer(socket, SO_RCVBUF, "SO_RCVBUF", tuning.receive_buffer_bytes);
  const int on = 1;
  if (tuning.zero_copy && setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) != 0) {
    LOCKSTEP_LOG(kInfo) << "tcp transport: " << ErrnoStatus(errno, "SO_ZEROCOPY").message();
  }
}

absl::Status SetCongestionControl(int socket, const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  if (setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  std::string allowed;
  std::getline(std::ifstream("/proc/sys/net/ipv4/tcp_allowed_congestion_control"), allowed);
  return ErrnoStatus(error,
                     absl::StrCat("congestion control '", Clipped(name), "' (this system allows: ", allowed, ")"));
}

absl::Status CheckCongestionControl(const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  const UniqueFd trial(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return trial.valid() ? SetCongestionControl(trial.get(), name) : absl::OkStatus();
}

std::string CongestionControlOf(int socket) {
  char name[16] = "";  // TCP_CA_NAME_MAX
  socklen_t length = sizeof(name) - 1;
  if (getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return "unknown";
  return name;
}

bool StaysOnHost(int socket) {
  const absl::StatusOr<SocketAddress> local = LocalAddress(socket);
  const absl::StatusOr<SocketAddress> peer = PeerAddress(socket);
  if (!local.ok() || !peer.ok()) return false;
  return peer->loopback() || local->WithPort(0) == peer->WithPort(0);
}

void ChooseCongestionControl(int socket, const std::string& option) {
  if (option.empty() && !StaysOnHost(socket)) return;
  const absl::Status set = SetCongestionControl(socket, option.empty() ? "reno" : option);
  if (!set.ok()) LOCKSTEP_LOG(kDebug) << "tcp transport: " << set.message();
}

}  // namespace lockstep
