// Prices of two-level algorithms (comm/algorithms/two_level.cc) but the broadcast, which is a tree.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "comm/prices/circulant.h"
#include "comm/prices/followed.h"
#include "comm/prices/forms.h"

namespace lockstep {
namespace prices {
namespace {

// All-gather and reduce-scatter of blocks, rank by rank. Where all hosts are full, all ranks do alike and one is
// followed; elsewhere those of all hosts, or in a large world of the last, of the one before it, which hears from the last
// at last, and of the first, which stands for the others.
class BlocksOnHosts {
 public:
  explicit BlocksOnHosts(const Call& call)
      : call_(call),
        is_full_(call.last_locals() == call.locals()),
        local_(call.MessageOf(call.block_bytes(), false, Reduces::kNo)),
        remote_(call.MessageOf(call.block_bytes(), true, Reduces::kNo)),
        reducing_ns_(call.MessageOf(call.block_bytes(), false, Reduces::kYes).reducing_ns) {
    if (is_full_) {
      hosts_ = {0};
    } else if (call.size <= kFollowedMax || call.hosts() <= 3) {
      for (int host = 0; host < call.hosts(); ++host) hosts_.push_back(host);
    } else {
      hosts_ = {0, call.hosts() - 2, call.hosts() - 1};
    }
    for (int host : hosts_) ranks_.emplace_back(is_full_ ? 1 : RanksOf(host), Rank(call.hosts(), RanksOf(host)));
  }

  // Each rank's block goes to its deputy on every host, then to its neighbours. A deputy hands on what it has received.
  double AllGather() {
    ForEach([&](int host, int, Rank& rank) {
      for (int distance = 1; distance < call_.hosts(); ++distance) {
        rank.to_host[distance].push_back(Send(Remote(RanksOf(host)), {0, 0}, rank.ends));
      }
      SendToNeighbours(host, {0, 0}, rank);
    });
    ForEach([&](int host, int local, Rank& rank) {
      ReceiveFromNeighbours(host, local, rank);
      Work(local_.chunks, local_.copying_ns, {0, 0}, rank.ends);
      for (int distance = 1; distance < call_.hosts(); ++distance) {
        const int source = HostFrom(host, -distance);
        for (int i = local; i < RanksOf(source); i += RanksOf(host)) {
          SendToNeighbours(host, Receive(remote_, At(source, i).to_host[distance][0], kAlways, rank.ends), rank);
        }
      }
    });
    ForEach([&](int host, int local, Rank& rank) {
      for (int distance = 1; distance < call_.hosts(); ++distance) {
        const int source = HostFrom(host, -distance);
        for (int k = 1; k < RanksOf(host); ++k) {
          for (int i = Neighbour(host, local, -k); i < RanksOf(source); i += RanksOf(host)) {
            ReceiveFromNeighbour(host, local, k, rank);
          }
        }
      }
    });
    return latest();
  }

  // Each rank's terms go to the neighbours that fold them, then to the neighbours that own them. A deputy sends on the
  // sums that it makes.
  double ReduceScatter() {
    ForEach([&](int host, int local, Rank& rank) {
      for (int distance = 1; distance < call_.hosts(); ++distance) {
        const int target = HostFrom(host, distance);
        for (int k = 1; k < RanksOf(host); ++k) {
          for (int i = Neighbour(host, local, k); i < RanksOf(target); i += RanksOf(host)) {
            rank.to_neighbour[k].push_back(Send(local_, {0, 0}, rank.ends));
          }
        }
      }
      SendToNeighbours(host, {0, 0}, rank);
    });
    ForEach([&](int host, int local, Rank& rank) {
      const int neighbours = RanksOf(host) - 1;
      for (int distance = 1; distance < call_.hosts(); ++distance) {
        const int target = HostFrom(host, distance);
        for (int i = local; i < RanksOf(target); i += RanksOf(host)) {
          ReceiveFromNeighbours(host, local, rank);
          Stream sum;
          if (neighbours > 0) sum = Work(local_.chunks, neighbours * reducing_ns_, kAlways, rank.ends);
          const Message message = SumMessage(host, local, target);
          rank.to_host[distance].push_back(Send(message, sum, rank.ends));
        }
      }
      ReceiveFromNeighbours(host, local, rank);
    });
    ForEach([&](int host, int local, Rank& rank) {
      for (int distance = 1; distance < call_.hosts(); ++distance) {
        const int source = HostFrom(host, -distance);
        const size_t turn = local / RanksOf(source);
        const Rank& deputy = At(source, local % RanksOf(source));
        // Who stands for others may have less to send to the last host than they have to this one.
        int sent = distance;
        while (sent > 1 && turn >= deputy.to_host[sent].size()) --sent;
        Receive(remote_, deputy.to_host[sent][turn], kAlways, rank.ends);
      }
      Work(local_.chunks, (RanksOf(host) + call_.hosts() - 2) * reducing_ns_, kAlways, rank.ends);
    });
    return latest();
  }

