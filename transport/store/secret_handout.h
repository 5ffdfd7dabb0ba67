// How the secret of a store's server comes to the other ranks on its host where nobody has given them one: over a Unix socket, at both
// ends of which the kernel says whose process is at the other (SO_PEERCRED).
//
//   name    = "lockstep-secret-" uid "-" address     abstract; the address is the server's, "10.0.0.1:4000", or "*:4000" for all of them
//   answer  = 32 raw bytes, one message              to a process of the same user alone; then the connection is closed
//
// Nothing is read from who connects. Another user may take the name first: then there is an error, and no secret of his is used.

#ifndef TRANSPORT_STORE_SECRET_HANDOUT_H_
#define TRANSPORT_STORE_SECRET_HANDOUT_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "transport/net/socket.h"
#include "transport/secure/refusals.h"
#include "transport/secure/secret.h"

namespace lockstep {

// For errors of ranks that no secret can be handed out to.
inline constexpr char kNeedsSecret[] =
    "a world on several hosts needs a secret: set LOCKSTEP_SECRET_FILE on all ranks to a file of mode 0600 with the "
    "same 64 hex digits (openssl rand -hex 32), or LOCKSTEP_SECURITY=none to go without (docs/security.md)";

// Where processes ask for the secret of the server that is bound to `server`.
// ERRORS  ALREADY_EXISTS  another process has the name; says whose
absl::StatusOr<UniqueFd> ListenForSecretRequests(const SocketAddress& server);

// Answers at most 64 of those that wait, and waits for nobody. A process of another user is noted as Refusal::kOtherUser, one of which the
// kernel does not say whose it is as kBroken.
// ERRORS  of accept
absl::Status HandOutSecret(int listener, const Secret& secret, Refusals* refusals);

// Asks at each of the addresses that a server may be bound to which is reached by `addresses`, once.
// ERRORS  NOT_FOUND          nobody hands out a secret there
//         PERMISSION_DENIED  somebody does, of another user
//         DEADLINE_EXCEEDED  somebody is there who has not answered
absl::StatusOr<std::shared_ptr<const Secret>> AskForSecret(absl::Span<const SocketAddress> addresses,
                                                           Deadline deadline);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_SECRET_HANDOUT_H_
