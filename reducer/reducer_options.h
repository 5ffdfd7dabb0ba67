// What an embedder may ask of a reducer, once, when it is made. Equal on all ranks, but for where traces go.

#ifndef REDUCER_REDUCER_OPTIONS_H_
#define REDUCER_REDUCER_OPTIONS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/types/dtype.h"
#include "reducer/pipeline/average.h"
#include "reducer/pipeline/bucket_pipeline.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

struct ReducerOptions {
  // Caps in bytes, used up one by one per dtype and device, the last repeated. Default: a small first bucket, so that
  // communication starts early, then 25 MiB.
  std::vector<size_t> bucket_caps_bytes = {size_t{1} << 20, size_t{25} << 20};
  CapsFrom caps_from = CapsFrom::kFirst;
  size_t buckets_in_memory_max = 0;  // 0: all of them
  Average average = Average::kBefore;
  double predivide_factor = 1;  // f of Average::kPredivide: from 2^-10 to 2^15
  bool overlap = true;          // false: every bucket is launched by EndBackward, for comparison

  bool find_unused = false;   // not every parameter is used in every backward
  bool static_graph = false;  // every backward is like the first one: see reducer/marks.h

  // Gradients live in the buckets: see GradientView. Not together with buckets that take turns.
  bool gradient_as_bucket_view = false;

  // Once the order in which gradients become ready has been seen, buckets are planned anew, by rank 0's order. Without it only after
  // RequestReplan. In bucket views not by itself, since views move.
  bool replan = true;
  // Of an earlier run (ExportPlan): buckets as they were then. Nothing is planned anew without a request.
  std::string plan;

  // What real floats are sent as, f16 or bf16: half the bytes of f32, and each rank's contribution and the sum round to it.
  absl::optional<DType> compress;
  // Instead of the all-reduce; `average` is then the hook's affair. Null: none.
  std::shared_ptr<CommHook> hook;
  // Called for each bucket as soon as it is reduced, on a stream of its own, while others are still under way. Afterwards its gradients
  // are not borrowed any more.
  OptimizerStep optimizer;

  // Parameters whose gradients are reduced when that of the trigger is ready, with what has been marked of them until then, in whichever
  // backward; what was not marked counts as unused.
  std::vector<size_t> delayed;
  size_t delayed_trigger = 0;

  // Ranks may run out of inputs at different times: those that have call Join.
  bool uneven_inputs = false;
  // Averages are those of the ranks that have inputs, rather than of all with zeros for the others. Not with a hook, nor for a sum.
  bool divide_by_live = false;
  // Instead, as soon as a rank has joined, the step is FAILED_PRECONDITION on all, and so is Join.
  bool throw_on_early_end = false;

  // Where a trace of every step goes: a folder, or the beginning of a file's name. Empty: where LOCKSTEP_TRACE says, if it does.
  std::string trace_path;
};

PlanRules RulesOf(const ReducerOptions& options);

// INVALID_ARGUMENT for options that contradict each other or cannot be had for this table.
absl::Status CheckOptions(const ReducerOptions& options, absl::Span<const Parameter> parameters);

// For comparison across ranks, and for people: "averaging: LOCKSTEP_AVERAGING_BEFORE; hook: none; ...", named as the fields of
// lockstep_reducer_options are. All but the plan, which may change.
std::string Settings(const ReducerOptions& options);

// As the options say, which were checked.
BucketPlan FirstPlan(absl::Span<const Parameter> parameters, const ReducerOptions& options);

}  // namespace lockstep

#endif  // REDUCER_REDUCER_OPTIONS_H_
