#include "reducer/sparse/sparse_all_gather.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "reducer/plan/agreement.h"

namespace lockstep {
namespace {

// What each rank first tells of its gradient. As small as it is, it fits beside a barrier of ranks that share a host.
struct Outline {
  uint64_t given = 0;  // rows with values; kFailed: none, and an error
  uint64_t rows = 0;
  uint64_t shape = 0;  // elements of a row x 256 + dtype
};
static_assert(sizeof(Outline) == 24, "as sent");

constexpr uint64_t kFailed = ~uint64_t{0};
constexpr int64_t kRowElementsMax = int64_t{1} << 55;

Outline OutlineOf(const CoalescedGradient& gradient) {
  return {gradient.indices.size(), static_cast<uint64_t>(gradient.rows),
          static_cast<uint64_t>(gradient.row_elements) << 8 | static_cast<uint64_t>(gradient.dtype)};
}

std::string ShapeOf(const Outline& outline) {
  return absl::StrCat(Name(static_cast<DType>(outline.shape & 0xFF)), "[", outline.rows, ", ", outline.shape >> 8, "]");
}

absl::Status Gather(Communicator& communicator, DType dtype, const void* mine, void* all,
                    absl::Span<const int64_t> counts, size_t count, const SparseOptions& options) {
  CollectiveRequest request;
  request.collective = Collective::kAllGather;
  request.dtype = dtype;
  request.count = count;
  request.counts = counts;
  request.input = mine;
  request.output = all;
  request.timeout = options.timeout;
  request.background = options.background;
  request.by_holder = options.by_holder;
  return communicator.Run(request);
}

// The rows of each rank, once it is clear that they fit together. The same answer on every rank.
absl::StatusOr<std::vector<int64_t>> CheckOutlines(absl::Span<const Outline> outlines, absl::string_view name) {
  std::vector<int64_t> given;
  int64_t bytes = 0;
  const int64_t row_bytes = static_cast<int64_t>(outlines[0].shape >> 8) * 16 + 8;  // at most, with the index
  for (size_t r = 0; r < outlines.size(); ++r) {
    const Outline& outline = outlines[r];
    if (outline.rows != outlines[0].rows || outline.shape != outlines[0].shape) {
      return absl::FailedPreconditionError(absl::StrCat("sparse gradient of '", name, "': ", ShapeOf(outlines[0]),
                                                        " on rank 0, ", ShapeOf(outline), " on rank ", r));
    }
    int64_t more = 0;
    if (__builtin_mul_overflow(outline.given, row_bytes, &more) || __builtin_add_overflow(bytes, more, &bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("sparse gradient of '", name, "': all ranks' rows have more bytes than there are addresses"));
    }
    given.push_back(static_cast<int64_t>(outline.given));
  }
  return given;
}

}  // namespace

absl::StatusOr<CoalescedGradient> AllGatherSparse(Communicator& communicator, const absl::Status& local,
                                                  const SparseGradient& gradient, const SparseOptions& options) {
  absl::StatusOr<CoalescedGradient> mine = local.ok() ? Coalesce(gradient, options.factor) : local;
  if (mine.ok() && mine->row_elements >= kRowElementsMax) {
    mine = absl::InvalidArgumentError(absl::StrCat(Describe(gradient), ": a row has too many elements"));
  }
  Outline outline;
  outline.given = kFailed;
  if (mine.ok()) outline = OutlineOf(*mine);
  std::vector<Outline> outlines(communicator.size());
  LOCKSTEP_RETURN_IF_ERROR(
      Gather(communicator, DType::kU8, &outline, outlines.data(), {}, outlines.size() * sizeof(Outline), options));
  if (std::any_of(outlines.begin(), outlines.end(), [](const Outline& o) { return o.given == kFailed; })) {
    return AgreeOnParameters(communicator, mine.status(), "", {}, options.by_holder);  // they hear why
  }

  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<int64_t> counts, CheckOutlines(outlines, gradient.name));
  size_t total = 0;
  for (const int64_t count : counts) total += count;
  CoalescedGradient all;
  all.dtype = mine->dtype;
  all.rows = mine->rows;
  all.row_elements = mine->row_elements;
  if (total == 0) return all;
  all.indices.resize(total);
  LOCKSTEP_RETURN_IF_ERROR(
      Gather(communicator, DType::kI64, mine->indices.data(), all.indices.data(), counts, total, options));
  if (all.row_elements > 0) {
    const size_t elements = total * static_cast<size_t>(all.row_elements);
    for (int64_t& count : counts) count *= all.row_elements;
    all.values.resize(elements * SizeOf(all.dtype));
    LOCKSTEP_RETURN_IF_ERROR(
        Gather(communicator, all.dtype, mine->values.data(), all.values.data(), counts, elements, options));
  }
  return Coalesce(all.view(gradient.name), 1);
}

}  // namespace lockstep
