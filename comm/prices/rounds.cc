// Prices of algorithms of logarithmically many rounds, in each of which a rank sends one message: round by round, rank
// by rank.

#include <algorithm>
#include <vector>

#include "comm/prices/circulant.h"
#include "comm/prices/followed.h"
#include "comm/prices/forms.h"

namespace lockstep {
namespace prices {
namespace {

// Two ranks, or three: who has nothing else to do copies its input to the output and sends that, receives aside, and
// adds up at the end. Of three ranks, the middle one does more: it folds the first in, and gives the result back.
double RecursiveDoublingInOneRound(const Call& call) {
  const int plain_rank = call.size - 1;
  const Message message = call.Between(plain_rank - 1, plain_rank, call.bytes, Reduces::kNo);
  const Message reducing = call.Between(plain_rank - 1, plain_rank, call.bytes, Reduces::kYes);
  Ends plain;
  const Stream sent = Send(message, Work(message.chunks, message.copying_ns, {0, 0}, plain), plain);
  const auto add_up = [&](const Stream& arriving) {
    const Stream there = Receive(message, arriving, kAlways, plain);
    return Work(message.chunks, reducing.reducing_ns, there, plain).last;
  };
  if (call.size == 2) return add_up(sent);
  const Message folding = call.Between(0, 1, call.bytes, Reduces::kYes);
  const Message returning = call.Between(0, 1, call.bytes, Reduces::kNo);
  Ends middle, other;
  Stream sum = Receive(folding, Send(folding, {0, 0}, other), kAlways, middle);
  const Stream arriving = Send(message, sum, middle);
  sum = Receive(reducing, sent, sum, middle);
  return std::max(Receive(returning, Send(returning, sum, middle), kAlways, other).last, add_up(arriving));
}

// The ranks that take part in the exchanges of recursive doubling. Of the first 2 * extra ranks, each even one hands
// its input to its odd neighbour, and gets the result back.
struct Core {
  explicit Core(int size) : rounds(FloorLog2(size)), extra(size - (1 << rounds)) {}
  int rank_of(int number) const { return number < extra ? 2 * number + 1 : number + extra; }

