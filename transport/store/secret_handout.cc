#include "transport/store/secret_handout.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/net/unix_socket.h"
#include "transport/secure/user.h"

namespace lockstep {
namespace {

constexpr int kAnswersPerCall = 64;

std::string SocketName(const SocketAddress& server) {
  return absl::StrCat("lockstep-secret-", geteuid(), "-",
                      server.wildcard() ? absl::StrCat("*:", server.port()) : server.ToString());
}

// PERMISSION_DENIED if the process that listens is not of this user.
absl::Status JudgeOwner(int socket, absl::string_view name) {
  LOCKSTEP_ASSIGN_OR_RETURN(const UnixCredentials owner, PeerCredentials(socket));
  if (IsThisUser(owner.uid)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("unix socket @", name, " belongs to process ", owner.pid, " of ",
                                                  DescribeUser(owner.uid), ", not to one of user ", geteuid()));
}

absl::StatusOr<std::shared_ptr<const Secret>> AskAt(const std::string& name, Deadline deadline) {
  const auto gone = [&] { return absl::NotFoundError(absl::StrCat("unix socket @", name, ": nobody answers")); };
  absl::StatusOr<UniqueFd> socket = ConnectUnix(name);
  if (!socket.ok()) return absl::IsResourceExhausted(socket.status()) ? socket.status() : gone();
  if (!socket->valid()) return gone();  // a full queue: worth another try
  LOCKSTEP_RETURN_IF_ERROR(JudgeOwner(socket->get(), name));
  for (UnixMessage message;;) {
    const absl::StatusOr<bool> received = ReceiveUnix(socket->get(), &message);
    if (!received.ok()) return gone();  // the server has ended
    if (*received) {
      auto secret = Secret::FromBytes(message.bytes);
      Wipe(&message.bytes);
      return secret;
    }
    if (deadline.passed()) {
      return absl::DeadlineExceededError(absl::StrCat("unix socket @", name, ": connected, and no secret has come"));
    }
    pollfd entry = {socket->get(), POLLIN, 0};
    (void)poll(&entry, 1, deadline.remaining_ms());
  }
}

}  // namespace

absl::StatusOr<UniqueFd> ListenForSecretRequests(const SocketAddress& server) {
  const std::string name = SocketName(server);
  absl::StatusOr<UniqueFd> listener = ListenUnix(name);
  if (!absl::IsAlreadyExists(listener.status())) return listener;
  std::string whose = "another process has it";
  if (const absl::StatusOr<UniqueFd> owner = ConnectUnix(name); owner.ok() && owner->valid()) {
    const absl::Status judgement = JudgeOwner(owner->get(), name);
    if (!judgement.ok()) whose = std::string(judgement.message());
  }
  return absl::AlreadyExistsError(absl::StrCat("the store's server cannot hand out its secret over unix socket @", name,
                                               ": ", whose, "; LOCKSTEP_SECRET_FILE on all ranks does without"));
}

absl::Status HandOutSecret(int listener, const Secret& secret, Refusals* refusals) {
  for (int i = 0; i < kAnswersPerCall; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd socket, AcceptUnix(listener));
    if (!socket.valid()) break;
    const absl::StatusOr<UnixCredentials> peer = PeerCredentials(socket.get());
    if (!peer.ok()) {
      refusals->Note(Refusal::kBroken, "a process", absl::StrCat("asks for the secret: ", peer.status().message()));
      continue;
    }
    if (!IsThisUser(peer->uid)) {
      refusals->Note(
          Refusal::kOtherUser, absl::StrCat("process ", peer->pid),
          absl::StrCat("asks for the secret and belongs to ", DescribeUser(peer->uid), ", not to ours, ", geteuid()));
      continue;
    }
    // The socket is new and its buffer empty: it fits. Who has left already does not matter.
    (void)SendUnix(socket.get(), secret.bytes(), {});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Secret>> AskForSecret(absl::Span<const SocketAddress> addresses,
                                                           Deadline deadline) {
  std::vector<std::string> names;
  for (const SocketAddress& address : addresses) {
    const SocketAddress any = SocketAddress::Parse("0.0.0.0:0")->WithPort(address.port());
    for (const SocketAddress& bound : {address, any}) {
      std::string name = SocketName(bound);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
    }
  }
  absl::Status status;
  for (const std::string& name : names) {
    absl::StatusOr<std::shared_ptr<const Secret>> secret = AskAt(name, deadline);
    if (secret.ok()) return secret;
    // The first, unless another says more.
    const bool says_more = absl::IsNotFound(status) && !absl::IsNotFound(secret.status());
    if (status.ok() || says_more) status = secret.status();
  }
  return status.ok() ? absl::NotFoundError("there is no address to ask at") : status;
}

}  // namespace lockstep
