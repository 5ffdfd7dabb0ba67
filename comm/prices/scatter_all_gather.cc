// Prices of the broadcast by scatter and all-gather (comm/algorithms/scatter_all_gather.cc).

#include <algorithm>
#include <vector>

#include "comm/prices/binomial.h"
#include "comm/prices/followed.h"
#include "comm/prices/forms.h"

namespace lockstep {
namespace prices {
namespace {

// The tree from the root on, and after a rank's part in it its part in the ring, which waits for the rank before it alone.
// The root has everything, and waits for nobody.
class Walk {
 public:
  Walk(const Call& call, SharedLinks* links)
      : call_(call), links_(*links), ends_(call.size), scattered_(call.size), readable_(call.size) {}

  double ns() {
    for (int rank = 0; rank < call_.size; ++rank) {
      ForChildrenBackwards(rank, call_.size, [&](int child) {
        const Stream& held = scattered_[rank];
        const Stream ready = rank == 0 ? held : Stream{held.last, held.last};
        scattered_[child] = Pass(rank, child, /*round=*/rank - child, BinomialSubtree(child, call_.size), ready);
      });
      const bool holds_one = BinomialSubtree(rank, call_.size) == 1;
      for (int block = 0; block < call_.size; ++block) {
        if (Holds(rank, block)) readable_[block] = holds_one ? scattered_[rank] : Whole(scattered_[rank]);
      }
      if (rank + 1 < call_.size) PassAround(rank);
    }
    double latest = call_.bytes * call_.network.copied_byte_ns;  // of the root's own, meanwhile
    for (const Ends& ends : ends_) latest = std::max(latest, ends.receiving);
    return latest;
  }

 private:
  static Stream Whole(const Stream& stream) { return {stream.last, stream.last}; }
  bool Holds(int rank, int block) const { return block >= rank && block < rank + BinomialSubtree(rank, call_.size); }

  // All blocks that the next rank does not have from the tree, its own last first: readable_ is when this rank has
  // them, and then when that one does.
  void PassAround(int rank) {
    for (int round = 0; round + 1 < call_.size; ++round) {
      const int block = (rank - round + call_.size) % call_.size;
      if (!Holds(rank + 1, block)) readable_[block] = Pass(rank, rank + 1, round, 1, readable_[block]);
    }
  }

  // The ring's rounds are numbered from 0 up, the tree's below.
  Stream Pass(int source, int target, int round, int blocks, const Stream& ready) {
    const Message message = links_.MessageOf(source, target, round, blocks * call_.block_bytes(), Reduces::kNo);
    return Receive(message, Send(message, ready, ends_[source]), kAlways, ends_[target]);
  }

  const Call& call_;
  SharedLinks& links_;
  std::vector<Ends> ends_;
  std::vector<Stream> scattered_;  // by rank: what it gets from the tree
  std::vector<Stream> readable_;   // by block, at the rank that has come to its part in the ring
};

// The root sends the scatter's messages, then the ring's.
double Estimate(const Call& call) {
  double scattered = 0;
  ForChildrenBackwards(0, call.size, [&](int child) {
    const double bytes = BinomialSubtree(child, call.size) * call.block_bytes();
    const Message message = call.MessageOf(bytes, call.network.HostOf(child) > 0, Reduces::kNo);
    scattered += message.chunks * message.sending_ns;
  });
  // Blocks follow each other along the ring from the root on, or wait for each other at the first slow link.
  const Message slow = call.MessageOf(call.block_bytes(), call.crosses(), Reduces::kNo);
  const Message fast = call.MessageOf(call.block_bytes(), false, Reduces::kNo);
  const int to_slow = call.flat() ? 1 : call.locals();
  const int slow_hops = call.flat() ? call.size - 1 : call.hosts() - 1;
  const double hops = slow_hops * slow.hop_ns() + (call.size - 1 - slow_hops) * fast.hop_ns();
  const double stays =
      (to_slow - 1) * fast.hop_ns() + slow.hop_ns() + (call.size - 1 - to_slow) * slow.chunks * slow.sending_ns;
  return std::max(call.bytes * call.network.copied_byte_ns,
                  scattered + std::max(hops, stays) + (slow.chunks - 1) * slow.sending_ns);
}

}  // namespace

// The ring has as many messages as there are pairs of ranks.
double ScatterAllGather(const Call& call) {
  if (call.size > kFollowedMax) return Estimate(call);
  return FollowSharing(call, [&](SharedLinks& links) { return Walk(call, &links).ns(); });
}

}  // namespace prices
}  // namespace lockstep