  int rounds;
  int extra;
};

// All of recursive doubling.
double Follow(const Call& call, const Core& core, SharedLinks* links) {
  const int count = 1 << core.rounds;
  std::vector<Ends> ends(call.size);
  std::vector<Stream> sums(call.size);
  int round = 0;
  const auto send = [&](int source, int target, Reduces reduces) {
    const Message message = links->MessageOf(source, target, round, call.bytes, reduces);
    return Sent{message, Send(message, sums[source], ends[source])};
  };
  const auto receive = [&](const Sent& sent, const Stream& posted, int target) {
    sums[target] = Receive(sent.message, sent.left, posted, ends[target]);
  };
  for (int number = 0; number < core.extra; ++number) {
    receive(send(2 * number, 2 * number + 1, Reduces::kYes), kAlways, 2 * number + 1);
  }
  std::vector<Sent> sent(count);
  for (int bit = 1; bit < count; bit *= 2) {
    ++round;
    for (int i = 0; i < count; ++i) sent[i] = send(core.rank_of(i), core.rank_of(i ^ bit), Reduces::kYes);
    for (int i = 0; i < count; ++i) receive(sent[i ^ bit], sums[core.rank_of(i)], core.rank_of(i));
  }
  ++round;
  for (int number = 0; number < core.extra; ++number) {
    receive(send(2 * number + 1, 2 * number, Reduces::kNo), kAlways, 2 * number);
  }
  double latest = 0;
  for (const Stream& sum : sums) latest = std::max(latest, sum.last);
  return latest;
}

// All ranks as one group; `rounds(circulant, members)` goes through its rounds.
template <typename Rounds>
double FollowCirculant(const Call& call, bool copies, Rounds rounds) {
  return FollowSharing(call, [&](SharedLinks& links) {
    Circulant::Member begin;
    begin.copies = copies;
    std::vector<Circulant::Member> members(FollowedRanks(call), begin);
    Circulant circulant(
        call, call.size, call.block_bytes(),
        [&](int source, int target, int round, double bytes, Reduces reduces) {
          return links.MessageOf(source, target, round, bytes, reduces);
        },
        &members);
    rounds(&circulant, &members);
    double latest = 0;
    for (const Circulant::Member& member : members) latest = std::max(latest, member.ends.receiving);
    return latest;
  });
}

}  // namespace

double RecursiveDoubling(const Call& call) {
  const Core core(call.size);
  if (core.rounds == 1) return RecursiveDoublingInOneRound(call);
  return FollowSharing(call, [&](SharedLinks& links) { return Follow(call, core, &links); });
}

double HalvingDoubling(const Call& call) {
  return FollowCirculant(call, /*copies=*/true, [&](Circulant* circulant, std::vector<Circulant::Member>*) {
    circulant->Halve();
    if (call.collective == Collective::kAllReduce) circulant->Double();
  });
}

// In round k, the blocks of 2^k ranks to the rank 2^k further back; in the last round, those that are still wanted.
double BruckAllGather(const Call& call) {
  const Message own = call.MessageOf(call.block_bytes(), false, Reduces::kNo);
  return FollowCirculant(call, /*copies=*/false, [&](Circulant* circulant, std::vector<Circulant::Member>* members) {
    for (int distance = 1; distance < call.size; distance *= 2) {
      const int wanted = std::min(distance, call.size - distance);
      circulant->Round(-distance, 0, wanted, /*arriving=*/distance, Reduces::kNo);
      if (distance > 1) continue;
      for (Circulant::Member& member : *members) {
        member.blocks.Write(0, 1, Work(own.chunks, own.copying_ns, kAlways, member.ends));
      }
    }
  });
}

// In round k, all blocks with bit k in the distance that they have to go, packed into one message; in the end, all
// blocks to their places.
double BruckAllToAll(const Call& call) {
  const int followed = FollowedRanks(call);
  const double copy_ns = call.block_bytes() * call.network.copied_byte_ns;
  return FollowSharing(call, [&](SharedLinks& links) {
    std::vector<Ends> ends(followed, {kNever, 0});
    for (int bit = 1; bit < call.size; bit *= 2) {
      // Of the numbers below the size, those that have the bit. One alone has not moved before.
      const int going = call.size / (2 * bit) * bit + std::max(0, call.size % (2 * bit) - bit);
      std::vector<Sent> sent;
      for (int i = 0; i < followed; ++i) {
        double packed = 0;
        if (going > 1) packed = ends[i].receiving += going * copy_ns;
        const Message message =
            links.MessageOf(i, (i + bit) % call.size, /*round=*/bit, going * call.block_bytes(), Reduces::kNo);
        sent.push_back({message, Send(message, {packed, packed}, ends[i])});
      }
      for (int i = 0; i < followed; ++i) {
        const auto& [message, left] = sent[(i - bit + call.size) % call.size % followed];
        Receive(message, left, kAlways, ends[i]);
      }
    }
    double latest = 0;
    for (const Ends& of_rank : ends) latest = std::max(latest, of_rank.receiving);
    return latest + call.size * copy_ns;
  });
}

double Dissemination(const Call& call) {
  std::vector<Ends> ends(call.size);
  std::vector<Stream> heard(call.size);
  for (int distance = 1; distance < call.size; distance *= 2) {
    std::vector<Stream> left(call.size);
    for (int i = 0; i < call.size; ++i) {
      left[i] = Send(call.Between(i, (i + distance) % call.size, 0, Reduces::kNo), heard[i], ends[i]);
    }
    for (int i = 0; i < call.size; ++i) {
      const int source = (i - distance + call.size) % call.size;
      const Message message = call.Between(source, i, 0, Reduces::kNo);
      heard[i] = Receive(message, left[source], heard[i], ends[i]);
    }
  }
  double latest = 0;
  for (const Stream& stream : heard) latest = std::max(latest, stream.last);
  return latest;
}

}  // namespace prices
}  // namespace lockstep
