// The model's replicas, kept in step: a thin C++ dressing of Lockstep's reducer, as an embedder would write it.

#ifndef EXAMPLES_FASHION_MNIST_AVERAGER_H_
#define EXAMPLES_FASHION_MNIST_AVERAGER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
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
//   averager.BeginBackward(Averager::Sync::kYes, {});
//   model.Backward([&](size_t index) { averager.MarkReady(index); });
//   averager.EndBackward();     the parameters' gradients are now the averages over all ranks
class Averager {
 public:
  // Steps a parameter with its average, of as many elements.
  using OptimizerStep = std::function<void(size_t index, const float* average)>;

  struct Options {
    int64_t bucket_bytes = 0;                 // 0: Lockstep's default
    bool overlap = true;                      // false: communicate after the backward pass, for comparison
    lockstep_hook hook = LOCKSTEP_HOOK_NONE;  // LOCKSTEP_HOOK_CALLBACK: two_phase_hook.h
    bool find_unused = false;                 // backward passes leave parameters out, each rank others
    bool static_graph = false;                // each marks the same parameters as often as the first one
    bool bf16_gradients = false;              // they are rounded to bf16 when they are marked; averages are f32
    // Null: none. Otherwise called for each parameter that some rank used as soon as its average is there, on a thread
    // of Lockstep's, for one after the other, while the backward pass goes on. It is over when EndBackward() returns.
    OptimizerStep optimizer_step;
  };

  enum class Sync { kNo, kYes };

  // The world and the parameters must outlive it; none of the three may be moved.
  static absl::StatusOr<std::unique_ptr<Averager>> Create(World* world, std::vector<Parameter>* parameters,
                                                          const Options& options);

  // Gives every rank the values of rank 0.
  absl::Status BroadcastParameters();

  // Without sync the gradients only accumulate. `unused`, with find_unused: the parameters that will not be marked.
  absl::Status BeginBackward(Sync sync, const std::vector<size_t>& unused);
  // An error is kept for EndBackward(): the step's communication is completed all the same, for the other ranks' sake.
  void MarkReady(size_t index);
  // Where this rank has no gradient of a parameter and another has, it has the average afterwards, too: but with an
  // optimizer_step, which is given it.
  absl::Status EndBackward();

  size_t buckets() const { return lockstep_reducer_bucket_count(reducer_.get()); }
  // Of all backward passes so far: communication that ran behind them, and that held up what came after.
  double hidden_ms() const { return hidden_ms_; }
  double exposed_ms() const { return exposed_ms_; }

 private:
  struct Destroy {
    void operator()(lockstep_reducer* reducer) const { lockstep_reducer_destroy(reducer); }
  };

  Averager(std::vector<Parameter>* parameters, const Options& options);
  absl::Status CreateReducer(World* world);
  // A lockstep_optimizer_step.
  static lockstep_error* StepBucket(void* averager, const lockstep_reduced_bucket* bucket);
  absl::Status FetchMissing();

  std::vector<Parameter>& parameters_;
  const Options options_;
  std::vector<std::vector<uint16_t>> bf16_gradients_;  // by parameter; none without the option
  std::vector<float> widened_;                         // of one parameter
  absl::Status mark_error_;                            // the first of this backward
  bool synchronized_ = false;                          // this backward, or the last one
  double hidden_ms_ = 0;
  double exposed_ms_ = 0;
  std::unique_ptr<lockstep_reducer, Destroy> reducer_;  // behind what its thread uses: it ends first
};

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_AVERAGER_H_
