// Lockstep as this program uses it: thin C++ over capi/lockstep.h, as any framework would write it. This file and the
// options that train.cc fills are all there is between the two.

#ifndef EXAMPLES_FASHION_MNIST_REDUCER_H_
#define EXAMPLES_FASHION_MNIST_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>  // of LOCKSTEP_INIT
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/lockstep.h"
#include "examples/fashion_mnist/model.h"

namespace fashion_mnist {

// Ends the process. The other ranks learn of it: their calls fail with an error that names this rank.
[[noreturn]] inline void Fail(const std::string& message, int exit_status = EXIT_FAILURE) {
  std::fprintf(stderr, "train: %s\n", message.c_str());
  std::fflush(stdout);
  std::_Exit(exit_status);  // without destructors of what threads of Lockstep's may be using
}

inline void Require(lockstep_error* error) {
  if (error != nullptr) Fail(lockstep_error_message(error));
}

// A view of memory of the host. Borrows both the data and the shape.
inline lockstep_tensor View(void* data, lockstep_dtype dtype, const std::vector<int64_t>& shape) {
  lockstep_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.shape = shape.data();
  tensor.dimensions = static_cast<int32_t>(shape.size());
  tensor.device_kind = LOCKSTEP_HOST;
  return tensor;
}

// The processes that train together. All call the same methods in the same order.
class Communicator {
 public:
  // Who we are is in the environment: lockstep-run, or another launcher, has set it.
  explicit Communicator(const std::string& transport) {
    lockstep_communicator_options options;
    LOCKSTEP_INIT(options);
    options.transport = transport.c_str();
    lockstep_communicator* communicator = nullptr;
    Require(lockstep_communicator_create(&options, &communicator));
    communicator_.reset(communicator);
  }

  lockstep_communicator* get() const { return communicator_.get(); }
  int rank() const { return lockstep_communicator_rank(get()); }
  int size() const { return lockstep_communicator_size(get()); }

  // Over all ranks.
  double Sum(double value) const {
    const lockstep_tensor scalar = View(&value, LOCKSTEP_F64, {});
    Require(lockstep_all_reduce(get(), &scalar, &scalar, LOCKSTEP_SUM, nullptr, nullptr, nullptr));
    return value;
  }

 private:
  struct Destroy {
    void operator()(lockstep_communicator* communicator) const { lockstep_communicator_destroy(communicator); }
  };

  std::unique_ptr<lockstep_communicator, Destroy> communicator_;
};

// Averages the gradients of all ranks' replicas. In each step:
//
//   reducer.BeginBackward(true, {});
//   model.Backward([&](size_t index) { reducer.MarkReady(index); });
//   reducer.EndBackward();     the parameters' gradients are now the averages over all ranks
class Reducer {
 public:
  // Steps a parameter with its average. Runs on a thread of Lockstep's, one parameter after the other.
  using OptimizerStep = std::function<void(size_t index, const float* average)>;

  // With bf16_gradients, gradients are rounded to bf16 when they are marked, and averages are f32 all the same.
  // optimizer_step may be null. The communicator and the parameters must outlive the reducer.
  Reducer(const Communicator& communicator, std::vector<Parameter>* parameters, lockstep_reducer_options options,
          bool bf16_gradients, OptimizerStep optimizer_step)
      : parameters_(*parameters),
        communicator_(communicator.get()),
        find_unused_(options.find_unused_parameters != 0),
        step_(std::move(optimizer_step)) {
    std::vector<lockstep_parameter> table(parameters_.size());
    for (size_t i = 0; i < table.size(); ++i) {
      LOCKSTEP_INIT(table[i]);
      table[i].name = parameters_[i].name.c_str();
      table[i].shape = parameters_[i].shape.data();
      table[i].dimensions = static_cast<int32_t>(parameters_[i].shape.size());
      table[i].dtype = bf16_gradients ? LOCKSTEP_BF16 : LOCKSTEP_F32;
      table[i].device_kind = LOCKSTEP_HOST;
      if (bf16_gradients) bf16_gradients_.emplace_back(parameters_[i].gradient.size());
    }
    if (step_ != nullptr) {
      options.optimizer_step = StepBucket;
      options.optimizer_context = this;
    }
    // The optimizer steps f32 values. With the noop hook every rank trains for itself.
    replicas_ = table;
    for (lockstep_parameter& replica : replicas_) replica.dtype = LOCKSTEP_F32;
    if (options.hook != LOCKSTEP_HOOK_NOOP) {
      options.replicas = replicas_.data();
      options.replica_count = replicas_.size();
    }
    lockstep_reducer* reducer = nullptr;
    Require(lockstep_reducer_create(communicator.get(), table.data(), table.size(), &options, &reducer));
    reducer_.reset(reducer);
  }

