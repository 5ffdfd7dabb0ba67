// What the reducer's tests share: a replica of a model, whose gradients are numbers that tell rank, step, parameter and element,
// so that the averages are known without communication; and a worker, which is a replica with its rank's reducer. With it comes what
// nearly every test of a reducer includes.

#ifndef REDUCER_REDUCER_TESTING_H_
#define REDUCER_REDUCER_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/types/reduce_op.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/plan/plan_testing.h"
#include "reducer/reducer.h"

namespace lockstep::testing {

// `count` elements on the test's device.
TensorView VectorView(void* data, DType dtype, int64_t count);

// What a dense view has, wherever it is.
std::vector<float> Floats(const TensorView& view);

// Every kind of parameter that there is: dtypes, a scalar, none at all, channels-last, gaps, odd sizes.
std::vector<Parameter> MixedTable();

// The gradients of one rank. Small whole numbers: they and their sums over a few ranks are exact in every dtype.
class Replica {
 public:
  Replica(std::vector<Parameter> table, int rank);

  const std::vector<Parameter>& table() const { return table_; }
  const TensorView& gradient(size_t index) const { return gradients_[index]; }
  // 0, 1, ...: an order in which to mark.
  Order order() const;
  // The same without one of them.
  Order OrderWithout(size_t missing) const;

  // Sets the gradients to those of a step, or adds them.
  void Compute(int step) {
    for (const size_t index : order()) Compute(index, step);
  }
  void Compute(size_t index, int step) { Set(index, Local(index, rank_, step), &memory_[index]); }
  // The same in the order of a stream: by a copy, since a GPU's closures may have to wait for other ranks'. Not twice before it is done.
  absl::Status ComputeOn(Stream& stream, size_t index, int step);
  void Accumulate(int step);

  // EXPECTs what `size` ranks have after the steps, accumulated, and that memory between elements is as it was. Exact where
  // divisor times a whole number is: worlds of 1, 2 and 4.
  void ExpectAverages(int size, const std::vector<int>& steps, Average average = Average::kBefore) const {
    for (const size_t index : order()) ExpectAverage(index, size, steps, average);
  }
  void ExpectAverage(size_t index, int size, const std::vector<int>& steps, Average average = Average::kBefore) const;
  // EXPECTs this rank's own gradient of the step.
  void ExpectLocal(size_t index, int step) const;

  // EXPECTs that of all of the step.
  void ExpectLocals(int step) const { ExpectLocals(order(), step); }
  void ExpectLocals(const Order& indices, int step) const {
    for (const size_t index : indices) ExpectLocal(index, step);
  }

  // All gradients' memory, for comparison bit by bit.
  std::string Bytes() const;

 private:
  using Memory = ReachableVector<char>;

  void Set(size_t index, const std::vector<double>& values, Memory* memory) const;
  std::vector<double> Get(size_t index) const;
  // What this rank computes: per element in row-major order, two numbers for a complex one.
  std::vector<double> Local(size_t index, int rank, int step) const;

  const std::vector<Parameter> table_;
  const int rank_;
  std::vector<Memory> memory_;
  std::vector<Memory> computed_;  // on their way into `memory_`
  std::vector<TensorView> gradients_;
  std::vector<std::vector<int64_t>> offsets_;  // of elements in row-major order, in elements
};

// A replica with its rank's reducer.
class Worker : public Replica {
 public:
  // Collective. The test ends here if there is no reducer.
  Worker(Communicator& communicator, const std::vector<Parameter>& table, const ReducerOptions& options = {});

  Communicator& communicator() { return communicator_; }
  int rank() const { return rank_; }
  int size() const { return communicator_.size(); }
  Reducer& reducer() { return *reducer_; }
  const BucketPlan& plan() const { return reducer_->plan(); }
  void DestroyReducer() { reducer_.reset(); }

  // A stream of the communicator's device, made by the first call. It outlives the reducer.
  Stream& stream();

  absl::Status Begin(const BackwardOptions& options = {}) { return reducer_->BeginBackward(options); }
  absl::Status Mark(size_t index, Stream* stream = nullptr) {
    return reducer_->MarkReady(index, gradient(index), stream);
  }
  absl::Status End(Stream* stream = nullptr) { return reducer_->EndBackward(stream); }
  // EXPECTs that each mark is taken.
  void MarkAll(const Order& order, Stream* stream = nullptr) {
    for (const size_t index : order) LOCKSTEP_EXPECT_OK(Mark(index, stream));
  }
  // EXPECT that the backward of a step begins, and that it ends with averages.
  void BeginStep(int step) {
    Compute(step);
    LOCKSTEP_EXPECT_OK(Begin());
  }
  void EndStep(int step) {
    LOCKSTEP_EXPECT_OK(End());
    ExpectAverages(step);
  }