 private:
  struct Rank {
    Rank(int hosts, int neighbours) : to_host(hosts), to_neighbour(neighbours), taken(neighbours) {}

    Ends ends;
    // By distance: when its messages have left, in order.
    std::vector<std::vector<Stream>> to_host, to_neighbour;
    std::vector<size_t> taken;  // of those to neighbours, how many have been received
  };

  int RanksOf(int host) const { return host + 1 == call_.hosts() ? call_.last_locals() : call_.locals(); }
  int HostFrom(int host, int distance) const { return (host + distance + call_.hosts()) % call_.hosts(); }
  int Neighbour(int host, int local, int distance) const { return (local + distance + RanksOf(host)) % RanksOf(host); }
  Message Remote(double sharers) const { return call_.MessageOf(call_.block_bytes(), true, Reduces::kNo, sharers); }

  // The sums that a host sends to another are a round. Of their deputies here, some may have one more than the others.
  Message SumMessage(int host, int local, int target) const {
    const int all = RanksOf(target) / RanksOf(host), one_more = RanksOf(target) % RanksOf(host);
    const double others = local < one_more ? static_cast<double>(all) / (all + 1) : 1;
    return Remote(one_more + (all > 0 ? (RanksOf(host) - one_more) * others : 0));
  }

  template <typename Do>
  void ForEach(Do action) {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      for (size_t local = 0; local < ranks_[i].size(); ++local) {
        action(hosts_[i], static_cast<int>(local), ranks_[i][local]);
      }
    }
  }
  Rank& At(int host, int local) {
    const auto found = std::lower_bound(hosts_.begin(), hosts_.end(), host);
    const size_t followed = found != hosts_.end() && *found == host ? found - hosts_.begin() : 0;
    return ranks_[followed][local % ranks_[followed].size()];
  }

  void SendToNeighbours(int host, const Stream& ready, Rank& rank) {
    for (int k = 1; k < RanksOf(host); ++k) rank.to_neighbour[k].push_back(Send(local_, ready, rank.ends));
  }
  void ReceiveFromNeighbour(int host, int local, int distance, Rank& rank) {
    Rank& source = At(host, Neighbour(host, local, -distance));
    Receive(local_, source.to_neighbour[distance][source.taken[distance]++], kAlways, rank.ends);
  }
  void ReceiveFromNeighbours(int host, int local, Rank& rank) {
    for (int k = 1; k < RanksOf(host); ++k) ReceiveFromNeighbour(host, local, k, rank);
  }

  double latest() const {
    double latest = 0;
    for (const std::vector<Rank>& of_host : ranks_) {
      for (const Rank& rank : of_host) latest = std::max(latest, rank.ends.receiving);
    }
    return latest;
  }

  const Call& call_;
  const bool is_full_;  // all hosts are
  const Message local_, remote_;
  const double reducing_ns_;
  std::vector<int> hosts_;                // that are followed
  std::vector<std::vector<Rank>> ranks_;  // of each of these
};

// The all-reduce, host by host. Each slice of the vector has an owner on each host, who folds the local terms of it,
// goes through halving and doubling with the other owners, and hands out what has become of it. A slice is handed over
// in the pieces that the first round between hosts touches: what it sends off, and what it keeps.
class AllReduceOnHosts {
 public:
  AllReduceOnHosts(const Call& call, SharedLinks* links)
      : call_(call),
        links_(*links),
        owners_(call.last_locals()),
        block_bytes_(call.bytes / owners_ / call.hosts()),
        followed_(call.size <= kFollowedMax ? call.hosts() : 1),
        groups_(owners_, std::vector<Circulant::Member>(followed_)) {}

  double ns() {
    for (int host = 0; host < followed_; ++host) HandIn(host);
    for (int slice = 0; slice < owners_; ++slice) {
      Circulant circulant = CirculantOf(slice);
      circulant.Halve();
      circulant.Double();
    }
    double latest = 0;
    for (int host = 0; host < followed_; ++host) latest = std::max(latest, HandOut(host));
    return latest;
  }

