#include "transport/tcp/protection.h"

#include "absl/status/status.h"
#include "base/log.h"
#include "transport/net/socket.h"
#include "transport/secure/cipher.h"
#include "transport/secure/credentials.h"
#include "transport/tcp/kernel_tls.h"

namespace lockstep {

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

}  // namespace lockstep