  // Gives every rank the parameters of rank 0.
  void BroadcastParameters() {
    std::vector<lockstep_tensor> values;
    for (Parameter& parameter : parameters_) {
      values.push_back(View(parameter.value.data(), LOCKSTEP_F32, parameter.shape));
    }
    Require(lockstep_reducer_broadcast(reducer_.get(), values.data(), values.size(), 0));
  }

  // A backward pass begins that computes no gradients of the parameters in `left_out`. What earlier micro-batches left
  // them is final, so it is marked at once; those without a gradient are unused. Without sync gradients only accumulate.
  void BeginBackward(bool sync, const std::vector<size_t>& left_out) {
    std::vector<size_t> ready, unused;
    for (const size_t index : left_out) (parameters_[index].has_gradient ? ready : unused).push_back(index);
    synchronized_ = sync;
    lockstep_backward_options options;
    LOCKSTEP_INIT(options);
    options.no_sync = sync ? 0 : 1;
    const std::vector<const void*> values = Values();
    options.replicas = values.data();
    if (find_unused_) {
      // Named now, rather than found out at the end, they do not keep buckets waiting.
      options.unused_given = 1;
      options.unused = unused.data();
      options.unused_count = unused.size();
    }
    Require(lockstep_reducer_begin_backward(reducer_.get(), &options));
    for (const size_t index : ready) MarkReady(index);
  }

  // The parameter's gradient is final. Once all of its bucket are, on all ranks, it leaves, while this thread goes on.
  void MarkReady(size_t index) {
    Parameter& parameter = parameters_[index];
    const lockstep_tensor f32 = View(parameter.gradient.data(), LOCKSTEP_F32, parameter.shape);
    if (bf16_gradients_.empty()) {
      Require(lockstep_reducer_mark_ready(reducer_.get(), index, &f32, nullptr));
      return;
    }
    const lockstep_tensor bf16 = View(bf16_gradients_[index].data(), LOCKSTEP_BF16, parameter.shape);
    Require(lockstep_cast_tensors(&f32, &bf16, 1));
    Require(lockstep_reducer_mark_ready_into(reducer_.get(), index, &bf16, &f32, nullptr));
  }

  // Waits for the averages, or for the optimizer that is given them. A parameter that only other ranks used has a gradient
  // afterwards, too: their average.
  void EndBackward() {
    Require(lockstep_reducer_end_backward(reducer_.get(), nullptr));
    if (!synchronized_) return;
    lockstep_reducer_statistics statistics;
    LOCKSTEP_INIT(statistics);
    Require(lockstep_reducer_get_statistics(reducer_.get(), &statistics));
    hidden_ms_ += statistics.hidden_ms;
    exposed_ms_ += statistics.exposed_ms;
    if (!find_unused_ || step_ != nullptr) return;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      if (parameter.has_gradient) continue;
      lockstep_tensor average;
      int32_t used = 0;
      Require(lockstep_reducer_averaged_gradient(reducer_.get(), i, &average, &used));
      if (used == 0) continue;
      const lockstep_tensor gradient = View(parameter.gradient.data(), LOCKSTEP_F32, parameter.shape);
      Require(lockstep_cast_tensors(&average, &gradient, 1));
      parameter.has_gradient = true;
    }
  }