 private:
  Circulant CirculantOf(int slice) {
    return Circulant(
        call_, call_.hosts(), block_bytes_,
        [this, slice](int source, int target, int round, double bytes, Reduces reduces) {
          // Where one host stands for all, its owners send at the same time.
          if (followed_ < call_.hosts()) return call_.MessageOf(bytes, /*remote=*/true, reduces, owners_);
          return links_.MessageOf(source * call_.locals() + slice, target * call_.locals() + slice, round, bytes,
                                  reduces);
        },
        &groups_[slice]);
  }
  int RanksOf(int host) const { return host + 1 == call_.hosts() ? call_.last_locals() : call_.locals(); }
  std::vector<Circulant::Piece> PiecesOf(int host) {
    const int hosts = call_.hosts(), kept = (hosts + 1) / 2, sent = hosts - kept;
    if (hosts == 1) return {{0, 1}};
    const Circulant circulant = CirculantOf(/*slice=*/0);
    std::vector<Circulant::Piece> all;
    for (const Circulant::Piece& range : {Circulant::Piece{kept, hosts}, {0, sent}, {sent, kept}}) {
      for (const Circulant::Piece& piece : circulant.Pieces(host, range.begin, range.end)) all.push_back(piece);
    }
    return all;
  }
  Message Local(const Circulant::Piece& piece, Reduces reduces) const {
    return call_.MessageOf((piece.end - piece.begin) * block_bytes_, false, reduces);
  }

  void HandIn(int host) {
    const int ranks = RanksOf(host);
    const std::vector<Circulant::Piece> pieces = PiecesOf(host);
    // By sender, by distance, by piece.
    std::vector<std::vector<std::vector<Stream>>> left(ranks, std::vector<std::vector<Stream>>(ranks));
    std::vector<Ends> ends(ranks);
    for (int sender = 0; sender < ranks; ++sender) {
      for (int distance = 1; distance < ranks; ++distance) {
        if ((sender + distance) % ranks >= owners_) continue;
        for (const Circulant::Piece& piece : pieces) {
          left[sender][distance].push_back(Send(Local(piece, Reduces::kNo), {0, 0}, ends[sender]));
        }
      }
    }
    for (int owner = 0; owner < owners_; ++owner) {
      Circulant::Member& member = groups_[owner][host];
      member.ends = ends[owner];
      member.copies = ranks == 1;
      for (size_t k = 0; k < pieces.size() && ranks > 1; ++k) {
        const Message plain = Local(pieces[k], Reduces::kNo), reducing = Local(pieces[k], Reduces::kYes);
        Stream sum;
        for (int distance = 1; distance < ranks; ++distance) {
          const Stream& term = left[(owner - distance + ranks) % ranks][distance][k];
          sum = Receive(ranks == 2 ? reducing : plain, term, kAlways, member.ends);
        }
        if (ranks > 2) sum = Work(reducing.chunks, (ranks - 1) * reducing.reducing_ns, kAlways, member.ends);
        member.blocks.Write(pieces[k].begin, pieces[k].end, sum);
      }
    }
  }

  // What was kept is handed out first.
  double HandOut(int host) {
    const int ranks = RanksOf(host);
    std::vector<Circulant::Piece> pieces = PiecesOf(host);
    std::reverse(pieces.begin(), pieces.end());
    // By owner, by distance, by piece.
    std::vector<std::vector<std::vector<Stream>>> left(owners_, std::vector<std::vector<Stream>>(ranks));
    for (int owner = 0; owner < owners_; ++owner) {
      Circulant::Member& member = groups_[owner][host];
      for (int distance = 1; distance < ranks; ++distance) {
        for (const Circulant::Piece& piece : pieces) {
          const Stream result = member.blocks.Readable(piece.begin, piece.end);
          left[owner][distance].push_back(Send(Local(piece, Reduces::kNo), result, member.ends));
        }
      }
    }
    double latest = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      Ends ends;
      if (rank < owners_) ends = groups_[rank][host].ends;
      for (int distance = 1; distance < ranks; ++distance) {
        const int owner = (rank - distance + ranks) % ranks;
        if (owner >= owners_) continue;
        for (size_t k = 0; k < pieces.size(); ++k) {
          Receive(Local(pieces[k], Reduces::kNo), left[owner][distance][k], kAlways, ends);
        }
      }
      latest = std::max(latest, ends.receiving);
    }
    return latest;
  }

  const Call& call_;
  SharedLinks& links_;
  const int owners_;  // on each host: as many as on the smallest
  const double block_bytes_;
  const int followed_;                                  // hosts
  std::vector<std::vector<Circulant::Member>> groups_;  // by slice, by host
};

}  // namespace

double TwoLevelAllReduce(const Call& call) {
  const auto follow = [&](SharedLinks& links) { return AllReduceOnHosts(call, &links).ns(); };
  if (call.size <= kFollowedMax) return FollowSharing(call, follow);
  // One host stands for all, whose owners share its link.
  SharedLinks unasked(call);
  return follow(unasked);
}

double TwoLevelAllGather(const Call& call) { return BlocksOnHosts(call).AllGather(); }

double TwoLevelReduceScatter(const Call& call) { return BlocksOnHosts(call).ReduceScatter(); }

}  // namespace prices
}  // namespace lockstep
