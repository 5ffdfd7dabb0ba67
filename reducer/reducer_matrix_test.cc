// Every way to average gradients against one process that has all of them. The ways are generated: each combination of how the average is
// taken, where gradients live, the hook, whose inputs end, and which parameters are used, deterministic and not, over worlds of two
// sizes. Each is run with dense and sparse parameters of every dtype through steps of one backward and of three, of which the last is
// synchronised; or it is refused by an error that names the options, as RefusedBy says. Averages of some parameters go to targets of
// another dtype, and some ways have an optimizer, which must see each average. Gradients are such that every average is exact in every
// dtype, whatever the order of the sum: results are compared for equality.

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cpu/cast.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/reducer_testing.h"
#include "reducer/sparse/sparse_all_gather.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep::testing {
namespace {

// ---- The ways.

enum class Memory { kInPlace, kCopied, kCopiedInTurns, kViews, kViewsInTurns };
enum class Hook { kNone, kF16, kBF16, kNoop, kOrdered, kOrderedF16, kElsewhere, kHostCompleted };
enum class Inputs { kEven, kUneven, kUnevenByLive };
enum class Use { kAll, kFindUnused, kStaticGraph };

struct Way {
  Average average;
  Memory memory;
  Hook hook;
  Inputs inputs;
  Use use;

  // Whether a hook, rather than the reducer, makes the average.
  bool hooked() const { return hook != Hook::kNone && hook != Hook::kF16 && hook != Hook::kBF16; }
  bool views() const { return memory == Memory::kViews || memory == Memory::kViewsInTurns; }
};

std::string ToString(const Way& way) {
  const char* const averages[] = {"before", "after", "none", "in_collective", "predivide"};
  const char* const memories[] = {"in place", "copied", "copied, in turns", "views", "views, in turns"};
  const char* const hooks[] = {"no hook",      "compress f16",      "compress bf16",  "noop",
                               "ordered hook", "ordered hook, f16", "hook elsewhere", "host-completed hook"};
  const char* const inputs[] = {"even", "uneven", "uneven by live"};
  const char* const uses[] = {"all used", "find_unused", "static_graph"};
  return absl::StrCat("average ", averages[static_cast<int>(way.average)], ", ", memories[static_cast<int>(way.memory)],
                      ", ", hooks[static_cast<int>(way.hook)], ", ", inputs[static_cast<int>(way.inputs)], ", ",
                      uses[static_cast<int>(way.use)]);
}

std::vector<Way> AllWays() {
  std::vector<Way> ways;
  for (const Average average : kAllAverages) {
    for (const Memory memory :
         {Memory::kInPlace, Memory::kCopied, Memory::kCopiedInTurns, Memory::kViews, Memory::kViewsInTurns}) {
      for (const Hook hook : {Hook::kNone, Hook::kF16, Hook::kBF16, Hook::kNoop, Hook::kOrdered, Hook::kOrderedF16,
                              Hook::kElsewhere, Hook::kHostCompleted}) {
        for (const Inputs inputs : {Inputs::kEven, Inputs::kUneven, Inputs::kUnevenByLive}) {
          for (const Use use : {Use::kAll, Use::kFindUnused, Use::kStaticGraph}) {
            ways.push_back({average, memory, hook, inputs, use});
          }
        }
      }
    }
  }
  return ways;
}

// The options that cannot go together, which the error names. None: the way is legal.
std::vector<std::string> RefusedBy(const Way& way) {
  if (way.memory == Memory::kViewsInTurns) return {"gradient_as_bucket_view", "buckets_in_memory_max"};
  if (way.inputs != Inputs::kUnevenByLive) return {};
  if (way.hooked()) return {"divide_by_live", "hook"};
  if (way.average == Average::kNone) return {"divide_by_live_ranks", "averaging none"};
  return {};
}

// ---- Gradients, and what one process makes of them.

constexpr int kSteps = 3;
constexpr int64_t kRows = 8;
constexpr int64_t kWidth = 2;

// Where the averages of a dense parameter go: to its gradient, or to a target of another dtype, so that the gradient is only read.
absl::optional<DType> TargetOf(const Parameter& parameter) {
  if (parameter.sparse || parameter.strides.empty()) return absl::nullopt;
  switch (parameter.dtype) {
    case DType::kF32:
      return DType::kF64;
    case DType::kF64:
      return DType::kBF16;
    case DType::kF8E5M2:
      return DType::kF16;
    default:
      return IsComplex(parameter.dtype) ? parameter.dtype : DType::kF32;
  }
}

// Each dtype has two dense parameters, in one bucket. The second one is transposed and has a target. On the host each dtype of more than
// 8 bits also has a sparse parameter.
std::vector<Parameter> Table(int ranks) {
  std::vector<DType> dtypes = {DType::kF16,       DType::kBF16,       DType::kF32,    DType::kF64,
                               DType::kComplex64, DType::kComplex128, DType::kF8E4M3, DType::kF8E5M2};
  if (ranks == 3) dtypes.resize(6);  // thirds of what they are exact for are not
  std::vector<Parameter> table;
  for (const DType dtype : dtypes) {
    table.push_back(MakeParameter(absl::StrCat(Name(dtype), " five"), dtype, {5}));
    table.push_back(MakeParameter(absl::StrCat(Name(dtype), " six"), dtype, {2, 3}, {1, 2}));
    if (!OnHost() || SizeOf(dtype) == 1) continue;
    table.push_back(MakeParameter(absl::StrCat(Name(dtype), " rows"), dtype, {kRows, kWidth}));
    table.back().sparse = true;
  }
  return table;
}

int NumbersOf(const Parameter& parameter) { return IsComplex(parameter.dtype) ? 2 : 1; }

// The same training run as every rank sees it.
struct Training {
  Way way;
  int ranks;
  size_t turn;  // decides which parameters no rank uses, and whether there is an optimizer
  std::vector<Parameter> table;

