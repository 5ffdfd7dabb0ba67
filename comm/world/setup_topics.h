// The topics of the control channel's messages by which a world is set up, on ChannelRegistry::kWorldChannel. A reducer's topics on a
// channel count up from where they began, so these count down from the last number.

#ifndef COMM_WORLD_SETUP_TOPICS_H_
#define COMM_WORLD_SETUP_TOPICS_H_

#include <cstdint>

namespace lockstep {

inline constexpr uint64_t kSharingTopic =
    ~uint64_t{0};  // whether a rank shares memory with all others (world_transport.cc)
inline constexpr uint64_t kAddressesTopic = ~uint64_t{2};  // rank 0's addresses (slow_link.cc)

}  // namespace lockstep

#endif  // COMM_WORLD_SETUP_TOPICS_H_