  // A backward over the gradients as they are; a step computes them before.
  absl::Status BackwardOf(const Order& order, const BackwardOptions& options = {}, Stream* stream = nullptr);
  absl::Status Backward(const BackwardOptions& options = {}) { return BackwardOf(order(), options); }
  absl::Status Step(int step, const Order& order, Stream* stream = nullptr);
  absl::Status Step(int step) { return Step(step, order()); }

  // EXPECT as Replica does, of this world and average.
  void ExpectAverage(size_t index, int step) const { Replica::ExpectAverage(index, size(), {step}, average_); }
  void ExpectAverages(const Order& indices, int step) const {
    for (const size_t index : indices) ExpectAverage(index, step);
  }
  void ExpectAveragesOf(const std::vector<int>& steps) const { Replica::ExpectAverages(size(), steps, average_); }
  void ExpectAverages(int step) const { ExpectAveragesOf({step}); }
  // EXPECTs that a step goes well and leaves the averages.
  void ExpectStep(int step, const Order& order, Stream* stream = nullptr);
  void ExpectStep(int step) { ExpectStep(step, order()); }
  // EXPECTs that of a window: a backward without sync, then one with.
  void ExpectWindow(int first_step);

  // In bucket views, where the replica's own memory says what the views are to be, and what they were. Between memory with the table's
  // strides and views with those or, where they leave gaps, row-major.
  TensorView View(size_t index) const;
  void ToView(size_t index);
  void ToViews() {
    for (const size_t index : order()) ToView(index);
  }
  void FromViews();
  absl::Status MarkView(size_t index, Stream* stream = nullptr) {
    return reducer_->MarkReady(index, View(index), stream);
  }
  // EXPECTs that each mark is taken.
  void MarkViews(const Order& order, Stream* stream = nullptr) {
    for (const size_t index : order) LOCKSTEP_EXPECT_OK(MarkView(index, stream));
  }
  absl::Status StepInViews(int step, const Order& order);
  absl::Status StepInViews(int step) { return StepInViews(step, order()); }

 private:
  Communicator& communicator_;
  const int rank_;
  const Average average_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Reducer> reducer_;  // ends first: it may use the stream
};

// RunWorld with workers of equal arguments, perhaps of a derived class.
template <typename OneWorker = Worker, typename Body>
void RunWorkers(int size, const std::vector<Parameter>& table, const ReducerOptions& options, const Body& body) {
  RunWorld(size, [&](Communicator& communicator) {
    OneWorker worker(communicator, table, options);
    body(worker);
  });
}
// Workers that outlive one run of a world, by rank.
std::vector<std::unique_ptr<Worker>> MakeWorkers(LoopbackWorld& world, const std::vector<Parameter>& table,
                                                 const ReducerOptions& options);

// The elements of a view as a block: row-major where it has gaps, else as they are in memory. The host reaches a view with gaps.
void TakeOut(const TensorView& view, ReachableVector<char>* flat);
// Sets all elements of a dense view of f32.
void Fill(const TensorView& view, float value);

// `caps_bytes` of buckets; {0} gives each gradient a bucket.
ReducerOptions Caps(std::vector<size_t> caps_bytes);

// In-place average of a bucket by one all-reduce, as a hook may ask for.
CollectiveRequest AverageOf(const HookBucket& bucket);
// Puts a collective of a hook into the stream; its failure is the bucket's.
absl::Status EnqueueFor(HookBucket& bucket, Stream& stream, const CollectiveRequest& request);

inline constexpr Average kAllAverages[] = {Average::kBefore, Average::kAfter, Average::kNone, Average::kInCollective,
                                           Average::kPredivide};

// Tests over worlds of some sizes and all averages.
class AveragesTest : public ::testing::TestWithParam<std::tuple<int, Average>> {
 public:
  static std::string NameOf(const ::testing::TestParamInfo<std::tuple<int, Average>>& info);

 protected:
  int size() const { return std::get<0>(GetParam()); }
  Average average() const { return std::get<1>(GetParam()); }
  ReducerOptions options(std::vector<size_t> caps_bytes = ReducerOptions().bucket_caps_bytes) const;
};

// Every second one, then the others backwards: no plan's order at first.
Order Zigzag(size_t count);
// Runs steps, the same on each rank, until the plan of that version is in use, which is on all ranks at the same step. `run` does one and
// returns whether it went well. Returns the number of the next one.
int StepUntil(const Reducer& reducer, int64_t version, int step, const std::function<absl::Status(int step)>& run);

}  // namespace lockstep::testing

#endif  // REDUCER_REDUCER_TESTING_H_