  int StepsOf(int rank) const { return way.inputs == Inputs::kEven ? kSteps : std::max(1, kSteps - rank); }
  bool HasInputs(int rank, int step) const { return step < StepsOf(rank); }
  // The second step accumulates.
  int Micros(int step) const { return step == 1 ? 3 : 1; }
  // Some of the ways that differ in one respect only have an optimizer.
  bool HasOptimizer() const { return turn % 5 < 2; }

  bool Uses(int rank, size_t index, int step, int micro) const {
    if (way.use == Use::kAll) return micro + 1 == Micros(step) || (rank + index + micro) % 2 == 0;
    const bool is_static = way.use == Use::kStaticGraph;
    switch ((index + turn + (is_static ? 0 : step)) % 4) {
      case 0:
        return false;
      case 1:
        return true;
      case 2:
        return rank == static_cast<int>(index % ranks) &&
               (is_static || micro == static_cast<int>(index) % Micros(step));
      default:
        return (rank + (is_static ? 0 : micro)) % 2 == 0;
    }
  }
  bool UsesInStep(int rank, size_t index, int step) const {
    if (!HasInputs(rank, step)) return false;
    for (int micro = 0; micro < Micros(step); ++micro) {
      if (Uses(rank, index, step, micro)) return true;
    }
    return false;
  }
  bool AnyUses(size_t index, int step) const {
    for (int rank = 0; rank < ranks; ++rank) {
      if (UsesInStep(rank, index, step)) return true;
    }
    return false;
  }

  // Of two ranks or more the sums of these have at most three binary digits (for three ranks six), and so have their averages.
  double Number(int rank, size_t index, int step, int micro, size_t number) const {
    const double of_four[] = {1, 1, 2, 4};
    const double of_three[] = {3, 3, 6};
    const size_t which = (rank + index + step + number) % ranks;
    const double weight = ranks == 3 ? of_three[which] : of_four[which];
    const double sign = number % 3 == 0 ? -1 : 1;
    const double scale = number % 2 == 0 ? 1 : 2;
    const bool last = micro + 1 == Micros(step);
    // An 8-bit float has no digits for sums over micro-batches.
    const bool tiny = SizeOf(table[index].dtype) == 1;
    return sign * scale * weight * (last ? 1 : tiny ? 0 : micro + 1);
  }

