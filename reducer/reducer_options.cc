#include "reducer/reducer_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "reducer/plan_text.h"

namespace lockstep {

PlanRules RulesOf(const ReducerOptions& options) {
  return {options.bucket_caps_bytes, options.caps_from, options.compress, options.delayed, options.delayed_trigger};
}

absl::Status CheckOptions(const ReducerOptions& options, absl::Span<const Parameter> parameters) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRules(RulesOf(options), parameters));
  if (options.gradient_as_bucket_view && options.buckets_in_memory_max > 0) {
    return absl::InvalidArgumentError(
        "gradient_as_bucket_view and buckets_in_memory_max: gradients cannot live in buckets that take turns with "
        "their memory");
  }
  if (!options.plan.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(PlanFromText(parameters, RulesOf(options), options.plan).status());
  }
  if (options.divide_by_live && options.hook != nullptr) {
    return absl::InvalidArgumentError("divide_by_live and hook: what a hook leaves is taken for the average");
  }
  if (options.divide_by_live && options.average == Average::kNone) {
    return absl::InvalidArgumentError("divide_by_live and average none: a sum is not divided");
  }
  return CheckPredivideFactor(options.predivide_factor);
}

std::string Settings(const ReducerOptions& options) {
  return absl::StrCat(
      "bucket caps ", absl::StrJoin(options.bucket_caps_bytes, ","), " from the ",
      options.caps_from == CapsFrom::kFirst ? "first" : "last", ", at most ", options.buckets_in_memory_max,
      " in memory, average ", static_cast<int>(options.average), " factor ", options.predivide_factor, ", compress ",
      options.compress.has_value() ? Name(*options.compress) : "no", ", hook ",
      options.hook == nullptr ? "none" : options.hook->name(), ", find_unused ", options.find_unused, ", static_graph ",
      options.static_graph, ", uneven inputs ", options.uneven_inputs, options.divide_by_live,
      options.throw_on_early_end, ", bucket views ", options.gradient_as_bucket_view, ", replan ", options.replan,
      ", optimizer ", static_cast<bool>(options.optimizer), ", delayed ", absl::StrJoin(options.delayed, ","), " by ",
      options.delayed_trigger);
}

BucketPlan FirstPlan(absl::Span<const Parameter> parameters, const ReducerOptions& options) {
  const PlanRules rules = RulesOf(options);
  if (options.plan.empty()) return PlanBuckets(parameters, rules);
  return LayOut(parameters, rules, PlanFromText(parameters, rules, options.plan).value());
}

}  // namespace lockstep
