#include "comm/prices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "comm/streams.h"

namespace lockstep {
namespace prices {
namespace {

// The price of one collective of a given size on a given network.
class Price {
 public:
  Price(Collective collective, int size, int64_t bytes, const Network& network)
      : collective_(collective), size_(size), bytes_(static_cast<double>(bytes)), network_(network) {
    // One rank on each host is like one host, with the other link.
    flat_ = size <= network.ranks_per_host || network.ranks_per_host == 1;
    local_size_ = size <= network.ranks_per_host ? size : network.ranks_per_host;
  }

  double Ring() const;
  double Chain() const;
  double ChainReduce() const;
  double ChainAllReduce() const;
  double Direct() const;
  double TwoShot() const;
  double ToRoot() const;
  double FromRoot() const;
  double RecursiveDoubling() const;
  double RecursiveDoublingInOneRound() const;
  double BinomialBroadcast() const;
  double BinomialReduce() const;
  double TreeBroadcast(int locals, int hosts) const;
  double BinomialGather() const;
  double BinomialScatter() const;
  double ScatterAllGather() const;
  double HalvingDoubling() const;
  double BruckAllGather() const;
  double BruckAllToAll() const;
  double TwoLevelAllReduce() const;
  double TwoLevelBroadcast() const;
  double TwoLevelAllGather() const;
  double TwoLevelReduceScatter() const;
  double Dissemination() const;

 private:
  enum class Reduces { kNo, kYes };

  bool crosses() const { return size_ > network_.ranks_per_host; }
  int hosts() const { return network_.HostOf(size_ - 1) + 1; }
  Message MessageOf(double bytes, bool remote, Reduces reduces, double sharers = 1) const;
  // Between ranks that are `distance` apart, as a power of two is in a world of powers of two.
  Message At(int distance, double bytes, Reduces reduces, int sharers = 1) const {
    const bool remote = crosses() && IsFar(distance, IsPowerOfTwo(network_.ranks_per_host));
    return MessageOf(bytes, remote, reduces, remote ? sharers : 1);
  }
  // Whether messages over the distance leave their hosts: all of them from a host's size on, where the numbers fit
  // together; elsewhere, enough of them to wait for from a quarter of that on.
  bool IsFar(int distance, bool regular) const {
    return regular ? distance >= network_.ranks_per_host : 4 * distance > network_.ranks_per_host;
  }
  Message ToEveryone(double bytes, Reduces reduces) const;
  Message Around(int distance, int crossing, double bytes, Reduces reduces) const;
  int LongestLocal() const;
  double SplitNs() const;
  // What `grow(count, largest child)` makes of a binomial tree of all ranks, from what it makes of full subtrees of 2^k
  // ranks, which it finds in `full`, and of the largest child's: `leaf` is what one rank is.
  template <typename T, typename Grow>
  static T OfTree(T leaf, int size, std::array<T, 32>* full, Grow grow);
  void ShareWithEveryone(double bytes, Symmetric* direct) const;
  Stream Along(const Stream& begin, int hops, int crossings, Reduces reduces) const;
  double RingOf(bool remote, int reducing_rounds, int copying_rounds) const;
  double RingOfHosts(int reducing_rounds, int copying_rounds) const;