  // Of a sparse parameter: rows that all have, that one rank has, that come twice, and that come with some micro-batches only. The last
  // rank's first gradient of a step has none, which in steps of one backward is all that it has.
  std::vector<int64_t> Rows(int rank, int micro) const {
    if (rank == ranks - 1 && micro == 0) return {};
    std::vector<int64_t> rows = {6, rank, 5, 6};
    if (micro == 1) rows.push_back(7);
    return rows;
  }
  // One backward's gradient of a rank, of a sparse parameter row by row as in Rows.
  std::vector<double> Gradient(int rank, size_t index, int step, int micro) const {
    const int numbers = NumbersOf(table[index]);
    std::vector<double> gradient;
    if (!table[index].sparse) {
      for (size_t i = 0; i < static_cast<size_t>(table[index].elements() * numbers); ++i) {
        gradient.push_back(Number(rank, index, step, micro, i));
      }
      return gradient;
    }
    for (const int64_t row : Rows(rank, micro)) {
      for (int64_t i = 0; i < kWidth * numbers; ++i) {
        const double number = Number(rank, index, step, micro, row * kWidth * numbers + i);
        gradient.push_back(row == 6 ? number / 2 : number);
      }
    }
    return gradient;
  }

  // What the step leaves of a parameter on a rank. By row of a sparse one; all under 0 of a dense one.
  using Result = std::map<int64_t, std::vector<double>>;
  Result Expected(int rank, size_t index, int step) const {
    const bool sparse = table[index].sparse;
    const size_t width = (sparse ? kWidth : table[index].elements()) * NumbersOf(table[index]);
    Result result;
    if (!sparse) result[0].assign(width, 0);
    int live = 0;
    for (int r = 0; r < ranks; ++r) {
      if (!HasInputs(r, step)) continue;
      ++live;
      if (way.hook == Hook::kNoop && r != rank) continue;
      for (int micro = 0; micro < Micros(step); ++micro) {
        if (!Uses(r, index, step, micro)) continue;
        const std::vector<double> gradient = Gradient(r, index, step, micro);
        const std::vector<int64_t> rows = sparse ? Rows(r, micro) : std::vector<int64_t>{0};
        for (size_t i = 0; i < gradient.size(); ++i) {
          std::vector<double>& row = result[rows[i / width]];
          row.resize(width);
          row[i % width] += gradient[i];
        }
      }
    }
    double divisor = way.inputs == Inputs::kUnevenByLive ? live : ranks;
    if (way.hook == Hook::kNoop || (!way.hooked() && way.average == Average::kNone)) divisor = 1;
    for (auto& [row, numbers] : result) {
      for (double& number : numbers) number /= divisor;
    }
    return result;
  }
};

// ---- Hooks that average.

// By the communicator, in the order of the stream.
class OrderedHook : public CommHook {
 public:
  // The hook leaves the average of every `of`-th bucket in other memory.
  explicit OrderedHook(size_t of) : elsewhere_of_(of) {}

  std::string name() const override { return "ordered"; }
  absl::Status Issue(HookBucket& bucket, Stream& stream) override {
    if (bucket.sparse != nullptr) {
      return stream.Enqueue([&bucket] {
        GatherRows(bucket);
        return absl::OkStatus();
      });
    }
    if ((bucket.index + 1) % elsewhere_of_ != 0) return EnqueueFor(bucket, stream, AverageOf(bucket));
    const DType dtype = IsComplex(bucket.dtype) ? bucket.dtype : DType::kF64;
    ReachableVector<char>& memory = memory_[bucket.index];
    memory.resize(bucket.elements * SizeOf(dtype));
    bucket.result = VectorView(memory.data(), dtype, bucket.elements);
    LOCKSTEP_RETURN_IF_ERROR(Cast(bucket, stream));
    CollectiveRequest request = AverageOf(bucket);
    request.dtype = dtype;
    request.input = request.output = memory.data();
    return EnqueueFor(bucket, stream, request);
  }

  static void GatherRows(HookBucket& bucket) {
    SparseOptions options;
    options.factor = 1.0 / bucket.communicator->size();
    auto rows = AllGatherSparse(*bucket.communicator, absl::OkStatus(), *bucket.sparse, options);
    bucket.status = rows.status();
    if (rows.ok()) bucket.sparse_result = *std::move(rows);
  }

