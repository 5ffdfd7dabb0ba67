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
#include "transport/secure/cipher.h"
#include "transport/tcp/kernel_tls.h"

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

// Whether a connected socket's other end is on this host, in the same network namespace.
bool StaysOnHost(int socket) {
  const absl::StatusOr<SocketAddress> local = LocalAddress(socket);
  const absl::StatusOr<SocketAddress> peer = PeerAddress(socket);
  if (!local.ok() || !peer.ok()) return false;
  return peer->loopback() || local->WithPort(0) == peer->WithPort(0);
}

}  // namespace

bool WantsRecords(int socket, const TcpTransportOptions& options) {
  switch (options.credentials.level) {
    case SecurityLevel::kNone:
      return false;
    case SecurityLevel::kAuthenticate:
      return options.records_on_one_host || !StaysOnHost(socket);
    case SecurityLevel::kEncrypt:
      break;
  }
  return true;
}

KernelTls* UsableKernelTls(const TcpTransportOptions& options) {
  if (options.credentials.level != SecurityLevel::kEncrypt || options.sockets != 1) return nullptr;
  if (options.kernel_tls == nullptr && CipherBackendVersion(CipherBackend::kIpsecMb).ok()) return nullptr;
  KernelTls* const kernel = options.kernel_tls != nullptr ? options.kernel_tls : KernelTls::OfSystem();
  const absl::Status usable = kernel->Check();
  LOCKSTEP_LOG(kInfo) << "tcp transport: " << (usable.ok() ? "TLS" : "no TLS") << " by the kernel"
                      << (usable.ok() ? "" : ": ") << usable.message();
  return usable.ok() ? kernel : nullptr;
}

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
