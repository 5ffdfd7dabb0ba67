// SymmetricMemory: the regions of memory that all ranks of one communicator map, and the places in them.
//
// A region is a ready SymmetricArena whose members are the communicator's ranks, with a segment of the same size for each. All
// ranks add the same regions in the same order, so a region has the same number on all of them. A place is a region and an offset
// from the beginning of a segment: eight bytes that tell a peer where a buffer of this rank lies, wherever either has mapped it.
// Ranks may use different offsets and different regions.
//
// Lifetime. A removal is noticed when the next job (comm/engine/memory_executor.h) is done or the next region added; once the memory is
// closed, at once. The region then stays mapped until all jobs are done that had been started by that time. Removing affects this rank
// alone: it loses its peers' segments, too. A collective in which a peer still uses the region then fails.

#ifndef COMM_ENGINE_SYMMETRIC_MEMORY_H_
#define COMM_ENGINE_SYMMETRIC_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "transport/shm/symmetric_arena.h"

namespace lockstep {

// Externally synchronised by the progress engine's mutex, except Remove, which any thread may call.
class SymmetricMemory {
 public:
  // place = region:24 offset:40
  using Place = uint64_t;
  static constexpr Place kNowhere = ~Place{0};
  static constexpr int kOffsetBits = 40;
  static constexpr size_t kRegionBytesMax = size_t{1} << kOffsetBits;

  // `ranks`: the transport's rank of each rank of the communicator. `rank`: this one's, in the communicator.
  SymmetricMemory(std::vector<Rank> ranks, Rank rank);

  SymmetricMemory(const SymmetricMemory&) = delete;
  SymmetricMemory& operator=(const SymmetricMemory&) = delete;

  // Adds a region. INVALID_ARGUMENT when a segment is larger than kRegionBytesMax, RESOURCE_EXHAUSTED after 2^24 - 1 regions. The same
  // answer on all ranks.
  absl::Status Add(std::shared_ptr<SymmetricArena> arena);

  // Removes an arena that was added. Idempotent.
  void Remove(const SymmetricArena& arena) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether there is no region, as where nobody uses the communicator's allocator.
  bool empty() const { return by_address_.empty(); }
  // Where the memory lies. kNowhere for 0 bytes, and unless all of it is in this rank's segment of one region.
  Place Find(const void* data, size_t bytes) const;

  // The memory at a place in a rank's segment, as mapped here; null unless all of it is in a region.
  char* Address(Rank rank, Place place, size_t bytes) const;

  // For the executor: jobs that may use these regions. They are done in the order in which they were started.
  void OnJobStarted() { ++jobs_started_; }
  void OnJobDone() {
    ++jobs_done_;
    // Relaxed: a removal that is missed now is noticed later.
    if (leaving_ > 0 || removal_asked_.load(std::memory_order_relaxed)) LockAndSweep();
  }

  // Unmaps what was removed. Nothing may be added or found any more.
  // REQUIRES  no job is in flight, and none will be started
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Region {
    uint64_t number = 0;
    std::shared_ptr<SymmetricArena> arena;
    std::vector<char*> parts;  // by the communicator's rank
    size_t bytes = 0;          // of each segment
    uintptr_t begin = 0;       // of this rank's segment
    // Removed: to be unmapped when job number `last_job` is done.
    bool leaving = false;
    uint64_t last_job = 0;
  };
  static bool BeginsAfter(uintptr_t address, const Region* region) { return address < region->begin; }

  void LockAndSweep() ABSL_LOCKS_EXCLUDED(mu_);
  // Marks removed regions as leaving, and unmaps those that no job uses.
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const std::vector<Rank> ranks_;
  const Rank rank_;

  // By the engine's mutex; once the memory is closed, by mu_.
  std::vector<std::unique_ptr<Region>> regions_;  // by number
  std::vector<const Region*> by_address_;         // by `begin`
  mutable const Region* last_ = nullptr;          // the one that was found last
  uint64_t regions_added_ = 0;
  uint64_t jobs_started_ = 0;
  uint64_t jobs_done_ = 0;
  int leaving_ = 0;  // regions

  Mutex mu_;
  std::vector<const SymmetricArena*> removals_ ABSL_GUARDED_BY(mu_);  // not looked at yet
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<bool> removal_asked_{false};  // removals_ may hold some; written with mu_ held
};

}  // namespace lockstep

#endif  // COMM_ENGINE_SYMMETRIC_MEMORY_H_
