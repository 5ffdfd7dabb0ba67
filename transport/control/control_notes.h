// The notes that ranks leave at the hub, and who waits for which. Pure bookkeeping; the hub's thread alone uses it.
//
// Bounded: 64 topics, of which the oldest goes first; 64 waits per rank (one more is ignored and runs into its
// deadline); and per topic 2 MiB of text, after which notes are cut to their first 64 bytes, so that an answer fits
// into a frame.

#ifndef TRANSPORT_CONTROL_CONTROL_NOTES_H_
#define TRANSPORT_CONTROL_CONTROL_NOTES_H_

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

class NoteBoard {
 public:
  struct Answer {
    int rank = 0;
    Notes notes;
  };

  // A second note of a rank on a topic replaces its first. Returns the waits that are over.
  std::vector<Answer> Post(int rank, const PostNote& post);

  // The notes when there are enough; otherwise the rank is answered by a later Post.
  absl::optional<Notes> Await(int rank, const AwaitNotes& await);

  void Drop(int rank, uint64_t request);
  // The rank is gone: it waits for nothing. Its notes stay.
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
    AwaitNotes await;
  };

  static Notes Compose(const Topic& topic, uint64_t request);

  std::map<Key, Topic> topics_;
  std::deque<Key> age_;  // oldest first
  std::vector<Wait> waits_;
};

}  // namespace control
}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_NOTES_H_
