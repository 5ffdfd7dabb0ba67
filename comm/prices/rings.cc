// Prices of rings and chains: every rank hands on to the next one.

#include <algorithm>
#include <vector>

#include "comm/prices/followed.h"
#include "comm/prices/forms.h"

namespace lockstep {
namespace prices {
namespace {

// The rounds of a ring, in order: those that reduce, then those that copy.
struct Rounds {
  explicit Rounds(const Call& call)
      : reducing(call.collective == Collective::kAllGather ? 0 : call.size - 1),
        copying(call.collective == Collective::kReduceScatter ? 0 : call.size - 1) {}

  int reducing;
  int copying;
};

double RingOfOneLink(const Call& call, bool remote) {
  const Rounds rounds(call);
  const Message copied = call.MessageOf(call.block_bytes(), remote, Reduces::kNo);
  Symmetric ring;
  if (call.collective == Collective::kAllGather) {
    ring.Exchange(copied);
    ring.Copy(copied);
    ring.Exchange(copied, rounds.copying - 1);
  } else {
    ring.Exchange(call.MessageOf(call.block_bytes(), remote, Reduces::kYes), rounds.reducing);
    ring.Exchange(copied, rounds.copying);
  }
  return ring.ns();
}

// A ring of which the last link of every host is another, round by round, rank by rank.
double RingOfRanks(const Call& call) {
  const Rounds rounds(call);
  const Message own = call.MessageOf(call.block_bytes(), false, Reduces::kNo);
  std::vector<Stream> data(call.size);
  std::vector<Ends> ends(call.size);
  for (int round = 0; round < rounds.reducing + rounds.copying; ++round) {
    const Reduces reduces = round < rounds.reducing ? Reduces::kYes : Reduces::kNo;
    const Message local = call.MessageOf(call.block_bytes(), false, reduces);
    const Message remote = call.MessageOf(call.block_bytes(), true, reduces);
    const auto crosses = [&](int rank) {
      return call.network.HostOf(rank) != call.network.HostOf((rank + 1) % call.size);
    };
    std::vector<Stream> left;
    for (int rank = 0; rank < call.size; ++rank) {
      left.push_back(Send(crosses(rank) ? remote : local, data[rank], ends[rank]));
    }
    for (int rank = 0; rank < call.size; ++rank) {
      const int source = (rank + call.size - 1) % call.size;
      data[rank] = Receive(crosses(source) ? remote : local, left[source], kAlways, ends[rank]);
      const bool copies = round == 0 && call.collective == Collective::kAllGather;
      if (copies) Work(own.chunks, own.copying_ns, {0, 0}, ends[rank]);
    }
  }
  double latest = 0;
  for (const Ends& of_rank : ends) latest = std::max(latest, of_rank.receiving);
  return latest;
}

// The same in a large world, by its longest chain of events. That begins at a slow link; round by round it follows the ring
// to the next slow link, as long as latency is what keeps that waiting, or stays at a link that is never idle. It is
// longest when it begins before the smallest host, and stays in the first of the two phases, where a reduction makes the
// link the slower. (Where the links inside the hosts are the slower ones, it begins at one of those: a hop's difference.)
class RingOfHosts {
 public:
  explicit RingOfHosts(const Call& call) : call_(call), rounds_(call) {}

  double ns() const {
    // The first round begins the chain.
    const int in_first = (rounds_.reducing > 0 ? rounds_.reducing : rounds_.copying) - 1;
    const int in_second = rounds_.reducing > 0 ? rounds_.copying : 0;
    const Phase first = PhaseOf(rounds_.reducing > 0 ? Reduces::kYes : Reduces::kNo);
    const Phase second = PhaseOf(Reduces::kNo);
    // What the first stay finds there beside.
    const double copy_ns = rounds_.reducing > 0 ? 0 : call_.block_bytes() * call_.network.copied_byte_ns;
    const int all = in_first + in_second;
    const auto following = [&](int hops) {
      const int stays = all - hops;
      const int stays_in_first = std::min(stays, in_first), hops_in_first = in_first - stays_in_first;
      return (stays > 0 ? copy_ns : 0) + stays_in_first * first.stay_ns + Follow(first, 0, hops_in_first) +
             Follow(second, hops_in_first, hops) + (stays - stays_in_first) * second.stay_ns;
    };
    double longest = std::max(following(in_second), following(all));
    // Staying anywhere else than at the slow link that it has come to gains nothing.
    for (int hops = 0; hops <= all; hops += HopsToNext(hops)) longest = std::max(longest, following(hops));
    return first.slow.hop_ns() + longest + (first.slow.chunks - 1) * first.slow.spacing_ns();
  }

