// What ranks wait for at the coordinator: messages (MessageBoard) and monitored barriers (Barriers). Only the coordinator's thread uses
// them.

#ifndef TRANSPORT_CONTROL_CONTROL_MESSAGES_H_
#define TRANSPORT_CONTROL_CONTROL_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/deadline.h"
#include "transport/control/control_protocol.h"
#include "transport/transport.h"

namespace lockstep {
namespace control {

// What to send to a rank whose wait is over.
struct Answer {
  int rank = 0;
  PostedMessages messages;
};

// The messages that ranks post at the coordinator, and who waits for which.
//
// Bounded. There are at most 64 topics; the oldest is dropped first. A rank has at most 64 waits; one more is ignored and runs into
// its deadline. After 2 MiB of text in a topic, further messages are cut to 64 bytes, so that an answer fits into a frame.
class MessageBoard {
 public:
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

// Who has entered which monitored barrier of a world, and when each times out.
//
// A barrier ends once: when all its ranks have entered, or when the timeout of a waiting rank passes. All waiting ranks
// then get the same list of ranks that had entered. A rank that enters later gets that list too, and is not on it.
//
// Bounded: at most 1024 barriers that not all ranks have entered. The oldest is dropped first; ranks that wait in it run into their
// own deadlines.
class Barriers {
 public:
  using TimePoint = Deadline::Clock::time_point;
  // Both return the answers to ranks whose barrier is over: empty messages of the ranks that had entered, in rank order.
  std::vector<Answer> Enter(int rank, const EnterBarrier& enter, TimePoint now);
  std::vector<Answer> Expire(TimePoint now);
  // When to call Expire.
  TimePoint next_event() const;
  // The rank is gone: it waits for nothing more, but it has entered.
  void Forget(int rank);

  size_t barrier_count() const { return barriers_.size(); }

 private:
  using Key = std::pair<ChannelId, uint64_t>;
  struct Barrier {
    size_t count = 0;
    std::set<int> entered;
    std::set<int> late;               // entered when it was over
    std::map<int, uint64_t> waiting;  // requests, by rank
    TimePoint due = TimePoint::max();
    bool over = false;
  };

  static std::vector<Answer> End(Barrier* barrier);
  void Remove(const Key& key);

  std::map<Key, Barrier> barriers_;
  std::deque<Key> age_;  // oldest first
};

}  // namespace control
}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_MESSAGES_H_
