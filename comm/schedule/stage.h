// The stage of a communicator: memory before all its ranks, through which staged collectives (comm/schedule/schedule.h) move the
// vectors that lie in memory of the ranks' own. Here is its geometry; comm/engine/memory_executor.h carries rounds out.
//
// REQUIRES  of a staged schedule: two or three phases, which its barriers are between, and no more blocks of scratch than ranks
// RETURNS   sizes in bytes
// THREADS   any: all of this is constant

#ifndef COMM_SCHEDULE_STAGE_H_
#define COMM_SCHEDULE_STAGE_H_

#include <algorithm>
#include <cstdint>

namespace lockstep {

// Each rank has a part of kStageSlots slots. A schedule is carried out in rounds: a round moves one piece of every
// block, as large as lets the schedule's blocks of scratch stand side by side in one slot. What lies between a
// schedule's barriers is a phase, of which there are two or three. Rounds overlap: from one barrier of the communicator
// to the next, in one tick, a rank carries out the first phase of a round, the second phase of the round before, and
// the third phase of the one before that. All ranks hold one barrier at the end of each tick, but after a collective's
// last.
//
//   tick        0            1            2            3            4
//   round 0     phase 0  |   phase 1  |   phase 2
//   round 1                  phase 0  |   phase 1  |   phase 2
//   round 2                               phase 0  |   phase 1  |   phase 2
//
// Why rounds do not disturb each other. They touch different pieces of the caller's buffers. On the stage, each takes
// the slot after that of the round before, over all collectives of the communicator, whichever ranks and phases a slot
// is used by. A round begins at least one tick after the round before, also where that one belongs to the collective
// before: a collective's last phase is never its first, and there is no barrier between it and the next collective's
// first tick, which makes the two one tick. So the round that takes a slot again begins at least three ticks, and so a
// barrier, after the one that had it began, which was then done within three ticks.
inline constexpr int kStagePhasesMin = 2;
inline constexpr int kStagePhasesMax = 3;
// As many as phases at most.
inline constexpr int kStageSlots = kStagePhasesMax;
inline constexpr int64_t kStageSlotBytes = int64_t{256} << 10;
// Pieces begin at whole cache lines.
inline constexpr int64_t kStageLineBytes = 64;

// The most that a round moves of each block of the vector: a good part of a core's own cache, so that what one rank
// stages is taken before it has left the caches, and much longer than a barrier takes.
inline constexpr int64_t kStagePieceBytesMax = int64_t{128} << 10;

// As much of each block as lets a schedule's blocks of scratch stand in one slot: from one block to the next.
constexpr int64_t StagePieceBytes(int scratch_blocks) {
  const int64_t bytes = std::min(kStagePieceBytesMax, kStageSlotBytes / scratch_blocks);
  return std::max(kStageLineBytes, bytes / kStageLineBytes * kStageLineBytes);
}

// Of a slot of one of `size` ranks: no schedule has more blocks of scratch than there are ranks.
constexpr int64_t StageSlotBytes(int size) { return std::max(kStageSlotBytes, size * kStageLineBytes); }

}  // namespace lockstep

#endif  // COMM_SCHEDULE_STAGE_H_