 private:
  struct Phase {
    Message slow, fast;
    double stay_ns;
  };

  Phase PhaseOf(Reduces reduces) const {
    Phase phase;
    phase.slow = call_.MessageOf(call_.block_bytes(), true, reduces);
    phase.fast = call_.MessageOf(call_.block_bytes(), false, reduces);
    phase.stay_ns = phase.slow.chunks * std::max(phase.slow.spacing_ns(), phase.fast.spacing_ns());
    return phase;
  }
  // From a slow link, which comes `hops` behind that before the last host, to the next.
  int HopsToNext(int hops) const { return hops % call_.size == 0 ? call_.last_locals() : call_.locals(); }
  int SlowHops(int hops) const {
    const int rest = hops % call_.size;
    const int in_rest = rest < call_.last_locals() ? 0 : 1 + (rest - call_.last_locals()) / call_.locals();
    return hops / call_.size * call_.hosts() + in_rest;
  }
  double Follow(const Phase& phase, int begin, int end) const {
    const int slow_hops = SlowHops(end) - SlowHops(begin);
    return slow_hops * phase.slow.hop_ns() + (end - begin - slow_hops) * phase.fast.hop_ns();
  }

  const Call& call_;
  const Rounds rounds_;
};

Stream Along(const Call& call, const Stream& begin, int hops, int crossings, Reduces reduces) {
  const Stream across = Pass(call.MessageOf(call.bytes, true, reduces), begin, crossings);
  return Pass(call.MessageOf(call.bytes, false, reduces), across, hops - crossings);
}

}  // namespace

double Ring(const Call& call) {
  if (call.flat()) return RingOfOneLink(call, call.crosses());
  if (call.size <= kFollowedMax) return RingOfRanks(call);
  return RingOfHosts(call).ns();
}

// From rank 0 (a broadcast), or rank 1 (a reduction by ring), to the rank before.
double Chain(const Call& call) {
  const Reduces reduces = call.collective == Collective::kReduce ? Reduces::kYes : Reduces::kNo;
  const int hosts = call.hosts();
  const int crossings = reduces == Reduces::kYes && hosts > 1 ? std::min(hosts, call.size - 1) : hosts - 1;
  const double last = Along(call, {0, 0}, call.size - 1, crossings, reduces).last;
  // The root of a broadcast copies its own, meanwhile.
  return reduces == Reduces::kYes ? last : std::max(last, call.bytes * call.network.copied_byte_ns);
}

// From rank 0 to the last, folding, and the result to the root.
double ChainReduce(const Call& call) {
  const Stream sum = Along(call, {0, 0}, call.size - 1, call.hosts() - 1, Reduces::kYes);
  return Pass(call.MessageOf(call.bytes, call.hosts() > 1, Reduces::kNo), sum, 1).last;
}

// There and back again. The last rank but one has to be done with its sum before the result comes by; those before it
// are, by then.
double ChainAllReduce(const Call& call) {
  const int crossings = call.hosts() - 1;
  const Stream sum = Along(call, {0, 0}, call.size - 1, crossings, Reduces::kYes);
  if (call.size == 2) return Pass(call.MessageOf(call.bytes, crossings > 0, Reduces::kNo), sum, 1).last;
  const bool last_is_remote = crossings > 0 && call.last_locals() == 1;
  Ends last, before;
  before.receiving = Along(call, {0, 0}, call.size - 2, crossings - last_is_remote, Reduces::kYes).last;
  const Message turn = call.MessageOf(call.bytes, last_is_remote, Reduces::kNo);
  const Stream result = Receive(turn, Send(turn, sum, last), kAlways, before);
  return Along(call, result, call.size - 2, crossings - last_is_remote, Reduces::kNo).last;
}

}  // namespace prices
}  // namespace lockstep
