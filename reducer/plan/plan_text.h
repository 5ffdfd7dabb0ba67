// Bucket plans as text: to keep beside a checkpoint, so that a restarted job sums in the same order, and to send to
// other ranks.
//
//   lockstep-bucket-plan 1
//   parameters <hash of the table, 16 hexadecimal digits>
//   bucket 7 6 5           parameters by index; one line a bucket, in the order of launch; delayed ones are not listed
//   bucket 4 3

#ifndef REDUCER_PLAN_PLAN_TEXT_H_
#define REDUCER_PLAN_PLAN_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

std::string PlanToText(absl::Span<const Parameter> parameters, const BucketGroups& groups);

// INVALID_ARGUMENT, which says where: the text is no plan, is of another table, or has groups that CheckGroups refuses.
absl::StatusOr<BucketGroups> PlanFromText(absl::Span<const Parameter> parameters, const PlanRules& rules,
                                          const std::string& text);

}  // namespace lockstep

#endif  // REDUCER_PLAN_PLAN_TEXT_H_
