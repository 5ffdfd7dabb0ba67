// The ranks of a world, followed one by one through an algorithm's rounds.
//
// Up to kFollowedMax ranks all are followed. In larger worlds, what all ranks or all hosts do alike is followed once:
// one rank, or the ranks of one host, stand for the others. That is exact but for the ends of the vector, at which some
// ranks cut what they send, and for a last host with fewer ranks.

#ifndef COMM_PRICES_FOLLOWED_H_
#define COMM_PRICES_FOLLOWED_H_

#include <cstddef>
#include <vector>

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

// The hosts' links, shared by what their ranks send to other hosts at the same time.
//
// Who shares a link depends on when messages begin, and that on who shares links before. So an algorithm is followed
// again and again, each time with the sharing that the times of the last amount to, until that changes no more.
class SharedLinks {
 public:
  explicit SharedLinks(const Call& call) : call_(call) {}

  // A message from a followed rank, which could begin at `begin`. Each time through the algorithm, messages must be
  // asked for in the same order.
  Message MessageOf(int source, int target, double begin, double bytes, Reduces reduces);
  // Ends one time through. Whether another is worth it.
  bool Changed();

 private:
  struct Flow {
    int host, rank;
    double begin;
    double alone_ns;  // on a link of its own
    double sharers;   // on average, from its begin to its end
  };
  // One link's flows, in order of their begin.
  static void Share(std::vector<Flow*>* flows);

  const Call& call_;
  std::vector<Flow> flows_;
  size_t asked_ = 0;  // this time
  int times_ = 0;
};

// A message on its way.
struct Sent {
  Message message;
  Stream left;
};

// `follow(links)` goes through the algorithm once and returns its time.
template <typename Follow>
double Settled(const Call& call, Follow follow) {
  SharedLinks links(call);
  double ns = 0;
  do {
    ns = follow(links);
  } while (links.Changed());
  return ns;
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
