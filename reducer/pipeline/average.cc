#include "reducer/pipeline/average.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace lockstep {

const char* Name(Average average) {
  switch (average) {
    case Average::kBefore:
      return "LOCKSTEP_AVERAGING_BEFORE";
    case Average::kAfter:
      return "LOCKSTEP_AVERAGING_AFTER";
    case Average::kNone:
      return "LOCKSTEP_AVERAGING_NONE";
    case Average::kInCollective:
      return "LOCKSTEP_AVERAGING_IN_COLLECTIVE";
    case Average::kPredivide:
      return "LOCKSTEP_AVERAGING_PREDIVIDE";
  }
  return "an unknown average";
}

AverageFactors FactorsOf(Average average, double predivide_factor, int ranks, bool in_place) {
  AverageFactors factors;
  switch (average) {
    case Average::kBefore:
      factors.copy_in = 1.0 / ranks;
      factors.before_sum = factors.copy_in;
      break;
    case Average::kAfter:
      factors.copy_out = 1.0 / ranks;
      break;
    case Average::kNone:
      break;
    case Average::kInCollective:
      factors.op = ReduceOp::kAvg;
      factors.one = static_cast<float>(ranks);
      factors.before_sum = 1.0 / ranks;
      break;
    case Average::kPredivide:
      factors.copy_in = 1 / predivide_factor;
      factors.before_sum = factors.copy_in;
      factors.copy_out = predivide_factor / ranks;
      break;
  }
  if (!in_place || factors.copy_in == 1) return factors;
  if (average == Average::kBefore) {
    factors.op = ReduceOp::kAvg;  // has the bits of a premul-sum, and may scale what it reads as it adds it
    factors.one = static_cast<float>(ranks);
  } else {
    factors.op = ReduceOp::kPremulSum;
    factors.premultiply = factors.copy_in;
    factors.one = static_cast<float>(1 / factors.copy_in);
  }
  factors.copy_in = 1;
  return factors;
}

absl::Status CheckPredivideFactor(double factor) {
  if (factor >= std::ldexp(1, -10) && factor <= std::ldexp(1, 15)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("predivide_factor: gradients cannot be divided by ", factor,
                                                 " before they are summed: only by 2^-10 to 2^15"));
}

}  // namespace lockstep
