#include "kernels/cuda/reduce.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/reduce_many.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/stream_executor.h"
#include "kernels/cuda/transfer.h"

namespace lockstep {
namespace kernels {
namespace cuda {

namespace {

static_assert(kReduceArraysMax == kReduceArrays, "what the arguments hold");

absl::Status CheckReduction(DType dtype, ReduceOp op, size_t targets, size_t sources, double factor) {
  LOCKSTEP_RETURN_IF_ERROR(CombineFor(dtype, op).status());
  if (factor != 1) {
    LOCKSTEP_RETURN_IF_ERROR(ScaledSumFor(dtype).status());
    if (op != ReduceOp::kSum) {
      return absl::InvalidArgumentError(absl::StrCat("cannot scale the sources of ", Name(op), ": only those of sum"));
    }
  }
  const size_t fewest = std::min(targets, sources);
  const size_t most = std::max(targets, sources);
  if (fewest >= 1 && most <= kReduceArraysMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot reduce ", sources, " sources into ", targets,
                                                 " targets at once: 1 to ", kReduceArraysMax, " of each"));
}

// Whether all arrays reach a multiple of kVectorBytes at the same element.
bool TakeVectors(absl::Span<void* const> targets, absl::Span<const void* const> sources) {
  const auto phase = [](const void* array) { return reinterpret_cast<uintptr_t>(array) % kVectorBytes; };
  const auto as_first = [&](const void* array) { return phase(array) == phase(targets[0]); };
  return std::all_of(targets.begin(), targets.end(), as_first) && std::all_of(sources.begin(), sources.end(), as_first);
}

// A sum of complex numbers is one of twice as many reals.
struct Kernel {
  KernelFunction function;
  DType element;
  uint32_t parts;
};

Kernel KernelFor(DType dtype, ReduceOp op, double factor, const KernelTable& kernels) {
  const bool as_reals = IsComplex(dtype) && op == ReduceOp::kSum;
  const RealForm form = as_reals ? RealFormOf(dtype) : RealForm{dtype, 1};
  const int index = static_cast<int>(form.dtype);
  return {factor == 1 ? kernels.reduce[index][static_cast<int>(op)] : kernels.scaled_sum[index], form.dtype,
          form.parts};
}

}  // namespace

namespace internal {

absl::Status Reduce(DType dtype, ReduceOp op, void* target, const void* left, const void* right, size_t count,
                    Executor& executor) {
  const void* const sources[] = {left, right};
  return ReduceMany(dtype, op, {&target, 1}, sources, count, 1, executor);
}

absl::Status ReduceMany(DType dtype, ReduceOp op, absl::Span<void* const> targets,
                        absl::Span<const void* const> sources, size_t count, double factor, Executor& executor) {
  LOCKSTEP_RETURN_IF_ERROR(CheckReduction(dtype, op, targets.size(), sources.size(), factor));
  if (count == 0) return absl::OkStatus();
  for (const void* const target : targets) LOCKSTEP_RETURN_IF_ERROR(CheckAligned("a target", target, SizeOf(dtype)));
  for (const void* const source : sources) LOCKSTEP_RETURN_IF_ERROR(CheckAligned("a source", source, SizeOf(dtype)));
  const size_t bytes = count * SizeOf(dtype);
  for (const void* const target : targets) {
    for (const void* const source : sources) LOCKSTEP_RETURN_IF_ERROR(CheckOverlap(target, bytes, source, bytes));
  }
  if (sources.size() == 1 && factor == 1) {
    for (void* const target : targets) {
      if (target == sources[0]) continue;
      LOCKSTEP_RETURN_IF_ERROR(TransferArray(dtype, target, dtype, sources[0], count, 1, true, nullptr, executor));
    }
    return absl::OkStatus();
  }
  const Kernel kernel = KernelFor(dtype, op, factor, executor.kernels());
  LOCKSTEP_CHECK(kernel.function != nullptr) << Name(op) << " of " << Name(dtype) << " is defined but has no kernel";
  const Blocks blocks = BlocksFor(kernel.parts * count, SizeOf(kernel.element));
  ReduceArguments arguments = {};
  std::copy(targets.begin(), targets.end(), arguments.targets);
  std::copy(sources.begin(), sources.end(), arguments.sources);
  arguments.count = kernel.parts * count;
  arguments.factor = factor;
  arguments.target_count = static_cast<uint32_t>(targets.size());
  arguments.source_count = static_cast<uint32_t>(sources.size());
  arguments.block_elements = blocks.elements;
  arguments.vectors = TakeVectors(targets, sources);
  return executor.Launch(kernel.function, blocks.count, &arguments);
}

}  // namespace internal

absl::Status Reduce(DType dtype, ReduceOp op, void* target, const void* left, const void* right, size_t count,
                    Stream& stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(StreamExecutor executor, StreamExecutor::Create(stream));
  return internal::Reduce(dtype, op, target, left, right, count, executor);
}

absl::Status ReduceMany(DType dtype, ReduceOp op, absl::Span<void* const> targets,
                        absl::Span<const void* const> sources, size_t count, double factor, Stream& stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(StreamExecutor executor, StreamExecutor::Create(stream));
  return internal::ReduceMany(dtype, op, targets, sources, count, factor, executor);
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
