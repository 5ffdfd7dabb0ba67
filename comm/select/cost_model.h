// Cost model: what an algorithm costs on a described network, computed from its schedules. Pure.
//
// The model is the simulator's (comm/schedule/verify/simulator.h), but of a message's chunks it follows only the first and the last.
// That suffices: what the chunks between them wait for is linear in their number, and a linear function is largest at one of its
// ends.
//
// If the schedules of all ranks have at most CostModel::kStepsMax steps together, all ranks are followed, and the cost is the
// simulator's. For a larger world three smaller ones are followed, with blocks of the same size, and the cost is extrapolated as
// a + b log(ranks) + c (blocks that a rank moves).

#ifndef COMM_SELECT_COST_MODEL_H_
#define COMM_SELECT_COST_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/schedule/schedule.h"
#include "comm/topology/link_costs.h"

namespace lockstep {

// The steps of all ranks of one collective. Each comes after those that it waits for.
class StepGraph;

// For one world. Externally synchronised.
class CostModel {
 public:
  static constexpr int64_t kStepsMax = 1 << 13;

  CostModel(int size, const Network& network);
  ~CostModel();

  // Nanoseconds, with rank 0 as root. `bytes` is the size of the whole vector, as for Simulate(). Infinite if the algorithm
  // cannot execute the collective here: it has no such schedule, its ranks would have to share a host, or a rank would give more
  // in a barrier than a slot holds.
  //
  // Where the ranks of hosts are interleaved, nearly all messages of algorithms that know no hosts leave the host. Such algorithms
  // cost what they would with one rank on each host, over a link that is slower by the number of ranks which share it.
  //
  // COST  the first question about an algorithm follows its schedules; later ones are at least 30 times as fast
  double Ns(Collective collective, Algorithm algorithm, int64_t bytes);

  // Follows the schedules of all algorithms now: a millisecond with 8 ranks, 50 with 64, 200 with 4096.
  void Prepare();

  // Whether this model is for a world of this size on this network.
  bool IsOf(int size, const Network& network) const { return size == size_ && network == network_; }

 private:
  struct Facts {
    int size = 0;
    int blocks = 1;    // of the vector
    double moved = 0;  // blocks, by the rank that moves the most
  };
  struct World {
    Facts facts;
    std::unique_ptr<StepGraph> graph;
  };
  struct Followed {
    Facts self;
    std::vector<World> worlds;  // the model's own, or three smaller ones
  };

  const Followed& Follow(Collective collective, Algorithm algorithm, Network network);

  const int size_;
  const Network network_;
  std::map<std::pair<Collective, Algorithm>, Followed> followed_;
};

}  // namespace lockstep

#endif  // COMM_SELECT_COST_MODEL_H_