 private:
  // Puts the bucket where the result is to be.
  static absl::Status Cast(HookBucket& bucket, Stream& stream) {
    const TensorView& result = *bucket.result;
    if (OnHost()) {
      return stream.Enqueue([&bucket, &result] {
        const int numbers = IsComplex(bucket.dtype) ? 2 : 1;
        return kernels::CastScaled(RealOf(result.dtype()), result.data(), RealOf(bucket.dtype), bucket.data,
                                   numbers * bucket.elements, 1);
      });
    }
    const TensorView data = VectorView(bucket.data, bucket.dtype, bucket.elements);
    const Accelerator accelerator = FindAccelerator(*bucket.communicator, data.device()).value();
    return accelerator.kernels->Gather({{&data, 0, bucket.elements}}, {}, result.data(), result.dtype(), 1, stream);
  }

  const size_t elsewhere_of_;
  std::map<size_t, ReachableVector<char>> memory_;  // by bucket
};

// Completes every second bucket on another thread. The threads are joined in the end.
class Completers {
 public:
  ~Completers() {
    for (std::thread& thread : threads_) thread.join();
  }
  void Complete(HookBucket& bucket, const std::shared_ptr<HookCompletion>& completion) {
    if (bucket.sparse != nullptr) {
      OrderedHook::GatherRows(bucket);
      return completion->Done(bucket.status);
    }
    const auto average = [&bucket, completion] { completion->Done(bucket.communicator->Run(AverageOf(bucket))); };
    if (bucket.index % 2 == 0) return average();
    threads_.emplace_back(average);
  }

 private:
  std::vector<std::thread> threads_;
};

std::shared_ptr<CommHook> MakeHook(Hook hook) {
  switch (hook) {
    case Hook::kNoop:
      return MakeNoopHook();
    case Hook::kOrdered:
      return std::make_shared<OrderedHook>(/*of=*/SIZE_MAX);
    case Hook::kOrderedF16:
      return std::make_shared<OrderedHook>(/*of=*/2);
    case Hook::kElsewhere:
      return std::make_shared<OrderedHook>(/*of=*/1);
    case Hook::kHostCompleted:
      return MakeHostCompletedHook("host-completed", std::chrono::seconds(20),
                                   [completers = std::make_shared<Completers>()](
                                       HookBucket& bucket, std::shared_ptr<HookCompletion> completion) {
                                     completers->Complete(bucket, completion);
                                   });
    case Hook::kNone:
    case Hook::kF16:
    case Hook::kBF16:
      break;
  }
  return nullptr;
}

ReducerOptions OptionsOf(const Way& way) {
  ReducerOptions options = Caps({100});
  options.average = way.average;
  options.predivide_factor = 2;
  options.gradient_as_bucket_view = way.views();
  options.copy_gradients = way.memory == Memory::kCopied || way.memory == Memory::kCopiedInTurns;
  if (way.memory == Memory::kCopiedInTurns || way.memory == Memory::kViewsInTurns) options.buckets_in_memory_max = 3;
  if (way.hook == Hook::kF16 || way.hook == Hook::kOrderedF16) options.compress = DType::kF16;
  if (way.hook == Hook::kBF16) options.compress = DType::kBF16;
  options.hook = MakeHook(way.hook);
  options.uneven_inputs = way.inputs != Inputs::kEven;
  options.divide_by_live = way.inputs == Inputs::kUnevenByLive;
  options.find_unused = way.use == Use::kFindUnused;
  options.static_graph = way.use == Use::kStaticGraph;
  return options;
}

// ---- One rank.

void Write(const TensorView& view, const std::vector<double>& numbers) {
  ReachableVector<char> encoded(view.bytes());
  LOCKSTEP_EXPECT_OK(
      kernels::CastScaled(RealOf(view.dtype()), encoded.data(), DType::kF64, numbers.data(), numbers.size(), 1));
  CopyAnywhere(view.data(), encoded.data(), encoded.size());
}

std::vector<double> Decode(DType dtype, const char* data, size_t elements) {
  std::vector<double> numbers(elements * (IsComplex(dtype) ? 2 : 1));
  LOCKSTEP_EXPECT_OK(kernels::CastScaled(DType::kF64, numbers.data(), RealOf(dtype), data, numbers.size(), 1));
  return numbers;
}

std::vector<double> Read(const TensorView& view) {
  ReachableVector<char> encoded(view.bytes());
  CopyAnywhere(encoded.data(), view.data(), encoded.size());
  return Decode(view.dtype(), encoded.data(), view.elements());
}

class Trainer {
 public:
  Trainer(const Training& run, int rank, Stream* stream)
      : run_(run),
        rank_(rank),
        stream_(stream),
        own_(run.table.size()),
        targets_(run.table.size()),
        sums_(run.table.size()),
        rows_(run.table.size()) {}

