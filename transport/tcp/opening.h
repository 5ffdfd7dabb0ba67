// Opening: what two ranks say on a new socket before messages flow on it, over the channel that protects it.

#ifndef TRANSPORT_TCP_OPENING_H_
#define TRANSPORT_TCP_OPENING_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"

namespace lockstep {

// Externally synchronised. Never waits: the socket does not block, and what is said is short enough for the buffer of a new one.
class Opening {
 public:
  Opening(Channel::Side side, const Credentials& credentials)
      : secured_(credentials.level != SecurityLevel::kNone), channel_(Purpose::kData, side, credentials) {}

  // Says what comes first. Once, before the others.
  absl::Status Start(int socket);

  // Reads until the peer has proved that it has the secret and has said so many bytes, and takes none that follow them.
  // RETURNS  false if that is not all there yet
  // ERRORS   PERMISSION_DENIED  the channel refuses the peer, which is told
  //          UNAVAILABLE        the peer closed the connection
  //          others             of the socket, and of the channel
  absl::StatusOr<bool> Await(int socket, size_t bytes);

  // REQUIRES  Await has returned true
  // ERRORS    UNAVAILABLE and others, of the socket
  absl::Status Say(int socket, absl::string_view bytes);

  // What the peer has said. More than was awaited if it said more at once.
  absl::string_view said() const { return said_; }
  const Channel& channel() const { return channel_; }

 private:
  absl::Status Send(int socket, absl::string_view bytes);

  const bool secured_;
  Channel channel_;
  std::string said_;
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_OPENING_H_
