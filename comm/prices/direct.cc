// Prices of direct algorithms: straight from whoever has a block to whoever wants it.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "comm/prices/forms.h"

namespace lockstep {
namespace prices {
namespace {

// Everyone sends one message to everyone else, the nearest further on first, and takes what arrives in the same order.
// A rank of a host sends to its later neighbours, then to other hosts, and at last to the neighbours before it. Its
// host's ranks begin with other hosts one after the other, and share the link the while.
class Everyone {
 public:
  // Rank i of each host may begin at begins[i].
  Everyone(const Call& call, double message_bytes, const std::vector<double>& begins)
      : call_(call),
        local_(call.MessageOf(message_bytes, false, Reduces::kNo)),
        remote_(call.MessageOf(message_bytes, true, Reduces::kNo)),
        full_(SendsOf(call.locals(), begins)),
        last_(SendsOf(call.last_locals(), begins)) {}

  // When `rank`, whose end is busy until `begin`, has received everything.
  double Received(int rank, double begin) const {
    double received = begin;
    for (int distance = 1; distance < call_.size; ++distance) {
      const int source = (rank - distance + call_.size) % call_.size;
      const bool from_other_host = call_.network.HostOf(source) != call_.network.HostOf(rank);
      const Message& message = from_other_host ? remote_ : local_;
      const double arrived = Sent(source, distance) + message.latency_ns;
      received = std::max(arrived, received + message.chunks * message.receiving_ns);
    }
    return received;
  }

 private:
  // When the messages of one host's ranks have left, by rank: those to later neighbours take their time from `begins`
  // on, and those to earlier ones from the last of `between_hosts` on.
  struct Sends {
    std::vector<double> begins;
    std::vector<std::vector<double>> between_hosts;
  };

  double local_ns() const { return local_.chunks * local_.sending_ns; }

  Sends SendsOf(int ranks, const std::vector<double>& begins) const {
    Sends sends{{begins.begin(), begins.begin() + ranks}, std::vector<std::vector<double>>(ranks)};
    const size_t count = call_.size - ranks;
    const double own_ns = remote_.chunks * call_.network.remote.message_ns;  // before the link, for each message
    const double link_ns = remote_.chunks * remote_.receiving_ns - own_ns;   // alone on the link
    // Of those on their own, the time at which each is on the link; of those on the link, how much it will have done
    // for each of its messages when it is done with this one's.
    using Queue = std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>>;
    Queue off_link, on_link;
    for (int i = 0; i < ranks; ++i) off_link.push({begins[i] + (ranks - 1 - i) * local_ns() + own_ns, i});
    double now = 0, done = 0;
    while (!off_link.empty() || !on_link.empty()) {
      const double sharers = static_cast<double>(on_link.size());
      const double left = on_link.empty() ? kEver : now + (on_link.top().first - done) * sharers;
      if (!off_link.empty() && off_link.top().first <= left) {
        const auto [joins, rank] = off_link.top();
        off_link.pop();
        if (!on_link.empty()) done += (joins - now) / sharers;
        now = joins;
        on_link.push({done + link_ns, rank});
        continue;
      }
      const auto [done_then, rank] = on_link.top();
      on_link.pop();
      done = done_then;
      now = left;
      sends.between_hosts[rank].push_back(now);
      if (sends.between_hosts[rank].size() < count) off_link.push({now + own_ns, rank});
    }
    return sends;
  }

  // When the message of `rank` over the distance has left.
  double Sent(int rank, int distance) const {
    const Sends& sends = call_.network.HostOf(rank) + 1 == call_.hosts() ? last_ : full_;
    const std::vector<double>& between_hosts = sends.between_hosts[rank % call_.locals()];
    const int later = static_cast<int>(sends.begins.size()) - 1 - rank % call_.locals();
    const int crossing = static_cast<int>(between_hosts.size());
    if (distance <= later) return sends.begins[rank % call_.locals()] + distance * local_ns();
    if (distance <= later + crossing) return between_hosts[distance - later - 1];
    return between_hosts.back() + (distance - later - crossing) * local_ns();
  }

  static constexpr double kEver = std::numeric_limits<double>::infinity();

  const Call& call_;
  const Message local_, remote_;
  const Sends full_, last_;
};

// When the ranks of the first host, or the last if it has fewer, have received everything: by rank of a host.
std::vector<double> ReceivedByAll(const Call& call, double message_bytes, const std::vector<double>& begins) {
  const Everyone everyone(call, message_bytes, begins);
  std::vector<double> received(call.locals());
  for (int i = 0; i < call.locals(); ++i) received[i] = everyone.Received(i, begins[i]);
  if (call.last_locals() == call.locals()) return received;
  for (int i = 0; i < call.last_locals(); ++i) {
    const int rank = (call.hosts() - 1) * call.locals() + i;
    received[i] = std::max(received[i], everyone.Received(rank, begins[i]));
  }
  return received;
}

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
  const std::vector<double> received = ReceivedByAll(call, message_bytes, std::vector<double>(call.locals(), 0));
  const double work_ns =
      HasReduction(call.collective) ? (call.size - 1) * call.network.reduced_byte_ns : call.network.copied_byte_ns;
  return *std::max_element(received.begin(), received.end()) + message_bytes * work_ns;
}

double TwoShot(const Call& call) {
  if (call.flat()) return TwoShotOfOneLink(call);
  std::vector<double> folded = ReceivedByAll(call, call.block_bytes(), std::vector<double>(call.locals(), 0));
  for (double& time : folded) time += (call.size - 1) * call.block_bytes() * call.network.reduced_byte_ns;
  const std::vector<double> received = ReceivedByAll(call, call.block_bytes(), folded);
  return *std::max_element(received.begin(), received.end());
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
