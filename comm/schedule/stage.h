// The stage of a communicator: memory that all its ranks map. Staged collectives (comm/schedule/schedule.h) move vectors through it that
// lie in memory of one rank only. This is its geometry; comm/engine/memory_executor.h executes rounds.
//
// REQUIRES  a staged schedule has two or three phases, with its barriers between them, and at most as many blocks of scratch as ranks
// RETURNS   sizes in bytes
// THREADS   any: all of this is constant

#ifndef COMM_SCHEDULE_STAGE_H_
#define COMM_SCHEDULE_STAGE_H_

#include <algorithm>
#include <cstdint>

namespace lockstep {

// Each rank has a segment of kStageSlots slots. A schedule is executed in rounds. A round moves one piece of every block; pieces
// are so large that the schedule's blocks of scratch fit side by side into one slot. The steps between a schedule's barriers are a
// phase; there are two or three. Rounds overlap. A tick is the time from one barrier of the communicator to the next. In it a rank
// executes the first phase of a round, the second phase of the round before, and the third phase of the one before that. All ranks
// hold one barrier at the end of each tick, except a collective's last.
//
//   tick        0            1            2            3            4
//   round 0     phase 0  |   phase 1  |   phase 2
//   round 1                  phase 0  |   phase 1  |   phase 2
//   round 2                               phase 0  |   phase 1  |   phase 2
//
// Why rounds do not disturb each other. They touch different pieces of the caller's buffers. On the stage, each round takes
// the slot after that of the round before, over all collectives of the communicator. A round begins at least one tick after the
// round before, also across collectives: a collective's last phase is never its first, and its last tick and the next collective's
// first tick are one, since no barrier is between them. So a round that uses a slot again begins at least three ticks after the
// round that used it before. That round was done within three ticks, and a barrier is between the two.
inline constexpr int kStagePhasesMin = 2;
inline constexpr int kStagePhasesMax = 3;
// One for each phase that may be under way.
inline constexpr int kStageSlots = kStagePhasesMax;
inline constexpr int64_t kStageSlotBytes = int64_t{256} << 10;
// Pieces begin at whole cache lines.
inline constexpr int64_t kStageLineBytes = 64;

// The most that a round moves of each block of the vector. It is a good part of a core's own cache, so that staged bytes are read
// before they leave the caches, and takes much longer than a barrier.
inline constexpr int64_t kStagePieceBytesMax = int64_t{128} << 10;

// The largest piece of a block with which a schedule's blocks of scratch fit into one slot; also the distance between them there.
constexpr int64_t StagePieceBytes(int scratch_blocks) {
  const int64_t bytes = std::min(kStagePieceBytesMax, kStageSlotBytes / scratch_blocks);
  return std::max(kStageLineBytes, bytes / kStageLineBytes * kStageLineBytes);
}

// The bytes of a slot, in a communicator of `size` ranks. It has room for `size` blocks of scratch, the most that a schedule has.
constexpr int64_t StageSlotBytes(int size) { return std::max(kStageSlotBytes, size * kStageLineBytes); }

}  // namespace lockstep

#endif  // COMM_SCHEDULE_STAGE_H_
