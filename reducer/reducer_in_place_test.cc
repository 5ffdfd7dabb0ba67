// Gradients that are reduced where they lie have the bits of gradients that are copied into buckets and back, over a deterministic
// communicator: for every way to average, dtype on the wire, place of the averages, and use of the parameters, by messages and in shared
// memory. Gradients are random, so that any other order of adding, and any further rounding, shows.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/host/transport_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference_testing.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/ranks.h"
#include "tests/worlds.h"

namespace lockstep::testing {
namespace {

struct Way {
  Average average = Average::kBefore;
  absl::optional<DType> compress;
  DType dtype = DType::kF32;   // of gradients
  DType target = DType::kF32;  // of averages
  bool unused = false;         // rank 1 does not use every parameter, and nobody uses the last
  bool uneven = false;         // rank 1 has fewer inputs, and averages are over the others then
  bool collides = false;       // the target is the gradient's memory, in another dtype

  std::string ToString() const {
    return absl::StrCat(Name(average), ", sent as ", compress.has_value() ? Name(*compress) : Name(dtype), ", ",
                        Name(dtype), " into ", Name(target), unused ? ", some unused" : "", uneven ? ", uneven" : "",
                        collides ? ", in one memory" : "");
  }
};

std::vector<Way> AllWays() {
  struct Types {
    DType dtype;
    absl::optional<DType> compress;
    DType target;
  };
  // As they are, half as long, in a dtype that has not all values of the gradients', and longer than they are; averages elsewhere.
  const Types all_types[] = {
      {DType::kF32, absl::nullopt, DType::kF32},     {DType::kF32, DType::kBF16, DType::kF32},
      {DType::kF32, DType::kF16, DType::kF32},       {DType::kBF16, DType::kF16, DType::kBF16},
      {DType::kF8E4M3, DType::kF16, DType::kF8E4M3}, {DType::kF8E4M3, absl::nullopt, DType::kF8E4M3},
      {DType::kBF16, absl::nullopt, DType::kF32},    {DType::kF32, DType::kF16, DType::kBF16}};
  std::vector<Way> ways;
  for (const Average average : kAllAverages) {
    for (const Types& types : all_types) {
      for (const bool unused : {false, true}) {
        for (const bool uneven : {false, true}) {
          if (uneven && average == Average::kNone) continue;
          ways.push_back({average, types.compress, types.dtype, types.target, unused, uneven});
        }
      }
      if (types.target == types.dtype) continue;
      ways.push_back({average, types.compress, types.dtype, types.target, false, false, /*collides=*/true});
    }
  }
  return ways;
}

// Contiguous ones, short and long; with gaps between elements; with another order in memory; and an empty one.
std::vector<Parameter> Table(DType dtype) {
  return {MakeParameter("short", dtype, {3}),    MakeParameter("gaps", dtype, {17, 30}, {62, 2}),
          MakeParameter("long", dtype, {3001}),  MakeParameter("turned", dtype, {40, 25}, {1, 40}),
          MakeParameter("empty", dtype, {0, 4}), MakeParameter("one", dtype, {1}),
          MakeParameter("last", dtype, {77})};
}

// A tensor of a parameter's geometry with memory of its own.
class Tensor {
 public:
  Tensor(const Parameter& parameter, DType dtype)
      : memory_(sizeof(double) * 3200),
        view_(*TensorView::Create(memory_.data(), dtype, parameter.shape, parameter.strides, DeviceId())) {}

  const TensorView& view() const { return view_; }
  // In the same memory.
  TensorView As(DType dtype) const {
    return *TensorView::Create(view_.data(), dtype, view_.shape(), view_.strides(), DeviceId());
  }
  // All of it, gaps too.
  void Randomize(std::mt19937* random) {
    const size_t bytes = SizeOf(view_.dtype());
    for (size_t at = 0; at < memory_.size(); at += bytes) {
      const double value = std::ldexp(1 + (*random)() / 0x1p32, static_cast<int>((*random)() % 8) - 6);
      const uint64_t code = kernels::ReferenceEncode(view_.dtype(), (*random)() % 2 == 0 ? value : -value);
      std::memcpy(memory_.data() + at, &code, bytes);
    }
  }
  std::string bits() const { return std::string(memory_.begin(), memory_.end()); }

 private:
  std::vector<char> memory_;
  const TensorView view_;
};

// The bits of all gradients and averages of a rank after each step.
std::string Train(Communicator& communicator, const Way& way, bool copies) {
  const int rank = communicator.rank().value();
  ReducerOptions options;
  options.bucket_caps_bytes = {600, 6000};
  options.average = way.average;
  options.predivide_factor = way.average == Average::kPredivide ? 3 : 1;
  options.compress = way.compress;
  options.find_unused = way.unused;
  options.uneven_inputs = options.divide_by_live = way.uneven;
  options.copy_gradients = copies;
  options.replan = false;
  const std::vector<Parameter> table = Table(way.dtype);
  const auto reducer = Reducer::Create(&communicator, table, options);
  LOCKSTEP_EXPECT_OK(reducer);
  if (!reducer.ok()) return "";
  std::mt19937 random(100 + rank);
  std::string bits;
  for (int step = 0; step < (way.uneven && rank == 1 ? 1 : 2); ++step) {
    std::deque<Tensor> gradients;
    std::deque<Tensor> targets;
    for (const Parameter& parameter : table) {
      gradients.emplace_back(parameter, way.dtype).Randomize(&random);
      targets.emplace_back(parameter, way.target).Randomize(&random);
    }
    LOCKSTEP_EXPECT_OK((*reducer)->BeginBackward({}));
    for (size_t index = table.size(); index-- > 0;) {
      if (way.unused && (index == table.size() - 1 || (rank == 1 && index % 2 == 0))) continue;
      LOCKSTEP_EXPECT_OK(
          way.target == way.dtype
              ? (*reducer)->MarkReady(index, gradients[index].view(), nullptr)
              : (*reducer)->MarkReady(index, gradients[index].view(),
                                      way.collides ? gradients[index].As(way.target) : targets[index].view(), nullptr));
    }
    LOCKSTEP_EXPECT_OK((*reducer)->EndBackward(nullptr));
    for (size_t index = 0; index < table.size(); ++index) {
      absl::StrAppend(&bits, gradients[index].bits(), targets[index].bits());
      const auto average = (*reducer)->AverageOf(index);
      LOCKSTEP_EXPECT_OK(average);
      if (!average.ok() || average->data() == nullptr || !average->dense()) continue;
      bits.append(static_cast<const char*>(average->data()), average->bytes());
    }
  }
  if (way.uneven) {
    LOCKSTEP_EXPECT_OK((*reducer)->Join({}));
  }
  return bits;
}

void ExpectEqualBits(Communicator& communicator) {
  for (const Way& way : AllWays()) {
    const std::string copied = Train(communicator, way, /*copies=*/true);
    const std::string in_place = Train(communicator, way, /*copies=*/false);
    EXPECT_TRUE(copied == in_place) << "rank " << communicator.rank() << ": " << way.ToString();
  }
}

TEST(InPlace, HasTheBitsOfCopiesByMessages) {
  for (const int size : {1, 3}) {
    TransportCommunicatorOptions options;
    options.deterministic = true;
    options.chunk_bytes = 1000;
    LoopbackWorld(size, {}, options).Run(&ExpectEqualBits);
  }
}

TEST(InPlace, HasTheBitsOfCopiesInSharedMemory) {
  for (const int size : {2, 3}) RunOnOneHost(size, /*deterministic=*/true, &ExpectEqualBits);
}

}  // namespace
}  // namespace lockstep::testing
