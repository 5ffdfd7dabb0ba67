// OfiEndpoint: an endpoint of a provider with all that belongs to it. It hides what differs between providers: it repeats
// calls that return "again", Poll makes manual progress, and errors of completions become a Status.
//
// THREADS  All calls come from the thread that holds the transport, one at a time. We ask for FI_THREAD_DOMAIN, and every
//          endpoint has a domain of its own.

#ifndef TRANSPORT_OFI_ENDPOINT_H_
#define TRANSPORT_OFI_ENDPOINT_H_

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_tagged.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/ofi/call_guard.h"
#include "transport/ofi/provider.h"

namespace lockstep {

// In how many places the memory of a post may lie, whatever the provider. Those that we have seen take 4, `sockets` 8.
inline constexpr int kOfiPlacesMax = 8;

struct OfiCompletion {
  absl::Status status;  // CANCELLED after Cancel, and then only
  size_t bytes = 0;     // of what was received
  uint64_t tag = 0;
  bool truncated = false;  // an error: what came is longer than the post's memory
};

// One operation of an endpoint. The owner fills it in, keeps it and its memory in place until `complete` is called, and may
// then use it again, also inside that call.
struct OfiPost {
  enum class Kind : uint8_t { kSend, kReceive };

  // The provider's own while the operation is under way: FI_CONTEXT and FI_CONTEXT2 demand it. First, so that what the
  // provider gives back is the address of the post.
  fi_context2 context = {};

  // Called once for each Post, inside Poll.
  void (*complete)(OfiPost* post, const OfiCompletion& completion) = nullptr;

  Kind kind = Kind::kSend;
  int peer = 0;  // to whom; a receive takes from anybody
  void* buffer = nullptr;
  // Where the memory lies instead, in up to send_places_max() or receive_places_max() places, not registered. Borrowed as the memory is.
  // Null: the buffer.
  const iovec* places = nullptr;
  int places_count = 0;
  size_t bytes = 0;            // of all places
  void* descriptor = nullptr;  // of the buffer's registration, where the provider wants one
  uint64_t tag = 0;
  uint64_t ignore = 0;  // of a receive: bits of the tag that may differ
  // Small, and taken where other posts have to wait for room.
  bool notice = false;

  // The endpoint's own.
  enum class State : uint8_t { kIdle, kRefused, kPosted, kFailed };
  State state = State::kIdle;
  bool cancelled = false;
  OfiPost* next = nullptr;
  int64_t error = 0;
};

// Externally synchronised. Registrations are closed before it is destroyed.
class OfiEndpoint {
 public:
  // Borrows the library's functions. Errors are the provider's, with what was attempted.
  static absl::StatusOr<std::unique_ptr<OfiEndpoint>> Create(const OfiApi* api, OfiInfo info);
  ~OfiEndpoint();
  OfiEndpoint(const OfiEndpoint&) = delete;
  OfiEndpoint& operator=(const OfiEndpoint&) = delete;

  const fi_info& info() const { return *info_; }
  const OfiApi& api() const { return *api_; }
  // This endpoint's address, as bytes that mean something to the same provider elsewhere.
  const std::string& address() const { return address_; }

  // Returns a number for Post, from 0 upwards. Connects nothing yet. INVALID_ARGUMENT if this is no address of the provider.
  absl::StatusOr<int> AddPeer(absl::string_view address);

  // Gives an operation to the provider. If the provider refuses it for now, Poll tries again until it is taken. Notices to
  // one peer are taken in the order in which they are posted, and so is everything else.
  void Post(OfiPost* post);

  // Sends at once, and copies `data`. False if the provider does not take it now.
  bool Inject(int peer, uint64_t tag, const void* data, size_t bytes);

  // Ends a receive, or a send that the provider has not taken yet, if possible. It completes in either case, in a later Poll.
  // (A send for which the peer has no receive may stay with the provider for ever: status() tells when there are too many.)
  void Cancel(OfiPost* post);
  // The same for all sends to a peer that the provider has not taken yet.
  void CancelRefused(int peer);

  // Moves what can be moved and runs completions. Returns whether there were any.
  // REQUIRES  not called by a completion
  bool Poll();

  // Whether Poll has something to try again. No event tells when.
  bool refused() const {
    return !blocked_.empty() || failed_.front != nullptr || refused_notices_.front != nullptr ||
           refused_receives_.front != nullptr;
  }
  // OK, or why nothing can be relied upon any more.
  const absl::Status& status() const { return status_; }

  // Ends everything: no memory is written any more, and nothing that was posted completes. Registrations stay, unless the
  // provider wants them closed first. If closing would crash, what the provider holds (descriptors, connections, buffers) stays
  // open, unused, for the life of the process.
  void Shutdown();
  // For a forked child: from now on nothing here calls the provider.
  void Leave() { left_ = true; }

  // A descriptor that becomes readable when Poll has something to do, or -1. Valid while PrepareToWait returns true.
  int wait_descriptor() const { return wait_descriptor_; }
  bool PrepareToWait();

  // Registers memory. Closed by CloseRegistration.
  absl::StatusOr<fid_mr*> Register(const void* memory, size_t bytes);
  void CloseRegistration(fid_mr* registration);
  // Whether every buffer must be registered.
  bool registers_all() const { return (info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0; }
  // In how many places the memory of a post may lie; 1 where it must be registered, as every place would be by itself.
  int send_places_max() const;
  int receive_places_max() const;

 private:
  struct Queue {
    OfiPost* front = nullptr;
    OfiPost* back = nullptr;
    void Push(OfiPost* post);
    OfiPost* Pop();
    bool Remove(OfiPost* post);
  };
  struct InQueue {
    size_t notices = 0;
    size_t others = 0;
  };
  struct Peer {
    fi_addr_t address = FI_ADDR_UNSPEC;
    Queue refused_notices;
    Queue refused;
    bool blocked = false;  // in blocked_
  };

  OfiEndpoint(const OfiApi* api, OfiInfo info);

  absl::Status Open();
  absl::Status OpenQueue();
  bool CrashesWhenClosed() const;
  // Gives it to the provider; returns the provider's answer.
  int64_t Try(OfiPost* post);
  // True when the provider took it, or refused it for good.
  bool Taken(OfiPost* post);
  // The queue of posts like this one that the provider has not taken.
  Queue* RefusedLike(const OfiPost& post);
  void Fail(OfiPost* post, int64_t error);
  bool Retry(Queue* queue);
  bool RetryAll();
  bool ReadErrors();
  void Complete(OfiPost* post, const OfiCompletion& completion);

  const OfiApi* const api_;
  const OfiInfo info_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_cq* completions_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  std::unique_ptr<OfiCallGuard> guard_;  // where ranks share locks
  std::string address_;
  int wait_descriptor_ = -1;
  uint64_t next_key_ = 1;  // where we choose the keys of registrations

  std::vector<Peer> peers_;
  std::vector<int> blocked_;  // peers with refused sends
  Queue refused_notices_;     // receives of them
  Queue refused_receives_;    // others
  // Taken by the provider, and not completed.
  InQueue sends_taken_;
  InQueue receives_taken_;
  size_t sends_given_up_ = 0;  // of these, cancelled
  absl::flat_hash_set<fid_mr*> registrations_;
  absl::Status status_;
  bool left_ = false;
  bool abandoned_ = false;  // by Shutdown, which could not close it
  Queue failed_;            // refused for good, or cancelled before they were taken: to be completed
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_ENDPOINT_H_
