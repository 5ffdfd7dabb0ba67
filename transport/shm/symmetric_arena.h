// SymmetricArena: one part of memory for each of some ranks of a host, all of which all of them map. For algorithms that
// read and write their peers' memory directly.
//
//   part   = data signals      bytes_per_rank rounded up to whole pages, then a cache line for each (peer, lane)
//
// Made by all its members together: each makes its own part, offers it to the others, maps theirs, and tells that it
// could. It is ready when everybody could, and if somebody could not, everybody is told: so all members come to the same
// answer, but for one whose deadline passes.
//
// Signals. Each rank has, for each member and lane, a 64-bit counter in that member's part, on a line of its own, which
// nobody else writes. Signal is a sequentially consistent store, after everything written before; whoever sees the value in
// Signalled sees what was written before it. To sleep until a signal comes: Progress, look at Signalled, then WaitForEvent,
// in this order and in a loop (transport/shm/doorbell.h says why none is missed). A signal tells nothing of a peer that
// died: ShmTransport::status does.
//
// Lifetime. Parts stay mapped until the arena is destroyed, also when the transport was aborted or a peer has gone, for
// pointers into it may be anywhere. After an abort it must not be used again: a peer that was stopped may still write
// into it when it wakes up. A new arena is new memory. A forked child has none of it.

#ifndef TRANSPORT_SHM_SYMMETRIC_ARENA_H_
#define TRANSPORT_SHM_SYMMETRIC_ARENA_H_

#include <atomic>
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
  int lanes = 4;
  // 2 MiB pages where the system gives them on request.
  bool huge_pages = true;
};

// Externally synchronised, together with its transport, until it is ready; then Signal is synchronised with the
// transport and everything else is constant.
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

  // Sets this rank's counter with a member, which may sleep, or be this rank itself.
  void Signal(Rank member, int lane, uint64_t value) {
    Counter(member, transport_->rank(), lane)->store(value);
    if (member != transport_->rank()) transport_->Nudge(member);
  }
  // What a member last set its counter with this rank to; 0 at first.
  uint64_t Signalled(Rank member, int lane) const { return Counter(transport_->rank(), member, lane)->load(); }

 private:
  SymmetricArena(ShmTransport* transport, SymmetricArenaOptions options);

  size_t part_bytes() const;
  std::atomic<uint64_t>* Counter(Rank owner, Rank writer, int lane) const;
  void Notify(const ShmNotice& notice, bool with_memory);
  void Fail(const absl::Status& status);
  // Maps what was offered since. True when all parts are mapped.
  bool MapParts();

  ShmTransport* const transport_;
  const SymmetricArenaOptions options_;
  const size_t data_bytes_;          // bytes_per_rank in whole pages
  std::vector<SharedMemory> parts_;  // by rank; empty where it is no member
  absl::Status status_;
  bool told_ = false;  // the others were told whether this rank has mapped all
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_SYMMETRIC_ARENA_H_
