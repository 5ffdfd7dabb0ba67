// Cost model: what an algorithm costs on a described network, read off its schedules. Pure.
//
// The model is the simulator's (comm/schedule/verify/simulator.h), but a message is two numbers instead of all its chunks: when its
// first chunk is there, and its last. The chunks between them wait for what is linear in their number, and of linear functions
// one of the ends is the largest.
//
// Where the schedules of all ranks have at most CostModel::kStepsMax steps together, all ranks are followed, and the cost is the
// simulator's. Of larger worlds three smaller ones are followed, with blocks as large, and the cost is continued as
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

// The steps of all ranks of one collective, in an order in which each comes after what it waits for.
class StepGraph;

// Of one world. Externally synchronised.
class CostModel {
 public:
  static constexpr int64_t kStepsMax = 1 << 13;

  CostModel(int size, const Network& network);
  ~CostModel();

  // Nanoseconds, with rank 0 as root. `bytes` is the size of the whole vector, as for Simulate(). Infinite for an algorithm
  // that cannot carry out the collective here: it is for another, its ranks would have to share a host, or more would be given
  // in a barrier than a slot holds.
  //
  // Where the ranks of hosts are interleaved, algorithms that know no hosts cost what they would with a rank on each host, and
  // links as slow as those of all a host's ranks together are for one of them: nearly all their messages leave the host.
  //
  // Keeps what it has worked out of an algorithm: the next question about it is 30 times as fast and more.
  double Ns(Collective collective, Algorithm algorithm, int64_t bytes);

  // Works out all of that now: a millisecond with 8 ranks, 50 with 64, 200 with 4096.
  void Prepare();

  // Whether this is the model of such a world.
  bool IsOf(int size, const Network& network) const { return size == size_ && network == network_; }

 private:
  struct Facts {
    int size = 0;
    int blocks = 1;    // of the vector
    double moved = 0;  // blocks, by the rank that moves the most of some
  };
  struct World {
    Facts facts;
    std::unique_ptr<StepGraph> graph;
  };
  struct Followed {
    Facts self;
    std::vector<World> worlds;  // one, that of the model, or three
  };

  const Followed& Follow(Collective collective, Algorithm algorithm, Network network);

  const int size_;
  const Network network_;
  std::map<std::pair<Collective, Algorithm>, Followed> followed_;
};

}  // namespace lockstep

#endif  // COMM_SELECT_COST_MODEL_H_
