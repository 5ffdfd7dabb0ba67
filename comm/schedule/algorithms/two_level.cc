// Two-level algorithms: ranks of one host talk to each other directly, and every byte enters a host no more often than it
// must.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "comm/schedule/algorithms/algorithms.h"
#include "comm/schedule/algorithms/circulant.h"

namespace lockstep::algorithms {
namespace {

// The hosts of a world.
struct Hosts {
  explicit Hosts(const Place& place);

  int count() const { return static_cast<int>(ranks.size()); }
  const std::vector<int>& mine() const { return ranks[own_host]; }
  // The rank of `host` that handles `rank`'s blocks there. On `rank`'s own host: `rank`.
  int DeputyOf(int rank, int host) const { return ranks[host][local_of[rank] % ranks[host].size()]; }
  // The inverse: the ranks of `host` whose deputy on the own host is its rank number `local`, in order.
  std::vector<int> RanksWithDeputy(int host, int local) const;
  // The host `distance` places further on, from the own one round all hosts; the same for the ranks of the own host. Negative
  // distances go back. |distance| is at most the number of hosts or ranks.
  int HostFurtherOn(int distance) const { return (own_host + distance + count()) % count(); }
  int LocalFurtherOn(int distance) const {
    const int locals = static_cast<int>(mine().size());
    return mine()[(own_local + distance + locals) % locals];
  }

  // The ranks of each host, in order; hosts in the order of their lowest rank.
  std::vector<std::vector<int>> ranks;
  // Of each rank: its host, and its number among the host's ranks.
  std::vector<int> host_of;
  std::vector<int> local_of;
  // Where this rank is.
  int own_host = 0;
  int own_local = 0;
  int ranks_min = 0;  // on any host
};

Hosts::Hosts(const Place& place) {
  const std::vector<int32_t>& labels = place.topology->host_of_rank;
  std::map<int32_t, int> host_of_label;
  for (int rank = 0; rank < place.size; ++rank) {
    const int next = count();
    const int host = host_of_label.try_emplace(labels.empty() ? 0 : labels[rank], next).first->second;
    if (host == next) ranks.emplace_back();
    host_of.push_back(host);
    local_of.push_back(static_cast<int>(ranks[host].size()));
    ranks[host].push_back(rank);
  }
  own_host = host_of[place.rank];
  own_local = local_of[place.rank];
  ranks_min = place.size;
  for (const std::vector<int>& of_host : ranks) ranks_min = std::min(ranks_min, static_cast<int>(of_host.size()));
}

std::vector<int> Hosts::RanksWithDeputy(int host, int local) const {
  std::vector<int> served;
  for (size_t i = local; i < ranks[host].size(); i += mine().size()) served.push_back(ranks[host][i]);
  return served;
}

// The all-reduce cuts the vector into slices, one for each rank of the smallest host. On every host, local rank s owns
// slice s; ranks beyond the last slice own none, and only hand in their terms and get the results. The owners of a slice,
// one on each host, are a group among which it is reduced: all slices at once, each over its own connections. So a host
// with V bytes to reduce sends and receives 2 (H-1)/H V between H hosts, however many ranks it has, which is the least
// there can be.
//
//   inside the host   each rank hands in its terms of each slice to the owner, who folds them in local rank order
//   between hosts     the owners halve and double (circulant.h)
//   inside the host   each owner hands out its slice
//
// A slice has a block for each host. It is handed over in the pieces that the first and the last round between hosts send
// and keep, so that these rounds follow the handing over chunk by chunk.
class AllReduce {
 public:
  explicit AllReduce(const Place& place) : hosts_(place), locals_(static_cast<int>(hosts_.mine().size())) {}

  Schedule Build() {
    HandInTerms();
    const int self = hosts_.own_local;
    if (self < hosts_.ranks_min) {
      const Group owners = Owners(self);
      FoldTerms(owners);
      HalveInOutput(owners, locals_ == 1 ? Window::kInput : Window::kOutput, &steps_);
      DoubleInOutput(owners, &steps_);
    }
    HandOutResults();
    if (locals_ == 1 && hosts_.count() == 1) steps_.Copy(Input(0), Output(0));
    const int scratch = self < hosts_.ranks_min && locals_ > 2 ? (locals_ - 1) * hosts_.count() : 0;
    return steps_.Finish(/*blocks=*/hosts_.ranks_min * hosts_.count(), scratch);
  }

 private:
  Group Owners(int slice) const {
    Group group;
    for (const std::vector<int>& of_host : hosts_.ranks) group.ranks.push_back(of_host[slice]);
    group.self = hosts_.own_host;
    group.first_block = slice * hosts_.count();
    return group;
  }

