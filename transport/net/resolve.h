// The addresses of a host name, by a deadline that the system's resolver does not know.

#ifndef TRANSPORT_NET_RESOLVE_H_
#define TRANSPORT_NET_RESOLVE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "transport/net/socket.h"

namespace lockstep {

// All addresses of a host name or numeric address, each once. NOT_FOUND, with getaddrinfo's words, for an unknown host;
// UNAVAILABLE when the resolver says to try again; DEADLINE_EXCEEDED when it has not answered.
//
// A name is looked up on a thread of its own ("lockstep-dns"), since getaddrinfo cannot be interrupted: past the deadline the
// thread is left to itself and ends when the resolver gives up. A numeric address starts none.
absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view host, uint16_t port, Deadline deadline);

}  // namespace lockstep

#endif  // TRANSPORT_NET_RESOLVE_H_
