// Barriers: who has entered which monitored barrier of a world, and when each times out. Only the coordinator's thread uses it.
//
// A barrier ends once: when all its ranks have entered, or when the timeout of the first waiting rank passes. All waiting ranks
// then get the same list of ranks that had entered. A rank that enters later gets that list too, and is not on it.
//
// Bounded: at most 1024 barriers that not all ranks have entered. The oldest is dropped first; ranks that wait in it run into their
// own deadlines.

#ifndef TRANSPORT_CONTROL_CONTROL_BARRIERS_H_
#define TRANSPORT_CONTROL_CONTROL_BARRIERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/control/control_protocol.h"
#include "transport/transport.h"

namespace lockstep {
namespace control {

class Barriers {
 public:
  using TimePoint = Deadline::Clock::time_point;
  struct Answer {
    int rank = 0;
    PostedMessages entered;  // with empty texts, by the ranks that had entered, in rank order
  };

  // Both return the answers to ranks whose barrier is over.
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

#endif  // TRANSPORT_CONTROL_CONTROL_BARRIERS_H_