  // A slice as it is handed over: first what the first round between hosts sends off, then what it keeps.
  std::vector<Piece> PiecesOf(const Group& owners) const {
    if (owners.size() == 1) return Pieces(owners, 0, 1);
    const Halving first = Halvings(owners.size()).front();
    std::vector<Piece> pieces;
    for (const auto& [begin, end] : {std::make_pair(first.to, first.from), std::make_pair(0, first.from - first.to),
                                     std::make_pair(first.from - first.to, first.to)}) {
      for (const Piece& piece : Pieces(owners, begin, end)) pieces.push_back(piece);
    }
    return pieces;
  }

  static Operand In(Window window, const Piece& piece) { return {window, piece.block, piece.blocks}; }

  void HandInTerms() {
    for (int distance = 1; distance < locals_; ++distance) {
      const int owner = (hosts_.own_local + distance) % locals_;
      if (owner >= hosts_.ranks_min) continue;
      for (const Piece& piece : PiecesOf(Owners(owner))) {
        steps_.Send(In(Window::kInput, piece), hosts_.mine()[owner]);
      }
    }
  }

  void FoldTerms(const Group& owners) {
    for (const Piece& piece : PiecesOf(owners)) {
      if (locals_ == 2) {
        steps_.ReceiveReduce(hosts_.mine()[1 - hosts_.own_local], In(Window::kInput, piece),
                             In(Window::kOutput, piece));
        continue;
      }
      if (locals_ == 1) continue;
      std::vector<Operand> terms(locals_);
      terms[hosts_.own_local] = In(Window::kInput, piece);
      for (int distance = 1; distance < locals_; ++distance) {
        const int local = (hosts_.own_local + locals_ - distance) % locals_;
        const int begin = (distance - 1) * hosts_.count() + piece.block - owners.first_block;
        terms[local] = {Window::kScratch, begin, piece.blocks, piece.block};
        steps_.Receive(hosts_.mine()[local], terms[local]);
      }
      steps_.ReduceMany(std::move(terms), In(Window::kOutput, piece));
    }
  }

  void HandOutResults() {
    steps_.NextRound();
    const int self = hosts_.own_local;
    for (int distance = 1; distance < locals_; ++distance) {
      const int target = (self + distance) % locals_, owner = (self + locals_ - distance) % locals_;
      // What was kept is complete before what comes back from other hosts.
      const auto backwards = [](std::vector<Piece> pieces) {
        std::reverse(pieces.begin(), pieces.end());
        return pieces;
      };
      if (self < hosts_.ranks_min) {
        for (const Piece& piece : backwards(PiecesOf(Owners(self)))) {
          steps_.Send(In(Window::kOutput, piece), hosts_.mine()[target]);
        }
      }
      if (owner < hosts_.ranks_min) {
        for (const Piece& piece : backwards(PiecesOf(Owners(owner)))) {
          steps_.Receive(hosts_.mine()[owner], In(Window::kOutput, piece));
        }
      }
    }
  }

