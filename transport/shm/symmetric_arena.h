// SymmetricArena: one part of memory for each of some ranks of a host, all of which all of them map. For algorithms that
// read and write their peers' memory directly.
//
// Made by all its members together: each makes its own part, offers it to the others, maps theirs, and tells that it
// could. It is ready when everybody could, and if somebody could not, everybody is told: so all members come to the same
// answer, but for one whose deadline passes.
//
// What is in it is its members' affair, and so is who may touch it when. To sleep until a peer has written something:
// Progress, look at it, then WaitForEvent, in this order and in a loop; and the peer calls ShmTransport::Nudge after it has
// written it (transport/shm/doorbell.h says why no wake-up is lost). Memory tells nothing of a peer that died:
// ShmTransport::status does.
//
// Lifetime. Parts stay mapped until the arena is destroyed, also when the transport was aborted or a peer has gone, for
// pointers into it may be anywhere. After an abort it must not be used again: a peer that was stopped may still write
// into it when it wakes up. A new arena is new memory. A forked child has none of it.

#ifndef TRANSPORT_SHM_SYMMETRIC_ARENA_H_
#define TRANSPORT_SHM_SYMMETRIC_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/shm/shared_memory.h"
#include "transport/shm/shm_transport.h"

namespace lockstep {

struct SymmetricArenaOptions {
  // The same on all members, and used once in the life of a transport.
  uint32_t id = 0;
  size_t bytes_per_rank = 0;
  // This rank and neighbours of it, in any order, the same on all.
  std::vector<Rank> members;
  // 2 MiB pages where the system gives them on request.
  bool huge_pages = true;
};

// Externally synchronised, together with its transport, until it is ready; then constant.
class SymmetricArena {
 public:
  // Makes this rank's part and offers it. Borrows the transport, which is connected. INVALID_ARGUMENT for members that are
  // no neighbours or do not include this rank; an error that this rank alone has (RESOURCE_EXHAUSTED, say) is the answer
  // of Ready, once the others know.
  static absl::StatusOr<std::unique_ptr<SymmetricArena>> Create(ShmTransport* transport, SymmetricArenaOptions options);

  // Goes on as far as it can without waiting, after ShmTransport::Progress. True when the arena may be used, false
  // when others are awaited. The same error on every later call; UNAVAILABLE when another member failed or has gone.
  absl::StatusOr<bool> Ready();

  // Drives the transport until it is ready. DEADLINE_EXCEEDED names a member that is awaited.
  absl::Status Await(Deadline deadline);

  // Of a ready arena: the data of a member's part, page-aligned and zero at first, as this process maps it.
  char* base(Rank member) const { return parts_[member.value()].data(); }
  size_t bytes_per_rank() const { return options_.bytes_per_rank; }
  const std::vector<Rank>& members() const { return options_.members; }

 private:
  SymmetricArena(ShmTransport* transport, SymmetricArenaOptions options);

  void Notify(const ShmNotice& notice, bool with_memory);
  void Fail(const absl::Status& status);
  // Maps what was offered since. True when all parts are mapped.
  bool MapParts();

  ShmTransport* const transport_;
  const SymmetricArenaOptions options_;
  std::vector<SharedMemory> parts_;  // by rank; empty where it is no member
  absl::Status status_;
  bool told_ = false;  // the others were told whether this rank has mapped all, or that it cannot by somebody else
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_SYMMETRIC_ARENA_H_
