#include "reducer/reducer_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "reducer/plan/plan_text.h"

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
    return absl::InvalidArgumentError("divide_by_live_ranks and hook: what a hook leaves is taken for the average");
  }
  if (options.divide_by_live && options.average == Average::kNone) {
    return absl::InvalidArgumentError("divide_by_live_ranks and averaging none: a sum is not divided");
  }
  return CheckPredivideFactor(options.predivide_factor);
}

std::string Settings(const ReducerOptions& options) {
  const auto yes_or_no = [](bool value) { return value ? "yes" : "no"; };
  std::vector<std::string> settings = {
      absl::StrCat("bucket_caps_bytes: ", absl::StrJoin(options.bucket_caps_bytes, " ")),
      absl::StrCat("caps_from_last: ", yes_or_no(options.caps_from == CapsFrom::kLast)),
      options.buckets_in_memory_max == 0 ? "buckets_in_memory_max: all"
                                         : absl::StrCat("buckets_in_memory_max: ", options.buckets_in_memory_max),
      absl::StrCat("averaging: ", Name(options.average)),
      absl::StrCat("predivide_factor: ", options.predivide_factor),
      absl::StrCat("compression: ", options.compress.has_value() ? Name(*options.compress) : "none"),
      absl::StrCat("hook: ", options.hook == nullptr ? "none" : options.hook->name()),
      absl::StrCat("find_unused_parameters: ", yes_or_no(options.find_unused)),
      absl::StrCat("static_graph: ", yes_or_no(options.static_graph)),
      absl::StrCat("uneven_inputs: ", yes_or_no(options.uneven_inputs)),
      absl::StrCat("divide_by_live_ranks: ", yes_or_no(options.divide_by_live)),
      absl::StrCat("throw_on_early_termination: ", yes_or_no(options.throw_on_early_end)),
      absl::StrCat("gradient_as_bucket_view: ", yes_or_no(options.gradient_as_bucket_view)),
      absl::StrCat("no_replan: ", yes_or_no(!options.replan)),
      absl::StrCat("optimizer_step: ", options.optimizer ? "given" : "none"),
      options.delayed.empty() ? "delayed: none"
                              : absl::StrCat("delayed: parameters ", absl::StrJoin(options.delayed, " ")),
      absl::StrCat("delayed_trigger: ", options.delayed_trigger)};
  return absl::StrJoin(settings, "; ");
}

BucketPlan FirstPlan(absl::Span<const Parameter> parameters, const ReducerOptions& options) {
  const PlanRules rules = RulesOf(options);
  if (options.plan.empty()) return PlanBuckets(parameters, rules);
  return LayOut(parameters, rules, PlanFromText(parameters, rules, options.plan).value());
}

}  // namespace lockstep
