// The model's replicas, kept in step: a thin C++ dressing of Lockstep's reducer, as an embedder would write it.

#ifndef EXAMPLES_FASHION_MNIST_AVERAGER_H_
#define EXAMPLES_FASHION_MNIST_AVERAGER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "capi/lockstep.h"
#include "examples/fashion_mnist/model.h"
#include "examples/fashion_mnist/world.h"

namespace fashion_mnist {

// Used by one thread. In each step:
//
//   averager.BeginBackward();
//   model.Backward([&](size_t index) { averager.MarkReady(index); });
//   averager.EndBackward();     the parameters' gradients are now the averages over all ranks
class Averager {
 public:
  struct Options {
    int64_t bucket_bytes = 0;  // 0: Lockstep's default
    bool overlap = true;       // false: communicate after the backward pass, for comparison
  };

  // The world and the parameters must outlive it; neither may be moved.
  static absl::StatusOr<std::unique_ptr<Averager>> Create(World* world, std::vector<Parameter>* parameters,
                                                          const Options& options);

  // Gives every rank the values of rank 0.
  absl::Status BroadcastParameters();

  absl::Status BeginBackward();
  // An error is kept for EndBackward(): the step's communication is completed all the same, for the other ranks' sake.
  void MarkReady(size_t index);
  absl::Status EndBackward();

  size_t buckets() const { return lockstep_reducer_bucket_count(reducer_.get()); }
  // Mean over the steps so far: communication that ran behind the backward pass, and that held up the step.
  double hidden_ms_per_step() const { return steps_ > 0 ? hidden_ms_ / steps_ : 0; }
  double exposed_ms_per_step() const { return steps_ > 0 ? exposed_ms_ / steps_ : 0; }

 private:
  struct Destroy {
    void operator()(lockstep_reducer* reducer) const { lockstep_reducer_destroy(reducer); }
  };

  Averager(lockstep_reducer* reducer, std::vector<Parameter>* parameters)
      : reducer_(reducer), parameters_(*parameters) {}

  const std::unique_ptr<lockstep_reducer, Destroy> reducer_;
  std::vector<Parameter>& parameters_;
  absl::Status mark_error_;  // the first of this backward
  int64_t steps_ = 0;
  double hidden_ms_ = 0;
  double exposed_ms_ = 0;
};

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_AVERAGER_H_
