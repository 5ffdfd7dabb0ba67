// SymmetricArena: one segment of memory for each of some ranks of a host; all these ranks map all segments. For algorithms that
// read and write their peers' memory directly.
//
// All members make it together. Each makes its own segment, offers it to the others, maps theirs, and reports whether it
// could. The arena is ready when all could. If one could not, all are told. So all members get the same answer, except a
// member whose deadline passes.
//
// The members decide what the memory holds and who may touch it when. To sleep until a peer has written something: call
// Progress, check the memory, then WaitForEvent, in this order and in a loop. The peer calls ShmTransport::Nudge after its
// write (transport/shm/doorbell.h says why no wake-up is lost). Memory does not tell of a peer's death; ShmTransport::status
// does.
//
// Lifetime. Segments stay mapped until the arena is destroyed, also after the transport was aborted or a peer has gone, since
// pointers into them may be anywhere. After an abort they must not be used again: a stopped peer may still write into them
// when it wakes. A new arena is new memory. A forked child has none of it.

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
  // This rank and its local peers, in any order, the same on all.
  std::vector<Rank> members;
  // 2 MiB pages where the system gives them on request.
  bool huge_pages = true;
};

// Externally synchronised, together with its transport, until it is ready; then constant.
class SymmetricArena {
 public:
  // Makes this rank's segment and offers it. Borrows the transport, which is connected.
  // ERRORS  INVALID_ARGUMENT  members are no local peers, or do not include this rank
  //         Ready returns an error of this rank alone (for example RESOURCE_EXHAUSTED), once the others know
  static absl::StatusOr<std::unique_ptr<SymmetricArena>> Create(ShmTransport* transport, SymmetricArenaOptions options);

  // Goes on as far as it can without waiting. Call it after ShmTransport::Progress.
  // RETURNS  true if the arena may be used, false while other members are missing
  // ERRORS   UNAVAILABLE  another member failed or has gone. Every later call returns the same error
  absl::StatusOr<bool> Ready();

  // Drives the transport until the arena is ready. DEADLINE_EXCEEDED names a missing member.
  absl::Status Await(Deadline deadline);

  // A member's segment, as this process maps it: page-aligned, zero at first. Of a ready arena.
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
  std::vector<SharedMemory> parts_;  // by rank; empty for ranks that are no members
  absl::Status status_;
  bool told_ = false;  // whether this rank has reported to the others
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_SYMMETRIC_ARENA_H_
