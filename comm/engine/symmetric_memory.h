// SymmetricMemory: the regions of memory that all ranks of one communicator have before them, and what lies where in them.
//
// A region is a ready SymmetricArena whose members are the communicator's ranks: a part for each rank, as large on all. All
// ranks add the same regions in the same order, so a region has one number on all of them. A place is a region and an offset
// from where a part begins: eight bytes that tell a peer where a buffer of this rank's lies, wherever either has mapped it.
// Ranks need not use equal offsets, nor the same region.
//
// Lifetime. A region that was removed stays mapped until the jobs (comm/engine/memory_executor.h) that had been started when that was
// noticed are done. It is noticed when the next job is done or the next region added; once the memory is closed, at once.
// Removing concerns this rank alone, and takes from it its peers' parts too: a collective in which a peer still uses
// the region then fails.

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

// Externally synchronised by the progress engine's mutex, but for Remove, which any thread may call.
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

  // INVALID_ARGUMENT when a part is larger than kRegionBytesMax; RESOURCE_EXHAUSTED after 2^24 - 1 regions. The same answer
  // on all ranks.
  absl::Status Add(std::shared_ptr<SymmetricArena> arena);

  // Of an arena that was added. Idempotent.
  void Remove(const SymmetricArena& arena) ABSL_LOCKS_EXCLUDED(mu_);

  // Where the memory lies; kNowhere unless all of it is in this rank's part of one region, and for no bytes.
  Place Find(const void* data, size_t bytes) const;

  // The memory at a place in a rank's part, as mapped here; null unless all of it is in a region.
  char* Address(Rank rank, Place place, size_t bytes) const;

  // For the executor: jobs that may use what is here. They are done in the order in which they were started.
  void OnJobStarted() { ++jobs_started_; }
  void OnJobDone() {
    ++jobs_done_;
    // Relaxed: a removal that is not seen now is seen later.
    if (leaving_ > 0 || removal_asked_.load(std::memory_order_relaxed)) LockAndSweep();
  }

  // No job is in flight, and none will be started: gives back what was removed. Nothing may be added or looked for any more.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Region {
    uint64_t number = 0;
    std::shared_ptr<SymmetricArena> arena;
    std::vector<char*> parts;  // by the communicator's rank
    size_t bytes = 0;          // of each part
    uintptr_t begin = 0;       // this rank's part
    // Removed: to be given back when so many jobs are done.
    bool leaving = false;
    uint64_t last_job = 0;
  };
  static bool BeginsAfter(uintptr_t address, const Region* region) { return address < region->begin; }

  void LockAndSweep() ABSL_LOCKS_EXCLUDED(mu_);
  // Marks regions that were removed as leaving, and gives back those that no job uses.
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
  std::atomic<bool> removal_asked_{false};  // removals_ may hold some
};

}  // namespace lockstep

#endif  // COMM_ENGINE_SYMMETRIC_MEMORY_H_
