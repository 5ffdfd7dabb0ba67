#include "reducer/reducer_testing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/bucket_kernels.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/flatten.h"
#include "reducer/pipeline/accelerator.h"

namespace lockstep::testing {
namespace {

constexpr char kBetweenElements = 0x5A;

size_t NumbersIn(DType dtype) { return IsComplex(dtype) ? 2 : 1; }

// Of a float.
double Read(DType dtype, const char* at) {
  double value = 0;
  LOCKSTEP_EXPECT_OK(kernels::CastScaled(DType::kF64, &value, dtype, at, 1, 1));
  return value;
}

void Write(DType dtype, char* at, double value) {
  LOCKSTEP_EXPECT_OK(kernels::CastScaled(dtype, at, DType::kF64, &value, 1, 1));
}

double Epsilon(DType dtype) { return std::ldexp(1, -1 - FormatOf(dtype).mantissa_bits); }

bool IsPowerOfTwo(int size) { return (size & (size - 1)) == 0; }

// More than any test needs: a plan is in use from the third step after the one that shows the requests.
constexpr int kStepsMax = 100;

// The same elements, which the host reaches, for its kernels.
TensorView HostView(const TensorView& view) {
  return TensorView::Create(view.data(), view.dtype(), view.shape(), view.strides(), DeviceId()).value();
}

// The reverse of TakeOut.
void PutIn(const ReachableVector<char>& flat, const TensorView& view) {
  if (view.dense()) return CopyAnywhere(view.data(), flat.data(), view.bytes());
  const TensorView target = HostView(view);
  LOCKSTEP_ASSERT_OK(kernels::UnflattenViews({{&target, 0}}, flat.data(), view.dtype(), 1));
}

void CopyView(const TensorView& source, const TensorView& target) {
  ReachableVector<char> flat;
  TakeOut(source, &flat);
  PutIn(flat, target);
}

}  // namespace

// The tests' ranks reduce on the test's device, and a fake one has the host's kernels.
const bool kernels_chosen = [] {
  if (WithHostKernels()) ReplaceKernelsForTesting(kernels::HostBucketKernels());
  return true;
}();

TensorView VectorView(void* data, DType dtype, int64_t count) {
  return TensorView::Create(data, dtype, {count}, {}, TestDeviceId()).value();
}

std::vector<float> Floats(const TensorView& view) {
  std::vector<float> floats(view.elements());
  CopyAnywhere(floats.data(), view.data(), view.bytes());
  return floats;
}

std::vector<Parameter> MixedTable() {
  return {
      MakeParameter("f32", DType::kF32, {3, 7}),
      MakeParameter("f16", DType::kF16, {5}),
      MakeParameter("bf16", DType::kBF16, {7, 1}),
      MakeParameter("f64", DType::kF64, {2, 2}),
      MakeParameter("complex64", DType::kComplex64, {3}),
      MakeParameter("complex128", DType::kComplex128, {1, 2}),
      MakeParameter("none", DType::kF32, {4, 0}),
      MakeParameter("none of its dtype in the bucket", DType::kF16, {0}),
      MakeParameter("scalar", DType::kF32, {}),
      MakeParameter("channels-last", DType::kF32, {2, 3, 4, 5}, {60, 1, 15, 3}),
      MakeParameter("channels-last f16", DType::kF16, {1, 2, 3, 3}, {18, 1, 6, 2}),
      MakeParameter("gaps", DType::kF32, {3, 2}, {5, 1}),
      MakeParameter("large", DType::kF32, {1001}),
      MakeParameter("large f16", DType::kF16, {33, 31}),
      MakeParameter("last", DType::kBF16, {2}),
  };
}

Replica::Replica(std::vector<Parameter> table, int rank) : table_(std::move(table)), rank_(rank) {
  for (const Parameter& parameter : table_) {
    // Row-major strides where none are given, and the place of each element.
    std::vector<int64_t> strides = parameter.strides;
    if (strides.empty()) {
      strides.assign(parameter.shape.size(), 1);
      for (size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * parameter.shape[d];
    }
    std::vector<int64_t> offsets;
    int64_t extent = 1;
    for (int64_t i = 0; i < parameter.elements(); ++i) {
      int64_t offset = 0;
      int64_t rest = i;
      for (size_t d = strides.size(); d-- > 0; rest /= parameter.shape[d]) {
        offset += rest % parameter.shape[d] * strides[d];
      }
      offsets.push_back(offset);
      extent = std::max(extent, offset + 1);
    }
    offsets_.push_back(std::move(offsets));
    memory_.emplace_back(extent * SizeOf(parameter.dtype), kBetweenElements);
    gradients_.push_back(
        TensorView::Create(memory_.back().data(), parameter.dtype, parameter.shape, parameter.strides, parameter.device)
            .value());
  }
  computed_ = memory_;
}

Order Replica::order() const {
  Order order(table_.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Order Replica::OrderWithout(size_t missing) const {
  Order rest = order();
  rest.erase(rest.begin() + static_cast<ptrdiff_t>(missing));
  return rest;
}

std::vector<double> Replica::Local(size_t index, int rank, int step) const {
  std::vector<double> values(offsets_[index].size() * NumbersIn(table_[index].dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int>((7 * rank + 11 * step + 3 * index + 5 * i) % 31) - 15;
  }
  return values;
}

void Replica::Set(size_t index, const std::vector<double>& values, Memory* memory) const {
  const DType dtype = table_[index].dtype;
  const size_t numbers = NumbersIn(dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    char* const element = memory->data() + offsets_[index][i / numbers] * SizeOf(dtype);
    Write(RealOf(dtype), element + i % numbers * SizeOf(RealOf(dtype)), values[i]);
  }
}

std::vector<double> Replica::Get(size_t index) const {
  const DType dtype = table_[index].dtype;
  const size_t numbers = NumbersIn(dtype);
  std::vector<double> values(offsets_[index].size() * numbers);
  for (size_t i = 0; i < values.size(); ++i) {
    const char* const element = memory_[index].data() + offsets_[index][i / numbers] * SizeOf(dtype);
    values[i] = Read(RealOf(dtype), element + i % numbers * SizeOf(RealOf(dtype)));
  }
  return values;
}

absl::Status Replica::ComputeOn(Stream& stream, size_t index, int step) {
  Set(index, Local(index, rank_, step), &computed_[index]);
  return stream.Copy(memory_[index].data(), computed_[index].data(), memory_[index].size());
}

void Replica::Accumulate(int step) {
  for (size_t index = 0; index < table_.size(); ++index) {
    std::vector<double> values = Get(index);
    const std::vector<double> more = Local(index, rank_, step);
    for (size_t i = 0; i < values.size(); ++i) values[i] += more[i];
    Set(index, values, &memory_[index]);
  }
}

void Replica::ExpectAverage(size_t index, int size, const std::vector<int>& steps, Average average) const {
  const std::vector<double> got = Get(index);
  std::vector<double> sums(got.size(), 0.0);
  double magnitude = 0;
  for (int rank = 0; rank < size; ++rank) {
    for (const int step : steps) {
      const std::vector<double> local = Local(index, rank, step);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += local[i];
      magnitude += 15;
    }
  }
  const bool exact = average == Average::kNone || IsPowerOfTwo(size);
  const double divisor = average == Average::kNone ? 1 : size;
  // Every product and every sum rounds once.
  const double tolerance = exact ? 0 : 2 * size * Epsilon(RealOf(table_[index].dtype)) * magnitude / divisor;
  size_t wrong = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (std::abs(got[i] - sums[i] / divisor) <= tolerance) continue;
    if (++wrong == 1) {
      ADD_FAILURE() << "rank " << rank_ << ", " << lockstep::Describe(index, table_[index]) << ", number " << i << ": "
                    << got[i] << " instead of " << sums[i] / divisor;
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << sums.size();

  std::vector<bool> used(memory_[index].size() / SizeOf(table_[index].dtype), false);
  for (const int64_t offset : offsets_[index]) used[offset] = true;
  for (size_t i = 0; i < memory_[index].size(); ++i) {
    if (used[i / SizeOf(table_[index].dtype)]) continue;
    ASSERT_EQ(memory_[index][i], kBetweenElements) << "written between elements";
  }
}

void Replica::ExpectLocal(size_t index, int step) const {
  EXPECT_EQ(Get(index), Local(index, rank_, step)) << "rank " << rank_ << ", parameter " << index;
}

std::string Replica::Bytes() const {
  std::string bytes;
  for (const Memory& memory : memory_) bytes.append(memory.data(), memory.size());
  return bytes;
}

Worker::Worker(Communicator& communicator, const std::vector<Parameter>& table, const ReducerOptions& options)
    : Replica(table, communicator.rank().value()),
      communicator_(communicator),
      rank_(communicator.rank().value()),
      average_(options.average) {
  auto reducer = Reducer::Create(&communicator, table, options);
  LOCKSTEP_EXPECT_OK(reducer);
  reducer_ = *std::move(reducer);
}

Stream& Worker::stream() {
  if (stream_ == nullptr) {
    Device* const accelerator = communicator_.accelerator();
    stream_ = (accelerator != nullptr ? accelerator : TestDevice(rank_))->CreateStream("test").value();
  }
  return *stream_;
}

absl::Status Worker::BackwardOf(const Order& order, const BackwardOptions& options, Stream* stream) {
  LOCKSTEP_RETURN_IF_ERROR(Begin(options));
  MarkAll(order, stream);
  return End();
}

absl::Status Worker::Step(int step, const Order& order, Stream* stream) {
  Compute(step);
  return BackwardOf(order, {}, stream);
}

void Worker::ExpectStep(int step, const Order& order, Stream* stream) {
  LOCKSTEP_EXPECT_OK(Step(step, order, stream));
  ExpectAverages(step);
}

void Worker::ExpectWindow(int first_step) {
  Compute(first_step);
  LOCKSTEP_EXPECT_OK(Backward({/*sync=*/false}));
  Accumulate(first_step + 1);
  LOCKSTEP_EXPECT_OK(Backward());
  ExpectAveragesOf({first_step, first_step + 1});
}

TensorView Worker::View(size_t index) const {
  const auto view = reducer_->GradientView(index);
  LOCKSTEP_EXPECT_OK(view);
  return view.ok() ? *view : TensorView();
}

void Worker::ToView(size_t index) { CopyView(gradient(index), View(index)); }

void Worker::FromViews() {
  for (const size_t index : order()) CopyView(View(index), gradient(index));
}

absl::Status Worker::StepInViews(int step, const Order& order) {
  LOCKSTEP_RETURN_IF_ERROR(Begin());
  Compute(step);
  ToViews();
  MarkViews(order);
  LOCKSTEP_RETURN_IF_ERROR(End());
  FromViews();
  return absl::OkStatus();
}

std::vector<std::unique_ptr<Worker>> MakeWorkers(LoopbackWorld& world, const std::vector<Parameter>& table,
                                                 const ReducerOptions& options) {
  std::vector<std::unique_ptr<Worker>> workers(world.size());
  world.Run([&](Communicator& communicator) {
    workers[communicator.rank().value()] = std::make_unique<Worker>(communicator, table, options);
  });
  return workers;
}

void TakeOut(const TensorView& view, ReachableVector<char>* flat) {
  flat->resize(view.bytes());
  if (view.dense()) return CopyAnywhere(flat->data(), view.data(), view.bytes());
  const TensorView source = HostView(view);
  LOCKSTEP_ASSERT_OK(kernels::FlattenViews({{&source, 0}}, flat->data(), view.dtype(), 1));
}

void Fill(const TensorView& view, float value) {
  const std::vector<float> values(view.elements(), value);
  CopyAnywhere(view.data(), values.data(), view.bytes());
}

ReducerOptions Caps(std::vector<size_t> caps_bytes) {
  ReducerOptions options;
  options.bucket_caps_bytes = std::move(caps_bytes);
  return options;
}

CollectiveRequest AverageOf(const HookBucket& bucket) {
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.device = bucket.communicator->device();
  request.dtype = bucket.dtype;
  request.op = ReduceOp::kAvg;
  request.count = bucket.elements;
  request.input = bucket.data;
  request.output = bucket.data;
  return request;
}

absl::Status EnqueueFor(HookBucket& bucket, Stream& stream, const CollectiveRequest& request) {
  return bucket.communicator->Enqueue(request, &stream,
                                      [&bucket](const absl::Status& status) { bucket.status.Update(status); });
}

std::string AveragesTest::NameOf(const ::testing::TestParamInfo<std::tuple<int, Average>>& info) {
  const char* const averages[] = {"Before", "After", "None", "InCollective", "Predivide"};
  return absl::StrCat(std::get<0>(info.param), "Ranks", averages[static_cast<int>(std::get<1>(info.param))]);
}

ReducerOptions AveragesTest::options(std::vector<size_t> caps_bytes) const {
  ReducerOptions options = Caps(std::move(caps_bytes));
  options.average = average();
  options.predivide_factor = 2;
  return options;
}

Order Zigzag(size_t count) {
  Order order;
  for (size_t i = 0; i < count; i += 2) order.push_back(i);
  for (size_t i = count; i-- > 0;) {
    if (i % 2 == 1) order.push_back(i);
  }
  return order;
}

int StepUntil(const Reducer& reducer, int64_t version, int step, const std::function<absl::Status(int step)>& run) {
  const int begin = step;
  for (; reducer.plan_version() < version; ++step) {
    if (step - begin == kStepsMax) {
      ADD_FAILURE() << "after " << kStepsMax << " steps there is no plan " << version;
      return step;
    }
    const absl::Status status = run(step);
    LOCKSTEP_EXPECT_OK(status);
    if (!status.ok()) return step;
  }
  return step;
}

}  // namespace lockstep::testing
