// How fast each variant's kernels run beside memcpy, from first-level cache to memory.
//
// "bytes/s" counts what a kernel reads and writes: three arrays for a combine, all sources and targets for a reduction of
// many, two for the rest. Names are
// operation/variant/bytes of the target; --benchmark_filter=/avx2/ selects a variant, and variants that the processor
// lacks are left out. The active variant is printed in the header's context.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"
#include "benchmark/benchmark.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/variant.h"

namespace lockstep::kernels {
namespace {

constexpr int64_t kTargetBytes[] = {4 << 10, 256 << 10, 4 << 20, 64 << 20};

// Pieces of a flattened bucket: a small model's mixture of biases and matrices.
constexpr size_t kPieceElements = 1000;

// Of a block that is gathered or scattered: a bias of 16 floats.
constexpr size_t kBlockBytes = 64;

// Small whole numbers in every format: all-zero bytes would be, too, but an operand that is zero may be special.
std::vector<uint8_t> Operand(size_t bytes) { return std::vector<uint8_t>(bytes, 0x3C); }

void CountBytes(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(bytes));
}

void Memcpy(benchmark::State& state) {
  const size_t bytes = state.range(0);
  const std::vector<uint8_t> source = Operand(bytes);
  std::vector<uint8_t> target(bytes);
  for (auto _ : state) {
    std::memcpy(target.data(), source.data(), bytes);
    benchmark::ClobberMemory();
  }
  CountBytes(state, 2 * bytes);
}

// In place, as a receiver that reduces into its own data does.
void CombineInPlace(benchmark::State& state, CombineFunction combine, DType dtype) {
  const size_t bytes = state.range(0);
  const std::vector<uint8_t> source = Operand(bytes);
  std::vector<uint8_t> target = Operand(bytes);
  for (auto _ : state) {
    combine(target.data(), target.data(), source.data(), bytes / SizeOf(dtype));
    benchmark::ClobberMemory();
  }
  CountBytes(state, 3 * bytes);
}

// The first sources are the targets, as for ranks that share memory: each reads everybody's and writes everybody's.
template <typename Reduce>
void ReduceManyInPlace(benchmark::State& state, Reduce reduce, DType dtype, int source_count, int target_count) {
  const size_t bytes = state.range(0);
  std::vector<std::vector<uint8_t>> arrays(source_count, Operand(bytes));
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (std::vector<uint8_t>& array : arrays) {
    sources.push_back(array.data());
    if (static_cast<int>(targets.size()) < target_count) targets.push_back(array.data());
  }
  for (auto _ : state) {
    reduce(targets.data(), targets.size(), sources.data(), sources.size(), bytes / SizeOf(dtype));
    benchmark::ClobberMemory();
  }
  CountBytes(state, (sources.size() + targets.size()) * bytes);
}

// `pieces` at a time: one for a cast or a scaling, kPieceElements for a flatten.
void Convert(benchmark::State& state, ScaleFunction function, DType to, DType from, size_t piece) {
  const size_t count = state.range(0) / SizeOf(to);
  const std::vector<uint8_t> source = Operand(count * SizeOf(from));
  std::vector<uint8_t> target(count * SizeOf(to));
  for (auto _ : state) {
    for (size_t done = 0; done < count; done += piece) {
      const size_t step = count - done < piece ? count - done : piece;
      function(target.data() + done * SizeOf(to), source.data() + done * SizeOf(from), step, 0.5);
    }
    benchmark::ClobberMemory();
  }
  CountBytes(state, source.size() + target.size());
}

// Between contiguous memory and blocks that do not lie beside each other.
template <typename Function>
void MoveBlocks(benchmark::State& state, Function function) {
  const size_t bytes = state.range(0);
  std::vector<uint8_t> memory = Operand(2 * bytes);
  std::vector<uint8_t> flat(bytes);
  std::vector<Block> blocks;
  for (size_t at = 0; at <= bytes; at += kBlockBytes) {
    blocks.push_back({at, reinterpret_cast<char*>(memory.data()) + 2 * at});
  }
  for (auto _ : state) {
    function(blocks.data(), blocks.size() - 1, reinterpret_cast<char*>(flat.data()));
    benchmark::ClobberMemory();
  }
  CountBytes(state, 2 * bytes);
}

struct CombineCase {
  DType dtype;
  ReduceOp op;
};
constexpr CombineCase kCombines[] = {{DType::kF32, ReduceOp::kSum},  {DType::kF16, ReduceOp::kSum},
                                     {DType::kBF16, ReduceOp::kSum}, {DType::kF64, ReduceOp::kSum},
                                     {DType::kI32, ReduceOp::kSum},  {DType::kF32, ReduceOp::kMax},
                                     {DType::kBF16, ReduceOp::kMax}, {DType::kF8E4M3, ReduceOp::kSum}};

struct ReduceManyCase {
  DType dtype;
  int sources;
  int targets;
};
constexpr ReduceManyCase kReduceManys[] = {{DType::kF32, 2, 1},  {DType::kF32, 2, 2},  {DType::kF32, 4, 4},
                                           {DType::kF32, 8, 1},  {DType::kF32, 64, 1}, {DType::kBF16, 2, 2},
                                           {DType::kBF16, 8, 8}, {DType::kF16, 8, 8},  {DType::kF8E4M3, 8, 8}};

struct CastCase {
  DType to;
  DType from;
};
constexpr CastCase kCasts[] = {{DType::kBF16, DType::kF32},  {DType::kF16, DType::kF32}, {DType::kF32, DType::kBF16},
                               {DType::kF32, DType::kF16},   {DType::kF32, DType::kF64}, {DType::kBF16, DType::kF64},
                               {DType::kF8E4M3, DType::kF32}};

template <typename Body>
void Register(const std::string& name, Body body) {
  auto* registered = benchmark::RegisterBenchmark(name.c_str(), body);
  for (int64_t bytes : kTargetBytes) registered->Arg(bytes);
}

void RegisterVariant(Variant variant, const KernelTable& table) {
  const std::string suffix = std::string("/") + Name(variant);
  for (const CombineCase& c : kCombines) {
    const CombineFunction combine = table.combine[static_cast<int>(c.dtype)][static_cast<int>(c.op)];
    Register(Name(c.op) + "_" + Name(c.dtype) + suffix,
             [combine, c](benchmark::State& state) { CombineInPlace(state, combine, c.dtype); });
  }
  for (const ReduceManyCase& c : kReduceManys) {
    const ReduceManyFunction reduce = table.reduce_many[static_cast<int>(c.dtype)][static_cast<int>(ReduceOp::kSum)];
    Register(
        "sum_" + Name(c.dtype) + "_of_" + std::to_string(c.sources) + "_into_" + std::to_string(c.targets) + suffix,
        [reduce, c](benchmark::State& state) { ReduceManyInPlace(state, reduce, c.dtype, c.sources, c.targets); });
    const ScaledSumFunction sum = table.scaled_sum[static_cast<int>(c.dtype)];
    const auto average = [sum](auto... arguments) { sum(arguments..., 0.5); };
    Register(
        "avg_" + Name(c.dtype) + "_of_" + std::to_string(c.sources) + "_into_" + std::to_string(c.targets) + suffix,
        [average, c](benchmark::State& state) { ReduceManyInPlace(state, average, c.dtype, c.sources, c.targets); });
  }
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const ScaleFunction scale = table.cast[static_cast<int>(dtype)][static_cast<int>(dtype)];
    Register("scale_" + Name(dtype) + suffix,
             [scale, dtype](benchmark::State& state) { Convert(state, scale, dtype, dtype, SIZE_MAX / 2); });
  }
  for (const CastCase& c : kCasts) {
    const ScaleFunction cast = table.cast[static_cast<int>(c.to)][static_cast<int>(c.from)];
    Register("cast_" + Name(c.from) + "_to_" + Name(c.to) + suffix,
             [cast, c](benchmark::State& state) { Convert(state, cast, c.to, c.from, SIZE_MAX / 2); });
  }
  Register("gather" + suffix, [&table](benchmark::State& state) { MoveBlocks(state, table.gather); });
  Register("scatter" + suffix, [&table](benchmark::State& state) { MoveBlocks(state, table.scatter); });
  for (DType to : {DType::kF32, DType::kBF16}) {
    const ScaleFunction cast = table.cast[static_cast<int>(to)][static_cast<int>(DType::kF32)];
    Register("flatten_f32_to_" + Name(to) + suffix,
             [cast, to](benchmark::State& state) { Convert(state, cast, to, DType::kF32, kPieceElements); });
  }
}

const bool kRegistered = [] {
  benchmark::AddCustomContext("active kernel variant", Name(ActiveVariant()));
  Register("memcpy", Memcpy);
  for (Variant variant : kAllVariants) {
    if (const KernelTable* table = TableOf(variant)) RegisterVariant(variant, *table);
  }
  return true;
}();

}  // namespace
}  // namespace lockstep::kernels
