// ChannelRegistry: the communicators of one process on one world, by channel. It gives new communicators their channels and
// forwards calls of the control channel to the right one.
//
// Each communicator has two channels: an even one for collectives, by which the control channel knows it, and the next for
// messages. The world's own are 0 and 1. A subgroup gets (1 + its lowest world rank) x 65,536 + 2 x a number that its lowest
// rank has given to no other. So no two communicators share a channel, wherever they were made, and no other rank needs to be
// asked. Memory that ranks make together is numbered in the same way.
//
// Thread-safe. Called with no communicator's lock held. It holds its own lock while it calls communicators, so one that was removed
// is not called any more.

#ifndef COMM_HOST_CHANNEL_REGISTRY_H_
#define COMM_HOST_CHANNEL_REGISTRY_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "transport/control/control_types.h"
#include "transport/transport.h"

namespace lockstep {

class ChannelRegistry {
 public:
  class Member {
   public:
    virtual ~Member() = default;
    // The communicator is over.
    virtual void OnFailure(const absl::Status& status) = 0;
    // How far it has come. Never blocks.
    virtual Progress progress() const = 0;
    // What it called as collective `sequence`; empty if unknown. Never blocks.
    virtual std::string CalledAs(uint64_t sequence) const = 0;
  };

  static constexpr ChannelId kWorldChannel = 0;
  static constexpr int kLeadersMax = 65534;
  static constexpr uint32_t kNumbersMax = 32768;

  // A number for a communicator whose lowest rank this one may be; kNumbersMax when there are no more. Never given again.
  uint32_t TakeNumber();
  static ChannelId ChannelOf(Rank lowest_world_rank, uint32_t number) {
    return (static_cast<ChannelId>(lowest_world_rank.value()) + 1) << 16 | number << 1;
  }
  static ChannelId MessagesOf(ChannelId channel) { return channel + 1; }

  // The same for memory of such a communicator; kMemoriesMax when there are no more.
  uint32_t TakeMemoryNumber();
  static constexpr uint32_t kMemoriesMax = 65536;
  // Of the memory of all ranks of the world, which is made before there are other communicators.
  static constexpr uint32_t kWorldMemory = 0;
  static uint32_t MemoryOf(Rank lowest_world_rank, uint32_t number) {
    return static_cast<uint32_t>(lowest_world_rank.value()) << 16 | number;
  }

  // Adds the member. A failure that was announced for its channel before is reported to it at once.
  void Add(ChannelId channel, Member* member);
  // When this returns the member is not called any more. Must not be called from one of the member's calls.
  void Remove(ChannelId channel);

  // From the control channel's callbacks.
  void OnFailure(const Failure& failure);
  std::vector<std::pair<ChannelId, Progress>> progress() const;
  std::string CalledAs(ChannelId channel, uint64_t sequence) const;

 private:
  mutable Mutex mu_;
  uint32_t numbers_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t memory_numbers_ ABSL_GUARDED_BY(mu_) = kWorldMemory + 1;
  std::map<ChannelId, Member*> members_ ABSL_GUARDED_BY(mu_);
  absl::Status world_failure_ ABSL_GUARDED_BY(mu_);
  // Announced for channels without a member: it comes later, or was removed. The newest 256.
  std::map<ChannelId, absl::Status> early_failures_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // COMM_HOST_CHANNEL_REGISTRY_H_
