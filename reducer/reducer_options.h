// The options of a reducer.

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
#include "reducer/replicas/replica_check.h"

namespace lockstep {

inline std::vector<size_t> DefaultBucketCaps() { return {size_t{1} << 20, size_t{25} << 20}; }

// reducer/reducer_options.inc describes each.
struct ReducerOptions {
#define LOCKSTEP_OPTION(type, field, initial, name, value) type field = initial;
#define LOCKSTEP_FLAG(field, name) bool field = false;
#define LOCKSTEP_OWN_OPTION(type, field, initial) type field = initial;
#include "reducer/reducer_options.inc"
};

PlanRules RulesOf(const ReducerOptions& options);

// Why gradients that do not live in buckets are copied into them, in words that are the same on all ranks. Empty: they are reduced where
// they lie.
std::string WhyCopied(const ReducerOptions& options, bool on_device);

// INVALID_ARGUMENT for options that contradict each other or do not suit this table.
absl::Status CheckOptions(const ReducerOptions& options, absl::Span<const Parameter> parameters);

// The options that must be equal on all ranks, for AgreeOnParameters: "averaging: LOCKSTEP_AVERAGING_BEFORE; hook:
// none; ...".
std::string Settings(const ReducerOptions& options);

// The first plan by these options. REQUIRES that they were checked.
BucketPlan FirstPlan(absl::Span<const Parameter> parameters, const ReducerOptions& options);

}  // namespace lockstep

#endif  // REDUCER_REDUCER_OPTIONS_H_