  absl::Status Train(Reducer* reducer) {
    reducer_ = reducer;
    for (int step = 0; step < run_.StepsOf(rank_); ++step) {
      LOCKSTEP_RETURN_IF_ERROR(Step(step));
      LOCKSTEP_RETURN_IF_ERROR(Check(step));
    }
    if (run_.way.inputs != Inputs::kEven) LOCKSTEP_RETURN_IF_ERROR(reducer_->Join({}));
    CheckUse();
    return absl::OkStatus();
  }

  // The optimizer.
  absl::Status See(const ReducedBucket& bucket) {
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      seen_[bucket.parameters[i]] =
          bucket.sparse != nullptr ? NumbersIn(*bucket.sparse) : Training::Result{{0, Read(bucket.gradients[i])}};
    }
    return absl::OkStatus();
  }

  size_t compared() const { return compared_; }
  const std::string& wrong() const { return wrong_; }

 private:
  absl::StatusOr<TensorView> Place(size_t index, DType dtype, ReachableVector<char>* memory) {
    const Parameter& parameter = run_.table[index];
    memory->resize(parameter.elements() * SizeOf(dtype));
    return TensorView::Create(memory->data(), dtype, parameter.shape, parameter.strides, parameter.device);
  }
  // Where the gradient is.
  absl::StatusOr<TensorView> GradientPlace(size_t index) {
    if (run_.way.views()) return reducer_->GradientView(index);
    return Place(index, run_.table[index].dtype, &own_[index]);
  }
  // REQUIRES  the parameter has a target
  absl::StatusOr<TensorView> TargetPlace(size_t index) {
    return Place(index, *TargetOf(run_.table[index]), &targets_[index]);
  }
  // What an earlier step left there, which is nobody's now.
  std::vector<double> Stale(size_t index) const {
    return std::vector<double>(run_.table[index].elements() * NumbersOf(run_.table[index]), 16 + 4 * rank_);
  }

