// Unix sockets between processes of one host: whole messages, descriptors beside them, and who is at the other end.
//
// SOCK_SEQPACKET in the abstract namespace: messages keep their boundaries, the end of the stream tells of the peer's
// death, and no name is left in the file system. A name is only reachable inside its network namespace, so connecting
// is also the proof of being on the same host. Every socket is non-blocking and close-on-exec.

#ifndef TRANSPORT_NET_UNIX_SOCKET_H_
#define TRANSPORT_NET_UNIX_SOCKET_H_

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/fork.h"

namespace lockstep {

inline constexpr size_t kUnixMessageBytesMax = 4096;
inline constexpr size_t kUnixDescriptorsMax = 4;

struct UnixMessage {
  std::string bytes;
  absl::InlinedVector<UniqueFd, kUnixDescriptorsMax> descriptors;
};

struct UnixCredentials {
  pid_t pid = 0;  // 0 when it is in another pid namespace
  uid_t uid = 0;
};

// Names are at most 100 bytes.
absl::StatusOr<UniqueFd> ListenUnix(absl::string_view name);

// One connection; an invalid descriptor when none is waiting.
absl::StatusOr<UniqueFd> AcceptUnix(int listener);

// Connected at once or not at all: UNAVAILABLE when nobody listens there, an invalid descriptor when the listener's
// queue is full, so that it is worth trying again.
absl::StatusOr<UniqueFd> ConnectUnix(absl::string_view name);

// Of the process that connected or listened.
absl::StatusOr<UnixCredentials> PeerCredentials(int socket);

// Both never wait. True when the message was sent or received; false when there is no room, or nothing to receive, now.
// UNAVAILABLE at the end of the stream; RESOURCE_EXHAUSTED when descriptors came that this process may not hold.
absl::StatusOr<bool> SendUnix(int socket, absl::string_view bytes, absl::Span<const int> descriptors);
// `flags`: MSG_PEEK leaves the message, whose descriptors are copied, also if they cannot be held.
absl::StatusOr<bool> ReceiveUnix(int socket, UnixMessage* message, int flags = 0);

// A datagram socket from which its own messages come back; no other process can send to it. Descriptors in its messages stay open, and
// take no numbers of this process. They count as under way, of which one user may have as many as RLIMIT_NOFILE allows a process.
absl::StatusOr<UniqueFd> LoopUnix();

}  // namespace lockstep

#endif  // TRANSPORT_NET_UNIX_SOCKET_H_