  const Hosts hosts_;
  const int locals_;  // ranks on this host
  OrderedSteps steps_;
};

// Adds a binomial broadcast among `ranks`, from number `root` among them, to the steps of number `self`. Its rounds begin
// with number `round`.
void Broadcast(const std::vector<int>& ranks, int root, int self, Operand value, int round, OrderedSteps* steps) {
  const int size = static_cast<int>(ranks.size());
  const int relative = (self - root + size) % size;
  const auto rank_of = [&](int other) { return ranks[(other + root) % size]; };
  if (relative != 0) steps->Receive(rank_of(relative & (relative - 1)), value);
  int distance = 1;
  while (distance < size && (relative & distance) == 0) distance *= 2;
  steps->InRound(round + DoublingRounds(size) - DoublingRounds(distance));
  for (distance /= 2; distance > 0; distance /= 2, steps->NextRound()) {
    if (relative + distance < size) steps->Send(value, rank_of(relative + distance));
  }
}

}  // namespace

Schedule TwoLevelAllReduce(const Place& place) { return AllReduce(place).Build(); }

// Each host has one rank that gets the vector from another host: the root on its own, the lowest elsewhere.
Schedule TwoLevelBroadcast(const Place& place) {
  const Hosts hosts(place);
  const bool is_root = place.rank == place.root;
  const Operand value = is_root ? Input(0) : Output(0);
  const int root_host = hosts.host_of[place.root];
  const auto head_of = [&](int host) { return host == root_host ? hosts.local_of[place.root] : 0; };
  OrderedSteps steps;
  if (hosts.own_local == head_of(hosts.own_host)) {
    std::vector<int> heads;
    for (int host = 0; host < hosts.count(); ++host) heads.push_back(hosts.ranks[host][head_of(host)]);
    Broadcast(heads, root_host, hosts.own_host, value, /*round=*/0, &steps);
  }
  Broadcast(hosts.mine(), head_of(hosts.own_host), hosts.own_local, value, DoublingRounds(hosts.count()), &steps);
  if (is_root) steps.Copy(Input(0), Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/0);
}

// A rank sends its block to every rank of its host and to one of every other, which hands it on inside: so each block
// reaches a host once, and the ranks of a host share the work. Nobody waits for what a neighbour hands on before what
// others wait for is handed on.
Schedule TwoLevelAllGather(const Place& place) {
  const Hosts hosts(place);
  const int locals = static_cast<int>(hosts.mine().size());
  OrderedSteps steps;
  for (int distance = 1; distance < hosts.count(); ++distance) {
    steps.Send(Input(place.rank), hosts.DeputyOf(place.rank, hosts.HostFurtherOn(distance)));
  }
  for (int distance = 1; distance < locals; ++distance) {
    steps.Send(Input(place.rank), hosts.LocalFurtherOn(distance));
    const int from = hosts.LocalFurtherOn(-distance);
    steps.Receive(from, Output(from));
  }
  steps.Copy(Input(place.rank), Output(place.rank));
  steps.NextRound();
  for (int distance = 1; distance < hosts.count(); ++distance) {
    for (int rank : hosts.RanksWithDeputy(hosts.HostFurtherOn(-distance), hosts.own_local)) {
      steps.Receive(rank, Output(rank));
      for (int local = 1; local < locals; ++local) steps.Send(Output(rank), hosts.LocalFurtherOn(local));
    }
  }
  for (int distance = 1; distance < hosts.count(); ++distance) {
    for (int local = 1; local < locals; ++local) {
      const int from = hosts.LocalFurtherOn(-local);
      for (int rank : hosts.RanksWithDeputy(hosts.HostFurtherOn(-distance), hosts.local_of[from])) {
        steps.Receive(from, Output(rank));
      }
    }
  }
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
}

// The same backwards: on every host, one rank folds the host's terms of a block, and sends the sum to the block's owner.
// The owner folds the sums of the other hosts and the terms of its own. Other hosts' blocks come first, since they have
// further to go; all terms are on their way before the first sum is made.
Schedule TwoLevelReduceScatter(const Place& place) {
  const Hosts hosts(place);
  const int locals = static_cast<int>(hosts.mine().size());
  OrderedSteps steps;
  int scratch_blocks = 0;
  const auto receive = [&](int peer, int block) {
    const Operand term = Scratch(scratch_blocks++, block);
    steps.Receive(peer, term);
    return term;
  };
  // This host's, in rank order.
  const auto host_terms = [&](int block) {
    std::vector<Operand> terms(locals);
    terms[hosts.own_local] = Input(block);
    for (int distance = 1; distance < locals; ++distance) {
      const int from = hosts.LocalFurtherOn(-distance);
      terms[hosts.local_of[from]] = receive(from, block);
    }
    return terms;
  };
  for (int distance = 1; distance < hosts.count(); ++distance) {
    for (int local = 1; local < locals; ++local) {
      const int deputy = hosts.LocalFurtherOn(local);
      for (int owner : hosts.RanksWithDeputy(hosts.HostFurtherOn(distance), hosts.local_of[deputy])) {
        steps.Send(Input(owner), deputy);
      }
    }
  }
  for (int distance = 1; distance < locals; ++distance) {
    const int owner = hosts.LocalFurtherOn(distance);
    steps.Send(Input(owner), owner);
  }
  for (int distance = 1; distance < hosts.count(); ++distance) {
    steps.NextRound();
    for (int owner : hosts.RanksWithDeputy(hosts.HostFurtherOn(distance), hosts.own_local)) {
      std::vector<Operand> terms = host_terms(owner);
      // The sum takes the place of a term that came from elsewhere; a rank alone sends its own as it is.
      const Operand sum = hosts.own_local == 0 ? terms.back() : terms.front();
      if (locals > 1) steps.ReduceMany(std::move(terms), sum);
      steps.Send(sum, owner);
    }
  }
  const std::vector<Operand> own_terms = host_terms(place.rank);
  std::vector<Operand> sums(hosts.count());
  for (int distance = 1; distance < hosts.count(); ++distance) {
    const int host = hosts.HostFurtherOn(-distance);
    sums[host] = receive(hosts.DeputyOf(place.rank, host), place.rank);
  }
  std::vector<Operand> terms(sums.begin(), sums.begin() + hosts.own_host);
  terms.insert(terms.end(), own_terms.begin(), own_terms.end());
  terms.insert(terms.end(), sums.begin() + hosts.own_host + 1, sums.end());
  steps.ReduceMany(std::move(terms), Output(place.rank));
  return steps.Finish(/*blocks=*/place.size, scratch_blocks);
}

}  // namespace lockstep::algorithms
