// MessageBoard: the messages that ranks post at the coordinator, and who waits for which. Only the coordinator's thread uses it.
//
// Bounded. There are at most 64 topics; the oldest is dropped first. A rank has at most 64 waits; one more is ignored and runs into
// its deadline. After 2 MiB of text in a topic, further messages are cut to 64 bytes, so that an answer fits into a frame.

#ifndef TRANSPORT_CONTROL_CONTROL_MESSAGES_H_
#define TRANSPORT_CONTROL_CONTROL_MESSAGES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "transport/control/control_protocol.h"

namespace lockstep {
namespace control {

class MessageBoard {
 public:
  struct Answer {
    int rank = 0;
    PostedMessages messages;
  };

  // A second message of a rank on a topic replaces its first. Returns the answers to waits that are over.
  std::vector<Answer> Post(int rank, const PostMessage& post);

  // The messages if there are enough; otherwise a later Post answers the rank.
  absl::optional<PostedMessages> Await(int rank, const AwaitMessages& await);

  void Drop(int rank, uint64_t request);
  // The rank is gone: it waits for nothing. Its messages stay.
  void Forget(int rank);

  size_t wait_count() const { return waits_.size(); }
  size_t topic_count() const { return topics_.size(); }

 private:
  using Key = std::pair<ChannelId, uint64_t>;
  struct Topic {
    std::map<int, std::string> texts;  // by rank
    size_t bytes = 0;
  };
  struct Wait {
    int rank = 0;
    AwaitMessages await;
  };

  static PostedMessages Compose(const Topic& topic, uint64_t request);

  std::map<Key, Topic> topics_;
  std::deque<Key> age_;  // oldest first
  std::vector<Wait> waits_;
};

}  // namespace control
}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_MESSAGES_H_
