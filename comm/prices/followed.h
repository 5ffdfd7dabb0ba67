// The ranks of a world, followed one by one through an algorithm's rounds.
//
// Up to kFollowedMax ranks all are followed. In larger worlds, what all ranks or all hosts do alike is followed once:
// one rank, or the ranks of one host, stand for the others. That leaves out that some ranks cut what they send in two, at
// the end of the vector, and a last host with fewer ranks (comm/prices_test.cc has what comes of it).

#ifndef COMM_PRICES_FOLLOWED_H_
#define COMM_PRICES_FOLLOWED_H_

#include <vector>

#include "comm/link_sharing.h"
#include "comm/prices/call.h"
#include "comm/streams.h"

namespace lockstep {
namespace prices {

inline constexpr int kFollowedMax = 128;

// How many ranks are followed through an algorithm in which all do the same, round the world.
inline int FollowedRanks(const Call& call) {
  if (call.size <= kFollowedMax) return call.size;
  return call.flat() ? 1 : call.locals();
}

// What followed ranks send, over links that the ranks of a host share (comm/link_sharing.h).
class SharedLinks {
 public:
  explicit SharedLinks(const Call& call) : call_(call) {}

  // A message from a followed rank; until Settle, as if nobody shared its link. Rounds are numbered as one likes, unlike
  // rounds unlike.
  Message MessageOf(int source, int target, int round, double bytes, Reduces reduces);
  // All messages have been asked for once. From now on they cost what they do on links that are shared.
  void Settle() { settled_ = true; }

 private:
  const Call& call_;
  LinkSharing sharing_;
  bool settled_ = false;
};

// A message on its way.
struct Sent {
  Message message;
  Stream left;
};

// `follow(links)` goes through the algorithm and returns its time: where links are shared, once for who shares them, and
// once more.
template <typename Follow>
double FollowSharing(const Call& call, Follow follow) {
  SharedLinks links(call);
  if (!call.flat()) follow(links);
  links.Settle();
  return follow(links);
}

// One rank's blocks: when what it last wrote where is there.
class Blocks {
 public:
  void Write(int begin, int end, const Stream& there) { written_.push_back({begin, end, there}); }
  // When blocks [begin, end) may be read: chunk by chunk if they were written in one step, else all at once. A rank
  // writes one step after the other, so only the last of several counts.
  Stream Readable(int begin, int end) const;

 private:
  struct Written {
    int begin, end;
    Stream there;
  };
  std::vector<Written> written_;
};

}  // namespace prices
}  // namespace lockstep

#endif  // COMM_PRICES_FOLLOWED_H_
