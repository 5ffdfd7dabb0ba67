// A rank's end of the TCP store.

#ifndef TRANSPORT_STORE_STORE_TCP_CLIENT_H_
#define TRANSPORT_STORE_STORE_TCP_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "transport/net/socket.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/store/store.h"
#include "transport/store/store_wire.h"

namespace lockstep {

// True of an error after which another attempt to resolve a name or to connect may go better.
bool WorthTryingAgain(const absl::Status& status);

// One connection for any number of threads; a thread that waits does not block another. There is no thread behind it: one of the
// threads that await answers reads for all.
//
// Once the connection is lost, every call returns UNAVAILABLE: the store and its values are lost as well. Where something has come that
// the server did not send, it is DATA_LOSS.
class TcpStoreClient : public Store {
 public:
  // Tries all addresses of the host again and again until the deadline, since the server may start later. A server that has accepted the
  // connection has `answer_time` for the handshake, unless that is 0.
  // RETURNS  with PERMISSION_DENIED, in `refusal`, why the listener was refused, or refused this client
  // ERRORS   NOT_FOUND           the resolver does not know the host
  //          PERMISSION_DENIED   what answers is no Lockstep store, or has another version, security level or secret: see `refusal`
  //          ABORTED             the server did not answer in answer_time: its process is stopped, or its host is unreachable
  //          RESOURCE_EXHAUSTED  the server has no descriptor for this client, or this process has none
  //          DEADLINE_EXCEEDED   no server could be reached
  static absl::StatusOr<std::unique_ptr<TcpStoreClient>> Connect(const HostPort& server, const Credentials& credentials,
                                                                 Deadline deadline, Refusal* refusal = nullptr,
                                                                 std::chrono::milliseconds answer_time = {});

  std::string Describe() const override { return description_; }

 protected:
  absl::StatusOr<std::string> Perform(const StoreCall& call, Deadline deadline) override;

 private:
  struct Connection {
    UniqueFd socket;
    std::unique_ptr<Channel> channel;
  };
  static absl::StatusOr<Connection> ConnectOnce(const SocketAddress& address, const Credentials& credentials,
                                                Deadline deadline, Refusal* refusal,
                                                std::chrono::milliseconds answer_time);
  TcpStoreClient(Connection connection, std::string description);

  absl::Status Send(absl::string_view request, Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends what is unsent, by the deadline. Lets go of the lock meanwhile; for whoever has set sending_.
  absl::Status SendUnsent(Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends what the socket takes by the deadline, without the lock; *sent is how much that was.
  absl::Status SendSome(absl::string_view bytes, Deadline deadline, size_t* sent);
  // Waits for bytes until the deadline, without the lock, and takes what is there.
  absl::Status ReceiveSome(Deadline deadline, std::string* received);
  void TakeReplies(absl::string_view received) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Break(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const UniqueFd socket_;
  const std::string description_;
  const uint64_t fork_generation_;

  Mutex mu_;
  // Signalled when a call is answered, or the right to send or to receive becomes free.
  CondVar changed_;
  absl::Status broken_ ABSL_GUARDED_BY(mu_);
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  // Of calls under way, on their threads' stacks. They leave here before they return.
  std::unordered_map<uint64_t, absl::optional<absl::StatusOr<std::string>>*> answers_ ABSL_GUARDED_BY(mu_);
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  bool receiving_ ABSL_GUARDED_BY(mu_) = false;
  // Protects one message after the other, in the order in which they are sent.
  const std::unique_ptr<Channel> channel_ ABSL_PT_GUARDED_BY(mu_);
  // What the channel has made and the socket has not taken: the rest of a request whose deadline passed while it was sent. It is sent
  // before the next request.
  std::string unsent_ ABSL_GUARDED_BY(mu_);
  std::string plain_ ABSL_GUARDED_BY(mu_);  // the beginning of a reply
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_TCP_CLIENT_H_