  const Collective collective_;
  const int size_;
  const double bytes_;
  const Network& network_;
  bool flat_;
  int local_size_;
};

template <typename T, typename Grow>
T Price::OfTree(T leaf, int size, std::array<T, 32>* full, Grow grow) {
  (*full)[0] = leaf;
  for (int k = 1; (1 << k) < size; ++k) (*full)[k] = grow(1 << k, (*full)[k - 1]);
  // A tree is 2^k ranks and the rest, which is the largest child's subtree; so is the rest, in turn.
  std::array<int, 32> counts;
  int levels = 0;
  for (int count = size; count > 1; count -= 1 << (CeilLog2(count) - 1)) counts[levels++] = count;
  T tree = leaf;
  while (levels > 0) tree = grow(counts[--levels], tree);
  return tree;
}

Message Price::MessageOf(double bytes, bool remote, Reduces reduces, double sharers) const {
  const LinkCosts& link = remote ? network_.remote : network_.local;
  Message message;
  message.chunks = std::max(1.0, std::ceil(bytes / static_cast<double>(network_.chunk_bytes)));
  const double chunk_bytes = bytes / message.chunks;
  message.receiving_ns = link.message_ns + chunk_bytes * link.byte_ns;
  message.sending_ns = link.message_ns + chunk_bytes * link.byte_ns * sharers;
  message.reducing_ns = reduces == Reduces::kYes ? chunk_bytes * network_.reduced_byte_ns : 0;
  message.copying_ns = chunk_bytes * network_.copied_byte_ns;
  message.latency_ns = link.latency_ns;
  return message;
}

double Price::Ring() const {
  const int reducing_rounds = collective_ == Collective::kAllGather ? 0 : size_ - 1;
  const int copying_rounds = collective_ == Collective::kReduceScatter ? 0 : size_ - 1;
  const double of_one_link = RingOf(flat_ && crosses(), reducing_rounds, copying_rounds);
  // A slower link inside the hosts holds up the ring, too.
  return flat_ ? of_one_link : std::max(of_one_link, RingOfHosts(reducing_rounds, copying_rounds));
}

double Price::RingOf(bool remote, int reducing_rounds, int copying_rounds) const {
  const Message copied = MessageOf(bytes_ / size_, remote, Reduces::kNo);
  Symmetric ring;
  if (collective_ == Collective::kAllGather) {
    ring.Exchange(copied);
    ring.Copy(copied);
    ring.Exchange(copied, copying_rounds - 1);
  } else {
    ring.Exchange(MessageOf(bytes_ / size_, remote, Reduces::kYes), reducing_rounds);
    ring.Exchange(copied, copying_rounds);
  }
  return ring.ns();
}

// A ring of which every ranks_per_host-th link is slow. The longest chain of events begins at a slow link; round by
// round it follows the ring to the next link, as long as latency is what keeps that waiting, or stays at a slow link
// that is never idle. It is longest when it stays all the time, or as rarely as it can, or in one of the two phases.
double Price::RingOfHosts(int reducing_rounds, int copying_rounds) const {
  const int cycle = network_.ranks_per_host;
  struct Phase {
    Message slow, fast;
    double Stay(int rounds) const { return rounds * slow.chunks * slow.spacing_ns(); }
    // The first of the hops comes `behind` links behind a slow one.
    double Follow(int behind, int hops, int cycle) const {
      const int slow_hops = (behind + hops) / cycle - behind / cycle;
      return slow_hops * slow.hop_ns() + (hops - slow_hops) * fast.hop_ns();
    }
  };
  const auto phase = [&](Reduces reduces) {
    return Phase{MessageOf(bytes_ / size_, true, reduces), MessageOf(bytes_ / size_, false, reduces)};
  };
  const Phase first = phase(reducing_rounds > 0 ? Reduces::kYes : Reduces::kNo), second = phase(Reduces::kNo);
  // The first round begins the chain.
  const int in_first = (reducing_rounds > 0 ? reducing_rounds : copying_rounds) - 1;
  const int in_second = reducing_rounds > 0 ? copying_rounds : 0;
  // What the first stay finds there beside.
  const double copy_ns = collective_ == Collective::kAllGather ? bytes_ / size_ * network_.copied_byte_ns : 0;
  // It stays in the first phase before the second: a reduction makes the link the slower.
  const auto following = [&](int hops) {
    const int stays = in_first + in_second - hops;
    const int stays_in_first = std::min(stays, in_first), hops_in_first = in_first - stays_in_first;
    return (stays > 0 ? copy_ns : 0) + first.Stay(stays_in_first) + first.Follow(0, hops_in_first, cycle) +
           second.Follow(hops_in_first, hops - hops_in_first, cycle) + second.Stay(stays - stays_in_first);
  };
  const int all = in_first + in_second;
  const double longest = std::max({following(0), following(in_second), following(in_second / cycle * cycle),
                                   following(all / cycle * cycle), following(all)});
  return first.slow.hop_ns() + longest + (first.slow.chunks - 1) * first.slow.spacing_ns();
}

// From rank 0 (a broadcast), or rank 1 (a reduction by ring), to the rank before.
double Price::Chain() const {
  const Reduces reduces = collective_ == Collective::kReduce ? Reduces::kYes : Reduces::kNo;
  const int crossings = reduces == Reduces::kYes && hosts() > 1 ? std::min(hosts(), size_ - 1) : hosts() - 1;
  const double last = Along({0, 0}, size_ - 1, crossings, reduces).last;
  // The root of a broadcast copies its own, meanwhile.
  return reduces == Reduces::kYes ? last : std::max(last, bytes_ * network_.copied_byte_ns);
}

Stream Price::Along(const Stream& begin, int hops, int crossings, Reduces reduces) const {
  const Stream across = Pass(MessageOf(bytes_, true, reduces), begin, crossings);
  return Pass(MessageOf(bytes_, false, reduces), across, hops - crossings);
}

// From rank 0 to the last, folding, and the result to the root.
double Price::ChainReduce() const {
  const Stream sum = Along({0, 0}, size_ - 1, hosts() - 1, Reduces::kYes);
  return Pass(MessageOf(bytes_, hosts() > 1, Reduces::kNo), sum, 1).last;
}

// There and back again. The last rank but one has to be done with its sum before the result comes by; those before it
// are, by then.
double Price::ChainAllReduce() const {
  const Stream sum = Along({0, 0}, size_ - 1, hosts() - 1, Reduces::kYes);
  if (size_ == 2) return Pass(MessageOf(bytes_, hosts() > 1, Reduces::kNo), sum, 1).last;
  const bool last_is_remote = hosts() > 1 && network_.HostOf(size_ - 2) != network_.HostOf(size_ - 1);
  Ends last, before;
  before.receiving = Along({0, 0}, size_ - 2, hosts() - 1 - last_is_remote, Reduces::kYes).last;
  const Message turn = MessageOf(bytes_, last_is_remote, Reduces::kNo);
  const Stream result = Receive(turn, Send(turn, sum, last), kAlways, before);
  return Along(result, size_ - 2, hosts() - 1 - last_is_remote, Reduces::kNo).last;
}

// Everyone to everyone, one after the other, and what they make of it.
double Price::Direct() const {
  const bool whole = collective_ == Collective::kAllReduce;
  const double message_bytes = whole ? bytes_ : bytes_ / size_;
  if (size_ == 2 && collective_ == Collective::kReduceScatter) {
    Symmetric pair;
    pair.Exchange(ToEveryone(message_bytes, Reduces::kYes));
    return pair.ns();
  }
  Symmetric direct;
  ShareWithEveryone(message_bytes, &direct);
  HasReduction(collective_) ? direct.Reduce(ToEveryone(message_bytes, Reduces::kYes), size_ - 1)
                            : direct.Copy(ToEveryone(message_bytes, Reduces::kNo));
  return direct.ns();
}

double Price::TwoShot() const {
  const Message reducing = ToEveryone(bytes_ / size_, Reduces::kYes);
  Symmetric direct;
  if (size_ == 2) {
    direct.Exchange(reducing);
  } else {
    ShareWithEveryone(bytes_ / size_, &direct);
    direct.Reduce(reducing, size_ - 1);
  }
  ShareWithEveryone(bytes_ / size_, &direct);
  return direct.ns();
}

void Price::ShareWithEveryone(double bytes, Symmetric* direct) const {
  const Message message = ToEveryone(bytes, Reduces::kNo);
  direct->Share(message, size_ - 1);
  // The ranks of a host come to the same receiver at the same time, and the last of them waits for the others.
  if (!flat_) direct->Wait((local_size_ - 1) * message.chunks * message.receiving_ns);
}

// A message of each rank to all others. On hosts of several ranks they do not cross at the same time, but keep the
// host's link busy all the time together.
Message Price::ToEveryone(double bytes, Reduces reduces) const {
  const double sharers = static_cast<double>(local_size_) * (size_ - local_size_) / (size_ - 1);
  return MessageOf(bytes, crosses(), reduces, flat_ ? 1 : sharers);
}

// From everyone to rank 0: nearest first as seen from it, to either side.
double Price::ToRoot() const {
  const bool reduces = collective_ == Collective::kReduce;
  const double message_bytes = reduces ? bytes_ : bytes_ / size_;
  const Message local = MessageOf(message_bytes, false, Reduces::kYes);
  const Message remote = MessageOf(message_bytes, true, Reduces::kYes, local_size_);
  // A reduction folds afterwards, in one step. It takes the last rank's first, a gather the second's.
  Ends root;
  const auto receive = [&](Message message, int count) {
    message.reducing_ns = 0;
    if (count == 0) return;
    Ends sender;
    const Stream left = Send(message, {0, 0}, sender);
    Receive(message, left, kAlways, root);
    // Those behind it have been waiting.
    root.receiving =
        std::max(root.receiving + (count - 1) * message.chunks * message.receiving_ns, left.last + message.latency_ns);
  };
  const int local_senders = local_size_ - 1;
  if (!reduces) receive(local, local_senders);
  receive(remote, size_ - local_size_);
  if (reduces) receive(local, local_senders);
  const double chunk_ns = reduces ? (size_ - 1) * local.reducing_ns : local.copying_ns;
  return Work(local.chunks, chunk_ns, kAlways, root).last;
}

// From rank 0 to everyone, nearest first.
double Price::FromRoot() const {
  const Message local = MessageOf(bytes_ / size_, false, Reduces::kNo);
  const Message remote = MessageOf(bytes_ / size_, true, Reduces::kNo);
  const double local_ns = (local_size_ - 1) * local.chunks * local.sending_ns;
  const double remote_ns = (size_ - local_size_) * remote.chunks * remote.sending_ns;
  return std::max({local.chunks * local.copying_ns, local_size_ > 1 ? local_ns + local.latency_ns : 0,
                   size_ > local_size_ ? local_ns + remote_ns + remote.latency_ns : 0});
}

// With ranks beyond a power of two, the first of them are paired: one hands its input to the other, which takes part in
// the exchanges, and gets the result back.
double Price::RecursiveDoubling() const {
  const int rounds = FloorLog2(size_);
  const int extra = size_ - (1 << rounds);
  const auto round_message = [&](int round) {
    const bool regular = extra == 0 && IsPowerOfTwo(network_.ranks_per_host);
    const bool remote = crosses() && IsFar(1 << round, regular);
    return MessageOf(bytes_, remote, Reduces::kYes, remote ? std::min(local_size_, 1 << round) : 1);
  };
  if (rounds == 1) return RecursiveDoublingInOneRound();
  if (extra == 0) {
    Symmetric exchange;
    for (int round = 0; round < rounds; ++round) exchange.Exchange(round_message(round));
    return exchange.ns();
  }
  // The three longest chains of events. The result reaches a rank that began with a pair's sum...
  const Message folding = At(1, bytes_, Reduces::kYes), returning = At(1, bytes_, Reduces::kNo);
  // How many rounds a chain can go through paired ranks alone, at the beginning and at the end of it.
  const int paired_rounds = (extra & (extra - 1)) == 0 ? FloorLog2(extra) : FloorLog2(extra) + 1;
  double longest = 0;
  for (const bool begins_paired : {true, false}) {
    for (const bool ends_paired : {true, false}) {
      Ends ends;
      Stream data;
      if (begins_paired) {
        Ends other;
        data = Receive(folding, Send(folding, data, other), kAlways, ends);
      }
      for (int round = 0; round < rounds; ++round) {
        const Message message = round_message(round);
        const Stream left = Send(message, data, ends);
        // ... or waits for nobody else in the rounds that lead out of the pairs.
        const bool stays = begins_paired && ends_paired && round >= paired_rounds;
        data = Receive(message, stays ? kAlways : left, data, ends);
      }
      if (ends_paired) {
        Ends other;
        data = Receive(returning, Send(returning, data, ends), kAlways, other);
      }
      longest = std::max(longest, data.last);
    }
  }
  return longest;
}

// Two ranks, or three: who has nothing else to do copies its input to the output and sends that, receives aside, and
// adds up at the end. Of three ranks, the middle one does more: it folds the first in, and gives the result back.
double Price::RecursiveDoublingInOneRound() const {
  const Message folding = At(1, bytes_, Reduces::kYes), copying = At(1, bytes_, Reduces::kNo);
  const Message message = At(size_ - 1, bytes_, Reduces::kNo), reducing = At(size_ - 1, bytes_, Reduces::kYes);
  Ends plain;
  const Stream sent = Send(message, Work(message.chunks, message.copying_ns, {0, 0}, plain), plain);
  const auto add_up = [&](const Stream& arriving) {
    const Stream there = Receive(message, arriving, kAlways, plain);
    return Work(message.chunks, reducing.reducing_ns, there, plain).last;
  };
  if (size_ == 2) return add_up(sent);
  Ends middle, other;
  Stream sum = Receive(folding, Send(folding, {0, 0}, other), kAlways, middle);
  const Stream arriving = Send(message, sum, middle);
  sum = Receive(reducing, sent, sum, middle);
  return std::max(Receive(copying, Send(copying, sum, middle), kAlways, other).last, add_up(arriving));
}

// What is beyond a host in the tree is between hosts; exactly, where every host has a power of two.
double Price::BinomialBroadcast() const {
  if (flat_) return crosses() ? TreeBroadcast(1, size_) : TreeBroadcast(size_, 1);
  return TreeBroadcast(local_size_, hosts());
}

// From the root of a tree of hosts, each of which is the root of a tree inside its host. The time until the last rank
// has everything is a maximum of sums with the times at which a root has the first and the last chunk, so a probe of
// each gives all.
double Price::TreeBroadcast(int locals, int hosts) const {
  struct Subtree {
    double after_first = 0;
    double after_last = 0;
    double End(const Stream& data) const { return std::max(data.first + after_first, data.last + after_last); }
  };
  const auto probe = [](auto end) { return Subtree{end(Stream{0, kNever}), end(Stream{kNever, 0})}; };
  // The largest child has the longest way to go: it is served first.
  const auto serve = [](const Message& message, const Stream& data, int count, const Subtree& largest,
                        const std::array<Subtree, 32>& full, Ends& ends) {
    double latest = data.last;
    for (int k = CeilLog2(count) - 1; k >= 0; --k) {
      Ends child;
      const Stream there = Receive(message, Send(message, data, ends), kAlways, child);
      latest = std::max(latest, (k == CeilLog2(count) - 1 ? largest : full[k]).End(there));
    }
    return latest;
  };
  const Message local = MessageOf(bytes_, false, Reduces::kNo), remote = MessageOf(bytes_, true, Reduces::kNo);
  std::array<Subtree, 32> inside, outside;  // of 2^k ranks, of 2^k hosts
  Subtree largest_inside = {kNever, 0};     // the largest child of a host's first rank
  const Subtree host = OfTree(Subtree{kNever, 0}, locals, &inside, [&](int count, const Subtree& largest) {
    largest_inside = largest;
    return probe([&](const Stream& data) {
      Ends ends;
      return serve(local, data, count, largest, inside, ends);
    });
  });
  const Subtree all = OfTree(host, hosts, &outside, [&](int count, const Subtree& largest) {
    return probe([&](const Stream& data) {
      Ends ends;
      const double latest = serve(remote, data, count, largest, outside, ends);
      return std::max(latest, serve(local, data, locals, largest_inside, inside, ends));
    });
  });
  // The root copies its own, meanwhile.
  return std::max(all.End({0, 0}), bytes_ * network_.copied_byte_ns);
}

// The mirror image: the smallest child first.
double Price::BinomialReduce() const {
  std::array<Stream, 32> full;  // the sum of 2^k ranks, when it is there
  const auto grow = [&](int count, const Stream& largest) {
    Ends ends;
    Stream sum;
    const int children = CeilLog2(count);
    for (int k = 0; k < children; ++k) {
      const Message message = At(1 << k, bytes_, Reduces::kYes);
      Ends child;
      const Stream left = Send(message, k + 1 == children ? largest : full[k], child);
      sum = Receive(message, left, sum, ends);
    }
    return sum;
  };
  return OfTree(Stream{0, 0}, size_, &full, grow).last;
}

double Price::HalvingDoubling() const {
  const bool doubles = collective_ == Collective::kAllReduce;
  double longest = 0;
  // On hosts of several ranks, the chain of messages leaves its host once on the way through the short distances.
  for (int halving = LongestLocal(); halving > 0; halving /= 2) {
    for (int doubling = doubles ? LongestLocal() : 1; doubling > 0; doubling /= 2) {
      Ends ends;
      Circulant member(size_, bytes_ / size_, {0, 0}, {0, 0}, &ends);
      member.Halve([&](int distance, double bytes) { return Around(distance, halving, bytes, Reduces::kYes); }, true);
      if (doubles) {
        member.Double([&](int distance, double bytes) { return Around(distance, doubling, bytes, Reduces::kNo); });
      }
      longest = std::max(longest, ends.receiving);
    }
  }
  return longest + SplitNs();
}

// On the way, one range passes the end of the vector and is two messages; among three ranks, all are single blocks.
double Price::SplitNs() const { return size_ <= 3 ? 0 : (crosses() ? network_.remote : network_.local).message_ns; }

// In round k, the blocks of 2^k ranks to the rank 2^k further back; in the last round, those that are still wanted.
double Price::BruckAllGather() const {
  const double block_bytes = bytes_ / size_;
  double longest = 0;
  for (int crossing = LongestLocal(); crossing > 0; crossing /= 2) {
    Ends ends;
    std::array<Stream, 32> there;  // by round; first the rank's own block
    there[0] = {0, 0};
    int round = 0;
    for (int distance = 1; distance < size_; distance *= 2, ++round) {
      // Several blocks wait for the round that brought the last of them.
      const int wanted = std::min(distance, size_ - distance), awaited = CeilLog2(wanted);
      const double whole = std::max(there[0].last, there[awaited].last);
      const Message message = Around(distance, crossing, wanted * block_bytes, Reduces::kNo);
      const Stream left = Send(message, awaited == 0 ? there[0] : Stream{whole, whole}, ends);
      there[round + 1] = Receive(message, left, kAlways, ends);
      if (round == 0) there[0] = Work(message.chunks, message.copying_ns, kAlways, ends);
    }
    longest = std::max(longest, ends.receiving);
  }
  return longest + SplitNs();
}

// In round k, all blocks with bit k in the distance that they have to go, packed into one message; in the end, all
// blocks to their places.
double Price::BruckAllToAll() const {
  const double block_bytes = bytes_ / size_, copy_ns = block_bytes * network_.copied_byte_ns;
  double longest = 0;
  for (int crossing = LongestLocal(); crossing > 0; crossing /= 2) {
    Ends ends;
    ends.receiving = 0;
    for (int bit = 1; bit < size_; bit *= 2) {
      // Of the numbers below the size, those that have the bit. One alone has not moved before.
      const int going = size_ / (2 * bit) * bit + std::max(0, size_ % (2 * bit) - bit);
      if (going > 1) ends.receiving += going * copy_ns;
      const double packed = going > 1 ? ends.receiving : 0;
      const Message message = Around(bit, crossing, going * block_bytes, Reduces::kNo);
      Receive(message, Send(message, {packed, packed}, ends), kAlways, ends);
    }
    longest = std::max(longest, ends.receiving + size_ * copy_ns);
  }
  return longest;
}

// A message to the rank `distance` further round, on a chain of messages that leaves its host with the messages over
// long distances, and with that over the distance `crossing`: where only the last ranks of a host send to the next one.
Message Price::Around(int distance, int crossing, double bytes, Reduces reduces) const {
  const bool regular = IsPowerOfTwo(size_) && IsPowerOfTwo(network_.ranks_per_host);
  const bool remote = crosses() && (flat_ || distance == crossing || IsFar(distance, regular));
  return MessageOf(bytes, remote, reduces, remote ? std::min(distance, local_size_) : 1);
}

// The longest of the distances below a host's size; 1 where there is nothing to choose.
int Price::LongestLocal() const { return flat_ ? 1 : 1 << (CeilLog2(network_.ranks_per_host) - 1); }

// The time until the root of a subtree has its blocks. A child sends when it has all of its own.
double Price::BinomialGather() const {
  const double block_bytes = bytes_ / size_;
  std::array<double, 32> full;  // of 2^k ranks
  const auto grow = [&](int count, double largest) {
    Ends ends;
    Work(1, block_bytes * network_.copied_byte_ns, {0, 0}, ends);
    const int children = CeilLog2(count);
    for (int k = 0; k < children; ++k) {
      const bool is_last = k + 1 == children;
      const int blocks = is_last ? count - (1 << k) : 1 << k;
      const double ready = is_last ? largest : full[k];
      const Message message = At(1 << k, blocks * block_bytes, Reduces::kNo);
      Ends child;
      Receive(message, Send(message, {ready, ready}, child), kAlways, ends);
    }
    return ends.receiving;
  };
  return OfTree(0.0, size_, &full, grow);
}

// The time from when the root of a subtree has its blocks until the last rank has its own.
double Price::BinomialScatter() const {
  const double block_bytes = bytes_ / size_;
  std::array<double, 32> full;
  const auto grow = [&](int count, double largest) {
    Ends ends;
    double latest = block_bytes * network_.copied_byte_ns;
    const int children = CeilLog2(count);
    for (int k = children - 1; k >= 0; --k) {
      const bool is_first = k + 1 == children;
      const int blocks = is_first ? count - (1 << k) : 1 << k;
      const Message message = At(1 << k, blocks * block_bytes, Reduces::kNo);
      Ends child;
      const Stream there = Receive(message, Send(message, {0, 0}, ends), kAlways, child);
      latest = std::max(latest, there.last + (is_first ? largest : full[k]));
    }
    return latest;
  };
  return OfTree(0.0, size_, &full, grow);
}

// The root sends the scatter's messages, then the ring's.
double Price::ScatterAllGather() const {
  const double copied = bytes_ * network_.copied_byte_ns;
  double scattered = 0;
  for (int count = size_; count > 1;) {
    const int distance = 1 << (CeilLog2(count) - 1);
    const Message message = At(distance, (count - distance) * (bytes_ / size_), Reduces::kNo);
    scattered += message.chunks * message.sending_ns;
    count = distance;
  }
  // Blocks follow each other along the ring from the root on, or wait for each other at the first slow link.
  const Message slow = MessageOf(bytes_ / size_, crosses(), Reduces::kNo);
  const Message fast = MessageOf(bytes_ / size_, false, Reduces::kNo);
  const int to_slow = flat_ ? 1 : network_.ranks_per_host;
  const int slow_hops = flat_ ? size_ - 1 : hosts() - 1;
  const double hops = slow_hops * slow.hop_ns() + (size_ - 1 - slow_hops) * fast.hop_ns();
  const double stays =
      (to_slow - 1) * fast.hop_ns() + slow.hop_ns() + (size_ - 1 - to_slow) * slow.chunks * slow.sending_ns;
  return std::max(copied, scattered + std::max(hops, stays) + (slow.chunks - 1) * slow.sending_ns);
}

// Each slice of the vector has an owner on each host, who folds the local terms of it, goes through halving and
// doubling with the other owners, and hands out what has become of it. A slice is handed over in the pieces that the
// first round between hosts touches: what it sends off, and what it keeps.
double Price::TwoLevelAllReduce() const {
  const int locals = local_size_, owners = hosts();
  const double slice_bytes = bytes_ / locals, block_bytes = slice_bytes / owners;
  const int sent_blocks = owners / 2;
  std::array<double, 2> piece_bytes = {sent_blocks * block_bytes, slice_bytes - sent_blocks * block_bytes};
  const int first_piece = sent_blocks == 0 ? 1 : 0;
  const auto local = [&](int piece, Reduces reduces) { return MessageOf(piece_bytes[piece], false, reduces); };

  Ends ends;
  std::array<Stream, 2> terms = {Stream{0, 0}, Stream{0, 0}};
  if (locals > 1) {
    // By symmetry, what this rank sends is what it is sent.
    std::vector<std::array<Stream, 2>> left(locals);
    for (int distance = 1; distance < locals; ++distance) {
      for (int piece = first_piece; piece < 2; ++piece) {
        left[distance][piece] = Send(local(piece, Reduces::kNo), {0, 0}, ends);
      }
    }
    for (int piece = first_piece; piece < 2; ++piece) {
      const Message reducing = local(piece, Reduces::kYes);
      if (locals == 2) {
        terms[piece] = Receive(reducing, left[1][piece], kAlways, ends);
        continue;
      }
      for (int distance = 1; distance < locals; ++distance) {
        Receive(local(piece, Reduces::kNo), left[distance][piece], kAlways, ends);
      }
      terms[piece] = Work(reducing.chunks, (locals - 1) * reducing.reducing_ns, kAlways, ends);
    }
  }
  Circulant owner(owners, block_bytes, terms[0], terms[1], &ends);
  const auto remote = [&](Reduces reduces) {
    return [this, reduces, locals](int, double bytes) { return MessageOf(bytes, true, reduces, locals); };
  };
  owner.Halve(remote(Reduces::kYes), /*copies=*/locals == 1);
  owner.Double(remote(Reduces::kNo));
  // What was kept is handed out first.
  const std::array<Stream, 2> results = {owner.arrived(), owners == 1 ? terms[1] : owner.kept()};
  for (int distance = 1; distance < locals; ++distance) {
    for (int piece = 1; piece >= first_piece; --piece) {
      const Message message = local(piece, Reduces::kNo);
      Receive(message, Send(message, results[piece], ends), kAlways, ends);
    }
  }
  return ends.receiving + (owners == 1 ? 0 : SplitNs());
}

// A tree of the hosts' first ranks, each of which is the root of a tree of its host's.
double Price::TwoLevelBroadcast() const { return TreeBroadcast(local_size_, hosts()); }

// Each rank's block goes to its counterpart on every host, who hands it on there. The ranks of a host do all of that at
// the same time, and hand it on to each other in the same order.
double Price::TwoLevelAllGather() const {
  const Message local = MessageOf(bytes_ / size_, false, Reduces::kNo);
  if (hosts() == 1) {
    Symmetric member;
    member.Share(local, size_ - 1);
    member.Copy(local);
    return member.ns();
  }
  const Message remote = MessageOf(bytes_ / size_, true, Reduces::kNo, local_size_);
  if (local_size_ == 1) {
    Symmetric member;
    member.Copy(remote);
    member.Share(remote, size_ - 1);
    return member.ns();
  }
  // In list order, a rank takes what its neighbours hand on of one host before it looks for the next one's.
  const double sent = (hosts() - 1) * remote.chunks * remote.sending_ns;
  const double exchanged = sent + (local_size_ - 1) * local.chunks * local.sending_ns + local.latency_ns;
  const double arrived = remote.chunks * remote.sending_ns + remote.latency_ns;
  const double turn = remote.chunks * remote.receiving_ns + local.hop_ns();
  return std::max(exchanged + local.chunks * local.copying_ns, arrived) + (hosts() - 1) * local_size_ * turn;
}

// A rank takes its terms in rank order, and the first of them comes last: those that came before it are waiting then.
// On hosts of several ranks, each rank first folds its host's terms of one rank of every other host.
double Price::TwoLevelReduceScatter() const {
  const Message local = MessageOf(bytes_ / size_, false, Reduces::kYes);
  const Message remote = MessageOf(bytes_ / size_, true, Reduces::kYes, local_size_);
  const double reducing_ns = local.chunks * local.reducing_ns;
  if (flat_) {
    const Message& message = crosses() ? remote : local;
    return (2 * size_ - 3) * message.chunks * message.receiving_ns + message.latency_ns + (size_ - 1) * reducing_ns;
  }
  // In list order, the ranks of a host take turns: each sends its sum before it sends its other terms.
  const Message alone = MessageOf(bytes_ / size_, true, Reduces::kYes);
  const int turns = (hosts() - 1) * local_size_;
  const int full_hosts = size_ / local_size_;
  const double turn = alone.chunks * alone.sending_ns + local.sending_ns + local.latency_ns +
                      (local_size_ - 1) * (reducing_ns + local.chunks * local.receiving_ns) / 2;
  return turns * turn + remote.latency_ns + remote.chunks * remote.receiving_ns + full_hosts * reducing_ns;
}

// A chain of messages, each twice as far as the one before; it may begin anywhere on a host.
double Price::Dissemination() const {
  double longest = 0;
  for (int begin = 0; begin < (flat_ ? 1 : network_.ranks_per_host); ++begin) {
    double ns = 0;
    for (int distance = 1, place = begin; distance < size_; place += distance, distance *= 2) {
      const bool remote = crosses() && network_.HostOf(place) != network_.HostOf(place + distance);
      const LinkCosts& link = remote ? network_.remote : network_.local;
      ns += link.message_ns + link.latency_ns;
    }
    longest = std::max(longest, ns);
  }
  return longest;
}

}  // namespace
}  // namespace prices

double PriceNs(Collective collective, Algorithm algorithm, int size, int64_t bytes, const Network& network) {
  LOCKSTEP_CHECK(size >= 1 && bytes >= 0) << size << " ranks, " << bytes << " bytes";
  const Algorithms known = AlgorithmsFor(collective);
  if (std::find(known.begin(), known.end(), algorithm) == known.end()) return std::numeric_limits<double>::infinity();
  if (size == 1) return collective == Collective::kBarrier ? 0 : static_cast<double>(bytes) * network.copied_byte_ns;
  const prices::Price price(collective, size, bytes, network);
  switch (algorithm) {
    case Algorithm::kRing:
      return collective == Collective::kReduce ? price.Chain() : price.Ring();
    case Algorithm::kRecursiveDoubling:
      return price.RecursiveDoubling();
    case Algorithm::kBinomial:
      return collective == Collective::kReduce    ? price.BinomialReduce()
             : collective == Collective::kGather  ? price.BinomialGather()
             : collective == Collective::kScatter ? price.BinomialScatter()
                                                  : price.BinomialBroadcast();
    case Algorithm::kDissemination:
      return price.Dissemination();
    case Algorithm::kOneShot:
      return collective == Collective::kReduce ? price.ToRoot() : price.Direct();
    case Algorithm::kTwoShot:
      return price.TwoShot();
    case Algorithm::kChain:
      return collective == Collective::kAllReduce ? price.ChainAllReduce()
             : collective == Collective::kReduce  ? price.ChainReduce()
                                                  : price.Chain();
    case Algorithm::kHalvingDoubling:
      return price.HalvingDoubling();
    case Algorithm::kScatterAllGather:
      return price.ScatterAllGather();
    case Algorithm::kBruck:
      return collective == Collective::kAllGather ? price.BruckAllGather() : price.BruckAllToAll();
    case Algorithm::kTwoLevel:
      return collective == Collective::kAllReduce       ? price.TwoLevelAllReduce()
             : collective == Collective::kBroadcast     ? price.TwoLevelBroadcast()
             : collective == Collective::kReduceScatter ? price.TwoLevelReduceScatter()
                                                        : price.TwoLevelAllGather();
    case Algorithm::kPairwise:
      return price.Direct();
    case Algorithm::kLinear:
      return collective == Collective::kGather ? price.ToRoot() : price.FromRoot();
    default:
      return std::numeric_limits<double>::infinity();
  }
}

}  // namespace lockstep
