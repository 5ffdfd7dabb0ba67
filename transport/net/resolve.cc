#include "transport/net/resolve.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/clipped.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread.h"

namespace lockstep {
namespace {

using Addresses = std::vector<SocketAddress>;

absl::Status ResolverError(absl::string_view host, int error, int system_error) {
  const std::string attempt = absl::StrCat("resolve host '", Clipped(host), "'");
  const std::string message = absl::StrCat(attempt, ": ", gai_strerror(error));
  switch (error) {
    case EAI_NONAME:
#ifdef EAI_NODATA
    case EAI_NODATA:
    case EAI_ADDRFAMILY:
#endif
      return absl::NotFoundError(message);
    case EAI_AGAIN:
      return absl::UnavailableError(message);
    case EAI_MEMORY:
      return absl::ResourceExhaustedError(message);
    case EAI_SYSTEM:
      return ErrnoStatus(system_error, attempt);
    default:
      return absl::InternalError(message);
  }
}

// Empty when the host is a name and only numbers were asked for.
absl::StatusOr<absl::optional<Addresses>> LookUp(const std::string& host, uint16_t port, bool numeric_only) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric_only ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == EAI_NONAME && numeric_only) return absl::optional<Addresses>();
  if (error != 0) return ResolverError(host, error, errno);
  Addresses addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    const SocketAddress address = SocketAddress::From(entry->ai_addr, entry->ai_addrlen);
    // /etc/hosts may name the same address twice ("localhost" in both its lines).
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) addresses.push_back(address);
  }
  freeaddrinfo(found);
  if (addresses.empty()) {
    return absl::NotFoundError(
        absl::StrCat("resolve host '", Clipped(host), "': it has neither an IPv4 nor an IPv6 address"));
  }
  return absl::make_optional(std::move(addresses));
}

// Owned by the thread and by who waits for it, of which either may be gone first.
struct Answer {
  Mutex mu;
  CondVar arrived;
  absl::optional<absl::StatusOr<absl::optional<Addresses>>> result ABSL_GUARDED_BY(mu);
};

}  // namespace

absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view host, uint16_t port, Deadline deadline) {
  const std::string name(host);
  LOCKSTEP_ASSIGN_OR_RETURN(absl::optional<Addresses> numeric, LookUp(name, port, /*numeric_only=*/true));
  if (numeric.has_value()) return *std::move(numeric);

  const auto late = [&] {
    return absl::DeadlineExceededError(
        absl::StrCat("resolve host '", Clipped(host), "': the resolver has not answered"));
  };
  if (deadline.passed()) return late();
  const auto answer = std::make_shared<Answer>();
  Thread thread;
  LOCKSTEP_RETURN_IF_ERROR(thread.Start("lockstep-dns", [answer, name, port] {
    auto result = LookUp(name, port, /*numeric_only=*/false);
    MutexLock lock(&answer->mu);
    answer->result = std::move(result);
    answer->arrived.SignalAll();
  }));
  // Whatever becomes of it, it touches nothing but its own copies.
  thread.Detach();
  MutexLock lock(&answer->mu);
  while (!answer->result.has_value()) {
    if (!answer->arrived.WaitUntil(&answer->mu, deadline) && !answer->result.has_value()) return late();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(absl::optional<Addresses> found, *std::move(answer->result));
  return *std::move(found);
}

}  // namespace lockstep
