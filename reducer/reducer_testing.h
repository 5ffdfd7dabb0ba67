// What the reducer's tests share: a replica of a model, whose gradients are numbers that tell rank, step, parameter and element,
// so that the averages are known without communication.

#ifndef REDUCER_REDUCER_TESTING_H_
#define REDUCER_REDUCER_TESTING_H_

#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/device/tensor_view.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace testing {

// Long enough for any machine, short enough to be an error rather than a hang.
inline TransportCommunicatorOptions ShortTimeout() {
  TransportCommunicatorOptions options;
  options.timeout = std::chrono::seconds(20);
  return options;
}

Parameter MakeParameter(std::string name, DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides = {});

// `count` elements on the test's device.
TensorView VectorView(void* data, DType dtype, int64_t count);

// What a dense view has, wherever it is.
std::vector<float> Floats(const TensorView& view);

// `count` vectors of `elements` f32 each: "p0", "p1", ...
std::vector<Parameter> Vectors(int count, int64_t elements);

// Every kind of parameter that there is: dtypes, a scalar, none at all, channels-last, gaps, odd sizes.
std::vector<Parameter> MixedTable();

// The gradients of one rank. Small whole numbers: they and their sums over a few ranks are exact in every dtype.
class Replica {
 public:
  Replica(std::vector<Parameter> table, int rank);

  const std::vector<Parameter>& table() const { return table_; }
  const TensorView& gradient(size_t index) const { return gradients_[index]; }
  // 0, 1, ...: an order in which to mark.
  std::vector<size_t> order() const;

  // Sets the gradients to those of a step, or adds them.
  void Compute(int step);
  void Compute(size_t index, int step);
  // The same in the order of a stream: by a copy, since a GPU's closures may have to wait for other ranks'. Not twice before it is done.
  absl::Status ComputeOn(Stream& stream, size_t index, int step);
  void Accumulate(int step);

  // In one step: the calls in order, with the results checked.
  void MarkAll(Reducer& reducer, const std::vector<size_t>& order, Stream* stream = nullptr) const;
  absl::Status RunStep(Reducer& reducer, int step, const std::vector<size_t>& order, Stream* stream = nullptr);
  absl::Status RunStep(Reducer& reducer, int step) { return RunStep(reducer, step, order()); }

  // EXPECTs what `size` ranks have after the steps, accumulated, and that memory between elements is as it was. Exact where
  // divisor times a whole number is: worlds of 1, 2 and 4.
  void ExpectAverages(int size, const std::vector<int>& steps, Average average = Average::kBefore) const;
  void ExpectAverage(size_t index, int size, const std::vector<int>& steps, Average average = Average::kBefore) const;
  // EXPECTs this rank's own gradient of the step.
  void ExpectLocal(size_t index, int step) const;

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

}  // namespace testing
}  // namespace lockstep

#endif  // REDUCER_REDUCER_TESTING_H_