  absl::Status Step(int step) {
    seen_.clear();
    for (size_t index = 0; index < run_.table.size(); ++index) {
      sums_[index].clear();
      rows_[index].clear();
      if (run_.table[index].sparse) continue;
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView place, GradientPlace(index));
      Write(place, Stale(index));
      if (!TargetOf(run_.table[index]).has_value()) continue;
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView target, TargetPlace(index));
      Write(target, Stale(index));
    }
    for (int micro = 0; micro < run_.Micros(step); ++micro) LOCKSTEP_RETURN_IF_ERROR(Backward(step, micro));
    return stream_->Synchronize(Deadline::Infinite());
  }

  absl::Status Backward(int step, int micro) {
    BackwardOptions options;
    options.sync = micro + 1 == run_.Micros(step);
    std::vector<size_t> unused;
    for (size_t index = 0; index < run_.table.size(); ++index) {
      if (!run_.Uses(rank_, index, step, micro)) unused.push_back(index);
    }
    // Ranks say beforehand what is unused, or do not.
    if (options.sync && run_.way.use == Use::kFindUnused && (rank_ + step) % 2 == 0) options.unused = unused;
    LOCKSTEP_RETURN_IF_ERROR(reducer_->BeginBackward(options));
    for (size_t index = run_.table.size(); index-- > 0;) {
      if (run_.Uses(rank_, index, step, micro)) LOCKSTEP_RETURN_IF_ERROR(Mark(index, step, micro));
    }
    return reducer_->EndBackward(options.sync && step == 2 ? stream_ : nullptr);
  }

  // Adds the backward's gradient to what there is in this step.
  absl::Status Mark(size_t index, int step, int micro) {
    const Parameter& parameter = run_.table[index];
    Stream* const stream = (index + step) % 3 == 0 ? stream_ : nullptr;
    const std::vector<double> gradient = run_.Gradient(rank_, index, step, micro);
    std::vector<double>& sum = sums_[index];
    if (!parameter.sparse) {
      sum.resize(gradient.size());
      for (size_t i = 0; i < gradient.size(); ++i) sum[i] += gradient[i];
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView place, GradientPlace(index));
      Write(place, sum);
      if (!TargetOf(parameter).has_value()) return reducer_->MarkReady(index, place, stream);
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView target, TargetPlace(index));
      return reducer_->MarkReady(index, place, target, stream);
    }
    const std::vector<int64_t> rows = run_.Rows(rank_, micro);
    rows_[index].insert(rows_[index].end(), rows.begin(), rows.end());
    sum.insert(sum.end(), gradient.begin(), gradient.end());
    const int64_t count = static_cast<int64_t>(rows_[index].size());
    own_[index].resize(count * kWidth * SizeOf(parameter.dtype));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView values, TensorView::Create(own_[index].data(), parameter.dtype,
                                                                          {count, kWidth}, {}, parameter.device));
    Write(values, sum);
    return reducer_->MarkReadySparse(index, rows_[index], values, stream);
  }

  void Expect(const Training::Result& got, const Training::Result& expected, absl::string_view what, size_t index,
              int step) {
    ++compared_;
    if (got == expected || !wrong_.empty()) return;
    const auto text = [](const Training::Result& result) {
      return absl::StrJoin(result, "; ", [](std::string* out, const auto& row) {
        absl::StrAppend(out, row.first, ": ", absl::StrJoin(row.second, " "));
      });
    };
    wrong_ = absl::StrCat("rank ", rank_, ", step ", step, ", ", what, " of ", Describe(index, run_.table[index]),
                          ": {", text(got), "} instead of {", text(expected), "}");
  }

  absl::Status Check(int step) {
    for (size_t index = 0; index < run_.table.size(); ++index) {
      const bool any = run_.AnyUses(index, step);
      const Training::Result expected = any ? run_.Expected(rank_, index, step) : Training::Result();
      LOCKSTEP_RETURN_IF_ERROR(run_.table[index].sparse ? CheckRows(index, step, any, expected)
                                                        : CheckDense(index, step, any, expected));
      if (run_.HasOptimizer()) Expect(seen_[index], expected, "the optimizer's gradient", index, step);
    }
    return absl::OkStatus();
  }

  static Training::Result NumbersIn(const CoalescedGradient& rows) {
    Training::Result numbers;
    const size_t row_bytes = kWidth * SizeOf(rows.dtype);
    for (size_t i = 0; i < rows.indices.size(); ++i) {
      numbers[rows.indices[i]] = Decode(rows.dtype, rows.values.data() + i * row_bytes, kWidth);
    }
    return numbers;
  }

  absl::Status CheckRows(size_t index, int step, bool any, const Training::Result& expected) {
    LOCKSTEP_ASSIGN_OR_RETURN(const CoalescedGradient* const average, reducer_->SparseAverageOf(index));
    if ((average != nullptr) != any) return absl::InternalError("an average of what nobody uses, or none");
    const Training::Result got = any ? NumbersIn(*average) : Training::Result();
    Expect(got, expected, "the rows", index, step);
    return absl::OkStatus();
  }

  absl::Status CheckDense(size_t index, int step, bool any, const Training::Result& expected) {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView average, reducer_->AverageOf(index));
    if ((average.data() != nullptr) != any) return absl::InternalError("an average of what nobody uses, or none");
    if (any) Expect({{0, Read(average)}}, expected, "the average", index, step);
    // A target counts if the synchronised backward has a mark. Then, or if only others do and averages do not live in views, the gradient
    // is only read. A gradient that no rank uses stays as it is.
    const bool reads = TargetOf(run_.table[index]).has_value();
    const bool targeted = reads && run_.Uses(rank_, index, step, run_.Micros(step) - 1);
    const bool uses = run_.UsesInStep(rank_, index, step);
    const bool changes = run_.way.views() ? any && !targeted : uses && !reads;
    const Training::Result stale = {{0, Stale(index)}};
    const Training::Result own = uses ? Training::Result{{0, sums_[index]}} : stale;
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView place, GradientPlace(index));
    Expect({{0, Read(place)}}, changes ? expected : own, "the gradient", index, step);
    if (!reads) return absl::OkStatus();
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView target, TargetPlace(index));
    Expect({{0, Read(target)}}, targeted ? expected : stale, "the target", index, step);
    EXPECT_EQ(average.data() == target.data(), targeted);
    return absl::OkStatus();
  }

  // In how many steps each parameter was used, by any rank and by this one.
  void CheckUse() {
    for (size_t index = 0; index < run_.table.size(); ++index) {
      ParameterUse expected;
      for (int step = 0; step < kSteps; ++step) {
        expected.by_any_rank += run_.AnyUses(index, step) ? 1 : 0;
        expected.by_this_rank += run_.UsesInStep(rank_, index, step) ? 1 : 0;
      }
      const ParameterUse& use = reducer_->parameter_use()[index];
      EXPECT_TRUE(use.by_any_rank == expected.by_any_rank && use.by_this_rank == expected.by_this_rank)
          << ToString(run_.way) << ", " << Describe(index, run_.table[index]) << " was used in " << use.by_any_rank
          << " steps by any rank and in " << use.by_this_rank << " by rank " << rank_;
    }
  }

  const Training& run_;
  const int rank_;
  Stream* const stream_;
  Reducer* reducer_ = nullptr;
  std::vector<ReachableVector<char>> own_;  // gradients that are not in views, and values of rows
  std::vector<ReachableVector<char>> targets_;
  std::map<size_t, Training::Result> seen_;  // in this step, by the optimizer
  std::vector<std::vector<double>> sums_;    // over micro-batches; of a sparse parameter, of each of rows_
  std::vector<std::vector<int64_t>> rows_;
  size_t compared_ = 0;
  std::string wrong_;  // the first one
};

