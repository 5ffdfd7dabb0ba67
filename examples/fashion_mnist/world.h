// The processes that train together: a thin C++ dressing of Lockstep's communicator, as an embedder would write it.

#ifndef EXAMPLES_FASHION_MNIST_WORLD_H_
#define EXAMPLES_FASHION_MNIST_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "capi/lockstep.h"

namespace fashion_mnist {

// Takes over the error and frees it; OK for NULL.
absl::Status TakeStatus(lockstep_error* error);

// All ranks call the same methods in the same order. Used by one thread.
class World {
 public:
  // A world of one, or the one that the environment describes (LOCKSTEP_*, set by lockstep-run, or another launcher's).
  // `transport` as in lockstep_communicator_options.
  static absl::StatusOr<std::unique_ptr<World>> Join(bool alone, const std::string& transport);

  int rank() const { return lockstep_communicator_rank(communicator_.get()); }
  int size() const { return lockstep_communicator_size(communicator_.get()); }
  lockstep_communicator* communicator() { return communicator_.get(); }

  // Over all ranks.
  absl::StatusOr<int64_t> Sum(int64_t value);
  absl::StatusOr<double> Mean(double value);

  // FAILED_PRECONDITION, on every rank, that names the ranks whose value differs from rank 0's.
  absl::Status CheckEqual(uint64_t value);

 private:
  struct Destroy {
    void operator()(lockstep_communicator* communicator) const { lockstep_communicator_destroy(communicator); }
  };

  explicit World(lockstep_communicator* communicator) : communicator_(communicator) {}
  absl::Status AllReduce(void* scalar, lockstep_dtype dtype, lockstep_reduce_op op);

  const std::unique_ptr<lockstep_communicator, Destroy> communicator_;
};

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_WORLD_H_
