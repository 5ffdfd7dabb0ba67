// Prices of binomial trees (comm/algorithms/binomial.cc): rank by rank, from the root to the leaves or back.

#include <algorithm>
#include <vector>

#include "comm/prices/binomial.h"
#include "comm/prices/followed.h"
#include "comm/prices/forms.h"

namespace lockstep {
namespace prices {
namespace {

// From number 0 of `size` to the others: data[i] is when number i has it, of which data[0] is given. A round for each
// distance.
template <typename MessageTo>
void Broadcast(int size, MessageTo message_to, std::vector<Stream>* data, std::vector<Ends>* ends) {
  for (int rank = 0; rank < size; ++rank) {
    ForChildrenBackwards(rank, size, [&](int child) {
      const Message message = message_to(rank, child, /*round=*/child - rank);
      const Stream left = Send(message, (*data)[rank], (*ends)[rank]);
      (*data)[child] = Receive(message, left, kAlways, (*ends)[child]);
    });
  }
}

double Latest(const std::vector<Stream>& data) {
  double latest = 0;
  for (const Stream& stream : data) latest = std::max(latest, stream.last);
  return latest;
}

// The root copies its own, meanwhile.
double WithCopy(const Call& call, double ns) { return std::max(ns, call.bytes * call.network.copied_byte_ns); }

}  // namespace

double BinomialBroadcast(const Call& call) {
  return FollowSharing(call, [&](SharedLinks& links) {
    std::vector<Stream> data(call.size);
    std::vector<Ends> ends(call.size);
    const auto message_to = [&](int source, int target, int round) {
      return links.MessageOf(source, target, round, call.bytes, Reduces::kNo);
    };
    Broadcast(call.size, message_to, &data, &ends);
    return WithCopy(call, Latest(data));
  });
}

// A tree of the hosts' first ranks, each of which is the root of a tree of its host's.
double TwoLevelBroadcast(const Call& call) {
  const Message remote = call.MessageOf(call.bytes, true, Reduces::kNo);
  const Message local = call.MessageOf(call.bytes, false, Reduces::kNo);
  std::vector<Stream> heads(call.hosts());
  std::vector<Ends> ends_of_heads(call.hosts());
  Broadcast(
      call.hosts(), [&](int, int, int) { return remote; }, &heads, &ends_of_heads);
  double latest = 0;
  for (int host = 0; host < call.hosts(); ++host) {
    const int locals = host + 1 == call.hosts() ? call.last_locals() : call.locals();
    std::vector<Stream> data(locals, heads[host]);
    std::vector<Ends> ends(locals);
    ends[0] = ends_of_heads[host];
    Broadcast(
        locals, [&](int, int, int) { return local; }, &data, &ends);
    latest = std::max(latest, Latest(data));
  }
  return WithCopy(call, latest);
}

double BinomialReduce(const Call& call) {
  return FollowSharing(call, [&](SharedLinks& links) {
    std::vector<Stream> sums(call.size);
    for (int rank = call.size - 1; rank >= 0; --rank) {
      Ends ends;
      ForChildren(rank, call.size, [&](int child) {
        const Message message = links.MessageOf(child, rank, /*round=*/child - rank, call.bytes, Reduces::kYes);
        Ends of_child;
        sums[rank] = Receive(message, Send(message, sums[child], of_child), sums[rank], ends);
      });
    }
    return sums[0].last;
  });
}

// A child sends when it has all of its own.
double BinomialGather(const Call& call) {
  const double copying_ns = call.block_bytes() * call.network.copied_byte_ns;
  return FollowSharing(call, [&](SharedLinks& links) {
    std::vector<double> complete(call.size);
    for (int rank = call.size - 1; rank >= 0; --rank) {
      if (BinomialSubtree(rank, call.size) == 1) continue;
      Ends ends;
      Work(1, copying_ns, {0, 0}, ends);
      ForChildren(rank, call.size, [&](int child) {
        const double bytes = BinomialSubtree(child, call.size) * call.block_bytes();
        const Message message = links.MessageOf(child, rank, /*round=*/child - rank, bytes, Reduces::kNo);
        Ends of_child;
        Receive(message, Send(message, {complete[child], complete[child]}, of_child), kAlways, ends);
      });
      complete[rank] = ends.receiving;
    }
    return complete[0];
  });
}

double BinomialScatter(const Call& call) {
  const double copying_ns = call.block_bytes() * call.network.copied_byte_ns;
  return FollowSharing(call, [&](SharedLinks& links) {
    std::vector<double> complete(call.size);
    double latest = 0;
    for (int rank = 0; rank < call.size; ++rank) {
      Ends ends;
      ForChildrenBackwards(rank, call.size, [&](int child) {
        const double bytes = BinomialSubtree(child, call.size) * call.block_bytes();
        const Message message = links.MessageOf(rank, child, /*round=*/child - rank, bytes, Reduces::kNo);
        Ends of_child;
        const Stream left = Send(message, {complete[rank], complete[rank]}, ends);
        complete[child] = Receive(message, left, kAlways, of_child).last;
      });
      const bool is_leaf = BinomialSubtree(rank, call.size) == 1;
      latest = std::max(latest, complete[rank] + (is_leaf ? 0 : copying_ns));
    }
    return latest;
  });
}

}  // namespace prices
}  // namespace lockstep
