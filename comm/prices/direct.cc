// Prices of direct algorithms: straight from whoever has a block to whoever wants it.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "comm/prices/forms.h"

namespace lockstep {
namespace prices {
namespace {

// On hosts of several ranks: everyone sends one message to everyone else, the nearest further on first, and takes what
// arrives in the same order. All that a host sends to others is one round.
//
// All full hosts do the same, so that the ranks of the first are followed for all, and those of a smaller last host for
// themselves.
class Everyone {
 public:
  explicit Everyone(const Call& call)
      : call_(call),
        is_full_(call.last_locals() == call.locals()),
        ranks_(call.locals() + (is_full_ ? 0 : call.last_locals())) {}

  void Exchange(double message_bytes) {
    const Message local = call_.MessageOf(message_bytes, false, Reduces::kNo);
    const Message remote = call_.MessageOf(message_bytes, true, Reduces::kNo, call_.locals());
    const Message of_last = call_.MessageOf(message_bytes, true, Reduces::kNo, call_.last_locals());
    const auto message_between = [&](int source, int target) -> const Message& {
      const int host = call_.network.HostOf(source);
      if (host == call_.network.HostOf(target)) return local;
      return host + 1 == call_.hosts() ? of_last : remote;
    };
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const int rank = RankOf(i);
      ranks_[i].left.clear();
      for (int distance = 1; distance < call_.size; ++distance) {
        const Message& message = message_between(rank, (rank + distance) % call_.size);
        ranks_[i].left.push_back(Send(message, ranks_[i].own, ranks_[i].ends));
      }
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const int rank = RankOf(i);
      for (int distance = 1; distance < call_.size; ++distance) {
        const int source = (rank - distance + call_.size) % call_.size;
        const Stream& left = ranks_[IndexOf(source)].left[distance - 1];
        Receive(message_between(source, rank), left, kAlways, ranks_[i].ends);
      }
    }
  }
  // Local work on `bytes` at so much for a byte, when everything has arrived.
  void Work(double bytes, double byte_ns) {
    const Message whole = call_.MessageOf(bytes, false, Reduces::kNo);
    for (Followed& rank : ranks_) {
      rank.own = prices::Work(whole.chunks, bytes / whole.chunks * byte_ns, kAlways, rank.ends);
    }
  }
  double ns() const {
    double latest = 0;
    for (const Followed& rank : ranks_) latest = std::max(latest, rank.ends.receiving);
    return latest;
  }

 private:
  struct Followed {
    Ends ends;
    Stream own;                // when what it sends to everyone is there
    std::vector<Stream> left;  // its messages, by distance from 1 on
  };

  int first_of_last() const { return call_.size - call_.last_locals(); }
  int RankOf(size_t index) const {
    const int i = static_cast<int>(index);
    return i < call_.locals() ? i : first_of_last() + i - call_.locals();
  }
  size_t IndexOf(int rank) const {
    return rank >= first_of_last() && !is_full_ ? call_.locals() + rank - first_of_last() : rank % call_.locals();
  }

  const Call& call_;
  const bool is_full_;  // all hosts are
  std::vector<Followed> ranks_;
};

double DirectOfOneLink(const Call& call, double message_bytes) {
  const auto message = [&](Reduces reduces) { return call.MessageOf(message_bytes, call.crosses(), reduces); };
  Symmetric direct;
  if (call.size == 2 && call.collective == Collective::kReduceScatter) {
    direct.Exchange(message(Reduces::kYes));
    return direct.ns();
  }
  direct.Share(message(Reduces::kNo), call.size - 1);
  HasReduction(call.collective) ? direct.Reduce(message(Reduces::kYes), call.size - 1)
                                : direct.Copy(message(Reduces::kNo));
  return direct.ns();
}

double TwoShotOfOneLink(const Call& call) {
  const auto message = [&](Reduces reduces) { return call.MessageOf(call.block_bytes(), call.crosses(), reduces); };
  Symmetric direct;
  if (call.size == 2) {
    direct.Exchange(message(Reduces::kYes));
  } else {
    direct.Share(message(Reduces::kNo), call.size - 1);
    direct.Reduce(message(Reduces::kYes), call.size - 1);
  }
  direct.Share(message(Reduces::kNo), call.size - 1);
  return direct.ns();
}

}  // namespace

double Direct(const Call& call) {
  const double message_bytes = call.collective == Collective::kAllReduce ? call.bytes : call.block_bytes();
  if (call.flat()) return DirectOfOneLink(call, message_bytes);
  Everyone everyone(call);
  everyone.Exchange(message_bytes);
  everyone.Work(message_bytes, HasReduction(call.collective) ? (call.size - 1) * call.network.reduced_byte_ns
                                                             : call.network.copied_byte_ns);
  return everyone.ns();
}

double TwoShot(const Call& call) {
  if (call.flat()) return TwoShotOfOneLink(call);
  Everyone everyone(call);
  everyone.Exchange(call.block_bytes());
  everyone.Work(call.block_bytes(), (call.size - 1) * call.network.reduced_byte_ns);
  everyone.Exchange(call.block_bytes());
  return everyone.ns();
}

// From everyone to rank 0: nearest first as seen from it, to either side.
double ToRoot(const Call& call) {
  const bool reduces = call.collective == Collective::kReduce;
  const double message_bytes = reduces ? call.bytes : call.block_bytes();
  Ends root;
  // From `count` ranks of each of `hosts` hosts.
  const auto receive = [&](bool remote, int count, int hosts) {
    if (count * hosts == 0) return;
    const Message message = call.MessageOf(message_bytes, remote, Reduces::kNo, remote ? count : 1);
    Ends sender;
    const Stream left = Send(message, {0, 0}, sender);
    Receive(message, left, kAlways, root);
    // Those behind it have been waiting.
    root.receiving = std::max(root.receiving + (count * hosts - 1) * message.chunks * message.receiving_ns,
                              left.last + message.latency_ns);
  };
  const auto receive_from_last_host = [&] { receive(true, call.last_locals(), call.hosts() > 1 ? 1 : 0); };
  const auto receive_from_others = [&] { receive(true, call.locals(), std::max(0, call.hosts() - 2)); };
  // A reduction folds afterwards, in one step. It takes the last rank's first, a gather the second's.
  if (reduces) {
    receive_from_last_host();
    receive_from_others();
    receive(false, call.locals() - 1, 1);
  } else {
    receive(false, call.locals() - 1, 1);
    receive_from_others();
    receive_from_last_host();
  }
  const Message folded = call.MessageOf(message_bytes, false, Reduces::kYes);
  return Work(folded.chunks, reduces ? (call.size - 1) * folded.reducing_ns : folded.copying_ns, kAlways, root).last;
}

// From rank 0 to everyone, nearest first.
double FromRoot(const Call& call) {
  const Message local = call.MessageOf(call.block_bytes(), false, Reduces::kNo);
  const Message remote = call.MessageOf(call.block_bytes(), true, Reduces::kNo);
  const int locals = call.locals();
  const double local_ns = (locals - 1) * local.chunks * local.sending_ns;
  const double remote_ns = (call.size - locals) * remote.chunks * remote.sending_ns;
  return std::max({local.chunks * local.copying_ns, locals > 1 ? local_ns + local.latency_ns : 0,
                   call.crosses() ? local_ns + remote_ns + remote.latency_ns : 0});
}

}  // namespace prices
}  // namespace lockstep