// ---- All of it.

class Matrix : public ::testing::TestWithParam<std::tuple<int, bool>> {};

INSTANTIATE_TEST_SUITE_P(Reducer, Matrix, ::testing::Combine(::testing::Values(3, 4), ::testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "Ranks",
                                               std::get<1>(info.param) ? "Deterministic" : "");
                         });

TEST_P(Matrix, EveryWayIsThatOfOneProcessOrIsRefusedByName) {
  const auto [ranks, deterministic] = GetParam();
  // Each way once with a deterministic communicator and once with another: of three ranks and of four, or the other way round.
  std::vector<Way> ways = AllWays();
  size_t number = 0;
  ways.erase(
      std::remove_if(ways.begin(), ways.end(),
                     [&, odd = (ranks == 3) == deterministic](const Way&) { return (number++ % 2 == 0) == odd; }),
      ways.end());
  TransportCommunicatorOptions options = ShortTimeout();
  options.deterministic = deterministic;
  LoopbackWorld world(ranks, {}, options);
  size_t run_count = 0;
  size_t refused = 0;
  size_t compared = 0;  // on rank 0, as are the others
  world.Run([&, size = ranks](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const std::unique_ptr<Stream> stream = TestDevice(rank)->CreateStream("test").value();
    for (size_t w = 0; w < ways.size(); ++w) {
      const Training run = {ways[w], size, w, Table(size)};
      const std::vector<std::string> names = RefusedBy(run.way);
      Trainer trainer(run, rank, stream.get());
      ReducerOptions training = OptionsOf(run.way);
      if (run.HasOptimizer()) training.optimizer = [&](const ReducedBucket& bucket) { return trainer.See(bucket); };
      const auto reducer = Reducer::Create(&communicator, run.table, training);
      if (!names.empty()) {
        for (const std::string& name : names) EXPECT_THAT(reducer, InvalidArgument(name)) << ToString(run.way);
        if (rank == 0) ++refused;
        continue;
      }
      absl::Status status = reducer.status();
      if (status.ok()) {
        status = trainer.Train(reducer->get());
        EXPECT_EQ(trainer.wrong(), "") << ToString(run.way);
        if (rank == 0) compared += trainer.compared();
      }
      EXPECT_EQ(status, absl::OkStatus()) << ToString(run.way) << ", rank " << rank;
      if (!status.ok()) return communicator.Abort("a way that is legal failed");
      if (rank == 0) ++run_count;
    }
  });
  EXPECT_EQ(run_count + refused, ways.size());
  const size_t parameters = Table(ranks).size();
  std::cout << ways.size() << " ways over " << ranks << (deterministic ? " deterministic" : "")
            << " ranks: " << run_count << " run with " << parameters << " parameters in " << kSteps << " steps, "
            << refused << " refused; " << compared << " results of rank 0 compared\n";
  // A gradient of every parameter in every step, and beside it an average unless nobody used it.
  EXPECT_GE(compared, run_count * parameters * kSteps);
}

}  // namespace
}  // namespace lockstep::testing
