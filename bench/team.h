// Team: small values that the ranks of a benchmark tell each other, outside what is measured.
//
// Every rank makes the same calls in the same order.

#ifndef BENCH_TEAM_H_
#define BENCH_TEAM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace lockstep {
namespace bench {

class Team {
 public:
  // Borrows the communicator.
  explicit Team(Communicator* communicator) : communicator_(communicator) {}

  Communicator* communicator() const { return communicator_; }
  Rank rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  bool leads() const { return rank() == Rank(0); }

  absl::Status Barrier() const;
  absl::StatusOr<double> Largest(double value) const;
  absl::StatusOr<uint64_t> Sum(uint64_t value) const;
  // Rank 0's value; that of the others does not matter.
  absl::StatusOr<int64_t> FromLeader(int64_t value) const;

 private:
  Communicator* communicator_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_TEAM_H_