  // Fails if the ranks' parameters differ, and names the first difference. Each step has compared some of them.
  void CheckReplicas() const {
    Require(lockstep_check_replicas(communicator_, replicas_.data(), Values().data(), replicas_.size()));
  }

  size_t buckets() const { return lockstep_reducer_bucket_count(reducer_.get()); }
  // Communication since this was last asked: behind backward passes, and after them, where it held up what came next.
  std::pair<double, double> TakeHiddenAndExposedMs() {
    return {std::exchange(hidden_ms_, 0), std::exchange(exposed_ms_, 0)};
  }

 private:
  struct Destroy {
    void operator()(lockstep_reducer* reducer) const { lockstep_reducer_destroy(reducer); }
  };

  // Lockstep calls it for each bucket as soon as its averages are there. An error that it returns fails the step.
  static lockstep_error* StepBucket(void* context, const lockstep_reduced_bucket* bucket) {
    Reducer* self = static_cast<Reducer*>(context);
    for (size_t i = 0; i < bucket->parameter_count; ++i) {
      const size_t index = bucket->parameters[i];
      const Parameter& parameter = self->parameters_[index];
      lockstep_tensor average = bucket->gradients[i];
      // Where this rank marked no gradient, there is no f32 memory for the average: it comes as the table says.
      if (average.dtype != LOCKSTEP_F32) {
        self->widened_.resize(parameter.gradient.size());
        const lockstep_tensor f32 = View(self->widened_.data(), LOCKSTEP_F32, parameter.shape);
        if (lockstep_error* error = lockstep_cast_tensors(&average, &f32, 1)) return error;
        average = f32;
      }
      self->step_(index, static_cast<const float*>(average.data));
    }
    return nullptr;
  }

  // Where the values are that training changes.
  std::vector<const void*> Values() const {
    std::vector<const void*> values;
    for (const Parameter& parameter : parameters_) {
      values.push_back(parameter.master.empty() ? parameter.value.data() : parameter.master.data());
    }
    return values;
  }

  std::vector<Parameter>& parameters_;
  lockstep_communicator* const communicator_;
  std::vector<lockstep_parameter> replicas_;
  const bool find_unused_;
  const OptimizerStep step_;
  std::vector<std::vector<uint16_t>> bf16_gradients_;  // by parameter
  std::vector<float> widened_;                         // of one parameter
  bool synchronized_ = false;                          // this backward pass, or the last one
  double hidden_ms_ = 0;
  double exposed_ms_ = 0;
  std::unique_ptr<lockstep_reducer, Destroy> reducer_;  // behind what its thread uses: it ends first
};

// A communication hook of our own, for lockstep_reducer_options.hook_issue: a reduce-scatter, after which each rank has the
// averages of its part of the bucket, and an all-gather of the parts. What an embedder would put between the two, or in
// their place (another precision, a slower link for one of them), goes into a function like this. It only enqueues.
inline lockstep_error* AverageInTwoPhases(void* /*context*/, lockstep_hook_bucket* bucket,
                                          lockstep_communicator* communicator, const lockstep_stream* stream) {
  lockstep_tensor all;
  if (lockstep_error* error = lockstep_hook_bucket_tensor(bucket, &all)) return error;
  const int32_t ranks = lockstep_communicator_size(communicator);
  const int32_t rank = lockstep_communicator_rank(communicator);
  std::vector<int64_t> counts(ranks, all.shape[0] / ranks);
  counts.back() += all.shape[0] % ranks;
  lockstep_tensor part = all;
  part.data = static_cast<char*>(all.data) + rank * counts[0] * lockstep_dtype_size(all.dtype);
  part.shape = &counts[rank];
  if (lockstep_error* error =
          lockstep_reduce_scatter_v(communicator, &all, &part, counts.data(), LOCKSTEP_AVG, nullptr, stream, nullptr)) {
    return error;
  }
  return lockstep_all_gather_v(communicator, &part, &all, counts.data(), nullptr, stream, nullptr);
}

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_REDUCER_H_
