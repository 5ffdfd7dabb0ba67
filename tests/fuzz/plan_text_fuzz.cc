// Bucket plans as text, which users keep beside checkpoints and ranks send each other.
//
//   input = table:u8 text

#include <utility>

#include "base/status.h"
#include "reducer/plan/bucket_plan.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep {
namespace {

struct Case {
  std::vector<Parameter> parameters;
  PlanRules rules;
};

Parameter Vector(std::string name, DType dtype, int64_t elements) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.dtype = dtype;
  parameter.shape = {elements};
  return parameter;
}

// Tables with what plans have rules about.
const std::vector<Case>& Cases() {
  static const auto* const cases = [] {
    auto* const made = new std::vector<Case>(2);
    Case& plain = (*made)[0];
    for (const int64_t elements : {100, 7, 0, 3000, 12}) plain.parameters.push_back(Vector("", DType::kF32, elements));
    plain.rules.caps_bytes = {64, 1024};
    Case& mixed = (*made)[1];
    for (int i = 0; i < 4; ++i) mixed.parameters.push_back(Vector(std::string(1, 'a' + i), DType::kF32, 10));
    mixed.parameters.push_back(Vector("half", DType::kF16, 10));
    mixed.parameters[1].ignored = true;
    mixed.parameters[2].sparse = true;
    mixed.rules.caps_bytes = {0};
    mixed.rules.delayed = {3};
    return made;
  }();
  return *cases;
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  std::vector<std::string> seeds;
  for (size_t i = 0; i < Cases().size(); ++i) {
    const Case& of = Cases()[i];
    const BucketGroups groups = GroupsOf(PlanBuckets(of.parameters, of.rules));
    seeds.push_back(static_cast<char>(i) + PlanToText(of.parameters, groups));
  }
  return seeds;
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: nothing else is here
  fuzz::Input input(data, size);
  const Case& of = Cases()[input.Take<uint8_t>() % Cases().size()];
  const std::string text(input.Rest());
  const fuzz::Allocations allocations;
  const absl::StatusOr<BucketGroups> groups = PlanFromText(of.parameters, of.rules, text);
  LOCKSTEP_CHECK(allocations.bytes() <= 64 * size + 8192) << allocations.bytes() << " bytes allocated for " << size;
  fuzz::CheckCode(groups.status(), {absl::StatusCode::kInvalidArgument});
  if (!groups.ok()) return 0;
  LOCKSTEP_CHECK(CheckGroups(of.parameters, of.rules, *groups).ok());
  const absl::StatusOr<BucketGroups> again = PlanFromText(of.parameters, of.rules, PlanToText(of.parameters, *groups));
  LOCKSTEP_CHECK(again.ok() && *again == *groups);
  const BucketPlan plan = LayOut(of.parameters, of.rules, *groups);
  LOCKSTEP_CHECK(GroupsOf(plan) == *groups);
  size_t bytes = 0;
  for (const BucketPlan::Bucket& bucket : plan.buckets) bytes += bucket.bytes();
  LOCKSTEP_CHECK(bytes <= PlanBytesMax(of.parameters, of.rules)) << bytes;
  return 0;
}
