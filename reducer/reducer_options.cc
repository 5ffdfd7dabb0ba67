#include "reducer/reducer_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace lockstep {
namespace {

const char* YesOrNo(bool value) { return value ? "yes" : "no"; }

}  // namespace

PlanRules RulesOf(const ReducerOptions& options) {
  return {options.bucket_caps_bytes, options.caps_from,       options.compress,
          options.delayed,           options.delayed_trigger, !options.replicas.empty()};
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
  if (!options.uneven_inputs && (options.divide_by_live || options.throw_on_early_end)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.divide_by_live ? "divide_by_live_ranks" : "throw_on_early_termination", " without uneven_inputs"));
  }
  if (options.divide_by_live && options.hook != nullptr) {
    return absl::InvalidArgumentError("divide_by_live_ranks and hook: what a hook leaves is taken for the average");
  }
  if (options.divide_by_live && options.average == Average::kNone) {
    return absl::InvalidArgumentError("divide_by_live_ranks and averaging none: a sum is not divided");
  }
  return CheckPredivideFactor(options.predivide_factor);
}

std::string WhyCopied(const ReducerOptions& options, bool on_device) {
  if (on_device) return "they are on a device";
  if (options.hook != nullptr) return absl::StrCat("hook ", options.hook->name(), " takes contiguous buckets");
  return options.copy_gradients ? "gradient_memory is copied" : "";
}

std::string Settings(const ReducerOptions& options) {
  const std::vector<std::string> settings = {
#define LOCKSTEP_OPTION(type, field, initial, name, value) absl::StrCat(#name ": ", value),
#define LOCKSTEP_FLAG(field, name) absl::StrCat(#name ": ", YesOrNo(options.field)),
#define LOCKSTEP_OWN_OPTION(type, field, initial)
#include "reducer/reducer_options.inc"
  };
  return absl::StrJoin(settings, "; ");
}

BucketPlan FirstPlan(absl::Span<const Parameter> parameters, const ReducerOptions& options) {
  const PlanRules rules = RulesOf(options);
  if (options.plan.empty()) return PlanBuckets(parameters, rules);
  return LayOut(parameters, rules, PlanFromText(parameters, rules, options.plan).value());
}

}  // namespace lockstep
